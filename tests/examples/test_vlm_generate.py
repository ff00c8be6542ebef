"""Texts that a model writes, with a cache of keys and values as without one."""

from pathlib import Path

import pytest
import torch

from examples.vlm import generate as program
from examples.vlm.checkpoint import save
from examples.vlm.model.attention import Table, attend
from examples.vlm.model.inputs import make_inputs
from examples.vlm.model.sampling import Prompts, generate, logits_of

from .test_vlm_model import FIXED, FORMS, KERNELS, WORDS, doubled, load, make_model
from .vlm_runs import PACKED, fit

STEPS = 12
TABLE = Path("benchmarks/results/attention-cpu.json")


def batch_of(shards, form=FIXED, **options):
    return doubled(next(iter(load(shards, form, shuffle=False, **options))))


@torch.no_grad()
def prompts_of(model, texts):
    ids = torch.tensor([token for text in texts for token in text])
    return Prompts(model.embedding(ids), list(map(len, texts)))


@torch.no_grad()
def logits(model, prompts, tokens, cached):
    """Logits of every step, with given tokens."""
    model.eval()
    steps = logits_of(model, prompts, len(tokens), cached=cached)
    return torch.stack([next(steps), *(steps.send(token) for token in tokens)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [*KERNELS, "table"])
@pytest.mark.parametrize("options", [{"batch_size": 5}, {"pack": 400}], ids=str)
def test_a_cache_changes_no_token_and_no_logit(shards, form, kernel, options):
    model = make_model(Table.read([TABLE]) if kernel == "table" else kernel)
    batch = batch_of(shards, FORMS[form], **options)
    prompts = Prompts.of_batch(model, batch)
    assert len(prompts.lengths) == len(batch["key"]) > 2
    with_cache, without = (
        generate(model, prompts, max_new_tokens=STEPS, cached=cached) for cached in (True, False)
    )
    assert with_cache == without
    assert all(len(text) == STEPS for text in without)
    assert len(set(map(tuple, without))) > 1
    drawn = list(torch.randint(5, WORDS.size, (STEPS, len(prompts.lengths))))
    wanted = logits(model, prompts, drawn, cached=False)
    got = logits(model, prompts, drawn, cached=True)
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_logits_are_those_that_training_has_its_losses_of(shards):
    """The loss of a label behind the prompt is that of the token that would be drawn there."""
    model = make_model("split")
    prompts = Prompts.of_batch(model, batch_of(shards, batch_size=3))
    drawn = -logits(model, prompts, [], cached=True)[0].log_softmax(-1)
    alone = load(shards, FIXED, batch_size=1, shuffle=False)
    for found, length, batch in zip(drawn, prompts.lengths, alone, strict=False):
        given = doubled(batch)
        start = int((given["labels"][0] != -100).nonzero()[0])
        assert length == start
        for token in (5, 70, 200):
            longer = given["input_ids"][:, : start + 1].clone()
            longer[0, -1] = token
            labels = torch.full_like(longer, -100)
            labels[0, -1] = token
            with torch.no_grad():
                changed = given | {"input_ids": longer, "labels": labels}
                loss = model(make_inputs(changed, model.config, "split")).sum()
            torch.testing.assert_close(found[token], loss, rtol=1e-9, atol=1e-9)


def test_no_token_of_an_image_is_written():
    model = make_model("split")
    prompts = prompts_of(model, [[5, 6, 7]])
    free = generate(model, prompts, max_new_tokens=STEPS)
    model.image_id = free[0][0]
    assert free[0][0] not in generate(model, prompts, max_new_tokens=STEPS)[0]


def test_texts_end_at_a_token_of_stop_and_others_go_on(shards):
    model, before = make_model("split").train(), torch.get_rng_state()
    prompts = Prompts.of_batch(model, batch_of(shards, batch_size=4))
    free = generate(model, prompts, max_new_tokens=STEPS)
    stop = free[0][3]
    ended = generate(model, prompts, max_new_tokens=STEPS, stop=[stop])
    assert ended == [text[: text.index(stop)] if stop in text else text for text in free]
    everything = generate(model, prompts, max_new_tokens=STEPS, stop=range(WORDS.size))
    assert everything == [[]] * 4
    # The model is left as it was.
    assert model.training
    assert all(block.attention.attend is attend for block in model.language.blocks)
    assert torch.equal(torch.get_rng_state(), before)


def test_drawn_tokens_are_among_the_likeliest_and_repeat_with_the_seed():
    model = make_model("split")
    prompts = prompts_of(model, [[5, 6, 7], [8, 9]])
    scores = logits(model, prompts, [], cached=True)[0]
    scores[:, WORDS.image_id] = -torch.inf
    likeliest = [set(row.topk(4).indices.tolist()) for row in scores]

    def draw(seed, **options):
        random = torch.Generator().manual_seed(seed)
        return generate(model, prompts, random=random, **options)

    drawn = [draw(seed, max_new_tokens=1, temperature=5.0, top_k=4) for seed in range(60)]
    for number in range(2):
        assert {text[number][0] for text in drawn} == likeliest[number]
    free = {draw(seed, max_new_tokens=1, temperature=5.0)[0][0] for seed in range(60)}
    assert len(free) > 10
    once, again = (draw(3, max_new_tokens=STEPS, temperature=1.0) for _ in range(2))
    assert once == again
    cold = draw(3, max_new_tokens=STEPS, temperature=1e-6)
    assert cold == generate(model, prompts, max_new_tokens=STEPS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_new_tokens": 0}, "give 1, 0 and 0, or more"),
        ({"max_new_tokens": 1, "temperature": -1.0}, "give 1, 0 and 0, or more"),
        ({"max_new_tokens": 1, "top_k": 3}, "top_k=3 does nothing with temperature=0"),
    ],
)
def test_options_out_of_range_are_refused(options, reason):
    model = make_model("split")
    with pytest.raises(ValueError, match=reason):
        generate(model, prompts_of(model, [[1, 2]]), **options)
    with pytest.raises(ValueError, match="a prompt is empty"):
        generate(model, prompts_of(model, [[1], []]), max_new_tokens=1)


@pytest.mark.usefixtures("small_model")
def test_a_run_and_its_checkpoints_of_one_rank_and_of_many_write_the_same(
    shards, tmp_path, runs, capfd
):
    """After 60 steps on a few samples, the model writes the answers that it was taught."""
    file, answers = tmp_path / "run.pt", ("--generate", 3, "--new-tokens", 6)
    fit(shards, *PACKED, "--steps", 60, "--lr", 1e-2, "--lr-steps", 60, "--save", file, *answers)
    written = capfd.readouterr().out
    assert written.count("model:  'It is") == 3
    assert "taught: 'It is 1. Indeed." in written
    save(tmp_path / "folder", runs[0], sharded=True)
    for checkpoint in (file, tmp_path / "folder"):
        program.main([str(checkpoint), str(shards), *map(str, answers), "--device", "cpu"])
        assert capfd.readouterr().out == written
    with pytest.raises(SystemExit, match=r"generate: nowhere.pt: there is no checkpoint"):
        program.main(["nowhere.pt", str(shards), "--device", "cpu"])


def test_the_command_lists_its_own_options_alone(capfd):
    with pytest.raises(SystemExit):
        program.main(["--help"])
    listed = capfd.readouterr().out
    wanted = ("CHECKPOINT", "--tokenizer", "--native", "--max-length", "--new-tokens", "--top-k")
    assert all(option in listed for option in wanted)
    assert "--steps" not in listed
    with pytest.raises(SystemExit):
        program.main(["run.pt", "shards", "--steps", "3"])
    assert "unrecognized arguments: --steps" in capfd.readouterr().err
