"""Encoders are shared by threads and processes, and known by a digest."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

from tokenizers import Tokenizer

from datapipe.text.encode import SampleText, TextEncoder
from datapipe.text.spec import TextSpec

from .encoding import chat, encoded, make
from .families import QWEN2_5
from .small_tokenizers import small_tokenizer


def test_threads_share_an_encoder():
    encoder = make(QWEN2_5)
    samples = [chat(("user", f"{i} <|im_end|>"), ("assistant", str(i))) for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(lambda sample: encoded(encoder, sample).tokens.tolist(), samples))
    assert parallel == [encoded(encoder, sample).tokens.tolist() for sample in samples]


def test_an_encoder_survives_pickling():
    encoder = TextEncoder(
        TextSpec(tokenizer=small_tokenizer("byte-level"), template="chatml", image_token="<image>")
    )
    copy = pickle.loads(pickle.dumps(encoder))
    sample = SampleText("A cat.", None, 1)
    assert copy.digest == encoder.digest
    assert encoded(copy, sample).tokens.tolist() == encoded(encoder, sample).tokens.tolist()


def digest(tokenizer=None, **options):
    options.setdefault("template", "chatml")
    tokenizer = tokenizer if tokenizer is not None else small_tokenizer("byte-level")
    return TextEncoder(TextSpec(tokenizer=tokenizer, **options)).digest


def test_the_digest_follows_what_decides_the_tokens(tmp_path):
    base = digest()
    assert digest(image_tokens=64) == digest(max_length=9, overlong="drop") == base
    others = [
        digest(template="caption"),
        digest(template="llava"),
        digest(system="Be kind."),
        digest(image_token="<|image_pad|>"),
        digest(small_tokenizer("metaspace")),
    ]
    assert len({base, *others}) == len(others) + 1

    spec = json.loads(small_tokenizer("byte-level").to_str())
    spec["model"]["vocab"] = dict(reversed(spec["model"]["vocab"].items()))
    shuffled = tmp_path / "tokenizer.json"
    shuffled.write_text(json.dumps(dict(reversed(spec.items()))))
    assert digest(shuffled) == digest(str(shuffled)) == digest(tmp_path) == base

    cut = Tokenizer.from_str(small_tokenizer("byte-level").to_str())
    cut.enable_truncation(3)
    cut.enable_padding(length=512)
    given = cut.to_str()
    assert digest(cut) == base
    whole = encoded(TextEncoder(TextSpec(tokenizer=cut, template="chatml")), chat(("user", "Hm?")))
    assert len(whole.tokens) > 3
    assert cut.to_str() == given


def test_the_digest_of_a_template_file_is_that_of_its_text(tmp_path):
    (tmp_path / "chat.jinja").write_text(QWEN2_5)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": QWEN2_5}))
    assert digest(template=QWEN2_5) == digest(template=tmp_path / "chat.jinja")
    assert digest(template=QWEN2_5) == digest(template=str(tmp_path / "tokenizer_config.json"))
