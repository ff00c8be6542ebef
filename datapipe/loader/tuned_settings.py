"""Best settings of workers that tuning found, by machine, dataset and options.

Each is a small JSON file in the user's cache folder. Only speed depends on it: the order of samples
is the same for any number of workers.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from datapipe.cpus import cpu_model
from datapipe.declared import Count, Natural, check_fields
from datapipe.errors import PlanError
from datapipe.index.files.derived import cache_folder
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import replace_file
from datapipe.loader.distributed import default_workers
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.report.table import counted

logger = logging.getLogger(__name__)
_log_once = functools.cache(logger.log)

Auto = Literal["auto"]

VERSION = 1
"""Version of kept settings; files of other versions are ignored."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Settings that a sweep found."""

    num_workers: Natural
    prefetch_factor: Count | None  # None without workers
    rate: float  # batches a second
    step_time: float | None = None  # seconds of a step that they suffice for; None: highest rate

    def __post_init__(self) -> None:
        check_fields(self, PlanError)


def given_or(value: int | Auto | None, default: int) -> int:
    """Return the value, or the default for None and "auto"."""
    return default if value is None or value == "auto" else value


def tuning_key(fingerprint: str, work: Mapping[str, Any]) -> str:
    """Return a digest of this machine, a dataset and the work on it: hexadecimal, 32 digits.

    `work` has options that change the work on a batch, by name. Functions count by their name.
    """
    named = {name: _named(value) for name, value in work.items()}
    content = json.dumps([VERSION, machine(), fingerprint, named], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def keep(key: str, tuned: Tuned) -> Path:
    """Keep settings in place of earlier ones, and return the file, or raise `OSError`."""
    path = _file(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = seal({"version": VERSION, "key": key, "tuned": asdict(tuned)}, indent=1) + "\n"
    replace_file(path, content.encode(), durable=False)
    return path


def recall(key: str) -> Tuned | None:
    """Return kept settings; None if there are none, or the file is damaged."""
    path = _file(key)
    try:
        document = unseal(path.read_bytes())
        if document["version"] != VERSION or document["key"] != key:
            raise ValueError(f"it has version {document['version']!r}, key {document['key']!r}")
        return Tuned(**document["tuned"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("%s is left out: %s; tune again to replace it", path, error)
        return None


def with_tuned(
    options: LoaderOptions,
    find_key: Callable[[], str],
    *,
    num_workers: int | Auto | None,
    prefetch_factor: int | Auto | None,
) -> LoaderOptions:
    """Return the options with kept settings in place of "auto"; defaults stay if there are none.

    `options` have defaults in place of "auto", and the other arguments are as they were given.
    """
    if "auto" not in (num_workers, prefetch_factor):
        return options
    tuned = recall(find_key())
    if tuned is None:
        _log_once(
            logging.WARNING,
            "nothing was tuned for this machine, dataset and these options: taking "
            f"{counted(options.num_workers, 'worker')}, prefetch {options.prefetch_factor}; "
            "`datapipe tune-workers` or datapipe.tune_workers finds the best",
        )
        return options
    if num_workers == "auto":
        options = replace(options, num_workers=tuned.num_workers)
    if prefetch_factor == "auto" and tuned.prefetch_factor is not None:
        options = replace(options, prefetch_factor=tuned.prefetch_factor)
    pace = f", for steps of {1000 * tuned.step_time:,.0f} ms" if tuned.step_time else ""
    _log_once(
        logging.INFO,
        f"as tuned on this machine: {counted(options.num_workers, 'worker')}, prefetch "
        f"{options.prefetch_factor} ({tuned.rate:.1f} batches/s then{pace})",
    )
    return options


@functools.cache
def machine() -> dict[str, Any]:
    """Return the properties of this machine on which the best settings depend."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu_model(),
        "cpus": default_workers(),
        "memory": f"{memory / 2**30:.2g} GiB",
        "gpu": gpu,
    }


def _file(key: str) -> Path:
    return cache_folder() / "tuned" / f"{key}.json"


def _named(value: Any) -> Any:
    """Return a value as text that is the same in another process."""
    if isinstance(value, functools.partial):
        return ["partial", _named(value.func), _named(value.args), _named(value.keywords)]
    if isinstance(value, Mapping):
        return {str(name): _named(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Path | torch.dtype | torch.device):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        fields = {name: _named(getattr(value, name)) for name in value.__dataclass_fields__}
        return [type(value).__qualname__, fields]
    return f"{type(value).__module__}.{type(value).__qualname__}"
