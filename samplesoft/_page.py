"""A page that needs no other file: its style and its script are in it."""

from __future__ import annotations

import platform
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from typing import Any

from samplesoft import __version__

_STYLE = """
:root { color-scheme: light; }
body {
  margin: 0 auto; max-width: 80rem; padding: 1rem;
  background: #fff; color: #1b1b1b; font: 1rem/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2rem 0 0.5rem; }
p, ul { max-width: 48rem; }
h1 + p { font-weight: 600; }
code { font-family: ui-monospace, monospace; font-size: 0.95em; }
.scroll { overflow-x: auto; margin: 0.5rem 0; }
.scroll:focus-visible, button:focus-visible { outline: 2px solid #005ea8; outline-offset: -2px; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { padding: 0.25rem 0; color: #505050; text-align: left; }
th, td { padding: 0.25rem 0.5rem; text-align: left; white-space: nowrap; }
.number { text-align: right; }
thead th { border-bottom: 2px solid #767676; }
thead th:has(button) { padding: 0; }
tbody tr { border-bottom: 1px solid #d9d9d9; }
tbody tr:hover > * { background: #eef4fa; }
th { font-weight: 600; }
th:first-child { position: sticky; left: 0; background: #fff; }
button {
  position: relative; width: 100%; padding: 0.25rem 0.5rem; border: 0; background: none;
  color: inherit; font: inherit; text-align: inherit; cursor: pointer;
}
button:hover { background: #eef4fa; }
button::after {
  content: "\\2195" / ""; position: absolute; margin-left: 0.1em;
  color: #6b6b6b; font-size: 0.7em;
}
[aria-sort="ascending"] button::after { content: "\\25b2" / ""; color: #005ea8; }
[aria-sort="descending"] button::after { content: "\\25bc" / ""; color: #005ea8; }
svg {
  display: block; width: 100%; height: auto;
  stroke-linejoin: round; stroke-linecap: butt;
}
dl {
  display: grid; grid-template-columns: fit-content(40%) 1fr; gap: 0.15rem 1rem;
  margin: 0.5rem 0; font-size: 0.9rem;
}
dt { color: #505050; }
dd { margin: 0; }
"""

# Titles become buttons. Numbers come before text, and empty cells last, in both directions; rows
# that are equal keep their order.
_SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], titles = [...table.tHead.rows[0].cells];
  const key = ({ dataset, textContent: text }) => {
    if ("value" in dataset) return [0, Number(dataset.value)];
    return text === "" || text === "-" ? [2, ""] : [1, text];
  };
  titles.forEach((title, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const sign = title.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      titles.forEach((other) => other.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [row, ...key(row.cells[column])]);
      rows.sort(([, kind, x], [, other, y]) =>
        kind - other || sign * (kind ? x.localeCompare(y, "en", { numeric: true }) : x - y));
      body.append(...rows.map(([row]) => row));
    });
  });
}
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return a page of parts that are HTML, whose tables a click on a title sorts.

    The browser is told to load nothing, and to run no other script.
    """
    script = b64encode(sha256(_SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{script}'"
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)} - samplesoft</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</main>",
            f"<script>{_SCRIPT}</script>",
            "</body>",
            "</html>\n",
        ]
    )


def versions() -> dict[str, Any]:
    """Return what results may depend on: versions, the platform, and the number of threads."""
    import numba
    import numpy as np
    import scipy

    return {
        "samplesoft": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "Numba": numba.__version__,
        "SciPy": scipy.__version__,
        "platform": platform.platform(),
        "threads": numba.get_num_threads(),
    }
