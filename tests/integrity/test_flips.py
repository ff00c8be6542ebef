"""A bit that flipped, or a file that was cut, is named, mended, or changes no batch.

`DATAPIPE_FLIPS` is the number of flipped bits over all scenes; a tenth as many files are cut.
`pytest -rP` says what became of them.
"""

import copy
import json
import logging
import os
import random
import re
from collections import Counter
from pathlib import Path

import pytest

import datapipe
from datapipe import ImageSpec, make_loader
from tests.flipping import flipped
from tests.waiting import Overdue, limited

from .scenes import Maker, digest

SCENES = (
    *("shards", "large_shards", "arrays", "large_arrays", "cache", "cache_of_encoded", "tuned"),
    *("foreign", "mirror", "interrupted_count", "interrupted_pack", "interrupted_append"),
    *("interrupted_convert", "interrupted_upload"),
)
FLIPS = int(os.environ.get("DATAPIPE_FLIPS", "150"))
EACH = -(-FLIPS // (len(SCENES) + 1))  # and the saved state
SEED = 19
REMEDY = "restore|again|anew|remove|load an earlier one|give what"
"""What every error has to say one of."""
SAID = "damaged|not as it|left out|cut off"
"""What a line in the log says one of."""


@pytest.mark.scaled
@pytest.mark.parametrize("name", SCENES)
def test_damage_is_named_or_mended(name, tmp_path, jpeg, tokenizer, monkeypatch, caplog):
    scene = Maker(tmp_path, jpeg, tokenizer, monkeypatch).make(name)
    caplog.set_level(logging.INFO, "datapipe")
    outcomes = {kind: Counter() for kind in sorted(scene.kinds)}
    for number in range(EACH + -(-EACH // 10)):
        seed = f"{SEED} {name} {number}"
        choice = random.Random(seed)
        kind = choice.choice(sorted(scene.kinds))
        file = choice.choice(sorted(scene.kinds[kind]))
        content = scene.held[file]
        if number < EACH:
            # Headers are hit as often as the rest.
            place = choice.randrange(8 * choice.choice([len(content), min(len(content), 200)]))
            harmed, what = flipped(content, *divmod(place, 8)), f"bit {place} flipped"
        else:
            place = choice.randrange(len(content))
            harmed, what = content[:place], f"cut after {place} bytes"
        hint = f"{file}, {what} (seed {seed!r})"
        scene.put(file, harmed)
        caplog.clear()
        found = refused = ""
        try:
            with limited(60):
                found = scene.run()
        except datapipe.DatapipeError as error:
            refused = str(error)
        except (Exception, Overdue) as error:
            raise AssertionError(f"{hint}: {error!r}") from error
        outcome = "named"
        if refused:
            path = Path(file)
            # The index of a shard that is damaged is named, and so is a shard by its own name.
            assert path.name in refused or path.parent.name in refused, (hint, refused)
            assert re.search(REMEDY, refused), (hint, refused)
        else:
            assert found == scene.expected, (hint, found, caplog.text)
            path = scene.home / file
            outcome = "left" if path.exists() and path.read_bytes() == harmed else "mended"
            if any(re.search(SAID, line) for line in caplog.messages):
                outcome += ", said"
            elif outcome == "mended" and file not in scene.rewritten:
                raise AssertionError(f"{hint}: mended without a word\n{caplog.text}")
        outcomes[kind][outcome] += 1
        scene.restore()
    for kind, counts in outcomes.items():
        print(f"{name}: {kind}: " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))


@pytest.mark.scaled
def test_a_changed_state_is_refused(tmp_path, make_folder):
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 7), tmp_path / "out")
    loader = make_loader(
        tmp_path / "out", batch_size=2, image=ImageSpec(size=8), epochs=2, num_workers=1
    )
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    expected = digest(running)
    outcomes = Counter()
    for number in range(EACH + -(-EACH // 10)):
        seed = f"{SEED} state {number}"
        choice = random.Random(seed)
        way = choice.choice([in_json, in_values])
        harmed, hint = way(state, choice)
        if harmed is None:
            outcomes[f"refused by {way.__name__[3:]}"] += 1
            continue
        refused = ""
        try:
            loader.load_state_dict(harmed)
        except datapipe.StateMismatch as error:
            refused = str(error)
        assert re.search(REMEDY, refused) if refused else harmed == state, (hint, seed, refused)
        outcomes["named" if refused else "no effect"] += 1
    loader.load_state_dict(state)
    assert digest(loader) == expected
    print("state: " + ", ".join(f"{n} {what}" for what, n in outcomes.most_common()))


def in_json(state, choice):
    """The state from a JSON file of which a bit flipped; None where it is none any more."""
    content = json.dumps(state).encode()
    place = choice.randrange(8 * len(content))
    try:
        return json.loads(flipped(content, *divmod(place, 8))), f"bit {place} of JSON"
    except ValueError:
        return None, ""


def in_values(state, choice):
    """The state with a value that changed, or one that is gone."""
    held = copy.deepcopy(state)
    at = held
    while isinstance(at[key := choice.choice(sorted(at))], dict) and at[key]:
        at = at[key]
    value = at[key]
    if choice.random() < 0.1:
        del at[key]
    elif isinstance(value, bool) or value is None:
        at[key] = choice.choice([not value, 1, "none"])
    elif isinstance(value, int):
        at[key] = value ^ (1 << choice.randrange(64))
    elif isinstance(value, str) and value:
        place = choice.randrange(len(value))
        other = chr(ord(value[place]) ^ (1 << choice.randrange(7)))
        at[key] = value[:place] + other + value[place + 1 :]
    else:
        at[key] = [value]
    return held, f"{key}: {value!r}"
