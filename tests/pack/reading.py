"""Raw data read by one reader, as a pack reads it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datapipe.pack.input.raw_sample import Input, ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers import RawReading, Reader
from datapipe.pack.recognition.choose import choose_reading


def choose_reader(
    raw: Path, name: str | None = None, options: ReadOptions | None = None
) -> Reader[Any]:
    return choose_reading(Survey(raw), name, options).reader


def read_all(reader: Reader[Any], raw: Path, options: ReadOptions | None = None) -> Iterator[Input]:
    """Yield the inputs of raw data; the notes of `options` are told of them."""
    options = options or ReadOptions()
    reading = RawReading(survey=Survey(raw), reader=reader, options=options)
    yield from reading.inputs(options.notes, options.scratch)


def read(reader: Reader[Any], raw: Path, **options: Any) -> list[Input]:
    return list(read_all(reader, raw, ReadOptions(**options)))


def estimate(reader: Reader[Any], raw: Path, options: ReadOptions | None = None) -> int | None:
    options = options or ReadOptions()
    return RawReading(survey=Survey(raw), reader=reader, options=options).estimate()


def recognises(reader: Reader[Any], raw: Path) -> bool:
    return reader.recognises(Survey(raw), ReadOptions())
