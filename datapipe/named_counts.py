"""Counts of things by a text, with the first names of each, for reports."""

from __future__ import annotations

from collections import Counter

_EXAMPLES = 5


class NamedCounts:
    """Counts by a text, with the first names of each.

    Examples:
        >>> counts = NamedCounts()
        >>> counts.add("no data", "README.md")
        >>> counts.lines("left out: {count}, {text} ({names})", "file")
        ['left out: 1 file, no data (README.md)']
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._names: dict[str, list[str]] = {}

    def add(self, text: str, name: str) -> None:
        self._counts[text] += 1
        names = self._names.setdefault(text, [])
        if len(names) < _EXAMPLES:
            names.append(name)

    def update(self, other: NamedCounts) -> None:
        """Add the counts of another, whose names come behind."""
        self._counts.update(other._counts)
        for text, more in other._names.items():
            names = self._names.setdefault(text, [])
            names += more[: _EXAMPLES - len(names)]

    def __contains__(self, text: object) -> bool:
        return text in self._counts

    def total(self) -> int:
        return self._counts.total()

    def lines(self, form: str, unit: str) -> list[str]:
        """Return a line for each text, most counted first; `form` has {count}, {text}, {names}."""
        lines = []
        for text, count in self._counts.most_common():
            names = ", ".join(self._names[text])
            if count > _EXAMPLES:
                names += f" and {count - _EXAMPLES:,} more"
            counted = f"{count:,} {unit}{'' if count == 1 else 's'}"
            lines.append(form.format(count=counted, text=text, names=names))
        return lines
