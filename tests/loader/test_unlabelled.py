"""The warning about samples of which a model learns nothing."""

import json
import logging
from contextlib import closing

import pytest

import datapipe

SAMPLES = 60


def pack(folder, records):
    raw = folder / "raw"
    raw.mkdir()
    (raw / "data.json").write_text(json.dumps(records))
    datapipe.pack_dataset(raw, folder / "shards")
    return folder / "shards"


def record(number, role="Assistant", answer="Yes."):
    turns = [{"role": "User", "content": f"Is it {number}?"}, {"role": role, "content": answer}]
    return {"id": f"id-{number}", "messages": turns}


@pytest.fixture
def warned(text, caplog):
    """Makes a loader, takes its first batch, and returns the warnings about labels."""

    def take(folder, **options):
        caplog.clear()
        spec = text(**options.pop("text", {}))
        options = {"image": None, "text": spec, "batch_size": 4, "num_workers": 1} | options
        with (
            caplog.at_level(logging.WARNING),
            closing(datapipe.make_loader(folder, **options)) as loader,
        ):
            next(iter(loader))
        return [said for said in caplog.messages if "no label" in said]

    return take


@pytest.mark.parametrize("samples", [60, 100])
def test_capital_roles_are_learnt_and_one_in_a_hundred_is_not_worth_a_word(
    tmp_path, warned, samples
):
    records = [record(number, answer="Yes." if number < 99 else "") for number in range(samples)]
    assert not warned(pack(tmp_path, records))


@pytest.mark.parametrize("again", [False, True], ids=["counted", "counted before"])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_samples_without_labels_are_named_once(tmp_path, warned, workers, again):
    records = [record(number, "User" if number % 3 == 1 else "Assistant") for number in range(60)]
    folder = pack(tmp_path, records)
    if again:
        warned(folder)
    (said,) = warned(folder, workers=workers)
    assert "33.3% of 60 samples have no label" in said
    assert "20, such as " in said
    assert "no turn is the assistant's" in said
    assert not warned(folder, where="label_tokens > 0")


def test_answers_that_a_limit_takes_away_are_told_from_texts_without_any(tmp_path, warned):
    records = [record(number) for number in range(SAMPLES)]
    records[5]["messages"][0]["content"] = "long " * 200
    records[6]["messages"][1]["content"] = ""
    folder = pack(tmp_path, records)
    (said,) = warned(folder, text={"max_length": 100, "overlong": "truncate"})
    assert "1, such as 000000005, lose their answers" in said
    assert "1, such as 000000006, have text" in said
    assert not warned(
        folder, text={"max_length": 100, "overlong": "drop"}, where="label_tokens > 0"
    )


def test_images_without_a_text_are_named_as_such(tmp_path, warned, make_folder):
    raw = make_folder(tmp_path / "raw", samples=20)
    for number in range(1, 20, 2):
        (raw / f"{number:03d}.txt").write_text("")
    datapipe.pack_dataset(raw, tmp_path / "shards")
    image = datapipe.ImageSpec(size=32)
    (said,) = warned(tmp_path / "shards", image=image)
    assert "50.0% of 20 samples" in said
    assert "10, such as 000000001, have no text (" in said
    datapipe.convert_dataset(tmp_path / "shards", tmp_path / "arrays", image=image)
    assert warned(tmp_path / "arrays", image=image) == [said]


def test_a_large_dataset_is_looked_at_in_stretches_over_all_of_it(tmp_path, warned):
    records = [record(n, "Assistant" if n < 4_700 else "User") for n in range(5_000)]
    (said,) = warned(pack(tmp_path, records))
    assert "of 4,096 samples (spread over all 5,000) have no label" in said
    assert 5 < float(said.partition("%")[0].split()[-1]) < 7  # and 6 % of all have none
