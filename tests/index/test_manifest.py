"""The manifest's text, which the fingerprint of a dataset is the digest of."""

import json

import pytest

from datapipe.index.manifest import Arrays, Contribution, Manifest, Shard

HARD = 'ü},\n   {"x": ['  # as the text that stands between two shards


def shard(name):
    return Shard(name=name, index="i", samples=1, images=2, bytes=3, index_sha256="0")


def part(**options):
    return Contribution(shards=1, inputs=2, inputs_sha256="0", rejected=0, options=options)


@pytest.mark.parametrize("shards", [(), (shard(HARD),), (shard("a"), shard(HARD), shard("c"))])
@pytest.mark.parametrize(
    "parts", [(), (part(), part(text=HARD, nested={"list": [1, {"a": None}]}))]
)
@pytest.mark.parametrize("arrays", [None, Arrays(files={"b": 1, "a": 2}, checksums_crc32=3)])
def test_the_text_is_that_of_json_with_an_indent_of_one(shards, parts, arrays):
    text = Manifest(shards=shards, parts=parts, arrays=arrays).to_json()
    document = json.loads(text)
    assert text == json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert document["shards"] == [vars(one) for one in shards]
    assert document["parts"] == [vars(one) for one in parts]
