"""Flipped bits, as disks and cables leave them."""

from pathlib import Path


def flipped(content: bytes, at: int, bit: int = 0) -> bytes:
    """Return the content with one bit of a byte changed."""
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    return bytes(changed)


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a byte of a file."""
    path.write_bytes(flipped(path.read_bytes(), at, bit))
