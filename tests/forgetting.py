"""What modules remember of earlier tests."""

from types import ModuleType


def forget(module: ModuleType) -> None:
    """Let the cached functions of a module, such as those that log once, know nothing."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
