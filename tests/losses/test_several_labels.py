"""Several labels of an example: each loss against its oracle, label by label, in many digits."""

import copy

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.loss_cases import NAMES, SAMPLED, dense, fitted, needs_count
from oracles.naive_losses import ORACLES, derivative, exact, scores
from scipy import sparse

from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.sampled import SampledLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import SoftmaxSampler
from samplesoft.samplers.base import Draw

SEVERAL = [name for name in NAMES if LOSSES[name].several_labels]
ONCE = {"label_reduction": "ova"}  # of losses that know no other
WEIGHTED = [name for name in SEVERAL if LOSSES[name].fixed.get("label_reduction") != "ova"]
DRAW = Draw(np.zeros((1, 2), np.int64), np.zeros((1, 2)))
MERGED = [
    name
    for name in SAMPLED
    if name in SEVERAL
    and "multilevel" not in name
    and make_loss(name)._kernel_for_draw(DRAW, 5).merge
]
BINARY = [name for name in SEVERAL if LOSSES[name].make.is_binary]


@pytest.fixture(params=WEIGHTED)
def name(request):
    return request.param


class Several:
    """Examples whose labels have the weights `dense` (B, n); draws by q (B, n) or (1, n)."""

    def __init__(self, rows, h, dense_labels, q, ids):
        self.rows, self.h, self.labels = np.array(rows, float), np.array(h, float), dense_labels
        self.q, self.ids = np.array(q, float), np.array(ids)
        self.biases = np.linspace(-0.3, 0.4, len(self.rows))

    def forward(self, loss):
        """Return what the loss and its backward pass say of a batch."""
        own, draw = None, None
        if isinstance(loss, SampledLoss):
            draw = Draw(self.ids, np.log(np.take_along_axis(self.q, self.ids, axis=1)))
            draw = fitted(loss, draw, len(self.rows), None)
        if needs_count(loss):
            examples, labels = np.nonzero(self.labels)
            q = np.broadcast_to(self.q, self.labels.shape)
            own = np.log(self.ids.shape[1] * q[examples, labels])
        matrix = sparse.csr_array(self.labels)
        value, cache = loss.forward(
            self.h, self.rows, matrix, draw, label_log_count=own, biases=self.biases
        )
        return value, loss.backward(cache)

    def oracle(self, name, loss, h, rows):
        """The sum over the examples, as mpf."""
        total = mpf(0)
        for b, weights in enumerate(exact(self.labels)):
            o = scores(h[b], rows, exact(self.biases), loss.tau, loss.normalize, loss.absolute)
            q, ids = self.q[b % len(self.q)], self.ids[b % len(self.ids)]
            counts = [len(ids) * mpf(float(q[j])) for j in ids]
            labels = np.flatnonzero(weights)
            own = {label: len(ids) * mpf(float(q[label])) for label in labels}
            if loss.label_reduction == "ova":
                total += ova(name, o, labels, ids, counts, own, loss.mask_other_labels)
                continue
            for label in labels:
                others = [j for j in labels if j != label] if loss.mask_other_labels else []
                share = weights[label] / (
                    mp.fsum(weights) if loss.label_reduction == "pal-n" else 1
                )
                total += share * masked(name, o, label, others, ids, counts, own)
        return total


def masked(name, o, label, others, ids, counts, own):
    """The oracle of a label, for which `others` are no classes."""
    if name == "sampled-reject" and others:
        kept = [(j, c) for j, c in zip(ids, counts, strict=True) if j not in others]
        expected = len(ids) - mp.fsum(own.values())  # draws of no label
        ids, counts = zip(*kept, strict=True)
        return ORACLES[name](o, label, ids, counts, len(ids) - expected)
    o = [mpf("-inf") if j in others else x for j, x in enumerate(o)]
    return ORACLES[name](o, label, ids, counts, own[label])


def ova(name, o, labels, ids, counts, own, masked):
    """One versus all: each label once, and each draw once, if it is no label or labels count."""
    softplus = lambda x: mp.log(1 + mp.exp(x))  # noqa: E731
    ids = range(len(o)) if name == "full-logistic" else ids
    if name == "nce":
        kept = [(j, c) for j, c in zip(ids, counts, strict=True) if not (masked and j in labels)]
        negatives = [o[j] - mp.log(c) for j, c in kept]
        positives = [o[j] - mp.log(own[j]) for j in labels]
    else:
        negatives, positives = [o[j] for j in ids if j not in labels], [o[j] for j in labels]
    power = mpf("0.25") + mpf("0.75") * len(ids) / len(o) if name == "gbce" else 1
    return mp.fsum(map(softplus, negatives)) + power * mp.fsum(softplus(-x) for x in positives)


def random_case(seed=0, n=7, m=5, batch=3, shared=False):
    rng = np.random.default_rng(seed)
    labels = np.zeros((batch, n))
    for b in range(batch):
        own = rng.choice(n - 1, size=[3, 1, 4][b % 3], replace=False)
        labels[b, own] = rng.uniform(0.5, 2.0, size=len(own))
    q = rng.dirichlet(np.ones(n), size=1 if shared else batch)
    ids = rng.integers(n, size=(len(q), m))
    ids[:, -1] = n - 1  # a class that is no label
    return Several(rng.normal(size=(n, 2)), rng.normal(size=(batch, 2)), labels, q, ids)


def check(name, loss, case):
    """Compare value and gradients with the oracle and its differences."""
    value, found = case.forward(loss)
    with mp.workdps(50):
        arrays = exact(case.h), exact(case.rows)
        wanted = float(case.oracle(name, loss, *arrays))
        slopes = derivative(lambda h, rows: case.oracle(name, loss, h, rows), arrays)
    assert value == pytest.approx(wanted, rel=2e-13)
    np.testing.assert_allclose(found.dh, slopes[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(dense(found.dW, len(case.rows)), slopes[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_values_and_gradients(name, shared):
    loss = make_loss(name, tau=1.3, normalize=True, reduction="sum")
    check(name, loss, random_case(seed=1, shared=shared))


REDUCTIONS = {
    "sum": {"label_reduction": "pal"},
    "mean, others masked": {"mask_other_labels": True},
    "sum, others masked": {"label_reduction": "pal", "mask_other_labels": True, "absolute": True},
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(name, kind):
    options = {k: v for k, v in REDUCTIONS[kind].items() if k not in LOSSES[name].fixed}
    loss = make_loss(name, reduction="sum", **options)
    check(name, loss, random_case(seed=2))


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", BINARY)
def test_one_versus_all(name, masked, shared):
    options = {} if name not in WEIGHTED else ONCE
    loss = make_loss(name, tau=1.3, reduction="sum", mask_other_labels=masked, **options)
    case = random_case(seed=3, shared=shared)
    case.labels[case.labels > 0.0] = 1.0
    check(name, loss, case)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, {"label_reduction": "pal"}),
        ({}, {"mask_other_labels": True}),
        ({"label_reduction": "ova"}, {"label_reduction": "pal"}),
    ],
)
def test_the_oracle_of_another_reduction_differs(options, wrong):
    case = random_case(seed=2)
    case.labels[case.labels > 0.0] = 1.0
    other = make_loss("nce", reduction="sum", **wrong)
    value, _ = case.forward(make_loss("nce", reduction="sum", **options))
    with mp.workdps(30):
        wanted = float(case.oracle("nce", other, exact(case.h), exact(case.rows)))
    assert value != pytest.approx(wanted, rel=1e-3)


def test_all_classes_are_labels_and_masked():
    case = random_case()
    case.labels[:] = 1.0
    loss = make_loss("full", mask_other_labels=True)
    value, gradients = case.forward(loss)
    assert value == 0.0 and not gradients.dh.any() and not gradients.dW.rows.any()


def test_a_small_masked_loss_keeps_its_digits():
    rows = np.array([[60.0], [50.0], [0.0], [-1.0]])
    case = Several(rows, [[1.0]], np.array([[1.0, 1.0, 0.0, 0.0]]), [[0.25] * 4], [[2, 3]])
    case.biases[:] = 0.0
    value, gradients = case.forward(make_loss("full", mask_other_labels=True))
    rest = 1.0 + np.exp(-1.0)
    wanted = np.array([np.exp(-60.0), np.exp(-50.0)]) * rest / 2.0
    assert value == pytest.approx(wanted.sum(), rel=1e-13)
    np.testing.assert_allclose(gradients.dW.rows[:2, 0], -wanted, rtol=1e-13)
    np.testing.assert_allclose(gradients.dW.rows[2, 0], wanted.sum() / rest, rtol=1e-13)


@pytest.mark.parametrize("name", [name for name in NAMES if not LOSSES[name].make.is_binary])
def test_one_versus_all_is_no_softmax(name):
    with pytest.raises(ValueError, match=r"must not be 'ova' .* take 'pal'"):
        make_loss(name, label_reduction="ova")


def test_labels_and_reductions_that_are_refused():
    with pytest.raises(ValueError, match=r"`labels` must hold ones .* got"):
        random_case().forward(make_loss("nce", label_reduction="ova"))
    with pytest.raises(ValueError, match="`label_reduction` must be one of"):
        make_loss("full", label_reduction="sum")


# WRONG: the oracle of a loss that treats draws of the label in another way.
@pytest.mark.parametrize(
    ("name", "wrong"),
    [("sampled-masked", "sampled-candidate"), ("nce", "negative-sampling-masked")],
)
def test_the_oracle_of_another_loss_differs(name, wrong):
    with pytest.raises(AssertionError):
        check(wrong, make_loss(name, reduction="sum"), random_case(seed=1))


EXTREMES = {  # scores of the classes; 0, 1 and 2 are labels
    "a label that is drawn has nearly all of the mass": [60.0, 0.0, 1.0, 2.0, 3.0],
    "a label that is drawn has all of the mass": [1e4, 0.0, 1.0, 2.0, 3.0],
    "labels far below": [-1e4, -1e4, -1e4 + 3.0, 1e4, 1e4],
    "labels far above": [1e4, 1e4 + 1.0, 1e4 - 30.0, -1e4, -1e4],
    "draws far apart": [0.0, 1.0, 2.0, 1e4, -1e4],
    "small scores": [-700.0, -710.0, -720.0, -730.0, -740.0],
}


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("name", [name for name in SEVERAL if LOSSES[name].draws])
def test_extreme_scores(name, kind):
    labels = np.array([[1.0, 1.0, 1.0, 0.0, 0.0]])
    q, ids = [[0.05, 0.2, 0.25, 0.25, 0.25]], [[0, 3, 1, 4, 0, 3]]
    case = Several(np.array(EXTREMES[kind])[:, None], [[1.0]], labels, q, ids)
    loss = make_loss(name)
    value, found = case.forward(loss)
    with mp.workdps(80):
        arrays = exact(case.h), exact(case.rows)
        wanted = float(case.oracle(name, loss, *arrays))
        change = lambda rows: case.oracle(name, loss, arrays[0], rows)  # noqa: E731
        (slopes,) = derivative(change, arrays[1:])
    size = np.abs(case.rows).max()
    assert value == pytest.approx(wanted, rel=4e-13, abs=1e-15 * size if size > 100.0 else 0.0)
    rtol = 1e-14 * max(size, 1e3)  # scores are rounded
    np.testing.assert_allclose(dense(found.dW, 5), slopes, rtol=rtol, atol=1e-13)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("name", MERGED)
def test_draws_are_computed_with_once_for_all_labels(name, shared, monkeypatch):
    loss = make_loss(name)
    seen, terms = [], loss._kernel_for_draw(DRAW, 5)

    def counted(x, losses, *numbers):
        seen.append(x.size)
        terms.kernel(x, losses, *numbers)

    monkeypatch.setattr(type(loss), "_kernel_for_draw", lambda *_: terms._replace(kernel=counted))
    n, m, batch, each = 5000, 300, 4, 20
    labels = np.zeros((batch, n))
    labels[:, :each] = 1.0
    rng = np.random.default_rng(0)
    ids = rng.integers(each, n, size=(1 if shared else batch, m))
    ids[:, :2] = [3, 7]
    q = np.full((len(ids), n), 1.0 / n)
    case = Several(rng.normal(size=(n, 2)), rng.normal(size=(batch, 2)), labels, q, ids)
    case.forward(loss)
    assert sum(seen) <= batch * each * (2 + 2)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "others masked"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 10.0, 300.0])
@pytest.mark.parametrize("name", MERGED)
def test_many_draws_are_those_of_each_label(name, scale, masked):
    """What pairs share is what each would compute."""
    case = random_case(seed=5, n=40, m=90, batch=9)
    case.rows *= scale
    loss = make_loss(name, reduction="sum", mask_other_labels=masked)
    value, found = case.forward(loss)
    alone = copy.copy(loss)
    alone._kernel_for_draw = lambda draw, n: loss._kernel_for_draw(draw, n)._replace(merge=None)
    wanted, slopes = case.forward(alone)
    assert value == pytest.approx(wanted, rel=1e-13)
    size = np.abs(slopes.dh).max()
    np.testing.assert_allclose(found.dh, slopes.dh, rtol=1e-12, atol=1e-14 * size)
    np.testing.assert_allclose(found.dW.rows, slopes.dW.rows, rtol=1e-11, atol=1e-15)


def test_a_layer_asks_the_sampler_once_for_each_context():
    rng = np.random.default_rng(0)
    rows, h = rng.normal(size=(30, 4)), rng.normal(size=(5, 4))
    labels = np.zeros((5, 30))
    for b, size in enumerate([1, 7, 2, 30, 3]):
        labels[b, rng.choice(30, size, replace=False)] = 1.0
    sampler, asked = SoftmaxSampler(rows), []
    count = sampler.log_expected_count
    sampler.log_expected_count = lambda h, *rest, **more: (asked.append(len(h)), count(h, *rest))[1]
    layer = SoftmaxLayer(rows, make_loss("nce"), sampler, 3)
    batch = layer.loss.check_batch(h, rows, sparse.csr_array(labels), None)
    found = layer._label_log_count(batch.contexts, batch.targets)
    examples, classes = np.nonzero(labels)
    wanted = count(h[examples], classes[:, None], 3)[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    assert sum(asked) == 5


@pytest.mark.parametrize("name", MERGED)
def test_a_score_that_is_not_finite_is_found(name):
    case = random_case()
    case.rows[case.ids[1, -1]] = np.inf  # drawn, and no label
    with pytest.raises(ValueError, match="finite"):
        case.forward(make_loss(name))


@pytest.mark.parametrize("name", [name for name in SEVERAL if LOSSES[name].draws])
def test_training_goes_on_where_no_draw_has_weight(name):
    """All draws of an example are its labels, and left out."""
    labels = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
    case = Several(np.eye(4), np.eye(4)[:2], labels, [[0.25] * 4], [[0, 1], [1, 2]])
    value, gradients = case.forward(make_loss(name, mask_other_labels=True))
    assert np.isfinite(value) and np.isfinite(gradients.dh).all()
