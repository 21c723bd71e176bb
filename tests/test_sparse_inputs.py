"""Sparse matrices of any type and format: repeated entries, and rows of one dimension."""

import re

import numpy as np
import pytest
from scipy import sparse

from samplesoft._validation import as_csr
from samplesoft.losses import FullSoftmaxLoss, two_level_tree
from samplesoft.metrics import evaluate, ranking_scores, target_ranks, top_k_classes
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.linear import Linear
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.samplers import BigramSampler
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import RetrievalSettings, RetrievalTask
from samplesoft.training.trained import TrainedLinearSoftmax

N = 5
COLUMNS = [3, 1]  # of the row: the first once, the second so often that the sum is 0 in few bits
TYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4"]
FORMATS = ["coo", "csr", "csc", "bsr", "coo of one dimension", "csr of one dimension"]
SOME = [("u1", "coo"), ("i2", "coo of one dimension"), ("u4", "bsr"), ("?", "coo"), ("?", "csr")]
H, W = np.ones((1, 2)), np.random.default_rng(0).standard_normal((N, 2))
SCORES = np.arange(N, dtype=float)[None]
TAKEN = sparse.csr_array(np.kron(np.eye(2), np.ones((6, 3))))[:, :N]


def entries(dtype, whole=False):
    """Return columns and values whose sums wrap to 0 in column 1, and what they are in truth."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        value, times, total = True, 2, 1.0
    elif whole:  # ones, as in an indicator
        value, times, total = 1, 2 ** min(8 * kind.itemsize, 9), 2.0 ** min(8 * kind.itemsize, 9)
    else:
        bits = 8 * kind.itemsize
        value, times = (2 ** (bits - 2), 4) if kind.kind == "i" else (2 ** (bits - 1), 2)
        total = float(value * times)
    columns = np.array([COLUMNS[0]] + [COLUMNS[1]] * times)
    truth = np.zeros(N)
    truth[COLUMNS] = float(value), total
    return columns, np.full(len(columns), value, dtype), truth


def row(dtype, form):
    """Return one row with repeated entries in a type and a format, and the same as an array."""
    columns, values, truth = entries(dtype)
    num, of_row = len(columns), np.zeros(len(columns), int)
    made = {
        "coo": lambda: sparse.coo_array((values, (of_row, columns)), (1, N)),
        "csr": lambda: sparse.csr_array((values, columns, [0, num]), (1, N)),
        "csc": lambda: sparse.csc_array(
            (values, of_row, np.searchsorted(np.sort(columns), range(N + 1))), (1, N)
        ),
        "bsr": lambda: sparse.bsr_array((values[:, None, None], columns, [0, num]), (1, N)),
        "coo of one dimension": lambda: sparse.coo_array((values, (columns,)), (N,)),
        "csr of one dimension": lambda: sparse.csr_array((values, columns, [0, num]), (N,)),
    }
    try:
        return made[form](), truth[None]
    except ValueError as error:
        if "1-D" in str(error) or "2-tuple" in str(error):
            pytest.skip("this SciPy has no such array")
        raise


@pytest.fixture(scope="module")
def recommender():
    model = SampledSoftmaxRecommender(
        3, num_sampled=2, max_iter=1, early_stopping=False, propagation=0.1, random_state=0
    )
    return model.fit(TAKEN)


@pytest.fixture(scope="module")
def classifier():
    model = SampledSoftmaxClassifier(loss="full", max_iter=1, random_state=0)
    return model.fit(np.eye(N), np.arange(N))


@pytest.fixture(scope="module")
def linear():
    settings = LinearSoftmaxSettings(sampler="uniform", num_sampled=2, embedding_dim=2)
    return LinearSoftmax(N, N, settings, rng=0)


@pytest.fixture(scope="module")
def tree():
    nodes = two_level_tree(np.ones(N))
    rows = np.random.default_rng(1).standard_normal((nodes.num_nodes, 2))
    return HierarchicalSoftmax(rows, nodes)


def trained(linear, unit_inputs=False, leave_out=False):
    return TrainedLinearSoftmax(linear, unit_inputs, leave_out, None, np.ones(N), False, 1)


def of_task(task, inputs, labels):
    return list(task.evaluate(inputs, labels).values())


def retrieval(x):
    settings = RetrievalSettings(
        num_sampled=2, num_features=8, validation=0.0, batch_size=2, embedding_dim=2
    )
    with_more = sparse.csr_array(sparse.vstack([x.reshape(1, -1), sparse.csr_array(np.eye(N))]))
    task = RetrievalTask(with_more, with_more, settings)
    return [task.step(0, 0)[0], *of_task(task, x, x)]


# what takes a matrix of weights: compared with the same matrix of float64, each entry once
PLACES = {
    "recommend": lambda made, x: made("recommender").recommend(0, x, 4),
    "recalculate_user": lambda made, x: made("recommender").recommend(
        [0], x, 2, False, recalculate_user=True
    ),
    "partial_fit_users": lambda made, x: made("recommender").partial_fit_users([0], x).user_factors,
    "exclude": lambda made, x: made("classifier").predict_topk(np.eye(N)[:1], 5, exclude=x),
    "leave_out": lambda made, x: top_k_classes(H, W, 4, leave_out=x),
    "leave_out of a linear model": lambda made, x: made("linear").top_k(
        np.ones((1, N)), 4, leave_out=x
    ),
    "leave_out of ranks": lambda made, x: (
        target_ranks(SCORES, sparse.csr_array(np.eye(N)[:1]), leave_out=x).ranks
    ),
    "labels of ranks": lambda made, x: target_ranks(SCORES, x).ranks,
    "labels of lists": lambda made, x: list(ranking_scores([[3, 0, 1]], x, [1, 3]).values()),
    "labels of an evaluation": lambda made, x: evaluate(H, W, x, k=(1, 2)).top_k[2],
    "labels of a loss": lambda made, x: FullSoftmaxLoss().forward(H, W, x)[0],
    "labels of a tree": lambda made, x: made("tree").forward(H, x)[0],
    "counts": lambda made, x: BigramSampler(x).probs([0]),
    "inputs and labels of a task": lambda made, x: retrieval(x),
    "inputs of a trained model": lambda made, x: trained(made("linear"), True).embed(x),
    "items of a trained model": lambda made, x: trained(made("linear"), True, True).top_k(x, 4),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_format_adds_up_in_float64(dtype, form):
    x, truth = row(dtype, form)
    found = as_csr("x", x)
    found.sum_duplicates()
    assert found.dtype == np.float64 and found.toarray().tolist() == truth.tolist()
    assert not np.shares_memory(found.data, x.data)


@pytest.mark.parametrize(("dtype", "form"), SOME)
@pytest.mark.parametrize("place", PLACES)
def test_repeated_entries_add_up_in_float64(place, dtype, form, request):
    x, truth = row(dtype, form)
    before = x.copy()
    found = PLACES[place](request.getfixturevalue, x)
    wanted = PLACES[place](request.getfixturevalue, sparse.csr_array(truth))
    if not isinstance(found, tuple):
        found, wanted = (found,), (wanted,)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert x.nnz == before.nnz and x.dtype == np.dtype(dtype)  # the caller's is as it was


@pytest.mark.parametrize(
    ("make", "dtype", "form"),
    [
        *[("predict", *one) for one in SOME if "dimension" not in one[1]],
        *[(make, *one) for make in ("fit", "partial_fit") for one in (("u1", "coo"), ("?", "csr"))],
    ],
)
def test_repeated_entries_of_inputs_add_up_in_float64(make, dtype, form, classifier):
    x, truth = row(dtype, form)
    if make == "predict":
        found, wanted = (classifier.decision_function(some) for some in (x, truth))
    else:
        scores = []
        for some in (x, sparse.csr_array(truth)):
            both = sparse.vstack([some, some.astype(some.dtype)], format=x.format)
            model = SampledSoftmaxClassifier(loss="full", max_iter=2, random_state=0)
            options = {"classes": [0, 1]} if make == "partial_fit" else {}
            getattr(model, make)(both, [0, 1], **options)
            scores.append(model.decision_function(truth))
        found, wanted = scores
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("form", FORMATS[:4])
@pytest.mark.parametrize("dtype", ["i1", "u1", "u2"])
def test_a_label_that_is_there_too_often_does_not_disappear(dtype, form):
    columns, values, _ = entries(dtype, whole=True)
    y = sparse.coo_array((values, (np.zeros(len(columns), int), columns)), (1, N))
    y = y if form == "coo" else sparse.csr_array((values, columns, [0, len(columns)]), (1, N))
    with pytest.raises(ValueError, match=r"`y` as a matrix must hold zeros and ones.*got \d+"):
        SampledSoftmaxClassifier().fit(np.ones((1, 2)), y)


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr"])
def test_a_label_that_is_true_twice_is_true(form):
    y, truth = row("?", form)
    model = SampledSoftmaxClassifier(max_iter=1, random_state=0)
    both = sparse.vstack([y, y], format=form)
    model.fit(np.eye(2), both)
    assert model._learner.codec.encode(both).toarray().tolist() == [truth[0].tolist()] * 2


def test_labels_of_one_dimension_are_no_matrix():
    y = sparse.coo_array(np.array([0, 1, 1]))
    with pytest.raises(ValueError, match=re.escape("`y` must have a row for each example")):
        SampledSoftmaxClassifier().fit(np.eye(3), y)


def test_a_row_of_a_sparse_array_is_a_row_of_a_model(linear, recommender):
    x = sparse.csr_array(np.eye(N, dtype=np.float32))
    layer = Linear(N, 2, rng=0)
    for one in (x[2], x[[2]], x.tocoo().tocsr()[2]):
        np.testing.assert_array_equal(layer.forward(one)[0], layer.forward(x)[0][[2]])
        np.testing.assert_array_equal(linear.embed(one), linear.embed(x)[[2]])
        np.testing.assert_array_equal(linear.top_k(one, 2)[0], linear.top_k(x, 2)[0][[2]])
    with pytest.raises(ValueError, match=r"`x` must have shape \(B, 5\)"):
        layer.forward(sparse.coo_array(np.ones(3, np.float32)))
    for array in (TAKEN, sparse.csr_matrix(TAKEN)):  # of which only the first has such rows
        ids, scores = recommender.recommend(1, array[1], N=3)
        wanted = recommender.recommend([1], TAKEN[[1]], N=3)
        assert ids.tolist() == wanted[0][0].tolist() and scores.tolist() == wanted[1][0].tolist()
    with pytest.raises(ValueError, match="a row for each of the 2 users, got 1"):
        recommender.recommend([0, 1], TAKEN[0])


def test_what_is_hidden_from_one_user_may_have_one_dimension():
    one = SampledSoftmaxRecommender(
        2, num_sampled=2, max_iter=1, early_stopping=False, propagation=0.1, random_state=0
    ).fit(sparse.csr_array(np.array([[1, 1, 0, 0, 0]]))[0])
    taken, hidden = (
        sparse.csr_array(np.array([row])) for row in ([1, 1, 0, 0, 0], [0, 0, 0, 2, 0])
    )
    assert one.evaluate(taken[0], hidden[0], 2) == one.evaluate(taken, hidden, 2)


def test_repeated_entries_of_a_task_are_one_example():
    x = sparse.csr_array((np.ones(4), [0, 0, 1, 1], [0, 2, 4]), (2, 2))  # as twice the unit matrix
    settings = RetrievalSettings(num_sampled=1, num_features=8, validation=0.0, batch_size=2)
    one, other = (RetrievalTask(a, a, settings) for a in (x, sparse.csr_array(2.0 * np.eye(2))))
    assert one.config() == other.config()
    assert one.step(0, 0)[0] == other.step(0, 0)[0]
