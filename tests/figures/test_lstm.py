import numpy as np
import pytest
from language_model import step_products
from language_model.lstm import LSTM, TERMS, gates_forward
from oracles import naive_models

DTYPES = [np.float32, np.float64]


def make(rng, steps=4, batch=3, dim=5, size=4, num_layers=2, dtype=np.float64, **options):
    lstm = LSTM(dim, size, num_layers=num_layers, dtype=dtype, rng=1, **options)
    x = rng.standard_normal((steps, batch, dim)).astype(dtype)
    state = tuple(rng.standard_normal((2, num_layers, batch, size)).astype(dtype) * 0.7)
    return lstm, x, state


def layers_of(lstm):
    return [
        tuple(lstm.parameters[f"{name}_{k}"].tolist() for name in ("input", "recurrent", "bias"))
        for k in range(lstm.num_layers)
    ]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("steps", "batch", "num_layers"), [(1, 1, 1), (1, 4, 2), (5, 1, 3), (4, 11, 1), (3, 21, 2)]
)
def test_forward_follows_the_naive_one(rng, dtype, steps, batch, num_layers):
    lstm, x, state = make(rng, steps, batch, num_layers=num_layers, dtype=dtype)
    y, (h, c), _ = lstm.forward(x, state)
    expected = naive_models.lstm(x, *state, layers_of(lstm))
    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    for ours, theirs in zip((y, h, c), expected, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def test_no_state_is_a_state_of_zeros(rng):
    lstm, x, state = make(rng)
    zeros = tuple(np.zeros_like(part) for part in state)
    np.testing.assert_array_equal(lstm.forward(x)[0], lstm.forward(x, zeros)[0])


@pytest.mark.parametrize(
    ("steps", "batch", "num_layers", "dropout"),
    [(1, 1, 1, 0.0), (4, 3, 2, 0.0), (3, 2, 3, 0.4), (2, 12, 2, 0.5)],
)
def test_gradients_are_those_of_differences(rng, steps, batch, num_layers, dropout):
    lstm, x, state = make(rng, steps, batch, 3, 2, num_layers, dropout=dropout, init_scale=1.0)
    weights = rng.standard_normal((steps, batch, 2))

    def value():
        return np.sum(weights * lstm.forward(x, state, rng=5, training=True)[0])

    _, _, cache = lstm.forward(x, state, rng=5, training=True)
    dx, gradients = lstm.backward(cache, weights)
    np.testing.assert_allclose(dx, naive_models.differences(value, x), rtol=0, atol=2e-9)
    assert gradients.keys() == lstm.parameters.keys()
    for name, parameter in lstm.parameters.items():
        slopes = naive_models.differences(value, parameter)
        np.testing.assert_allclose(gradients[name], slopes, rtol=0, atol=1e-8, err_msg=name)


def test_gradients_in_float32_are_those_in_float64(rng):
    double, x, state = make(rng, 7, 21, 6, 24)
    single, _, _ = make(rng, 7, 21, 6, 24, dtype=np.float32)
    for name, parameter in single.parameters.items():
        double.parameters[name][:] = parameter
    dy = rng.standard_normal((7, 21, 24))
    exact, _, cache = double.forward(x, state)
    dx, gradients = double.backward(cache, dy)
    y, _, cache = single.forward(x.astype(np.float32), tuple(s.astype(np.float32) for s in state))
    dx32, gradients32 = single.backward(cache, dy.astype(np.float32))
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-6)
    np.testing.assert_allclose(dx32, dx, rtol=0, atol=1e-5)
    for name, gradient in gradients.items():
        assert gradients32[name].dtype == np.float32
        np.testing.assert_allclose(gradients32[name], gradient, rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("small", [1 << 18, 1 << 14])
def test_large_and_small_weights_take_the_same_steps(rng, monkeypatch, small):
    lstm, x, state = make(rng, 3, 23, 5, 27)
    monkeypatch.setattr(step_products, "_ALONE", 0)  # one product, uncut
    y, _, cache = lstm.forward(x, state)
    dx, gradients = lstm.backward(cache, y)
    monkeypatch.setattr(step_products, "_ALONE", small)
    other, _, cache = lstm.forward(x, state)
    np.testing.assert_allclose(other, y, rtol=0, atol=1e-14)
    other_dx, other_gradients = lstm.backward(cache, y)
    np.testing.assert_allclose(other_dx, dx, rtol=0, atol=1e-13)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(other_gradients[name], gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 40, 70), (1, 30, 64), (5, 20, 19)])
def test_pieces_make_the_whole_product(rng, monkeypatch, rows, depth, columns):
    monkeypatch.setattr(step_products, "_ALONE", 16 * rows * depth)
    monkeypatch.setattr(step_products, "_COLUMNS", 0)
    x, weights = rng.standard_normal((rows, depth)), rng.standard_normal((depth, columns))
    out = np.full((rows, columns), np.nan)
    pieces = step_products.column_pieces(weights, out)
    assert all(piece.shape[-1] <= 16 for piece, _ in pieces)
    for piece, place in pieces:
        np.matmul(x, piece, out=place)
    np.testing.assert_allclose(out, x @ weights, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (7, 3, 5), (20, 200, 64), (61, 450, 130), (285, 9, 3)]
)
def test_long_products_are_those_of_numpy_at_any_number_of_threads(rng, threads, dtype, shape):
    long, inner, columns = shape
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((long, inner), (inner, columns)))
    wanted = a.astype(float) @ b.astype(float)
    atol = 1e-4 if dtype == np.float32 else 1e-12
    first = None
    for count in (1, 2, 5):
        threads(count)
        out, other = (np.full((long, columns), np.nan, dtype) for _ in range(2))
        copies = np.ascontiguousarray(a.T).T, np.ascontiguousarray(b.T).T
        step_products.products([(a, b, out), (*copies, other)])
        np.testing.assert_allclose(out, wanted, rtol=0, atol=atol)
        np.testing.assert_allclose(other, wanted, rtol=0, atol=atol)
        first = out if first is None else first
        np.testing.assert_array_equal(out, first)


def test_parts_cover_the_batch_evenly():
    weights = np.empty((200, 800))
    for batch in range(1, 50):
        parts = step_products.row_parts(batch, weights)
        covered = [b for part in parts for b in range(part.start, part.stop)]
        assert covered == list(range(batch))
        assert all(part.stop - part.start <= 10 for part in parts)
    assert step_products.row_parts(20, np.empty((5000, 20000))) == [slice(0, 20)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout", [0.0, 0.6])
def test_against_torch(rng, dtype, dropout):
    torch = pytest.importorskip("torch")
    steps, batch, size = 9, 12, 20
    lstm, x, state = make(rng, steps, batch, 7, size, dtype=dtype, dropout=dropout)
    y, last, cache = lstm.forward(x, state, rng=2, training=True)
    dy = rng.standard_normal(y.shape).astype(dtype)
    dx, gradients = lstm.backward(cache, dy)
    order = np.r_[: 2 * size, 3 * size : 4 * size, 2 * size : 3 * size]  # torch has i, f, g, o
    names = {"weight_ih_l0": "input", "weight_hh_l0": "recurrent", "bias_ih_l0": "bias"}
    given = inputs = torch.tensor(x, requires_grad=True)
    peers = []
    for k in range(2):
        peer = torch.nn.LSTM(inputs.shape[-1], size, dtype=inputs.dtype)
        with torch.no_grad():
            peer.bias_hh_l0.zero_()
            for name, ours in names.items():
                value = lstm.parameters[f"{ours}_{k}"].T[order]
                getattr(peer, name).copy_(torch.tensor(np.ascontiguousarray(value)))
        if k and cache[1].factors is not None:
            inputs = inputs * torch.tensor(cache[1].factors)
        start = tuple(torch.tensor(part[k : k + 1]) for part in state)
        inputs, end = peer(inputs, start)
        for ours, theirs in zip(last, end, strict=True):
            np.testing.assert_allclose(
                ours[k], theirs[0].detach().numpy(), rtol=0, atol=20 * np.finfo(dtype).eps
            )
        peers.append(peer)
    inputs.backward(torch.tensor(dy))
    tolerance = 500 * np.finfo(dtype).eps
    np.testing.assert_allclose(y, inputs.detach().numpy(), rtol=0, atol=tolerance)
    np.testing.assert_allclose(dx, given.grad.numpy(), rtol=0, atol=tolerance)
    for k, peer in enumerate(peers):
        for name, ours in names.items():
            theirs = getattr(peer, name).grad.numpy()
            np.testing.assert_allclose(
                gradients[f"{ours}_{k}"].T[order], theirs, rtol=1e-5, atol=20 * tolerance
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_large_inputs(rng, dtype, scale):
    lstm, x, state = make(rng, dtype=dtype, init_scale=1.0)
    x = np.sign(x) * dtype(scale)
    y, (_, c), cache = lstm.forward(x, state)
    expected = naive_models.lstm(x, *state, layers_of(lstm))
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=2e-6 if dtype == np.float32 else 1e-14)
    np.testing.assert_allclose(c, expected[2], rtol=0, atol=4e-6 if dtype == np.float32 else 1e-14)
    dx, gradients = lstm.backward(cache, np.ones_like(y))
    assert np.isfinite(dx).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_follow_sigmoid_and_tanh_to_rounding(rng, dtype):
    z = np.concatenate(
        [
            rng.uniform(-30, 30, 2000),
            rng.choice([-1, 1], 2000) * 10 ** rng.uniform(-12, 1, 2000),
            [0.0, -0.0, 1e4, -1e4, 1e30, -1e30, np.inf, -np.inf],
        ]
    ).astype(dtype)
    size = len(z)
    gates = np.tile(z, 4)[None, None]
    recurrent, bias = np.zeros((1, 4 * size), dtype), np.zeros(4 * size, dtype)
    cells, hidden, tanh_cells = (np.zeros((2, 1, size), dtype) for _ in range(3))
    gates_forward(0, 0, recurrent, bias, gates, cells, tanh_cells, hidden, TERMS[z.dtype])
    i, f, o, g = gates[0, 0].reshape(4, size)
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-z.astype(np.longdouble)))
    tolerance = 2.5 * np.finfo(dtype).eps
    for gate in (i, f, o):
        np.testing.assert_allclose(gate, sigmoid, rtol=tolerance, atol=np.finfo(dtype).tiny * 2)
    np.testing.assert_allclose(g, np.tanh(z.astype(np.longdouble)), rtol=tolerance)
    np.testing.assert_array_equal(cells[1, 0], i * g)
    np.testing.assert_array_equal(hidden[1, 0], o * tanh_cells[0, 0])


def test_nan_in_a_weight_is_not_hidden(rng):
    lstm, x, state = make(rng, num_layers=1)
    lstm.parameters["recurrent_0"][0, 0] = np.nan
    with pytest.raises(ValueError, match="look at the weights"):
        lstm.forward(x, state)


def test_a_sequence_in_two_parts_gives_the_same_outputs(rng):
    lstm, x, state = make(rng, steps=9, batch=12)
    y, last, _ = lstm.forward(x, state)
    first, between, _ = lstm.forward(x[:4], state)
    second, end, _ = lstm.forward(x[4:], between)
    np.testing.assert_allclose(np.concatenate([first, second]), y, rtol=0, atol=1e-14)
    np.testing.assert_allclose(end, last, rtol=0, atol=1e-14)


def test_later_calls_leave_earlier_results_alone(rng):
    lstm, x, state = make(rng)
    given = [array.copy() for array in (x, *state)]
    y, last, cache = lstm.forward(x, state)
    kept = [array.copy() for array in (y, *last)]
    dx, gradients = lstm.backward(cache, np.ones_like(y))
    again_y, again, again_cache = lstm.forward(2.0 * x, last)
    lstm.backward(again_cache, np.ones_like(y))
    for array, copy in zip((y, *last, x, *state), kept + given, strict=True):
        np.testing.assert_array_equal(array, copy)
    for array in last:
        assert not np.shares_memory(array, y)
        assert not any(np.shares_memory(array, part) for part in cache[-1] if part is not None)
    repeated, same = lstm.backward(cache, np.ones_like(y))  # the cache is as it was
    np.testing.assert_array_equal(repeated, dx)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(same[name], gradient)


def test_results_do_not_depend_on_the_number_of_threads(rng, threads):
    lstm, x, state = make(rng, steps=5, batch=33, size=16, dropout=0.5, dtype=np.float32)
    results = []
    for count in (1, 3):
        threads(count)
        y, last, cache = lstm.forward(x, state, rng=7, training=True)
        dx, gradients = lstm.backward(cache, y)
        results.append([cache[1].factors, y, *last, dx, *gradients.values()])
        results[-1] += LSTM(5, 16, rng=1).parameters.values()
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)


def test_dropout_is_between_layers_only_and_in_training_only(rng):
    lstm, x, state = make(rng, num_layers=3, dropout=0.5)
    plain, _, cache = lstm.forward(x, state, rng=1)
    assert [run.factors for run in cache] == [None] * 3
    y, _, cache = lstm.forward(x, state, rng=1, training=True)
    assert cache[0].factors is None
    assert set(np.unique(cache[1].factors)) == {0.0, 2.0}
    assert np.any(cache[1].factors != cache[2].factors)
    assert np.any(y != plain)
    factors = [run.factors for run in cache]
    expected, _, _ = naive_models.lstm(x, *state, layers_of(lstm), factors)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-14)
    same, _, _ = lstm.forward(x, state, rng=1, training=True)
    np.testing.assert_array_equal(same, y)
    other, _, _ = lstm.forward(x, state, rng=2, training=True)
    assert np.any(other != y)


def test_weights_start_uniform():
    lstm = LSTM(30, 40, num_layers=2, init_scale=0.1, rng=0)
    shapes = {name: value.shape for name, value in lstm.parameters.items()}
    assert shapes == {
        "input_0": (30, 160),
        "recurrent_0": (40, 160),
        "bias_0": (160,),
        "input_1": (40, 160),
        "recurrent_1": (40, 160),
        "bias_1": (160,),
    }
    every = np.concatenate([value.ravel() for value in lstm.parameters.values()])
    assert abs(every).max() <= np.float32(0.1)
    counts = np.histogram(every, 20, (-0.1, 0.1))[0]
    expected = every.size / 20
    assert np.sum((counts - expected) ** 2 / expected) < 43.8  # chi-square, 19 degrees, 1e-3
    assert len(np.unique(every)) > 0.99 * every.size  # no stream is used twice
    assert abs(LSTM(3, 25, rng=0).parameters["input_0"]).max() == pytest.approx(0.2, rel=0.02)


def test_arrays_in_other_memory_orders(rng):
    lstm, x, state = make(rng)
    y, last, cache = lstm.forward(x, state)
    turned = np.asfortranarray(x)
    again, _, _ = lstm.forward(turned, tuple(np.asfortranarray(s) for s in state))
    np.testing.assert_array_equal(again, y)
    dx, _ = lstm.backward(cache, y)
    np.testing.assert_array_equal(lstm.backward(cache, np.asfortranarray(y))[0], dx)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.zeros((0, 3, 5))}, ValueError, r"`x` must have shape \(\*, \*, 5\), not empty"),
        ({"x": np.zeros((4, 3, 6))}, ValueError, r"got \(4, 3, 6\)"),
        ({"x": np.zeros((4, 5))}, ValueError, r"got \(4, 5\)"),
        ({"x": np.zeros((4, 3, 5), np.float32)}, TypeError, "float64, got float32.*astype"),
        ({"x": [[[0.0] * 5] * 3] * 4}, TypeError, "numpy array, got list"),
        ({"x": np.full((4, 3, 5), np.nan)}, ValueError, "`x` must be finite"),
        ({"state": np.zeros((2, 2, 3, 4))}, TypeError, "`state` must be a pair"),
        ({"state": (np.zeros((2, 3, 4)),) * 3}, TypeError, "`state` must be a pair"),
        ({"state": (np.zeros((2, 3, 4)), np.zeros((1, 3, 4)))}, ValueError, r"`state\[1\]`"),
        ({"state": (np.full((2, 3, 4), np.inf),) * 2}, ValueError, r"`state\[0\]`.*finite"),
        ({"rng": "seed", "training": True}, TypeError, "`rng`"),
    ],
)
def test_bad_arguments_of_forward(rng, change, error, message):
    lstm, x, state = make(rng)
    with pytest.raises(error, match=message):
        lstm.forward(**({"x": x, "state": state} | change))


@pytest.mark.parametrize(
    ("dy", "error"),
    [(np.zeros((4, 3, 5)), ValueError), (np.zeros((4, 3, 4), np.float32), TypeError)],
)
def test_bad_derivatives(rng, dy, error):
    lstm, x, state = make(rng)
    _, _, cache = lstm.forward(x, state)
    with pytest.raises(error, match="`dy`"):
        lstm.backward(cache, dy)


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"input_size": 0}, ValueError, "input_size"),
        ({"hidden_size": 2.5}, TypeError, "hidden_size"),
        ({"num_layers": 0}, ValueError, "num_layers"),
        ({"dropout": 1.0}, ValueError, "dropout"),
        ({"dropout": np.nan}, ValueError, "dropout"),
        ({"dropout": "half"}, TypeError, "dropout"),
        ({"init_scale": -0.1}, ValueError, "init_scale"),
        ({"dtype": np.float16}, TypeError, "dtype"),
    ],
)
def test_bad_settings(options, error, name):
    with pytest.raises(error, match=f"`{name}`"):
        LSTM(**({"input_size": 3, "hidden_size": 2} | options))
