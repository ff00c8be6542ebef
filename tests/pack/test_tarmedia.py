"""Members of tars are recognised by their content: read, rejected by name, or counted."""

import gzip
import json
import logging
import tarfile

import numpy as np
import pytest

import datapipe
from datapipe.errors import IndexMismatch

from .cases import values

MEDIA = {
    "mp4": (b"\0\0\0\x18ftypisom" + bytes(50), "a video"),
    "webm": (b"\x1aE\xdf\xa3" + bytes(60), "a video"),
    "avi": (b"RIFF\0\0\0\0AVI LIST" + bytes(50), "a video"),
    "clip": (b"\0\0\0\x18ftypmp42" + bytes(50), "a video"),
    "wav": (b"RIFF\0\0\0\0WAVEfmt " + bytes(50), "sound"),
    "flac": (b"fLaC" + bytes(60), "sound"),
    "mp3": (b"ID3\3" + bytes(60), "sound"),
    "audio": (b"OggS" + bytes(60), "sound"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3" + bytes(50), "a document"),
    "npy": (b"\x93NUMPY\1\0" + bytes(60), "an array"),
    "pth": (b"PK\3\4" + bytes(60), "an array"),
    "zip": (b"PK\3\4" + bytes(60), "an archive"),
    "json.gz": (gzip.compress(b"{}", mtime=0), "compressed with gzip"),
    "jxl": (b"\xff\x0a" + bytes(60), "an image (JPEG XL)"),
    "svg": (b"<svg></svg>", "an image (SVG)"),
    "exr": (b"v/1\1" + bytes(60), "an image (OpenEXR)"),
    "nef": (b"II*\0" + bytes(60), "an image (camera raw)"),
    "dat": (b"\x9a\x01\xff" + bytes(60), "binary data"),
    "MP4": (b"", "a video"),
}
FULL = {"max_rejects": "100%", "workers": 1}


@pytest.fixture
def tar(tmp_path, make_tar):
    """Write a tar of three samples out of {extension: bytes or function of their number}."""

    def write(**members):
        listed = [
            (f"{number}.{ext}", data(number) if callable(data) else data)
            for number in range(3)
            for ext, data in members.items()
        ]
        return make_tar(tmp_path / "raw" / "x.tar", listed)

    return write


def words(number):
    return f"words {number}".encode()


def load(folder, **options):
    loader = datapipe.make_loader(folder, batch_size=1, shuffle=False, num_workers=0, **options)
    return list(loader)


@pytest.mark.parametrize("ext", MEDIA)
def test_a_text_is_not_trained_on_without_its_medium(tmp_path, tar, rejects, ext):
    data, medium = MEDIA[ext]
    tar(**{ext: data, "txt": words})
    with pytest.raises(datapipe.PackError, match="among 3 inputs, the first reject:"):
        datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", **FULL)
    report = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", dry_run=True, **FULL)
    assert (report.samples, report.rejected) == (0, 3)
    (reason,) = report.reasons
    assert f"`{ext}` is {medium}" in reason
    with pytest.raises(IndexMismatch, match=r"3 of 3 samples .* such as 0: `") as error:
        datapipe.make_loader(tmp_path / "raw", batch_size=1)
    assert f"`{ext}` is {medium}" in str(error.value)


@pytest.mark.parametrize("ext", ["mp4", "json.gz", "MP4"])
def test_patterns_that_are_ignored_leave_the_rest_and_stand_in_the_manifest(
    tmp_path, tar, caplog, ext
):
    tar(**{ext: MEDIA[ext][0], "txt": words})
    given = {"ignore": [f"*.{ext}", "*.mpp4"]}
    report = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1, **given)
    assert report.samples == 3
    names = ", ".join(f"x.tar:{number}.{ext}" for number in range(3))
    unused = "--ignore '*.mpp4' matches no file and no member"
    left_out, said = report.notes
    assert left_out == f"left out: 3 files, which --ignore '*.{ext}' names ({names})"
    assert unused in said
    with caplog.at_level(logging.WARNING):
        datapipe.index_shards(tmp_path / "raw", **given)
    assert caplog.messages[-1] == unused
    for folder in ("raw", "out"):
        assert [b["text"] for b in load(tmp_path / folder)] == [[f"words {n}"] for n in range(3)]
    (part,) = json.loads((tmp_path / "out" / "dataset.json").read_text())["parts"]
    assert part["options"]["ignore"] == f"*.{ext},*.mpp4"
    with pytest.raises(datapipe.PackError, match="ignore"):
        datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", ignore=f"*.{ext}", workers=1)
    given = {"ignore": f"*.{ext},*.mpp4"}
    again = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1, **given)
    assert again.finished_before


TEXT = "a text beside the one that is taken"


@pytest.mark.parametrize(
    ("ext", "data", "about"),
    [
        *((ext, data, medium) for ext, (data, medium) in MEDIA.items()),
        *((ext, b"{}", TEXT) for ext in ("caption", "TEXT", "meta.json")),
    ],
)
def test_beside_an_image_and_its_text_others_are_counted(
    tmp_path, tar, jpeg, caplog, ext, data, about
):
    others = {"jpg": jpeg, "txt": words, "json": b"{}"}
    tar(**(others | {ext: data} if about == TEXT else {ext: data} | others))
    report = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.images) == (3, 3)
    names = ", ".join(f"x.tar:{number}.{ext}" for number in range(3))
    assert report.notes == (f"read by no loader: 3 members `{ext}`, {about} ({names})",)
    with caplog.at_level(logging.WARNING):
        assert datapipe.index_shards(tmp_path / "raw").samples == 3
    (line,) = caplog.messages
    said = "" if ext == "meta.json" else f", {about}"
    assert line.startswith(f"read by no loader: 3 members `{ext}`{said} (x.tar:0.{ext}, ")


@pytest.mark.parametrize(
    "exts",
    [*("img", "bin", "jpg.gz", "data", "jxl", "0.img"), "10.img 2.img 1.img", "10.jpg 2.jpg jpg"],
)
def test_images_under_other_names_are_those_of_a_pack_in_its_order(tmp_path, tar, jpeg, exts):
    members = {ext: lambda number, n=n: jpeg(3 * n + number) for n, ext in enumerate(exts.split())}
    images = len(members)
    report = datapipe.pack_dataset(tar(**members, txt=words), tmp_path / "out", workers=1)
    assert (report.samples, report.images, report.notes) == (3, 3 * images, ())
    image = datapipe.ImageSpec(size=32)
    batches = (load(tmp_path / folder, image=image) for folder in ("raw", "out"))
    for before, after in zip(*batches, strict=True):
        assert np.array_equal(before["pixel_values"], after["pixel_values"])
        assert before["images_per_sample"].tolist() == [images]
        assert before["text"] == after["text"]


@pytest.mark.parametrize(("ext", "format"), [("tga", "TGA"), ("ico", "ICO"), ("psd", "PSD")])
def test_what_only_packing_reads_is_refused_where_it_is(tmp_path, tar, encode, crop, ext, format):
    image = encode(crop(size=(32, 32)), format) if ext != "psd" else b"8BPS" + bytes(60)
    tar(**{ext: image, "txt": words})
    with pytest.raises(IndexMismatch, match=rf"`{ext}` is an image \({format}\).*`datapipe pack`"):
        datapipe.make_loader(tmp_path / "raw", batch_size=1)
    if ext != "psd":
        report = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
        assert (report.samples, report.images) == (3, 3)


@pytest.mark.parametrize("record", values("JSON of an image that is not there"), ids=str)
def test_a_text_whose_image_is_not_there_is_a_reject(tmp_path, tar, record):
    tar(json=json.dumps(record).encode())
    report = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", dry_run=True, **FULL)
    field = next(iter(record))
    reason = f"MissingMember: its JSON has an image in `{field}`, and the sample holds none"
    assert report.reasons == {reason: 3}
    with pytest.raises(IndexMismatch, match=f"3 of 3 samples .*`{field}`"):
        datapipe.index_shards(tmp_path / "raw")


@pytest.mark.parametrize("record", values("JSON that names no image"), ids=str)
def test_a_text_that_names_no_image_is_packed(tmp_path, tar, record):
    tar(json=json.dumps(record).encode())
    assert datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1).samples == 3
    assert datapipe.index_shards(tmp_path / "raw").samples == 3


@pytest.mark.parametrize(
    "members", [{"cls": b"7"}, {"txt": b" \n"}, {"json": b'{"id": 5}'}, {"txt": b"", "cls": b"7"}]
)
def test_a_sample_with_neither_image_nor_text_is_a_reject(tmp_path, tar, members):
    tar(**members)
    report = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", dry_run=True, **FULL)
    assert report.reasons == {"DecodeError: sample has neither image nor text": 3}
    with pytest.raises(IndexMismatch, match=r"3 of 3 samples .*neither image nor text"):
        datapipe.index_shards(tmp_path / "raw")


@pytest.mark.parametrize("ext", ["seg.png", "depth.png", "edited.jpg", "png", "img"])
def test_images_beside_the_main_one_are_named_with_what_leaves_them_out(
    tmp_path, tar, jpeg, encode, caplog, ext
):
    other = jpeg if ext.endswith(("jpg", "img")) else (lambda number: encode(kind="PNG"))
    path = tar(**{ext: other, "jpg": jpeg, "txt": words})
    if ext == "png":  # the first of two plain names is the main one
        path = tar(**{"jpg": jpeg, ext: other, "txt": words})
    report = datapipe.pack_dataset(path, tmp_path / "out", workers=1)
    assert (report.samples, report.images) == (3, 6)
    (note,) = report.notes
    option = f"--ignore '*.{ext}'"
    assert note.startswith(f"3 samples with a further image `{ext}`, which is an input of training")
    assert option in note
    with caplog.at_level(logging.WARNING):
        assert datapipe.index_shards(tmp_path / "raw").images == 6
    (line,) = caplog.messages
    assert option in line
    report = datapipe.pack_dataset(path, tmp_path / "new", workers=1, ignore=f"*.{ext}")
    assert (report.samples, report.images) == (3, 3)
    for force in (False, True):
        manifest = datapipe.index_shards(tmp_path / "raw", force=force, ignore=f"*.{ext}")
        assert manifest.images == 3


def test_a_few_samples_that_cannot_be_loaded_leave_the_others(tmp_path, make_tar, jpeg, caplog):
    good = [m for n in range(4) for m in ((f"{n}.jpg", jpeg(n)), (f"{n}.txt", words(n)))]
    bad = [("4.mp4", MEDIA["mp4"][0]), ("4.txt", b"a video of a cat"), ("5.cls", b"1")]
    make_tar(tmp_path / "raw" / "x.tar", good + bad)
    with caplog.at_level(logging.WARNING):
        batches = load(tmp_path / "raw")
    assert [batch["key"] for batch in batches] == [["0"], ["1"], ["2"], ["3"]]
    assert any("left out: 1 sample, `mp4` is a video" in line for line in caplog.messages)
    assert any("neither image nor text (x.tar:5)" in line for line in caplog.messages)


def test_a_link_that_is_ignored_leaves_its_sample(tmp_path, tar, jpeg, caplog):
    path = tar(jpg=jpeg, txt=words)
    with tarfile.open(path, "a") as appended:
        link = tarfile.TarInfo("0.mask.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere.jpg"
        appended.addfile(link)
    assert datapipe.index_shards(path.parent, ignore="*.mask.jpg").samples == 3
    assert caplog.messages == [
        "left out: 1 member, which --ignore '*.mask.jpg' names (x.tar:0.mask.jpg)"
    ]
    report = datapipe.pack_dataset(path, tmp_path / "out", ignore="*.mask.jpg")
    assert (report.samples, report.rejected) == (3, 0)
