"""Parts of a call of steps, made ready one after another, give the bits of the whole."""

import numpy as np
import pytest
from scipy import sparse

from samplesoft.models import linear
from samplesoft.models.linear_softmax import select_entries
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.recommend.training import as_interactions, hide_items, normalized_graph
from samplesoft.training import RetrievalSettings, RetrievalTask, Settings, linear_task, train
from samplesoft.training.linear_task import with_unit_rows

RNG = np.random.default_rng(0)
TAKEN = sparse.csr_array(RNG.integers(1, 5, (80, 40)) * (RNG.random((80, 40)) < 0.2))
TAKEN = as_interactions("taken", TAKEN)


@pytest.fixture
def small(monkeypatch):
    """Let parts be of some 50 entries."""
    for module in ("training.linear_task", "models.linear_softmax"):
        monkeypatch.setattr(f"samplesoft.{module}._CHUNK_ENTRIES", 50)
    monkeypatch.setattr("samplesoft.recommend.training._ENTRIES_PER_CHUNK", 50)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("options", [{}, {"loss": "full"}, {"sampler": "unigram"}], ids=str)
def test_recommenders(dropout, options, request):
    def fit():
        given = {"num_sampled": 8, "max_iter": 3, "random_state": 0, "batch_size": 16, **options}
        model = SampledSoftmaxRecommender(8, dropout=dropout, **given).fit(TAKEN)
        return model.item_factors, model.user_factors, model.loss_curve_

    whole = fit()
    request.getfixturevalue("small")
    for one, other in zip(whole, fit(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("every", [0, 2])
def test_tasks(every, request, tmp_path):
    """Be a call whole, or cut by checkpoints."""
    options = {"embedding_dim": 8, "sampler": "unigram", "num_sampled": 5, "batch_size": 8}
    settings = RetrievalSettings(dropout=0.3, **options)

    def parameters(folder, **how):
        task = RetrievalTask(TAKEN, TAKEN, settings, leave_out=True)
        train(task, Settings(epochs=2, **how), tmp_path / folder)
        return task.parameters

    whole = parameters("whole")
    request.getfixturevalue("small")
    for name, array in parameters("parts", **{"checkpoint_every": every} if every else {}).items():
        np.testing.assert_array_equal(array, whole[name])


def test_parts_are_of_few_entries():
    """Beside a step, or there would be nothing to see in the tests before."""
    batches = np.array_split(np.arange(80), 8)
    found = linear_task._step_chunks(TAKEN, batches, 0, 8)
    assert found == [slice(0, 8)]
    assert found[0] != linear_task._step_chunks(TAKEN, batches, 3, 8)[0]


def test_matrices(request):
    whole = with_unit_rows(TAKEN), normalized_graph(TAKEN), *hide_items(TAKEN, 0.5, 3)
    kept = RNG.random(TAKEN.nnz) < 0.5
    some = select_entries(TAKEN, kept)
    assert some.indices.dtype == TAKEN.indices.dtype
    request.getfixturevalue("small")
    parts = with_unit_rows(TAKEN), normalized_graph(TAKEN), *hide_items(TAKEN, 0.5, 3)
    for one, other in zip(whole, parts, strict=True):
        assert np.sum(one != other) == 0 if isinstance(one, np.ndarray) else not (one != other).nnz
    assert not (select_entries(TAKEN, kept) != some).nnz
    assert select_entries(TAKEN, kept).nnz == np.count_nonzero(kept)


def test_gradients_of_sparse_inputs(monkeypatch):
    dense = RNG.random((300, 500)) * (RNG.random((300, 500)) < 0.1)
    dense[::7], dense[:, ::3] = 0.0, 0.0
    x, dy = sparse.csr_array(dense), RNG.normal(size=(300, 4))
    whole = linear._transposed_product(x, dy, 500)
    np.testing.assert_allclose(whole.rows, (dense.T @ dy)[whole.ids], atol=1e-12)
    for most, passes in ((1000, 32), (1, 7), (10, 10_000)):
        monkeypatch.setattr(linear, "_MAX_SORTED_ENTRIES", most)
        monkeypatch.setattr(linear, "_MAX_PASSES", passes)
        parts = linear._transposed_product(x, dy, 500)
        np.testing.assert_array_equal(parts.ids, whole.ids)
        np.testing.assert_array_equal(parts.rows, whole.rows)
