"""Run the tests of the room that holds the mutated file; exit with their status.

Without a mutated file the tests of all rooms run: a campaign whose tests fail before anything is
changed says nothing.

Numba's cache of a function does not notice a change in another file that it calls, so the cached
code of all modules that import the mutated one is removed before the tests, and again after them.
"""

import ast
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
    ("samplesoft/samplers/tree", "samplers/tree samplers"),
    ("samplesoft/samplers", "samplers/test_static_samplers.py samplers"),
    ("samplesoft/feature_maps", "feature_maps samplers"),
    ("samplesoft/losses", "losses metrics models/test_softmax_layer.py"),
    ("samplesoft/kernels", "kernels feature_maps losses samplers models"),
]
SLOW = ["bias/test_exact_extremes.py"]
RUN = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]


def mutated():
    """Return the one file that differs from the commit, or None."""
    command = ["git", "diff", "--name-only", "--", "samplesoft"]
    changed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return next(iter(changed.stdout.split()), None)


def importers(path):
    """Return the files that import `path`, themselves or through others, and itself."""
    uses = {}
    for file in sorted((ROOT / "samplesoft").rglob("*.py")):
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        uses[file] = names
    found, waiting = set(), [ROOT / path]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            waiting += [other for other, names in uses.items() if name in names]
    return found


def forget(files):
    """Remove the compiled code of `files`."""
    for file in files:
        for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*.nb[ic]"):
            cached.unlink()


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else mutated()
    if path is None:
        everything = dict.fromkeys(name for _, tests in ROOMS for name in tests.split())
        paths = [f"tests/{name}" for name in everything]
        return subprocess.run([*RUN, *(room for room, _ in ROOMS), *paths], cwd=ROOT).returncode
    tests = next(tests for room, tests in ROOMS if path.startswith(room + "/"))
    paths = [f"tests/{name}" for name in tests.split()]
    slow = [f"tests/{name}" for name in SLOW if name.split("/")[0] in tests.split()]
    files = importers(path)
    forget(files)
    try:
        quick = [*RUN, *(f"--ignore={name}" for name in slow), path, *paths]
        status = subprocess.run(quick, cwd=ROOT).returncode
        if status == 0 and slow:
            status = subprocess.run([*RUN, *slow], cwd=ROOT).returncode
    finally:
        forget(files)
    return status


if __name__ == "__main__":
    sys.exit(main())
