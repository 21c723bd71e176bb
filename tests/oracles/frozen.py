"""Digits of slow oracles, kept in tests/data; in tests/ ``python -m oracles.frozen`` renews them.

`laplace` gives what `naive.laplace_mpmath` gives. Where its arguments are in the file, which
takes equal bits, the answer comes from there; else it is computed, which takes seconds. A test
in tests/test_naive.py computes some records again.
"""

import json
import os
import sys
from functools import cache
from pathlib import Path

from mpmath import mp, mpf

from oracles import naive

FILE = Path(__file__).parents[1] / "data" / "laplace.json"
USERS = ("bias/test_exact_extremes.py", "bias/test_exact_large.py")
NEW = "SAMPLESOFT_FREEZE"  # in the environment: the file that new records are written to
ARGUMENTS = ("logits", "label", "q", "m", "scheme", "dps")
MORE = 15  # digits kept beyond those that are right, to see that the rest is small


@cache
def records():
    """Return the records by their arguments."""
    entries = json.loads(FILE.read_text()) if FILE.exists() else []
    return {key_of(entry): entry for entry in entries}


def key_of(entry):
    return json.dumps([entry[name] for name in ARGUMENTS])


def numbers(values):
    """Return floats as they are, and others as text of more digits than any test needs."""
    with mp.workdps(60):
        return [mp.nstr(x, 50) if isinstance(x, mpf) else float(x) for x in values]


def laplace(logits, label, q, m, scheme, dps=50):
    """Return E[p'] - p (n,) and E[loss] - loss as mpf, right to about `dps` digits."""
    values = (numbers(logits), int(label), numbers(q), int(m), scheme, dps)
    entry = dict(zip(ARGUMENTS, values, strict=True))
    found = records().get(key_of(entry))
    if found is None:
        entry |= compute(entry)
        if NEW in os.environ:
            with open(os.environ[NEW], "a") as file:
                file.write(json.dumps(entry) + "\n")
        found = entry
    with mp.workdps(dps + MORE + 10):
        return [mpf(x) for x in found["bias"]], mpf(found["loss_bias"])


def compute(entry):
    """Return the results of a record, as text, from its arguments."""
    logits, label, q, m, scheme, dps = (entry[name] for name in ARGUMENTS)
    with mp.workdps(60):
        logits = [mpf(x) if isinstance(x, str) else x for x in logits]
    _, bias, loss_bias = naive.laplace_mpmath(logits, label, q, m, scheme, dps=dps)
    return {
        "bias": [mp.nstr(x, dps + MORE) for x in bias],
        "loss_bias": mp.nstr(loss_bias, dps + MORE),
    }


def main():
    """Run the tests that use frozen digits without the file, and write what they computed."""
    import subprocess
    import tempfile

    FILE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        environment = {**os.environ, NEW: str(lines)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", *USERS], env=environment
        )
        entries = {key_of(entry): entry for entry in map(json.loads, lines.open())}
    FILE.parent.mkdir(exist_ok=True)
    ordered = [json.dumps(entries[key]) for key in sorted(entries)]
    FILE.write_text("[\n" + ",\n".join(ordered) + "\n]\n")
    print(f"{len(ordered)} records in {FILE}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
