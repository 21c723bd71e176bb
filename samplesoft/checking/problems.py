"""Test problems: small ones on which right and wrong losses differ most, and extreme ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logit, softmax
from scipy.stats import binom

from samplesoft._validation import FloatArray, IntArray, as_choice, as_proposal
from samplesoft.checking.calls import call_proposal
from samplesoft.samplers.frequency import log_uniform_weights

REPLICAS = 16  # copies of each example in a batch
_LEAST_DRAWN = 3  # smallest number of classes with q > 0
# for a proposal that works for any n: smallest n, and largest n - m
_LEAST_CLASSES, _MORE_CLASSES = 8, 32
# smallest and largest dimension, unless the proposal fixes it; `extreme_problems` needs at least 8
_LEAST_DIMS, _MOST_DIMS = 8, 12
NUM_VIEWS = 4  # random directions on which gradients in class vectors and biases are projected
_WEIGHTS = (1.5, 0.5, 2.0, 1.0)  # weights of the four examples
_LIKELY = np.array([0.15, 0.4, 0.4, 0.15])  # intended softmax probabilities of the four labels
_RARE = 2.0  # a label's logit is raised if it is lower than intended by more (nats)
_SPREAD = 1.5  # standard deviation of the logits of an example
_CANDIDATES = 64  # random contexts from which the best four are chosen
NAMED_PROPOSALS: dict[str, Callable[[int], FloatArray]] = {
    "uniform": lambda n: np.full(n, 1.0 / n),
    "log-uniform": lambda n: log_uniform_weights(n) / log_uniform_weights(n).sum(),
}


@dataclass(frozen=True)
class Problem:
    """E examples with n classes: the arguments of a loss, and the logits that it should compute.

    Attributes
    ----------
    class_embeddings : ndarray, shape (n, d)
        Class vectors.
    biases : ndarray, shape (n,), or None
        Class biases.
    h : ndarray, shape (E, d)
        Context vectors.
    labels : ndarray of int, shape (E,)
        Labels, which are classes with q > 0.
    logits : ndarray, shape (E, n)
        ``tau * h @ class_embeddings.T + biases``.
    q : ndarray, shape (E, n)
        Probabilities of the proposal; classes with q = 0 are never drawn.
    weights : ndarray, shape (E,)
        Weights of the examples, which are 1 if the loss takes none.
    tau : float
        Inverse temperature.
    has_unit_vectors : bool
        Whether all vectors have norm 1, because the loss divides them by their norms.
    """

    class_embeddings: FloatArray
    biases: FloatArray | None
    h: FloatArray
    labels: IntArray
    logits: FloatArray
    q: FloatArray
    weights: FloatArray
    tau: float
    has_unit_vectors: bool = False

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return int(self.logits.shape[1])

    @property
    def classes_by_frequency(self) -> IntArray:
        """Classes with q > 0 by increasing q; among equal q, classes near both ends first."""
        ids = np.arange(self.num_classes)
        order: IntArray = np.lexsort((np.minimum(ids, ids[::-1]), self.q[0]))
        return order[(self.q[:, order] > 0.0).all(axis=0)]

    @property
    def view_directions(self) -> FloatArray:
        """Random directions (n, 4), on which gradients in class parameters are projected."""
        directions: FloatArray = np.random.default_rng(0).standard_normal(
            (self.num_classes, NUM_VIEWS)
        )
        return directions

    def select_examples(self, rows: IntArray, labels: IntArray) -> Problem:
        """Return a problem with the contexts at indices `rows` (B,), and with `labels` (B,)."""
        arrays = {name: getattr(self, name)[rows] for name in ("h", "logits", "q", "weights")}
        return replace(self, labels=labels, **arrays)

    def with_tau(self, tau: float) -> Problem:
        """Return the problem with another inverse temperature, and with its logits."""
        biases = 0.0 if self.biases is None else self.biases
        logits = (self.logits - biases) * (tau / self.tau) + biases
        return replace(self, logits=logits, tau=tau)


def make_problem(
    proposal: Any,
    num_sampled: int,
    tau: float,
    with_biases: bool,
    key: np.uint64,
    with_weights: bool = False,
    has_unit_vectors: bool = False,
) -> Problem:
    """Return a problem of four examples for a proposal in any of the forms of `check_loss`.

    The labels are frequent and rare classes, with moderate probabilities under the softmax. `key`
    is the seed of the vectors.
    """
    rng = np.random.default_rng(int(key))
    # n > m, so that draws without replacement are possible and do not contain all classes
    n = max(_LEAST_CLASSES, num_sampled + min(num_sampled, _MORE_CLASSES))
    if isinstance(proposal, type):
        raise TypeError(
            f"`proposal` must not be a class, got {proposal.__name__}; make one, as in "
            f"{proposal.__name__}(...)."
        )
    is_sampler, dim = hasattr(proposal, "probs"), None
    if is_sampler:
        n, dim = int(proposal.num_classes), getattr(proposal, "dim", None)
    elif isinstance(proposal, str):
        values = NAMED_PROPOSALS[as_choice("proposal", proposal, NAMED_PROPOSALS)](n)
    elif callable(proposal):
        values = call_proposal(proposal, n)
    elif np.ndim(proposal) == 0:
        raise TypeError(
            "`proposal` must be probabilities (n,), a function of n that returns them, one of "
            f"{', '.join(map(repr, NAMED_PROPOSALS))}, or a sampler, got {proposal!r}; for "
            "uniform draws from 8 classes write 'uniform' or numpy.full(8, 1 / 8)."
        )
    else:
        n, values = int(np.shape(proposal)[-1]), proposal
    if n < _LEAST_DRAWN:
        raise ValueError(
            f"`proposal` must be over at least {_LEAST_DRAWN} classes, got {n}: with fewer, "
            "schemes cannot be told apart."
        )
    d = min(max(n, _LEAST_DIMS), _MOST_DIMS) if dim is None else dim
    rows = rng.standard_normal((n, d))
    contexts = rng.standard_normal((_CANDIDATES, d))
    biases = 0.5 * rng.standard_normal(n) if with_biases else None
    if has_unit_vectors:  # logits are tau times cosines, so that their spread is fixed
        rows, contexts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rows, contexts))
    else:
        contexts *= _SPREAD / (tau * (contexts @ rows.T).std(axis=1, keepdims=True))
    logits = tau * contexts @ rows.T + (0.0 if biases is None else biases)
    if is_sampler:
        values = call_proposal(proposal.probs, None if dim is None else contexts)
    q = np.atleast_2d(as_proposal("proposal", values, n))
    # classes with q = 0, such as padding, are never drawn and are never labels
    drawn = np.flatnonzero((q > 0.0).all(axis=0))
    if len(drawn) < _LEAST_DRAWN:
        raise ValueError(
            f"`proposal` must be above 0 for at least {_LEAST_DRAWN} classes, got {len(drawn)} of "
            f"{n}: with fewer, schemes cannot be told apart."
        )
    q = np.broadcast_to(q / q.sum(axis=1, keepdims=True), (len(contexts), n))
    # two labels that are often drawn and two that are rarely drawn
    order = drawn[np.argsort(q.mean(axis=0)[drawn], kind="stable")]
    often, rare = order[-1], order[len(order) // 4]
    labels = np.array([often, rare, order[-2], order[0]])
    probs = softmax(logits, axis=1)
    chosen: list[int] = []
    for label, wanted in zip(labels, _LIKELY, strict=True):
        distance = np.abs(np.log(probs[:, label] / wanted))
        distance[chosen] = np.inf  # use each context once
        chosen.append(int(distance.argmin()))
    every = Problem(
        rows, biases, contexts, labels, logits, q, np.ones(len(contexts)), tau, has_unit_vectors
    )
    problem = every.select_examples(np.array(chosen), labels)
    if dim is None and not has_unit_vectors:
        problem = _raise_unlikely_labels(problem)
    return replace(problem, weights=np.array(_WEIGHTS)) if with_weights else problem


def _raise_unlikely_labels(problem: Problem) -> Problem:
    """Return a problem in which every label has a sufficient probability under the softmax.

    With very many classes a label's probability may be so small that the treatment of accidental
    hits has no visible effect. The vectors get one more dimension for each example, in which only
    its label and its context are not 0, and which raises the label's logit.
    """
    rows, labels = np.arange(len(problem.labels)), problem.labels
    own, others = problem.logits[rows, labels], problem.logits.copy()
    others[rows, labels] = -np.inf
    wanted = np.logaddexp.reduce(others, axis=1) + logit(_LIKELY)
    less = np.where(wanted - own > _RARE, wanted - own, 0.0)
    if not less.any():
        return problem
    marks = np.zeros((problem.num_classes, len(labels)))
    marks[labels, rows] = 1.0
    logits = problem.logits.copy()
    logits[rows, labels] += less
    return replace(
        problem,
        class_embeddings=np.hstack([problem.class_embeddings, marks]),
        h=np.hstack([problem.h, np.diag(less / problem.tau)]),
        logits=logits,
    )


# --- extreme problems ----------------------------------------------------------------------------

# level of all logits of an example; how far a label is ahead of or behind the others (nats)
_LOW, _AHEAD, _BEHIND = -16.0, 18.0, -40.0
_MANY_CLASSES = 10_000
MAX_EXTREMES = 3  # largest number of extreme problems
_LITTLE = 0.05  # standard deviation of the logits' differences from log q
_POWERS = (1.0, 0.75, 1.25, 1.0)  # logits of an example are near the log of q to its power
_CALLS_OF_FEW, _CALLS_OF_MANY = 1024, 128  # calls with few classes, and with _MANY_CLASSES
_RAISED = 8  # largest number of raised classes, each far above all others in one example
_ABOVE = 4.0  # log-ratio of the term of a raised class to the terms of all other draws (nats)
# occurrences that the calls should contain: draws of a raised class, and two draws of one label
_TIMES_RAISED, _TIMES_TWICE = 100.0, 20.0
_MOST_CALLS_OF_FEW = 16384


class ExtremeProblem(NamedTuple):
    """A problem that reveals small mistakes, and the number of calls that it needs."""

    problem: Problem
    num_calls: int


def extreme_problems(
    proposal: Any, problem: Problem, num_sampled: int, key: np.uint64
) -> Iterator[ExtremeProblem]:
    """Yield problems on which mistakes have an effect that other problems do not show.

    The first problem has low logits and labels far ahead, which reveal masks that leak, and a label
    far behind, which reveals probabilities that are kept away from 0. The second has single classes
    far above all others, which reveal classes that are never drawn although q > 0. If the proposal
    works for any n, the third has 10,000 classes with tiny q. Logits are near log q, so that all
    draws have about the same weight and means have small errors.

    The problems have as many dimensions as `problem`, because a loss may depend on that. None is
    yielded if there are too few dimensions, if the proposal depends on contexts, or for unit
    vectors, whose logits cannot be far apart.
    """
    d = problem.class_embeddings.shape[1]
    if d < _LEAST_DIMS or problem.has_unit_vectors or np.ptp(problem.q, axis=0).any():
        return
    q, order = problem.q[0], problem.classes_by_frequency
    often = order[[-1, -2, -2, -1]]
    marks = np.zeros((problem.num_classes, len(often)))
    marks[often, range(len(often))] = 1.0
    levels, ahead = np.array([[_LOW, 0.0, 0.0, 0.0], [0.0, _BEHIND, _AHEAD, _AHEAD]])
    levelled = _problem_near_log_q(
        problem,
        q=q,
        labels=often,
        levels=levels,
        powers=np.array(_POWERS),
        marks=marks,
        ahead=np.diag(ahead),
        key=key,
    )
    # enough calls for several draws of one label, unless these are too rare to be seen
    calls = _num_calls_for(binom.sf(1, num_sampled, q[often].min()), _TIMES_TWICE)
    yield ExtremeProblem(levelled, calls if calls < _MOST_CALLS_OF_FEW else _CALLS_OF_FEW)
    yield _problem_with_raised_classes(problem, num_sampled, key)
    named = NAMED_PROPOSALS.get(proposal) if isinstance(proposal, str) else proposal
    if callable(named):
        q = as_proposal("proposal", call_proposal(named, _MANY_CLASSES), _MANY_CLASSES)
        order = np.argsort(q, kind="stable")[(q <= 0.0).sum() :]
        many = _problem_near_log_q(
            problem,
            q=q / q.sum(),
            labels=order[[-1, len(order) // 4, -2, 0]],
            levels=np.zeros(4),
            powers=np.array(_POWERS),
            marks=np.zeros((len(q), 4)),
            ahead=np.zeros((4, 4)),
            key=key,
        )
        yield ExtremeProblem(many, _CALLS_OF_MANY)


def _problem_with_raised_classes(
    problem: Problem, num_sampled: int, key: np.uint64
) -> ExtremeProblem:
    """Return a problem with one raised class in each example: its logit is far above all others.

    The loss then shows whether this class is drawn with probability q, however many classes there
    are. The raised classes are those at both ends, which ranges that are off by one leave out, and
    a few others.
    """
    q, order = problem.q[0], problem.classes_by_frequency
    label, drawn = order[-1], np.sort(order)
    ends = drawn[[-1, 0, -2, 1]]
    rng = np.random.default_rng(int(key))
    candidates = [*ends, *np.flatnonzero(q <= 0.0)[:1], order[0], *rng.permutation(drawn)]
    raised = [k for k in dict.fromkeys(map(int, candidates)) if k != label][:_RAISED]
    # a direction raises one class with a positive sign and another with a negative sign; the last
    # direction is that of the label
    num_marks = (len(raised) + 1) // 2
    marks = np.zeros((problem.num_classes, num_marks + 1))
    ahead = np.zeros((len(raised), num_marks + 1))
    for e, k in enumerate(raised):
        sign = 1.0 if e < num_marks else -1.0
        marks[k, e % num_marks] = sign
        # the correction subtracts log(m q); all other draws together have a weight of about 1
        ahead[e, e % num_marks] = sign * (_ABOVE + np.log(num_sampled))
    marks[label, num_marks] = 1.0
    ahead[:, num_marks] = -np.log(q[label])
    one = _problem_near_log_q(
        problem,
        q=q,
        labels=np.full(len(raised), label),
        levels=np.zeros(len(raised)),
        powers=np.ones(len(raised)),
        marks=marks,
        ahead=ahead,
        key=key,
    )
    rarest = q[raised][q[raised] > 0.0].min()
    return ExtremeProblem(one, _num_calls_for(binom.sf(0, num_sampled, rarest), _TIMES_RAISED))


def _num_calls_for(probability: float, num_occurrences: float) -> int:
    """Return the number of calls in which an event is expected to occur `num_occurrences` times.

    `probability` is the probability of the event for one of the 16 copies of an example. The result
    is at least 1024 and at most 16,384.
    """
    wanted = num_occurrences / max(REPLICAS * probability, num_occurrences / _MOST_CALLS_OF_FEW)
    return max(_CALLS_OF_FEW, int(np.ceil(wanted)))


def _problem_near_log_q(
    problem: Problem,
    q: FloatArray,
    labels: IntArray,
    levels: FloatArray,
    powers: FloatArray,
    marks: FloatArray,
    ahead: FloatArray,
    key: np.uint64,
) -> Problem:
    """Return a problem whose logits are near log q, except for common levels and marked classes.

    The logits (E, n) are ``levels + powers * log q + ahead @ marks.T`` plus small random numbers,
    with `levels` and `powers` (E,), `marks` (n, k) of the classes, and `ahead` (E, k).
    """
    rng, n, tau = np.random.default_rng(int(key)), len(q), problem.tau
    d, num_examples = problem.class_embeddings.shape[1], len(labels)
    # the vector of a class is: 1, log q, its marks, and random numbers
    known = 2 + marks.shape[1]
    rows = rng.standard_normal((n, d))
    log_q = np.log(np.where(q > 0.0, q, q[q > 0.0].min()))
    rows[:, :known] = np.column_stack([np.ones(n), log_q, marks])
    h = _LITTLE / np.sqrt(d - known) * rng.standard_normal((num_examples, d))
    h[:, 0] = levels
    h[:, 1] = powers
    h[:, 2:known] = ahead
    h /= tau
    biases = None if problem.biases is None else _LITTLE * rng.standard_normal(n)
    logits = tau * h @ rows.T + (0.0 if biases is None else biases)
    weights = np.resize(problem.weights, num_examples)
    return Problem(rows, biases, h, labels, logits, np.tile(q, (num_examples, 1)), weights, tau)
