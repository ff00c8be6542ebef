"""`--storage-options` of commands that take URLs: credentials and endpoints for fsspec."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

from datapipe.cli.fields import own_flag
from datapipe.cli.loading import Flags, with_flags
from datapipe.errors import PlanError
from datapipe.remote.folder import is_remote

_FORMS = "give key=value, a JSON object, or a file that holds one"
_FLAG = own_flag(
    "storage_options",
    "Options of the filesystem behind the URLs, as fsspec names them: key=value (profile=work, "
    "endpoint_url=https://...), a JSON object, or a file that holds one. Repeatable.",
    list[str],
)


def with_storage_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--storage-options` to a command; it holds for the URLs among the other arguments."""

    @with_flags(_FLAG)
    @wraps(command)
    def call(flags: Flags, **given: Any) -> None:
        if texts := flags.values["storage_options"]:
            _use(texts, given.values())
        command(**given)

    return call


def _use(texts: Iterable[str], arguments: Iterable[Any]) -> None:
    """Make options the defaults of fsspec in this process and in those that it starts.

    So they are in no spec, state or manifest. Messages about them show none of their values.
    """
    from fsspec import config

    options: dict[str, Any] = {}
    for text in texts:
        options |= _parsed(text)
    protocols = {url.partition("://")[0].upper() for url in arguments if is_remote(url)}
    if not protocols:
        raise PlanError(
            "--storage-options apply to URLs, and no argument is a URL; leave them out. Those for "
            "the URLs of a mixture belong in ~/.config/fsspec/conf.json"
        )
    for protocol in protocols:
        name = f"FSSPEC_{protocol}"
        for key in options:  # variables of single options go before that of all
            os.environ.pop(f"{name}_{key.upper()}", None)
        os.environ[name] = json.dumps(_parsed(os.environ.get(name) or "{}", name) | options)
    config.set_conf_env(config.conf)


def _parsed(text: str, origin: str = "--storage-options") -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if equals and key.isidentifier():
        return {key: json.loads(value) if value in ("true", "false", "null") else value}
    try:
        options = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, ValueError):
        options = None
    if not isinstance(options, dict):
        raise PlanError(f"{origin}: its value cannot be read; {_FORMS}")
    return options
