import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.plan.lengths import planned
from datapipe.plan.ragged import edges
from datapipe.text.encode import EncodedText
from datapipe.text.frames import Frames
from datapipe.text.truncate import IGNORE, expand

IMAGE = 9


def text(tokens, image_at, trained=None):
    return EncodedText(
        np.arange(100, 100 + tokens, dtype=np.int32),
        np.array(image_at, np.int32),
        np.array(trained if trained is not None else [True] * tokens, np.bool_),
    )


def images_of(counts):
    """Images of so many tokens."""
    return [np.full(count, IMAGE, np.int64) for count in counts]


WRAPS = st.sampled_from([(0, 0), (1, 1), (2, 1), (0, 2)])


@st.composite
def media_of_a_text(draw):
    """A text, the tokens of its images, and how many of these each still (0) or video has."""
    tokens = draw(st.integers(0, 12))
    media = draw(st.lists(st.integers(0, 4), max_size=4))
    images = sum(max(count, 1) for count in media)
    places = sorted(draw(st.lists(st.integers(0, tokens), min_size=images, max_size=images)))
    trained = draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens))
    counts = []
    for count in media:  # frames in front of the last of a patch have no tokens
        counts += [draw(st.integers(0, 5)) for _ in range(count - 1)] + [draw(st.integers(1, 5))]
    return text(tokens, places, trained), counts, media


def frames_of(media):
    counts = [count for count in media for _ in range(max(count, 1))]
    numbers = [number for count in media for number in range(max(count, 1))]
    return Frames(np.array(counts, np.int64), np.array(numbers, np.int64))


@settings(deadline=None, max_examples=200)
@given(
    samples=st.lists(media_of_a_text(), max_size=6),
    limit=st.one_of(st.none(), st.integers(1, 40)),
    wrap=WRAPS,
    around=WRAPS,
)
def test_a_cut_keeps_whole_images_and_videos_and_is_as_long_as_planned(
    samples, limit, wrap, around
):
    def edges_of_rows(rows):
        """Edges of the rows of the samples, and of a text behind them that cannot be used."""
        return edges(np.array([*map(len, rows), 0], np.int64))

    edges_of = [np.diff(np.pad(encoded.trained.astype(int), 1)) for encoded, _, _ in samples]
    spans = [np.flatnonzero(changes).reshape(-1, 2) for changes in edges_of]
    lengths = planned(
        np.array([*(len(encoded.tokens) for encoded, _, _ in samples), -1], np.int32),
        image_at=np.array([at for encoded, _, _ in samples for at in encoded.image_at], np.int32),
        image_counts=np.array([count for _, counts, _ in samples for count in counts], np.int64),
        image_offsets=edges_of_rows([counts for _, counts, _ in samples]),
        label_start=np.array([start for span in spans for start, _ in span], np.int32),
        label_stop=np.array([stop for span in spans for _, stop in span], np.int32),
        label_offsets=edges_of_rows(spans),
        limit=limit,
        wrap=wrap,
        frames=frames_of([count for _, _, media in samples for count in media]),
        video_wrap=around,
    )
    assert (lengths.tokens[-1], lengths.labels[-1]) == (-1, 0)
    for row, (encoded, counts, media) in enumerate(samples):
        cut = expand(encoded, images_of(counts), limit, wrap, frames_of(media), around)
        whole = expand(encoded, images_of(counts))
        total, kept = len(whole.input_ids), len(cut.input_ids)
        expected = encoded.tokens.tolist()
        for at, count in reversed([*zip(encoded.image_at, counts, strict=True)]):
            expected[at:at] = [IMAGE] * count
        assert whole.input_ids.tolist() == expected
        first, ends = 0, []
        for count in media:
            last = first + max(count, 1)
            before, after = around if count else wrap
            stop = int(whole.image_at[last - 1]) + counts[last - 1] + after
            ends.append((max(int(whole.image_at[first]) - before, 0), min(stop, total), last))
            first = last
        allowed = [
            end
            for end in range(min(limit or total, total) + 1)
            if end == total or not any(start < end < stop for start, stop, _ in ends)
        ]
        assert kept == max(allowed) == lengths.tokens[row]
        assert cut.input_ids.tolist() == whole.input_ids[:kept].tolist()
        assert cut.labels.tolist() == whole.labels[:kept].tolist()
        assert cut.images == lengths.images[row]
        assert cut.images == max((last for _, stop, last in ends if stop <= kept), default=0)
        assert lengths.labels[row] == np.count_nonzero(cut.labels != IGNORE)
        assert lengths.image_tokens[row] == np.count_nonzero(cut.input_ids == IMAGE)


def test_images_without_tokens_are_refused():
    with pytest.raises(PlanError, match="tokens of 1 images for a text with places for 2"):
        expand(text(3, [0, 1]), images_of([4]))
