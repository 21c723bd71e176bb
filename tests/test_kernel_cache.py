"""Kernels on disk: never older than what they were made of, and never in the way."""

import errno
import os
import shutil
import subprocess
import sys
import time
from importlib import import_module, invalidate_caches
from pathlib import Path

import numpy as np
import pytest

import samplesoft
from samplesoft._jit import COMPILES

pytestmark = pytest.mark.skipif(not COMPILES, reason="nothing is compiled")

# a kernel that calls one of another file, which uses a third file
CALLER = """
from samplesoft._jit import njit
from part_callee import step, Pair
import part_numbers

@njit
def call(x):
    return step(x) + part_numbers.OFFSET

@njit
def first_of(pair):
    return pair.first
"""
CALLEE = """
from collections import namedtuple
from enum import IntEnum
from functools import partial
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from samplesoft._jit import njit, njit_inline, njit_sum
from part_numbers import FACTOR, TERMS, TABLE

Pair = namedtuple("Pair", "first second")

class Kind(IntEnum):
    LINEAR = 2

def _generate(number, context, builder, signature, arguments):
    return context.get_constant(types.float64, number)

@intrinsic
def ten(typing):
    return types.float64(), partial(_generate, 10.0)

@njit
def below(x, more=100.0):
    return x + more

@njit
def step(x):
    total = FACTOR * x + Kind.LINEAR.value + ten() + TERMS[1] + TABLE[1] + below(x)
    return total + Pair(first=0.0, second=0.25).first + sum([y for y in range(2)])
"""
NUMBERS = """
import numpy as np
FACTOR, OFFSET, TERMS = 3.0, 1000.0, (0.0, np.float32(0.5))
TABLE = np.array([0.0, 7.0])
"""
LARGE = {"caller": CALLER, "callee": CALLEE, "numbers": NUMBERS}
SMALL = {
    "caller": """
from samplesoft._jit import njit
from part_callee import step

@njit
def call(x):
    return step(x)
""",
    "callee": """
from samplesoft._jit import njit

@njit
def step(x):
    return x + 2.0
""",
}


class Package:
    """Three modules in a folder, which are imported anew as another process would."""

    def __init__(self, folder, parts, monkeypatch):
        self.folder, self._parts, self._monkeypatch = folder, parts, monkeypatch
        self.write(**parts)

    def write(self, **parts):
        for name, text in parts.items():
            (self.folder / f"part_{name}.py").write_text(text)

    def edit(self, part, before, after):
        assert before in self._parts[part]
        self.write(**{part: self._parts[part].replace(before, after)})

    def load(self):
        invalidate_caches()
        for name in LARGE:
            self._monkeypatch.delitem(sys.modules, f"part_{name}", raising=False)
        return import_module("part_caller")

    def call(self):
        """Return what the kernel says, and whether it was on disk."""
        module = self.load()
        found = module.call(1.0)
        hits, misses = (sum(of.values()) for of in module.call.stats[1:])
        assert hits + misses == 1
        return found, hits == 1

    def files(self, end):
        return sorted(self.folder.rglob(f"part_caller.*{end}"))


@pytest.fixture
def make(tmp_path, monkeypatch):
    import numba

    def make(parts, cache=""):
        monkeypatch.setattr(numba.config, "CACHE_DIR", cache)
        return Package(tmp_path, parts, monkeypatch)

    # in a second a file may change without a change of its time
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    return make


@pytest.fixture
def package(make):
    return make(SMALL)


RIGHT = 3.0 + 2 + 10 + 0.5 + 7 + 101 + 1 + 1000
EDITS = {
    "a called function": ("callee", "return x + more", "return x - more", RIGHT - 200),
    "a constant of it": ("callee", "return x + more", "return x + more + 9", RIGHT + 9),
    "its default": ("callee", "more=100.0", "more=50.0", RIGHT - 50),
    "what is inside it": ("callee", "y for y", "y + y for y", RIGHT + 1),
    "an imported number": ("numbers", "= 3.0,", "= 4.0,", RIGHT + 1),
    "a number of a module": ("numbers", "1000.0", "2000.0", RIGHT + 1000),
    "a number in a tuple": ("numbers", "np.float32(0.5)", "np.float32(1.5)", RIGHT + 1),
    "the type of a number": ("numbers", "np.float32(0.5)", "np.float64(0.5)", RIGHT),
    "an array": ("numbers", "0.0, 7.0]", "0.0, 8.0]", RIGHT + 1),
    "a member of an enum": ("callee", "LINEAR = 2", "LINEAR = 3", RIGHT + 1),
    "the fields of a tuple": ("callee", '"first second"', '"second first"', RIGHT),
    "an intrinsic": ("callee", "types.float64, number", "types.float64, -number", RIGHT - 20),
    "what an intrinsic is made of": ("callee", "10.0)", "20.0)", RIGHT + 10),
    "an option": ("callee", "@njit\ndef below", "@njit_sum\ndef below", RIGHT),
    "another option": ("callee", "@njit\ndef below", "@njit_inline\ndef below", RIGHT),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_has_changed_is_compiled_anew(make, edit):
    part, before, after, right = EDITS[edit]
    package = make(LARGE)
    assert package.call() == (RIGHT, False)
    assert package.call() == (RIGHT, True)
    num_files = len(package.files("nb[ic]"))
    package.edit(part, before, after)
    assert package.call() == (right, False)
    assert package.call() == (right, True)
    assert len(package.files("nb[ic]")) == num_files  # the old ones are overwritten


@pytest.mark.parametrize("folder", ["", "cache"])
def test_both_places_of_a_cache(make, tmp_path, folder):
    package = make(SMALL, str(tmp_path / folder) if folder else "")
    assert package.call() == (3.0, False)
    package.edit("callee", "2.0", "4.0")
    assert package.call() == (5.0, False)
    assert package.call() == (5.0, True)
    (path,) = package.files("call-*.nbi")
    assert path.is_relative_to(tmp_path / (folder or "__pycache__"))


def test_what_has_not_changed_is_not_compiled(package):
    assert package.call() == (3.0, False)
    package.write(callee=SMALL["callee"] + "\n# a comment\n\n@njit\ndef other(x):\n    return x\n")
    package.write(caller=SMALL["caller"] + "\n@njit\ndef another(x):\n    return x\n")
    assert package.call() == (3.0, True)


def test_a_kernel_for_others_is_found_by_those_alone(package):
    assert package.call() == (3.0, False)
    step = sys.modules["part_callee"].step
    assert step(1.0) == 3.0
    assert list(step.stats.cache_misses.values()) == [2]  # for the other kernel, and as a whole
    for again in range(2):
        package.write(
            caller=SMALL["caller"] + f"\n@njit\ndef more(x):\n    return {again} + step(x)\n"
        )
        module = package.load()
        step = sys.modules["part_callee"].step
        assert module.more(1.0) == 3.0 + again
        assert list(step.stats.cache_hits.values()) == [1]
        assert step(1.0) == 3.0
        assert list(step.stats.cache_hits.values()) == [2]
        assert not step.stats.cache_misses


def test_fields_of_an_argument_are_part_of_its_kind(make):
    package = make(LARGE)
    module = package.load()
    assert module.first_of(module.Pair(first=1.0, second=2.0)) == 1.0
    package.edit("callee", '"first second"', '"second first"')
    module = package.load()
    assert module.first_of(module.Pair(first=1.0, second=2.0)) == 1.0


@pytest.mark.parametrize("setting, value", [("BOUNDSCHECK", 1), ("LOOP_VECTORIZE", 0)])
def test_settings_of_numba_are_part_of_the_kind(package, setting, value, monkeypatch):
    import numba

    assert package.call() == (3.0, False)
    with monkeypatch.context() as patch:
        patch.setattr(numba.config, setting, value)
        assert package.call() == (3.0, False)
        assert package.call() == (3.0, True)
    assert package.call() == (3.0, True)  # and both stay


def test_files_that_are_replaced_while_old_code_runs(package):
    """The fingerprint is of what is compiled, not of what stands in the file by then."""
    old = package.load()
    package.edit("callee", "return x + 2.0", "return x - 2.0")
    assert old.call(1.0) == 3.0
    assert package.call() == (-1.0, False)


DAMAGES = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "cut off at the end": lambda data: data[:-1],
    "one bit": lambda data: (
        data[: (k := 3 * len(data) // 5)] + bytes([data[k] ^ 4]) + data[k + 1 :]
    ),
    "something else": lambda data: b"\x80\x05." + b"garbage" * 99,
}


@pytest.mark.parametrize("end", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_anew(package, end, damage):
    package.call()
    (path,) = package.files(f"call-*.{end}")
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert package.call() == (3.0, False)
    assert package.call() == (3.0, True)


def test_machine_code_of_another_version_is_not_taken(package):
    """As when two processes write at once, or one dies between two files."""
    package.call()
    (path,) = package.files("call-*.nbc")
    old = path.read_bytes()
    package.edit("callee", "return x + 2.0", "return x - 2.0")
    assert package.call() == (-1.0, False)
    path.write_bytes(old)
    assert package.call() == (-1.0, False)
    assert package.call() == (-1.0, True)


@pytest.mark.parametrize("refused", ["nbi", "nbc", "nb"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_is_full_costs_the_cache_only(package, refused, number, monkeypatch):
    from numba.core import caching

    def full(path, mode="r", *arguments):
        if "w" in mode and f".{refused}" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return open(path, mode, *arguments)

    package.call()
    package.edit("callee", "return x + 2.0", "return x - 2.0")
    with monkeypatch.context() as patch:
        patch.setattr(caching, "open", full, raising=False)
        assert package.call() == (-1.0, False)
        assert package.call() == (-1.0, False)
    assert package.call() == (-1.0, False)
    assert package.call() == (-1.0, True)
    assert not list(package.folder.rglob("*.tmp.*"))


def test_a_folder_that_goes_away_costs_the_cache_only(package):
    module = package.load()
    module.call(1.0)
    (path,) = package.files("call-*.nbc")
    shutil.rmtree(path.parent)
    path.parent.write_text("a file in its place")
    assert module.call(1) == 3.0


def test_a_folder_that_nobody_may_read_costs_the_cache_only(package, monkeypatch):
    from numba.core import caching

    package.call()

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(caching.IndexDataCacheFile, "_open_for_write", refuse)
        patch.setattr("samplesoft._kernel_cache.open", refuse, raising=False)
        assert package.call() == (3.0, False)
    assert package.call() == (3.0, True)


def test_old_files_do_not_pile_up(package):
    package.call()
    (index,) = package.files("call-*.nbi")
    drafts = [index.with_name(f"{index.name}.tmp.{name}") for name in ("old", "new")]
    for draft in drafts:
        draft.write_bytes(b"")
    os.utime(drafts[0], (time.time() - 1e5,) * 2)
    before = {path.suffix for path in package.files("nb[ic]")}, len(package.files("nb[ic]"))
    package.write(caller="\n\n\n" + SMALL["caller"])  # on other lines
    assert package.call() == (3.0, False)
    after = package.files("nb[ic]")
    assert ({path.suffix for path in after}, len(after)) == before
    assert [draft.exists() for draft in drafts] == [False, True]  # somebody may be at work


def test_functions_as_arguments_add_nothing(package):
    """Numba keeps one more entry for each process, and finds none of them."""
    package.write(
        caller="from samplesoft._jit import njit\nfrom part_callee import step\n"
        "@njit\ndef apply(f, x):\n    return f(x)\n\n"
        "def call(x):\n    return apply(step, x)\n"
    )
    for _ in range(2):
        assert package.load().call(1.0) == 3.0
    assert not package.files("apply*.nb[ic]")


DRAWS = """
import numpy as np
from samplesoft.samplers import UnigramSampler
print(*UnigramSampler(np.arange(1.0, 13.0)).sample(np.zeros((1, 1)), 30, rng=0).ids[0])
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sampler_whose_draws_have_changed(tmp_path):
    """As after an update over an installed version: the caller's file is as it was."""
    copy = tmp_path / "samplesoft"
    shutil.copytree(
        Path(samplesoft.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)

    def draws():
        command = [sys.executable, "-c", DRAWS]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return np.array(done.stdout.split(), int)

    before = draws()
    alias = copy / "kernels" / "alias.py"
    start, name, body = alias.read_text(encoding="utf-8").partition("def alias_draw(")
    changed = body.replace("    n = np.uint64", "    return np.int64(0)\n    n = np.uint64", 1)
    assert changed != body
    alias.write_text(start + name + changed, encoding="utf-8")
    assert before.any() and not draws().any()
