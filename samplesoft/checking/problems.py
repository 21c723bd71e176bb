"""Small problems on which implementations differ most."""

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

REPLICAS = 16  # of each example in a batch
_LEAST_DRAWN = 3  # classes with q above 0
_LEAST_CLASSES, _MORE_CLASSES = 8, 32  # where the proposal is for any number
_LEAST_DIMS, _MOST_DIMS = 8, 12  # enough for `extreme_problems`, where it is not given
NUM_VIEWS = 4  # of gradients in class vectors and biases
_WEIGHTS = (1.5, 0.5, 2.0, 1.0)
_LIKELY = np.array([0.15, 0.4, 0.4, 0.15])  # of the labels, by the softmax
_RARE = 2.0  # nats below that, from where on a label is raised
_SPREAD = 1.5  # standard deviation of logits
_CANDIDATES = 64  # contexts, of which the best are taken
NAMED: dict[str, Callable[[int], FloatArray]] = {
    "uniform": lambda n: np.full(n, 1.0 / n),
    "log-uniform": lambda n: log_uniform_weights(n) / log_uniform_weights(n).sum(),
}


@dataclass(frozen=True)
class Problem:
    """E examples of n classes: what a loss is given, and the logits that it should find.

    Arrays: `class_embeddings` (n, d), `biases` (n,) or None, `h` (E, d), `labels` (E,), `logits`
    (E, n), `q` (E, n), which sums to 1, `weights` (E,) of the examples, which are 1 if the loss
    takes none. Classes of which `q` is 0 are never drawn, and are no labels. Where vectors have
    `has_unit_vectors` length, a loss divides them by their norms.
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
        """Classes with q above 0, the rarest first, and of equal ones those near the ends first."""
        ids = np.arange(self.num_classes)
        order: IntArray = np.lexsort((np.minimum(ids, ids[::-1]), self.q[0]))
        return order[(self.q[:, order] > 0.0).all(axis=0)]

    @property
    def view_directions(self) -> FloatArray:
        """Directions (n, r) among the classes in which gradients of these are looked at."""
        directions: FloatArray = np.random.default_rng(0).standard_normal(
            (self.num_classes, NUM_VIEWS)
        )
        return directions

    def select_examples(self, rows: IntArray, labels: IntArray) -> Problem:
        """Return the problem of some of the contexts, which may be repeated, with other labels."""
        arrays = {name: getattr(self, name)[rows] for name in ("h", "logits", "q", "weights")}
        return replace(self, labels=labels, **arrays)

    def with_tau(self, tau: float) -> Problem:
        """Return the problem with another inverse temperature."""
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
    """Return the problem for a proposal, in any of the forms that `check_loss` takes."""
    rng = np.random.default_rng(int(key))
    # so many that draws can do without replacement, and still leave some out
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
        values = NAMED[as_choice("proposal", proposal, NAMED)](n)
    elif callable(proposal):
        values = call_proposal(proposal, n)
    elif np.ndim(proposal) == 0:
        raise TypeError(
            "`proposal` must be probabilities (n,), a function of n that returns them, one of "
            f"{', '.join(map(repr, NAMED))}, or a sampler, got {proposal!r}; for uniform draws "
            "from 8 classes write 'uniform' or numpy.full(8, 1 / 8)."
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
    if has_unit_vectors:  # logits are tau times a cosine, and as far apart as they are
        rows, contexts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rows, contexts))
    else:
        contexts *= _SPREAD / (tau * (contexts @ rows.T).std(axis=1, keepdims=True))
    logits = tau * contexts @ rows.T + (0.0 if biases is None else biases)
    if is_sampler:
        values = call_proposal(proposal.probs, None if dim is None else contexts)
    q = np.atleast_2d(as_proposal("proposal", values, n))
    # classes of which q is 0, such as that of padding, are never drawn, and never the label
    drawn = np.flatnonzero((q > 0.0).all(axis=0))
    if len(drawn) < _LEAST_DRAWN:
        raise ValueError(
            f"`proposal` must be above 0 for at least {_LEAST_DRAWN} classes, got {len(drawn)} of "
            f"{n}: with fewer, schemes cannot be told apart."
        )
    q = np.broadcast_to(q / q.sum(axis=1, keepdims=True), (len(contexts), n))
    # labels that are often drawn and that are not, and of each one that is likely
    order = drawn[np.argsort(q.mean(axis=0)[drawn], kind="stable")]
    often, rare = order[-1], order[len(order) // 4]
    labels = np.array([often, rare, order[-2], order[0]])
    probs = softmax(logits, axis=1)
    chosen: list[int] = []
    for label, wanted in zip(labels, _LIKELY, strict=True):
        distance = np.abs(np.log(probs[:, label] / wanted))
        distance[chosen] = np.inf  # each context once
        chosen.append(int(distance.argmin()))
    every = Problem(
        rows, biases, contexts, labels, logits, q, np.ones(len(contexts)), tau, has_unit_vectors
    )
    problem = every.select_examples(np.array(chosen), labels)
    if dim is None and not has_unit_vectors:
        problem = _with_likely_labels(problem)
    return replace(problem, weights=np.array(_WEIGHTS)) if with_weights else problem


def _with_likely_labels(problem: Problem) -> Problem:
    """Return a problem in which every label has a sufficient probability.

    With very many classes, labels have small probabilities, and the treatment of accidental hits
    does not show. Such a label gets an extra dimension, in which only its context is nonzero.
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

# all logits of an example, and the label's above or below the others
_LOW, _AHEAD, _BEHIND = -16.0, 18.0, -40.0
_MANY_CLASSES = 10_000
MAX_EXTREMES = 3  # of them, at most
_LITTLE = 0.05  # standard deviation of logits beside log q
_POWERS = (1.0, 0.75, 1.25, 1.0)  # of q, which logits are near: one mean alone tells little
_CALLS_OF_FEW, _CALLS_OF_MANY = 1024, 128  # of few classes, and of many
_RAISED = 8  # classes of which each is far above all others in one example, at most
_ABOVE = 4.0  # nats of a raised class, when it is drawn, above all the other draws together
_TIMES_RAISED, _TIMES_TWICE = 100.0, 20.0  # how often a raised class, and a label twice, is drawn
_MOST_CALLS_OF_FEW = 16384


class ExtremeProblem(NamedTuple):
    """A problem that separates candidates which other problems do not, and its number of calls."""

    problem: Problem
    num_calls: int


def extreme_problems(
    proposal: Any, problem: Problem, num_sampled: int, key: np.uint64
) -> Iterator[ExtremeProblem]:
    """Yield problems that show what is right on most, of as many dimensions: a loss may use them.

    None where these are too few, where draws follow the contexts, nor where vectors have norm 1,
    whose logits cannot be far apart.

    Logits that are all low, and labels far ahead, for masks that leak; a label far behind, for
    probabilities that are kept away from 0; single classes that are far above all others, for
    classes that are never drawn though q says so; and if the proposal is for
    any number of classes very many of them, for q that are tiny. There logits are near log q: what
    is drawn weighs about the same, and means have small errors.
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
    # for several draws of one label; not where they are too rare to be seen
    calls = _num_calls_for(binom.sf(1, num_sampled, q[often].min()), _TIMES_TWICE)
    yield ExtremeProblem(levelled, calls if calls < _MOST_CALLS_OF_FEW else _CALLS_OF_FEW)
    yield _with_raised_classes(problem, num_sampled, key)
    named = NAMED.get(proposal) if isinstance(proposal, str) else proposal
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


def _with_raised_classes(problem: Problem, num_sampled: int, key: np.uint64) -> ExtremeProblem:
    """Return a problem with one class far above all others in each example.

    Whether such a class is drawn as often as q says shows in the loss, however many classes there
    are. They are those at both ends, for ranges that are off by one, and some others.
    """
    q, order = problem.q[0], problem.classes_by_frequency
    label, drawn = order[-1], np.sort(order)
    ends = drawn[[-1, 0, -2, 1]]
    rng = np.random.default_rng(int(key))
    candidates = [*ends, *np.flatnonzero(q <= 0.0)[:1], order[0], *rng.permutation(drawn)]
    raised = [k for k in dict.fromkeys(map(int, candidates)) if k != label][:_RAISED]
    # a direction raises one class and, the other way, another; the last one is the label's
    num_marks = (len(raised) + 1) // 2
    marks = np.zeros((problem.num_classes, num_marks + 1))
    ahead = np.zeros((len(raised), num_marks + 1))
    for e, k in enumerate(raised):
        sign = 1.0 if e < num_marks else -1.0
        marks[k, e % num_marks] = sign
        # off its logit goes log(m q), and logits near log q leave 1 for all the draws together
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


def _num_calls_for(probability: float, times: float) -> int:
    """Return the number of calls for a given number of occurrences, from 1024 to 16,384."""
    wanted = times / max(REPLICAS * probability, times / _MOST_CALLS_OF_FEW)
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
    """Return a problem with logits near log q, except for a common level and for marked classes.

    The logits (E, n) are ``levels + powers * log q + ahead @ marks.T`` with `marks` (n, k) of the
    classes, and small random numbers beside.
    """
    rng, n, tau = np.random.default_rng(int(key)), len(q), problem.tau
    d, num_examples = problem.class_embeddings.shape[1], len(labels)
    # a class has a 1, log q, its marks and random numbers
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
