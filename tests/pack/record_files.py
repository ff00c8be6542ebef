"""Files of records as their usual writers make them."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.streams.record_files import open_records


def fits(record):
    return "a" in record


def open_(raw, **options):
    return open_records(Survey(raw), ReadOptions(**options), fits, "`a`")


def write_csv(path, rows, delimiter=",", **how):
    with path.open("w", newline="", **how) as file:
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffixes[-1]:
        case ".json":
            path.write_text(json.dumps(rows, indent=1), "utf-8")
        case ".csv":
            write_csv(path, rows, encoding="utf-8-sig")  # as Excel writes it
        case ".tsv":
            write_csv(path, rows, "\t", encoding="utf-8")
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case ".gz":
            path.write_bytes(gzip.compress(as_lines(rows).encode()))
        case _:
            path.write_text(as_lines(rows), "utf-8")
    return path


def as_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
