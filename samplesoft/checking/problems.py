"""Test problems: small ones on which right and wrong losses differ much, and extreme ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, softmax
from scipy.stats import binom

from samplesoft._validation import FloatArray, IntArray, as_choice, as_proposal
from samplesoft.checking.calls import call_proposal
from samplesoft.samplers.frequency import log_uniform_weights

REPLICAS = 16  # copies of each example in a batch
_MIN_DRAWN_CLASSES = 3  # smallest number of classes with q > 0; with fewer an error is raised
# smallest number of classes n of a problem, if the proposal works for any n
_MIN_CLASSES = 8
# largest n - m for m draws, if the proposal works for any n: up to this number, n is 2 m
_MAX_CLASSES_BEYOND_M = 32
# smallest and largest dimension of the vectors, unless a sampler fixes it; with fewer dimensions,
# `extreme_problems` yields no problem
_MIN_DIMS = 8
_MAX_DIMS = 12
# number of random weighted sums over the classes by which gradients in class vectors and biases
# are observed
NUM_VIEWS = 4
_WEIGHTS = (1.5, 0.5, 2.0, 1.0)  # weights of the four examples
# intended softmax probabilities of the four labels
_LABEL_PROBS = np.array([0.15, 0.4, 0.4, 0.15])
# A label's logit is raised to the intended one if it is lower by more than this number of nats.
_MAX_LOGIT_DEFICIT = 2.0
_LOGIT_DEVIATION = 1.5  # standard deviation of the logits of an example
# number of random contexts, of which the four with the best label probabilities are used
_NUM_CONTEXTS = 64
NAMED_PROPOSALS: dict[str, Callable[[int], FloatArray]] = {
    "uniform": lambda n: np.full(n, 1.0 / n),
    "log-uniform": lambda n: log_uniform_weights(n) / log_uniform_weights(n).sum(),
}


class Memory(NamedTuple):
    """What a loss with a memory starts from: the logs (E,) of its running estimates, and its rate.

    A visit of an example moves its estimate to the sum over the draws by the weight `gamma`, or by
    ``alpha U / (1 + alpha U)`` with the old estimate U. A log of -inf stands for a new example,
    whose weight is 1. If both are None, the estimates do not move.
    """

    log_sums: FloatArray
    gamma: float | None
    alpha: float | None

    @property
    def rate(self) -> str | None:
        """The given rate as text."""
        if self.alpha is not None:
            return f"alpha is {self.alpha:.3g}"
        return None if self.gamma is None else f"gamma is {self.gamma:.3g}"

    @property
    def gamma_of_examples(self) -> FloatArray:
        """Weight (E,) of the sum over the draws in the new estimate."""
        gamma = np.full_like(self.log_sums, 1.0 if self.gamma is None else self.gamma)
        if self.alpha is not None:
            gamma = expit(np.log(self.alpha) + self.log_sums)
        return np.where(np.isneginf(self.log_sums), 1.0, gamma)

    @property
    def log_old_mass(self) -> FloatArray:
        """Log (E,) of the old estimate times ``(1 - gamma) / gamma``."""
        gamma = self.gamma_of_examples
        with np.errstate(divide="ignore"):
            odds = np.log1p(-gamma) - np.log(gamma)
        # 1 - gamma has no digits if alpha U is very large
        if self.alpha is not None:
            odds = -np.log(self.alpha) - self.log_sums
        is_new = np.isneginf(self.log_sums)
        return np.where(is_new, -np.inf, odds + np.where(is_new, 0.0, self.log_sums))


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
    memory : Memory or None
        The log-sums from which a loss with a memory starts.
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
    memory: Memory | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return int(self.logits.shape[1])

    @property
    def classes_by_frequency(self) -> IntArray:
        """Classes with q > 0, sorted by q; of classes with equal q, those near 0 or n first."""
        ids = np.arange(self.num_classes)
        order: IntArray = np.lexsort((np.minimum(ids, ids[::-1]), self.q[0]))
        return order[(self.q[:, order] > 0.0).all(axis=0)]

    @property
    def view_directions(self) -> FloatArray:
        """Random weights (n, 4) of the classes, for sums of the gradients in class parameters."""
        directions: FloatArray = np.random.default_rng(0).standard_normal(
            (self.num_classes, NUM_VIEWS)
        )
        return directions

    def select_examples(self, rows: IntArray, labels: IntArray) -> Problem:
        """Return the problem of the examples at indices `rows` (B,), with other `labels` (B,)."""
        arrays = {name: getattr(self, name)[rows] for name in ("h", "logits", "q", "weights")}
        memory = self.memory
        if memory is not None:
            memory = memory._replace(log_sums=memory.log_sums[rows])
        return replace(self, labels=labels, memory=memory, **arrays)

    def with_tau(self, tau: float) -> Problem:
        """Return the problem with another inverse temperature, and the logits that it gives."""
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
    """Return a problem of four examples; `proposal` has any of the forms that `check_loss` takes.

    Two labels are frequent among the draws and two are rare; all have moderate probabilities under
    the softmax. `key` is the seed of the random vectors.
    """
    rng = np.random.default_rng(int(key))

    # with n > m, draws without replacement do not contain all classes
    num_classes = max(_MIN_CLASSES, num_sampled + min(num_sampled, _MAX_CLASSES_BEYOND_M))
    if isinstance(proposal, type):
        raise TypeError(
            f"`proposal` must not be a class, got {proposal.__name__}; make one, as in "
            f"{proposal.__name__}(...)."
        )

    is_sampler = hasattr(proposal, "probs")
    sampler_dim = None
    if is_sampler:
        num_classes = int(proposal.num_classes)
        sampler_dim = getattr(proposal, "dim", None)
    elif isinstance(proposal, str):
        values = NAMED_PROPOSALS[as_choice("proposal", proposal, NAMED_PROPOSALS)](num_classes)
    elif callable(proposal):
        values = call_proposal(proposal, num_classes)
    elif np.ndim(proposal) == 0:
        raise TypeError(
            "`proposal` must be probabilities (n,), a function of n that returns them, one of "
            f"{', '.join(map(repr, NAMED_PROPOSALS))}, or a sampler, got {proposal!r}; for "
            "uniform draws from 8 classes write 'uniform' or numpy.full(8, 1 / 8)."
        )
    else:
        num_classes = int(np.shape(proposal)[-1])
        values = proposal

    if num_classes < _MIN_DRAWN_CLASSES:
        raise ValueError(
            f"`proposal` must be over at least {_MIN_DRAWN_CLASSES} classes, got {num_classes}: "
            "with fewer, schemes cannot be told apart."
        )

    num_dims = min(max(num_classes, _MIN_DIMS), _MAX_DIMS) if sampler_dim is None else sampler_dim
    class_vectors = rng.standard_normal((num_classes, num_dims))
    contexts = rng.standard_normal((_NUM_CONTEXTS, num_dims))
    biases = 0.5 * rng.standard_normal(num_classes) if with_biases else None

    # logits of unit vectors are tau times cosines, so that their spread is fixed
    if has_unit_vectors:
        class_vectors, contexts = (
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            for vectors in (class_vectors, contexts)
        )
    else:
        contexts *= _LOGIT_DEVIATION / (
            tau * (contexts @ class_vectors.T).std(axis=1, keepdims=True)
        )

    logits = tau * contexts @ class_vectors.T + (0.0 if biases is None else biases)
    if is_sampler:
        values = call_proposal(proposal.probs, None if sampler_dim is None else contexts)

    q = np.atleast_2d(as_proposal("proposal", values, num_classes))

    # classes with q = 0, such as padding, are never drawn and are never labels
    drawn_ids = np.flatnonzero((q > 0.0).all(axis=0))
    if len(drawn_ids) < _MIN_DRAWN_CLASSES:
        raise ValueError(
            f"`proposal` must be above 0 for at least {_MIN_DRAWN_CLASSES} classes, got "
            f"{len(drawn_ids)} of {num_classes}: with fewer, schemes cannot be told apart."
        )

    q = np.broadcast_to(q / q.sum(axis=1, keepdims=True), (len(contexts), num_classes))

    # two labels that are often drawn and two that are rarely drawn
    by_frequency = drawn_ids[np.argsort(q.mean(axis=0)[drawn_ids], kind="stable")]
    frequent = by_frequency[-1]
    rare = by_frequency[len(by_frequency) // 4]
    labels = np.array([frequent, rare, by_frequency[-2], by_frequency[0]])

    probs = softmax(logits, axis=1)
    context_ids: list[int] = []
    for label, intended in zip(labels, _LABEL_PROBS, strict=True):
        distance = np.abs(np.log(probs[:, label] / intended))
        distance[context_ids] = np.inf  # use each context once
        context_ids.append(int(distance.argmin()))

    all_contexts = Problem(
        class_vectors,
        biases,
        contexts,
        labels,
        logits,
        q,
        np.ones(len(contexts)),
        tau,
        has_unit_vectors,
    )
    problem = all_contexts.select_examples(np.array(context_ids), labels)
    if sampler_dim is None and not has_unit_vectors:
        problem = _raise_unlikely_labels(problem)

    return replace(problem, weights=np.array(_WEIGHTS)) if with_weights else problem


def _raise_unlikely_labels(problem: Problem) -> Problem:
    """Raise the logits of labels whose probability under the softmax is much too small.

    With very many classes a label's probability may be so small that the treatment of accidental
    hits has no visible effect. The vectors then get one more dimension for each example, in which
    only the example's context and its label's class vector are not 0. So only the label's logit
    changes.
    """
    rows = np.arange(len(problem.labels))
    labels = problem.labels
    label_logits = problem.logits[rows, labels]
    others = problem.logits.copy()
    others[rows, labels] = -np.inf
    intended_logits = np.logaddexp.reduce(others, axis=1) + logit(_LABEL_PROBS)
    deficits = np.where(
        intended_logits - label_logits > _MAX_LOGIT_DEFICIT, intended_logits - label_logits, 0.0
    )
    if not deficits.any():
        return problem

    marks = np.zeros((problem.num_classes, len(labels)))
    marks[labels, rows] = 1.0
    logits = problem.logits.copy()
    logits[rows, labels] += deficits

    return replace(
        problem,
        class_embeddings=np.hstack([problem.class_embeddings, marks]),
        h=np.hstack([problem.h, np.diag(deficits / problem.tau)]),
        logits=logits,
    )


# --- extreme problems ----------------------------------------------------------------------------

_LOW_LEVEL = -16.0  # added to all logits of the example with low logits (nats)
_LABEL_LEAD = 18.0  # added to the logits of labels that are far above all others (nats)
_LABEL_LAG = -40.0  # added to the logit of a label that is far below the others (nats)
_NUM_MANY_CLASSES = 10_000
MAX_EXTREMES = 3  # largest number of extreme problems
# standard deviation of the random numbers that are added to logits near log q
_NOISE_DEVIATION = 0.05
# factor of log q in the logits of each of the four examples
_POWERS = (1.0, 0.75, 1.25, 1.0)
_NUM_CALLS_FEW_CLASSES = 1024  # smallest number of calls on an extreme problem with few classes
_NUM_CALLS_MANY_CLASSES = 128  # number of calls on the problem with 10,000 classes
_MAX_RAISED_CLASSES = 8  # largest number of raised classes, each in an example of its own
# log of the ratio of a raised class's term in S to the sum of all other terms
_RAISED_LOG_RATIO = 4.0
_NUM_RAISED_DRAWS = 100.0  # how many draws of a raised class are expected in all calls
# how many sets that contain the label more than once are expected in all calls
_NUM_DOUBLE_DRAWS = 20.0
_MAX_CALLS_FEW_CLASSES = 16384  # largest number of calls on an extreme problem with few classes


class ExtremeProblem(NamedTuple):
    """A problem that reveals small mistakes, and the number of calls that it needs."""

    problem: Problem
    num_calls: int


def extreme_problems(
    proposal: Any, problem: Problem, num_sampled: int, key: np.uint64
) -> Iterator[ExtremeProblem]:
    """Yield problems on which mistakes show that have no visible effect on ordinary problems.

    The first problem has an example with low logits and two with a label far above all other
    classes, which reveal hits that are not fully masked. It also has a label far below the others,
    which reveals probabilities that are kept away from 0. The second problem has single classes far
    above all others, which reveal classes that are never drawn although q > 0. The third, for a
    proposal that works for any n, has 10,000 classes with tiny q. Apart from this, logits are near
    log q, so that all draws have about the same weight and means have small errors.

    The problems have as many dimensions as `problem`, because a loss may depend on that number. No
    problem is yielded if there are too few dimensions, if the proposal depends on contexts, or for
    unit vectors, whose logits cannot be far apart.
    """
    d = problem.class_embeddings.shape[1]
    if d < _MIN_DIMS or problem.has_unit_vectors or np.ptp(problem.q, axis=0).any():
        return

    q = problem.q[0]
    by_frequency = problem.classes_by_frequency
    frequent_labels = by_frequency[[-1, -2, -2, -1]]
    marks = np.zeros((problem.num_classes, len(frequent_labels)))
    marks[frequent_labels, range(len(frequent_labels))] = 1.0

    levels, lead = np.array(
        [[_LOW_LEVEL, 0.0, 0.0, 0.0], [0.0, _LABEL_LAG, _LABEL_LEAD, _LABEL_LEAD]]
    )
    low_problem = _problem_near_log_q(
        problem,
        q=q,
        labels=frequent_labels,
        levels=levels,
        powers=np.array(_POWERS),
        marks=marks,
        mark_logits=np.diag(lead),
        key=key,
    )

    # make enough calls for sets with two draws of the label, unless such sets are too rare
    num_calls = _num_calls_for(
        binom.sf(1, num_sampled, q[frequent_labels].min()), _NUM_DOUBLE_DRAWS
    )
    yield ExtremeProblem(
        low_problem, num_calls if num_calls < _MAX_CALLS_FEW_CLASSES else _NUM_CALLS_FEW_CLASSES
    )

    yield _problem_with_raised_classes(problem, num_sampled, key)

    make_proposal = NAMED_PROPOSALS.get(proposal) if isinstance(proposal, str) else proposal
    if callable(make_proposal):
        q = as_proposal(
            "proposal", call_proposal(make_proposal, _NUM_MANY_CLASSES), _NUM_MANY_CLASSES
        )
        by_frequency = np.argsort(q, kind="stable")[(q <= 0.0).sum() :]
        large_problem = _problem_near_log_q(
            problem,
            q=q / q.sum(),
            labels=by_frequency[[-1, len(by_frequency) // 4, -2, 0]],
            levels=np.zeros(4),
            powers=np.array(_POWERS),
            marks=np.zeros((len(q), 4)),
            mark_logits=np.zeros((4, 4)),
            key=key,
        )
        yield ExtremeProblem(large_problem, _NUM_CALLS_MANY_CLASSES)


def _problem_with_raised_classes(
    problem: Problem, num_sampled: int, key: np.uint64
) -> ExtremeProblem:
    """Return a problem with one raised class in each example, whose logit is far above all others.

    The loss then shows whether this class is drawn with probability q, for any number of classes.
    The raised classes are the first and the last ones, which ranges that are off by one leave out,
    and a few others. The label is the same in all examples, and is none of these classes.
    """
    q = problem.q[0]
    by_frequency = problem.classes_by_frequency
    label = by_frequency[-1]
    drawn_ids = np.sort(by_frequency)
    end_ids = drawn_ids[[-1, 0, -2, 1]]

    rng = np.random.default_rng(int(key))
    candidate_ids = [
        *end_ids,
        *np.flatnonzero(q <= 0.0)[:1],
        by_frequency[0],
        *rng.permutation(drawn_ids),
    ]
    raised_ids = [
        class_id for class_id in dict.fromkeys(map(int, candidate_ids)) if class_id != label
    ][:_MAX_RAISED_CLASSES]

    # Each dimension of the vectors raises two classes, one with a positive and one with a negative
    # sign. The last dimension raises the label.
    num_marks = (len(raised_ids) + 1) // 2
    marks = np.zeros((problem.num_classes, num_marks + 1))
    mark_logits = np.zeros((len(raised_ids), num_marks + 1))

    for example, class_id in enumerate(raised_ids):
        sign = 1.0 if example < num_marks else -1.0
        marks[class_id, example % num_marks] = sign

        # log(m q) is subtracted, so that a draw has exp(_RAISED_LOG_RATIO) times the weight of all
        # other draws together, which is about 1
        mark_logits[example, example % num_marks] = sign * (_RAISED_LOG_RATIO + np.log(num_sampled))

    marks[label, num_marks] = 1.0
    mark_logits[:, num_marks] = -np.log(q[label])
    raised_problem = _problem_near_log_q(
        problem,
        q=q,
        labels=np.full(len(raised_ids), label),
        levels=np.zeros(len(raised_ids)),
        powers=np.ones(len(raised_ids)),
        marks=marks,
        mark_logits=mark_logits,
        key=key,
    )
    rarest = q[raised_ids][q[raised_ids] > 0.0].min()

    return ExtremeProblem(
        raised_problem, _num_calls_for(binom.sf(0, num_sampled, rarest), _NUM_RAISED_DRAWS)
    )


def _num_calls_for(probability: float, num_occurrences: float) -> int:
    """Return the number of calls in which an event is expected to occur `num_occurrences` times.

    `probability` is the probability of the event for one of the 16 copies of an example in a call.
    The result is at least 1024 and at most 16,384.
    """
    num_calls = num_occurrences / max(
        REPLICAS * probability, num_occurrences / _MAX_CALLS_FEW_CLASSES
    )
    return max(_NUM_CALLS_FEW_CLASSES, int(np.ceil(num_calls)))


def _problem_near_log_q(
    problem: Problem,
    q: FloatArray,
    labels: IntArray,
    levels: FloatArray,
    powers: FloatArray,
    marks: FloatArray,
    mark_logits: FloatArray,
    key: np.uint64,
) -> Problem:
    """Return a problem with the logits ``levels + powers * log q + mark_logits @ marks.T``.

    Small random numbers are added to these logits (E, n). `levels` and `powers` are (E,). The rows
    of `marks` (n, k) are 0 except for a few classes, whose logits the term with `mark_logits`
    (E, k) changes.
    """
    rng = np.random.default_rng(int(key))
    n = len(q)
    tau = problem.tau
    d = problem.class_embeddings.shape[1]
    num_examples = len(labels)

    # the entries of a class vector are 1, log q, the marks of the class, and random numbers
    num_known = 2 + marks.shape[1]
    class_vectors = rng.standard_normal((n, d))
    log_q = np.log(np.where(q > 0.0, q, q[q > 0.0].min()))
    class_vectors[:, :num_known] = np.column_stack([np.ones(n), log_q, marks])

    h = _NOISE_DEVIATION / np.sqrt(d - num_known) * rng.standard_normal((num_examples, d))
    h[:, 0] = levels
    h[:, 1] = powers
    h[:, 2:num_known] = mark_logits
    h /= tau

    biases = None if problem.biases is None else _NOISE_DEVIATION * rng.standard_normal(n)
    logits = tau * h @ class_vectors.T + (0.0 if biases is None else biases)
    weights = np.resize(problem.weights, num_examples)

    return Problem(
        class_vectors, biases, h, labels, logits, np.tile(q, (num_examples, 1)), weights, tau
    )
