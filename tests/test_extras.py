"""Without the package of an extra, the error says how to install it."""

from .programs import python

MISSING = {"dali": "nvidia.dali", "ray": "ray", "report": "matplotlib.figure"}
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({[*MISSING.values()]}))  # so that importing them fails
import datapipe
from datapipe.decode.dali.decoder import DaliDecoder
monitor = datapipe.Monitor(warmup=1)
for _ in monitor(range(20)):
    with monitor.step():
        pass
for use in (
    lambda: DaliDecoder(datapipe.ImageSpec(size=8), batch_size=1, threads=1),
    lambda: datapipe.pack_dataset("raw", "out", engine="ray"),
    lambda: monitor.save("report.html"),
):
    try:
        use()
    except datapipe.DatapipeError as error:
        print(error)
"""


def test_a_missing_package_is_named_with_its_extra(tmp_path, make_folder):
    make_folder(tmp_path / "raw", 1)
    done = python(PROGRAM, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == len(MISSING), done.stderr
    for line, extra in zip(lines, MISSING, strict=True):
        assert f"pip install 'datapipe-vlm[{extra}]'" in line
