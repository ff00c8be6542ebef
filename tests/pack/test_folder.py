"""Outcomes of the files of a folder: images, their texts here or elsewhere, masks, other files."""

import shutil

import pytest

from datapipe import pack_dataset
from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import RawSample, ReadOptions
from datapipe.pack.notes import Notes
from datapipe.pack.readers.folder import READER

from .cases import cases
from .reading import estimate, read_all

YOLO = "0 0.5 0.5 0.1 0.2\n1 0.25 0.5 0.1 0.2\n"


def read(raw, include=None):
    """Return captions and records by image, rejects by source, and notes of a folder."""
    notes = Notes()
    samples, rejects = {}, {}
    for taken in read_all(READER, raw, ReadOptions(include=include, notes=notes)):
        if isinstance(taken, RawSample):
            texts = [blob.label for blob in (taken.caption, taken.record) if blob is not None]
            samples[taken.source] = " ".join(texts)
        else:
            rejects[taken.source] = taken.reason
    assert estimate(READER, raw, ReadOptions(include=include)) == len(samples)
    return samples, rejects, notes.lines()


# --- texts in parallel folders ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "text", "pattern"),
    [
        ("images/x.png", "annotations/x.json", "annotations/*"),
        ("img/x.jpg", "box/x.txt", "box/*"),
        ("images/train/x.jpg", "captions/train/x.txt", "captions/*"),
        ("train/images/x.jpg", "train/captions/x.caption", "train/captions/*"),
        ("data/train/images/x.jpg", "data/train/[1]/x.txt", "data/train/[[]1]/*"),
    ],
)
def test_texts_of_a_parallel_folder_are_joined(tmp_path, image, text, pattern, put):
    raw = put(tmp_path, {image: "", text: "A cat", "README.md": ""})
    samples, rejects, said = read(raw)
    assert (samples, rejects) == ({image: text}, {})
    assert said[0] == f"texts of images are taken from {pattern}"


def test_names_with_dots_are_joined_and_others_stay_alone(tmp_path, put):
    names = [f"{number:03d}{end}" for number in range(60) for end in ("", ".b", "-c", "ü")]
    files = {f"img/{n}.jpg": "" for n in names} | {f"txt/{n}.txt": "a" for n in names[::2]}
    samples, rejects, _ = read(put(tmp_path, files | {"txt/other.txt": "three"}))
    assert samples == {f"img/{n}.jpg": f"txt/{n}.txt" if n in names[::2] else "" for n in names}
    assert rejects == {"txt/other.txt": "no image has the same stem as this text"}


def test_several_folders_of_texts_are_asked_about_before_anything_is_packed(tmp_path, put):
    files = {f"{f}/{n}.txt": "72,25,TAN" for f in ("box", "entities") for n in range(2)}
    raw = put(tmp_path, {"img/0.jpg": "", "img/1.jpg": ""} | files)
    with pytest.raises(PackError, match="img holds images, and several folders") as caught:
        estimate(READER, raw, ReadOptions())
    assert "--include 'box/*'       2 files, such as 0.txt" in str(caught.value)
    assert "--include 'entities/*'  2 files, such as 0.txt" in str(caught.value)
    samples, rejects, said = read(raw, include="box/*")
    assert samples == {"img/0.jpg": "box/0.txt", "img/1.jpg": "box/1.txt"}
    assert rejects == {}
    assert said[1].startswith("left out: 2 files, texts that --include does not take (entities/")


def test_a_pattern_of_images_takes_them_with_their_texts(tmp_path, put):
    files = {f"{kind}/{split}/0.{ext}": "a" for kind, ext in (("images", "jpg"), ("texts", "txt"))
             for split in ("train", "val")}  # fmt: skip
    raw = put(tmp_path, files)
    assert read(raw, include="images/val/*")[0] == {"images/val/0.jpg": "texts/val/0.txt"}
    assert read(raw, include="*/train/*")[0] == {"images/train/0.jpg": "texts/train/0.txt"}
    with pytest.raises(PackError, match="--include 'none' matches neither an image nor a text"):
        read(raw, include="none")


def test_texts_beside_the_images_go_before_those_of_a_parallel_folder(tmp_path, put):
    raw = put(tmp_path, {"a/1.jpg": "", "a/1.txt": "one", "b/1.txt": "another"})
    samples, rejects, said = read(raw)
    assert (samples, rejects) == ({"a/1.jpg": "a/1.txt"}, {})
    assert said == ["left out: 1 file, texts of images that have others beside them (b/1.txt)"]


# --- texts with the whole name of their image -------------------------------------------------


@pytest.mark.parametrize("ext", ["txt", "caption", "json"])
@pytest.mark.parametrize("place", ["a", "b"])
def test_a_text_may_have_the_whole_name_of_its_image(tmp_path, ext, place, put):
    files = {"a/1.jpg": "", "a/1.png": "", "a/2.JPG": ""}
    texts = {f"{place}/{name[2:]}.{ext}": '{"text": "A cat"}' for name in files}
    samples, rejects, _ = read(put(tmp_path, files | texts))
    assert (samples, rejects) == (dict(zip(files, texts, strict=True)), {})


def test_a_text_of_the_stem_goes_before_one_of_the_whole_name(tmp_path, put):
    files = {"1.jpg": "", "1.txt": "one", "1.jpg.txt": "two", "1.jpg.json": "{}"}
    samples, rejects, _ = read(put(tmp_path, files))
    assert samples == {"1.jpg": "1.txt 1.jpg.json"}
    assert rejects == {"1.jpg.txt": "another text of this kind has the same stem as this text"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\n\r\n"])
def test_line_breaks_that_end_a_caption_are_no_part_of_it(tmp_path, raw, jpeg, members, end):
    (raw / "1.jpg").write_bytes(jpeg(1))
    (raw / "1.txt").write_bytes(f" A dog{end}by night. {end}".encode())
    pack_dataset(raw, tmp_path / "out")
    (sample,) = members(tmp_path / "out").values()
    assert sample["txt"] == f" A dog{end}by night. ".encode()


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["images/{}.txt", "labels/{}.txt", "images/{}.jpg.txt"])
def test_boxes_are_no_captions(tmp_path, form, put):
    images = {f"images/{number}.jpg": "" for number in range(4)}
    boxes = {form.format(number): YOLO if number else "" for number in range(4)}
    samples, rejects, said = read(put(tmp_path, images | boxes))
    assert (samples, rejects) == (images, {})
    assert said == [
        "left out: 4 files, boxes in numbers, as YOLO's labels are, which are no captions "
        f"({', '.join(boxes)})"
    ]


# --- files that are no data -------------------------------------------------------------------


PAPERS = [
    *("README", "README.md", "README.txt", "readme_en.txt", "LICENSE", "LICENSE.txt", "NOTICE"),
    *("LICENSE-CC-BY", "CITATION.cff", "citation.bib", "notes.md", "index.rst", "load.py"),
    *("look.ipynb", "index.html", "data.yaml", "data.yml", "a.toml", "train.log", "_SUCCESS"),
    *("SHA256SUMS", "checksums.txt", "a.md5", "dataset_infos.json", "requirements.txt"),
]


def test_papers_beside_images_are_left_out_and_said(tmp_path, put):
    papers = {f"{number}/{name}": "words" for number, name in enumerate(PAPERS)}
    # The sidecar of an image may be called like a paper.
    files = {"1.jpg": "", "1.txt": "A cat", "notice.jpg": "", "notice.txt": "A notice"}
    samples, rejects, (said,) = read(put(tmp_path, files | papers))
    assert (samples, rejects) == ({"1.jpg": "1.txt", "notice.jpg": "notice.txt"}, {})
    assert said.startswith(f"left out: {len(PAPERS)} files, no data (0/README, 1/README.md, ")


@pytest.mark.parametrize(("name", "what"), cases("files that may be data beside images"))
def test_what_may_be_data_is_rejected_by_name_with_what_it_is(tmp_path, name, what, put):
    _, rejects, said = read(put(tmp_path, {"1.jpg": "", name: ""}))
    assert (list(rejects), said) == ([name], [])
    assert rejects[name].startswith(what)


def test_records_beside_images_are_left_out_where_the_images_are_chosen(tmp_path, put):
    records = {
        "metadata.jsonl": '{"file_name": "1.jpg"}',
        "metadata.csv": "file_name\n1.jpg",
        "all.parquet": "PAR1",
        "llava.json": '[{"image": "1.jpg"}]',
        "captions.json": '{"images": [], "annotations": []}',
    }
    _, rejects, said = read(put(tmp_path, {"1.jpg": ""} | records))
    assert rejects == {}
    assert said == [
        "left out: 5 files, records, which the format folder does not read "
        f"({', '.join(sorted(records))})"
    ]


def test_an_archive_whose_content_lies_beside_it_is_left_out(tmp_path, put):
    put(tmp_path, {"photos/1.jpg": "one", "photos/2.jpg": "two"})
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path, "photos")
    _, rejects, said = read(tmp_path)
    assert rejects == {}
    assert said == ["left out: 1 file, archives whose content is beside them (photos.zip)"]
    (tmp_path / "photos" / "2.jpg").unlink()
    assert list(read(tmp_path)[1]) == ["photos.zip"]


# --- several texts of an image, several images of a text ------------------------------------------


def test_a_second_text_of_an_image_is_said_and_kept(tmp_path, members, put):
    for number in range(3):
        texts = {f"{number}.txt": "of .txt", f"{number}.caption": "of .caption"}
        put(tmp_path / "raw" / "a", texts | {f"{number}.jpg": number})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out")
    assert report.notes == (
        "3 files: texts of images whose .txt is learnt; they are kept as further members "
        "(a/0.caption, a/1.caption, a/2.caption)",
    )
    first = next(iter(members(tmp_path / "out").values()))
    assert (first["txt"], first["caption"]) == (b"of .txt", b"of .caption")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ('{"caption": "another"}', True),
        ('{"conversations": [{"from": "human", "value": "a"}]}', True),
        ('{"caption": "A cat\\n"}', False),
        ('{"width": 7, "url": "http://a.b"}', False),
        ("[]", False),
    ],
)
def test_a_text_in_json_that_a_text_beside_it_replaces_is_said(tmp_path, record, said, put):
    put(tmp_path / "raw", {"0.jpg": 0, "0.txt": "A cat", "0.json": record})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out")
    line = "1 of 1 samples have another text in the JSON beside their caption, which is not learnt"
    assert report.notes == ()
    assert report.teaching.warnings() == ([line] if said else [])


def test_images_that_share_a_text_are_said(tmp_path, encode, put):
    images = {f"{number}.jpg": 0 for number in range(3)}  # of the others no text is shared
    images |= {f"{number}.png": encode(kind="PNG") for number in range(3)}
    put(tmp_path / "raw", images | {"0.txt": "A cat", "0.json": {}, "2.jpg.txt": "A dog"})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out")
    assert (report.samples, report.rejected) == (6, 0)
    assert report.notes == (
        "2 files: images that share a text with another image of the same stem; each is a sample "
        "(0.jpg, 0.png)",
    )


def test_class_folders_with_texts_of_their_own_are_not_joined(tmp_path, put):
    files = {f"{c}/{n}.{e}": "words" for c in "abc" for n in range(3) for e in ("jpg", "txt")}
    samples, rejects, said = read(put(tmp_path, files))
    assert samples == {f"{c}/{n}.jpg": f"{c}/{n}.txt" for c in "abc" for n in range(3)}
    assert (rejects, said) == ({}, [])


# --- folders of masks beside folders of images, and files that are ignored ------------------------


@pytest.mark.parametrize("masks", ["masks", "depth", "annotated"])
def test_texts_belong_to_the_images_and_not_to_their_masks(
    tmp_path, put, encode, members, rejects, masks
):
    put(tmp_path / "raw", {"texts/9.txt": "of no image"})
    for number in range(4):
        images = {f"images/{number}.jpg": number, f"{masks}/{number}.png": encode(kind="PNG")}
        put(tmp_path / "raw", images | {f"texts/{number}.txt": f"words {number}"})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text) == (8, 4)
    packed = members(tmp_path / "out").values()
    assert sorted(sample["txt"] for sample in packed if "jpg" in sample) == [
        f"words {number}".encode() for number in range(4)
    ]
    said = f"images of {masks}/ have no text: those of texts/* belong to images of the same names"
    assert any(said in note for note in report.notes)
    assert [reject["source"] for reject in rejects(tmp_path / "out")] == ["texts/9.txt"]


def test_folders_of_images_of_other_names_share_a_folder_of_texts(tmp_path, put):
    for number in range(4):
        images = {f"images/{number}.jpg": number, f"more/1{number}.jpg": number}
        texts = dict.fromkeys((f"texts/{number}.txt", f"texts/1{number}.txt"), "words")
        put(tmp_path / "raw", images | texts)
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text) == (8, 8)


def test_files_that_ignore_names_are_left_out_and_counted(tmp_path, put, encode, rejects):
    raw = tmp_path / "raw"
    for number in range(3):
        files = {f"{number}.jpg": number, f"{number}.txt": "words", f"{number}.mp4": "a video"}
        put(raw, files | {f"masks/{number}.png": encode(kind="PNG")})
    ignored = ["*.MP4", "*.txt", "masks/*"]
    report = pack_dataset(raw, tmp_path / "out", ignore=ignored, workers=1)
    assert (report.samples, rejects(tmp_path / "out")) == (3, [])
    assert report.teaching.without_text == 3
    names = "0.mp4, 1.mp4, 2.mp4", "0.txt, 1.txt, 2.txt", "masks/0.png, masks/1.png, masks/2.png"
    assert report.notes == tuple(
        f"left out: 3 files, which --ignore '{pattern}' names ({named})"
        for pattern, named in zip(ignored, names, strict=True)
    )
