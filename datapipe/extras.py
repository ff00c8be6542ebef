"""Advice to install one of the package's extras."""

DISTRIBUTION = "datapipe-vlm"
"""Name on PyPI, where `datapipe` belongs to another project."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, such as `pip install 'datapipe-vlm[dali]'`."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
