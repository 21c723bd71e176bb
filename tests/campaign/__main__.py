"""Run parts of the campaign: ``python -m tests.campaign --minutes 60 [--parts calls,draws]``."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
os.environ.setdefault("NUMBA_NUM_THREADS", "8")  # Numba reads it when it is imported
sys.path.insert(0, str(FOLDER.parent))  # the oracles of the tests

import numba  # noqa: E402

from tests.campaign import calls, checks, draws, drift, exact, files, interrupts  # noqa: E402

PARTS = {
    "calls": calls,
    "checks": checks,
    "draws": draws,
    "drift": drift,
    "exact": exact,
    "files": files,
    "interrupts": interrupts,
}


def main() -> int:
    """Write a table for each part beside this file, and print it."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--minutes", type=float, default=60.0, help="for all parts (default 60)")
    options.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--output", type=Path, default=FOLDER, help="folder of the tables")
    chosen = options.parse_args()
    numba.set_num_threads(min(8, os.cpu_count() or 1, numba.config.NUMBA_NUM_THREADS))
    names = chosen.parts.split(",")
    for name in names:
        part = PARTS[name]
        rows = list(part.run(60.0 * chosen.minutes / len(names), chosen.seed))
        with (chosen.output / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, part.FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        for row in rows:
            print("  ".join(f"{row[field]!s:>16}" for field in part.FIELDS), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
