"""Names of the fields and columns of images in records, and of folders of images."""

from __future__ import annotations

IMAGE_FIELDS = frozenset(
    {"image", "images", "img", "imgs", "jpg", "jpeg", "png", "webp", "picture", "photo"}
    | {"image_path", "image_paths", "img_path", "imagepath", "image_file", "image_name"}
    | {"image_filename", "img_name", "img_file", "local_path"}
)
"""Fields of images, in lower case."""

FILE_FIELDS = frozenset({"file_name", "filename", "filepath", "file_path", "path", "file"})
"""Fields of files of any kind, which may be images, in lower case."""

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "pics", "pictures", "photos", "jpegimages")
"""Names of folders of images, in lower case, the most usual first."""
