"""Findings about the members of tars for the user, counted by kind."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.index.ignore import ignoring
from datapipe.named_counts import NamedCounts
from datapipe.report.table import counted

_KINDS = 20  # of reasons that are written out


def said_of_repeats(sources: Sequence[str]) -> str:
    """Return the line about samples whose key their tar holds before them."""
    return (
        f"{counted(len(sources), 'sample')} with the key of an earlier one in the same tar, for "
        f"example {sources[0]}; each is a separate sample, as in WebDataset"
    )


class MemberCounts:
    """Counts of members that training does not see, and of images in addition to the main one.

    Examples:
        >>> counts = MemberCounts()
        >>> counts.keep("mp3", "sound", "0.tar:7.mp3")
        >>> counts.lines()
        ['read by no loader: 1 member `mp3`, sound (0.tar:7.mp3)']
    """

    def __init__(self) -> None:
        self._kept = NamedCounts()
        self._companions = NamedCounts()

    def keep(self, ext: str, what: str, name: str) -> None:
        """Count a member that no loader reads; `what` is "" for a text with another use."""
        self._kept.add(f"`{ext}`, {what}" if what else f"`{ext}`", name)

    def accompany(self, ext: str, name: str) -> None:
        """Count an image with a name of its own in addition to the main one of its sample."""
        self._companions.add(ext, name)

    def update(self, other: MemberCounts) -> None:
        for name, counts in vars(other).items():
            getattr(self, name).update(counts)

    def lines(self) -> list[str]:
        return [
            *self._companions.lines(
                "{count} with a further image `{text}`, which is an input of training too; "
                f"{ignoring('{text}')} leaves it out ({{names}})",
                "sample",
            ),
            *self._kept.lines("read by no loader: {count} {text} ({names})", "member"),
        ]


class Findings(MemberCounts):
    """Findings of an indexer: what is left out, what is broken, and further members."""

    def __init__(self) -> None:
        super().__init__()
        # `left_out`, `samples`: members and samples that no loader will see, by reason
        self.left_out = NamedCounts()
        self.samples = NamedCounts()
        self.broken = NamedCounts()  # members that are indexed and cannot be read, by reason

    def lines(self) -> list[str]:
        lines = [
            *self.samples.lines("left out: {count}, {text} ({names})", "sample"),
            *self.left_out.lines("left out: {count}, {text} ({names})", "member"),
            *self.broken.lines("cannot be read: {count}, {text} ({names})", "member"),
        ]
        if len(lines) > _KINDS:
            lines[_KINDS:] = [f"... and {counted(len(lines) - _KINDS, 'more reason')}"]
        return lines + super().lines()
