"""Options that several commands have.

`--storage-options` become the defaults of fsspec in this process and in those that it starts, so
they are in no spec, state or manifest. Messages about them show none of their values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from datapipe.cli.fields import flag_of, help_of, own_flag
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.values import parse_json_object
from datapipe.errors import PlanError
from datapipe.remote.folder import is_remote
from datapipe.text.spec import TextSpec
from datapipe.workers.engine import EngineSpec

_SHARDS = typer.Argument(
    help="Folder or URL that `datapipe pack` wrote to, folder of tars, or file of a mixture "
    "(.yaml or .json)."
)
Shards = Annotated[str, _SHARDS]
OptionalShards = Annotated[str | None, _SHARDS]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
Report = Annotated[
    Path | None, typer.Option(help="Write a report with figures to this .html file.")
]
ImageSize = Annotated[
    str | None, typer.Option(help="Size of the images in arrays: 336, or 480x640 (height x width).")
]
ArrayImage = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="Images in arrays, more exactly: 'size=336,resize=pad,normalize=clip', "
        "'clip', or 'none'.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="Count tokens with this tokenizer.json, or the folder of a tokenizer."),
]
Template = Annotated[str | None, typer.Option(help=help_of(TextSpec, "template"))]
MAX_REJECTS = own_flag(
    "max_rejects", "Stop after more rejects than this: a number or share (5%, 0.05).", str, "5%"
)
CHECK_FLAGS = (
    own_flag("space_check", "Refuse to start if the disk is too full.", bool, True),
    own_flag("lock_check", "Refuse to start where OUT cannot be locked by one run.", bool, True),
)
FIELDS = own_flag(
    "fields", "Fields of the samples' JSON that where= may name: 'score,meta.license'."
)
SIDECARS = own_flag("sidecars", "Also write index files for other readers: dali,wids,energon.")
ENGINE_FLAGS = (
    flag_of(EngineSpec, "engine", help="local: this machine. ray: tasks of a Ray cluster."),
    flag_of(EngineSpec, "address"),
)
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
        return parse_json_object(text, origin)
    except PlanError:  # which shows the value
        raise PlanError(f"{origin}: its value cannot be read; {_FORMS}") from None
