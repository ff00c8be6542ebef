"""The DALI decoder as loops use it: batches, failures, memory, threads."""

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datapipe.decode.dali import decoder as dali_decoder
from datapipe.decode.dali import pipeline as dali_pipeline
from datapipe.decode.dali.graph import build, installed
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import Draw
from datapipe.errors import DatapipeError, DecodeError

from .fitted import by_kernels
from .image_kinds import exif

if not installed():
    pytest.skip("DALI is not installed", allow_module_level=True)

from datapipe.decode.dali.decoder import DaliDecoder

SPEC = ImageSpec(size=(24, 32))


@pytest.fixture(scope="module", params=[1, 3])
def shared(request):
    """A decoder that cuts batches into many."""
    spec, options = replace(SPEC, refuse_above=10_000), DaliOptions(pipelines=request.param)
    with closing(DaliDecoder(spec, batch_size=2, threads=3, options=options)) as decoder:
        yield decoder


@pytest.fixture
def make():
    """Makes decoders, which are closed behind the test."""
    with ExitStack() as made:

        def decoder(spec=SPEC, **options):
            decoder = DaliDecoder(spec, **{"batch_size": 8, "threads": 2} | options)
            made.callback(decoder.close)
            return decoder

        yield decoder


@pytest.fixture
def dirty():
    """Let torch fill new memory with ones and NaN, so that zeros are somebody's work."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def assert_near(pixels, expected, most=1.5):
    assert pixels.dtype == expected.dtype
    assert (pixels.float() - expected.float()).abs().mean() <= most


def unreadable(data):
    """A JPEG with every segment in place, whose Huffman table counts too many codes."""
    start = data.index(b"\xff\xc4") + 5
    return data[:start] + bytes([255] * 16) + data[start + 16 :]


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_images_stay_in_their_places_whoever_decodes_them_and_however_batches_are_cut(
    shared, encode, crop, jpeg, dirty, data
):
    made = {
        "jpeg": jpeg,
        "png": lambda n: encode(crop("coffee.png", (40 + n, 30), 60), "PNG"),
        "cut": lambda n: jpeg(n)[: 400 + n],
        "empty": lambda n: b"",
        "left out": lambda n: None,
        "too large": lambda n: encode(crop("coffee.png", (120, 90), 0)),
        "unreadable": lambda n: unreadable(jpeg(n)),
    }
    names = data.draw(st.lists(st.sampled_from(sorted(made)), max_size=12))
    images = [made[name](number) for number, name in enumerate(names)]
    pixels, errors = shared.decode(images)
    assert pixels.shape == (len(images), 3, 24, 32)
    fine = ("jpeg", "png", "left out")
    assert list(errors) == [n for n, name in enumerate(names) if name not in fine]
    for number, image in enumerate(images):
        if image is None or number in errors:
            assert not pixels[number].any()
        else:
            assert_near(pixels[number], by_kernels(image, SPEC))
        if number in errors:
            with pytest.raises(DecodeError) as caught:
                by_kernels(image, shared.spec)
            assert errors[number].reason == caught.value.reason


def test_damage_is_found_where_it_is_looked_for_and_is_zero_whatever_the_padding_is(
    make, encode, crop, jpeg, dirty
):
    spec = ImageSpec(size=8, resize="pad", normalize="clip", fill=(255, 0, 90))
    decoder, whole = make(spec, check=True), encode(crop("coffee.png", (96, 80), 0))
    for bad, reason in (
        (b"", "empty"),
        (jpeg(1)[:500], "JPEG"),
        (unreadable(jpeg(1)), "JPEG is damaged"),
        (whole[: len(whole) * 2 // 3] + b"\xff\xd9", "premature end of data segment"),
    ):
        pixels, errors = decoder.decode([jpeg(0), bad, jpeg(2)])
        assert list(errors) == [1]
        assert reason in errors[1].reason
        assert not pixels[1].any()
        assert pixels[0].all()
        assert_near(pixels[2], by_kernels(jpeg(2), spec), most=0.03)


def test_an_image_that_dali_refuses_is_isolated_and_the_pipeline_goes_on(make, jpeg, caplog):
    decoder = make()
    images = [jpeg(0), unreadable(jpeg(1)), jpeg(2)]
    with caplog.at_level(logging.WARNING, "datapipe"):
        for _ in range(3):
            pixels, errors = decoder.decode(images)
            assert list(errors) == [1]
            assert "JPEG is damaged" in errors[1].reason
            assert not pixels[1].any()
            assert_near(pixels[2], by_kernels(images[2], SPEC), most=0)
            after, errors = decoder.decode([jpeg(3), jpeg(4)])
            assert not errors
            assert_near(after[0], by_kernels(jpeg(3), SPEC))
            assert_near(after[1], by_kernels(jpeg(4), SPEC))
        # What was cut off is seen before, and does not cost DALI its batch.
        assert list(decoder.decode([jpeg(0), jpeg(1)[:-2], jpeg(2)[:500]])[1]) == [1, 2]
    (told,) = caplog.records
    assert "DALI refused a batch" in told.message
    assert "1 of its 3 images are damaged" in told.message


def test_batches_that_are_kept_do_not_change(jpeg):
    decoder = DaliDecoder(SPEC, batch_size=4, threads=2)
    rng, kept = Random(0), []
    for _ in range(60):
        images = [jpeg(rng.randrange(40)) for _ in range(rng.randrange(1, 5))]
        pixels, _ = decoder.decode(images)
        kept.append((pixels, pixels.clone(), images))
    first, _ = decoder.decode(images)
    first.zero_()  # batches may be written to
    assert decoder.decode(images)[0].any()
    assert not first.any()
    decoder.close()
    del decoder
    for pixels, copy, images in kept:
        assert torch.equal(pixels, copy)
        assert_near(pixels[-1], by_kernels(images[-1], SPEC))
    assert len({pixels.data_ptr() for pixels, _, _ in kept}) == len(kept)


def test_threads_get_their_own_batches(make, encode, crop, jpeg):
    decoder = make()

    def work(number):
        images = [jpeg(number), encode(crop("coffee.png", (40 + number, 30), 60), "PNG")]
        if number % 5 == 0:
            images.append(unreadable(jpeg(number)))
        pixels, errors = decoder.decode(images)
        assert len(errors) == len(images) - 2
        return all(
            (pixels[n].float() - by_kernels(images[n], SPEC)).abs().mean() < 1.5 for n in (0, 1)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))


@pytest.mark.parametrize("resize", ["stretch", "crop"])
def test_random_parts_and_mirrors_are_those_of_the_cpu_kernels(make, encode, crop, resize):
    spec = ImageSpec(size=(24, 32), resize=resize, random_crop=(0.3, 1.0), flip=0.5)
    decoder = make(spec)
    image = encode(crop("coffee.png", (96, 80), 0), quality=95)
    draws = [None, *(Draw(key) for key in range(7))]
    pixels, errors = decoder.decode([image] * 8, draws)
    assert not errors
    assert {draw.mirrors(0.5) for draw in draws[1:]} == {True, False}
    for number, draw in enumerate(draws):
        assert_near(pixels[number], by_kernels(image, spec, draw))
    # A PNG goes another way, to the same place.
    others, _ = decoder.decode([encode(crop(), "PNG")] * 8, draws)
    assert torch.equal(others[3], by_kernels(encode(crop(), "PNG"), spec, draws[3]))


@pytest.fixture
def decoder_of(make, monkeypatch):
    """Makes a decoder of pipelines with these methods, which get that of DALI first."""

    def decoder(**methods):
        def built(*given):
            pipeline = build(*given)
            for name, method in methods.items():
                setattr(pipeline, name, partial(method, getattr(pipeline, name)))
            return pipeline

        monkeypatch.setattr(dali_pipeline, "build", built)
        return make()

    return decoder


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_batches_that_are_refused_though_whole_are_told_again(decoder_of, jpeg, caplog, error):
    def run(real):
        out = real()
        if len(out[0]) > 1:
            raise error("no memory")
        return out

    decoder = decoder_of(run=run)
    for _ in range(5):
        pixels, errors = decoder.decode([jpeg(0), jpeg(1)])
        assert not errors
        assert torch.equal(pixels[1], by_kernels(jpeg(1), SPEC))
    told = [record.message for record in caplog.records]
    assert len(told) == 3
    for number, message in zip((1, 2, 4), told, strict=True):
        assert f"without a damaged image (no memory), {number} so far" in message


def test_inputs_that_were_refused_do_not_meet_the_next_batch(decoder_of, jpeg, caplog):
    refused = []

    def feed_input(real, name, data):
        if name == "windows" and not refused:
            refused.append(name)
            raise ValueError("no windows today")
        real(name, data)

    decoder = decoder_of(feed_input=feed_input)
    for number in range(3):
        pixels, errors = decoder.decode([jpeg(number), jpeg(number + 1)])
        assert not errors
        assert_near(pixels[0], by_kernels(jpeg(number), SPEC))
    assert caplog.text.count("no windows today") == 1
    assert "built again" in caplog.text


def test_a_dali_that_fails_with_any_image_is_an_error(decoder_of, jpeg):
    def run(real):
        raise RuntimeError("Critical error in pipeline:\nencountered:\nout of memory")

    with pytest.raises(DatapipeError, match=r"fails with any image: out of memory; use decoder"):
        decoder_of(run=run).decode([jpeg(0)])


@pytest.mark.parametrize(("images_at_once", "expected"), [(2, [2, 2]), (0, [1, 1, 1, 1])])
def test_large_images_go_in_smaller_batches(
    decoder_of, encode, crop, monkeypatch, images_at_once, expected
):
    taken = []

    def run(real):
        out = real()
        taken.append(len(out[0]))
        return out

    images = [encode(crop(left=50 + number)) for number in range(4)]
    monkeypatch.setattr(dali_decoder, "MOST_PIXELS", images_at_once * 48 * 32 or 1)
    pixels, _ = decoder_of(run=run).decode(images)
    assert taken == expected
    assert_near(pixels[3], by_kernels(images[3], SPEC))


def test_a_closed_decoder_says_so(make, jpeg):
    decoder = make()
    decoder.close()
    decoder.close()
    for image in (jpeg(0), b""):
        with pytest.raises(DatapipeError, match="closed"):
            decoder.decode([image])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_a_gpu_shows_what_the_cpu_shows(make, encode, crop, jpeg, dtype):
    spec = ImageSpec(size=(24, 32), resize="pad", dtype=dtype)
    decoder = make(spec, device=torch.device("cuda", 0))
    turned = encode(crop(size=(120, 80)), exif=exif(6))
    images = [jpeg(0), encode(kind="PNG"), jpeg(1)[:500], unreadable(jpeg(2)), turned]
    most = 1.5 if dtype == torch.uint8 else 1.5 / 255
    for batch in (images, [images[0], images[1], images[4]]):
        pixels, errors = decoder.decode(batch)
        assert pixels.is_cuda
        for number, image in enumerate(batch):
            if number in errors:
                assert not pixels[number].any()
            else:
                assert_near(pixels[number].cpu(), by_kernels(image, spec), most)
