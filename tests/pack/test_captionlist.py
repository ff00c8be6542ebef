"""Lists of captions as text: every caption becomes a sample, every line that is none is named."""

import json

import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers.caption_list import READER

from .cases import record_cases, values
from .reading import choose_reader, estimate, read_all, recognises

NAMES = ["1000268201_693b08cb0e.jpg", "1001773457_577c3a7d70.jpg", "1007320043_627395c3d8.jpg"]
TOKENS = (
    f"{NAMES[0]}#0\tA child in a pink dress is climbing up a set of stairs .\n"
    f"{NAMES[0]}#1\tA girl going into a wooden building .\n"
    f"{NAMES[1]}#0\tA black dog and a spotted dog are fighting\n"
    f"{NAMES[2]}#0\tA child playing on a rope net .\n"
)

EXPERTS = f"{NAMES[0]}\t{NAMES[1]}#2\t1\t1\t1\n{NAMES[0]}\t{NAMES[2]}#2\t1\t1\t2\n"


@pytest.fixture
def make_list(tmp_path, put):
    """Writes a list of captions, and images to a folder below."""

    def make(content, name="captions.txt", folder="Images"):
        images = {f"{folder}/{image}": number for number, image in enumerate(NAMES)}
        return put(tmp_path / "raw", images | {name: content})

    return make


def named(text):
    for number, name in enumerate(NAMES):
        text = text.replace(f"NAME{number}", name)
    return text


def pairs(raw, **options):
    """(name of the image, caption) of each sample, and the rejects."""
    taken = list(read_all(READER, raw, ReadOptions(**options)))
    samples = [t for t in taken if isinstance(t, RawSample)]
    return (
        [(sample.images[0].blob.name, sample.caption) for sample in samples],
        [(t.source, t.reason) for t in taken if isinstance(t, Reject)],
    )


def test_flickr8k_as_it_unpacks_is_packed_with_every_caption(tmp_path, make_list, members, jpeg):
    raw = make_list(TOKENS, "Flickr8k_text/Flickr8k.token.txt", "Flicker8k_Dataset")
    beside = raw / "Flickr8k_text"
    (beside / "Flickr8k.lemma.token.txt").write_text(TOKENS.replace(" is ", " be "))
    (beside / "ExpertAnnotations.txt").write_text(EXPERTS)
    (beside / "Flickr_8k.trainImages.txt").write_text("\n".join(NAMES))
    (beside / "readme.txt").write_text("If you use this corpus, please cite: M. Hodosh.\n")
    assert choose_reader(raw).name == "captionlist"
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.images, report.rejected, report.left_out) == (4, 4, 0, 4)
    assert "Flickr8k_text/Flickr8k.lemma.token.txt" in "\n".join(report.notes)
    packed = list(members(tmp_path / "out").values())
    assert packed[0]["txt"] == b"A child in a pink dress is climbing up a set of stairs ."
    assert packed[1] == {"jpg": jpeg(0), "txt": b"A girl going into a wooden building ."}
    assert packed[3] == {"jpg": jpeg(2), "txt": b"A child playing on a rope net ."}


def test_flickr8k_of_kaggle_is_csv_under_another_name(make_list):
    raw = make_list(
        f"image,caption\n{NAMES[1]},A black dog\n"
        f'{NAMES[0]},"A girl , in pink , says ""hi"" ."\n'
        f"{NAMES[0]},A man , without marks of quotation\n"
        f'{NAMES[2]},A sign says "stop\n'
        f'{NAMES[1]},"Two\nlines"\n'
    )
    assert choose_reader(raw) is READER
    assert pairs(raw) == (
        [
            (NAMES[1], "A black dog"),
            (NAMES[1], "Two\nlines"),
            (NAMES[0], 'A girl , in pink , says "hi" .'),
            (NAMES[0], "A man , without marks of quotation"),
            (NAMES[2], 'A sign says "stop'),
        ],
        [],
    )


@pytest.mark.parametrize("second", ['"Two more', 'Two "more'])
def test_a_quotation_mark_that_nothing_closes_takes_no_other_line(make_list, second):
    raw = make_list(f'{NAMES[0]},"One\n{NAMES[1]},{second}\n{NAMES[2]},And a third\n')
    taken = [(NAMES[0], '"One'), (NAMES[1], second), (NAMES[2], "And a third")]
    assert pairs(raw) == (taken, [])


def test_flickr30k_of_kaggle_is_parted_by_bars_and_its_broken_line_is_named(make_list):
    raw = make_list(
        "image_name| comment_number| comment\n"
        f'{NAMES[0]}| 0| Two young , White males say "hello .\n'
        f"{NAMES[0]}| 1| Two friends enjoy time spent together .\n"
        f"{NAMES[1]}| 4   A dog runs across the grass .\n"
        f"{NAMES[2]}| 0| \n",
        "flickr30k_images/results.csv",
        "flickr30k_images/flickr30k_images",
    )
    assert choose_reader(raw) is READER
    assert pairs(raw) == (
        [
            (NAMES[0], 'Two young , White males say "hello .'),
            (NAMES[0], "Two friends enjoy time spent together ."),
        ],
        [("results.csv:4", "line has 2 of 3 fields"), ("results.csv:5", "line has no caption")],
    )


@pytest.mark.parametrize(("name", "content"), record_cases("lists of captions"))
def test_lists_are_written_in_many_ways(make_list, name, content):
    raw = make_list(named(json.loads(content)), name)
    for given in (raw, raw / name):
        assert choose_reader(given) is READER
        assert pairs(given) == ([(NAMES[0], "A dog runs"), (NAMES[1], "A cat sits")], [])
    assert all(s.images[0].blob.read() for s in read_all(READER, raw))


def test_captions_without_blanks_are_captions_too(make_list):
    raw = make_list(f"{NAMES[0]}\t简单可依赖\n{NAMES[1]}\tfusionopolis\n", "rec_gt_train.txt")
    assert [caption for _, caption in pairs(raw)[0]] == ["简单可依赖", "fusionopolis"]


def test_lines_of_an_image_need_not_follow_each_other(make_list):
    lines = [f"{name}#{number}\tcaption {number} of it\n" for number in range(3) for name in NAMES]
    raw = make_list("".join(lines))
    assert estimate(READER, raw) == 9
    expected = [(name, f"caption {number} of it") for name in NAMES for number in range(3)]
    assert pairs(raw)[0] == expected
    assert pairs(raw, captions="first")[0] == [(name, "caption 0 of it") for name in NAMES]
    keys = [sample.key for sample in read_all(READER, raw, ReadOptions(key_from="image"))]
    assert keys == [name for name, _ in expected]


def test_a_line_that_is_no_text_and_an_image_that_is_missing_cost_themselves(
    tmp_path, make_list, rejects
):
    raw = make_list(TOKENS.encode() + b"x.jpg#0\t\xff\xfe\n" + b"gone.jpg#0\tA ghost\n")
    report = pack_dataset(raw, tmp_path / "out", max_rejects=2)
    assert (report.samples, report.rejected) == (4, 2)
    assert [(r["source"], r["reason"]) for r in rejects(tmp_path / "out")] == [
        ("captions.txt#gone.jpg", "file is missing"),
        ("captions.txt:5", "line is not UTF-8 at byte 8"),
    ]


@pytest.mark.parametrize(
    "content", [*values("texts that list no captions"), TOKENS.encode("utf-16")]
)
def test_lists_of_names_labels_and_scores_are_no_captions(make_list, content):
    raw = make_list(named(content) if isinstance(content, str) else content, "list.txt")
    assert not recognises(READER, raw)
    with pytest.raises(PackError, match=r"no text file here lists captions"):
        pairs(raw)


def test_texts_beside_the_images_are_what_is_meant(make_list):
    raw = make_list(TOKENS, "all.txt")
    (raw / "Images" / NAMES[0]).with_suffix(".txt").write_text("A dog")
    assert not recognises(READER, raw)


def test_several_lists_are_not_mixed(make_list):
    make_list(TOKENS, "train_captions.txt")
    raw = make_list(TOKENS, "val_captions.txt")
    with pytest.raises(
        PackError, match=r"several files of captions as lines .*train_.*val_.*--include"
    ):
        pairs(raw)
    assert len(pairs(raw, include="val*")[0]) == 4
