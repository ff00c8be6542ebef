"""SPDL's tar reader, which gives names and bytes, reads our shards."""

import pytest

io = pytest.importorskip("spdl.io")


@pytest.mark.parametrize("whole", [True, False], ids=["in memory", "as a file"])
def test_every_member_of_every_sample_is_read(packed_mixture, members, whole):
    found = {}
    for path in sorted(packed_mixture.glob("*.tar")):
        with path.open("rb") as file:
            for name, data in io.iter_tarfile(file.read() if whole else file):
                key, _, ext = name.partition(".")
                found.setdefault(key, {})[ext] = bytes(data)
    assert found == members(packed_mixture)
