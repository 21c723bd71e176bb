"""Reports of `verify`, `check_loss` and `tune`: text, JSON, CSV, a figure, and one HTML page.

A report says what it has to say once, in parts. Values stay values until a part is written: a
number on the page knows its size, so that a click on the title of its column sorts.

Read in this order: `report`, the base class; `parts`, headings, paragraphs and tables as text and
as HTML; `values`, as JSON and CSV have them; `figures`, how they are drawn and written; `page`, all
of it in one file, with ``page.css`` and ``page.js``.
"""
