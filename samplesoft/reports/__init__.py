"""Reports of `verify`, `check_loss` and `tune`: text, JSON, CSV, a figure, and one HTML page.

A report is a list of parts, which are rendered as text and as HTML. Numbers are formatted only when
a part is rendered, so that the HTML page can sort the columns of tables by value.

Read in this order: `report`, the base class; `parts`, headings, paragraphs and tables as text and
as HTML; `values`, conversion to JSON and CSV; `figures`, drawing and saving; `page`, the report as
one HTML file, with ``page.css`` and ``page.js``.
"""
