"""Batches for the suites of losses, and the oracles of `naive_losses` laid over them."""

from dataclasses import dataclass, replace

import numpy as np
from mpmath import mp, mpf

from oracles.naive_losses import CHANCE, ORACLES, block_of, derivative, exact, scores
from samplesoft.losses.multilevel import MultilevelDraw, MultilevelLoss
from samplesoft.losses.registry import LOSSES
from samplesoft.losses.sampled import SampledLoss
from samplesoft.samplers.base import Draw

# those over a tree of classes have a suite of their own, for they have other vectors
NAMES = sorted(name for name, spec in LOSSES.items() if not spec.on_tree)
SAMPLED = [name for name in NAMES if LOSSES[name].draws]
HITS = [name for name in SAMPLED if not LOSSES[name].excludes_label]  # take draws of the label

SCORES = np.array([0.3, -1.0, 1.2, 0.0, 2.0])  # of the classes, where nothing else is said
LABEL = 2


@dataclass
class Case:
    """Arguments of a loss; `q` (B, n) or (1, n) is what was drawn from."""

    h: np.ndarray
    class_embeddings: np.ndarray
    labels: np.ndarray
    q: np.ndarray
    ids: np.ndarray | None
    biases: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def draw(self):
        if self.ids is None:
            return None
        with np.errstate(divide="ignore"):
            return Draw(self.ids, np.log(np.take_along_axis(self.q, self.ids, axis=1)))

    @property
    def label_log_count(self):
        if self.ids is None:
            return None
        rows = np.broadcast_to(self.q, (len(self.labels), self.q.shape[1]))
        with np.errstate(divide="ignore"):
            log_q = np.log(rows[np.arange(len(rows)), self.labels])
        return log_q + np.log(self.ids.shape[1])

    def forward(self, loss):
        return loss.forward(
            self.h,
            self.class_embeddings,
            self.labels,
            fitted(loss, self.draw, len(self.class_embeddings), self.labels),
            label_log_count=self.label_log_count if needs_count(loss) else None,
            biases=self.biases,
            weights=self.weights,
        )

    def astype(self, dtype):
        return replace(
            self, h=self.h.astype(dtype), class_embeddings=self.class_embeddings.astype(dtype)
        )


def fitted(loss, draw, n, labels):
    """A draw as the loss makes it, for losses that draw in a way of their own.

    `ORACLES` know what is made of how many draws.
    """
    if not isinstance(draw, Draw) or draw.log_inclusion is not None:
        return draw
    if isinstance(loss, MultilevelLoss):
        ids, log_q, m = draw.ids, draw.log_q, draw.ids.shape[1]
        if m % 2:  # of the last level
            own = loss.excludes_label
            every = [np.setdiff1d(range(n), [x]) for x in labels] if own else [np.arange(n)]
            ids, every = ([*x] * (max(len(ids), len(every)) // len(x)) for x in (ids, every))
            log_q = np.hstack([np.broadcast_to(log_q, (len(ids), m)), 0.0 * np.array(every)])
            ids = np.hstack([ids, every])
        return MultilevelDraw(ids, log_q, None, block_of(m), m, CHANCE)
    return draw


def needs_count(loss):
    return isinstance(loss, SampledLoss) and loss.needs_label_count


def make_case(loss, *, shared=False, batch=3, n=6, m=4, dim=3, seed=0, full=False):
    """Draw a case at random; where `loss` takes hits, two draws of each own set are the label."""
    rng = np.random.default_rng(seed)
    h, rows = rng.normal(size=(batch, dim)), rng.normal(size=(n, dim))
    labels = rng.integers(0, max(1, n // 2), size=batch)
    q, ids = rng.dirichlet(np.full(n, 2.0), size=1 if shared else batch), None
    if isinstance(loss, SampledLoss):
        if loss.excludes_label:
            if shared:
                q[0, labels] = 0.0
            else:
                q[np.arange(batch), labels] = 0.0
            q /= q.sum(axis=1, keepdims=True)
        ids = np.stack([rng.choice(n, size=m, p=row) for row in q])
        if not loss.excludes_label and m > 2:
            ids[:, [0, 2]] = labels[: len(ids), None]
    extras = {}
    if full:
        extras = {"biases": rng.normal(size=n), "weights": rng.uniform(0.5, 2.0, size=batch)}
    return Case(h, rows, labels, q, ids, **extras)


def oracle_losses(name, loss, case, h=None, class_embeddings=None, biases=None):
    """Losses of the examples as mpf, without weights; arrays of mpf may replace those of floats."""
    h = exact(case.h) if h is None else h
    rows = exact(case.class_embeddings) if class_embeddings is None else class_embeddings
    if biases is None and case.biases is not None:
        biases = exact(case.biases)
    found = []
    for b, label in enumerate(case.labels):
        o = scores(h[b], rows, biases, loss.tau, loss.normalize, loss.absolute)
        ids, counts, own = (), (), None
        if case.ids is not None:
            q, ids = case.q[b % len(case.q)], case.ids[b % len(case.ids)]
            counts = [len(ids) * mpf(float(q[j])) for j in ids]
            own = len(ids) * mpf(float(q[label]))
        found.append(ORACLES[name](o, label, ids, counts, own))
    return found


def oracle_value(name, loss, case, **arrays):
    """The value of the loss, or the sum of its values, as mpf."""
    losses = oracle_losses(name, loss, case, **arrays)
    weights = [mpf(1)] * len(losses) if case.weights is None else list(exact(case.weights))
    total = mp.fsum(w * x for w, x in zip(weights, losses, strict=True))
    return total / mp.fsum(weights) if loss.reduction == "mean" else total


def check_value_and_gradients(name, loss, case):
    """Compare value and gradients with the oracle and its differences, in many digits."""
    value, cache = case.forward(loss)
    found = loss.backward(cache)
    n = len(case.class_embeddings)
    with mp.workdps(50):
        total = float(oracle_value(name, loss, case))
        np.testing.assert_allclose(np.sum(value), total, rtol=1e-13, atol=1e-45)
        parts = [exact(case.h), exact(case.class_embeddings)]
        names = ["h", "class_embeddings"]
        if case.biases is not None:
            parts, names = [*parts, exact(case.biases)], [*names, "biases"]

        def change(*arrays):
            return oracle_value(name, loss, case, **dict(zip(names, arrays, strict=True)))

        wanted = derivative(change, parts)
    np.testing.assert_allclose(found.dh, wanted[0], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(dense(found.dW, n), wanted[1], rtol=1e-11, atol=1e-13)
    if case.biases is None:
        assert found.db is None
    else:
        np.testing.assert_allclose(dense(found.db, n), wanted[2], rtol=1e-11, atol=1e-13)


def dense(sparse_rows, n):
    """The whole gradient of a parameter with n rows."""
    ids, rows = sparse_rows
    assert (np.diff(ids) > 0).all(), "each row once, ascending"
    out = np.zeros((n, *rows.shape[1:]), rows.dtype)
    out[ids] = rows
    return out


def full_softmax(o=SCORES, label=LABEL):
    """Loss, and its gradient in the scores."""
    top = o.max()
    e = np.exp(o - top)
    return top + np.log(e.sum()) - o[label], e / e.sum() - (np.arange(len(o)) == label)


def of_scores(loss, draw, o=SCORES, label=LABEL, weights=None, label_log_count=None):
    """Value of a loss of the scores `o`, and its gradient in them; one example for each set."""
    batch = len(draw.ids)
    own = None if label_log_count is None else np.full(batch, label_log_count)
    value, cache = loss.forward(
        np.ones((batch, 1)),
        o[:, None],
        np.full(batch, label),
        draw,
        label_log_count=own,
        weights=weights,
    )
    return value, dense(loss.backward(cache).dW, len(o))[:, 0]
