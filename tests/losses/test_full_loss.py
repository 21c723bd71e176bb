import tracemalloc

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles import naive_losses_full as naive
from scipy import sparse

from samplesoft.kernels.exponential import replace_by_exp32
from samplesoft.losses import full
from samplesoft.losses.full import FullSoftmaxLoss

MODELS = [
    {},
    {"tau": 3.0},
    {"normalize": True, "tau": 5.0},
    {"absolute": True},
    {"absolute": True, "normalize": True, "tau": 2.0},
]


def case(n=13, d=4, batch=6, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    h, rows = rng.standard_normal((batch, d)), rng.standard_normal((n, d))
    return h.astype(dtype), rows.astype(dtype), rng.integers(0, n, batch)


def many_labels(n=13, batch=6, seed=0):
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((batch, n)) < 0.3, rng.random((batch, n)), 0.0)
    dense[:, 2] += 0.5
    return sparse.csr_array(dense)


def dense_gradients(gradients):
    assert gradients.dW.ids.tolist() == list(range(len(gradients.dW.rows)))
    return gradients.dh, gradients.dW.rows, gradients.db and gradients.db.rows


@pytest.fixture(params=[1, 2, 7, 13, 1000])
def block_size(request, monkeypatch):
    monkeypatch.setattr(full, "_MIN_BLOCK_CLASSES", request.param)
    monkeypatch.setattr(full, "_BLOCK_SCORES", 1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("with_biases", [False, True])
@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_value_and_gradients(model, csr, with_biases, reduction):
    h, rows, labels = case()
    rng = np.random.default_rng(1)
    labels = many_labels() if csr else labels
    biases = rng.standard_normal(len(rows)) if with_biases else None
    weights = rng.random(len(h))
    loss = FullSoftmaxLoss(reduction=reduction, **model)
    value, cache = loss.forward(h, rows, labels, biases=biases, weights=weights)
    dh, dW, db = dense_gradients(loss.backward(cache))

    def oracle():
        return naive.value(h, rows, labels, weights, reduction, biases=biases, **model)

    np.testing.assert_allclose(value, oracle(), rtol=1e-13)
    assert np.shape(value) == ((len(h),) if reduction == "none" else ())
    pairs = [(dh, h), (dW, rows)] + ([(db, biases)] if with_biases else [])
    assert (db is None) is (biases is None)
    for gradient, array in pairs:
        numeric = naive.numeric_gradient(lambda: np.sum(oracle()), array)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_any_block_size_gives_the_same(block_size, model, csr, dtype):
    h, rows, labels = case(dtype=dtype)
    labels = many_labels() if csr else labels
    biases = np.linspace(-1.0, 1.0, len(rows)).astype(dtype)
    loss = FullSoftmaxLoss(reduction="none", **model)
    value, cache = loss.forward(h, rows, labels, biases=biases)
    gradients = dense_gradients(loss.backward(cache))
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    wide = [x.astype(np.float64) for x in (h, rows, biases)]
    expected = naive.losses(*wide[:2], labels, biases=wide[2], **model)
    np.testing.assert_allclose(value, expected, rtol=tolerance)
    numeric = [
        naive.numeric_gradient(
            lambda: naive.losses(*wide[:2], labels, biases=wide[2], **model).sum(), x
        )
        for x in wide
    ]
    for gradient, want in zip(gradients, numeric, strict=True):
        assert gradient.dtype == dtype
        np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=max(1e-8, tolerance))


@pytest.mark.parametrize("csr", [False, True])
def test_against_torch(csr):
    torch = pytest.importorskip("torch")
    h, rows, labels = case(n=501, d=16, batch=33, dtype=np.float32)
    labels = many_labels(501, 33) if csr else labels
    leaves = [torch.tensor(x, requires_grad=True) for x in (h, rows, np.ones(501, np.float32))]
    logits = 2.0 * leaves[0] @ leaves[1].T + leaves[2]
    target = torch.tensor(naive.shares(labels, 501), dtype=torch.float32)
    expected = torch.nn.functional.cross_entropy(logits, target)
    expected.backward()
    loss = FullSoftmaxLoss(tau=2.0)
    value, cache = loss.forward(h, rows, labels, biases=np.ones(501))
    assert value == pytest.approx(expected.item(), rel=1e-6)
    for gradient, leaf in zip(dense_gradients(loss.backward(cache)), leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-4, atol=1e-7)


def test_the_number_of_threads_changes_nothing(threads):
    results = []
    for count in (1, 3):
        threads(count)
        h, rows, labels = case(n=5000, d=70, batch=40, dtype=np.float32)
        loss = FullSoftmaxLoss(normalize=True, tau=4.0)
        value, cache = loss.forward(h, rows, labels)
        results.append((value, loss.backward(cache)))
    (value, gradients), (other_value, other) = results
    assert value == other_value
    np.testing.assert_array_equal(gradients.dh, other.dh)
    np.testing.assert_array_equal(gradients.dW.rows, other.dW.rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("label", [0, 1, 2])
def test_scores_of_ten_thousand(dtype, label, block_size):
    h, rows = np.array([[100.0]], dtype), np.array([[100.0], [-100.0], [99.99]], dtype)
    loss = FullSoftmaxLoss()
    value, cache = loss.forward(h, rows, [label])
    exact = naive.exact_loss(h.astype(float)[0] * rows.astype(float)[:, 0], label)
    assert value == pytest.approx(float(exact), rel=1e-3 if dtype == np.float32 else 1e-12)
    dh, dW, _ = dense_gradients(loss.backward(cache))
    assert np.isfinite(dh).all()
    p = np.exp(-np.array([0.0, np.inf, 1.0])) / (1.0 + np.exp(-1.0))
    p[label] -= 1.0
    np.testing.assert_allclose(dW[:, 0], 100.0 * p, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("margin", [10.0, 40.0, 80.0, 600.0])
def test_small_losses_keep_their_digits(dtype, margin):
    n, tolerance = 50, 3e-6 if dtype == np.float32 else 1e-12
    rows = np.zeros((n, 1), dtype)
    rows[7] = margin
    loss = FullSoftmaxLoss()
    value, cache = loss.forward(np.ones((1, 1), dtype), rows, [7])
    exact = float(naive.exact_loss(rows[:, 0], 7))
    assert value == pytest.approx(exact, rel=tolerance, abs=0.0)
    assert value > 0.0
    if margin < 80.0 or dtype == np.float64:  # else the result is not a normal float32
        d_label = loss.backward(cache).dW.rows[7, 0]
        assert d_label == pytest.approx(np.expm1(-exact), rel=tolerance, abs=0.0)


def test_small_losses_with_several_labels():
    rows = np.array([[0.0], [50.0], [50.0], [-3.0]])
    labels = sparse.csr_array([[0.0, 1.0, 1.0, 0.0]])
    value, cache = FullSoftmaxLoss().forward([[1.0]], rows, labels)
    assert value == pytest.approx(np.log(2.0), rel=1e-14)
    np.testing.assert_allclose(
        FullSoftmaxLoss().backward(cache).dW.rows[:, 0],
        [np.exp(-50.0) / 2.0, 0.0, 0.0, np.exp(-53.0) / 2.0],
        rtol=1e-10,
        atol=1e-16,
    )


def test_one_class_has_no_loss():
    for dtype in (np.float32, np.float64):
        loss = FullSoftmaxLoss()
        value, cache = loss.forward(np.ones((2, 3), dtype), np.ones((1, 3), dtype), [0, 0])
        gradients = loss.backward(cache)
        assert value == 0.0
        assert not gradients.dh.any()
        assert not gradients.dW.rows.any()


def test_one_example_of_one_dimension():
    loss = FullSoftmaxLoss()
    value, _ = loss.forward([[2.0]], [[1.0], [0.0]], [1])
    assert value == pytest.approx(np.log1p(np.exp(2.0)))


def test_one_label_repeated():
    h, rows, _ = case()
    labels = np.full(len(h), 5)
    loss = FullSoftmaxLoss(reduction="sum")
    value, cache = loss.forward(h, rows, labels)
    assert value == pytest.approx(naive.value(h, rows, labels, reduction="sum"), rel=1e-13)
    numeric = naive.numeric_gradient(lambda: naive.value(h, rows, labels, reduction="sum"), rows)
    np.testing.assert_allclose(loss.backward(cache).dW.rows, numeric, rtol=1e-6, atol=1e-8)


def test_a_score_of_zero_has_no_slope_in_absolute_softmax():
    loss = FullSoftmaxLoss(absolute=True)
    _, cache = loss.forward(np.zeros((1, 2)), np.ones((3, 2)), [1])
    gradients = loss.backward(cache)
    assert not gradients.dh.any()
    assert not gradients.dW.rows.any()


def test_backward_leaves_the_cache_as_it_was():
    h, rows, labels = case()
    before = h.copy(), rows.copy()
    for model in MODELS:
        loss = FullSoftmaxLoss(**model)
        _, cache = loss.forward(h, rows, labels)
        first, second = loss.backward(cache), loss.backward(cache)
        np.testing.assert_array_equal(first.dh, second.dh)
        np.testing.assert_array_equal(first.dW.rows, second.dW.rows)
        np.testing.assert_array_equal(h, before[0])
        np.testing.assert_array_equal(rows, before[1])


def test_gradients_in_scores_sum_to_zero_and_match_probabilities():
    h, rows, labels = case(n=300, batch=3)
    loss = FullSoftmaxLoss(reduction="sum")
    _, cache = loss.forward(h, rows, labels, biases=np.zeros(300))
    db = loss.backward(cache).db.rows
    o = naive.scores(h, rows)
    p = np.exp(o) / np.exp(o).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(db, (p - np.eye(300)[labels]).sum(axis=0), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("model", [{}, {"normalize": True}, {"absolute": True}], ids=str)
def test_memory_is_that_of_the_gradients(itemsize, model):
    dtype = np.float32 if itemsize == 4 else np.float64
    n, d, batch = 60_000, 4, 512
    h, rows, labels = case(n, d, batch, dtype=dtype)
    loss = FullSoftmaxLoss(**model)
    loss.backward(loss.forward(h[:2], rows[:9], labels[:2] % 9)[1])  # compiled beforehand
    tracemalloc.start()
    loss.backward(loss.forward(h, rows, labels)[1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    gradients = n * d * itemsize + n * 8
    all_scores = batch * n * itemsize
    assert peak - gradients < all_scores / 10


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_messages(dtype):
    h, rows, labels = case(dtype=dtype)
    loss = FullSoftmaxLoss(normalize=True)
    bad = h.copy()
    bad[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"`h` must be finite.*\[4, 1\]"):
        loss.forward(bad, rows, labels)
    bad = rows.copy()
    bad[11] = np.inf
    with pytest.raises(ValueError, match="`class_embeddings`.*row 11"):
        loss.forward(h, bad, np.zeros(6, int))
    with pytest.raises(ValueError, match="`class_embeddings`.*row 11"):
        loss.forward(h, bad, np.full(6, 11))
    for value in (np.nan, np.inf):
        bad[11] = value
        with pytest.raises(ValueError, match=r"`class_embeddings` must be finite.*row 11 "):
            FullSoftmaxLoss().forward(h, bad, np.zeros(6, int))
    for label in (-1, 13):
        with pytest.raises(ValueError, match=r"`labels` must lie in 0\.\.12"):
            loss.forward(h, rows, np.full(6, label))
    with pytest.raises(ValueError, match="`h` must be rows|`h` must not be empty"):
        loss.forward(h[:0], rows, labels[:0])
    with pytest.raises(ValueError, match=r"`labels` must have shape"):
        loss.forward(h, rows, labels[:3])
    huge = np.finfo(dtype).max
    with pytest.raises(ValueError, match="the loss of example 0 must be finite"):
        FullSoftmaxLoss().forward(np.full((1, 2), huge), np.full((3, 2), huge, dtype), [0])


def test_float32_exponential():
    x = -np.linspace(0.0, 87.0, 200_001, dtype=np.float32)
    got = x.copy()
    replace_by_exp32(got, got.size)
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=1.2e-7)
    special = np.array([0.0, -88.0, -np.inf, np.nan], np.float32)
    replace_by_exp32(special, special.size)
    np.testing.assert_array_equal(special, np.array([1.0, 0.0, 0.0, np.nan], np.float32))


def test_the_likeliest_of_several_labels_is_what_the_others_are_measured_from():
    """Measured from the other, a loss of 3e-11 would be the rest of numbers of 30."""
    loss = FullSoftmaxLoss()
    labels = sparse.csr_array([[1.0, 1e-12, 0.0]])
    value, cache = loss.forward(np.array([[30.0, 0.0, 1.0]]), np.eye(3), labels)
    gradients = loss.backward(cache)
    with mp.workdps(50):
        e = [mp.exp(30), mpf(1), mp.exp(1)]
        share = 1 / (1 + mpf(1e-12))
        exact = mp.log(mp.fsum(e)) - 30 * share
        slopes = [e[0] / mp.fsum(e) - share, e[1] / mp.fsum(e) - (1 - share), e[2] / mp.fsum(e)]
        assert abs(mpf(value) - exact) <= 1e-14 * exact
        for got, wanted in zip(gradients.dh[0], slopes, strict=True):
            assert abs(mpf(got) - wanted) <= 1e-3 * abs(wanted)  # of shares that add up to 1
