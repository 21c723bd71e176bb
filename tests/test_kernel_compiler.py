"""Kernels that other kernels call have no more than those need, and are whole when Python calls."""

import gc
import subprocess
import sys

import numpy as np
import pytest

from samplesoft._jit import COMPILES, njit, njit_sum

if not COMPILES:
    pytest.skip("nothing is compiled", allow_module_level=True)

from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.extending import overload

from samplesoft._kernel_compiler import LinkedCode


def kernels():
    """Return a kernel, one that calls it, and another that calls it."""

    @njit_sum
    def total(x):
        found = 0.0
        for i in range(len(x)):
            found += x[i]
        return found

    @njit
    def mean(x):
        if len(x) == 0:
            raise ValueError("there is nothing")
        return total(x) / len(x)

    @njit
    def two_means(x, y):
        return mean(x) + mean(y)

    for kernel in (total, mean, two_means):
        kernel._cache.disable()
    return total, mean, two_means


def counts(kernel):
    """Return for how many kinds of arguments there is code for Python, and for other kernels."""
    assert all(
        isinstance(result.library, LinkedCode) for result in kernel._linked_overloads.values()
    )
    assert not any(isinstance(result.library, LinkedCode) for result in kernel.overloads.values())
    return len(kernel.overloads), len(kernel._linked_overloads)


@pytest.mark.parametrize("first", ["the caller", "the called"])
def test_a_kernel_for_others_is_whole_when_python_calls_it(first):
    total, mean, two_means = kernels()
    x, y = np.arange(100.0) / 7.0, np.ones(3)
    if first == "the called":
        one = total(x) / 100.0
        assert (mean(x), counts(total), counts(mean)) == (one, (1, 1), (1, 0))
    found = two_means(x, y)
    if first == "the caller":
        assert [counts(kernel) for kernel in (total, mean, two_means)] == [(0, 1), (0, 1), (1, 0)]
        one = mean(x)
    assert found == one + 1.0
    assert (counts(mean), counts(two_means)) == ((1, 1), (1, 0))
    assert two_means(x, y) == found


def test_an_error_of_a_kernel_for_others_comes_to_python():
    _, mean, two_means = kernels()
    for function, arguments in ((two_means, (np.ones(1), np.ones(0))), (mean, (np.ones(0),))):
        with pytest.raises(ValueError, match="there is nothing"):
            function(*arguments)


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_afterwards_if_it_was_before(collects):
    if not collects:
        gc.disable()
    try:
        kernels()[2](np.ones(2), np.ones(2))
        assert gc.isenabled() == collects
    finally:
        gc.enable()


OTHER_VERSION = """
import numba
import numpy as np

numba.version_info = numba.version_info._replace(short=(9, 9))
from samplesoft._jit import njit


@njit
def half(x):
    return 0.5 * x


@njit
def halves(x):
    return half(x) + half(x)


print(halves(3.0), half(5.0), type(half).__module__, len(half.overloads))
"""


def test_other_versions_of_numba_compile_as_they_do(tmp_path):
    """Parts of Numba that no version promises are used with those alone that were tried."""
    script = tmp_path / "other.py"
    script.write_text(OTHER_VERSION, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["3.0", "2.5", "numba.core.registry", "1"]


def test_what_is_registered_between_two_kernels_is_found():
    def halve(x):
        raise NotImplementedError

    @njit
    def half(x):
        return halve(x + x)

    half._cache.disable()
    for kernel in kernels():
        kernel(*[np.ones(2)] * kernel.py_func.__code__.co_argcount)
    with pytest.raises(TypingError):
        half(3.0)
    contexts = cpu_target.typing_context, cpu_target.target_context
    assert not any("refresh" in vars(context) for context in contexts)  # Numba's own again

    @overload(halve)
    def _halve(x):
        return lambda x: x / 2.0

    @njit
    def half_again(x):
        return halve(x + x)

    half_again._cache.disable()
    assert half_again(3.0) == 3.0


def test_operations_have_the_types_of_their_own_arguments():
    @njit
    def add(x, y):
        return x + y, x < y, -x, x // 2

    add._cache.disable()
    for x, y in ((1, 2), (1.5, 2), (np.uint64(3), np.uint64(1)), (np.float32(0.5), 1), (True, 2)):
        found = add(x, y)
        assert found[:2] == (x + y, x < y)
    assert isinstance(add(1, 2)[0], int)
    assert isinstance(add(1.0, 2)[0], float)


def test_a_kernel_of_many_arrays_unpacks_them_as_one_of_few_does():
    @njit
    def sums(one, others):
        total = one[0]
        for other in others:
            total += other.sum()
        return total

    sums._cache.disable()
    x = np.arange(6.0)
    assert sums(x + 2.0, (x, x + 1.0, x, x, x, x, x, x)) == 2.0 + 8 * 15.0 + 6.0
    assert sys.getrefcount(x) == 2  # none is left behind
