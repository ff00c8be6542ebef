"""Images as records hold them become a file to read or bytes, or say what is wrong."""

import base64
from pathlib import Path

import pytest

from datapipe.errors import DecodeError, MissingMember
from datapipe.pack.input.raw_sample import Blob, InlineBlob, Reject
from datapipe.pack.records.images.fields import (
    image_blob,
    image_list,
    image_name,
    is_image_struct,
    raw_images,
    rejected,
)
from datapipe.pack.records.images.roots import Images

ROOT = Images(folders=(Path("/data"),))
DATA = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
BASE64 = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    ("value", "path", "name"),
    [
        ("a/b.jpg", "/data/a/b.jpg", "a/b.jpg"),
        ("/else/a.jpg", "/else/a.jpg", "/else/a.jpg"),
        ("größe 1.jpg", "/data/größe 1.jpg", "größe 1.jpg"),
        ("file:///else/a%20b.jpg", "/else/a b.jpg", "file:///else/a%20b.jpg"),
        ("file://localhost/a.jpg", "/a.jpg", "file://localhost/a.jpg"),
        ("file://sub/a.jpg", "/data/sub/a.jpg", "file://sub/a.jpg"),
        ({"bytes": None, "path": "a.jpg"}, "/data/a.jpg", "a.jpg"),
        ({"path": "a.jpg"}, "/data/a.jpg", "a.jpg"),
        ("/9j/" + "a" * 60 + ".jpg", "/9j/" + "a" * 60 + ".jpg", "/9j/" + "a" * 60 + ".jpg"),
        ("c:/a.jpg", "/data/c:/a.jpg", "c:/a.jpg"),
    ],
)
def test_paths_start_at_the_root(value, path, name):
    assert image_blob(value, ROOT, "x#1") == Blob(path, name=name)


@pytest.mark.parametrize(
    "value",
    [
        DATA,
        bytearray(DATA),
        memoryview(DATA),
        {"bytes": DATA, "path": None},
        {"bytes": DATA, "path": "a.jpg"},
        {"bytes": DATA},
        f"data:image/png;base64,{BASE64}",
        f"DATA:;BASE64,{BASE64}",
        f"data:image/png;charset=x;base64,{BASE64[:80]}\r\n{BASE64[80:]}",
        BASE64,
        {"bytes": None, "path": f"data:image/png;base64,{BASE64}"},
    ],
)
def test_bytes_are_taken_as_they_are_held(value):
    assert image_blob(value, ROOT, "x#1") == InlineBlob(DATA, "x#1")


@pytest.mark.parametrize(
    ("value", "error", "reason"),
    [
        (None, MissingMember, "no image is given"),
        ("", MissingMember, "no image is given"),
        ({"bytes": None, "path": None}, MissingMember, "no image is given"),
        ("http://a.b/c.jpg", MissingMember, "a URL .http://a.b/c.jpg.*does not fetch.*img2dataset"),
        ("S3://bucket/c.jpg", MissingMember, "a URL"),
        ({"bytes": None, "path": "https://a.b/c.jpg"}, MissingMember, "a URL"),
        ("hf://datasets/a/b.jpg", MissingMember, "a URL"),
        ("file://[/a.jpg", DecodeError, "no valid URL"),
        ("data:image/png;base64,abc!", DecodeError, "base64 of the image is broken"),
        ("data:image/png;base64,abcde", DecodeError, "base64 of the image is broken"),
        ("data:image/png;base64," + "ü" * 8, DecodeError, "base64 of the image is broken"),
        ("data:image/png,abc", DecodeError, "not base64"),
        ("data:", DecodeError, "not base64"),
        (5, DecodeError, "of type int, neither a path nor bytes"),
        ({"url": "a.jpg"}, DecodeError, "of type dict"),
        ({}, DecodeError, "of type dict"),
        (["a.jpg"], DecodeError, "of type list"),
        (True, DecodeError, "of type bool"),
        (float("nan"), DecodeError, "of type float"),
    ],
)
def test_what_is_no_image_is_refused_by_name(value, error, reason):
    with pytest.raises(error, match=reason) as caught:
        image_blob(value, ROOT, "x#1")
    assert caught.value.member == "x#1"
    assert rejected("x#1", caught.value) == Reject("x#1", caught.value.reason, error.__name__)


def test_a_path_that_no_file_system_takes_is_rejected_when_it_is_read():
    with pytest.raises(DecodeError, match="cannot be opened"):
        image_blob("a\0.jpg", ROOT, "x#1").read()
    with pytest.raises(DecodeError, match="cannot be opened"):
        image_blob("a" * 5000, ROOT, "x#1").read()


@pytest.mark.parametrize(
    ("value", "images"),
    [
        (None, []),
        ("", []),
        ([], []),
        ("a.jpg", ["a.jpg"]),
        (b"", [b""]),
        (["a", None], ["a", None]),
        (("a", "b"), ["a", "b"]),
        ({"bytes": b"a"}, [{"bytes": b"a"}]),
    ],
)
def test_a_field_holds_no_one_or_several_images(value, images):
    assert image_list(value) == images


def test_images_of_a_sample_are_numbered_and_named():
    images = raw_images(["a.jpg", DATA, "b.jpg"], ROOT, "x#1")
    assert [image.prefix for image in images] == ["", "1", "2"]
    assert [image.blob.label for image in images] == ["a.jpg", "x#1[1]", "b.jpg"]
    assert raw_images([DATA], ROOT, "x#1")[0].blob.label == "x#1"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a.jpg", "a.jpg"),
        ({"bytes": DATA, "path": "a.jpg"}, "a.jpg"),
        ({"bytes": DATA, "path": None}, None),
        ({"bytes": None, "path": f"data:,{BASE64}"}, None),
        (f"data:image/png;base64,{BASE64}", None),
        (BASE64, None),
        (DATA, None),
        (["a.jpg", {"bytes": DATA, "path": "b.jpg"}, DATA], ["a.jpg", "b.jpg", None]),
        (5, 5),
        ({"url": "a.jpg"}, {"url": "a.jpg"}),
    ],
)
def test_a_record_names_its_images_without_their_bytes(value, name):
    assert image_name(value) == name


def test_only_bytes_and_path_make_an_image_struct():
    assert is_image_struct({"bytes": None, "path": None})
    assert not any(map(is_image_struct, ({}, {"path": "a", "url": "b"}, None, "a", ["path"])))
