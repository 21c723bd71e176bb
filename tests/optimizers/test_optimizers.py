"""Optimizers over the registry: oracles, rows left alone, checkpoints, errors, clipping."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samplesoft.losses.base import SparseRows
from samplesoft.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
    make_optimizer,
    plain,
)

ORACLES = {
    "sgd": plain.sgd,
    "momentum": plain.momentum,
    "adagrad": plain.adagrad,
    "adam": plain.adam,
}
OPTIONS = [
    ("sgd", {}),
    ("momentum", {}),
    ("momentum", {"momentum": 0.5, "nesterov": True}),
    ("momentum", {"momentum": 0.0}),
    ("adagrad", {}),
    ("adagrad", {"epsilon": 0.01, "initial_accumulator": 0.1}),
    ("adam", {}),
    ("adam", {"beta1": 0.0, "beta2": 0.9, "epsilon": 0.01}),
]
NAMES = pytest.mark.parametrize("name", OPTIMIZERS)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
TOLERANCE = {np.float32: 2e-6, np.float64: 1e-13}


def bits(arrays):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


def history(rng, n, shape, dtype, steps=5):
    """Rates and sparse gradients of a parameter: a few rows, none, one, all, a few."""
    sizes = [n // 2, 0, 1, n, n // 3][:steps]
    rates = rng.uniform(0.01, 0.5, size=steps)
    ids = [np.sort(rng.choice(n, k, replace=False)) for k in sizes]
    return [
        (rate, SparseRows(i, rng.normal(size=(len(i), *shape)).astype(dtype)))
        for rate, i in zip(rates, ids, strict=True)
    ]


def to_dense(gradient, shape):
    dense = np.zeros(shape, gradient.rows.dtype)
    dense[gradient.ids] = gradient.rows
    return dense


def run(optimizer, parameters, steps):
    for rate, gradients in steps:
        optimizer.learning_rate = rate
        optimizer.step(parameters, gradients)


def expected(name, options, start, steps):
    """The oracle for each entry of a parameter, from sparse or dense gradients."""
    result = np.empty(start.shape)
    for index in np.ndindex(start.shape):
        numbers = []
        for rate, gradient in steps:
            if isinstance(gradient, SparseRows):
                row = gradient.ids.tolist().index(index[0]) if index[0] in gradient.ids else None
                g = None if row is None else float(gradient.rows[(row, *index[1:])])
            else:
                g = float(gradient[index])
            numbers.append((float(rate), g))
        result[index] = ORACLES[name](float(start[index]), numbers, **options)
    return result


@pytest.mark.parametrize(("shape", "dtype"), [((), np.float32), ((2, 2), np.float64)], ids=str)
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_sparse_steps_equal_the_oracle(name, options, shape, dtype):
    rng = np.random.default_rng(1)
    start = rng.normal(size=(8, *shape)).astype(dtype)
    steps = history(rng, 8, shape, dtype)
    parameters = {"w": start.copy()}
    run(make_optimizer(name, 1.0, **options), parameters, [(r, {"w": g}) for r, g in steps])
    assert parameters["w"].dtype == dtype
    wanted = expected(name, options, start, steps)
    np.testing.assert_allclose(parameters["w"], wanted, rtol=0, atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize(("shape", "dtype"), [((), np.float64), ((3, 4), np.float32)], ids=str)
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_dense_steps_equal_the_oracle(name, options, shape, dtype):
    rng = np.random.default_rng(2)
    start = np.asarray(rng.normal(size=shape), dtype)
    steps = [(0.1 * (i + 1), np.asarray(rng.normal(size=shape), dtype)) for i in range(4)]
    parameters = {"w": start.copy()}
    run(make_optimizer(name, 1.0, **options), parameters, [(r, {"w": g}) for r, g in steps])
    wanted = expected(name, options, start, steps)
    np.testing.assert_allclose(parameters["w"], wanted, rtol=0, atol=4 * TOLERANCE[dtype])


def test_every_optimizer_has_an_oracle_and_options():
    assert set(OPTIMIZERS) == set(ORACLES) == {name for name, _ in OPTIONS}


@DTYPES
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_all_rows_equal_the_dense_step_to_the_last_bit(name, options, dtype):
    rng = np.random.default_rng(3)
    start = {"w": rng.normal(size=(7, 9)).astype(dtype), "b": rng.normal(size=7).astype(dtype)}
    sparse, dense = ({k: v.copy() for k, v in start.items()} for _ in range(2))
    first, second = (make_optimizer(name, 0.1, **options) for _ in range(2))
    for _ in range(4):
        gradients = {k: rng.normal(size=v.shape).astype(dtype) for k, v in start.items()}
        first.step(sparse, {k: SparseRows(np.arange(7), g) for k, g in gradients.items()})
        second.step(dense, gradients)
    assert bits(sparse) == bits(dense)
    assert bits(first.state()) == bits(second.state())


@pytest.mark.parametrize("sparse", [True, False])
@NAMES
def test_parts_for_threads_change_nothing(name, sparse, threads, monkeypatch):
    rng = np.random.default_rng(4)
    start = rng.normal(size=(50, 7)).astype(np.float32)
    steps = [
        (r, {"w": g if sparse else to_dense(g, start.shape)})
        for r, g in history(rng, 50, (7,), np.float32)
    ]
    results = []
    for part, count in ((1 << 18, 1), (16, 2), (3, 5)):
        monkeypatch.setattr("samplesoft._device.cpu._MIN_THREADED_VALUES", part)
        threads(count)
        parameters = {"w": start.copy()}
        run(make_optimizer(name, 1.0), parameters, steps)
        results.append(bits(parameters))
    assert results[0] == results[1] == results[2]


@given(
    data=st.data(),
    name=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([np.float32, np.float64]),
    n=st.integers(1, 12),
    shape=st.sampled_from([(), (1,), (5,), (17,)]),
)
def test_rows_without_a_gradient_keep_every_bit(data, name, dtype, n, shape):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    parameters = {"w": rng.normal(size=(n, *shape)).astype(dtype)}
    optimizer = make_optimizer(name, 0.1)
    optimizer.step(parameters, {"w": rng.normal(size=(n, *shape)).astype(dtype)})
    before, state = parameters["w"].copy(), optimizer.state()
    ids = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1)))), np.int64)
    sizes = st.floats(-100, 100, width=32)
    rows = data.draw(hnp.arrays(dtype, (len(ids), *shape), elements=sizes))
    optimizer.step(parameters, {"w": SparseRows(ids, rows)})
    others = np.setdiff1d(np.arange(n), ids)
    assert parameters["w"][others].tobytes() == before[others].tobytes()
    for key, array in optimizer.state().items():
        if key != "steps":
            assert array[others].tobytes() == state[key][others].tobytes()
    assert np.isfinite(parameters["w"]).all()


@given(
    rows=hnp.arrays(np.float32, (4, 3), elements=st.floats(-1e4, 1e4, width=32)),
    name=st.sampled_from(sorted(OPTIMIZERS)),
)
def test_gradients_of_any_size_follow_the_oracle(rows, name):
    parameters = {"w": np.zeros((4, 3), np.float32)}
    steps = [(0.1, SparseRows(np.arange(4), rows)), (0.1, SparseRows(np.arange(2), rows[1:3]))]
    run(make_optimizer(name, 0.1), parameters, [(r, {"w": g}) for r, g in steps])
    wanted = expected(name, {}, np.zeros((4, 3)), steps)
    # squares of smaller gradients leave float32
    if ((rows == 0) | (np.abs(rows) > 1e-15)).all():
        np.testing.assert_allclose(parameters["w"], wanted, rtol=2e-5, atol=1e-6)


@NAMES
def test_parameters_without_a_gradient_are_left_alone(name):
    parameters = {"w": np.ones((3, 2)), "b": np.ones(3)}
    optimizer = make_optimizer(name, 0.1)
    optimizer.step(parameters, {"b": np.ones(3)})
    optimizer.step(parameters, {})
    assert (parameters["w"] == 1).all() and (parameters["b"] < 1).all()
    assert optimizer.steps == 2
    assert not any(key.endswith("/w") for key in optimizer.state())


def test_state_outlives_a_step_without_a_gradient():
    parameters, optimizer = {"w": np.zeros(1), "b": np.zeros(1)}, Momentum(1.0, 0.5)
    for name in ("w", "b", "w"):
        optimizer.step(parameters, {name: np.ones(1)})
    assert parameters["w"] == -2.5 and parameters["b"] == -1.0


@NAMES
def test_empty_parameters_and_gradients_step(name):
    parameters = {"w": np.ones((3, 2)), "none": np.ones((0, 2)), "flat": np.ones((2, 0))}
    nothing = SparseRows(np.empty(0, np.int64), np.empty((0, 2)))
    optimizer = make_optimizer(name, 0.1)
    optimizer.step(parameters, {"w": nothing, "none": nothing, "flat": np.ones((2, 0))})
    optimizer.step(parameters, {"flat": SparseRows(np.array([1]), np.ones((1, 0)))})
    optimizer.step(parameters, {"none": np.ones((0, 2))})
    assert (parameters["w"] == 1).all()


@DTYPES
@NAMES
def test_gradients_of_another_float_type_and_layout(name, dtype):
    rng = np.random.default_rng(5)
    other = np.float64 if dtype == np.float32 else np.float32
    gradient = rng.normal(size=(4, 6)).astype(np.float32).astype(other)
    results = []
    for g in (gradient, np.asfortranarray(gradient), np.repeat(gradient, 2, axis=1)[:, ::2]):
        for ids in (None, np.arange(4), np.arange(4, dtype=np.int32), np.arange(8)[::2] // 2):
            parameters = {"w": np.ones((4, 6), dtype)}
            given = {"w": g if ids is None else SparseRows(ids, g)}
            make_optimizer(name, 0.1).step(parameters, given)
            results.append(bits(parameters))
    assert all(result == results[0] for result in results)


def test_a_rate_of_zero_changes_state_and_not_parameters():
    parameters = {"w": np.ones(3)}
    optimizer = Momentum(0.0)
    optimizer.step(parameters, {"w": np.ones(3)})
    assert (parameters["w"] == 1).all()
    assert (optimizer.state()["velocity/w"] == 1).all()


def test_adam_that_keeps_nothing_of_old_gradients_forgets_a_huge_one():
    parameters = {"w": np.zeros(1, np.float32)}
    optimizer = Adam(0.1, beta1=0.0, beta2=0.0)
    for gradient in (1e6, 1e-6):
        optimizer.step(parameters, {"w": np.full(1, gradient, np.float32)})
    assert optimizer.state()["second_moment/w"] == np.float32(1e-6) ** 2
    np.testing.assert_allclose(parameters["w"], -0.1 - 0.1 / 1.01, rtol=1e-6)


# checkpoints


@DTYPES
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_loaded_state_goes_on_to_the_last_bit(name, options, dtype):
    rng = np.random.default_rng(6)
    start = rng.normal(size=(9, 4)).astype(dtype)
    steps = [(r, {"w/x": g}) for r, g in history(rng, 9, (4,), dtype)]
    parameters = {"w/x": start.copy()}
    optimizer = make_optimizer(name, 1.0, **options)
    run(optimizer, parameters, steps[:3])
    file = io.BytesIO()
    np.savez(file, **optimizer.state())
    file.seek(0)
    other, copies = make_optimizer(name, 1.0, **options), {"w/x": parameters["w/x"].copy()}
    with np.load(file) as loaded:
        other.load_state(loaded)
    run(optimizer, parameters, steps[3:])
    run(other, copies, steps[3:])
    assert bits(parameters) == bits(copies)
    assert bits(optimizer.state()) == bits(other.state())


@NAMES
def test_a_state_is_a_copy_both_ways(name):
    optimizer, parameters = make_optimizer(name, 0.1), {"w": np.ones(3)}
    optimizer.step(parameters, {"w": np.ones(3)})
    state = optimizer.state()
    before = bits(state)
    other = make_optimizer(name, 0.1)
    other.load_state(state)
    other.step(parameters, {"w": np.ones(3)})
    assert bits(state) == before == bits(optimizer.state())
    optimizer.step(parameters, {"w": np.ones(3)})
    assert bits(state) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "must have `steps`"),
        ({"steps": np.array(-1)}, "must have `steps`"),
        ({"steps": np.array(1.5)}, "must have `steps`"),
        ({"second_moment/w": None}, "must have first_moment/w, second_moment/w, steps"),
        ({"velocity/w": np.ones(3)}, "same class"),
        ({"first_moment/w": np.array([1, 2, 3])}, "finite floating-point"),
        ({"first_moment/w": np.array([1.0, np.nan, 1.0])}, "finite floating-point"),
    ],
)
def test_a_malformed_state_is_refused(change, message):
    optimizer, parameters = Adam(0.1), {"w": np.ones(3)}
    optimizer.step(parameters, {"w": np.ones(3)})
    state = optimizer.state()
    before = bits(state)
    changed = {k: v for k, v in {**state, **change}.items() if v is not None}
    with pytest.raises(ValueError, match=message):
        optimizer.load_state(changed)
    assert bits(optimizer.state()) == before


def test_a_state_of_another_shape_is_refused():
    optimizer = Adam(0.1)
    state = {"first_moment/w": np.ones(3), "second_moment/w": np.ones(2), "steps": np.array(1)}
    optimizer.load_state(state)
    with pytest.raises(ValueError, match="state is of shape"):
        optimizer.step({"w": np.ones(3)}, {"w": np.ones(3)})


# errors


def rows(ids, values):
    return SparseRows(np.asarray(ids), np.asarray(values))


TWO = np.ones((2, 2))
BAD_GRADIENTS = {
    "unknown name": ({"v": TWO}, ValueError, "'v'.*'w', 'b'"),
    "list": ({"w": [[1.0]]}, TypeError, "list for 'w'"),
    "integers": ({"w": np.ones((4, 2), int)}, TypeError, "int64 for 'w'"),
    "complex": ({"w": np.ones((4, 2), complex)}, TypeError, "complex128 for 'w'"),
    "shape": ({"w": np.ones((4, 3))}, ValueError, r"\(4, 2\) for 'w', got \(4, 3\)"),
    "shape that broadcasts": ({"w": np.ones((1, 2))}, ValueError, "shape"),
    "columns": ({"w": rows([0, 1], np.ones((2, 3)))}, ValueError, "shape"),
    "more ids": ({"w": rows([0, 1, 2], TWO)}, ValueError, "there are 3 ids"),
    "flat rows": ({"w": rows([0, 1], np.ones(2))}, ValueError, "shape"),
    "deep rows": ({"b": rows([0, 1], TWO)}, ValueError, "shape"),
    "integer rows": ({"w": rows([0], np.ones((1, 2), int))}, TypeError, "int64 for 'w'"),
    "float ids": ({"w": rows([0.0, 1.0], TWO)}, TypeError, "integer type for 'w'"),
    "ids of two dimensions": ({"w": rows([[0, 1]], TWO)}, TypeError, "integer type"),
    "negative id": ({"w": rows([-1, 1], TWO)}, ValueError, "ids that ascend"),
    "id too large": ({"w": rows([1, 4], TWO)}, ValueError, r"0\.\.3 for 'w'"),
    "huge id": ({"w": rows(np.array([1, 2**63], np.uint64), TWO)}, ValueError, "ids that ascend"),
    "same id": ({"w": rows([1, 1], TWO)}, ValueError, "same id"),
    "descending ids": ({"w": rows([1, 0], TWO)}, ValueError, "ids that ascend"),
    "ids of a scalar": ({"s": rows([0], np.ones(1))}, TypeError, "shape"),
    "nan": ({"w": np.full((4, 2), np.nan)}, ValueError, "finite.*nan for 'w'"),
    "inf row": ({"b": rows([0, 2], [1.0, np.inf])}, ValueError, "finite.*inf for 'b'"),
    "too large for float32": ({"f": np.full(2, 1e300)}, ValueError, r"finite.*1e\+300 for 'f'"),
}


@NAMES
def test_errors_leave_parameters_and_state_as_they_were(name):
    parameters = {"w": np.ones((4, 2)), "b": np.ones(3), "s": np.ones(())}
    parameters["f"] = np.ones(2, np.float32)
    optimizer = make_optimizer(name, 0.1)
    optimizer.step(parameters, {"w": np.ones((4, 2))})
    before, state = bits(parameters), bits(optimizer.state())
    good = {"w": np.ones((4, 2)), "b": np.ones(3), "s": np.ones(())}
    for bad, error, message in BAD_GRADIENTS.values():
        others = {k: v for k, v in good.items() if k not in bad}
        for gradients in ({**good, **bad}, {**bad, **others}):
            with pytest.raises(error, match=message):
                optimizer.step(parameters, gradients)
            assert bits(parameters) == before
            assert bits(optimizer.state()) == state


@pytest.mark.parametrize(
    ("parameter", "error", "message"),
    [
        ([1.0, 2.0], TypeError, "list for 'w'"),
        (np.ones(2, int), TypeError, "int64 for 'w'"),
        (np.ones(2, np.float16), TypeError, "float16 for 'w'"),
        (np.ones(2, ">f8"), TypeError, ">f8 for 'w'|float64 for 'w'"),
        (np.ones(4)[::2], ValueError, "C-contiguous"),
        (np.broadcast_to(1.0, 2), ValueError, "writable"),
    ],
)
def test_malformed_parameters_are_refused(parameter, error, message):
    with pytest.raises(error, match=message):
        SGD(0.1).step({"w": parameter}, {"w": np.ones(2)})


@pytest.mark.parametrize("size", [1e17, 1e30])
@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_gradients_whose_squares_leave_float32_are_refused(name, size):
    parameters = {"w": np.zeros(1, np.float32)}
    with pytest.raises(ValueError, match="at most 1.8e\\+16"):
        make_optimizer(name, 0.1).step(parameters, {"w": np.full(1, size, np.float32)})
    make_optimizer("sgd", 0.1).step(parameters, {"w": np.full(1, size, np.float32)})


def test_new_parameters_under_an_old_name_are_refused():
    optimizer = Momentum(0.1)
    optimizer.step({"w": np.ones(3)}, {"w": np.ones(3)})
    for other in (np.ones(4), np.ones(3, np.float32)):
        with pytest.raises(ValueError, match="state is of shape"):
            optimizer.step({"w": other}, {"w": np.ones_like(other)})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: make_optimizer("adamw", 0.1), ValueError, "one of sgd, momentum, adagrad, adam"),
        (lambda: make_optimizer("sgd", 0.1, momentum=0.9), TypeError, "momentum"),
        (lambda: SGD(-0.1), ValueError, "`learning_rate` must be at least 0"),
        (lambda: SGD(np.nan), ValueError, "`learning_rate`"),
        (lambda: SGD(np.inf), ValueError, "`learning_rate`"),
        (lambda: SGD("0.1"), TypeError, "`learning_rate` must be a number"),
        (lambda: SGD(True), TypeError, "`learning_rate` must be a number"),
        (lambda: Momentum(0.1, 1.0), ValueError, "`momentum` .* less than 1"),
        (lambda: Adagrad(0.1, 0.0), ValueError, "`epsilon` must be at least 1e-37"),
        (lambda: Adagrad(0.1, initial_accumulator=-1), ValueError, "`initial_accumulator`"),
        (lambda: Adam(0.1, beta1=1.0), ValueError, "`beta1`"),
        (lambda: Adam(0.1, beta2=-0.1), ValueError, "`beta2`"),
        (lambda: Adam(0.1, epsilon=1e-60), ValueError, "`epsilon`"),
    ],
)
def test_malformed_settings_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_schedule_may_not_set_a_malformed_rate():
    optimizer = SGD(0.1)
    with pytest.raises(ValueError, match="`learning_rate`"):
        optimizer.learning_rate = -1.0
    assert optimizer.learning_rate == 0.1


# torch

TORCH = [
    ("sgd", {}, "SGD", {}),
    ("momentum", {}, "SGD", {"momentum": 0.9}),
    ("momentum", {"nesterov": True}, "SGD", {"momentum": 0.9, "nesterov": True}),
    ("adagrad", {"initial_accumulator": 0.1}, "Adagrad", {"initial_accumulator_value": 0.1}),
    ("adam", {"epsilon": 1e-20}, "Adam", {"eps": 1e-20}),
]
TORCH_SPARSE = [
    ("sgd", {}, "SGD", {}),
    ("adagrad", {"initial_accumulator": 0.1}, "Adagrad", {"initial_accumulator_value": 0.1}),
    ("adam", {"epsilon": 1e-20}, "SparseAdam", {"eps": 1e-20}),
]


@DTYPES
@pytest.mark.parametrize(
    ("case", "sparse"), [(c, False) for c in TORCH] + [(c, True) for c in TORCH_SPARSE]
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # in what torch makes itself
def test_steps_equal_those_of_torch(case, sparse, dtype):
    torch = pytest.importorskip("torch")
    name, options, peer, torch_options = case
    rng = np.random.default_rng(9)
    start = rng.normal(size=(8, 5)).astype(dtype)
    ours, parameters = make_optimizer(name, 0.1, **options), {"w": start.copy()}
    theirs = torch.nn.Parameter(torch.tensor(start))
    optimizer = getattr(torch.optim, peer)([theirs], lr=0.1, **torch_options)
    for _, g in history(rng, 8, (5,), dtype):
        dense = to_dense(g, (8, 5))
        ours.step(parameters, {"w": g if sparse else dense})
        ids, rows = torch.tensor(g.ids)[None], torch.tensor(g.rows)
        theirs.grad = (
            torch.sparse_coo_tensor(ids, rows, (8, 5), is_coalesced=True)
            if sparse
            else torch.tensor(dense)
        )
        optimizer.step()
    np.testing.assert_allclose(
        parameters["w"], theirs.detach().numpy(), rtol=0, atol=4 * TOLERANCE[dtype]
    )
