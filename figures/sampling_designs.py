r"""Designs that draw sets of a fixed size with given inclusion probabilities pi; not a script.

`ConditionalPoisson`, `OrderedPivotal` and `Systematic` draw m of N classes, such that class j is in
the set with probability pi_j. Their draws, joint inclusion probabilities and expectations are
exact. `design_bias` and `design_mse` are of the sampled softmax with ``S = e_t + sum e_j / pi_j``,
the sum being over the set, and follow from

    F(x) = E prod x_j, the product being over the set, at x_j = exp(-u e_j / pi_j):

- conditional Poisson: independent inclusions given that m classes are included. F is the ratio of
  two coefficients of z**m, of ``prod (1 + a_j x_j z)`` at x and at 1, with odds a_j such that the
  inclusion probabilities are pi;
- pivotal: two classes at a time fight with their probabilities, until each is 0 or 1. With a fixed
  order, the class that goes on has a known probability, and only its identity is random. So F is a
  product of N matrices of 2 x 2;
- systematic: classes lie one after another on a line, each with the length pi_j, and a set has the
  classes at s, s + 1, ..., s + m - 1, for one uniform s. So there are at most N sets.

All sums are of positive terms, so that no digits cancel where pi is near 0 or 1.

References
----------
Y. Tillé, "Sampling Algorithms", Springer, 2006: chapters 5 to 7 have all three.
J. Hájek, "Asymptotic theory of rejective sampling with varying probabilities from a finite
population", Annals of Mathematical Statistics 35, 1964.
X.-H. Chen, A. P. Dempster and J. S. Liu, "Weighted finite population sampling to maximize entropy",
Biometrika 81, 1994.
J.-C. Deville and Y. Tillé, "Unequal probability sampling without replacement through a splitting
method", Biometrika 85, 1998.
G. Chauvet, "On a characterization of ordered pivotal sampling", Bernoulli 18, 2012.
W. G. Madow, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20, 1949.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray, as_count, as_ids, as_real_array
from samplesoft.bias.numerics.quadrature import ExampleBias
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.without_replacement.expectations import StratumDistribution
from samplesoft.bias.without_replacement.set_bias import bias_of_distributions
from samplesoft.bias.without_replacement.terms import (
    double_exponential_node,
    integrand_changes,
    log_mean_and_scale,
    make_weights,
    quadrature_nodes,
)
from samplesoft.schemes import SCHEMES

SetArray = NDArray[np.bool_]

_SUM_TOLERANCE = 1e-9  # of the distance of the sum of pi from a whole number
_LARGEST_CHANGE = 1e-6  # relative change of pi and of 1 - pi that makes the sum whole
_MOST_DECAY = 745.0  # exp(-x) is 0 from here on
_LARGEST_LOG = 690.0
_LEAST_LEFT = 1e-22  # the integral ends where E exp(-u S) is less
_MEAN_REACHED = 4.0  # and the log of u E[S] is more

# of Newton's method, in logs of odds
_MAX_STEPS = 100
_MAX_STEP = 2.0
_SETTLED = 1e-12


def proportional_inclusion(q: ArrayLike, m: int) -> FloatArray:
    """Return inclusion probabilities (n,) in proportion to `q`, at most 1, that sum to m.

    Parameters
    ----------
    q : array_like, shape (n,)
        Sizes, all at least 0.
    m : int
        Number of classes to draw, at most that of the sizes above 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> proportional_inclusion([6.0, 2.0, 1.0, 1.0], 2).tolist()
    [1.0, 0.5, 0.25, 0.25]
    """
    sizes, m = as_real_array("q", q, (1,)), as_count("m", m)
    if sizes.min() < 0.0:
        raise ValueError(f"`q` must be at least 0, got {sizes.min():g}; set what is below to 0.")
    available = int(np.count_nonzero(sizes))
    if m > available:
        raise ValueError(f"`m` must be at most {available}, the classes with q > 0, got {m}.")
    pi = np.zeros(len(sizes))
    free = sizes > 0.0
    while m > np.count_nonzero(pi == 1.0):
        free &= pi < 1.0
        pi[free] = sizes[free] * ((m - np.count_nonzero(pi == 1.0)) / sizes[free].sum())
        if not (pi > 1.0).any():
            break
        pi = np.minimum(pi, 1.0)
    return np.minimum(pi, 1.0)


# --- designs -------------------------------------------------------------------------------------


class Design(ABC):
    """A distribution over the sets of m of N classes, with given inclusion probabilities.

    It is a `StratumDistribution`, so that the package computes biases from it.

    Parameters
    ----------
    pi : array_like, shape (N,)
        Inclusion probabilities, in (0, 1]; their sum is m, a whole number.

    Raises
    ------
    TypeError, ValueError
        If `pi` is malformed.
    """

    def __init__(self, pi: ArrayLike) -> None:
        self.pi = as_real_array("pi", pi, (1,))
        bad = np.flatnonzero((self.pi <= 0.0) | (self.pi > 1.0))
        if len(bad):
            raise ValueError(
                f"`pi` must be in (0, 1], got {self.pi[bad[0]]:g} (class {bad[0]}); leave out "
                "classes that are never drawn, and take `proportional_inclusion`, which caps at 1."
            )
        total = math.fsum(self.pi)
        self.size = round(total)
        if self.size < 1 or abs(total - self.size) > _SUM_TOLERANCE:
            raise ValueError(
                f"`pi` must sum to a whole number of draws, at least 1, got {total:.12g}; take "
                "`proportional_inclusion`."
            )
        self.inclusion = np.stack([self.pi] * 2)

        # pi as fractions whose sum is m to the last digit: what is missing is shared out such that
        # the relative changes of pi and of 1 - pi are small
        exact = [Fraction(value) for value in self.pi.tolist()]
        slack = [value * (1 - value) for value in exact]
        missing, room = self.size - sum(exact, Fraction(0)), sum(slack, Fraction(0))
        if abs(missing) > _LARGEST_CHANGE * room:
            raise ValueError(
                "`pi` must sum to a whole number without classes that are certain but for rounding,"
                f" got {float(room):.1g} for the sum of pi (1 - pi); set pi near 1 to 1, and leave "
                "out classes with pi near 0."
            )
        share = missing / room if missing else Fraction(0)
        self._exact = [value + share * part for value, part in zip(exact, slack, strict=True)]
        self.relative_error = (16.0 + len(self.pi)) * EPS + abs(float(share))

    @abstractmethod
    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``E exp(-D)`` (2,) and ``E[exp(-D) 1{k in set}]`` (2, N), with equal rows.

        D is the sum of `decay` (N,) over the set; `saddles` is not used.
        """

    @abstractmethod
    def joint_inclusion(self) -> FloatArray:
        """Return the probability that a set has both of two classes, (N, N); its diagonal is pi."""

    @abstractmethod
    def draw(self, num_sets: int, rng: np.random.Generator) -> SetArray:
        """Return whether each class is in each of the sets drawn, shape (num_sets, N)."""


class ConditionalPoisson(Design):
    """Independent inclusions, given that their number is m: of all designs, the largest entropy.

    Attributes
    ----------
    log_odds : ndarray, shape (N,)
        Logs of the odds of the independent inclusions, whose probabilities sum to m; inf where pi
        is 1.

    Raises
    ------
    TypeError, ValueError
        If `pi` is malformed.
    ArithmeticError
        If the odds are not found.

    Examples
    --------
    >>> design = ConditionalPoisson([0.8, 0.6, 0.4, 0.2])
    >>> design.draw(3, np.random.default_rng(0)).sum(axis=1)
    array([2, 2, 2])
    >>> design.joint_inclusion()[0].round(3)
    array([0.8  , 0.431, 0.253, 0.116])
    """

    def __init__(self, pi: ArrayLike) -> None:
        super().__init__(pi)
        self._free = np.flatnonzero(self.pi < 1.0)
        self._m = self.size - (len(self.pi) - len(self._free))
        self.log_odds = np.full(len(self.pi), np.inf)
        self._log_coefficient = 0.0
        if self._m:
            free = [self._exact[k] for k in self._free]
            probs = np.array([[float(value), float(1 - value)] for value in free])
            log_odds = _solve_log_odds(probs[:, 0], probs[:, 1], self._m)
            self.log_odds[self._free] = log_odds
            self._log_coefficient = _GivenCount(log_odds, self._m).log_coefficient

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """See `Design.expect_exponentials`."""
        log_mean = -float(decay[np.isinf(self.log_odds)].sum())
        members = np.ones(len(decay))
        own = decay[self._free]
        if self._m:
            least = float(np.partition(own, self._m - 1)[: self._m].sum())
            if least - log_mean > _MOST_DECAY:  # no set has less
                return np.zeros(2), np.zeros((2, len(decay)))
            given = _GivenCount(self.log_odds[self._free] - own, self._m)
            log_mean += given.log_coefficient - self._log_coefficient
            members[self._free] = given.inside
        mean = math.exp(min(log_mean, 0.0))
        return np.full(2, mean), np.stack([mean * members] * 2)

    def joint_inclusion(self) -> FloatArray:
        """See `Design.joint_inclusion`."""
        joint = np.outer(self.pi, self.pi)  # exact where one of the two is certain
        if self._m:
            given = _GivenCount(self.log_odds[self._free], self._m)
            joint[np.ix_(self._free, self._free)] = given.inside[:, None] * given.by_class()[0]
        np.fill_diagonal(joint, self.pi)
        return joint

    def draw(self, num_sets: int, rng: np.random.Generator) -> SetArray:
        """See `Design.draw`: one class after another, given how many are left to be included."""
        sets = np.ones((num_sets, len(self.pi)), np.bool_)
        if self._m:
            given = _GivenCount(self.log_odds[self._free], self._m)
            tails = _count_tails(given.present, given.absent, self._m)
            left = np.full(num_sets, self._m)
            for k, class_id in enumerate(self._free):
                chance = np.zeros(num_sets)
                some = left > 0
                rest = tails[k + 1, left[some] - 1] / tails[k, left[some]]
                chance[some] = given.present[k] * rest
                taken = rng.random(num_sets) < chance
                taken |= left >= len(self._free) - k  # whatever the rounding, the size is m
                sets[:, class_id] = taken
                left -= taken
        return sets


class _GivenCount:
    """Independent inclusions of N classes, with odds exp(`log_odds`), given that m are included.

    The odds are multiplied by the number that makes m the expected count: then probabilities of
    counts, the elementary symmetric polynomials over a product, neither overflow nor underflow.
    """

    def __init__(self, log_odds: FloatArray, m: int) -> None:
        self._m = m
        shift = _saddle(log_odds, m)
        self.present, self.absent = expit(log_odds + shift), expit(-log_odds - shift)
        self.inside, self.outside = self._conditional(self.present, self.absent, m)
        total = _count_tails(self.present, self.absent, m)[0, m]
        logs = np.logaddexp(0.0, log_odds + shift)
        # of z**m in prod (1 + odds z)
        self.log_coefficient = math.log(total) + math.fsum(logs) - m * shift

    @staticmethod
    def _conditional(present: FloatArray, absent: FloatArray, m: int) -> FloatArray:
        """Return the probabilities (2, N) that each class is in the set, and that it is not."""
        sums: FloatArray = _member_sums(present, absent, m)
        sums /= sums.sum(axis=0)
        return sums

    def by_class(self) -> FloatArray:
        """Return the probability of class l given k in the set, and given k not, (2, N, N)."""
        n = len(self.present)
        out = np.zeros((2, n, n))
        for k in range(n):
            others = np.arange(n) != k
            rest = self.present[others], self.absent[others]
            out[0, k, others] = self._conditional(*rest, self._m - 1)[0]
            out[1, k, others] = self._conditional(*rest, self._m)[0]
        return out


def _saddle(log_odds: FloatArray, m: int) -> float:
    """Return the shift of the log odds with which inclusion probabilities sum to m < N."""
    n = len(log_odds)
    falling = -np.partition(-log_odds, [m - 1, m])
    logs = np.maximum(log_odds, falling[m - 1] - _LARGEST_LOG)

    def excess(shift: float) -> float:
        return float(expit(logs + shift).sum()) - m

    low, high = -falling[m - 1] - math.log(n) - 1.0, math.log(m) + 2.0
    high -= max(falling[m], falling[m - 1] - _LARGEST_LOG)
    return float(brentq(excess, low, high, xtol=1e-6))


def _solve_log_odds(pi: FloatArray, complement: FloatArray, m: int) -> FloatArray:
    """Return log odds (N,) whose inclusion probabilities, given the count m, are `pi`.

    Newton's method from the log odds of pi. The derivatives are covariances between inclusions.
    `complement` is 1 - pi, of which 1 - pi in floats has fewer digits.
    """
    log_odds: FloatArray = np.log(pi) - np.log(complement)
    for _ in range(_MAX_STEPS):
        given = _GivenCount(log_odds, m)
        inside, outside = given.inside, given.outside
        miss = np.where(pi < 0.5, pi - inside, outside - complement)
        scale = np.sqrt(inside * outside)
        with_k, without_k = given.by_class()
        # correlations; a multiple of all odds changes nothing, which adds an eigenvalue of 1
        correlation = (with_k - without_k) * (scale[:, None] / scale)
        np.fill_diagonal(correlation, 1.0)
        unchanged = scale / np.linalg.norm(scale)
        step = np.linalg.solve(correlation + np.outer(unchanged, unchanged), miss / scale) / scale
        largest = float(np.abs(step).max())
        log_odds = log_odds + step * min(1.0, _MAX_STEP / max(largest, _MAX_STEP))
        if largest < _SETTLED:
            solved: FloatArray = log_odds + _saddle(log_odds, m)
            return solved
    raise ArithmeticError(f"no odds for {len(pi)} inclusion probabilities")


class OrderedPivotal(Design):
    """Fights between the class that goes on and the next one in the order.

    Let the two have the probabilities a and b. If a + b is at most 1, one of them goes on with a +
    b, and the other is out. Otherwise one is taken, and the other goes on with a + b - 1.

    Parameters
    ----------
    pi : array_like, shape (N,)
        As for `Design`.
    order : array_like of int, shape (N,), optional
        The classes in the order of their fights; by default that of `pi`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    Two neighbours whose probabilities sum to 1 are never drawn together:

    >>> OrderedPivotal([0.5, 0.5, 0.4, 0.6]).joint_inclusion()[0].round(3)
    array([0.5, 0. , 0.2, 0.3])
    """

    def __init__(self, pi: ArrayLike, order: Any = None) -> None:
        super().__init__(pi)
        self._order = _as_order(order, len(self.pi))
        exact = self._exact
        # of each class in the order: whether the two sum to at most 1, and the probabilities that
        # the class which went on still does, and that the new class does
        self._joins = np.zeros(len(exact), np.bool_)
        self._stays, self._enters = np.zeros((2, len(exact)))
        before = Fraction(0)
        for k, class_id in enumerate(self._order):
            old, new = before, exact[class_id]
            both = old + new
            self._joins[k] = both <= 1
            if both <= 1:
                stays, before = old / both, both
            else:
                stays, before = (1 - old) / (2 - both) if both < 2 else Fraction(0), both - 1
            self._stays[k], self._enters[k] = float(stays), float(1 - stays)

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """See `Design.expect_exponentials`."""
        factors = np.exp(-decay[self._order])
        in_order = _pivotal_sums(factors, self._joins, self._stays, self._enters)
        members = np.empty(len(decay))
        members[self._order] = in_order[1:]
        return np.full(2, in_order[0]), np.stack([members] * 2)

    def joint_inclusion(self) -> FloatArray:
        """See `Design.joint_inclusion`: derivatives of E prod x_j, of first and second order."""
        n = len(self.pi)
        joint = np.zeros((n, n))
        # of E prod x_j over the taken classes, and the same times x of the class that goes on: the
        # derivatives in each earlier class
        taken, with_next = np.zeros((2, n))
        later = _pivotal_tails(np.ones(n), self._joins, self._stays, self._enters)
        for k in range(n):
            stays, enters = self._stays[k], self._enters[k]
            # the terms that have the factor x_k, from the derivatives in the earlier classes
            if self._joins[k]:
                new_taken, new_next = np.zeros(k), enters * taken[:k]
            else:
                new_taken, new_next = stays * taken[:k], with_next[:k]
            joint[k, :k] = later[0, k + 1] * new_taken + later[1, k + 1] * new_next
            if self._joins[k]:
                with_next[:k] = stays * with_next[:k] + enters * taken[:k]
                taken[k], with_next[k] = 0.0, enters
            else:
                taken[:k] = enters * with_next[:k] + stays * taken[:k]
                taken[k], with_next[k] = stays, 1.0
        joint += joint.T
        out = np.empty_like(joint)
        out[np.ix_(self._order, self._order)] = joint
        np.fill_diagonal(out, self.pi)
        return out

    def draw(self, num_sets: int, rng: np.random.Generator) -> SetArray:
        """See `Design.draw`."""
        sets = np.zeros((num_sets, len(self.pi)), np.bool_)
        goes_on = np.full(num_sets, self._order[0])
        for k, class_id in enumerate(self._order):
            enters = rng.random(num_sets) < self._enters[k]
            if not self._joins[k]:
                taken = np.where(enters, goes_on, class_id)
                sets[np.arange(num_sets), taken] = True
            goes_on = np.where(enters, class_id, goes_on)
        sets[np.arange(num_sets), goes_on] = True
        return sets


class Systematic(Design):
    """The classes at s, s + 1, ... of a line on which class j has the length pi_j; s is uniform.

    Parameters
    ----------
    pi : array_like, shape (N,)
        As for `Design`.
    order : array_like of int, shape (N,), optional
        The classes in the order of the line; by default that of `pi`.

    Attributes
    ----------
    sets : ndarray of bool, shape (K, N)
        All sets that can be drawn, at most N.
    probs : ndarray, shape (K,)
        Their probabilities.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> design = Systematic([0.5, 0.25, 0.75, 0.5])
    >>> design.sets.astype(int).tolist(), design.probs.tolist()
    ([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]], [0.5, 0.25, 0.25])
    """

    def __init__(self, pi: ArrayLike, order: Any = None) -> None:
        super().__init__(pi)
        order = _as_order(order, len(self.pi))
        exact = self._exact
        ends = [Fraction(0)]
        for class_id in order:
            ends.append(ends[-1] + exact[class_id])
        whole = np.array([math.floor(end) for end in ends])
        parts = [end - math.floor(end) for end in ends]
        starts = sorted(set(parts))
        places = {part: place for place, part in enumerate(starts)}
        beyond = np.array([places[part] for part in parts]) > np.arange(len(starts))[:, None]
        self.sets = np.zeros((len(starts), len(exact)), np.bool_)
        # whether a class has one of the points s + i, from the number of points up to its two ends
        self.sets[:, order] = np.diff(whole + beyond, axis=1) > 0
        following = [*starts[1:], Fraction(1)]
        self.probs = np.array([float(b - a) for a, b in zip(starts, following, strict=True)])

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """See `Design.expect_exponentials`."""
        terms = self.probs * np.exp(-(self.sets @ decay))
        return np.full(2, terms.sum()), np.stack([terms @ self.sets] * 2)

    def joint_inclusion(self) -> FloatArray:
        """See `Design.joint_inclusion`."""
        joint: FloatArray = (self.sets.T * self.probs) @ self.sets
        return joint

    def draw(self, num_sets: int, rng: np.random.Generator) -> SetArray:
        """See `Design.draw`."""
        drawn = np.searchsorted(np.cumsum(self.probs[:-1]), rng.random(num_sets), side="right")
        return self.sets[drawn]


def _as_order(order: Any, n: int) -> IntArray:
    """Return an order of n classes, by default that of their ids."""
    if order is None:
        return np.arange(n)
    ids = as_ids("order", order, n)
    if len(ids) != n or len(np.unique(ids)) != n:
        raise ValueError(
            f"`order` must have each of the {n} classes once, got {len(ids)} ids, "
            f"{len(np.unique(ids))} of them different; take numpy.argsort."
        )
    return ids


# --- the loss ------------------------------------------------------------------------------------


def design_bias(logits: ArrayLike, label: int, design: StratumDistribution) -> ExampleBias:
    """Return the exact bias of one example whose negatives are a set drawn by a design.

    Parameters
    ----------
    logits : array_like, shape (n,)
        Finite logits.
    label : int
        The label, which is in S for certain.
    design : StratumDistribution
        The distribution of the set, over the n - 1 other classes in their order.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    With pi in proportion to the softmax, S is the same for all sets:

    >>> logits = np.log([0.4, 0.3, 0.2, 0.1])
    >>> design = ConditionalPoisson(proportional_inclusion([0.3, 0.2, 0.1], 2))
    >>> bool(np.abs(design_bias(logits, 0, design).bias).sum() < 1e-13)
    True
    """
    values, others = _as_example(logits, label, design)
    return bias_of_distributions(
        values, int(label), SCHEMES["distinct"], [(design, others)], correction=None
    )


def design_mse(logits: ArrayLike, label: int, design: StratumDistribution) -> float:
    """Return E|p' - p|**2, the mean squared error of the gradient in the logits.

    Arguments and exceptions are those of `design_bias`. The second moments are ``E[p'_j**2] = int u
    w_j**2 E[exp(-u S) 1{j in set}] du``, because ``1/S**2 = int u exp(-u S) du``.

    Examples
    --------
    >>> round(design_mse([0.0, 1.0, 2.0], 0, ConditionalPoisson([0.5, 0.5])), 4)
    0.4705
    """
    values, others = _as_example(logits, label, design)
    divisors = np.ones(len(values))
    divisors[others] = design.inclusion[0]
    weights = make_weights(values, int(label), SCHEMES["distinct"], divisors)
    terms = weights.terms(others, design.inclusion[0])
    moments = np.zeros((2, len(values)))  # of p', of the first and of the second order
    ids = np.append(others, label)
    survival = 1.0
    for node in quadrature_nodes(terms, *log_mean_and_scale(terms), double_exponential_node):
        if integrand_changes(node.log_decay):
            decay = np.exp(np.minimum(node.log_decay, _LARGEST_LOG))
            mean, members = design.expect_exponentials(decay[:-1], [])
            of_label = math.exp(-decay[-1])
            one = decay * of_label * np.append(members[0], mean[0])
            moments[:, ids] += node.weights[0] * np.stack([one, decay * one])
            survival = of_label * mean[0]
        if survival < _LEAST_LEFT and node.log_mean > _MEAN_REACHED:
            break
    first, second = moments
    probs = weights.probs
    spread = (second - probs**2) - 2.0 * probs * (first - probs)
    return max(float(spread.sum()), 0.0)


def _as_example(
    logits: ArrayLike, label: int, design: StratumDistribution
) -> tuple[FloatArray, IntArray]:
    """Return the logits (n,), and the classes (n - 1,) other than the label."""
    values = as_real_array("logits", logits, (1,))
    chosen = as_ids("label", [label], len(values))[0]
    others = np.delete(np.arange(len(values)), chosen)
    if len(design.inclusion[0]) != len(others):
        raise ValueError(
            f"`design` must be of the {len(others)} classes other than the label, got one of "
            f"{len(design.inclusion[0])}; leave out the label's pi."
        )
    return values, others


# --- compiled sums -------------------------------------------------------------------------------


@njit
def _count_tails(present: FloatArray, absent: FloatArray, m: int) -> FloatArray:
    """Return the probability (N + 1, m + 1) that r of the classes k, k + 1, ... are included."""
    n = len(present)
    tails = np.zeros((n + 1, m + 1))
    tails[n, 0] = 1.0
    for k in range(n - 1, -1, -1):
        tails[k, 0] = absent[k] * tails[k + 1, 0]
        for r in range(1, m + 1):
            tails[k, r] = absent[k] * tails[k + 1, r] + present[k] * tails[k + 1, r - 1]
    return tails


@njit
def _member_sums(present: FloatArray, absent: FloatArray, m: int) -> FloatArray:
    """Return the probabilities (2, N) that m are included, class k among them, and without it."""
    n = len(present)
    tails = _count_tails(present, absent, m)
    heads = np.zeros(m + 1)
    heads[0] = 1.0
    sums = np.zeros((2, n))
    for k in range(n):
        for r in range(m):
            sums[0, k] += heads[r] * tails[k + 1, m - 1 - r]
        for r in range(m + 1):
            sums[1, k] += heads[r] * tails[k + 1, m - r]
        sums[0, k] *= present[k]
        sums[1, k] *= absent[k]
        for r in range(m, 0, -1):
            heads[r] = absent[k] * heads[r] + present[k] * heads[r - 1]
        heads[0] *= absent[k]
    return sums


@njit
def _pivotal_tails(
    x: FloatArray, joins: SetArray, stays: FloatArray, enters: FloatArray
) -> FloatArray:
    """Return the coefficients (2, N + 1) with which sums before each class enter E prod x_j.

    The two sums are E prod x_j over the classes taken so far, and the same times x of the class
    that goes on.
    """
    n = len(x)
    later = np.zeros((2, n + 1))
    later[1, n] = 1.0
    for k in range(n - 1, -1, -1):
        taken, with_next = later[0, k + 1], later[1, k + 1]
        if joins[k]:
            later[0, k] = taken + with_next * enters[k] * x[k]
            later[1, k] = with_next * stays[k]
        else:
            later[0, k] = taken * stays[k] * x[k]
            later[1, k] = taken * enters[k] + with_next * x[k]
    return later


@njit
def _pivotal_sums(
    x: FloatArray, joins: SetArray, stays: FloatArray, enters: FloatArray
) -> FloatArray:
    """Return E prod x_j, and its parts with each class in the set, (N + 1,)."""
    n = len(x)
    out = np.empty(n + 1)
    later = _pivotal_tails(x, joins, stays, enters)
    out[0] = later[0, 0]
    taken, with_next = 1.0, 0.0
    for k in range(n):
        if joins[k]:
            out[k + 1] = later[1, k + 1] * enters[k] * x[k] * taken
            with_next = stays[k] * with_next + enters[k] * x[k] * taken
        else:
            out[k + 1] = (later[0, k + 1] * stays[k] * taken + later[1, k + 1] * with_next) * x[k]
            taken, with_next = enters[k] * with_next + stays[k] * x[k] * taken, x[k] * with_next
    return out
