"""Chrome traces."""

import json

from datapipe.report.trace import write_trace

EVENTS = [
    ("loop", "wait", 5_000_000_000, 5_000_200_000),
    ("worker 0", "decode", 5_000_100_500, 5_000_150_500),
    ("loop", "step", 5_000_200_000, 5_001_200_000),
]


def read(path):
    return json.loads(path.read_text())["traceEvents"]


def test_events_stand_on_rows_by_name_and_begin_at_zero(tmp_path):
    write_trace(tmp_path / "trace.json", EVENTS)
    events = read(tmp_path / "trace.json")
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    drawn = [(names[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn == [
        ("loop", "wait", 0.0, 200.0),
        ("worker 0", "decode", 100.5, 50.0),
        ("loop", "step", 200.0, 1000.0),
    ]
    write_trace(tmp_path / "trace.json", [])
    assert read(tmp_path / "trace.json") == []


def test_events_are_moved_to_the_profilers_clock(tmp_path):
    theirs = [
        {"ph": "X", "name": "marker", "ts": 7_000.0, "dur": 1, "pid": 12, "tid": 12},
        {"ph": "X", "name": "aten::mm", "ts": 7_100.0, "dur": 20, "pid": 12, "tid": 12},
    ]
    document = {"schemaVersion": 1, "traceEvents": theirs}
    path = tmp_path / "trace.json"
    write_trace(path, EVENTS, recorded=document, marker="marker", marker_ns=4_999_999_000)
    merged = json.loads(path.read_text())
    assert merged["schemaVersion"] == 1
    assert merged["traceEvents"][:2] == theirs
    ours = {e["name"]: e for e in merged["traceEvents"][2:] if e["ph"] == "X"}
    times = {name: e["ts"] for name, e in ours.items()}
    assert times == {"wait": 7_001.0, "decode": 7_101.5, "step": 7_201.0}
    assert {e["pid"] for e in ours.values()}.isdisjoint({12})


def test_without_a_common_moment_the_profilers_events_are_left_out(tmp_path):
    document = {"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1.0, "dur": 2}]}
    write_trace(tmp_path / "trace.json", EVENTS, recorded=document, marker="marker")
    drawn = [e["name"] for e in read(tmp_path / "trace.json") if e["ph"] == "X"]
    assert drawn == ["wait", "decode", "step"]
