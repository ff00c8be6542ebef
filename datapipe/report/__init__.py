"""Reports: HTML pages, figures, tables of text and Chrome traces.

Texts, rows and figures come in; one HTML file, lines or a trace go out. `page.py` builds a page,
`charts.py` has the figures of several reports, `table.py` tables and the formats of numbers. The
room that measures decides on the content of its report.
"""
