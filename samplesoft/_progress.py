"""The one progress bar: on stderr, if that is a terminal and the caller wants it."""

from __future__ import annotations

from typing import Any


def progress_bar(wanted: bool, **options: Any) -> Any:
    """Return a tqdm bar that leaves no trace.

    Parameters
    ----------
    wanted : bool
        Whether to show it, where stderr is a terminal.
    **options
        Of ``tqdm``: what to iterate over, or the total.

    Returns
    -------
    tqdm.tqdm
        The bar.
    """
    from tqdm import tqdm

    return tqdm(leave=False, disable=None if wanted else True, **options)
