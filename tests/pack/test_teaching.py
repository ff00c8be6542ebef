"""Training's view of a pack: counts of a report, its warnings, and samples written out."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from datapipe import TextSpec, make_loader, pack_dataset


def chat(*turns, **more):
    messages = [{"role": role, "content": text} for role, text in turns]
    return {"messages": messages, **more}


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_report_counts_what_is_learnt_and_shows_three_samples(lines, tmp_path, dry_run):
    path = lines(
        chat(
            ("system", "Be kind."),
            ("user", "<ImageHere>What\nis it?"),
            ("assistant", "A."),
            images=["a.jpg"],
        ),
        chat(("user", "1+1?"), ("assistant", "2"), ("user", "2+2?"), ("assistant", "4")),
        chat(("user", "<image><image>What?"), images=["a.jpg", "a.jpg"]),
        chat(("user", "<image>What?"), ("assistant", "A."), images="a.jpg"),
    )
    report = pack_dataset(path, tmp_path / "out", dry_run=dry_run)
    assert report.teaching.rows() == {
        "with text": "4",
        "with labels": "3",
        "text only": "1",
        "images without text": "0",
        "turns": "system 1, user 5, assistant 4",
        "images a sample": "0: 1, 1: 2, 2: 1",
    }
    (warning,) = report.teaching.warnings()
    assert warning.startswith("1 of 4 samples have text, but nothing of it is learnt")
    first, _, third = report.shown
    assert first.lines() == [
        "data.jsonl#0: 1 image",
        "    system     Be kind.",
        "    user       <image>What / is it?",
        "  * assistant  A.",
    ]
    assert third.lines()[-1] == "    (nothing is learnt from this sample)"


@pytest.mark.parametrize(
    ("caption", "said"),
    [
        ("[/EN#1/people Two men] play .", "marks of phrases"),
        ("<PERSON> at the beach", "`<PERSON>` for names"),
        ("<s> a cat </s>", "special tokens"),
        ("a cat <|endoftext|>", "special tokens"),
        ("Cats &amp; dogs", "HTML"),
        ('A <a href="x">cat</a>', "HTML"),
        ("A cat<br/>and a dog", "HTML"),
        ("1 < 2 & 3 > 2, a [red] cat, x<y>z, R&D; C<T>", ""),
    ],
)
def test_markup_in_captions_is_warned_of(lines, caption, said):
    report = pack_dataset(lines({"image": "a.jpg", "caption": caption}), dry_run=True)
    warnings = report.teaching.warnings()
    assert len(warnings) == bool(said)
    assert all(w.startswith("1 of 1 captions have ") and said in w for w in warnings)


ROWS = (
    chat(("user", "What?"), ("assistant", "A cat."), images=["a.jpg"]),
    chat(("user", "Which?"), ("assistant", "Both."), images=["a.jpg", "a.jpg"]),
    chat(
        ("system", "Be brief."), ("user", "Is <image> it?"), ("assistant", "Yes."), images="a.jpg"
    ),
    chat(("system", "Be brief."), ("user", "<image>\nWhat?"), ("assistant", "A"), images="a.jpg"),
    chat(("assistant", "A cat."), images=["a.jpg"]),
    chat(("user", "1+1?"), ("assistant", "2")),
)
CAPTIONS = ("A cat.", "Before. <image> After.", "<image>\nA caption.", "  Blanks around. \n")
TOKENIZER = Path(__file__).parents[1] / "golden" / "data" / "tokenizer.json"


@pytest.mark.parametrize("given", [*ROWS, *CAPTIONS], ids=str)
def test_samples_are_written_out_as_chat_templates_get_them(tmp_path, put, given):
    name = "a.txt" if isinstance(given, str) else "data.jsonl"
    raw = put(tmp_path / "raw", {"a.jpg": 0, name: given})
    given_path = raw if isinstance(given, str) else raw / name
    (shown,) = pack_dataset(given_path, tmp_path / "out").shown
    text = TextSpec(tokenizer=TOKENIZER, template="chatml", image_tokens=1)
    (batch,) = make_loader(tmp_path / "out", text=text, batch_size=1, num_workers=0)
    decoded = Tokenizer.from_file(str(TOKENIZER)).decode(
        batch["input_ids"][0].tolist(), skip_special_tokens=False
    )
    assert decoded == "".join(
        f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said, _ in shown.turns
    )
