"""Streaming without torchvision.

Streaming imports two names of torchvision for datasets that are not used here. The package index
has no torchvision for the CPU build of torch. Import this module first.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_STUBS: dict[str, dict[str, Any]] = {
    "torchvision": {},
    "torchvision.datasets": {"VisionDataset": object},
    "torchvision.transforms": {},
    "torchvision.transforms.functional": {"to_tensor": None},
}
for _name, _content in _STUBS.items():
    _module = ModuleType(_name)
    _module.__spec__ = ModuleSpec(_name, None)
    vars(_module).update(_content)
    sys.modules[_name] = _module
