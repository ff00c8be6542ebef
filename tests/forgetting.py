"""Caches of functions, emptied so that a test does not see what earlier ones left there."""

from types import ModuleType


def forget(module: ModuleType) -> None:
    """Empty the caches of a module's functions, such as those that log once."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
