"""Images that no encoder of ours writes."""

import pytest

from .fitted import rows_first as rows_first


@pytest.fixture(scope="session")
def lossless_jpeg():
    """64x64 pixels of (200, 100, 50) as lossless JPEG (T.81 annex H): all differences are zero."""
    head = (
        "ffd8ffee000e41646f626500640000000000ffc3001108004000400352110047110042"
        "1100ffc400160001010100000000000000000000000000000705ffda000c0352004700"
        "4200010000a461cc40"
    )
    return bytes.fromhex(head).ljust(1613, b"\0") + b"\x01\xff\xd9"
