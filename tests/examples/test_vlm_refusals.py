"""Options that the reference program refuses, listed in `refusals.txt`, with what is wrong."""

import re
from pathlib import Path

import pytest
import torch

from examples.vlm import train as program
from examples.vlm.options import parse
from examples.vlm.parallel.connect import parallel_of
from examples.vlm.parallel.mesh import join_mesh
from examples.vlm.parallel.ranks import Ranks

LINES = Path(__file__).with_name("refusals.txt").read_text("utf-8").splitlines()
TABLE = Path("benchmarks/results/attention-cpu.json")


def check(arguments, ranks):
    options = parse(arguments, "")
    parallel_of(options, program.techniques_of(options), ranks)
    join_mesh(ranks, options)


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("line", [line for line in LINES if line and not line.startswith("#")])
def test_what_is_wrong_is_said_in_a_line(shards, line, capfd):
    given, reason = line.split(" => ")
    count, *arguments = given.replace("SHARDS", str(shards)).replace("TABLE", str(TABLE)).split()
    if count == "0":
        with pytest.raises(SystemExit):
            parse(arguments, "")
        assert re.search(reason, capfd.readouterr().err)
        return
    if count == "1":
        with pytest.raises(SystemExit, match=f"^train: .*{reason}"):
            program.main([*arguments, "--device", "cpu", "--steps", "2"])
        return
    with pytest.raises(ValueError, match=reason):
        check(arguments, Ranks(0, int(count), torch.device("cpu")))
