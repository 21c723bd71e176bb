"""Sums have the same bits wherever their arrays lie in memory."""

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import samplesoft
from samplesoft import exact_bias, exact_gradient_moments, search
from samplesoft.bias import bounds, tries_bias
from samplesoft.bias.bounds import gaps
from samplesoft.bias.with_replacement import laplace
from samplesoft.bias.without_replacement import race, race_kernels, sets
from samplesoft.kernels import rows, weights
from samplesoft.schemes import exact_schemes

ROOT = Path(samplesoft.__file__).parent
RNG = np.random.default_rng(0)


def laid(arrays, rng, arena):
    """Copy arrays into an arena, in any order, at any of the places that numbers may have."""
    end, found = 0, {}
    for i in rng.permutation(len(arrays)):
        array = np.ascontiguousarray(arrays[i])
        start = end + 8 * int(rng.integers(0, 9))
        end = start + -(-array.nbytes // 8) * 8
        found[i] = arena[start:end][: array.nbytes].view(array.dtype).reshape(array.shape)
        found[i][...] = array
    return [found[i] for i in range(len(arrays))]


def results(function, arrays, layouts=150):
    """The different results, as bytes, of a function that may write to its arrays."""
    rng, arena, found, others = np.random.default_rng(1), np.zeros(1 << 20, np.uint8), set(), []
    for _ in range(layouts):
        # what the function makes lies anywhere, too
        others.append([np.empty(int(rng.integers(1, 600))) for _ in range(3)])
        if len(others) > 20:
            others.pop(int(rng.integers(len(others))))
        near = rng.random() < 0.5
        copies = laid(arrays, rng, arena)
        copies = copies if near else [offset(array, 8 * int(rng.integers(8))) for array in copies]
        out = function(*copies)
        written = copies if out is None else [out]
        found.add(b"".join(np.asarray(x).tobytes() for x in written))
    return found


def offset(array, by):
    """A copy that begins so many bytes behind a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + by
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def add_light(q, w, t, r, orders, sums):
    race_kernels.add_light_powers(q, w, t, r, np.zeros(len(q), np.bool_), orders, sums)


def kernels(n):
    """Each sum of the library that may be taken in any order, and arguments of it."""
    x, few = RNG.random((6, n)), RNG.random(9)
    q = np.sort(RNG.dirichlet(np.ones(n)))[::-1]
    t, r = np.geomspace(1e-3, 1.0, 7), np.geomspace(1e-2, 2.0, 7)
    parts = [RNG.random((9, n)) + 1j * RNG.random((9, n)) for _ in range(3)]
    tiles = np.zeros(-(-n // 256), np.int64)
    sets_of = [*parts, np.ones(n, complex), RNG.random((2, 9)) + 0j]
    return {
        "add_light": (add_light, [q, x[0], t, r, tiles, np.zeros((2, 7, 28))]),
        "mean_rung": (lambda q: race._expected_rings(q, 3.0), [q]),
        "total": (laplace._sum, [x[0]]),
        "decays": (lambda a, b, c, d, e, f: laplace._sum_decays((a, b, c), d, e, f), list(x)),
        "moments": (laplace._sum_moments, list(x[:3])),
        "exponentials": (gaps._exponential_sums, [few, *x[1:4], np.zeros((2, 9))]),
        "sets": (
            lambda a, p, e, w, v, m, o: sets._write_set_means(a, p, e, w, True, v, m, o),
            [*sets_of, np.zeros(2, complex), np.zeros((2, 9), complex)],
        ),
        "row_dot": (lambda a, b: rows.row_dot(a, 2, b, 1), [x, x[:2]]),
        "norms": (rows.divide_by_norms, [x, np.zeros(6)]),
        "unit_gradient": (rows.unit_gradient, [x, x[::-1], np.ones(6)]),
        "weights": (weights.total, [x[0]]),
        "square": (lambda a: search._squared_norm(a, 3), [x]),
    }


@pytest.mark.parametrize("n", [39, 777])
@pytest.mark.parametrize("name", list(kernels(3)))
def test_sums_do_not_depend_on_where_arrays_lie(name, n):
    assert len(results(*kernels(n)[name])) == 1


def sums(tree):
    """Functions of a module that are compiled by `njit_sum`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {getattr(one, "id", "") for one in node.decorator_list}
            if "njit_sum" in names:
                yield node


def writes_while_it_adds(loop):
    """Whether an innermost loop adds up numbers and writes to an array, too."""
    if any(isinstance(node, ast.For) for node in ast.walk(loop) if node is not loop):
        return False
    adds = writes = False
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        for target in targets:
            written = [one for one in ast.walk(target) if isinstance(one, ast.Subscript)]
            writes |= bool(written)
            adds |= isinstance(node, ast.AugAssign) and not written
    return adds and writes


WRONG = "@njit_sum\ndef f(a, b):\n  t = 0.0\n  for i in range(9):\n    b[i] *= a[i]\n    t += b[i]"


def test_no_loop_that_adds_in_any_order_writes_to_an_array():
    """Or it would be compiled twice, and the addresses of arrays decide which one runs."""
    found = []
    for path in [*ROOT.rglob("*.py"), *(ROOT.parent / "figures").rglob("*.py")]:
        for function in sums(ast.parse(path.read_text(encoding="utf-8"))):
            loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
            found += [f"{path.name}:{function.name}" for x in loops if writes_while_it_adds(x)]
    assert not found
    (wrong,) = sums(ast.parse(WRONG))
    assert any(writes_while_it_adds(x) for x in ast.walk(wrong) if isinstance(x, ast.For))


def problem(n, batch, by):
    rng = np.random.default_rng(n)
    logits, q = 2.0 * rng.standard_normal((batch, n)), rng.dirichlet(np.ones(n), batch)
    return offset(logits, by), np.arange(batch), offset(q, by)


@pytest.mark.parametrize("scheme", exact_schemes() + exact_schemes(distinct=True))
def test_the_exact_bias_has_the_same_bits_at_all_alignments_and_in_pools(scheme):
    n = 300 if scheme in ("negatives", "poisson") else 20
    found, pools = set(), [ThreadPoolExecutor(k) for k in (1, 2, 3)]
    for by in range(0, 72, 24 if scheme.startswith("distinct") else 8):
        for pool in (None, *pools) if by == 24 else (None,):
            result = exact_bias(*problem(n, 2, by), 4, scheme=scheme, executor=pool)
            found.add(b"".join(x.tobytes() for x in vars(result).values() if x is not None))
    for pool in pools:
        pool.shutdown()
    assert len(found) == 1


@pytest.mark.parametrize("scheme", ["negatives", "poisson", "distinct"])
def test_moments_and_bounds_have_the_same_bits_at_all_alignments(scheme):
    found, vectors = set(), np.random.default_rng(3).standard_normal((20, 5))
    for by in range(0, 72, 24 if scheme == "distinct" else 8):
        logits, labels, q = problem(20, 1, by)
        moments = exact_gradient_moments(logits, labels, q, 3, offset(vectors, by), scheme=scheme)
        numbers = list(vars(moments).values())
        if scheme != "poisson":
            limits = bounds.finite_sample_bounds(logits, labels, q, 3, scheme=scheme)
            numbers += [limits.lower, limits.upper]
        found.add(b"".join(x.tobytes() for x in numbers))
    assert len(found) == 1


def test_corrections_by_tries_have_the_same_bits_at_all_alignments():
    found = set()
    for by in range(0, 72, 24):
        logits, labels, q = problem(5, 1, by)
        found.add(tries_bias(logits, labels, q, 2).bias.tobytes())
    assert len(found) == 1


def test_the_exact_bias_has_the_same_bits_with_any_number_of_threads_of_blas():
    """Workers of joblib and Dask give it one; an inner product of 10,000 numbers would tell."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    rng, n = np.random.default_rng(5), 20_000
    logits, q = 2000.0 * rng.standard_normal(n), rng.dirichlet(np.ones(n)) + 1e-12
    results = []
    for limit in 1, None:
        with threadpoolctl.threadpool_limits(limit, "blas"):
            results.append(exact_bias(logits, 3, q / q.sum(), 50, scheme="candidate"))
    assert np.array_equal(results[0].bias, results[1].bias)
    assert results[0].error == results[1].error
