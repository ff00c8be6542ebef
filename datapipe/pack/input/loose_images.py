"""A bounded look at the loose images of a folder: how many there are, and which have a text."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from datapipe.pack.input.file_kinds import split_extension
from datapipe.pack.input.file_starts import are_labels
from datapipe.pack.input.survey import Survey
from datapipe.report.table import counted
from datapipe.text.sample_text import TEXT_EXTENSIONS

MOST_FILES = 50_000


@dataclass(frozen=True, kw_only=True)
class LooseImages:
    """Images below a folder that are files of their own."""

    # Each image's path as `real_paths` spells it, with whether a text of the same stem is beside it
    paths: dict[str, bool] = field(default_factory=dict)
    complete: bool = True  # False where there were more files than were looked at

    @property
    def pairs(self) -> int:
        """Number of images with a text beside them."""
        return sum(self.paths.values())

    def describe(self) -> str:
        """Return the counts as text: `1,067 images, 12 of them with a text`."""
        more = "" if self.complete else " or more"
        texts = f"{self.pairs:,} of them" if self.pairs else "none"
        return f"{counted(len(self.paths), 'image')}{more}, {texts} with a text of the same stem"


def loose_images(survey: Survey) -> LooseImages:
    """Return the images of a survey, folder by folder in order, until enough files were seen."""
    paths: dict[str, bool] = {}
    seen = 0
    for listing in survey.walk():
        if seen >= MOST_FILES:
            return LooseImages(paths=paths, complete=False)
        seen += len(listing.files)
        if not listing.images:
            continue
        parts = ((*split_extension(name), name) for name in listing.files)
        texts = {s: name for s, ext, name in parts if ext == "json" or ext in TEXT_EXTENSIONS}
        if texts and are_labels(f"{listing.folder}/{texts[stem]}" for stem in sorted(texts)):
            texts = {stem: name for stem, name in texts.items() if name.endswith(".json")}
        real = os.path.realpath(listing.folder)
        for name in listing.images:
            paths[f"{real}/{name}"] = name in texts or split_extension(name)[0] in texts
    return LooseImages(paths=paths)
