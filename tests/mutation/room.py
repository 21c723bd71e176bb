"""Run the tests of the room that holds the mutated file; exit with their status.

Without a mutated file the tests of all rooms run: a campaign whose tests fail before anything is
changed says nothing.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [  # the first that fits; the quickest tests come first
    (
        "samplesoft/bias",
        "bias/test_exact.py bias/test_poisson.py bias/test_bounds.py bias test_schemes.py",
    ),
    (
        "samplesoft/kernels/panels.py",
        "bias/test_kernels.py bias/test_exact.py bias/test_exact_large.py bias",
    ),
    ("samplesoft/samplers/tree", "test_twins.py samplers/tree samplers"),
    ("samplesoft/samplers", "test_twins.py samplers/test_static_samplers.py samplers"),
    ("samplesoft/feature_maps", "feature_maps samplers"),
    ("samplesoft/losses", "test_twins.py losses metrics models/test_softmax_layer.py"),
    ("samplesoft/kernels", "kernels feature_maps losses samplers models"),
]
SLOW = ["bias/test_exact_extremes.py"]
RUN = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]


def mutated():
    """Return the one file that differs from the commit, or None."""
    command = ["git", "diff", "--name-only", "--", "samplesoft"]
    changed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return next(iter(changed.stdout.split()), None)


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else mutated()
    if path is None:
        everything = dict.fromkeys(name for _, tests in ROOMS for name in tests.split())
        paths = [f"tests/{name}" for name in everything]
        return subprocess.run([*RUN, *(room for room, _ in ROOMS), *paths], cwd=ROOT).returncode
    tests = next(tests for room, tests in ROOMS if path.startswith(room + "/"))
    paths = [f"tests/{name}" for name in tests.split()]
    slow = [f"tests/{name}" for name in SLOW if name.split("/")[0] in tests.split()]
    quick = [*RUN, *(f"--ignore={name}" for name in slow), path, *paths]
    status = subprocess.run(quick, cwd=ROOT).returncode
    if status == 0 and slow:
        status = subprocess.run([*RUN, *slow], cwd=ROOT).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
