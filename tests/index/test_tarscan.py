"""Members are found where Python's `tarfile` finds them, whoever wrote the tar."""

import io
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys

from datapipe.errors import StoreError
from datapipe.index.tar.grouping import group_members
from datapipe.index.tar.headers import TarMember, TarScanner, check_ends
from tests.case_files import cases

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

ascii_parts = st.text("abcXYZ019_-+ ", min_size=1, max_size=12).filter(lambda part: part.strip())
any_parts = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0"), min_size=1, max_size=40
).filter(lambda part: part not in (".", ".."))
short_names = st.lists(ascii_parts, min_size=1, max_size=3).map("/".join)
# Of more than a hundred characters some are in the prefix of ustar.
in_folders = st.integers(1, 8).map(lambda depth: "a-folder-with-a-long-name/" * depth + "image.jpg")
long_names = st.builds(lambda stem, count: f"{stem * count}.jpg", ascii_parts, st.integers(1, 40))
unicode_names = st.lists(any_parts, min_size=1, max_size=4).map("/".join)
sizes = st.sampled_from([0, 1, 511, 512, 513, 2000, 16_384, 40_000])
members = {
    "ustar": st.lists(st.tuples(short_names | in_folders, sizes), max_size=8),
    "gnu": st.lists(st.tuples(short_names | long_names | unicode_names, sizes), max_size=8),
    "pax": st.lists(st.tuples(short_names | long_names | unicode_names, sizes), max_size=8),
}


def tar_bytes(entries, format, **open_options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[format], **open_options) as tar:
        for number, (name, size) in enumerate(entries):
            info = tarfile.TarInfo(name)
            info.size = size
            info.mtime = number if format != "pax" else number + 0.5
            tar.addfile(info, io.BytesIO(bytes([number % 251]) * size))
    return buffer.getvalue()


def scan(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar"
        path.write_bytes(data)
        with TarScanner(path) as tar:
            return [(member.name, member.offset, member.size) for member in tar]


def by_tarfile(data):
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as tar:
        return [(info.name, info.offset_data, info.size) for info in tar if info.isfile()]


@settings(max_examples=120)
@given(st.lists(st.sampled_from(sorted(FORMATS)), min_size=1, max_size=3), st.data())
def test_names_positions_and_sizes_are_those_of_tarfile(formats, data):
    """The same holds for concatenated tars."""
    tars = b"".join(tar_bytes(data.draw(members[name]), name) for name in formats)
    assert scan(tars) == by_tarfile(tars)


def test_a_global_pax_header_holds_for_all_members():
    tar = tar_bytes([("a.jpg", 3), ("b.jpg", 4)], "pax", pax_headers={"comment": "by a tool"})
    assert [(name, size) for name, _, size in scan(tar)] == [("a.jpg", 3), ("b.jpg", 4)]
    tar = tar_bytes([("a.jpg", 3), ("b.jpg", 4)], "pax", pax_headers={"path": "c.jpg"})
    assert scan(tar) == by_tarfile(tar)
    assert {name for name, *_ in scan(tar)} == {"c.jpg"}


def test_a_size_in_base_256_is_understood():
    tar = bytearray(tar_bytes([("a.jpg", 700), ("b.jpg", 1)], "gnu"))
    tar[124:136] = b"\x80" + (700).to_bytes(11, "big")
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])
    assert scan(bytes(tar)) == by_tarfile(bytes(tar)) == [("a.jpg", 512, 700), ("b.jpg", 2048, 1)]


@pytest.mark.parametrize(
    "kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_folders_links_and_devices_are_no_members(kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        other = tarfile.TarInfo("other")
        other.type, other.linkname, other.size = kind, "a.jpg", 600  # stated, yet no data follows
        tar.addfile(other)
        info = tarfile.TarInfo("a.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    assert scan(buffer.getvalue()) == [("a.jpg", 1024, 3)]


def test_names_that_are_not_utf8_stay_different():
    tar = bytearray(tar_bytes([("a.jpg", 0), ("b.jpg", 0)], "gnu"))
    for start, byte in ((0, 0xFE), (512, 0xFF)):
        tar[start] = byte
        tar[start + 148 : start + 156] = b" " * 8
        tar[start + 148 : start + 156] = b"%06o\0 " % sum(tar[start : start + 512])
    names = [name for name, *_ in scan(bytes(tar))]
    assert len(set(names)) == 2
    assert all(name.encode() for name in names)


@pytest.mark.parametrize("size", [512 + 600, 512 + 800, 512 + 1024])
def test_a_tar_that_is_cut_off_behind_a_member_is_refused_with_the_remedy(size, tmp_path):
    path = tmp_path / "a shard.tar"
    path.write_bytes(tar_bytes([("a.jpg", 600), ("b.jpg", 600)], "ustar")[:size])
    with (
        pytest.raises(
            StoreError, match=r"a shard\.tar, byte .*without the blocks of zeros"
        ) as error,
        TarScanner(path) as tar,
    ):
        list(tar)
    command = str(error.value).split("`")[1]
    assert command.startswith("truncate -s +1024 '")
    subprocess.run(command, shell=True, check=True)
    assert scan(path.read_bytes()) == [("a.jpg", 512, 600)]


@pytest.mark.parametrize("zeros", [1, 511, 512, 513, 1024])
def test_any_zeros_behind_the_last_member_are_the_end(zeros):
    """SharpZipLib writes one block where POSIX has two; what is cut off in the zeros is whole."""
    assert scan(tar_bytes([("a.jpg", 600)], "ustar")[: 1536 + zeros]) == [("a.jpg", 512, 600)]
    assert scan(bytes(512 * zeros)) == []


def test_tars_of_webdataset_and_of_gnu_tar_end_as_they_should(tmp_path):
    with webdataset.TarWriter(str(tmp_path / "closed.tar")) as writer:
        for key in "ab":
            writer.write({"__key__": key, "txt": "text", "bin": bytes(3000)})
    unclosed = tarfile.open(tmp_path / "unclosed.tar", "w")  # noqa: SIM115
    unclosed.add(__file__, "a.txt")
    unclosed.fileobj.close()  # as when a script ends without closing its tar
    (tmp_path / "x.txt").write_text("text")
    subprocess.run(["tar", "-cf", "gnu.tar", "x.txt"], cwd=tmp_path, check=True)
    paths = [tmp_path / f"{name}.tar" for name in ("closed", "gnu", "unclosed")]
    check_ends(paths[:2])
    assert [len(scan(path.read_bytes())) for path in paths[:2]] == [4, 1]
    with pytest.raises(StoreError, match=r"unclosed.tar"):
        check_ends(paths)


def test_the_ends_of_all_tars_are_looked_at_before_any_is_read(tmp_path):
    whole = tar_bytes([("a.jpg", 1), ("b.jpg", 600)], "ustar")
    paths = [tmp_path / f"{number}.tar" for number in range(5)]
    for path, size in zip(paths, (None, 2560, None, 0, 2560), strict=True):
        path.write_bytes(whole[:size])
    with pytest.raises(StoreError, match=r"1\.tar, byte 2,560.*\(2 more of the 5 tars do not end"):
        check_ends(paths)
    check_ends([paths[0], paths[2]])


def test_a_file_that_gnu_tar_was_given_twice_is_one_member(tmp_path):
    (tmp_path / "x.txt").write_text("text")
    subprocess.run(["tar", "-cf", "x.tar", "x.txt", "x.txt"], cwd=tmp_path, check=True)
    with TarScanner(tmp_path / "x.tar") as tar:
        assert [member.name for member in tar] == ["x.txt"]
        assert tar.unread == []


def with_headers(headers):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers = headers
        tar.addfile(info)
    return buffer.getvalue()


TWO = tar_bytes([("a.jpg", 600), ("b.jpg", 600)], "ustar")
END = f"byte {len(TWO) + 512}: what follows the blocks of zeros that end a tar is not another tar"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\).*copy or write it again"),
        (b"<html>" + b" " * 1000, "this is not a tar file"),
        (b"\x1f\x8b\x08" + bytes(600), "compressed with gzip.*&& gunzip "),
        (b"BZh9" + bytes(600), "compressed with bzip2.*&& bunzip2 "),
        (b"\xfd7zXZ\0" + bytes(600), "compressed with xz.*&& unxz "),
        (b"\x28\xb5\x2f\xfd" + bytes(600), "compressed with zstd.*&& unzstd --rm "),
        (TWO[: 512 + 100], "byte 0: the file ends inside this member"),
        (TWO[: 512 + 1024 + 40], "byte 1536: the file ends inside a header"),
        (TWO[: 1536 + 124] + b"?" + TWO[1536 + 125 :], "byte 1536: a header is damaged"),
        *((TWO + bytes(512) + rest, END) for rest in (b"signed\n", b"signed\n" * 99, TWO[:100])),
        *((with_headers({"size": n}), "states a size of") for n in ("many", "-5", "", "1e3", "²")),
        (with_headers({"GNU.sparse.major": "1"}), "sparse members are not supported"),
    ],
)
def test_what_is_no_whole_tar_is_refused_with_the_place_or_the_remedy(data, message):
    with pytest.raises(StoreError, match=message):
        scan(data)


def test_a_missing_file_is_a_store_error(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened: No such file"):
        TarScanner(tmp_path / "none.tar")


@settings(max_examples=100)
@given(st.data())
def test_flipped_bytes_never_raise_anything_but_a_store_error(data):
    tar = bytearray(tar_bytes(data.draw(members["pax"]), "pax"))
    for _ in range(3):
        position = data.draw(st.integers(0, min(len(tar), 4096) - 1))
        tar[position] = data.draw(st.integers(0, 255))
    with suppress(StoreError):
        assert all(offset + size <= len(tar) for _, offset, size in scan(bytes(tar)))


# Which members are a sample: nothing is merged that other readers would tell apart.


@pytest.mark.parametrize(("names", "samples", "left_out"), cases("index/grouping"))
def test_a_member_is_in_a_sample_or_left_out_by_name(names, samples, left_out):
    listed = list(enumerate(names.split()))
    members = [TarMember(name, number, 1) for number, name in listed if not name.startswith("!")]
    found = group_members(members, [(name[1:], "") for _, name in listed if name.startswith("!")])
    numbers = {group.name: [member.offset for member in group.members] for group in found.samples}
    told = (f"{name}:{','.join(map(str, members))}" for name, members in numbers.items())
    assert " ".join(told) == samples
    assert " ".join(name for name, _ in found.left_out) == left_out
    assert all(reason for _, reason in found.left_out)


grouped = st.builds(
    lambda key, ext: f"{key}.{ext}", st.sampled_from("abc"), st.sampled_from(["jpg", "txt", "json"])
)


@settings(max_examples=300)
@given(st.lists(grouped, max_size=12))
def test_every_member_is_taken_once_or_named(listed):
    members = [TarMember(name, number, 1) for number, name in enumerate(listed)]
    found = group_members(members)
    taken = [member.offset for group in found.samples for member in group.members]
    assert len(taken) == len(set(taken))
    left = [listed[number] for number in range(len(listed)) if number not in set(taken)]
    assert sorted(left) == sorted(name for name, _ in found.left_out)
    for group in found.samples:
        assert len({member.name for member in group.members}) == len(group.members)


@settings(max_examples=200)
@given(st.lists(st.sampled_from("abc"), max_size=8), st.sampled_from(["jpg txt", "jpg", "a b c"]))
def test_samples_of_the_same_kind_are_those_of_webdataset(keys, exts):
    """Whatever keys come again, as long as no two neighbours have the same, which it refuses."""
    listed = [f"{key}.{ext}" for key, _ in groupby(keys) for ext in exts.split()]
    theirs = group_by_keys({"fname": name, "data": b"", "__url__": ""} for name in listed)
    ours = group_members([TarMember(name, n, 1) for n, name in enumerate(listed)])
    assert [group.key for group in ours.samples] == [sample["__key__"] for sample in theirs]
    assert ours.left_out == []
