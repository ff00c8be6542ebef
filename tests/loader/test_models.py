"""Models of Hugging Face take batches as they are: a tiny LLaVA."""

from copy import deepcopy

import pytest
import torch

import datapipe
from examples.huggingface_models import FAMILIES, make_tiny

from ..models.losses import loss_of
from .pair_rows import pack, row

pytest.importorskip("transformers")

IMAGE, IMAGE_TOKENS = FAMILIES["llava"].image, FAMILIES["llava"].image_tokens


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def model(request, tokenizer):
    """In float64, so that losses can be compared to many digits."""
    made, _ = make_tiny("llava", tokenizer, request.param)
    torch.manual_seed(0)
    for parameter in made.parameters():
        if parameter.ndim > 1:  # weights as small as by default hide what attends to what
            torch.nn.init.normal_(parameter, std=0.2)
    return made.double().eval()


def test_a_batch_with_an_empty_slot_is_taken(model, damaged, text):
    spec = text(image_tokens=IMAGE_TOKENS)
    loader = datapipe.make_loader(
        damaged, text=spec, image=IMAGE, pack=200, on_error="skip", num_workers=0
    )
    assert all(loss_of(model, batch) > 0 for batch in loader)
    assert loader.skipped > 0


def answers_of(model, batch):
    """The log-probability of the answer in each row."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        found = model(pixel_values=batch["pixel_values"].double(), **inputs).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    picked = found.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (picked * (labels >= 0)).sum(1)


def test_both_answers_of_a_pair_are_as_likely_in_a_batch_as_alone(model, text, tmp_path):
    path = pack(tmp_path, [row("formatted", number) for number in range(6)])
    spec = text(image_tokens=IMAGE_TOKENS, pairs=True)
    options = {"image": IMAGE, "text": spec, "shuffle": False, "num_workers": 0}
    alone = [
        answers_of(model, batch) for batch in datapipe.make_loader(path, batch_size=1, **options)
    ]
    for start, batch in enumerate(datapipe.make_loader(path, batch_size=3, **options)):
        chosen, rejected = answers_of(model, batch).chunk(2)
        expected = torch.stack(alone[3 * start : 3 * start + 3], dim=1)
        torch.testing.assert_close(torch.stack([chosen, rejected]), expected, rtol=1e-6, atol=0)


def test_prompts_are_answered_in_a_batch_as_alone(model, make, text):
    model = deepcopy(model).float()  # eager attention masks in float32

    def answer(batch):
        options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "use_cache": True}
        found = model.generate(**batch, **options)
        return found[:, batch["input_ids"].shape[1] :].tolist()

    spec = text(image_tokens=IMAGE_TOKENS, prompts=True)
    options = {"image": IMAGE, "text": spec, "shuffle": False, "where": "images > 0"}
    alone = [answer(batch)[0] for batch in make(batch_size=1, **options)]
    together = [row for batch in make(batch_size=5, **options) for row in answer(batch)]
    assert together[: len(alone)] == alone
