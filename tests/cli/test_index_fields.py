"""`--fields`: fields of the samples' records, indexed by `datapipe pack` and `datapipe index`."""

from pathlib import Path

import pytest

from ..remote.server import serving


@pytest.fixture
def raw(tmp_path, make_llava):
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    records = [{"id": n, "conversations": turns, "score": n / 2} for n in range(10)]
    records[3]["language"] = "en"
    return Path(make_llava(tmp_path / "raw", records))


def test_fields_are_indexed_with_the_pack_and_later(run, read, raw, tmp_path, tokenizer):
    out = tmp_path / "out"
    run("pack", raw, out, "--fields", "score")
    assert len(list(out.glob("fields/*/field.json"))) == 1
    assert read(run("index", out, "--fields", "score, language", "--json"))["fields"] == {
        "score": {"type": "float64", "present": 10},
        "language": {"type": "string", "present": 1},
    }
    done = run("index", out, "--fields", "language")
    assert "Indexed fields of" in done.stdout
    assert "field language string, in 1 of 10 samples" in done.stdout
    for options in ((), ("--tokenizer", tokenizer, "--template", "chatml")):
        planned = ("plan", out, "--batch-size", 2, "--where", "score >= 4", *options, "--json")
        assert read(run(*planned))["left_out"]["where"] == 8


def test_fields_of_a_url_are_indexed_in_the_cache(run, read, raw, tmp_path):
    pytest.importorskip("aiohttp")
    run("pack", raw, tmp_path / "out")
    with serving(tmp_path / "out") as server:
        found = read(run("index", server.url, "--fields", "score", "--json"))
        assert found["fields"] == {"score": {"type": "float64", "present": 10}}
    assert not (tmp_path / "out" / "fields").exists()


def test_a_field_that_no_record_has_is_refused_and_nothing_is_written(run, raw, tmp_path):
    done = run("pack", raw, tmp_path / "out", "--fields", "scores")
    assert done.exit_code == 1
    assert "no sample has a field 'scores' in its JSON member" in done.output
    assert "10 samples packed, 0 rejected" in done.output
    assert not (tmp_path / "out" / "fields").exists()
    run("index", tmp_path / "out", "--fields", "id")
    assert run("index", tmp_path / "out", "--fields", "scores").exit_code == 1
    refused = run("index", tmp_path / "out", "--fields", "id", "--ignore", "*.seg.png")
    assert "--ignore applies to tars from another writer" in refused.stderr
    assert list((tmp_path / "out" / "fields").glob("*/field.json"))
