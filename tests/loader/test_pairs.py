"""Batches of preference pairs: both answers to each prompt, with the same images."""

import shutil
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer

import datapipe
from datapipe import BatchSpec, CacheSpec, ImageSpec, PlanError
from datapipe.testing import assert_resumes_exactly, assert_same_batches
from examples.train_captioner import train

from ..campaigns import rare
from .damage import overwrite_image
from .pair_rows import LAYOUTS, assistant, loader_of, pack, row, said, user

PAIRS = 11
TOKENS = 6  # of an image
TILES = {"resize": "tiles", "size": 28, "grids": ((28, 56),), "patch": 14}
META = ("key", "valid", "images_per_sample", "num_items_in_batch")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    rows = [row("formatted", number) for number in range(PAIRS)]
    return pack(tmp_path_factory.mktemp("pairs"), rows)


@pytest.fixture
def load(pairs, text):
    return loader_of(pairs, partial(text, pairs=True), batch_size=3)


def expected(tokenizer, numbers):
    """The rows of TRL's collator: it encodes prompts and answers apart, and joins their tokens."""
    encoder = Tokenizer.from_file(str(tokenizer))

    def ids(text):
        return encoder.encode(text, add_special_tokens=False).ids

    rows = []
    for answer in (1, 2):
        for number in numbers:
            texts = said(number)
            shown = "<image>" * TOKENS
            prompt = ids(f"<|im_start|>user\n{shown}{texts[0]}<|im_end|>\n<|im_start|>assistant\n")
            rows.append((prompt, ids(f"{texts[answer]}<|im_end|>\n")))
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    found = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, answer in rows:
        pad = longest - len(prompt) - len(answer)
        found["input_ids"].append([*prompt, *answer, *[0] * pad])
        found["attention_mask"].append([1] * (longest - pad) + [0] * pad)
        found["labels"].append([-100] * len(prompt) + answer + [-100] * pad)
    return {name: torch.tensor(values) for name, values in found.items()}


# --- batches ----------------------------------------------------------------------------------


def test_a_batch_has_the_chosen_rows_then_the_rejected_ones_and_images_of_each(
    load, pairs, tokenizer
):
    alone = datapipe.make_loader(pairs, image=ImageSpec(size=28), batch_size=3, shuffle=False)
    for start, (batch, images) in enumerate(
        zip(load(shuffle=False, meta=META), alone, strict=True)
    ):
        if 3 * start + 3 > PAIRS:  # the last step is filled up
            continue
        for name, rows in expected(tokenizer, range(3 * start, 3 * start + 3)).items():
            assert torch.equal(batch[name], rows), name
        assert len(batch["key"]) == len(batch["valid"]) == 3
        assert torch.equal(batch["pixel_values"], images["pixel_values"].repeat(2, 1, 1, 1))
        assert batch["images_per_sample"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("image", "sizes"),
    [
        (ImageSpec.preset("qwen2-vl", max_pixels=4 * 28 * 28), "image_grid_thw"),
        (ImageSpec(**TILES), "image_sizes"),
        (ImageSpec(**TILES, pad_several=(127, 127, 127)), "batch_num_images"),
        (ImageSpec(resize="budget", tokens=4, patch=8, merge=2), "image_position_ids"),
    ],
    ids=["native", "tiles", "one_tile", "budget"],
)
def test_images_of_their_own_size_are_repeated_with_sizes_and_positions(load, image, sizes):
    batch = next(iter(load(image=image, spec={"image_tokens": None})))
    half = batch["pixel_values"].shape[0] // 2
    assert torch.equal(batch["pixel_values"][:half], batch["pixel_values"][half:])
    assert torch.equal(batch[sizes][:3], batch[sizes][3:])
    if sizes == "image_grid_thw":
        assert 2 * half == int(batch[sizes].prod(dim=1).sum())
        length = int((batch["input_ids"] == 3)[0].nonzero().max()) + 1
        positions = batch["position_ids"]
        assert positions.shape == (3, 6, batch["input_ids"].shape[1])
        assert torch.equal(positions[:, 0, :length], positions[:, 3, :length])


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "formatted"])
def test_every_layout_gives_the_same_pairs(layout, load, tmp_path):
    path = pack(tmp_path, [row(layout, number) for number in range(4)])
    # Where the place of an image is not marked, a line ends after it, as in LLaVA.
    marked = "<image>" in str(LAYOUTS[layout])
    options = {"batch_size": 4, "shuffle": False, "where": "width < 94"}
    ours, first = (next(iter(load(**given))) for given in ({**options, "path": path}, options))
    if marked:
        assert_same_batches([ours], [first])
    assert torch.equal(ours["pixel_values"], first["pixel_values"])
    assert torch.equal(ours["labels"][ours["labels"] >= 0], first["labels"][first["labels"] >= 0])


def test_pairs_of_text_alone_and_turns_before_the_prompt(load, tmp_path):
    before = [{"role": "system", "content": "Be kind."}, user("Hello"), assistant("Hi.")]
    rows = [
        {"prompt": [*before, user(q)], "chosen": [assistant(c)], "rejected": [assistant(r)]}
        for q, c, r in map(said, range(4))
    ]
    path = pack(tmp_path, rows)
    batch = next(iter(load(path=path, batch_size=4, shuffle=False, meta=("text",))))
    assert "pixel_values" not in batch
    assert batch["input_ids"].shape[0] == 8
    assert batch["text"][1].splitlines()[-2:] == [
        "chosen: It is a cat that sleeps.",
        "rejected: A dog, and it barks.",
    ]
    learnt = (batch["labels"] >= 0).long()
    # One run of labels up to the end of each row: what was said before is not learnt.
    assert (learnt.diff(dim=1) == 1).sum(dim=1).tolist() == [1] * 8
    assert torch.equal((learnt * batch["attention_mask"]).sum(1), learnt.sum(1))


# --- the plan ---------------------------------------------------------------------------------


def test_a_budget_of_tokens_and_labels_of_a_step_count_both_rows_of_a_pair(load):
    seen = []
    for batch in load(max_tokens=220, meta=META):
        assert batch["input_ids"].numel() <= 220
        seen += [k for k, valid in zip(batch["key"], batch["valid"], strict=True) if valid]
    assert len(seen) == len({*seen}) == PAIRS
    cut = {"max_length": 40, "overlong": "truncate"}
    for options in ({}, {"spec": cut}, {"buckets": 2}):
        for batch in load(meta=META, **options):
            assert int((batch["labels"] >= 0).sum()) == batch["num_items_in_batch"]


def test_long_answers_are_cut_dropped_refused_or_left_out_whichever_of_the_two_they_are(load):
    limit = 40

    def by_key(**options):
        loader = load(batch_size=1, meta=META, **options)
        return {batch["key"][0]: batch["input_ids"] for batch in loader}

    whole = by_key()
    fitting = {key for key, rows in whole.items() if rows.shape[1] <= limit}
    assert 0 < len(fitting) < PAIRS
    cut = by_key(spec={"max_length": limit, "overlong": "truncate"})
    assert cut.keys() == whole.keys()
    assert all(torch.equal(rows, whole[key][:, :limit]) for key, rows in cut.items())
    assert by_key(spec={"max_length": limit, "overlong": "drop"}).keys() == fitting
    assert by_key(where=f"tokens <= {limit}").keys() == fitting
    with pytest.raises(PlanError, match="do not fit"):
        load(spec={"max_length": limit})


def test_an_image_that_does_not_fit_goes_from_both_rows(load):
    cut = {"max_length": 8, "overlong": "truncate"}
    batch = next(iter(load(spec=cut, meta=META)))
    assert batch["images_per_sample"].tolist() == [0, 0, 0]
    assert "pixel_values" not in batch
    assert batch["input_ids"].shape[0] == 6


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2, "epochs": 2},
        rare({"max_tokens": 220, "buckets": 2}),
        rare({"batch_size": BatchSpec(3, pad_to=80)}),
    ],
    ids=str,
)
def test_pairs_resume_exactly(load, options):
    assert_resumes_exactly(lambda **ranks: load(meta=META, **options, **ranks), stops=(0.3,))


def test_a_cache_on_the_device_changes_no_batch(load):
    options = {"image": ImageSpec(size=28, normalize="clip"), "epochs": 2, "meta": META}
    cached = load(device="cpu", cache=CacheSpec(device=1 << 26), **options)
    for batch, other in zip(cached, load(**options), strict=True):
        pixels = batch.pop("pixel_values"), other.pop("pixel_values")
        torch.testing.assert_close(*pixels, rtol=0, atol=1e-6)
        assert_same_batches([batch], [other])


def test_arrays_without_tokens_give_the_same_pairs(load, pairs, tmp_path):
    datapipe.convert_dataset(pairs, tmp_path / "arrays", image=ImageSpec(size=28))
    assert_same_batches(load(path=tmp_path / "arrays"), load())


def test_mixtures_draw_from_several_datasets_of_pairs(load, pairs, tmp_path):
    other = pack(tmp_path, [row("RLAIF-V", number) for number in range(4)])
    drawn = list(load(path=[pairs, other], batch_size=5, meta=("dataset",)))
    assert all(len(batch["input_ids"]) == 2 * len(batch["dataset"]) for batch in drawn)
    assert len({name for batch in drawn for name in batch["dataset"]}) == 2


def test_a_skipped_pair_is_empty_in_both_rows(load, pairs, tmp_path):
    folder = shutil.copytree(pairs, tmp_path / "damaged")
    overwrite_image(folder, 0)
    batch = next(iter(load(path=folder, on_error="skip", shuffle=False, meta=META)))
    empty = batch["valid"].tolist().index(False)
    assert (batch["labels"][[empty, empty + 3]] == -100).all()
    assert int((batch["input_ids"] == 3).sum()) == TOKENS * len(batch["pixel_values"])
    assert (batch["pixel_values"][empty + 3] == 0).all()


# --- what is refused --------------------------------------------------------------------------


def test_pairs_need_to_be_asked_for_and_plain_samples_are_none(load, text, pairs, packed):
    with pytest.raises(PlanError, match=r"preference pair.*TextSpec\(pairs=True\)"):
        datapipe.make_loader(pairs, text=text(), batch_size=2)
    with pytest.raises(PlanError, match="no preference pair"):
        load(path=packed)
    datasets = {
        "preferences": {"path": str(pairs), "text": text(pairs=True)},
        "chats": {"path": str(packed), "text": text()},
    }
    with pytest.raises(PlanError, match="preferences and chats have pairs of answers"):
        datapipe.make_loader(datasets, image=ImageSpec(size=28), batch_size=2)


def test_the_captioner_does_not_train_on_rejected_answers(pairs):
    with pytest.raises(ValueError, match=r"preference pairs.* pack with --map"):
        train(pairs, steps=1, batch_size=2, save=None)


def test_a_mapped_pair_still_trains_on_the_better_answer(load, text, tmp_path):
    rows = [row("RLAIF-V", number) for number in range(4)]
    path = pack(tmp_path, rows, map="image=image,user=question,assistant=chosen")
    plain = next(iter(datapipe.make_loader(path, text=text(), batch_size=4, shuffle=False)))
    both = next(iter(load(path=path, batch_size=4, shuffle=False)))
    kept = plain["attention_mask"].bool()
    assert torch.equal(plain["input_ids"][kept], both["input_ids"][:4, : kept.shape[1]][kept])


def test_a_pair_without_a_prompt_or_an_answer_that_is_learnt_is_a_reject(tmp_path):
    rows = [row("one message", number) for number in range(7)]
    rows[1]["prompt"][0]["content"] = None
    rows[2]["rejected"]["content"] = " "
    rows[3]["chosen"]["weight"] = 0
    rows[4]["rejected"]["weight"] = 0
    (tmp_path / "raw").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "raw" / "data.parquet")
    report = datapipe.pack_dataset(tmp_path / "raw", tmp_path / "out", max_rejects=4)
    reasons = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert report.samples == 3
    assert "the pair has no prompt" in reasons[0]
    assert "the `rejected` answer of the pair is empty" in reasons[1]
    assert "the `chosen` answer of the pair is marked as not learnt" in reasons[2]
    assert "the `rejected` answer of the pair is marked as not learnt" in reasons[3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pack": 400}, r"pack=400 with TextSpec\(pairs=True\)"),
        ({"batch_size": BatchSpec(2, pad_to=64, sample_images=1)}, "sample_images"),
        ({"max_tokens": 1}, "max_tokens=1"),
    ],
    ids=str,
)
def test_options_for_one_row_a_sample_are_refused(load, options, words):
    with pytest.raises(PlanError, match=words):
        load(**{"batch_size": None, **options})


def test_specs_and_arrays_of_one_text_are_refused(text, pairs, tmp_path):
    with pytest.raises(PlanError, match="template='caption' writes none"):
        text(pairs=True, template="caption")
    with pytest.raises(PlanError, match="prompts=True leaves answers out"):
        text(pairs=True, prompts=True)
    with pytest.raises(PlanError, match="arrays hold one text a sample"):
        datapipe.convert_dataset(
            pairs, tmp_path / "a", image=ImageSpec(size=28), text=text(pairs=True)
        )
