"""Names of classes that Hugging Face `datasets` writes beside numbers: its feature `ClassLabel`.

They stand in the metadata of a Parquet file's schema, as JSON
(https://huggingface.co/docs/datasets/about_dataset_features).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from datapipe.errors import DecodeError
from datapipe.pack.records.fields.field_map import FieldMap
from datapipe.pack.records.fields.field_path import FieldSource


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the names of the classes in each column of classes, or of lists of them.

    Examples:
        >>> label = '{"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}'
        >>> class_names({b"huggingface": f'{{"info": {{"features": {label}}}}}'.encode()})
        {'label': ['cat', 'dog']}
    """
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: feature.get("feature", feature) for name, feature in features.items()}
        return {
            name: [str(label) for label in feature["names"]]
            for name, feature in found.items()
            if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def with_class_names(fields: FieldMap, names: Mapping[str, Sequence[str]]) -> FieldMap:
    """Return a map whose texts have the names of classes, by column, in place of their numbers.

    Its sources raise a DecodeError for a number without a name.
    """

    def named(source: FieldSource) -> FieldSource:
        columns = names.keys() & {*source.fields}
        if not columns:
            return source

        def get(record: Mapping[str, Any]) -> Any:
            said = {c: _name(record[c], names[c], c) for c in columns if c in record}
            return source.get({**record, **said})

        return replace(source, get=get)

    return replace(
        fields,
        turns=tuple((role, named(source)) for role, source in fields.turns),
        messages=named(fields.messages) if fields.messages else None,
        caption=named(fields.caption) if fields.caption else None,
    )


def _name(value: Any, names: Sequence[str], column: str) -> Any:
    if isinstance(value, list):
        return [name for item in value if (name := _name(item, names, column)) is not None]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value < 0:  # of a split without labels
        return None
    if value >= len(names):
        raise DecodeError(f"`{column}` is {value}, and only {len(names)} classes have names")
    return names[value]
