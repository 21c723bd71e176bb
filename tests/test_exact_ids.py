"""Ids of classes, items and users: integers of whatever kinds, none of them rounded."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from samplesoft._validation import as_array, as_ids, as_labels, exact_integers
from samplesoft.data import Embeddings, load_logits, ppmi_svd
from samplesoft.losses import SampledSoftmaxLoss, SparseRows
from samplesoft.metrics import ranking_scores
from samplesoft.optimizers import SGD
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.samplers import StreamingUnigramSampler, UnigramSampler


class Column:
    """What a column of pandas with a type of its own is to NumPy: objects."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype or object)

    def __len__(self):
        return len(self.values)


KINDS = {
    "mixture": lambda ids: [np.uint64(ids[0]), *map(int, ids[1:])],  # float64 to NumPy
    "objects": lambda ids: np.array(ids, dtype=object),
    "column": Column,
    "tuple": lambda ids: (int(ids[0]), *map(np.uint64, ids[1:])),
    "uint64": lambda ids: np.array(ids, np.uint64),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
ROWS = np.arange(12.0).reshape(4, 3)


def of_metrics(ids):
    labels = sparse.csr_array(np.eye(4)[[1, 2]])
    rows = [[entry] for entry in ids] if isinstance(ids, (list, tuple)) else ids
    if isinstance(ids, Column):
        rows = Column([[entry] for entry in ids.values])
    elif isinstance(ids, np.ndarray):
        rows = ids[:, None]
    return ranking_scores(rows, labels, 1)["precision_at_1"]


def of_gradients(ids):
    parameters = {"w": np.ones((4, 3))}
    SGD(0.5).step(parameters, {"w": SparseRows(np.asarray(as_array("ids", ids)), np.ones((2, 3)))})
    return parameters["w"].tolist()


def of_losses(ids):
    draw = UnigramSampler([1.0, 2.0, 3.0, 4.0]).sample(ROWS[:2], 3, rng=0, exclude=[1, 2])
    return SampledSoftmaxLoss().forward(ROWS[:2], ROWS, ids, draw)[0]


def of_streams(ids):
    sampler = StreamingUnigramSampler(4)
    sampler.observe(ids)
    return sampler.probs(None).tolist()


TAKES = {
    "as_ids": lambda ids: as_ids("ids", ids, 4).tolist(),
    "as_labels": lambda ids: as_labels("ids", ids, 4, (2,)).tolist(),
    "embeddings": lambda ids: Embeddings(ROWS[:2], ROWS, ids).labels.tolist(),
    "words": lambda ids: ppmi_svd(ids, 4, 2)[0].tolist(),
    "loss": of_losses,
    "exclude": lambda ids: (
        UnigramSampler([1.0, 2.0, 3.0, 4.0]).sample(ROWS[:2], 3, rng=0, exclude=ids).ids.tolist()
    ),
    "observe": of_streams,
    "metrics": of_metrics,
    "gradients": of_gradients,
}


@kinds
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_integers_of_any_kind(take, kind):
    assert take(kind([1, 2])) == take(np.array([1, 2]))


@kinds
def test_items_and_users(kind):
    taken = sparse.csr_array(np.kron(np.eye(2), np.ones((8, 5)) - np.eye(8, 5)))
    model = SampledSoftmaxRecommender(4, max_iter=1, random_state=0).fit(taken)
    ids, plain = kind([1, 2]), [1, 2]
    for call in (
        lambda ids: model.recommend(ids, taken[[1, 2]], 3),
        lambda ids: model.recommend(0, taken[[0]], 3, filter_items=ids),
        lambda ids: model.recommend(0, N=2, items=ids, filter_already_liked_items=False),
        lambda ids: model.similar_items(ids, 3),
        lambda ids: model.similar_users(ids, 3),
        lambda ids: model.partial_fit_users(ids, taken[[1, 2]]).recommend(ids, taken[[1, 2]], 3),
    ):
        for found, wanted in zip(call(ids), call(plain), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_what_is_no_id_stays_none():
    for value in ([1.0, 2.0], [np.uint64(1), 2.5], [1, None], np.array([True, False], object)):
        with pytest.raises(TypeError, match="`ids` must hold integers"):
            as_ids("ids", value, 4)
    for value in (
        [2**63 + 1, 3],
        np.array([2**64 - 1], np.uint64),
        [np.uint64(2**63), 0],
    ):
        with pytest.raises(ValueError, match=r"`ids` must lie in 0\.\.3"):
            as_ids("ids", value, 4)


def test_labels_of_a_command_beyond_int64(tmp_path):
    np.save(tmp_path / "logits.npy", np.zeros((2, 5)))
    with pytest.raises(ValueError, match=rf"`labels` must lie in 0\.\.4 .* got {2**63 + 1}"):
        load_logits(tmp_path / "logits.npy", f"{2**63 + 1},1")


def test_integers_keep_their_digits():
    for values in ([2**63 + 1, 5], [np.uint64(2**64 - 1), 0], [[2**63 + 1, 0], [1, 2]]):
        array = as_array("ids", values)
        assert array.dtype == np.uint64
        assert array.tolist() == np.array(values, dtype=object).astype(object).tolist()
    assert exact_integers([-1, 2**63]).tolist() == [-1, 2**63]
    assert exact_integers([]).dtype == np.int64
    assert as_array("ids", [1, 2.5]).dtype == np.float64


def test_one_long_text_is_not_padded_before_it_is_refused():
    text = ["a"] * 10_000 + ["x" * 20_000]
    tracemalloc.start()
    for value in (text, tuple(text), [[word, word] for word in text]):
        with pytest.raises(TypeError, match="`ids` must hold integers"):
            as_ids("ids", value, 4)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()
