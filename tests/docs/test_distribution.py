"""The distribution: its name on PyPI in every advice to install it, and its metadata."""

import re
import subprocess
import tomllib
from pathlib import Path

import datapipe
from datapipe.extras import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOREIGN = re.compile(
    r"(?:pip|uv|pipx) +(?:pip +)?(?:install|add|download)\b[^\n`&;|#]*?[\s'\"]datapipe(?![\w/.-])"
    r"|(?<![\w/.-])datapipe\\?\[[a-z]"
    r"|pip['\"]?\s*[:=]\s*\[[^\]]*['\"]datapipe['\"]"  # the environment of a Ray cluster
)


def tracked_texts():
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    texts = {}
    for name in filter(None, names):
        try:
            texts[name] = (ROOT / name).read_text("utf-8")
        except (UnicodeDecodeError, FileNotFoundError):  # a picture; a file removed just now
            continue
    return texts


def test_no_text_advises_to_install_the_other_project_of_this_name():
    for advice in (
        "pip install '{}[dali]'",
        "uv pip install -U {}",
        r"pip install '{}\[dali\]'",
        '"pip": ["{}"]',
    ):
        assert FOREIGN.search(advice.format("datapipe"))
    assert not FOREIGN.search("pip install . && datapipe pack raw/")
    wrong = [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()}"
        for name, text in tracked_texts().items()
        for found in FOREIGN.finditer(text)
    ]
    assert wrong == []


def test_every_advised_extra_exists():
    advised = {
        extra
        for name, text in tracked_texts().items()
        for group in re.findall(
            rf"{DISTRIBUTION}\\?\[([a-z, ]+)\\?\]|install_command\(['\"]([a-z]+)", text
        )
        for extra in "".join(group).split(",")
    }
    assert advised >= {"dali", "gpu", "heic", "ray", "remote", "report", "train"}
    assert advised <= set(EXTRAS)


def test_the_project_has_the_name_that_messages_say():
    assert PROJECT["name"] == DISTRIBUTION
    assert install_command("ray") == f"pip install '{DISTRIBUTION}[ray]'"


def test_the_changelog_describes_this_version_on_a_page():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[-1] == "0.1.0"
    assert f"## {datapipe.__version__}\n" in changelog
