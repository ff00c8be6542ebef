"""Cases of tests, a line each: what is given, and what is expected of it."""

from pathlib import Path


def cases(name: str) -> list[list[str]]:
    r"""Parts of the lines of a file that hold `=>`, with line breaks where there is `\n`.

    A part that is empty is written as `none`; other lines are headings.
    """
    lines = (Path(__file__).parent / "cases" / f"{name}.txt").read_text("utf-8").splitlines()
    found = [line.replace(r"\n", "\n").split(" => ") for line in lines if " => " in line]
    return [["" if part == "none" else part for part in parts] for parts in found]
