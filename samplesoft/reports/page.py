"""A report as one self-contained HTML page."""

from __future__ import annotations

import platform
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from samplesoft import __version__


def html_page(title: str, parts: Sequence[str]) -> str:
    """Return an HTML page: the title as heading, and below it the HTML texts `parts`.

    A script in the page sorts a table when a column title is clicked. The page's content security
    policy forbids other scripts and all network requests.
    """
    here = Path(__file__)
    style, script = (here.with_suffix(end).read_text(encoding="utf-8") for end in (".css", ".js"))

    # the policy allows only the script with this hash
    digest = b64encode(sha256(script.encode()).digest()).decode()
    content = "\n".join(parts)

    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'; script-src 'sha256-{digest}'">
<title>{escape(title)} - samplesoft</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{content}
</main>
<script>{script}</script>
</body>
</html>
"""


def environment() -> dict[str, Any]:
    """Return the versions of Python and libraries, the platform, and the number of threads."""
    import numba

    libraries = ("NumPy", "Numba", "SciPy")
    return {
        "samplesoft": __version__,
        "Python": platform.python_version(),
        **{name: import_module(name.lower()).__version__ for name in libraries},
        "platform": platform.platform(),
        "threads": numba.get_num_threads(),
    }
