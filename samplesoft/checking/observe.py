"""Small problems on which implementations differ most, and what a loss returns on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import comb
from traceback import walk_tb
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit, softmax
from scipy.stats import binom

from samplesoft._validation import FloatArray, IntArray, as_choice, as_proposal
from samplesoft.samplers.frequency import log_uniform_weights

_LEAST_DRAWN = 3  # classes with q above 0
_LEAST_CLASSES, _MORE_CLASSES = 8, 32  # where the proposal is for any number
_LEAST_DIMS, _MOST_DIMS = 8, 12  # enough for `extreme_problems`, where it is not given
_VIEWS = 4  # of gradients in class vectors and biases
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
    `unit` length, a loss divides them by their norms.
    """

    class_embeddings: FloatArray
    biases: FloatArray | None
    h: FloatArray
    labels: IntArray
    logits: FloatArray
    q: FloatArray
    weights: FloatArray
    tau: float
    unit: bool = False

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return int(self.logits.shape[1])

    @property
    def by_frequency(self) -> IntArray:
        """Classes with q above 0, the rarest first, and of equal ones those near the ends first."""
        ids = np.arange(self.num_classes)
        order: IntArray = np.lexsort((np.minimum(ids, ids[::-1]), self.q[0]))
        return order[(self.q[:, order] > 0.0).all(axis=0)]

    @property
    def views(self) -> FloatArray:
        """Directions (n, r) among the classes in which gradients of these are looked at."""
        views: FloatArray = np.random.default_rng(0).standard_normal((self.num_classes, _VIEWS))
        return views

    def of_rows(self, rows: IntArray, labels: IntArray) -> Problem:
        """Return the problem of some of the contexts, which may be repeated, with other labels."""
        arrays = {name: getattr(self, name)[rows] for name in ("h", "logits", "q", "weights")}
        return replace(self, labels=labels, **arrays)

    def at_tau(self, tau: float) -> Problem:
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
    unit: bool = False,
) -> Problem:
    """Return the problem of a proposal, in any of the forms that `check_loss` takes."""
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
        values = ask(proposal, n)
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
    if unit:  # logits are tau times a cosine, and as far apart as they are
        rows, contexts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rows, contexts))
    else:
        contexts *= _SPREAD / (tau * (contexts @ rows.T).std(axis=1, keepdims=True))
    logits = tau * contexts @ rows.T + (0.0 if biases is None else biases)
    if is_sampler:
        values = ask(proposal.probs, None if dim is None else contexts)
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
    every = Problem(rows, biases, contexts, labels, logits, q, np.ones(len(contexts)), tau, unit)
    problem = every.of_rows(np.array(chosen), labels)
    if dim is None and not unit:
        problem = _with_likely_labels(problem)
    return replace(problem, weights=np.array(_WEIGHTS)) if with_weights else problem


def _with_likely_labels(problem: Problem) -> Problem:
    """Return a problem in which no label is much less likely than it should be.

    Of very many classes none is likely by chance, and what becomes of the label's draws then tells
    nothing. Such a label gets a number of its own, which its context alone asks for.
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


# all logits of an example, and the label's above or below the others
_LOW, _AHEAD, _BEHIND = -16.0, 18.0, -40.0
_MANY_CLASSES = 10_000
_EXTREMES = 3  # of them, at most
_LITTLE = 0.05  # standard deviation of logits beside log q
_POWERS = (1.0, 0.75, 1.25, 1.0)  # of q, which logits are near: one mean alone tells little
_CALLS_OF_FEW, _CALLS_OF_MANY = 1024, 128  # of few classes, and of many
_RAISED = 8  # classes of which each is far above all others in one example, at most
_ABOVE = 4.0  # nats of a raised class, when it is drawn, above all the other draws together
_TIMES_RAISED, _TIMES_TWICE = 100.0, 20.0  # how often a raised class, and a label twice, is drawn
_MOST_CALLS_OF_FEW = 16384


class Extreme(NamedTuple):
    """A problem that tells apart what others do not, and how often to call a loss on it."""

    problem: Problem
    calls: int


def extreme_problems(
    proposal: Any, problem: Problem, num_sampled: int, key: np.uint64
) -> Iterator[Extreme]:
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
    if d < _LEAST_DIMS or problem.unit or np.ptp(problem.q, axis=0).any():
        return
    q, order = problem.q[0], problem.by_frequency
    often = order[[-1, -2, -2, -1]]
    marks = np.zeros((problem.num_classes, len(often)))
    marks[often, range(len(often))] = 1.0
    levels, ahead = np.array([[_LOW, 0.0, 0.0, 0.0], [0.0, _BEHIND, _AHEAD, _AHEAD]])
    levelled = _near_q(
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
    calls = _calls_for(binom.sf(1, num_sampled, q[often].min()), _TIMES_TWICE)
    yield Extreme(levelled, calls if calls < _MOST_CALLS_OF_FEW else _CALLS_OF_FEW)
    yield _with_raised_classes(problem, num_sampled, key)
    named = NAMED.get(proposal) if isinstance(proposal, str) else proposal
    if callable(named):
        q = as_proposal("proposal", ask(named, _MANY_CLASSES), _MANY_CLASSES)
        order = np.argsort(q, kind="stable")[(q <= 0.0).sum() :]
        many = _near_q(
            problem,
            q=q / q.sum(),
            labels=order[[-1, len(order) // 4, -2, 0]],
            levels=np.zeros(4),
            powers=np.array(_POWERS),
            marks=np.zeros((len(q), 4)),
            ahead=np.zeros((4, 4)),
            key=key,
        )
        yield Extreme(many, _CALLS_OF_MANY)


def _with_raised_classes(problem: Problem, num_sampled: int, key: np.uint64) -> Extreme:
    """Return a problem in each of whose examples one class is far above all others.

    Whether such a class is drawn as often as q says shows in the loss, however many classes there
    are. They are those at both ends, for ranges that are off by one, and some others.
    """
    q, order = problem.q[0], problem.by_frequency
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
    one = _near_q(
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
    return Extreme(one, _calls_for(binom.sf(0, num_sampled, rarest), _TIMES_RAISED))


def _calls_for(probability: float, times: float) -> int:
    """Return in how many calls something comes so many times, at least 1024 and at most 16,384."""
    wanted = times / max(REPLICAS * probability, times / _MOST_CALLS_OF_FEW)
    return max(_CALLS_OF_FEW, int(np.ceil(wanted)))


def _near_q(
    problem: Problem,
    q: FloatArray,
    labels: IntArray,
    levels: FloatArray,
    powers: FloatArray,
    marks: FloatArray,
    ahead: FloatArray,
    key: np.uint64,
) -> Problem:
    """Return a problem whose logits are near log q, but for the level of all and marked classes.

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


# calls of the loss -------------------------------------------------------------------------------


def call(loss: Callable[..., Any], names: str, *given: Any) -> Any:
    """Return ``loss(*given)``; TypeError that says what was passed if the call itself fails."""
    try:
        return loss(*given)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from inside the loss
        raise TypeError(
            f"`loss` must take {len(given)} arguments by position, as it is called: "
            f"loss({names}), got the error: {error}; wrap it in a function that takes these."
        ) from error


def ask(function: Callable[..., Any], *given: Any) -> Any:
    """Return ``function(*given)`` of a proposal, which may be the user's code."""
    return function(*given)


def frames_of_user(error: BaseException) -> list[tuple[str, int, str]] | None:
    """Return file, line and function of where a loss or a proposal raised, from outside in.

    They are those of the file in which it stands, not of libraries that it calls, and one of
    nothing if it is no Python function. None if the error is not of a loss or a proposal.
    """
    frames = list(walk_tb(error.__traceback__))
    of_calls = [i for i, (frame, _) in enumerate(frames) if frame.f_code in _CALLS_OF_USER]
    if not of_calls:
        return None
    inside = frames[of_calls[-1] + 1 :]
    # what `call` and `drawing` say themselves is no error of the user's code
    if inside and inside[0][0].f_code.co_filename == __file__:
        return None
    if not inside and error.__cause__ is not None:
        return None
    named = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in inside]
    return [one for one in named if one[0] == named[0][0]] or [("", 0, "")]


_CALLS_OF_USER = (call.__code__, ask.__code__)
DRAWS = ("own", "given", "given-negatives")


def drawing(loss: Callable[..., Any], problem: Problem, exclude: bool) -> Callable[..., Any]:
    """Return ``loss(scores, ids, log_q, labels)`` as a loss that draws from the problem's q."""
    examples = np.arange(len(problem.labels))
    q = problem.q.copy()
    if exclude:
        q[examples, problem.labels] = 0.0
        q /= q.sum(axis=1, keepdims=True)
    ends = np.cumsum(q, axis=1)
    ends /= ends[:, -1:]
    with np.errstate(divide="ignore"):
        log_q = np.log(q)

    def drawn(c: Any, h: Any, labels: IntArray, m: int, seed: int, biases: Any = 0.0) -> Any:
        scores = problem.tau * h @ c.T + biases
        copies = len(h) // len(examples)
        parts = np.random.default_rng(seed).random((copies, len(examples), m))
        ids = [ends[e].searchsorted(parts[:, e], side="right") for e in examples]
        given = np.stack(ids, axis=1).reshape(len(h), m), np.tile(log_q, (copies, 1)), labels
        returned = call(loss, "scores, ids, log_q, labels", scores, *given)
        if not isinstance(returned, (tuple, list)):
            return returned
        shape = np.shape(returned[1]) if len(returned) == 2 else None
        if shape != scores.shape:
            raise ValueError(
                "`loss` must return the losses, or a tuple (losses, dscores) with the gradient "
                f"{scores.shape} of their sum in the scores, got a {type(returned).__name__} of "
                f"{len(returned)}{'' if shape is None else f' with a gradient {shape}'}."
            )
        losses, slopes = returned
        return losses, problem.tau * np.asarray(slopes) @ c

    return drawn


REPLICAS = 16  # of each example in a batch
_FIRST = 64  # calls before the first look; twice as many before each next one
_SEEDS = 500  # with the same results, before a loss is said to draw nothing
_ARGUMENTS = "class_embeddings, h, labels, num_sampled, seed"
_PILOTS = 32  # calls for the centre of squares
_CALLS_OF_OTHER_SIZE = 128  # whose gradients are told from twice as large ones
_COARSEST = 1e-6  # unit of the last place, of types in which a loss is computed throughout
_ROUNDING = 64.0  # units of the last place of a type, that a loss may be off by
# of the rounding that is measured: lines, points on each, how far apart they are (relative; numbers
# of few bits need steps of several units), and how many standard deviations a mean may be off
_LINES, _POINTS, _STEPS, _DEVIATIONS = 4, 7, (4e-3, 0.016, 0.064), 6.0
_MOST_GROWTH = 8.0  # from step to step: of what is smooth it would be 4^6
_FEW_BITS = 16  # of a number; float16 has 11, bfloat16 8
_LEAST_BEFORE = 0.25  # of a deviation, that may be of what was rounded before the last time
_UPPER = 0.8, 1.2816  # a quantile, and that of |x| for normal x: what is off at few points, is none
_MOST_ROUNDING = 2.0**-6  # of numbers that are made of some of size 1: four units of bfloat16
_LEAST_ROUNDING = 1e-9  # below, the type of the results says more
_FEW_DIGITS = 1e-5  # above, numbers are not those of float32
_HALF_OF_LEAST = 2.0**-25  # of the least number of float16 above 0
# units of the last place of types in which a part of a loss may be computed; results that are off
# by more, relative to what they are made of, are those of half precision
ROUNDINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_HALF_PRECISION = 1e-4
# a loss that divides by norms may add 1e-6 to them: how much it changes for longer vectors (nats),
# and what it may be off by for those of norm 1
_STAYS, _ROUNDING_OF_UNIT = 1e-3, 2e-6


@dataclass(frozen=True)
class Observed:
    """What `calls` calls returned: means over them of K numbers, and their standard errors (K,).

    The numbers are the losses of E examples, and where the loss gives gradients the E d of those
    in h, and 4 views of those in the class vectors and in the biases. `sizes` (K,) are those of the
    numbers that each is made of, `rounding` (K,) is how far the type of the results may be off,
    `skewness` (K,) that of what single calls returned; `sets` is the number of sets of draws for an
    example in one call, `looks` how often the means are looked at in all.
    `squares` are the means of squares of the E losses, less the observer's `centre`.
    """

    means: FloatArray
    stderrs: FloatArray
    rounding: FloatArray
    sizes: FloatArray
    calls: int
    skewness: FloatArray
    sets: int = 1
    looks: int = 1
    squares: Observed | None = None

    def part(self, part: slice) -> Observed:
        """Return what was observed of some numbers: losses stand before gradients."""
        arrays = {
            name: getattr(self, name)[part]
            for name in ("means", "stderrs", "rounding", "sizes", "skewness")
        }
        return replace(self, **arrays, squares=None)


def _units(values: FloatArray) -> FloatArray:
    """Return the unit of the last place of each of some numbers, if all are of few digits, or 0."""
    mantissas, exponents = np.frexp(values)
    whole = (mantissas * 2.0**_FEW_BITS) % 1.0 == 0.0
    if not whole.all():
        return np.zeros_like(values)
    bits = next(b for b in range(1, _FEW_BITS + 1) if ((mantissas * 2.0**b) % 1.0 == 0.0).all())
    return np.where(values == 0.0, 0.0, np.ldexp(1.0, exponents - bits))


class Observer:
    """Calls a loss with one seed after another, and keeps sums of what it returns.

    A batch has each example several times over; rows that are neighbours are different examples.
    The loss is called `most` times at most. Part of it is computed in numbers that have a `unit` of
    the last place, or 0 if nobody said so.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        problem: Problem,
        num_sampled: int,
        key: np.uint64,
        most: int,
        unit: float = 0.0,
    ) -> None:
        self._least_rounding = unit
        self._loss, self.problem, self.num_sampled = loss, problem, num_sampled
        self.most = most
        self.looks = 1 + ((most - 1) // _FIRST).bit_length() + _EXTREMES
        self._seeds = np.random.default_rng(int(key))
        self.batch = REPLICAS * len(problem.labels)
        self._order: IntArray = np.tile(np.arange(len(problem.labels)), REPLICAS)
        self._whole = problem.of_rows(self._order, problem.labels[self._order])
        self._weighted = bool((problem.weights != 1.0).any())
        self.gradients = 0  # in h, in the class vectors, in the biases
        self.rounding = 0.0  # of numbers that are made of some of size 1
        self._sets = 1
        self.centre = np.zeros(len(problem.labels))
        self.noise = np.zeros(0)  # (K,), of what is rounded to few digits; empty if nothing is
        self._step = 0.0  # between the points at which that was measured, relative
        # the same seed twice, then others: does the loss draw, and do its draws follow the seed?
        first = self._call(0)
        self.follows_seed = bool(np.array_equal(first, self._call(0)))
        if self.follows_seed:
            self.noise = self._measured_noise()
        others = (self._call(seed) for seed in range(1, _SEEDS))
        size = len(first) - len(self.centre)  # sums in another order are no draws
        rounding = self._allowed()
        self.is_random = any((np.abs(first - other)[:size] > rounding).any() for other in others)
        self.calls = 0
        self._results: set[int] = set()  # hashes: repeated results betray seeds that repeat
        pilots = [self._call(seed) for seed in range(min(_PILOTS, 1 + most // 16))]
        self.centre = np.mean(pilots, axis=0)[: len(problem.labels)]
        self._origin = self._call(0)  # near the means, so that squares keep their digits
        # of changes from it: sums, sums of squares and cubes, and of products with the last
        self._sums, self._last = np.zeros((4, len(self._origin))), np.zeros_like(self._origin)

    def more(self, calls: int) -> None:
        """Call the loss so many times more."""
        for seed in self._seeds.integers(0, 2**31 - 1, calls):
            change = self._call(int(seed)) - self._origin
            self._results.add(hash(change.tobytes()))
            # power sums about a point near the mean lose no digits
            self._sums += change, change**2, change**3, change * self._last
            self._last = change
            self.calls += 1

    @property
    def next_calls(self) -> int:
        """How many calls to make before the next look."""
        return min(max(_FIRST, self.calls), self.most - self.calls)

    @property
    def num_results(self) -> int:
        """How many of the calls gave different results."""
        return len(self._results)

    @property
    def autocorrelation(self) -> float:
        """The correlation of the losses of a call with those of the next."""
        means, of_squares, _, products = self._sums[:, : len(self.centre)] / self.calls
        variance = of_squares - means**2
        products = products * self.calls / max(self.calls - 1, 1) - means**2
        return float(products.sum() / variance.sum()) if variance.sum() > 0.0 else 0.0

    @property
    def num_sets(self) -> float:
        """How many sets of draws the copies of an example in a batch have, by their variance."""
        observed = self.means()
        if observed.squares is None or not self.is_random:
            return 0.0
        size = len(self.centre)
        # 16 copies with sets of their own vary 16 times less in the mean than one
        single = observed.squares.means - (observed.means[:size] - self.centre) ** 2
        of_calls = observed.stderrs[:size] ** 2 * (self.calls - 1)
        return float(single.sum() / of_calls.sum()) if of_calls.sum() > 0.0 else 0.0

    @property
    def has_negatives_of_batch(self) -> bool:
        """Whether losses of examples change with the labels of others."""
        half, others = len(self._order) // 2, self._whole.labels.copy()
        others[half:] = others[0]
        changed = self.problem.of_rows(self._order, others)
        before, after = (self.results_of(each, 0)[0][:half] for each in (self._whole, changed))
        return not np.allclose(before, after, rtol=1e-4, atol=1e-4)

    @property
    def divides_by_norms(self) -> bool:
        """Whether losses for a seed stay the same when vectors are made longer or shorter."""
        # each by a factor of its own: one factor for all might be a temperature's
        factors = np.random.default_rng(0).uniform(0.5, 2.0, self.problem.num_classes + self.batch)
        of_classes, of_contexts = np.split(factors[:, None], [self.problem.num_classes])
        if np.ptp(self.problem.q, axis=0).any():  # longer contexts may have other draws
            of_contexts = np.ones_like(of_contexts)
        rows, h = self.problem.class_embeddings * of_classes, self._whole.h * of_contexts
        changed = replace(self._whole, class_embeddings=rows, h=h)
        before, after = (self.results_of(each, 0)[0] for each in (self._whole, changed))
        stays = _STAYS + self.noise[: len(self.centre)].max(initial=0.0)
        return self.follows_seed and bool((np.abs(before - after) <= stays).all())

    def gradient_in_batches_of(self, copies: int) -> FloatArray:
        """Return the mean gradient (E, d) in h of batches with each example so many times."""
        order = np.tile(np.arange(len(self.problem.labels)), copies)
        here = self.problem.of_rows(order, self.problem.labels[order])
        calls = _CALLS_OF_OTHER_SIZE if self.is_random else 1
        found = [self.results_of(here, seed)[1] for seed in range(calls)]
        mean: FloatArray = (
            np.mean(found, axis=0).reshape(copies, *self.problem.h.shape).mean(axis=0)
        )
        return mean

    def names_of(self, where: NDArray[np.bool_]) -> list[str]:
        """Return names of what is marked in (K,): of ``losses``, ``dh``, ``dW`` and ``db``."""
        examples, d = self.problem.h.shape
        sizes = np.cumsum([examples, examples * d, _VIEWS * d])
        parts = zip(("losses", "dh", "dW", "db"), np.split(where, sizes), strict=True)
        return [name for name, part in parts if part.any()]

    def means(self) -> Observed:
        """Return the means of all calls so far."""
        change, second, third, _ = self._sums / self.calls
        variances = np.maximum(second - change**2, 0.0)
        thirds = third - 3.0 * change * variances - change**3
        skewness = thirds / np.where(variances > 0.0, variances, 1.0) ** 1.5
        means, examples = self._origin + change, len(self.centre)
        sizes, of_squares = self._scales(), np.sqrt(means[-examples:])
        rounding = self._allowed()
        off = rounding[:examples] * (2.0 * of_squares + rounding[:examples])
        whole = Observed(
            means,
            np.sqrt(variances / max(self.calls - 1, 1)),
            np.concatenate([rounding, off]),
            np.concatenate([sizes, 1.0 + of_squares]),
            self.calls,
            skewness,
            self._sets,
            self.looks,
        )
        squares = whole.part(slice(-examples, None))
        return replace(whole.part(slice(None, -examples)), squares=squares)

    def rounding_of_parts(self, problem: Problem) -> list[float]:
        """Return how far rounding may move losses, and each kind of gradients, of a problem.

        Of what is rounded to few digits it is measured; otherwise it is 0.
        """
        examples, d = self.problem.h.shape
        ends = np.cumsum([examples, examples * d, _VIEWS * d])[: self.gradients]
        if not len(self.noise):
            return [0.0] * (1 + self.gradients)
        _, allowed = self._rounding_along(self._step, problem)
        return [float(part.max()) for part in np.split(allowed, ends)]

    @property
    def in_half_precision(self) -> bool:
        """Whether results are rounded as numbers of few digits are, by measurement or as given."""
        scales = self._scales()
        return bool((self._allowed() > _HALF_PRECISION * scales)[scales > 0.0].any())

    def _allowed(self) -> FloatArray:
        """Return how far rounding may move the means (K,)."""
        of_type = self.rounding * self._scales()
        return np.maximum(of_type, self.noise) if len(self.noise) else of_type

    def _measured_noise(self) -> FloatArray:
        """Return how far rounding inside the loss may move what it returns (K,).

        Of logits in float16 or bfloat16, and of results that were rounded to these, the type of
        what is returned says nothing. Along a line of inputs, with one seed, an exact loss is
        smooth: its sixth differences vanish, and those of rounding stay. Empty where there is no
        more than the type says, or more than any type explains: draws that change with the inputs.
        """
        scales, allowed, last = self._scales(), np.zeros(0), np.inf
        for step in _STEPS:
            deviations, here = self._rounding_along(step, self._whole)
            sized = scales > 0.0
            found = float((deviations[sized] / scales[sized]).max())
            # an exact loss that is no more smooth at such a step, or draws that change with it
            if found > min(_MOST_ROUNDING, _MOST_GROWTH * last) or found <= _LEAST_ROUNDING:
                break
            # numbers of few digits may be those of float16, of which the smallest are far apart
            least = _HALF_OF_LEAST if found > _FEW_DIGITS else 0.0
            allowed = np.maximum(here, allowed if len(allowed) else least)
            last, self._step = found, step
        return allowed

    def _rounding_along(self, step: float, whole: Problem) -> tuple[FloatArray, FloatArray]:
        """Return standard deviations (K,) of rounding on lines of inputs, and what it may move."""
        rng, given = np.random.default_rng(0), (whole.class_embeddings, whole.h)
        lines = []
        for line in range(_LINES):
            steps = [step * rng.uniform(-1.0, 1.0, array.shape) for array in given]
            points = []
            for k in range(_POINTS):
                rows, h = (x * (1.0 + k * change) for x, change in zip(given, steps, strict=True))
                here = replace(whole, class_embeddings=rows, h=h)
                points.append(self.results_of(here, line))
            lines.append([np.array(values) for values in zip(*points, strict=True)])
        deviations, allowed = [], []
        ways = comb(2 * _POINTS - 2, _POINTS - 1)  # sum of squares of the coefficients
        for values in map(np.array, zip(*lines, strict=True)):  # lines, points and an array
            part = np.abs(np.diff(values, _POINTS - 1, axis=1)[:, 0]) / np.sqrt(ways)
            units = _units(values).max(axis=1)
            if part.shape[1] == self.batch:  # with copies of the examples
                shape = -1, len(self.problem.labels), *part.shape[2:]
                part, units = part.reshape(shape), units.reshape(shape)
            deviation = (np.quantile(part, _UPPER[0], axis=0) / _UPPER[1]).ravel()
            unit = units.max(axis=0).ravel()
            # what is rounded at last is off by half a unit at most; and what was rounded before
            before = np.sqrt(np.maximum(deviation**2 - unit**2 / 12.0, 0.0))
            before = np.maximum(before, _LEAST_BEFORE * deviation)
            deviations.append(deviation)
            allowed.append(0.5 * unit + _DEVIATIONS * before)
        return np.concatenate(deviations), np.concatenate(allowed)

    def _scales(self) -> FloatArray:
        """Return the sizes (K,) of the numbers that a loss and its gradient are made of."""
        problem = self.problem
        losses: FloatArray = 10.0 + np.abs(problem.logits).max(axis=1)
        of_h = np.tile(
            2.0 * problem.tau * np.abs(problem.class_embeddings).max(axis=0), len(losses)
        )
        of_views = 8.0 * problem.weights.max()
        of_classes = np.tile(of_views * problem.tau * np.abs(problem.h).max(axis=0), _VIEWS)
        parts = losses, of_h, of_classes, np.full(_VIEWS, of_views)
        return np.concatenate(parts[: 1 + self.gradients])

    def _call(self, seed: int) -> FloatArray:
        """Return means over the copies of each example in one call: K, and those of E squares."""
        problem, order = self.problem, self._order
        parts = self.results_of(self._whole, seed)
        examples = len(problem.labels)
        if np.ptp(parts[0].reshape(REPLICAS, examples), axis=0).any():  # not one set for all
            self._sets = REPLICAS
        parts.append((parts[0] - np.tile(self.centre, REPLICAS)) ** 2)
        means = [
            part.reshape(REPLICAS, examples, -1).mean(axis=0) if len(part) == len(order) else part
            for part in parts
        ]
        return np.concatenate([mean.ravel() for mean in means])

    def results_of(self, problem: Problem, seed: int) -> list[FloatArray]:
        """Return losses (B,) of one call, and gradients: in h (B, d), and what is seen of others.

        Losses and gradients in h are divided by the weights of their examples.
        """
        h, labels, weights = problem.h, problem.labels, problem.weights
        optional = {"biases": problem.biases, "weights": weights if self._weighted else None}
        names = [_ARGUMENTS, *(name for name, value in optional.items() if value is not None)]
        # copies, for a loss may write into what it is given
        arrays = [value.copy() for value in optional.values() if value is not None]
        first = problem.class_embeddings.copy(), h.copy(), labels.copy(), self.num_sampled, seed
        returned = call(self._loss, ", ".join(names), *first, *arrays)
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        shapes = {"dh": h.shape, "dW": problem.class_embeddings.shape}
        if problem.biases is not None:
            shapes["db"] = problem.biases.shape
        if not 0 < len(results) <= 1 + len(shapes):
            raise ValueError(
                "`loss` must return the losses, or a tuple (losses, dh), (losses, dh, dW) or, with "
                f"biases, (losses, dh, dW, db), got a {type(returned).__name__} of "
                f"{len(results)}."
            )
        losses, *slopes = results
        self.gradients = len(slopes)
        of_norms = _ROUNDING_OF_UNIT if problem.unit else 0.0
        self.rounding = max(self._least_rounding, of_norms)
        parts = [self._checked("losses", losses, labels.shape) / weights]
        for (name, shape), value in zip(shapes.items(), slopes, strict=False):
            part = self._checked(name, value, shape)
            of_rows = part / weights[:, None] if name == "dh" else problem.views.T @ part / len(h)
            parts.append(of_rows)
        return parts

    def _checked(self, name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
        try:
            array = np.asarray(value)
        except Exception as error:  # of tensors that need a gradient, or lie on a device
            raise TypeError(
                f"`loss` must return {name} as an array of floats, got {type(value).__name__}, "
                f"which numpy.asarray does not take: {error}"
            ) from error
        if array.dtype.name == "bfloat16":  # of ml_dtypes, such as JAX returns
            array = array.astype(np.float32)
        if array.dtype.kind != "f":
            raise TypeError(
                f"`loss` must return {name} as an array of floats, got "
                f"{type(value).__name__} of {array.dtype}; convert it with numpy.asarray."
            )
        if array.shape != shape:
            hint = "return the loss of each example, without a mean or a sum over the batch"
            if name == "dh":
                hint = "return the gradient of the sum of the losses in h"
            elif name != "losses":
                hint = "return the gradient of the sum of the losses over the batch"
            raise ValueError(
                f"`loss` must return {name} of shape {shape}, got {array.shape}; {hint}."
            )
        if not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0, 0])
            raise ValueError(
                f"`loss` must return finite {name}, got {array[row]} in row {row} of the batch; "
                "look for a masked logit in a mean, a product 0 * inf, or log of 0."
            )
        unit = float(np.finfo(array.dtype).eps)
        # of types with few digits their own rounding: what is lost before it is measured
        self.rounding = max(self.rounding, unit * (_ROUNDING if unit < _COARSEST else 0.5))
        return array.astype(np.float64)
