"""Texts in a folder that holds one for training, and often others."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

ENDINGS = (".txt", ".txt.gz", ".txt.xz", ".txt.bz2")


def training_text(path: str | Path) -> Path:
    """Return the file of the training text: `path` itself, or the one in that folder."""
    return find_part(path, "train") if Path(path).is_dir() else Path(path)


def find_part(folder: str | Path, part: str) -> Path:
    """Return the one text file in `folder` whose name contains `part`, such as "train"."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"no such folder: {str(folder)!r}; give the folder that holds the texts."
        )
    found = sorted(
        path
        for path in Path(folder).iterdir()
        if fnmatch(path.name, f"*{part}*") and path.name.endswith(ENDINGS)
    )
    if not found:
        raise FileNotFoundError(
            f"{str(folder)!r} must hold a text named *{part}* that ends in "
            f"{', '.join(ENDINGS)}, got none; add or rename it."
        )
    if len(found) > 1:
        raise ValueError(
            f"{str(folder)!r} must hold one text named *{part}*, got "
            f"{', '.join(path.name for path in found)}; leave one of them there."
        )
    return found[0]
