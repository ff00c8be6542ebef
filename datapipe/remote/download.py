"""Downloads from a remote folder, which continue where they were interrupted."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

from datapipe.errors import StoreError
from datapipe.remote.folder import RemoteFolder

RANGE = 8 << 20  # bytes that are asked for together


class RemoteFiles(RemoteFolder):
    """Folder elsewhere, or file, that is downloaded; `PlanError` for unknown URLs."""

    def is_file(self) -> bool:
        """Return whether the URL is that of a file; `StoreError` if nothing is there."""
        about: Any = self.begin_task(self._info("")).result()
        return bool(about["type"] == "file")

    def files(self, names: Collection[str] | None = None) -> dict[str, tuple[int, str]]:
        """Return size and version of files by name; without `names`, of all below the folder.

        Raises `StoreError` if one is missing, has no size, or has a name that leaves the folder.
        """
        from fsspec.utils import tokenize

        files = {}
        for name, about in sorted(self.begin_task(self._look_at(names)).result().items()):
            if not isinstance(size := about.get("size"), int):
                raise StoreError(f"{self.url_of(name)}: the server does not tell its size; copy it")
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                raise StoreError(f"{self.url_of(name)}: '..' in a name leads elsewhere; rename it")
            files[name] = size, tokenize(about)
        return files

    def download(self, name: str, size: int, path: Path, ahead: int) -> None:
        """Download a file of `size` bytes to a path, `ahead` ranges at a time.

        What the path holds already is the start of the file, as an interrupted call leaves it.
        Raises `StoreError`, and `OSError` of the disk.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        begun: deque[Future[bytes]] = deque()
        with path.open("ab") as file:
            for start in range(file.tell(), size, RANGE):
                begun.append(self.begin(name, start, min(start + RANGE, size)))
                if len(begun) >= ahead:
                    file.write(begun.popleft().result())
            for future in begun:
                file.write(future.result())
            file.flush()
            os.fsync(file.fileno())

    async def _look_at(self, names: Collection[str] | None) -> dict[str, Any]:
        self._forget()
        if names is not None:
            limit = asyncio.Semaphore(self.options.concurrency)
            abouts = await asyncio.gather(*(self._info(name, limit) for name in names))
            return dict(zip(names, abouts, strict=True))
        found = await self._attempt("", lambda: self._filesystem._find(self._root, detail=True))
        return {path.removeprefix(f"{self._root}/"): about for path, about in found.items()}

    async def _info(
        self,
        name: str,
        slots: AbstractAsyncContextManager[None] = nullcontext(),  # noqa: B008  (stateless)
    ) -> dict[str, Any]:
        path = f"{self._root}/{name}" if name else self._root
        return await self._attempt(name, lambda: self._filesystem._info(path), slots=slots)
