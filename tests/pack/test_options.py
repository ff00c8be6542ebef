"""Options of a pack, recognition of formats, and refusals before anything is read."""

import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.options import PackOptions, parse_max_rejects, parse_shard_size


def test_the_usual_three_options_are_kept_also_as_they_are_by_default():
    usual = {"format": "folder", "shard_size": "512MB", "check": "decode"}
    assert PackOptions(format="folder").to_dict() == usual


@pytest.mark.parametrize(
    ("text", "samples", "size"),
    [
        ("10000", 10_000, None),
        ("512MB", None, 512 * 10**6),
        ("1GiB", None, 2**30),
        ("1.5 kb", None, 1500),
        ("700B", None, 700),
        ("0.5TiB", None, 2**39),
    ],
)
def test_a_shard_size_is_samples_or_bytes(text, samples, size):
    limit = parse_shard_size(text)
    assert (limit.samples, limit.bytes) == (samples, size)


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "MB", "10 apples", "0MB", "1e6", "nan"])
def test_a_shard_size_that_is_neither_is_refused_with_examples(text):
    with pytest.raises(PackError, match=r"neither a number of samples such as 10000 nor a size"):
        parse_shard_size(text)


@pytest.mark.parametrize(
    ("text", "rejected", "inputs", "exceeded"),
    [
        ("0", 0, 1, False),
        ("0", 1, 1, True),
        ("20", 20, 20, False),
        ("20", 21, 100_000, True),
        ("5%", 50, 1000, False),
        ("5%", 51, 1000, True),
        ("0.05", 51, 1000, True),
        ("1.0", 1000, 1000, False),
        ("100%", 1000, 1000, False),
        ("5%", 999, 999, False),
    ],
)
def test_max_rejects_is_a_number_or_a_share(text, rejected, inputs, exceeded):
    assert parse_max_rejects(text).exceeded(rejected, inputs, at_end=False) == exceeded


def test_of_few_inputs_five_may_be_rejected_unless_a_third_are_or_none_may():
    text = "5%"
    assert not parse_max_rejects(text).exceeded(1, 3, at_end=True)
    assert parse_max_rejects(text).exceeded(1, 2, at_end=True)
    assert not parse_max_rejects(text).exceeded(5, 15, at_end=True)
    assert parse_max_rejects(text).exceeded(6, 18, at_end=True)
    assert parse_max_rejects("1%").exceeded(2, 100, at_end=True)
    assert parse_max_rejects("0%").exceeded(1, 100, at_end=True)


@pytest.mark.parametrize("text", ["", "-1", "many", "101%", "-5%", "1.5", "nan%", "inf%", "%"])
def test_max_rejects_that_is_neither_is_refused_with_examples(text):
    with pytest.raises(PackError, match="neither a number such as 20 nor a share such as 5%"):
        parse_max_rejects(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers 0: give an integer from 1"),
        ({"limit": 0}, "limit 0: give an integer from 1"),
        ({"check": "twice"}, "check 'twice': give 'decode' or 'header'"),
        ({"max_side": 0}, "max_side 0"),
        ({"quality": 101}, "quality 101"),
        ({"image_format": "gif"}, "image_format 'gif'"),
        ({"max_pixels": 0}, "max_pixels 0"),
        ({"max_pixels": 10**9}, "--max-side too"),
        (
            {"format": "parquet"},
            "'parquet' is not known; the formats are(?s:.)*--format llava +LLaVA /",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(tmp_path, make_folder, options, message):
    with pytest.raises(PackError, match=message):
        pack_dataset(make_folder(tmp_path / "raw", 1), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["raw", "raw/out", "raw/../raw/out", "link/out"])
def test_an_output_inside_the_raw_data_is_refused(tmp_path, make_folder, out):
    raw = make_folder(tmp_path / "raw", 1)
    (tmp_path / "link").symlink_to(raw)
    with pytest.raises(PackError, match="is inside the raw data"):
        pack_dataset(raw, tmp_path / out)


def test_an_output_that_is_a_file_is_refused(tmp_path, make_folder):
    (tmp_path / "out").touch()
    with pytest.raises(PackError, match="is a file; give a folder"):
        pack_dataset(make_folder(tmp_path / "raw", 1), tmp_path / "out")
    with pytest.raises(PackError, match="cannot be written"):
        pack_dataset(tmp_path / "raw", tmp_path / "out" / "below")
