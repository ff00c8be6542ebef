"""Kinds of files, by their names alone."""

from __future__ import annotations

import re

from datapipe.index import media
from datapipe.index.images.formats import unsupported_image
from datapipe.index.images.header import is_image_extension
from datapipe.index.raw_data import RECORD_KINDS
from datapipe.pack.input.archives import is_archive
from datapipe.text.videos import frames_remedy

# Files that tell of a dataset or its making. A name counts up to its first dot.
_PAPERS = frozenset(
    {
        *("readme", "license", "licence", "licenses", "licences", "copying", "copyright", "notice"),
        *("citation", "changelog", "changes", "authors", "contributing", "code_of_conduct"),
        *("disclaimer", "terms", "terms_of_use", "terms-of-use", "requirements", "makefile"),
        *("dockerfile", "dataset_infos", "dataset_info", "dataset_dict", "_success", "checksums"),
        *("checksum", "md5sums", "sha1sums", "sha256sums", "md5sum", "sha256sum"),
    }
)
_LONG_PAPERS = frozenset({"readme", "license", "licence"})
_FILES = frozenset({"obj.data", "classes.txt"})  # of YOLO
_PAPER_EXTENSIONS = frozenset(
    {
        *("md", "rst", "py", "ipynb", "sh", "html", "htm", "css", "js", "yaml", "yml", "toml"),
        *("cfg", "ini", "log", "bib", "tex", "md5", "sha1", "sha256", "sha512", "crc", "lock"),
        *("url", "lnk", "gitignore", "gitattributes", "names"),
    }
)

TABLES = frozenset({"xlsx", "xls", "ods", "pkl", "pickle", "feather", "sqlite", "h5", "hdf5"})
"""Extensions of files that may be tables, though no reader takes them."""


def kind_of_name(name: str) -> str:
    """Return json, csv, tsv or parquet by a file's name; "" for a file that holds no records."""
    name = name.lower()
    stem, _, ext = name.removesuffix(".gz").rpartition(".")
    return RECORD_KINDS.get(ext, "") if stem else ""


def split_extension(name: str) -> tuple[str, str]:
    """Return the stem of a file's name and its extension in small letters.

    Examples:
        >>> split_extension("0001.txt.JPG")
        ('0001.txt', 'jpg')
    """
    stem, _, ext = name.rpartition(".")
    return stem, ext.lower()


def is_picture(ext: str, videos: bool) -> bool:
    """Return whether an extension is that of an image, or of a video where these are wanted."""
    return is_image_extension(ext) or (videos and media.is_video(ext))


def is_paper(name: str) -> bool:
    """Return whether a file is no data by its name: a README, a licence, a script, a checksum.

    Examples:
        >>> is_paper("README.md"), is_paper("LICENSE-2.0.txt"), is_paper("0001.txt")
        (True, True, False)
    """
    name = name.lower()
    stem, _, ext = name.rpartition(".")
    if ext in _PAPER_EXTENSIONS or name in _FILES:
        return True
    first = (stem or ext).partition(".")[0]
    # `README_en.txt` and `LICENSE-CC-BY` too.
    return first in _PAPERS or re.split(r"[-_ ]", first)[0] in _LONG_PAPERS


def medium_of(name: str) -> str:
    """Return what a file holds that cannot be packed, such as "a video"; "" if unknown."""
    if is_archive(name):
        return "an archive"
    return media.medium_of(name)


def why_not_packed(name: str) -> str:
    """Return why a file that is neither an image nor a text is rejected."""
    if image := unsupported_image(name.rpartition(".")[2]):
        return image
    medium = medium_of(name)
    if medium == "an archive":
        return "an archive; unpack it, or pack it with --format webdataset if it is a shard"
    if medium:
        return f"{medium}; only images and text are packed{frames_remedy(medium)}"
    return "neither an image nor the sidecar of one"
