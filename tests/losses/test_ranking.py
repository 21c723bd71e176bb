"""BPR and WARP: which draws count, in which order, and how the loss does not grow with m."""

import numpy as np
import pytest
from oracles.loss_cases import check_value_and_gradients, make_case, of_scores
from scipy import sparse

from samplesoft.losses import BPRLoss, WARPLoss, make_loss
from samplesoft.losses.ranking import bpr_kernel, warp_kernel
from samplesoft.losses.sampled import LossKernel
from samplesoft.models import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers.base import Draw

HARMONIC = np.array([1.0 + 1 / 2 + 1 / 3 + 1 / 4, 1.0 + 1 / 2, 1.0, 1.0])  # n = 5: ranks 4, 2, 1, 1


def draw_of(*ids):
    return Draw(np.array([ids]), np.full((1, len(ids)), -1.0))


def run(kernel, rows, *more):
    """Return losses of rows of logits, and what the rows become."""
    logits, losses = np.array(rows, float), np.empty(len(rows))
    kernel(logits, losses, *more)
    return losses, logits


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_bpr_by_hand(scale):
    rows = scale * np.random.default_rng(0).normal(size=(5, 7))
    losses, found = run(bpr_kernel, rows)
    margins = rows[:, 1:] - rows[:, :1]
    np.testing.assert_allclose(losses, np.logaddexp(0.0, margins).mean(axis=1), rtol=1e-13)
    slopes = np.exp(-np.logaddexp(0.0, -margins)) / 6
    np.testing.assert_allclose(found[:, 1:], slopes, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(found[:, 0], -slopes.sum(axis=1), rtol=1e-11, atol=1e-300)


def test_bpr_does_not_grow_with_draws_or_with_those_left_out():
    inf = np.inf
    losses, found = run(
        bpr_kernel, [[1.0, 0.5, 2.0, -inf, -inf, -inf], [1.0, 0.5, 2.0, 0.5, 2.0, -inf]]
    )
    assert losses[0] == pytest.approx(losses[1], rel=1e-14)
    assert found[0, 0] == pytest.approx(found[1, 0], rel=1e-14)
    assert not found[0, 3:].any() and found[1, 5] == 0.0


@pytest.mark.parametrize("kernel", [bpr_kernel, warp_kernel])
def test_nothing_is_lost_without_draws_of_weight(kernel):
    more = (HARMONIC,) if kernel is warp_kernel else ()
    losses, found = run(kernel, [[3.0] + [-np.inf] * 4, [-1e4] + [-np.inf] * 4], *more)
    assert not losses.any() and not found.any()


@pytest.mark.parametrize(
    ("row", "loss", "slopes"),
    [
        ([0.0, 0.5, 2.0, -3.0, 0.0], HARMONIC[0] * 1.5, {1: HARMONIC[0]}),
        ([0.0, -2.0, 2.0, 0.5, 0.0], HARMONIC[1] * 3.0, {2: HARMONIC[1]}),
        ([0.0, -np.inf, -2.0, -np.inf, 0.5], HARMONIC[1] * 1.5, {4: HARMONIC[1]}),  # not counted
        ([0.0, -1.0, -1.0, -1e4, -2.0], 0.0, {}),  # at the margin is no violation
        ([-1e4, 1e4, 0.0, 0.0, 0.0], HARMONIC[0] * 20_001.0, {1: HARMONIC[0]}),
    ],
)
def test_warp_takes_the_first_that_violates_the_margin(row, loss, slopes):
    losses, found = run(warp_kernel, [row], HARMONIC)
    assert losses[0] == pytest.approx(loss, rel=1e-14)
    wanted = np.zeros(5)
    for place, slope in slopes.items():
        wanted[[0, place]] = -slope, slope
    np.testing.assert_allclose(found[0], wanted, rtol=1e-14)


def test_warp_knows_the_number_of_classes():
    scores = np.zeros(1000)
    value, slopes = of_scores(WARPLoss(), draw_of(4, 5), scores, 2)
    assert value == pytest.approx(np.sum(1.0 / np.arange(1, 1000)), rel=1e-13)
    assert slopes[4] == -slopes[2] == pytest.approx(value, rel=1e-13) and slopes[5] == 0.0
    scores[4] = -1.5
    value, _ = of_scores(WARPLoss(), draw_of(2, 4, 5), scores, 2)  # the label is no trial
    assert value == pytest.approx(np.sum(1.0 / np.arange(1, 500)), rel=1e-13)


def test_warp_with_more_trials_than_classes():
    scores = np.array([0.0, -5.0, 0.5])
    value, _ = of_scores(WARPLoss(), draw_of(1, 2), scores, 0)
    assert value == pytest.approx(1.5)
    value, slopes = of_scores(WARPLoss(), draw_of(1, 1, 1, 2, 2), scores, 0)
    assert value == 0.0 and not slopes.any()  # a rank of 2 // 4


def test_labels_of_an_example_are_no_trials():
    """By hand: of labels 0 and 1, draws of both are skipped where they are masked."""
    scores, labels = np.array([0.0, 0.3, 0.2, -4.0, 0.0]), sparse.csr_array([[1.0, 1, 0, 0, 0]])
    draw = draw_of(1, 3, 0, 2)

    def value(**options):
        loss = WARPLoss(**options)
        return loss.forward(np.ones((1, 1)), scores[:, None], labels, draw)[0]

    masked = (1.2 + 0.9) / 2 * HARMONIC[1]  # class 3 leads neither, then class 2 violates
    assert value(mask_other_labels=True) == pytest.approx(masked, rel=1e-13)
    # else label 1 is the first trial of label 0, and label 0 the second one of label 1
    plain = (1.3 * HARMONIC[0] + 0.7 * HARMONIC[1]) / 2
    assert value() == pytest.approx(plain, rel=1e-13)


# WRONG: draws of the label are trials; the sum over the draws, not their mean.
def test_the_formulas_notice_wrong_losses():
    class Counted(WARPLoss):
        def _terms(self, logits, losses):
            logits[:, 1:] = np.where(np.isinf(logits[:, 1:]), -1e9, logits[:, 1:])
            self.right.kernel(logits, losses, *self.right.parameters)

        def _kernel_for_draw(self, draw, num_classes):
            self.right = super()._kernel_for_draw(draw, num_classes)
            return LossKernel(self._terms)

    class Sum(BPRLoss):
        def _terms(self, logits, losses):
            kept = np.isfinite(logits[:, 1:]).sum(axis=1)
            bpr_kernel(logits, losses)
            losses *= kept
            logits *= kept[:, None]

        def _kernel_for_draw(self, draw, num_classes):
            return LossKernel(self._terms)

    for name, wrong in (("warp", Counted()), ("bpr", Sum())):
        case = make_case(make_loss(name), n=5, m=6)
        case.h *= 0.3  # so that many draws violate the margin
        check_value_and_gradients(name, make_loss(name), case)
        with pytest.raises(AssertionError):
            check_value_and_gradients(name, wrong, case)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ["bpr", "warp", "gbce"])
def test_a_model_learns_by_it(name):
    settings = LinearSoftmaxSettings(loss=name, sampler="uniform", num_sampled=3)
    assert settings.resolved().shared
    model, optimizer = LinearSoftmax(6, 6, settings, rng=0), make_optimizer("adagrad", 0.1)
    x, labels = np.eye(6, dtype=np.float32), np.array([1, 2, 3, 4, 5, 0])
    assert (model.top_k(x, 1)[0].ravel() == labels).mean() < 0.5
    for step in range(80):
        _, gradients = model.step(x, labels, rng=step)
        optimizer.step(model.parameters, gradients)
        model.after_step(gradients)
    np.testing.assert_array_equal(model.top_k(x, 1)[0].ravel(), labels)
