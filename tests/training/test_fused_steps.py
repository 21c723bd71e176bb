"""Steps in one compiled call: what they compute, step by step, and that threads change nothing."""

import threading

import numba
import numpy as np
import pytest
from scipy import sparse

from samplesoft._jit import njit
from samplesoft.losses.log_sums import DoubleSumLoss, LogSumLoss, MovingAverageLoss
from samplesoft.losses.one_vs_each import one_vs_each_kernel
from samplesoft.losses.registry import LOSSES
from samplesoft.losses.sampled import LossKernel, SampledLoss, SampledSoftmaxLoss
from samplesoft.models import LinearSoftmaxSettings
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers import SGD, make_optimizer
from samplesoft.samplers import WeightedSampler
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES
from samplesoft.training.fused import (
    draw_steps,
    plain,
    steps_per_call,
    take_steps,
    why_step_by_step,
)
from samplesoft.training.fused.runner import make_step_runner

N, V, CLASSES, BATCH = 150, 40, 23, 64  # three steps, the last one short


def problem(several, dtype):
    rng = np.random.default_rng(0)
    x = sparse.random_array((N, V), density=0.2, format="csr", dtype=dtype, random_state=rng)
    labels = rng.integers(0, CLASSES, N)
    if several:
        found = sparse.random_array((N, CLASSES), density=0.08, format="csr", random_state=rng)
        found = sparse.lil_array(found)
        found[np.arange(N), labels] = 1.0  # at least one each
        labels = sparse.csr_array(found)
    return x, labels, rng.uniform(0.5, 2.0, N)


def make(loss, dtype, optimizer="adagrad", **options):
    spec = LOSSES[loss]
    if spec.draws:
        options = {"sampler": "unigram", "num_sampled": 12, "shared": True, **options}
    else:
        options = {"sampler": None, "num_sampled": None, **options}
    settings = LinearSoftmaxSettings(loss=loss, embedding_dim=16, **options)
    counts = np.arange(1.0, CLASSES + 1.0)
    model = LinearSoftmax(V, CLASSES, settings, counts=counts, dtype=dtype, rng=3)
    return model, make_optimizer(optimizer, 0.1)


def step_by_step(model, optimizer, x, labels, weights, log_sums=None):
    """Take the same steps by the public path, with the same draws; overwrite `log_sums`."""
    layer, total = model.softmax, 0.0
    drawn = None
    if layer.sampler is not None:
        drawn = layer.sampler.sample(np.zeros((3, 1)), layer.num_sampled, rng=5)
    for s, first in enumerate(range(0, N, BATCH)):
        part = slice(first, min(first + BATCH, N))
        size = part.stop - part.start
        h, cache = model.embedding.forward(x[part])
        batch = layer.loss.check_batch(h, layer.class_embeddings, labels[part], None)
        batch = layer.loss.with_log_sums(batch, None if log_sums is None else log_sums[part])
        draw, count = None, None
        if drawn is not None:
            inclusion = drawn.log_inclusion
            row = slice(s, s + 1)
            draw = Draw(
                drawn.ids[row], drawn.log_q[row], None if inclusion is None else inclusion[row]
            )
            if layer.loss.needs_label_count:
                count = layer.sampler.log_expected_count(
                    None, batch.targets.labels[None], layer.num_sampled, shared=True
                )[0]
        value, saved = layer.loss.forward_batch(
            batch, draw, label_log_count=count, weights=weights[part] / size
        )
        if log_sums is not None:
            log_sums[part] = saved.batch.log_sums
        dh, gradients = layer.backward(saved)
        _, of_embedding = model.embedding.backward(cache, dh)
        gradients = {f"softmax.{name}": g for name, g in gradients.items()}
        gradients |= {f"embedding.{name}": g for name, g in of_embedding.items()}
        optimizer.step(model.parameters, gradients)
        total += value
    return total


def both_ways(made, x, labels, weights):
    """Return loss, model and optimizer after one call, and after the same steps one by one."""
    (model, optimizer), (other, of_other) = made
    value = np.sum(take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0)))
    wanted = step_by_step(other, of_other, x, labels, weights)
    return (value, model, optimizer), (wanted, other, of_other)


LOSS_NAMES = [
    name
    for name, spec in LOSSES.items()
    if (spec.shares_draws or not spec.draws)
    and "multilevel" not in name  # which decides on its draws: below
    and why_step_by_step(make(name, np.float64)[0], make_optimizer("sgd", 0.1)) is None
]


def test_every_loss_with_a_kernel_is_compiled():
    shared = {name for name, spec in LOSSES.items() if spec.shares_draws or not spec.draws}
    sgd = make_optimizer("sgd", 0.1)
    assert why_step_by_step(make("multilevel-masked", np.float64)[0], sgd) is None
    assert shared - {*LOSS_NAMES, "multilevel-masked"} == {"hierarchical"}
    why = why_step_by_step(make("hierarchical", np.float64)[0], make_optimizer("sgd", 0.1))
    assert "a forward or a backward pass of its own" in why


OFTEN = {
    "full",
    "sampled-masked",
    "sampled-reject",
    "importance",
    "nce",
    "bpr",
    "jackknife-masked",
    "one-vs-each",
    "moving-average",
}


# a runner takes some three seconds to compile
@pytest.mark.parametrize("several", [False, True], ids=["one label", "several labels"])
@pytest.mark.parametrize(
    "loss",
    [pytest.param(x, marks=() if x in OFTEN else pytest.mark.thorough) for x in LOSS_NAMES],
)
def test_steps_equal_those_of_the_layer(loss, several):
    if several and LOSSES[loss].has_log_sums:
        return  # refused, as below
    x, labels, weights = problem(several, np.float64)
    reduction = {"label_reduction": "ova"} if loss == "nce" and several else {}
    if reduction:
        labels.data[:] = 1.0
    if loss == "full-logistic" and several:
        labels.data[:] = 1.0
        reduction = {"label_reduction": "ova"}
    made = [make(loss, np.float64, **reduction) for _ in range(2)]
    (value, one, _), (wanted, other, _) = both_ways(made, x, labels, weights)
    assert value == pytest.approx(wanted, rel=1e-12)
    for name, array in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], array, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "options",
    [{}, {"gamma": 0.4}, {"scent_alpha": 0.5, "normalize": False, "tau": 1.0}],
    ids=lambda options: "-".join(options),
)
def test_moving_averages_from_call_to_call(options, dtype, threads, monkeypatch):
    """With gamma = 1 all visits would be as the first; here they are not."""
    monkeypatch.setattr("samplesoft.training.fused.steps._MIN_PARALLEL_MULTIPLICATIONS", 0)
    threads(2)
    x, labels, weights = problem(False, dtype)
    model, optimizer = make("moving-average", dtype, **options)
    other, of_other = make("moving-average", dtype, **options)
    kept = np.linspace(-1.0, 4.0, N)
    kept[::3] = -np.inf
    wanted_sums = kept.copy()
    tolerance = 1e-10 if dtype == np.float64 else 2e-4
    for _ in range(3):
        given = x, labels, weights
        value = np.sum(take_steps(model, optimizer, *given, BATCH, (5, 0), log_sums=kept))
        wanted = step_by_step(other, of_other, *given, wanted_sums)
        assert value == pytest.approx(wanted, rel=tolerance)
        np.testing.assert_allclose(kept, wanted_sums, rtol=tolerance, atol=tolerance)
    for name, array in other.parameters.items():
        np.testing.assert_allclose(model.parameters[name], array, rtol=tolerance, atol=tolerance)


def test_gamma_of_one_is_sampled_softmax_to_the_bit():
    x, labels, weights = problem(False, np.float32)
    results = []
    for loss, options in (("sampled-masked", {}), ("moving-average", {"gamma": 1.0})):
        model, optimizer = make(loss, np.float32, **options)
        values = take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))
        results.append((values, *model.parameters.values()))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_sums_stay_where_steps_are_refused():
    x, labels, weights = problem(False, np.float32)
    model, optimizer = make("moving-average", np.float32)
    kept = np.zeros(N)
    several = problem(True, np.float32)[1]
    with pytest.raises(TypeError, match="`labels` must hold one label an example for Moving"):
        take_steps(model, optimizer, x, several, weights, BATCH, (5, 0), log_sums=kept)
    with pytest.raises(ValueError, match=r"`log_sums` must have shape \(150,\), .*got \(149,\)"):
        take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0), log_sums=kept[1:])
    with pytest.raises(ValueError, match="`log_sums` must be finite, got nan"):
        take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0), log_sums=kept + np.nan)
    weights[70] = 1e30
    with pytest.raises(FloatingPointError, match="gradient"):
        take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0), log_sums=kept)
    assert not kept.any()
    model, optimizer = make("sampled-masked", np.float32)
    with pytest.raises(TypeError, match="`log_sums` must be None for SampledSoftmaxLoss"):
        take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0), log_sums=kept)


class Unmoved(MovingAverageLoss):
    def _next_log_sums(self, log_sums, losses, d_sampled, draw):
        return losses


class OwnSums(LogSumLoss):
    schemes = {"masked": SCHEMES["masked"]}


@pytest.mark.parametrize(
    "options",
    [
        {"mask_other_labels": False},
        {"normalize": False, "tau": 1.0},
        {"label_reduction": "pal"},
        {"sampler": "uniform"},
        {"sampler": lambda inputs: WeightedSampler(inputs.counts, replace=False)},
        {"optimizer": "sgd"},
        {"optimizer": "momentum"},
        {"optimizer": "adam"},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize(
    "dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.thorough(but=2))]
)
def test_settings(options, dtype):
    x, labels, weights = problem(True, dtype)
    made = [make("sampled-masked", dtype, **options) for _ in range(2)]
    (value, one, left), (wanted, other, right) = both_ways(made, x, labels, weights)
    tolerance = 1e-10 if dtype == np.float64 else 2e-4
    assert value == pytest.approx(wanted, rel=tolerance)
    for name, array in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], array, rtol=tolerance, atol=tolerance)
    assert left.state().keys() == right.state().keys()
    for name, array in right.state().items():
        np.testing.assert_allclose(left.state()[name], array, rtol=10 * tolerance, atol=tolerance)


def test_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr("samplesoft.training.fused.steps._MIN_PARALLEL_MULTIPLICATIONS", 0)
    x, labels, weights = problem(True, np.float32)
    before = numba.get_num_threads()
    models = []
    try:
        for threads in sorted({1, before}):
            numba.set_num_threads(threads)
            model, optimizer = make("sampled-masked", np.float32)
            take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))
            models.append(model.parameters)
    finally:
        numba.set_num_threads(before)
    for name, array in models[0].items():
        assert np.array_equal(array, models[-1][name])


@pytest.mark.parametrize("left", [0, 1, 2])
def test_threads_that_are_refused_change_no_bit(left, threads, monkeypatch):
    """As in a container with a limit; and the next call finds nobody who waits for the last one."""
    monkeypatch.setattr("samplesoft.training.fused.steps._MIN_PARALLEL_MULTIPLICATIONS", 0)
    x, labels, weights = problem(True, np.float32)
    threads(4)
    real, started, models = threading.Thread.start, [], []

    def start(self):
        if len(started) >= left:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    for refused in (True, False):
        model, optimizer = make("sampled-masked", np.float32)
        with monkeypatch.context() as patch:
            if refused:
                patch.setattr(threading.Thread, "start", start)
            take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))
        models.append(model.parameters)
    for name, array in models[0].items():
        assert np.array_equal(array, models[1][name])


def test_divergence_is_an_error():
    x, labels, weights = problem(False, np.float32)
    model, optimizer = make("sampled-masked", np.float32)
    weights[70] = 1e30
    with pytest.raises(FloatingPointError, match="gradient"):
        take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_call_that_is_cut_in_two(dropout):
    x, labels, weights = problem(True, np.float32)
    models = []
    for parts in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        model, optimizer = make("sampled-masked", np.float32, dropout=dropout)
        draws, losses = draw_steps(model, 3, 5), []
        for part in parts:
            rows = slice(part.start * BATCH, part.stop * BATCH)
            given = x[rows], labels[rows], weights[rows]
            before = x[: rows.start].nnz
            losses.append(
                take_steps(
                    model,
                    optimizer,
                    *given,
                    BATCH,
                    (5, 6),
                    draws=draws.at_steps(part),
                    first_entry=before,
                )
            )
        models.append((np.concatenate(losses), model.parameters))
    (losses, one), (others, other) = models
    assert np.array_equal(losses, others)
    for name, array in one.items():
        assert np.array_equal(array, other[name])


def test_a_loss_that_decides_on_its_draws_takes_a_call_for_each_step():
    x, labels, weights = problem(True, np.float64)
    rows = slice(0, BATCH)
    numbers, results = set(), []
    for seed in range(12):
        one, first = make("multilevel-masked", np.float64)
        assert steps_per_call(one, BATCH) == 1
        numbers.add(draw_steps(one, 1, seed, BATCH).ids.shape[1])
        batch = x[rows], labels[rows], weights[rows]
        value = take_steps(one, first, *batch, BATCH, (seed, 0))
        other, second = make("multilevel-masked", np.float64)
        h, cache = other.embedding.forward(x[rows])
        wanted, saved = other.softmax.forward(
            h, labels[rows], weights=weights[rows] / BATCH, rng=seed
        )
        dh, gradients = other.softmax.backward(saved)
        _, of_embedding = other.embedding.backward(cache, dh)
        gradients = {f"softmax.{name}": g for name, g in gradients.items()}
        gradients |= {f"embedding.{name}": g for name, g in of_embedding.items()}
        second.step(other.parameters, gradients)
        results.append((value[0], wanted))
        for name, array in other.parameters.items():
            np.testing.assert_allclose(one.parameters[name], array, rtol=1e-8, atol=1e-10)
    assert len(numbers) > 1
    np.testing.assert_allclose(*np.transpose(results), rtol=1e-12)


@njit
def hinge_terms(logits, losses, lead):
    for p in range(len(logits)):
        losses[p] = slope = 0.0
        for k in range(1, logits.shape[1]):
            gap = lead + logits[p, k] - logits[p, 0]
            logits[p, k] = 1.0 if gap > 0.0 else 0.0
            losses[p] += max(gap, 0.0)
            slope -= logits[p, k]
        logits[p, 0] = slope


class Hinge(SampledLoss):
    schemes = {"masked": SCHEMES["masked"].without_correction()}

    def _kernel_for_draw(self, draw, num_classes):
        return LossKernel(hinge_terms, (1.5,))


class PlainHinge(Hinge):
    """The same, in NumPy."""

    def _kernel_for_draw(self, draw, num_classes):
        return LossKernel(self._terms)

    def _terms(self, logits, losses):
        hinge_terms.py_func(logits, losses, 1.5)


@pytest.mark.parametrize("several", [False, True])
def test_a_loss_of_ones_own_is_fused_where_its_kernel_is_compiled(several):
    x, labels, weights = problem(several, np.float64)
    made = [make("sampled-masked", np.float64) for _ in range(2)]
    for model, optimizer in made:
        model.softmax.loss = Hinge(tau=2.0, reduction="sum")
        assert why_step_by_step(model, optimizer) is None
    (value, one, _), (wanted, other, _) = both_ways(made, x, labels, weights)
    assert value == pytest.approx(wanted, rel=1e-12)
    for name, array in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], array, rtol=1e-8, atol=1e-10)
    model.softmax.loss = PlainHinge(reduction="sum")
    assert "terms of PlainHinge have no kernel" in why_step_by_step(model, optimizer)


def test_why_steps_are_taken_one_by_one():
    def why(loss="sampled-masked", optimizer="sgd", **options):
        return why_step_by_step(*make(loss, np.float64, optimizer, **options))

    assert why() is None
    assert "draws of its own" in why(shared=False)
    assert "follow the contexts" in why(sampler="softmax")
    assert "learns from the labels" in why(sampler="streaming-unigram")


def test_kernels_of_one_pair_are_made_once():
    model, optimizer = make("sampled-masked", np.float64)
    x, labels, weights = problem(False, np.float64)
    take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))
    before = make_step_runner.cache_info()
    take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))
    assert make_step_runner.cache_info().misses == before.misses


class Clipped(SGD):
    def step(self, parameters, gradients):
        super().step(parameters, gradients)


class Backward(SampledSoftmaxLoss):
    def _backward(self, batch, saved, weights):
        return super()._backward(batch, saved, 2.0 * weights)


class Forward(SampledSoftmaxLoss):
    def forward_batch(self, *arguments, **options):
        return super().forward_batch(*arguments, **options)


class Draws(SampledSoftmaxLoss):
    def draw(self, sample, num_sampled, targets, num_classes, rng):
        return sample(num_sampled + targets.labels[0] % 2, rng)


class PlainNumba(Hinge):
    def _kernel_for_draw(self, draw, num_classes):
        return LossKernel(numba.njit(hinge_terms.py_func), (1.5,))


class PlainMerge(SampledSoftmaxLoss):
    def _kernel_for_draw(self, draw, num_classes):
        return (
            super()._kernel_for_draw(draw, num_classes)._replace(merge=lambda logits, merged: None)
        )


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (Backward(scheme="masked", reduction="sum"), "a backward pass of its own"),
        (Forward(scheme="masked", reduction="sum"), "a forward"),
        (Draws(scheme="masked", reduction="sum"), "draws of its own"),
        (Unmoved(reduction="sum"), "a forward"),
        (OwnSums(reduction="sum"), "a forward"),
        (DoubleSumLoss(reduction="sum"), "a forward"),
        (PlainNumba(reduction="sum"), "no kernel of samplesoft's njit"),
        (PlainMerge(scheme="masked", reduction="sum"), "no kernel of samplesoft's njit"),
        (SampledSoftmaxLoss(scheme="masked"), "reduction='mean'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_call_would_leave_out_goes_step_by_step(loss, words):
    model, optimizer = make("sampled-masked", np.float64)
    model.softmax.loss = loss
    assert words in why_step_by_step(model, optimizer)


def test_an_optimizer_with_a_step_of_its_own_goes_step_by_step():
    model, _ = make("sampled-masked", np.float64)
    assert "a step of its own" in why_step_by_step(model, Clipped(0.1))
    assert "NoneType" in why_step_by_step(model, None)


class Weighed(SampledLoss):
    """A sum over draws that weigh by how they were drawn, though logits are not corrected."""

    schemes = {"masked": SCHEMES["masked"].without_correction()}

    def _kernel_for_draw(self, draw, num_classes):
        return LossKernel(one_vs_each_kernel, weighs_draws=True, adds_exponentials=True)


@pytest.mark.parametrize("several", [False, True])
def test_draws_that_are_weighed_where_logits_are_not_corrected(several):
    x, labels, weights = problem(several, np.float64)
    made = [make("sampled-masked", np.float64) for _ in range(2)]
    for model, _ in made:
        model.softmax.loss = Weighed(reduction="sum")
    (value, *_), (wanted, *_) = both_ways(made, x, labels, weights)
    assert value == pytest.approx(wanted, rel=1e-12)


def test_an_optimizer_of_another_model_is_refused():
    x, labels, weights = problem(False, np.float64)
    model, optimizer = make("sampled-masked", np.float64)
    take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))
    settings = model.settings
    other = LinearSoftmax(V, 40_000, settings, counts=np.ones(40_000), dtype=np.float64, rng=3)
    with pytest.raises(ValueError, match="make a new optimizer"):
        take_steps(other, optimizer, x, labels, weights, BATCH, (5, 0))


def test_a_rate_beyond_the_type_is_refused_and_nothing_changes():
    x, labels, weights = problem(False, np.float32)
    model, _ = make("sampled-masked", np.float32)
    before = {name: array.copy() for name, array in model.parameters.items()}
    optimizer = make_optimizer("sgd", 1e39)
    with pytest.raises(ValueError, match="`learning_rate` must be within the range of float32"):
        take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))
    assert optimizer.steps == 0
    for name, array in before.items():
        assert np.array_equal(model.parameters[name], array)


@pytest.mark.parametrize("loss", ["sampled-masked", "bpr", "nce"])
def test_a_score_of_a_draw_beyond_all_numbers_is_an_error(loss):
    x, labels, weights = problem(False, np.float32)
    model, optimizer = make(loss, np.float32, normalize=False)
    model.copy_read_only_parameters()
    model.parameters["embedding.intercept"][0] = 1e3
    model.parameters["softmax.class_embeddings"][10:] = 0.0
    model.parameters["softmax.class_embeddings"][10:, 0] = -3e38
    with pytest.raises(FloatingPointError, match="not finite"):
        take_steps(model, optimizer, x, labels % 10, weights, BATCH, (5, 0))


@njit
def raising_terms(logits, losses):
    for p in range(len(logits)):
        if logits[p, 0] > -1e300:
            raise ValueError("no such row")
        losses[p] = 0.0


class Raising(Hinge):
    def _kernel_for_draw(self, draw, num_classes):
        return LossKernel(raising_terms)


def test_a_kernel_that_raises_leaves_nobody_waiting(threads, monkeypatch):
    monkeypatch.setattr("samplesoft.training.fused.steps._MIN_PARALLEL_MULTIPLICATIONS", 0)
    threads(4)
    x, labels, weights = problem(False, np.float64)
    model, optimizer = make("sampled-masked", np.float64)
    model.softmax.loss = Raising(reduction="sum")
    with pytest.raises(ValueError, match="no such row"):
        take_steps(model, optimizer, x, labels, weights, BATCH, (5, 0))


@pytest.mark.parametrize("number", [1, 4])
def test_a_step_whose_loss_is_not_finite_changes_nothing(number, threads, monkeypatch):
    """As by the public path, where a draw is left for each label is asked before the step."""
    monkeypatch.setattr("samplesoft.training.fused.steps._MIN_PARALLEL_MULTIPLICATIONS", 0)
    threads(number)
    x, _, weights = problem(False, np.float64)
    labels = np.zeros((N, CLASSES))
    labels[:, :2] = 1.0  # of two labels one is always drawn, and masked for the other
    q = np.zeros(CLASSES)
    q[0] = 1.0
    model, optimizer = make(
        "importance", np.float64, sampler=lambda inputs: WeightedSampler(q), mask_other_labels=True
    )
    model.copy_read_only_parameters()
    before = {name: array.copy() for name, array in model.parameters.items()}
    with pytest.raises(ValueError, match="`draw` must hold for each label of example 0"):
        take_steps(model, optimizer, x, sparse.csr_array(labels), weights, BATCH, (5, 0))
    for name, array in before.items():
        assert np.array_equal(model.parameters[name], array)


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_steps_are_those_of_the_plain_twin(optimizer):
    """Which takes them one example at a time, by nothing of the package."""
    x, labels, weights = problem(False, np.float64)
    model, trained = make("sampled-masked", np.float64, optimizer)
    model.copy_read_only_parameters()
    names = {
        "inputs": "embedding.weights",
        "intercept": "embedding.intercept",
        "classes": "softmax.class_embeddings",
    }
    parameters = {name: model.parameters[key].reshape(-1, 16).copy() for name, key in names.items()}

    def descend(name, row, gradient):
        parameters[name][row] -= 0.1 * gradient

    update = plain.adagrad(parameters, 0.1) if optimizer == "adagrad" else descend
    draws = draw_steps(model, 3, 5)
    assert np.isin(labels, draws.ids).any()  # accidental hits are among them
    wanted = plain.train(
        parameters,
        x.toarray(),
        labels,
        weights,
        draws.ids,
        draws.log_counts,
        BATCH,
        model.softmax.loss.tau,
        update,
    )
    found = take_steps(model, trained, x, labels, weights, BATCH, (5, 0), draws=draws)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    for name, key in names.items():
        rows = model.parameters[key].reshape(-1, 16)
        np.testing.assert_allclose(rows, parameters[name], rtol=1e-8, atol=1e-10)
