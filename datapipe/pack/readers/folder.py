"""A folder tree of images, each with an optional sidecar of the same stem."""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

from datapipe.errors import PackError
from datapipe.index.ignore import ignored_by, parse_ignore, why_ignored
from datapipe.index.images.field_names import IMAGE_FOLDERS
from datapipe.pack.input import parallel_folders
from datapipe.pack.input.archives import is_archive, lies_beside
from datapipe.pack.input.file_kinds import is_paper, kind_of_name, split_extension, why_not_packed
from datapipe.pack.input.file_starts import are_labels, are_names_alone, seems_records, start_of
from datapipe.pack.input.raw_sample import (
    Blob,
    Input,
    RawSample,
    ReadOptions,
    Reject,
    printable,
    raw_picture,
)
from datapipe.pack.input.real_paths import UNKNOWN, folders_above, identity_of
from datapipe.pack.input.sorted_names import SortedNames
from datapipe.pack.input.survey import Survey
from datapipe.pack.notes import Notes
from datapipe.pack.records.fields.field_map import fields_of_path
from datapipe.text.sample_text import TEXT_EXTENSIONS

_SHARED = "images that share a text with another image of the same stem; each is a sample"
_SECOND = "texts of images whose .{} is learnt; they are kept as further members"
# Folders that divide images by their use, and not by their content.
_USES = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
    | {*IMAGE_FOLDERS, "jpg", "jpeg", "png", "data"}
)
_FOLDERS_NAMED = 3
_JUDGED = 1000  # names of a folder among which texts are judged to be labels or not
_FOLDERS_JUDGED = 1000  # of captions: no labels are expected behind so many


class FolderReader:
    """`a/b.jpg` with `a/b.txt`, `a/b.caption` or `a/b.json` beside it, or with no text at all.

    A text may have the whole name of its image, as `a/b.jpg.txt`, and be in a parallel folder.
    `include` chooses one of several folders of texts, or images.
    """

    name = "folder"
    summary = "images in a folder tree, with sidecar .txt, .caption or .json of the same stem"
    takes: frozenset[str] = frozenset({"ignore", "include", "map"})

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        return survey.is_folder and any(map(survey.is_picture, survey.extensions))

    def open(self, survey: Survey, options: ReadOptions) -> ImageTree:
        return ImageTree(survey, options)

    def estimate(self, source: ImageTree, options: ReadOptions) -> int | None:
        number = 0
        for folder in source.walk():
            source.parallel.texts_of(folder.path)  # raises where several could be meant
            images = (name for name in folder.files if source.is_picture(name))
            number += sum(source.takes_image(folder.below + name) for name in images)
        return number

    def read(self, source: ImageTree, options: ReadOptions) -> Iterator[Input]:
        samples = _Samples(source, options.notes)
        for folder in source.walk():
            for name in folder.circular:
                label = printable(folder.below + name)
                yield Reject(label, "this link leads back to a folder above it", "DecodeError")
            for name, pattern in folder.ignored:
                options.notes.leave_out(printable(folder.below + name), why_ignored(pattern))
            if source.parallel.owner_of(folder.path) is None:
                yield from samples.read_folder(folder)
        names = [name for name in samples.textless if name.lower() not in _USES]
        if options.map is None and not samples.have_text and len(names) > 1:
            more = ", ..." if len(names) > _FOLDERS_NAMED else ""
            options.notes.decide(
                "no image has a text; --map 'caption={folder}' takes the names of their folders "
                f"({', '.join(names[:_FOLDERS_NAMED])}{more})"
            )


class TreeFolder(NamedTuple):
    """Folder of a tree."""

    path: str  # where it is
    below: str  # its path below the root, with a slash at its end; "" for the root
    files: SortedNames  # names of its files, without those that are ignored
    ignored: list[tuple[str, str]]  # names of the others, each with the pattern it fits
    circular: list[str]  # names of links to folders above it or above the root


class ImageTree:
    """Folder tree that is read; `include` chooses images if it matches some, else texts.

    Raises:
        PackError: `include` matches neither.
    """

    def __init__(self, survey: Survey, options: ReadOptions) -> None:
        self.survey = survey
        self.include = options.include
        self.of_images = False
        self._ignore = parse_ignore(options.ignore)
        self.is_picture = survey.is_picture
        self.parallel = parallel_folders.ParallelFolders(
            survey=survey, files=lambda folder: self._list(folder)[0], include=self.takes_text
        )
        if self.include is not None:
            texts = False
            for folder in self.walk():
                for name in folder.files:
                    if self.matches(folder.below + name):
                        self.of_images |= self.is_picture(name)
                        texts |= parallel_folders.is_text(name)
            if not (self.of_images or texts):
                raise PackError(
                    f"{survey.raw}: --include {options.include!r} matches neither an image nor a "
                    "text; it is compared with paths below this folder, such as 'captions/*'"
                )

    def matches(self, name: str) -> bool:
        return self.include is None or fnmatch.fnmatchcase(name, self.include)

    def takes_image(self, name: str) -> bool:
        return not self.of_images or self.matches(name)

    def takes_text(self, name: str) -> bool:
        return self.of_images or self.matches(name)

    def below(self, folder: str) -> str:
        """Return the path of a folder below the root, with a slash at its end."""
        below = self.survey.below(folder)
        return below and f"{below}/"

    def walk(self) -> Iterator[TreeFolder]:
        """Yield every folder, without hidden ones; PackError if a folder cannot be read."""
        root = os.fspath(self.survey.raw)
        waiting = [(root, frozenset(folders_above(root)))]
        while waiting:
            folder, above = waiting.pop()
            here = above | {identity_of(folder)} - {UNKNOWN}  # walking into it says what is wrong
            files, ignored, folders = self._list(folder)
            circular = [name for name in folders if identity_of(f"{folder}/{name}") in here]
            inner = [name for name in folders if name not in circular]
            self.parallel.enter(folder, inner)
            yield TreeFolder(folder, self.below(folder), files, ignored, circular)
            waiting += [(f"{folder}/{name}", here) for name in reversed(inner)]

    def _list(self, folder: str) -> tuple[SortedNames, list[tuple[str, str]], list[str]]:
        try:
            listing = self.survey.listing(folder)
        except OSError as error:
            raise PackError(f"{folder}: folder cannot be read: {error.strerror}") from error
        if not self._ignore:
            return listing.files, [], listing.folders
        files, ignored = SortedNames(), []
        below = self.below(folder)
        for name in listing.files:
            if pattern := ignored_by(below + name, self._ignore):
                ignored.append((name, pattern))
            else:
                files.add(name)
        return files, ignored, listing.folders


class _Samples:
    """Samples of a tree's folders, and notes on what is in none."""

    def __init__(self, tree: ImageTree, notes: Notes) -> None:
        self._tree = tree
        self._notes = notes
        self._captioned = 0  # folders whose texts were found to be captions
        self.have_text = False  # whether an image has a text
        self.textless: dict[str, None] = {}  # names of the first folders of images before one has

    def read_folder(self, folder: TreeFolder) -> Iterator[Input]:
        texts = self._tree.parallel.texts_of(folder.path)
        for text in texts:
            if text.kind == "taken":
                self._notes.decide(f"texts of images are taken from {printable(text.pattern)}")
            elif text.kind == "other":
                self._notes.decide(
                    f"images of {printable(folder.below)} have no text: those of "
                    f"{printable(text.pattern)} belong to images of the same names elsewhere"
                )
            elif text.reports:
                second = "texts of images that have others beside them"
                reason = parallel_folders.LABELS if text.kind == "labels" else second
                for name in text.names:
                    self._leave_out(self._tree.below(text.folder) + name, reason)
        taken = [text for text in texts if text.kind == "taken"]
        labels = not taken and self._are_labels(folder)
        parallel, path = self._tree.parallel, folder.path
        reported = [text for text in taken if text.reports]
        shared = [names for text in reported for names in parallel.others_that_take(text, path)]
        for group in parallel_folders.merged_groups(folder.files, taken, shared):
            yield from self._read_group(folder, group, labels)

    def _are_labels(self, folder: TreeFolder) -> bool:
        """Return whether the texts beside images are boxes, by the first of them."""
        if self._captioned >= _FOLDERS_JUDGED:
            return False
        parts = [(name, *split_extension(name)) for name in islice(folder.files, _JUDGED)]
        images = [(name, stem) for name, stem, ext in parts if self._tree.is_picture(ext)]
        stems = {text for names in images for text in names}
        texts = [
            f"{folder.path}/{name}"
            for name, stem, ext in parts
            if ext in TEXT_EXTENSIONS and stem in stems
        ]
        labels = bool(texts) and are_labels(texts)
        self._captioned += bool(texts) and not labels
        return labels

    # Paths are strings here: building a `Path` costs more than all else that is done for a file.
    def _read_group(
        self, folder: TreeFolder, group: parallel_folders.FileGroup, labels: bool
    ) -> Iterator[Input]:
        """Yield what becomes of a group; `labels` is true if the texts beside images are boxes."""
        names, others, elsewhere = group
        tree, below = self._tree, folder.below
        parts = [(name, *split_extension(name)) for name in names]
        # gallery-dl and Supervisely call the text `x.jpg.json`.
        stems = {s for name, stem, ext in parts if tree.is_picture(ext) for s in (name, stem)}
        pictures = filter(tree.is_picture, elsewhere)
        stems_elsewhere = {s for name in pictures for s in (name, split_extension(name)[0])}
        given: set[tuple[str, str]] = set()  # stems and extensions of texts that they get
        sidecars: dict[str, dict[str, str | Blob]] = {}
        for name, stem, ext in parts:
            is_text = ext == "json" or (ext in TEXT_EXTENSIONS and not labels)
            if is_text and tree.takes_text(below + name):
                sidecars.setdefault(stem, {}).setdefault(ext, name)
        for name, text in others:
            stem, ext = split_extension(name)
            above = tree.below(text.folder)
            fits = parallel_folders.is_text(name) and tree.takes_text(above + name)
            if fits and stem in stems:
                blob = Blob(f"{text.folder}/{name}", 0, None, printable(above + name))
                if sidecars.setdefault(stem, {}).setdefault(ext, blob) is blob:
                    continue
            elif fits and stem in stems_elsewhere and (stem, ext) not in given:
                given.add((stem, ext))
                continue
            if text.reports:
                has_image = stem in stems or stem in stems_elsewhere
                yield from self._left_over(
                    text.folder, name, has_image, labels=False, parallel=True
                )
        for image in sidecars.keys() & set(names):
            for ext in sidecars[image].keys() & sidecars.get(split_extension(image)[0], {}).keys():
                del sidecars[image][ext]  # `x.txt` goes before `x.jpg.txt`
        # Only an image, another and their text have a stem that is shared.
        shared = parts if len(parts) > 2 else ()
        alike = Counter(stem for _, stem, ext in shared if tree.is_picture(ext))
        for name, stem, ext in parts:
            if tree.is_picture(ext):
                if tree.takes_image(below + name):
                    own = {**sidecars.get(name, {}), **sidecars.get(stem, {})}
                    if alike[stem] > 1 and stem in sidecars:
                        self._notes.count(printable(below + name), _SHARED)
                    sample = _sample(folder.path, below, name, own)
                    self.have_text = self.have_text or bool(own)
                    if not self.have_text and len(self.textless) <= len(_USES) + _FOLDERS_NAMED:
                        above = fields_of_path(sample.source)["folder"]
                        self.textless |= {above: None} if above else {}
                    for _, second in sample.others:
                        taken = cast(Blob, sample.caption).label.rpartition(".")[2]
                        self._notes.count(second.label, _SECOND.format(taken))
                    yield sample
            elif stem not in stems or name not in sidecars.get(stem, {}).values():
                yield from self._left_over(
                    folder.path, name, stem in stems, labels=labels, parallel=False
                )

    def _left_over(
        self, folder: str, name: str, has_image: bool, *, labels: bool, parallel: bool
    ) -> Iterator[Reject]:
        """Yield the reject of a file that no sample has, unless it is noted as no data."""
        tree, source = self._tree, self._tree.below(folder) + name
        if not tree.matches(source) and (tree.of_images or parallel_folders.is_text(name)):
            if not tree.of_images:
                self._leave_out(source, "texts that --include does not take")
            return
        ext, path = split_extension(name)[1], Path(folder, name)
        text = ext in TEXT_EXTENSIONS or ext == "json"
        alone = text and not has_image
        reason = ""
        if is_paper(name):
            reason = "no data"
        elif labels and ext in TEXT_EXTENSIONS:
            reason = parallel_folders.LABELS
        elif (not text and kind_of_name(name)) or (ext == "json" and alone and seems_records(path)):
            reason = "records, which the format folder does not read"
        elif alone and are_names_alone(start_of(path)):
            reason = "lists of files"
        elif alone and not parallel and not tree.survey.listing(folder).images:
            reason = "texts in a folder without images, which the format folder does not read"
        elif ext == "npz":
            reason = "arrays, such as cached latents"
        elif is_archive(name) and lies_beside(path):
            reason = "archives whose content is beside them"
        if reason:
            self._leave_out(source, reason)
        elif text:
            what = "another text of this kind" if has_image else "no image"
            fault = f"{what} has the same stem as this text"
            yield Reject(printable(source), fault, "MissingMember")
        else:
            yield Reject(printable(source), why_not_packed(name), "DecodeError")

    def _leave_out(self, name: str, reason: str) -> None:
        self._notes.leave_out(printable(name), reason)


def _sample(folder: str, below: str, image: str, sidecars: Mapping[str, str | Blob]) -> RawSample:
    def blob(name: str | Blob) -> Blob:
        if isinstance(name, Blob):
            return name
        return Blob(f"{folder}/{name}", 0, None, printable(below + name))

    captions = [ext for ext in sorted(sidecars, reverse=True) if ext != "json"]
    return RawSample(
        source=printable(below + image),
        images=(raw_picture(blob(image)),),
        caption=blob(sidecars[captions[0]]) if captions else None,
        record=blob(sidecars["json"]) if "json" in sidecars else None,
        others=tuple((ext, blob(sidecars[ext])) for ext in captions[1:]),
    )


READER = FolderReader()
