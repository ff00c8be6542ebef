"""Parameters that only `make test-all` tries, where `make test` tries others like them."""

from typing import Any

import pytest


def rare(*values: Any) -> Any:
    """Return a parameter, or several at once, that campaigns try."""
    return pytest.param(*values, marks=pytest.mark.campaign)
