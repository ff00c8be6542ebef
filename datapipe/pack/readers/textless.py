"""Folders of images without any text, such as one for each class, and their names as its text."""

from __future__ import annotations

from collections.abc import Iterator

from datapipe.index.images.field_names import IMAGE_FOLDERS
from datapipe.pack.input.raw_sample import RawSample, Reject
from datapipe.pack.records.fields.sample_map import fields_of_path

_SHOWN = 3
# Folders that divide images by their use, and not by their content.
_USES = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
    | {*IMAGE_FOLDERS, "jpg", "jpeg", "png", "data"}
)


class TextlessFolders:
    """Names of the folders of a tree's images, until one of these has a text.

    Examples:
        >>> folders = TextlessFolders()
        >>> samples = [RawSample("cat/0.jpg"), RawSample("dog/0.jpg")]
        >>> len(list(folders.watch(iter(samples))))
        2
        >>> folders.advice()
        "no image has a text; --map 'caption={folder}' takes the names of their folders (cat, dog)"
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._has_text = False

    def watch(self, samples: Iterator[RawSample | Reject]) -> Iterator[RawSample | Reject]:
        """Yield the samples, and note their folders."""
        for sample in samples:
            if isinstance(sample, RawSample) and not self._has_text:
                self._has_text = sample.caption is not None or sample.record is not None
                name = fields_of_path(sample.source)["folder"]
                if name and len(self._names) <= len(_USES) + _SHOWN:
                    self._names[name] = None
            yield sample

    def advice(self) -> str:
        """Return the option that takes the folders' names as text; "" if they are no classes."""
        names = [name for name in self._names if name.lower() not in _USES]
        if self._has_text or len(names) < 2:
            return ""
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        takes = "--map 'caption={folder}' takes the names of their folders"
        return f"no image has a text; {takes} ({shown})"
