"""Folders of files that datapipe wrote, and what reads each of them again."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import datapipe
from datapipe import CacheSpec, ImageSpec, TextSpec, make_loader
from datapipe.convert.array_files import ArrayFiles
from datapipe.index.files import block_checksums
from datapipe.index.tokens import counting
from datapipe.loader.tuned_settings import Tuned, keep
from datapipe.pack.url_upload import UploadStage

IMAGE = ImageSpec(size=16)


@dataclass(kw_only=True)
class Scene:
    """Files that are harmed, and what reads them.

    Attributes:
        home: folder of all files that a run may read or write.
        run: reads or finishes what is in `home`; returns a digest of what came of it.
        chosen: pattern of the files that are harmed, relative to `home`.
        held: content of every file before a run.
        expected: what an unharmed run returns.
        rewritten: files that an unharmed run writes anew or removes.
    """

    home: Path
    run: Callable[[], str]
    chosen: str = ".*"
    held: dict[str, bytes] = field(default_factory=dict)
    expected: str = ""
    rewritten: frozenset[str] = frozenset()

    def settle(self) -> "Scene":
        """Note how everything is, and what a run without damage returns."""
        self.held = contents(self.home)
        before = self._marks()
        self.expected = self.run()
        after = self._marks()
        self.rewritten = frozenset(name for name in before if before[name] != after.get(name))
        self.restore()
        assert self.run() == self.expected
        self.restore()
        return self

    @property
    def kinds(self) -> dict[str, list[str]]:
        """The files that are harmed, by kind."""
        found: dict[str, list[str]] = {}
        for name, content in self.held.items():
            if content and re.search(self.chosen, name):
                found.setdefault(kind_of(name), []).append(name)
        return found

    def restore(self) -> None:
        """Make every file what it was; a new file takes its place, as others may be mapped."""
        now = contents(self.home)
        for name in now.keys() - self.held.keys():
            (self.home / name).unlink()
        for folder, _, _ in os.walk(self.home, topdown=False):
            with suppress(OSError):  # not empty
                os.rmdir(folder)
        for name, content in self.held.items():
            if now.get(name) != content:
                self.put(name, content)

    def put(self, name: str, content: bytes) -> None:
        """Replace a file."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.harmed")
        beside.write_bytes(content)
        beside.replace(path)

    def _marks(self) -> dict[str, tuple[int, int]]:
        stats = {name: (self.home / name).stat() for name in contents(self.home)}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def kind_of(name: str) -> str:
    """A name that files of one kind share: their folder below the dataset, or a pattern."""
    parts = [re.sub(r"[0-9a-f]{16,}", "*", part) for part in Path(name).parts]
    parts[-1] = re.sub(r"\d{6,}", "*", parts[-1])
    if parts[-1].endswith(".npy") and parts[-2:-1] != ["dataset"]:
        parts[-1] = "*.npy"
    return "/".join(parts)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class Maker:
    """Makes scenes.

    Args:
        root: an empty folder.
        jpeg: makes the image of a number.
        tokenizer: its file.
        patch: for what a scene replaces.
    """

    def __init__(
        self, root: Path, jpeg: Callable[[int], bytes], tokenizer: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self._root, self._jpeg, self._patch = root, jpeg, patch
        self._home, self._dataset = root / "home", root / "home" / "dataset"
        patch.setenv("XDG_CACHE_HOME", str(self._home / "cache"))
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)
        self._text = TextSpec(
            tokenizer=tokenizer, template="caption", image_tokens=4, image_token="<image>"
        )
        self._raw = self._make_raw("raw", 7)
        self._unread = ".tar"

    def make(self, name: str) -> Scene:
        """Make the scene of a name."""
        self._home.mkdir()
        if name.startswith("large_"):  # too large to be compared as a whole when it is opened
            self._patch.setattr(block_checksums, "MOST_COMPARED", -1)
        scene: Scene = getattr(self, f"_{name.removeprefix('large_')}")()
        return scene.settle()

    def _shards(self) -> Scene:
        """A dataset with everything that is derived of it, and the plan that ranks share."""
        self._pack(self._raw, self._dataset, sidecars="dali,wids,energon")

        def run() -> str:
            return self._pass(cache=CacheSpec(plan=self._home / "plan"))

        run()
        return Scene(home=self._home, run=run)

    def _arrays(self) -> Scene:
        self._pack(self._raw, self._root / "packed")
        self._convert()
        self._pass()
        return Scene(home=self._home, run=self._pass)

    def _cache(self, **options: Any) -> Scene:
        """The disk cache of a loader, read by a second one."""
        self._pack(self._raw, self._dataset)

        def run() -> str:
            return self._pass(cache=CacheSpec(disk=str(self._home / "kept"), **options))

        run()
        return Scene(home=self._home, run=run, chosen="^kept/")

    def _cache_of_encoded(self) -> Scene:
        return self._cache(keep="encoded")

    def _tuned(self) -> Scene:
        self._pack(self._raw, self._dataset)
        key = self._loader().components().find_tuning_key()
        keep(key, Tuned(num_workers=2, prefetch_factor=3, rate=1.0))

        def run() -> str:
            return self._pass(num_workers="auto", prefetch_factor="auto")

        run()
        return Scene(home=self._home, run=run, chosen="/tuned/")

    def _foreign(self) -> Scene:
        """The index of tars that someone else wrote, which have no checksums themselves."""
        self._pack(self._raw, self._root / "packed")
        self._dataset.mkdir()
        for path in (self._root / "packed").glob("*.tar"):
            shutil.copy(path, self._dataset)
        self._pass()
        shutil.rmtree(self._dataset / "columns")
        return Scene(home=self._home, run=self._pass, chosen=r"\.parquet$|/dataset\.json$")

    def _mirror(self) -> Scene:
        """The index of a remote dataset, fetched into the user's cache folder."""
        self._pack(self._raw, self._root / "packed")
        url = f"memory:/{self._root}/packed"
        fsspec.filesystem("memory").put(str(self._root / "packed"), url, recursive=True)

        def run() -> str:
            return self._pass(url)

        run()
        shutil.rmtree(next(self._home.glob("cache/datapipe/*/columns")))
        return Scene(home=self._home, run=run)

    def _interrupted_count(self) -> Scene:
        """Tokens that were counted, but not yet put together."""
        self._pack(self._raw, self._dataset)
        self._interrupt(counting, "_publish", lambda *_: True, self._pass)
        return Scene(home=self._home, run=self._pass, chosen=r"/\.tokens-")

    def _interrupted_pack(self) -> Scene:
        self._pack(self._raw, self._root / "whole")
        self._interrupt_pack(self._raw, third=2)
        return self._finishing(lambda: self._pack(self._raw, self._dataset))

    def _interrupted_append(self) -> Scene:
        more = self._make_raw("more", 6)
        self._pack(self._raw, self._root / "whole")
        self._pack(more, self._root / "whole", append=True)
        self._pack(self._raw, self._dataset)
        self._interrupt_pack(more, third=4, append=True)
        self._unread = "rejects.jsonl"
        return self._finishing(lambda: self._pack(more, self._dataset, append=True))

    def _interrupted_convert(self) -> Scene:
        self._pack(self._raw, self._root / "packed")
        self._convert(self._root / "whole")
        self._interrupt(ArrayFiles, "append", lambda files, *_: files.images >= 5, self._convert)
        return self._finishing(self._convert)

    def _interrupted_upload(self) -> Scene:
        """Shards that are packed for a URL; none has arrived."""
        url = f"memory:/{self._root}/sent"
        memory = fsspec.filesystem("memory")

        def run() -> str:
            if memory.exists(url):
                memory.rm(url, recursive=True)
            self._pack(self._raw, url, staging=self._home / "staging")
            if self._dataset.exists():
                shutil.rmtree(self._dataset)
            memory.get(url, str(self._dataset), recursive=True)
            return self._compared(whole)

        self._unread = "rejects.jsonl"
        self._pack(self._raw, self._root / "whole")
        shutil.rmtree(self._root / "whole" / "columns")
        whole = self._whole()
        self._interrupt(UploadStage, "finish", lambda _: True, run)
        return Scene(home=self._home, run=run, chosen="^staging/")

    # What they are made of.

    def _make_raw(self, name: str, samples: int) -> Path:
        """Images with captions, and two inputs that are rejected, the first of them early."""
        raw = self._root / name
        raw.mkdir()
        for number in range(samples):
            (raw / f"{number}.jpg").write_bytes(self._jpeg(number))
            (raw / f"{number}.txt").write_text(f"sample {number}")
        for number in (1, samples):
            (raw / f"{number}-broken.jpg").write_bytes(b"")
        return raw

    def _pack(self, raw: Path, out: Any, **options: Any) -> None:
        datapipe.pack_dataset(raw, out, shard_size=3, max_rejects=9, workers=1, **options)

    def _convert(self, out: Path | None = None) -> None:
        packed = self._root / "packed"
        datapipe.convert_dataset(
            packed, out or self._dataset, image=IMAGE, text=self._text, workers=1
        )

    def _loader(self, folder: Any = None, **options: Any) -> datapipe.Loader:
        return make_loader(
            folder or self._dataset,
            **{"num_workers": 1, **options},
            batch_size=3,
            image=IMAGE,
            text=self._text,
            where="width >= 10",
            epochs=1,
        )

    def _pass(self, folder: Any = None, **options: Any) -> str:
        """Return a digest of all batches of a dataset."""
        return digest(self._loader(folder, **options))

    def _finishing(self, finish: Callable[[], None]) -> Scene:
        whole = self._whole()

        def run() -> str:
            finish()
            return self._compared(whole)

        return Scene(home=self._home, run=run)

    def _whole(self) -> tuple[dict[str, bytes], str]:
        """Return the files that there should be, and the digest of their batches."""
        files = contents(self._root / "whole")
        return files, self._pass(self._root / "whole")

    def _compared(self, whole: tuple[dict[str, bytes], str]) -> str:
        """Return "whole" if the dataset is what it should be, or has the same batches."""
        wanted, found = whole[0], contents(self._dataset)
        other = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
        if not other:
            return "whole"
        # Members and images are compared when they are read; rejects are for people.
        if all(name.endswith((".tar", "images.npy", self._unread)) for name in other):
            return "whole" if self._pass() == whole[1] else "other batches"
        return f"other files: {other}"

    def _interrupt_pack(self, raw: Path, *, third: int, **options: Any) -> None:
        """Interrupt a pack when shard number `third` and its index are written, but not renamed."""

        def is_third(_: Any, target: str | os.PathLike[str]) -> bool:
            return Path(target) == self._dataset / f"shard-{third:06}.tar"

        pack = partial(self._pack, raw, self._dataset, **options)
        self._interrupt(os, "replace", is_third, pack)

    def _interrupt(
        self, owner: Any, name: str, when: Callable[..., bool], run: Callable[[], Any]
    ) -> None:
        """Interrupt `run` where it calls a function, once `when` says so of its arguments."""
        real = getattr(owner, name)

        def interrupted(*args: Any, **options: Any) -> Any:
            if when(*args):
                raise KeyboardInterrupt
            return real(*args, **options)

        with self._patch.context() as patch:
            patch.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                run()


def digest(batches: Any) -> str:
    """Return a digest of all batches."""
    found = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            value: Any = batch[name]
            held = np.asarray(value).tobytes() if hasattr(value, "numpy") else repr(value)
            found.update(f"{name}{held!r}".encode())
    return found.hexdigest()
