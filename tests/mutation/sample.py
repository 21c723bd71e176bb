"""Keep a random sample of a campaign's mutants, of those that change what is computed.

``python tests/mutation/sample.py SESSION NUM SEED`` removes all others from the session: mutants of
annotations, which are never evaluated, and of decorators; those that any test finds, because
floating-point numbers have no such operator (shifts, bitwise operators, ``~``, ``not``) or because
objects are never the same (``is``); and what the sample leaves out.
"""

import ast
import random
import sqlite3
import sys
from contextlib import closing
from functools import cache
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db


@cache
def annotated(path):
    """Return the (first, last) positions of the annotations of a file."""
    spans = []
    for node in ast.walk(ast.parse(Path(path).read_text())):
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            if part is not None:
                first, last = (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)
                spans.append((first, last))
    return spans


TOO_EASY = ("Bit", "Shift", "Invert", "_Is", "UnaryOperator_USub_Not", "RemoveDecorator")


def changes_something(mutation):
    if any(word in mutation.operator_name for word in TOO_EASY):
        return False
    place = mutation.start_pos
    return not any(first <= place < last for first, last in annotated(mutation.module_path))


def main(session, num, seed):
    with use_db(session, WorkDB.Mode.open) as db:
        items = sorted(db.work_items, key=lambda item: str(item.mutations))
    real = [item.job_id for item in items if changes_something(item.mutations[0])]
    kept = set(random.Random(seed).sample(real, num))
    left_out = [(item.job_id,) for item in items if item.job_id not in kept]
    with closing(sqlite3.connect(session)) as connection, connection:
        for table in ("mutation_specs", "work_items"):
            connection.executemany(f"DELETE FROM {table} WHERE job_id = ?", left_out)
    print(f"{len(items)} mutants, {len(real)} of them not trivial; {len(kept)} sampled")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
