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


def write(path, rows, schema=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    each = [rows] if isinstance(rows, dict) else rows
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in each)
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(rows, indent=1), "utf-8")
        case ".csv" | ".tsv":
            # Excel begins CSV with a mark.
            delimiter, encoding = (",", "utf-8-sig") if path.suffix == ".csv" else ("\t", "utf-8")
            with path.open("w", newline="", encoding=encoding) as file:
                writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema), path)
        case ".gz":
            path.write_bytes(gzip.compress("".join(lines).encode()))
        case _:
            path.write_text("".join(lines), "utf-8")
    return path
