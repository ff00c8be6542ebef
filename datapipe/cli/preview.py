"""`datapipe preview`: a page that shows what training will see."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import typer

from datapipe.cli.loading import LOADER_FLAGS, Flags, with_flags
from datapipe.cli.mixture import mixture_in
from datapipe.cli.options import Shards
from datapipe.cli.values import refuse_unwritable
from datapipe.errors import DatapipeError, PlanError

_ASKED = ("samples", "step", "epoch", "rank")


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

    With --step and --rank it is the very batch that a rank takes there.
    """
    if (output is None) == (serve is None):
        raise PlanError("give --output preview.html to write the page, or --serve 8000 to show it")
    refuse_unwritable(output=output)
    values = flags.values
    if all(values[name] is None for name in ("batch_size", "pack", "max_tokens")):
        from datapipe.inspect.preview.build import BATCH

        flags = Flags(flags.declared, {**values, "batch_size": BATCH})
    options = flags.keywords(mixture_in(shards)) | {"world_size": world_size}
    from datapipe.inspect.preview.build import preview as write_preview
    from datapipe.inspect.preview.build import preview_page

    asked = dict(zip(_ASKED, (samples, step, epoch, rank), strict=True))
    if output is not None:
        write_preview(shards, output, **asked, **options)
        print(f"wrote {output}; open it in a browser")
        return
    assert serve is not None
    with _Server(serve, lambda given: preview_page(shards, **(asked | given), **options)) as server:
        print(f"http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
        server.serve_forever()


class _Server(ThreadingHTTPServer):
    """Server for this machine alone; `page` makes the page from what the address asks for."""

    daemon_threads = True

    def __init__(self, port: int, page: Callable[[dict[str, int]], str]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.page = page


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path != "/":
            self.send_error(404)
            return
        try:
            asked = {name: int(value) for name, value in parse_qsl(url.query) if name in _ASKED}
            text, status, kind = self.server.page(asked), 200, "html"
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
