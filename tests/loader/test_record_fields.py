"""`where=` over fields of the samples' JSON members: what is chosen, kept, rebuilt and refused."""

import json

import pytest

import datapipe
from datapipe import PlanError, StoreError
from datapipe.testing import valid_keys
from tests.case_files import cases
from tests.flipping import flip

from ..remote.server import serving

RECORDS = [
    {"score": number / 10, "license": ("cc0", "by", None)[number % 3], "meta": {"n": number}}
    | {"is safe": number % 2 == 0, "width": -number, "tags": ["a"]}
    for number in range(20)
]


@pytest.fixture
def indexed(tmp_path, make_tar, jpeg):
    """Writes records, or the bytes of JSON members, to tars of `size` samples."""

    def write(records=RECORDS, name="tars", size=7, start=0):
        for first in range(start, len(records), size):
            members = []
            for number in range(first, min(first + size, len(records))):
                record = records[number]
                members += [(f"{number:03d}.txt", b"a photo"), (f"{number:03d}.jpg", jpeg(0))]
                if record is not None:
                    content = record if isinstance(record, bytes) else json.dumps(record).encode()
                    members.append((f"{number:03d}.json", content))
            make_tar(tmp_path / name / f"{first:03d}.tar", members)
        return tmp_path / name

    return write


def kept(folder, where, **options):
    """Numbers of the samples that take part."""
    given = {"batch_size": 4, "image": None, "shuffle": False, "num_workers": 0} | options
    with datapipe.make_loader(folder, where=where, meta=("key", "valid"), **given) as loader:
        return [int(key) for key in valid_keys(loader)]


def written(folder):
    """When each file of its fields was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("fields/*/*.arrow")}


@pytest.mark.parametrize(("where", "numbers"), cases("loader/fields_kept"))
def test_fields_are_compared_as_columns_are(indexed, where, numbers):
    assert kept(indexed(), where) == [int(number) for number in numbers.split()]


@pytest.mark.parametrize(("values", "where", "numbers"), cases("loader/fields_odd"))
def test_odd_values_are_compared_as_in_python(indexed, values, where, numbers):
    folder = indexed([{"x": value} for value in json.loads(values)], size=2)
    assert kept(folder, where) == [int(number) for number in numbers.split()]


def test_a_dataset_that_grows_reads_its_new_shards_alone(tmp_path, make_llava):
    said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]

    def pack(name, numbers, **options):
        scores = ({"score": number if number > 2 else None} for number in numbers)
        records = [{"conversations": said} | score for score in scores]
        make_llava(tmp_path / name, records)
        datapipe.pack_dataset(
            tmp_path / name, tmp_path / "out", shard_size="5", workers=1, **options
        )

    pack("first", range(10), fields="score")
    before = written(tmp_path / "out")
    assert len(before) == 2
    pack("second", range(10, 20), append=True)
    assert len(kept(tmp_path / "out", "score >= 8")) == 12
    now = written(tmp_path / "out")
    assert len(now) == 4
    assert before.items() <= now.items()


def test_damaged_and_missing_files_are_read_again(indexed):
    folder = indexed()
    datapipe.index_fields(folder, "score")
    files = sorted(folder.glob("fields/*/*.arrow"))
    assert len(files) == 3
    flip(files[0], files[0].stat().st_size // 2)
    files[1].write_bytes(files[1].read_bytes()[:2])
    files[2].unlink()
    assert kept(folder, "score >= 1") == list(range(10, 20))
    assert sorted(folder.glob("fields/*/*.arrow")) == files
    for about in folder.glob("fields/*/field.json"):
        about.write_text("{}")
    assert kept(folder, "score < 1") == list(range(10))


def test_a_damaged_record_is_an_error_and_one_that_is_no_json_has_no_fields(indexed, caplog):
    records = [{"score": 1, "other": 1}, b"{no json", b"[1]", None, {"score": 2, "other": 3}]
    folder = indexed(records)
    assert kept(folder, "score is not None") == [0, 4]
    assert "cannot be read, and have no fields: 1, such as member 001.json" in caplog.text
    tar = folder / "000.tar"
    tar.write_bytes(tar.read_bytes().replace(b'"other": 3', b'"other": 4'))
    with pytest.raises(StoreError, match=r"000\.tar: member 004\.json: its bytes are not those"):
        kept(folder, "other == 3")


def test_what_was_read_before_an_error_is_kept(indexed):
    folder = indexed()
    datapipe.index_shards(folder)
    last = folder / "014.tar"
    content = last.read_bytes()
    last.write_bytes(content.replace(b'"score": 1.9', b'"score": 2.9'))
    with pytest.raises(StoreError, match=r"014\.tar"):
        datapipe.index_fields(folder, "score")
    last.write_bytes(content)
    before = written(folder)
    assert len(before) == 2
    assert kept(folder, "score >= 1.9") == [19]
    now = written(folder)
    assert len(now) == 3
    assert before.items() <= now.items()


def test_fields_of_a_read_only_dataset_are_in_the_cache(indexed, tmp_path, deny, caplog):
    folder = indexed()
    datapipe.index_shards(folder)
    deny(folder)
    assert kept(folder, "meta.n >= 18") == [18, 19]
    assert "its fields go to" in caplog.text
    assert not (folder / "fields").exists()
    files = sorted((tmp_path / "cache").rglob("*.arrow"))
    assert len(files) == 3
    files[0].unlink()
    assert kept(folder, "meta.n >= 17 or meta.n == 0") == [0, 17, 18, 19]


@pytest.mark.parametrize(("values", "size", "said"), cases("loader/fields_mixed"))
def test_several_types_are_refused_with_an_example_of_each(indexed, values, size, said):
    records = [{"x": value, "y": 1} for value in json.loads(values)]
    folder = indexed(records, size=int(size))
    for ask in (lambda: datapipe.index_fields(folder, "x"), lambda: kept(folder, "x > 1")):
        with pytest.raises(PlanError, match=said):
            ask()
    assert kept(folder, "y == 1") == list(range(len(records)))


@pytest.mark.parametrize(("where", "said"), cases("loader/fields_refused"))
def test_a_comparison_of_another_type_is_refused(indexed, where, said):
    with pytest.raises(PlanError, match=said):
        kept(indexed(), where)


def test_an_unknown_field_is_refused_with_what_there_is_and_the_command(indexed):
    folder = indexed([*RECORDS, *({} for _ in range(300)), {"late": 3}], size=400)
    datapipe.index_fields(folder, "score")
    with pytest.raises(PlanError) as caught:
        kept(folder, "scroe > 3")
    said = str(caught.value)
    assert "character 1: no column 'scroe'; there are score, " in said
    assert "indexed fields: score; fields of the first records: is safe, license, meta, " in said
    assert f"`datapipe index {folder} --fields scroe` adds it" in said
    with pytest.raises(PlanError, match="no column 'late'"):
        kept(folder, "late == 3")
    assert datapipe.index_fields(folder, ["late", "score"]) == {
        "late": datapipe.IndexedField("int64", 1),
        "score": datapipe.IndexedField("float64", 20),
    }
    assert kept(folder, "late == 3") == [320]
    with pytest.raises(PlanError, match="no sample has a field 'nope' in its JSON member; the fi"):
        datapipe.index_fields(folder, "score,nope")


def test_a_mixture_names_the_dataset_that_lacks_a_field(indexed):
    first, second = indexed(), indexed([{"other": 1}] * 6, name="others")
    mixture = {str(first): {"where": "score >= 1"}, str(second): None}
    options = {"shuffle": True}
    assert sorted(kept(mixture, "width > 0", **options)) == [*range(6), *range(10, 20)]
    with pytest.raises(PlanError, match=r"dataset '.*others.*no column 'score'.*records: other;"):
        kept([str(first), str(second)], "score >= 1", **options)


def test_fields_behind_a_url_in_copies_and_of_arrays_are_those_of_the_shards(indexed, tmp_path):
    pytest.importorskip("aiohttp")
    folder, where = indexed(), "meta.n > 3 and license == 'by'"
    expected = kept(folder, where)
    with serving(folder) as server:
        assert kept(server.url, where) == expected
    assert datapipe.select_samples(folder, tmp_path / "some", where=where).samples == len(expected)
    assert datapipe.verify_dataset(folder).is_whole
    datapipe.convert_dataset(folder, tmp_path / "arrays", image=datapipe.ImageSpec(size=16))
    assert kept(tmp_path / "arrays", where, image=datapipe.ImageSpec(size=16)) == expected
