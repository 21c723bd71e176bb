"""What fits and predictions take beyond their inputs, as `tracemalloc` counts it."""

import gc
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.sklearn import SampledSoftmaxClassifier

V, CLASSES = 1500, 20
OPTIONS = {"max_iter": 1, "random_state": 0, "num_sampled": 5, "batch_size": 128}
ROOM = 12e6  # of parts that are made ready at a time, whatever the inputs take


def dense(dtype, order="C"):
    def make(folder):
        rng = np.random.default_rng(0)
        x = np.empty((28_000_000 // V // np.dtype(dtype).itemsize, V), dtype, order)
        for part in range(0, len(x), 500):
            x[part : part + 500] = rng.random((len(x[part : part + 500]), V))
        return x

    return make


def mapped(order):
    def make(folder):
        np.save(folder / "x.npy", dense(np.float32, order)(folder))
        return np.load(folder / "x.npy", mmap_mode="r")

    return make


def csr(kind, dtype, data=np.float32, each=100):
    def make(folder):
        num = 28_000_000 // each // (np.dtype(dtype).itemsize + np.dtype(data).itemsize)
        steps = np.random.default_rng(0).integers(1, V // each, (num, each), dtype)
        indices, starts = np.cumsum(steps, axis=1, dtype=dtype).ravel(), np.arange(num + 1) * each
        x = kind((np.ones(num * each, data), indices, starts.astype(dtype)), (num, V))
        assert x.indices.dtype == dtype or kind is sparse.csr_matrix
        return x

    return make


FORMS = {
    "mapped Fortran": mapped("F"),
    "CSR": csr(sparse.csr_matrix, np.int32),
    "float32": dense(np.float32),
    "float64": dense(np.float64),
    "Fortran": dense(np.float32, "F"),
    "mapped": mapped("C"),
    "CSR array": csr(sparse.csr_array, np.int32, np.float64),
    "CSR of int64": csr(sparse.csr_array, np.int64),
}
ACTS = {
    "fit": lambda clf, x, y: clf.fit(x, y),
    "early stopping": lambda clf, x, y: clf.set_params(early_stopping=True).fit(x, y),
    "weights of 0": lambda clf, x, y: clf.fit(x, y, (y > 1).astype(float)),
    "eval_set": lambda clf, x, y: clf.fit(x[:99], y[:99], eval_set=(x, y)),
    "going on": lambda clf, x, y: clf.set_params(warm_start=True).fit(x, y),
    "predict": lambda clf, x, y: clf.predict(x),
    "predict_topk": lambda clf, x, y: clf.predict_topk(x, 2),
    "score": lambda clf, x, y: clf.score(x, y),
    "decision_function": lambda clf, x, y: clf.decision_function(x),
}


def bytes_of(x):
    if isinstance(x, np.ndarray):
        return x.nbytes
    return x.data.nbytes + x.indices.nbytes + x.indptr.nbytes


def peak(act):
    """Return the bytes that a call takes at a time."""
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def kept(clf, num):
    """Return the bytes of a model with what is trained beside it, and of labels and results."""
    model = sum(array.nbytes for array in clf.model_.parameters.values())
    return 5 * model + num * (8 * CLASSES + 100)


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_fifth_of_the_inputs_at_most(form, tmp_path):
    x = FORMS[form](tmp_path)
    y = np.arange(x.shape[0]) % CLASSES
    for dim in (8, None):
        clf = SampledSoftmaxClassifier(dim, **OPTIONS).fit(x[:500], y[:500])  # which compiles
        for name, act in ACTS.items():
            if dim is None and name not in ("fit", "predict", "decision_function"):
                continue
            clf.set_params(warm_start=False, early_stopping=False)
            found = peak(lambda act=act, clf=clf: act(clf, x, y))
            allowed = 0.2 * bytes_of(x) + kept(clf, x.shape[0]) + ROOM
            assert found < allowed, (dim, name, found / bytes_of(x), allowed / bytes_of(x))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["float32", "mapped", "CSR"])
def test_a_step_on_a_large_batch(form, tmp_path):
    """Contexts and scores of the batch are what the step takes."""
    x = FORMS[form](tmp_path)
    y = np.arange(x.shape[0]) % CLASSES
    clf = SampledSoftmaxClassifier(8, **OPTIONS)
    clf.partial_fit(x[:500], y[:500], np.arange(CLASSES))
    found = peak(lambda: clf.partial_fit(x, y))
    of_batch = x.shape[0] * 4 * (8 * 8 + 6 * CLASSES)
    assert found < 0.2 * bytes_of(x) + kept(clf, x.shape[0]) + ROOM + of_batch


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("data", [np.float32, np.float64])
@pytest.mark.parametrize("early_stopping", [True, False])
def test_recommenders(data, early_stopping, tmp_path):
    """Copies in order, of what is trained on and of all, and a graph: it was twenty times that."""
    taken = csr(sparse.csr_array, np.int32, data)(tmp_path)
    options = {"max_iter": 1, "num_sampled": 50, "random_state": 0, "batch_size": 64}
    if not early_stopping:
        options |= {"early_stopping": False, "propagation": 0.1}
    model = SampledSoftmaxRecommender(8, **options)
    model.fit(taken[:2000])
    found = peak(lambda: model.fit(taken))
    assert found < 2.7 * bytes_of(taken) + 25e6 + 3 * model.user_factors.nbytes
