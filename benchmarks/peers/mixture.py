"""The work of a rank that reads a mixture, for every loader alike.

Phases: "imports", "open", "first batch", "batches", "end". A fresh rank saves its state after
`batches` batches, and then reads `following` more. A rank that resumes loads the state and reads
those again. Imported by every peer's process, so it needs no more than the standard library.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.rank import Say

SIDE = 32  # pixels of the images, which are decoded and not resized


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Task of a rank.

    Attributes:
        weights: of folders of shards.
        home: folder that contains all of these, at any depth.
        rank, world: this rank, and their number.
        workers: threads or processes of the rank.
        batch: samples of a batch of a rank.
        batches, following: read before the state is saved, and after it.
        states: folder for the states.
        resume: load a state first.
    """

    weights: dict[str, int]
    home: str
    rank: int
    world: int
    workers: int
    batch: int
    batches: int
    following: int
    states: str
    resume: bool = False

    @property
    def path(self) -> Path:
        return Path(self.states) / f"rank-{self.rank}"

    def load(self) -> Any:
        """Return the state that a rank of this number has saved."""
        return pickle.loads(self.path.read_bytes())

    def follow(
        self,
        say: Say,
        loader: Iterable[Any],
        texts: Callable[[Any], Sequence[str]],
        save: Callable[[], Any],
    ) -> None:
        """Read batches, and report phases to `say`.

        `texts` returns the captions of a batch, `save` the loader's state. If this rank resumes,
        the loader has loaded its state already.
        """
        iterator = iter(loader)
        first = next(iterator)
        say("first batch")
        following = [first] if self.resume else []
        size = 0
        if not self.resume:
            for _ in range(self.batches - 1):
                next(iterator)
            content = pickle.dumps(save())
            size = len(content)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(content)
        say("batches", state=size)
        while len(following) < self.following:
            following.append(next(iterator))
        names = [[_name(text) for text in texts(batch)] for batch in following]
        say("end", following=names)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
