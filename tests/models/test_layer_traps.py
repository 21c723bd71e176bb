"""Traps of the softmax layer that a hostile reader set; those marked WRONG failed at first."""

import json

import numpy as np
import pytest
from oracles.loss_cases import fitted
from scipy import sparse

from samplesoft import training
from samplesoft.losses import (
    LOSSES,
    FullSoftmaxLoss,
    NCELoss,
    SampledSoftmaxLoss,
    make_loss,
)
from samplesoft.losses.base import checked_targets
from samplesoft.metrics import evaluate
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import LearnedUnigramSampler, SoftmaxSampler, UniformSampler
from samplesoft.samplers.base import Draw
from samplesoft.samplers.static import WeightedSampler


# WRONG: column indices of a label matrix are never looked at (scipy does not either), and kernels
# follow them: a file that counts labels from 1 reads beyond the class vectors, or kills Python.
@pytest.mark.parametrize("column", [8, -1, 10**9])
def test_a_label_matrix_with_columns_out_of_range_is_refused(column):
    parts = np.ones(2), np.array([column, 1]), np.array([0, 2])
    with pytest.raises(ValueError, match="labels"):
        checked_targets(sparse.csr_array(parts, shape=(1, 8)), 1, 8)


# WRONG: `update` keeps the caller's array until the sampler is updated, so a buffer that is used
# again makes it forget rows; q is then that of vectors which no longer exist.
def test_ids_of_update_are_not_those_of_a_buffer_used_again():
    rows = np.random.default_rng(0).normal(size=(8, 3))
    layer = SoftmaxLayer(rows, SampledSoftmaxLoss(), SoftmaxSampler(rows), 2, update_every=2)
    buffer = np.array([1])
    for j in (1, 2):
        layer.parameters["class_embeddings"][j] += 3.0
        buffer[0] = j
        layer.update(buffer)
    fresh = SoftmaxSampler(layer.parameters["class_embeddings"]).probs(np.ones(3))
    np.testing.assert_allclose(layer.sampler.probs(np.ones(3)), fresh, rtol=1e-12)


# WRONG: log counts of the labels of a shared set are computed for all pairs of context and label,
# also where contexts play no part: 3 s and 1 GB for a batch of 6,000 beside 5 ms for the loss.
def test_label_counts_of_a_shared_set_cost_what_the_batch_costs(monkeypatch):
    asked, count = [], WeightedSampler._log_expected_count

    def spy(self, h, ids, m, exclude):
        asked.append(ids.size)
        return count(self, h, ids, m, exclude)

    monkeypatch.setattr(WeightedSampler, "_log_expected_count", spy)
    loss, batch = SampledSoftmaxLoss(scheme="candidate"), 200
    layer = SoftmaxLayer(np.ones((9, 2)), loss, UniformSampler(9), 3, shared=True)
    layer.forward(np.ones((batch, 2)), np.arange(batch) % 9, rng=0)
    assert sum(asked) <= 2 * batch


# WRONG: an infinite class vector whose score is -inf passes for a class of probability 0. The loss
# is finite, the gradient NaN, and `evaluate` reports a model that has diverged as sound.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_infinite_class_vector_is_named(dtype):
    rows = np.ones((5, 2), dtype)
    rows[4, 1] = -np.inf
    with pytest.raises(ValueError, match="class_embeddings"):
        _, cache = FullSoftmaxLoss().forward(np.ones((1, 2)), rows, [0])
        FullSoftmaxLoss().backward(cache)
    with pytest.raises(ValueError, match="class_embeddings"):
        evaluate(np.ones((1, 2)), rows, [0], k=())


# WRONG: gradients of many draws are added one by one in float32, and 1% is lost at m = 10**6.
def test_gradients_of_a_million_draws_in_float32():
    loss, found = SampledSoftmaxLoss(scheme="masked"), []
    draw = UniformSampler(3).sample(None, 1_000_000, rng=0)
    for dtype in (np.float64, np.float32):
        rows = np.array([[0.3, 1.0], [0.2, -0.5], [1.0, 0.3]], dtype)
        _, cache = loss.forward([[1.0, 0.5]], rows, [1], draw, biases=np.zeros(3))
        gradients = loss.backward(cache)
        found.append((gradients.dh, gradients.dW.rows, gradients.db.rows))
    for exact, single in zip(*found, strict=True):
        assert np.abs(single - exact).max() < 1e-4 * np.abs(exact).max()


# WRONG: the sum of large weights overflows, and the mean loss is 0.
@pytest.mark.parametrize("size", [1e308, 1e-320])
def test_a_mean_depends_on_ratios_of_weights_alone(size):
    h, rows = np.ones((2, 1)), np.array([[1.0], [2.0], [0.0]])
    loss = FullSoftmaxLoss()
    value, cache = loss.forward(h, rows, [0, 1], weights=[size, size])
    plain, cache_of_ones = loss.forward(h, rows, [0, 1])
    assert value == plain
    np.testing.assert_array_equal(loss.backward(cache).dh, loss.backward(cache_of_ones).dh)


# WRONG: so does that of the labels in a row, whose shares are 0 then; and repeated entries are
# added up in the type of the matrix, where 200 + 100 is 44.
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("unit", [np.uint8(50), np.float64(2.85e307)])
def test_shares_of_labels_are_those_of_small_floats(unit):
    values = (np.array([4, 2, 1]) * unit).astype(type(unit))
    parts = values, np.array([1, 1, 2]), np.array([0, 3])
    shares = checked_targets(sparse.csr_array(parts, shape=(1, 4)), 1, 4).label_weights
    np.testing.assert_allclose(shares, [6 / 7, 1 / 7])


# WRONG: a draw with ids that are no integers gets as far as the compiler.
def test_ids_of_a_draw_must_be_integers():
    draw = Draw(np.array([[2.0]]), np.zeros((1, 1)))
    with pytest.raises((TypeError, ValueError), match="draw"):
        SampledSoftmaxLoss().forward([[1.0]], np.ones((3, 1)), [0], draw)


# WRONG: a rate that is finite only in float64 turns float32 entries without gradient into NaN.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_learning_rate_beyond_float32(name):
    parameters = {"w": np.ones(2, np.float32)}
    with pytest.raises(ValueError, match="learning_rate"):
        make_optimizer(name, 1e39).step(parameters, {"w": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(parameters["w"], 1.0)


# WRONG: numbers of NumPy pass the checks of `Settings`, and stop training at its first checkpoint.
def test_settings_with_numbers_of_numpy_are_json():
    settings = training.Settings(epochs=1, learning_rate=np.float32(0.5), log_every=np.int64(3))
    json.dumps(settings.config())


# WRONG: labels are counted before anything is checked, so that a refused call leaves its mark; and
# before the draws, so that q knows the label: at the true model the mean gradient of NCE is not 0.
def test_a_sampler_learns_labels_after_they_were_used_and_not_from_refused_calls(monkeypatch):
    layer = SoftmaxLayer(np.ones((4, 2)), NCELoss(), LearnedUnigramSampler(4), 3)
    seen, count = [], LearnedUnigramSampler._log_prob

    def spy(self, h, ids, exclude):
        seen.append(self.counts)
        return count(self, h, ids, exclude)

    monkeypatch.setattr(LearnedUnigramSampler, "_log_prob", spy)
    layer.forward(np.ones((1, 2)), [1], rng=0)
    assert seen
    np.testing.assert_array_equal(seen, np.ones((len(seen), 4)))
    before = layer.sampler.counts
    with pytest.raises(ValueError, match="weights"):
        layer.forward(np.ones((1, 2)), [1], weights=[np.nan], rng=0)
    np.testing.assert_array_equal(layer.sampler.counts, before)


# WRONG: counts that a sampler has learned are not in the checkpoint.
def test_a_resumed_run_has_the_counts_of_its_sampler(tmp_path):
    x = sparse.random_array(
        (80, 6), density=0.4, random_state=np.random.default_rng(0), format="csr"
    )
    x.data[:] = 1.0
    settings = training.RetrievalSettings(
        sampler="learned-unigram", loss="nce", num_sampled=3, label_reduction="ova", validation=0.0
    )
    for name, ends in (("whole", [2]), ("halves", [1, 2])):
        for end in ends:
            resume = end > 1 and name == "halves"
            task = training.RetrievalTask(x, x, settings)
            training.train(task, training.Settings(epochs=end), tmp_path / name, resume=resume)
    runs = [
        training.read_checkpoint(tmp_path / name / training.CHECKPOINT).arrays
        for name in ("whole", "halves")
    ]
    assert runs[0].keys() == runs[1].keys()
    assert any("counts" in key for key in runs[0])
    for key, array in runs[0].items():
        np.testing.assert_array_equal(runs[1][key], array, err_msg=key)


# What held, and must go on to hold.


@pytest.mark.parametrize("name", [name for name, spec in LOSSES.items() if spec.draws])
def test_a_batch_of_several_chunks_is_its_examples_one_by_one(name):
    rng, loss = np.random.default_rng(0), make_loss(name, reduction="none")
    h, rows = rng.normal(size=(40, 3)), rng.normal(size=(50, 3))
    labels, sampler, m = rng.integers(0, 50, 40), SoftmaxSampler(rows), 3000
    draw = sampler.sample(h, m, exclude=labels if loss.excludes_label else None, rng=0)
    own = sampler.log_expected_count(h, labels[:, None], m)[:, 0]
    whole = fitted(loss, draw, 50, labels)
    many, _ = loss.forward(h, rows, labels, whole, label_log_count=own)
    for b in (0, 11, 39):
        one, at = Draw(draw.ids[[b]], draw.log_q[[b]]), slice(b, b + 1)
        one = fitted(loss, one, 50, labels[at])
        value, _ = loss.forward(h[at], rows, labels[at], one, label_log_count=own[at])
        assert value[0] == pytest.approx(many[b], rel=1e-12)
