"""`datapipe preview`: a page that shows what training will see."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import typer

from datapipe.cli.loading import LOADER_FLAGS, Flags, with_flags
from datapipe.cli.mixture import mixture_in
from datapipe.cli.options import Shards
from datapipe.cli.values import refuse_unwritable
from datapipe.errors import DatapipeError, PlanError
from datapipe.index.manifest import MANIFEST
from datapipe.pack.journal import REJECTS
from datapipe.report.files import write_whole

_ASKED = ("samples", "step", "epoch", "rank")
_FEW = 10_000  # samples whose tokens are counted in a few seconds


@with_flags(*LOADER_FLAGS)
def preview(
    shards: Shards,
    flags: Flags,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, such as preview.html.")
    ] = None,
    serve: Annotated[
        int | None,
        typer.Option(
            help="Serve the page on this port, to this machine only. Each request builds the page "
            "again, and `/?step=100` shows that step. 0 picks a free port."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples to show.")] = 48,
    step: Annotated[int, typer.Option(help="First step to show, of the epoch.")] = 0,
    epoch: Annotated[int, typer.Option(help="Number of the epoch.")] = 0,
    rank: Annotated[int, typer.Option(help="Rank whose share of the step is shown.")] = 0,
    world_size: Annotated[int, typer.Option(help="Number of ranks.")] = 1,
) -> None:
    """Write a page that shows samples as training will see them.

    Images beside what the model sees of them, texts as tokens, packs, sizes, rejects.

    With --step and --rank it is the very batch that a rank takes there. Without, of a dataset whose
    tokens were never counted, the page shows batches of 10,000 samples, drawn at random.
    """
    if (output is None) == (serve is None):
        raise PlanError("give --output preview.html to write the page, or --serve 8000 to show it")
    refuse_unwritable(output=output)
    from datapipe.inspect.preview.build import BATCH, preview_page

    values = flags.values
    if all(values[name] is None for name in ("batch_size", "pack", "max_tokens")):
        flags = Flags(flags.declared, {**values, "batch_size": BATCH})
    options = flags.keywords(mixture_in(shards)) | {"world_size": world_size}
    asked: dict[str, Any] = dict(zip(_ASKED, (samples, step, epoch, rank), strict=True))
    if output is not None:
        is_exact = step or epoch or rank or world_size > 1 or values["where"] is not None
        has_text = options.get("text") is not None
        with _few_samples(shards) if has_text and not is_exact else nullcontext() as view:
            title = shards if view is None else f"{_FEW:,} samples of {shards}, drawn at random"
            page = preview_page(view or shards, **asked, title=title, **options)
            write_whole(output, page, "preview")
        if view is not None:
            print(
                f"{shards} has no token counts yet: the page shows {_FEW:,} of its samples, drawn "
                f"at random. `datapipe index {shards}` with the tokenizer counts all"
            )
        print(f"wrote {output}; open it in a browser")
        return
    assert serve is not None
    answer = partial(_Handler, lambda given: preview_page(shards, **(asked | given), **options))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", serve), answer)
    except (OSError, OverflowError) as error:
        said = str(error).rstrip(".")
        raise PlanError(f"--serve {serve}: {said}; give a free port, or 0 to pick one") from error
    with server:
        print(f"http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
        server.serve_forever()


@contextmanager
def _few_samples(shards: str) -> Iterator[Path | None]:
    """Yield a view of few samples of a large dataset without token counts; None for others."""
    from datapipe.curate.choose import select_samples
    from datapipe.curate.spec import CopySpec
    from datapipe.index.dataset import open_dataset
    from datapipe.index.tokens.columns import counted_tokens

    folder = Path(shards)
    dataset = open_dataset(folder) if (folder / MANIFEST).exists() else None
    if (
        dataset is None
        or len(dataset) <= _FEW
        or dataset.manifest.arrays is not None
        or counted_tokens(dataset.home, dataset.manifest)
    ):
        yield None
        return
    with TemporaryDirectory() as place:
        view = Path(place) / "view"
        select_samples(folder, view, number=_FEW, output=CopySpec(view=True))
        if (folder / REJECTS).exists():
            shutil.copyfile(folder / REJECTS, view / REJECTS)
        yield view


class _Handler(BaseHTTPRequestHandler):
    """Answers with the page that `page` makes from what the address asks for."""

    def __init__(self, page: Callable[[dict[str, int]], str], *given: Any) -> None:
        self._page = page
        super().__init__(*given)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path != "/":
            self.send_error(404)
            return
        try:
            asked = {name: int(value) for name, value in parse_qsl(url.query) if name in _ASKED}
            text, status, kind = self._page(asked), 200, "html"
        except (DatapipeError, ValueError) as error:
            text, status, kind = f"{error}\n", 400, "plain"
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""
