"""Records the golden digests anew: `python -m tests.golden.record`.

Do that where batches change on purpose: the diff of `digests.json` then says which configurations
and keys are concerned, and the change belongs in the changelog. Data and states stay as they were
written; `--data` and `--states` write them again, for versions that are not read any more.
"""

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .configurations import CASES, PLANS
from .data import Data, make_data
from .digest import DIGESTS, run_case, run_plan, state_path, versions


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", action="store_true", help="write the data again too")
    parser.add_argument("--states", action="store_true", help="write the states again too")
    parser.add_argument("--num-workers", type=int, default=0, help="of each loader (%(default)s)")
    options = parser.parse_args(arguments)
    logging.getLogger("datapipe").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        if options.data:
            (folder / "making").mkdir()
            make_data(folder / "making")
        data = Data(folder / "data")
        recorded: dict[str, Any] = {"versions": versions(dali=True), "batches": {}}
        for number, (name, case) in enumerate(CASES.items()):
            own = folder / f"case-{number}"
            own.mkdir()
            entry, state = run_case(data, case, own, num_workers=options.num_workers)
            recorded["batches"][name] = entry
            if options.states and state is not None:
                state_path(name).write_text(json.dumps(state, indent=1) + "\n", "utf-8")
        recorded["plans"] = {name: run_plan(data, plan) for name, plan in PLANS.items()}
    DIGESTS.write_text(json.dumps(recorded, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
