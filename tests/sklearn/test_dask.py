"""scikit-learn on Dask: grid searches, predictions and steps by blocks."""

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, KFold

from samplesoft.sklearn import SampledSoftmaxClassifier, predict_topk

dask = pytest.importorskip("dask", reason="needs pip install 'samplesoft[dask]'")
da = pytest.importorskip("dask.array", reason="needs pip install 'samplesoft[dask]'")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = np.array(list("abcde"))[(X @ RNG.normal(size=(4, 5))).argmax(axis=1)]


def make(**parameters):
    return SampledSoftmaxClassifier(**{"embedding_dim": 3, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def fitted():
    return make().fit(X, Y)


@pytest.mark.slow
def test_a_grid_search_on_dask_finds_what_one_process_finds(local_cluster):
    grid = {"num_sampled": [1, 2], "sampler": ["uniform"]}
    alone = GridSearchCV(make(max_iter=2), grid, cv=KFold(2)).fit(X, Y)
    with joblib.parallel_config(backend="dask", client=local_cluster):
        shared = GridSearchCV(make(max_iter=2), grid, cv=KFold(2)).fit(X, Y)
    scores = [one.cv_results_["mean_test_score"] for one in (alone, shared)]
    np.testing.assert_array_equal(*scores)
    np.testing.assert_array_equal(*(one.predict_proba(X) for one in (alone, shared)))


@pytest.mark.parametrize("chunks", [60, (7, 4), (25, 3)])
def test_predictions_by_blocks(chunks, fitted):
    blocks = da.from_array(X, chunks)
    proba = fitted.predict_proba(blocks)
    assert isinstance(proba, da.Array) and proba.chunks[0] == blocks.chunks[0]
    np.testing.assert_allclose(proba.compute(scheduler="sync"), fitted.predict_proba(X), rtol=1e-12)
    for found, wanted in zip(
        predict_topk(fitted, blocks, 3), fitted.predict_topk(X, 3), strict=True
    ):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        found = found.compute(scheduler="sync")
        if wanted.dtype.kind == "U":
            np.testing.assert_array_equal(found, wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.slow
def test_dataframes_by_partitions():
    pd = pytest.importorskip("pandas", reason="needs pandas, of dask[dataframe]")
    dd = pytest.importorskip("dask.dataframe", reason="needs pip install 'dask[dataframe]'")
    frame = pd.DataFrame(X, columns=list("wxyz"))
    named = make().fit(frame, Y)
    parts = dd.from_pandas(frame, npartitions=3)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_allclose(
            named.predict_proba(parts).compute(), named.predict_proba(frame), rtol=1e-12
        )
        labels, _ = named.predict_topk(parts, 2)
        np.testing.assert_array_equal(labels.compute(), named.predict_topk(frame, 2)[0])
        one, other = (make() for _ in range(2))
        labels = dd.from_pandas(pd.Series(Y), npartitions=3)
        one.partial_fit(parts, labels, classes=np.unique(Y))
    for rows in np.split(np.arange(60), 3):
        other.partial_fit(frame.iloc[rows], Y[rows], classes=np.unique(Y))
    np.testing.assert_array_equal(one.predict_proba(frame), other.predict_proba(frame))


@pytest.mark.parametrize("weights", [None, RNG.random(60)])
def test_a_step_for_each_block(weights):
    one, other = make(), make()
    of_blocks = weights if weights is None else da.from_array(weights, 25)
    one.partial_fit(da.from_array(X, (25, 2)), da.from_array(Y, 25), np.unique(Y), of_blocks)
    for rows in (slice(25), slice(25, 50), slice(50, 60)):
        of_rows = None if weights is None else weights[rows]
        other.partial_fit(X[rows], Y[rows], np.unique(Y), of_rows)
    assert one.n_iter_ == 3
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def test_blocks_that_do_not_match(fitted):
    with pytest.raises(ValueError, match="as many blocks of rows, got 3, 2; rechunk them alike"):
        make().partial_fit(da.from_array(X, 20), da.from_array(Y, 30), np.unique(Y))
    with pytest.raises(ValueError, match="`exclude` must be None for Dask"):
        fitted.predict_topk(da.from_array(X, 20), 2, exclude=[["a"]] * 60)
    with pytest.raises(TypeError, match="`y` must be of Dask where `X` is, got ndarray"):
        make().partial_fit(da.from_array(X, 20), Y, np.unique(Y))
