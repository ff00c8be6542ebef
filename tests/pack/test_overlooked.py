"""Data that no reader takes is named, with a remedy."""

import base64
import gzip
import json
import re
import shlex
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.teaching import show

from .reading import choose_reader, read_all


@pytest.fixture
def images(tmp_path, put):
    """A folder with two images in a folder below."""
    return put(tmp_path / "raw", {"images/0.jpg": 0, "images/1.jpg": 1})


@pytest.mark.parametrize("place", ["", "data.csv"])
def test_records_in_another_encoding_are_named_with_the_remedy(images, place):
    lines = "image,caption\nimages/0.jpg,Größe\nimages/1.jpg,Käse\n"
    (images / "data.csv").write_bytes(lines.encode("cp1252"))
    said = r"data\.csv is not UTF-8 at byte 29; .*`iconv -f WINDOWS-1252 -t UTF-8`"
    with pytest.raises(PackError, match=said):
        choose_reader(images / place)
    with pytest.raises(PackError, match=said):
        list(read_all(choose_reader(images, "table"), images / place, ReadOptions()))
    (images / "data.csv").write_text(lines, "utf-16-le")
    with pytest.raises(PackError, match=r"header: .* UTF-16.*iconv"):
        choose_reader(images / place)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("styles.csv", "id,name,year\n0,A blue shirt,2012\n1,Two red shoes,2013\n", "A blue shirt"),
        ("all.jsonl", '{"key": "0", "said": "A dog"}\n{"key": "1", "said": "Two cats"}\n', "A dog"),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_a_table_whose_ids_name_the_images_says_how_to_take_it(
    images, name, content, text, gzipped
):
    path = images / f"{name}.gz" if gzipped else images / name
    path.write_bytes(gzip.compress(content.encode()) if gzipped else content.encode())
    with pytest.raises(PackError, match=r"names images or tells of them") as caught:
        choose_reader(images)
    options = ReadOptions(**remedy(caught.value))
    first, _ = read_all(choose_reader(images, "table", options), images, options)
    assert first.caption == text
    assert first.images[0].blob.read()


def test_records_whose_gzip_is_cut_off_are_named(images):
    lines = "".join(f'{{"image": "images/{n}.jpg", "text": "{n}"}}\n' for n in range(2))
    (images / "all.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-12])
    with pytest.raises(PackError, match=r"all\.jsonl\.gz is damaged .*ended before.*download"):
        choose_reader(images)


def test_gzipped_lines_are_counted_as_they_are_decompressed(images):
    lines = gzip.compress((b"A dog that sleeps " * 20 + b"\n") * 2)
    (images / "captions.txt.gz").write_bytes(lines)
    with pytest.raises(PackError, match=r"captions\.txt\.gz"):
        choose_reader(images)


def test_json_beside_images_of_which_no_field_is_known_says_how_to_take_it(images):
    for number, said in enumerate(("A dog", "A cat")):
        record = {"file": f"{number}.jpg", "from": "me", "what it shows": said, "size": 3}
        record["imageData"] = "iVBORw0KGgo" + "A" * 80  # of LabelMe
        (images / "images" / f"{number}.json").write_text(json.dumps(record))
    listed = r"fields with text are 'from', 'what it shows'\."
    with pytest.raises(PackError, match=listed) as caught:
        choose_reader(images)
    options = ReadOptions(**remedy(caught.value))
    reader = choose_reader(images, "folder", options)
    shown = [show(sample, options.map).turns for sample in read_all(reader, images, options)]
    assert shown == [
        (("user", "<image>", False), ("assistant", "A dog", True)),
        (("user", "<image>", False), ("assistant", "A cat", True)),
    ]


def remedy(error):
    """The options that the first remedy of a message gives."""
    words = shlex.split(re.search(r"(--(?:include|format) .*?)(?:;|, or )", str(error))[1])
    return {
        option[2:].replace("-", "_"): value
        for option, value in zip(words[::2], words[1::2], strict=True)
        if option != "--format"
    }


ROWS = [{"image": f"{number}.jpg", "caption": "A dog"} for number in range(3)]
KEYED = {str(number): row for number, row in enumerate(ROWS)}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"version": 1, "data": ROWS}, "it holds records in 'data': 3"),
        ({"questions": ROWS, "type": {"1": "a"}}, "it holds records in 'questions': 3"),
        (KEYED, "it holds 3 records by their keys"),
        ({"meta": {"version": 1}, "data": KEYED}, "it holds 3 records by their keys in 'data'"),
        ({"image": ["0.jpg"] * 3, "caption": ["A dog"] * 3}, "its columns are 'image', 'caption'"),
        (
            {name: {str(n): row[name] for n, row in enumerate(ROWS)} for name in ROWS[0]},
            "its columns are 'image', 'caption'",
        ),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_records_inside_of_an_object_are_written_out_by_the_command_given(
    tmp_path, held, said, indent
):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(held, indent=indent))
    with pytest.raises(PackError, match=re.escape(said)) as caught:
        choose_reader(path)
    subprocess.run(re.search(r"`(.*)`", str(caught.value))[1], shell=True, check=True)
    (written,) = tmp_path.glob("*.jsonl")
    samples = list(read_all(choose_reader(written), written, ReadOptions()))
    assert [sample.caption for sample in samples] == ["A dog"] * 3


@pytest.mark.parametrize("indent", [None, 1])
def test_images_by_their_keys_are_written_out_by_the_command_given(tmp_path, jpeg, indent):
    """MIMIC-IT has them in one object, and its instructions in another."""
    held = {f"LA_{number}": base64.b64encode(jpeg(number)).decode() for number in range(5)}
    (tmp_path / "LA.json").write_text(json.dumps(held, indent=indent))
    with pytest.raises(PackError, match=r"LA\.json: .*it holds 5 images by their keys") as caught:
        choose_reader(tmp_path)
    subprocess.run(re.search(r"`(.*)`", str(caught.value))[1], shell=True, check=True)
    samples = list(
        read_all(choose_reader(tmp_path / "LA.jsonl"), tmp_path / "LA.jsonl", ReadOptions())
    )
    assert [len(sample.images) for sample in samples] == [1] * 5


def test_parquet_that_is_merely_called_gz_is_read(tmp_path, jpeg):
    path = tmp_path / "part.parquet.gz"
    pq.write_table(pa.Table.from_pylist([{"jpg": jpeg(0), "txt": "A"}]), path, compression="gzip")
    assert len(list(read_all(choose_reader(path), path, ReadOptions()))) == 1
