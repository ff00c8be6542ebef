"""Reports are one HTML file that holds everything and runs nothing."""

import re

import pytest

from datapipe.errors import DatapipeError
from datapipe.report.charts import plot
from datapipe.report.page import Page
from datapipe.report.table import time_text
from datapipe.report.trace import write_trace


def saved(page, path):
    page.save(path)
    return path.read_text()


def test_what_is_given_is_text_and_not_html(tmp_path):
    page = Page("<script>a</script>", "<b>")
    page.verdict("<i>", "good")
    page.text("run `pack <raw>` & wait")
    page.text("`a` and ` alone")
    page.table("<u>", ["<th>"], [["<td>"]])
    text = saved(page, tmp_path / "page.html")
    tags = set(re.findall(r"<(\w+)", text))
    assert not {"script", "b", "i", "u", "link", "img", "iframe"} & tags
    assert "run <code>pack &lt;raw&gt;</code> &amp; wait" in text
    assert "<code>a</code> and ` alone" in text


def test_columns_of_words_stand_left_and_figures_right(tmp_path):
    page = Page("t")
    page.table("Stages", ["stage", "rate", "note"], [["decode", "740/s", "the most"]])
    cells = re.findall(r"<td( class=\"words\")?>([^<]*)", saved(page, tmp_path / "page.html"))
    said = [(bool(words), text) for words, text in cells]
    assert said == [(True, "decode"), (False, "740/s"), (True, "the most")]


def test_equal_reports_are_equal_files(tmp_path):
    texts = set()
    for _ in range(2):
        figure, axes = plot()
        axes.bar(["a", "b"], [1, 2])
        page = Page("t")
        page.figure("Bars", figure)
        texts.add(saved(page, tmp_path / "page.html"))
    assert len(texts) == 1


@pytest.mark.parametrize("write", [Page("t").save, lambda path: write_trace(path, [])])
def test_a_report_or_trace_that_cannot_be_written_leaves_nothing_behind(write, tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(DatapipeError, match="taken cannot be written: Is a directory"):
        write(tmp_path / "taken")
    with pytest.raises(DatapipeError, match="missing/page cannot be written: No such file"):
        write(tmp_path / "missing" / "page")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_times_are_said_as_people_say_them():
    said = {0.0: "0 s", 2e-9: "2 ns", 4.567e-5: "45.7 µs", 0.0123: "12.3 ms", 1234.5: "1,234 s"}
    assert {seconds: time_text(seconds) for seconds in said} == said
