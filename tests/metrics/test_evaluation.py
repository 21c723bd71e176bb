import dataclasses
import itertools
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_losses_full as naive
from scipy import sparse

from samplesoft.losses import full
from samplesoft.metrics.evaluation import Evaluation, evaluate
from samplesoft.search import top_k_classes

MODELS = [
    {},
    {"tau": 4.0, "normalize": True},
    {"absolute": True},
    {"biases": np.linspace(-2.0, 2.0, 23)},
    {"biases": np.linspace(-2.0, 2.0, 23), "absolute": True, "tau": 0.5},
]


def case(n=23, d=5, batch=11, seed=0):
    rng = np.random.default_rng(seed)
    h, rows = rng.standard_normal((batch, d)), rng.standard_normal((n, d))
    labels = rng.integers(0, n, batch)
    dense = (rng.random((batch, n)) < 0.2) * rng.random((batch, n))
    dense[:, 3] = 0.25
    return h, rows, labels, sparse.csr_array(dense)


@pytest.fixture(params=[1, 2, 7, 23])
def block_size(request, monkeypatch):
    monkeypatch.setattr(full, "_MIN_BLOCK_CLASSES", request.param)
    monkeypatch.setattr(full, "_BLOCK_SCORES", 1)


@pytest.mark.parametrize("batch_size", [1, 4, 1000])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: ",".join(model))
def test_against_the_definition(model, several, batch_size):
    h, rows, labels, many = case()
    labels = many if several else labels
    sizes = (1, 3, 23)
    result = evaluate(h, rows, labels, k=sizes, batch_size=batch_size, **model)
    losses = naive.losses(h, rows, labels, **model)
    assert result.loss == pytest.approx(losses.mean(), rel=1e-12)
    assert result.perplexity == pytest.approx(np.exp(losses.mean()), rel=1e-12)
    assert result.num_examples == len(h)
    o = naive.scores(h, rows, **model)
    assert list(result.top_k) == list(result.precision_at_k) == list(sizes)
    for k in sizes:
        hits, pairs = naive.hits(o, labels, k)
        assert result.top_k[k] == hits / pairs
        assert result.precision_at_k[k] == pytest.approx(hits / (k * len(h)), rel=1e-15)
    assert result.top_k[23] == 1.0


@pytest.mark.parametrize("normalize, tau", [(False, 1.0), (True, 10.0)])
def test_the_default_tau_follows_normalize(normalize, tau):
    h, rows, labels, _ = case()
    wanted = evaluate(h, rows, labels, tau=tau, normalize=normalize)
    assert evaluate(h, rows, labels, normalize=normalize) == wanted
    scores = top_k_classes(h, rows, 3, tau=tau, normalize=normalize)[1]
    np.testing.assert_array_equal(top_k_classes(h, rows, 3, normalize=normalize)[1], scores)


@pytest.mark.parametrize("k", [1, 4, 9, 40])
def test_of_equal_scores_the_first_class_is_best(block_size, k):
    rng = np.random.default_rng(3)
    h, rows = np.ones((6, 1)), rng.integers(-2, 3, (40, 1)).astype(float)
    h[3:] = -1.0
    h[5] = 0.0  # all are equal
    ids, _ = top_k_classes(h, rows, k)
    np.testing.assert_array_equal(ids, naive.ranking(h @ rows.T)[:, :k])
    scores = h @ rows.T  # of which each label shares the places with those that are equal
    own = scores[np.arange(6), np.arange(6)][:, None]
    better, equal = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    wanted = np.clip((k - better) / equal, 0.0, 1.0)
    result = evaluate(h, rows, np.arange(6), k=k)
    assert result.top_k[k] == pytest.approx(wanted.mean(), rel=1e-14)


def test_types():
    h, rows, labels, _ = case()
    ids, scores = top_k_classes(h, rows.astype(np.float32), 3)
    assert (ids.dtype, scores.dtype) == (np.int64, np.float32)
    narrow = evaluate(h, rows.astype(np.float32), labels)
    assert narrow.loss == pytest.approx(evaluate(h, rows, labels).loss, rel=1e-6)


@pytest.mark.parametrize("form", ["csr_array", "csc_matrix", "coo_array", "lil_matrix"])
def test_any_sparse_matrix(form):
    h, rows, _, many = case()
    other = getattr(sparse, form)(many)
    assert evaluate(h, rows, other, batch_size=4) == evaluate(h, rows, many, batch_size=4)


def test_labels_may_be_a_list():
    assert evaluate([[1.0]], [[1.0], [0.0]], [0], k=1).top_k == {1: 1.0}


def test_the_loss_alone():
    h, rows, labels, _ = case()
    result = evaluate(h, rows, labels, k=(), batch_size=4)
    assert result.loss == pytest.approx(evaluate(h, rows, labels).loss, rel=1e-14)
    assert result.top_k == result.precision_at_k == {}


def test_one_class():
    result = evaluate([[1.0], [2.0]], [[3.0]], [0, 0], k=1)
    assert result == Evaluation(0.0, 1.0, {1: 1.0}, {1: 1.0}, 2)


def test_perplexity_beyond_the_range_is_infinite():
    result = evaluate([[100.0]], [[100.0], [-100.0]], [1], k=1)
    assert (result.loss, result.perplexity) == (20_000.0, np.inf)


def test_an_evaluation_goes_to_json():
    h, rows, labels, _ = case()
    result = evaluate(h, rows, labels, k=[5, 1, 5])
    copy = json.loads(json.dumps(dataclasses.asdict(result)))
    assert copy["top_k"] == {"1": result.top_k[1], "5": result.top_k[5]}
    assert list(copy) == [field.name for field in dataclasses.fields(result)]


def test_no_matrix_of_all_scores():
    n, batch = 100_000, 512
    rng = np.random.default_rng(0)
    h = rng.standard_normal((batch, 2)).astype(np.float32)
    rows = rng.standard_normal((n, 2)).astype(np.float32)
    evaluate(h[:3], rows[:9], np.zeros(3, int))  # compiled beforehand
    tracemalloc.start()
    evaluate(h, rows, np.zeros(batch, int))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < batch * n * 4 / 20


def test_messages():
    h, rows, labels, many = case()
    for k in (24, [1, 24]):
        with pytest.raises(
            ValueError, match="`k` must be at most the number of classes 23, got 24"
        ):
            evaluate(h, rows, labels, k=k)
    with pytest.raises(ValueError, match="`k` must be at most the number of classes 23, got 24"):
        top_k_classes(h, rows, 24)
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        evaluate(h, rows, labels, k=[0])
    with pytest.raises(TypeError, match="`k` must be an integer"):
        evaluate(h, rows, labels, k=[1.5])
    with pytest.raises(ValueError, match="`batch_size` must be at least 1"):
        evaluate(h, rows, labels, batch_size=0)
    with pytest.raises(ValueError, match="`tau`"):
        top_k_classes(h, rows, 1, tau=0.0)
    with pytest.raises(ValueError, match="`biases` must have shape"):
        top_k_classes(h, rows, 1, biases=[1.0])
    no_number = h.copy()
    no_number[9, 2] = np.nan
    with pytest.raises(ValueError, match=r"`h` must be finite.*\[9, 2\]"):
        evaluate(no_number, rows, labels, batch_size=4)
    empty = many.toarray()
    empty[8] = 0.0
    with pytest.raises(ValueError, match="none in row 8"):
        evaluate(h, rows, sparse.csr_array(empty), batch_size=4)
    for value in (np.nan, np.inf):
        bad = rows.copy()
        bad[17] = value
        with pytest.raises(ValueError, match=r"`class_embeddings` must be finite.*row 17 "):
            evaluate(h, bad, labels)
        with pytest.raises(ValueError, match="`class_embeddings` must be finite"):
            top_k_classes(h, bad, 2)


@pytest.mark.parametrize("n, k", [(2, 1), (9, 4), (9, 9), (40, 3)])
def test_of_equal_scores_each_class_is_as_likely(n, k):
    for label in (0, n // 2, n - 1):
        result = evaluate(np.ones((2, 3)), np.ones((n, 3)), [label, label], k=k)
        assert result.top_k[k] == pytest.approx(k / n, rel=1e-14)
        assert result.precision_at_k[k] == pytest.approx(1 / n, rel=1e-14)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.data())
def test_ties_are_averaged_over_all_orders(scores, data):
    n = len(scores)
    labels = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    k = data.draw(st.integers(1, n))
    wanted = np.zeros((1, n))
    wanted[0, labels] = 1.0
    result = evaluate([[1.0]], np.array(scores)[:, None], sparse.csr_array(wanted), k=k)
    shares = []
    for order in itertools.permutations(range(n)):
        best = sorted(order, key=lambda i: -scores[i])[:k]  # sorts are stable
        shares.append(len(set(best) & set(labels)))
    expected = np.mean(shares)
    assert result.top_k[k] == pytest.approx(expected / len(labels), rel=1e-12)
    assert result.precision_at_k[k] == pytest.approx(expected / k, rel=1e-12)
