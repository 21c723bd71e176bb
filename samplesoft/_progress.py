"""Progress bars on stderr, where that is a terminal and the caller wants one."""

from __future__ import annotations

import sys
from typing import Any


def progress_bar(wanted: bool, **options: Any) -> Any:
    """Return a tqdm bar, which disappears when it is closed; `options` are those of ``tqdm``."""
    from tqdm import tqdm

    possible = wanted and sys.stderr is not None  # None if it was closed at the start
    return tqdm(leave=False, disable=None if possible else True, **options)
