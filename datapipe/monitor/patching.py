"""Temporary replacement of attributes of classes and modules.

Restoring is exact: an attribute of the owner itself is set again, an inherited one is deleted.
While a replaced function runs, the original is restored: torch looks functions up by name to tell
tensor subclasses what was called, and their tables know the original. Only calls of the thread that
replaced the attributes are intercepted.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# Two sets that replace the same name would have to be restored in reverse order, so there is one at
# a time. A dict and no lock: `setdefault` takes and reads it in one operation, which an interrupt
# cannot divide.
_HOLDER: dict[str, Shadows] = {}

Around = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of a function, with its name, the function, its arguments and keywords."""


class Target(NamedTuple):
    """An attribute to replace: `name` of `owner`, passed to `around` as `label`."""

    owner: Any
    name: str
    label: str
    around: Around


class _Replaced(NamedTuple):
    """A replaced attribute."""

    target: Target
    own: bool  # whether the owner had the attribute itself
    original: Any
    replacement: Any


class Shadows:
    """A set of attributes to replace together.

    Args:
        targets: attributes; missing ones are left out.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._placed: list[_Replaced] = []
        self._thread = 0

    @property
    def there(self) -> bool:
        """True while the attributes are replaced."""
        return _HOLDER.get("") is self

    def put(self) -> bool:
        """Replace the attributes; return False, without a change, if another set is replaced."""
        if self.there or _HOLDER.setdefault("", self) is not self:
            return False
        try:
            self._thread = threading.get_ident()
            for target in self._targets:
                if hasattr(target.owner, target.name):
                    self._replace_one(target)
        except BaseException:
            self.remove()
            raise
        return True

    def remove(self) -> None:
        """Restore all attributes, except for those that other code has replaced since."""
        try:
            self._remove()
        finally:
            # Again, if an interrupt cut it short.
            self._remove()

    def _remove(self) -> None:
        while self._placed:
            _restore(self._placed[-1])
            self._placed.pop()
        if self.there:
            del _HOLDER[""]

    def _replace_one(self, target: Target) -> None:
        owner, name, label, around = target
        own = name in vars(owner)
        original = vars(owner)[name] if own else getattr(owner, name)

        @functools.wraps(original)
        def replacement(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(*args, **options)
            return around(label, lifted, args, options)

        placed = _Replaced(target, own, original, _uncompiled(replacement))

        def lifted(*args: Any, **options: Any) -> Any:
            _restore(placed)
            try:
                return original(*args, **options)
            finally:
                if self.there and placed in self._placed:
                    _replace(placed)

        self._placed.append(placed)
        _replace(placed)


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hide the function from torch.compile, which would compile it into a compiled step."""
    if "torch._dynamo" not in sys.modules:
        return function
    hidden: Callable[..., Any] = sys.modules["torch"].compiler.disable(function)
    return hidden


def _replace(placed: _Replaced) -> None:
    owner, name = placed.target.owner, placed.target.name
    there = vars(owner).get(name)
    if there is (placed.original if placed.own else None):
        setattr(owner, name, placed.replacement)


def _restore(placed: _Replaced) -> None:
    owner, name = placed.target.owner, placed.target.name
    if vars(owner).get(name) is not placed.replacement:
        return
    if placed.own:
        setattr(owner, name, placed.original)
    else:
        delattr(owner, name)
