"""Reports of `verify`, `check_loss` and `tune`, as text, JSON, CSV, a figure, or an HTML page.

A report is a list of parts, such as paragraphs and tables, each of which can be rendered as text
and as HTML. Values are formatted only when a part is rendered, so that the HTML page can sort the
columns of tables by value.

Read in this order: `report`, the base class; `parts`, headings, paragraphs and tables as text and
as HTML; `values`, conversion to JSON and CSV; `figures`, drawing and saving; `page`, the report as
one HTML file, with ``page.css`` and ``page.js``.
"""
