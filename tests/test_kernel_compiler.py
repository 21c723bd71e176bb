"""Kernels that other kernels call have no more than those need, and are whole when Python calls."""

import gc

import numpy as np
import pytest

from samplesoft._jit import COMPILES, njit, njit_sum

if not COMPILES:
    pytest.skip("nothing is compiled", allow_module_level=True)

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

    return total, mean, two_means


def is_linked(kernel):
    (result,) = kernel.overloads.values()
    return isinstance(result.library, LinkedCode)


def test_a_kernel_for_others_is_whole_when_python_calls_it():
    total, mean, two_means = kernels()
    x, y = np.arange(100.0) / 7.0, np.ones(3)
    found = two_means(x, y)
    assert is_linked(total)
    assert is_linked(mean)
    assert not is_linked(two_means)
    one = mean(x)
    assert (one + 1.0, is_linked(mean), is_linked(total)) == (found, False, True)
    assert two_means(x, y) == found
    assert kernels()[1](x) == one


def test_who_calls_a_whole_kernel_takes_it():
    total, mean, two_means = kernels()
    x = np.arange(100.0) / 7.0
    one = total(x), mean(x)
    assert two_means(x, x) == 2.0 * one[1]
    assert not is_linked(total)
    assert not is_linked(mean)


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
