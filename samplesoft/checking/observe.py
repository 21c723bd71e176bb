"""`Observer`: the means of a loss on a problem over many calls, and bounds on their rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.calls import call_loss
from samplesoft.checking.problems import MAX_EXTREMES, NUM_VIEWS, REPLICAS, Problem

_CALLS_OF_FIRST_LOOK = 64  # calls before means are tested first; doubled before each next test
_MAX_EQUAL_SEEDS = 500  # a loss with equal results for so many seeds counts as deterministic
_ARGUMENTS = "class_embeddings, h, labels, num_sampled, seed"
_NUM_PILOT_CALLS = 32  # calls that estimate the mean losses, which are subtracted before squaring
_CALLS_OF_OTHER_SIZE = 128  # calls with smaller batches: is the gradient the same, or doubled?
# types with a larger unit in the last place are hardly ever used throughout a loss
_MAX_FULL_PRECISION_UNIT = 1e-6
_MAX_ERROR_UNITS = 64.0  # allowed error of a loss, in units in the last place of its type
# measurement of rounding: number of lines, points on a line, relative distances of the points
# (types with few bits need steps of several units), and allowed error in standard deviations
_LINES, _POINTS, _STEPS, _DEVIATIONS = 4, 7, (4e-3, 0.016, 0.064), 6.0
# largest growth of differences from one step to the next; without rounding it would be 4^6
_MAX_GROWTH_OF_STEP = 8.0
_FEW_BITS = 16  # values with at most so many bits are float16 (11 bits) or bfloat16 (8 bits)
# smallest fraction of a deviation that is attributed to the rounding of intermediate values
_MIN_INNER_ROUNDING = 0.25
# a quantile of |x| over lines and copies, and its value for a standard normal x: unlike a maximum,
# it ignores a few points at which the loss jumps
_UPPER = 0.8, 1.2816
# range of the measured rounding, relative to the terms of a loss: four units of bfloat16; below the
# minimum the type of the results determines the rounding
_MAX_ROUNDING = 2.0**-6
_MIN_ROUNDING = 1e-9
_FEW_DIGITS = 1e-5  # a larger relative rounding is not that of float32
_HALF_OF_LEAST = 2.0**-25  # half of the smallest positive float16
# units in the last place of types in which a part of a loss may be computed
HALF_PRECISION_UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_HALF_PRECISION = 1e-4  # larger errors, relative to the terms of a loss, are half precision
# a loss that divides by norms may add 1e-6 to them: its allowed change if vectors are made longer
# (nats), and its allowed relative error for unit vectors
_STAYS, _ROUNDING_OF_UNIT = 1e-3, 2e-6


@dataclass(frozen=True)
class Observed:
    """Means of K values over the calls of a loss, with what is needed to test them.

    The K values are the losses of E examples; then, if the loss returns gradients, the E d entries
    of the gradients in h, and projections of the gradients in class vectors and biases on 4 random
    directions among the classes.

    Attributes
    ----------
    means, stderrs : ndarray, shape (K,)
        Means over the calls, and their standard errors.
    rounding_bounds : ndarray, shape (K,)
        Bounds on the rounding errors of the means.
    magnitudes : ndarray, shape (K,)
        Magnitudes of the terms of which the values are sums.
    num_calls : int
        Number of calls.
    skewness : ndarray, shape (K,)
        Skewness of the values of single calls.
    num_sets : int
        Number of independent sets of draws for an example in one call.
    num_looks : int
        How many times the means are tested during the whole check.
    squared_losses : Observed or None
        The same statistics for ``(loss - centre)**2`` of the E examples, where `centre` is an
        estimate of the mean losses.
    """

    means: FloatArray
    stderrs: FloatArray
    rounding_bounds: FloatArray
    magnitudes: FloatArray
    num_calls: int
    skewness: FloatArray
    num_sets: int = 1
    num_looks: int = 1
    squared_losses: Observed | None = None

    def select_values(self, selection: slice) -> Observed:
        """Return the observations of a slice of the K values, without `squared_losses`."""
        arrays = {
            name: getattr(self, name)[selection]
            for name in ("means", "stderrs", "rounding_bounds", "magnitudes", "skewness")
        }
        return replace(self, **arrays, squared_losses=None)


def _units_in_last_place(values: FloatArray) -> FloatArray:
    """Return the unit in the last place of each value; zeros if any has more than 16 bits."""
    mantissas, exponents = np.frexp(values)
    whole = (mantissas * 2.0**_FEW_BITS) % 1.0 == 0.0
    if not whole.all():
        return np.zeros_like(values)
    bits = next(b for b in range(1, _FEW_BITS + 1) if ((mantissas * 2.0**b) % 1.0 == 0.0).all())
    return np.where(values == 0.0, 0.0, np.ldexp(1.0, exponents - bits))


class Observer:
    """Calls a loss on a problem with many seeds, and accumulates power sums of its results.

    A batch contains several copies of each example; adjacent rows are different examples. Means are
    over the calls and the copies. The constructor makes some calls to find out whether the loss
    draws at random, and how its results are rounded.

    Parameters
    ----------
    loss : callable
        The loss, which draws by itself; see `check_loss`.
    problem : Problem
        The examples.
    num_sampled : int
        Number of draws m that is passed to the loss.
    key : uint64
        Seed of the seeds that are passed to the loss.
    max_calls : int
        Maximum number of calls for the means.
    relative_rounding : float
        Unit in the last place of the type in which a part of the loss is computed; 0 if unknown.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        problem: Problem,
        num_sampled: int,
        key: np.uint64,
        max_calls: int,
        relative_rounding: float = 0.0,
    ) -> None:
        self._given_rounding = relative_rounding
        self._loss, self.problem, self.num_sampled = loss, problem, num_sampled
        self.max_calls = max_calls
        self.num_looks = 1 + ((max_calls - 1) // _CALLS_OF_FIRST_LOOK).bit_length() + MAX_EXTREMES
        self._seeds = np.random.default_rng(int(key))
        self.batch_size = REPLICAS * len(problem.labels)
        self._example_of_row: IntArray = np.tile(np.arange(len(problem.labels)), REPLICAS)
        self._batch_problem = problem.select_examples(
            self._example_of_row, problem.labels[self._example_of_row]
        )
        self._has_weights = bool((problem.weights != 1.0).any())
        self.num_gradients = 0  # number of gradients that the loss returns: dh, dW, db
        self.type_rounding = 0.0  # relative rounding error of the type of the results
        self._num_sets = 1
        self.centre = np.zeros(len(problem.labels))
        # measured bounds (K,) on rounding errors; empty if no rounding to few digits is found
        self.measured_rounding = np.zeros(0)
        self._rounding_step = 0.0  # relative distance of the points of that measurement
        # call with the same seed and with other seeds: is the loss random, and do its draws depend
        # on the seed only?
        first = self._means_of_call(0)
        self.follows_seed = bool(np.array_equal(first, self._means_of_call(0)))
        if self.follows_seed:
            self.measured_rounding = self._measured_rounding_bounds()
        others = (self._means_of_call(seed) for seed in range(1, _MAX_EQUAL_SEEDS))
        size = len(first) - len(self.centre)  # the squared losses come last
        rounding = self._rounding_bounds()
        # differences within rounding, such as sums in another order, are not random draws
        self.is_random = any((np.abs(first - other)[:size] > rounding).any() for other in others)
        self.num_calls = 0
        self._result_hashes: set[int] = set()  # equal results reveal seeds that repeat
        pilots = [
            self._means_of_call(seed) for seed in range(min(_NUM_PILOT_CALLS, 1 + max_calls // 16))
        ]
        self.centre = np.mean(pilots, axis=0)[: len(problem.labels)]
        self._origin = self._means_of_call(0)  # power sums are taken about this point
        # sums over the calls of x - origin, its square, its cube, and its product with the last one
        self._power_sums, self._last_change = (
            np.zeros((4, len(self._origin))),
            np.zeros_like(self._origin),
        )

    def run_calls(self, calls: int) -> None:
        """Call the loss `calls` more times."""
        for seed in self._seeds.integers(0, 2**31 - 1, calls):
            change = self._means_of_call(int(seed)) - self._origin
            self._result_hashes.add(hash(change.tobytes()))
            self._power_sums += change, change**2, change**3, change * self._last_change
            self._last_change = change
            self.num_calls += 1

    @property
    def calls_before_next_look(self) -> int:
        """Number of calls before means are tested again: as many as so far, but at least 64."""
        return min(max(_CALLS_OF_FIRST_LOOK, self.num_calls), self.max_calls - self.num_calls)

    @property
    def num_results(self) -> int:
        """Number of calls with different results."""
        return len(self._result_hashes)

    @property
    def autocorrelation(self) -> float:
        """Correlation of the losses of a call with the losses of the next call."""
        means, of_squares, _, products = self._power_sums[:, : len(self.centre)] / self.num_calls
        variance = of_squares - means**2
        products = products * self.num_calls / max(self.num_calls - 1, 1) - means**2
        return float(products.sum() / variance.sum()) if variance.sum() > 0.0 else 0.0

    @property
    def num_sets(self) -> float:
        """Number of independent sets of draws that the copies of an example have, by its variance.

        It is estimated as the variance of single losses divided by the variance of their mean over
        the copies; 0 if nothing is random.
        """
        observed = self.means()
        if observed.squared_losses is None or not self.is_random:
            return 0.0
        size = len(self.centre)
        # the mean over 16 copies with independent draws has 1/16 of the variance of a single loss
        single = observed.squared_losses.means - (observed.means[:size] - self.centre) ** 2
        of_calls = observed.stderrs[:size] ** 2 * (self.num_calls - 1)
        return float(single.sum() / of_calls.sum()) if of_calls.sum() > 0.0 else 0.0

    @property
    def has_negatives_of_batch(self) -> bool:
        """Whether the loss of an example changes with the labels of other examples."""
        half, others = len(self._example_of_row) // 2, self._batch_problem.labels.copy()
        others[half:] = others[0]
        changed = self.problem.select_examples(self._example_of_row, others)
        before, after = (
            self.results_of_call(each, 0)[0][:half] for each in (self._batch_problem, changed)
        )
        return not np.allclose(before, after, rtol=1e-4, atol=1e-4)

    @property
    def divides_by_norms(self) -> bool:
        """Whether the losses for one seed do not change with the lengths of the vectors."""
        # a different factor for each vector: a common factor is like another temperature
        factors = np.random.default_rng(0).uniform(
            0.5, 2.0, self.problem.num_classes + self.batch_size
        )
        of_classes, of_contexts = np.split(factors[:, None], [self.problem.num_classes])
        if np.ptp(self.problem.q, axis=0).any():  # other contexts may change the draws
            of_contexts = np.ones_like(of_contexts)
        rows, h = self.problem.class_embeddings * of_classes, self._batch_problem.h * of_contexts
        changed = replace(self._batch_problem, class_embeddings=rows, h=h)
        before, after = (
            self.results_of_call(each, 0)[0] for each in (self._batch_problem, changed)
        )
        stays = _STAYS + self.measured_rounding[: len(self.centre)].max(initial=0.0)
        return self.follows_seed and bool((np.abs(before - after) <= stays).all())

    def mean_gradient_with_copies(self, copies: int) -> FloatArray:
        """Return the mean gradient (E, d) in h, in batches with `copies` copies of each example."""
        order = np.tile(np.arange(len(self.problem.labels)), copies)
        here = self.problem.select_examples(order, self.problem.labels[order])
        calls = _CALLS_OF_OTHER_SIZE if self.is_random else 1
        found = [self.results_of_call(here, seed)[1] for seed in range(calls)]
        mean: FloatArray = (
            np.mean(found, axis=0).reshape(copies, *self.problem.h.shape).mean(axis=0)
        )
        return mean

    def names_of_marked_results(self, mask: NDArray[np.bool_]) -> list[str]:
        """Return which of ``losses``, ``dh``, ``dW`` and ``db`` have a True in the mask (K,)."""
        examples, d = self.problem.h.shape
        sizes = np.cumsum([examples, examples * d, NUM_VIEWS * d])
        parts = zip(("losses", "dh", "dW", "db"), np.split(mask, sizes), strict=True)
        return [name for name, part in parts if part.any()]

    def means(self) -> Observed:
        """Return the means of all calls so far, with standard errors and bounds on rounding."""
        change, second, third, _ = self._power_sums / self.num_calls
        variances = np.maximum(second - change**2, 0.0)
        thirds = third - 3.0 * change * variances - change**3
        skewness = thirds / np.where(variances > 0.0, variances, 1.0) ** 1.5
        means, examples = self._origin + change, len(self.centre)
        sizes, of_squares = self._term_magnitudes(), np.sqrt(means[-examples:])
        rounding = self._rounding_bounds()
        off = rounding[:examples] * (2.0 * of_squares + rounding[:examples])
        whole = Observed(
            means,
            np.sqrt(variances / max(self.num_calls - 1, 1)),
            np.concatenate([rounding, off]),
            np.concatenate([sizes, 1.0 + of_squares]),
            self.num_calls,
            skewness,
            self._num_sets,
            self.num_looks,
        )
        squares = whole.select_values(slice(-examples, None))
        return replace(whole.select_values(slice(None, -examples)), squared_losses=squares)

    def rounding_bounds_by_result(self, problem: Problem) -> list[float]:
        """Measure the rounding of a problem; return a bound for the losses and each gradient.

        The bounds are 0 if no rounding to few digits was found on the observer's problem.
        """
        examples, d = self.problem.h.shape
        ends = np.cumsum([examples, examples * d, NUM_VIEWS * d])[: self.num_gradients]
        if not len(self.measured_rounding):
            return [0.0] * (1 + self.num_gradients)
        _, allowed = self._measure_rounding(self._rounding_step, problem)
        return [float(part.max()) for part in np.split(allowed, ends)]

    @property
    def in_half_precision(self) -> bool:
        """Whether results are rounded like float16 or bfloat16, as measured or as given."""
        scales = self._term_magnitudes()
        return bool((self._rounding_bounds() > _HALF_PRECISION * scales)[scales > 0.0].any())

    def _rounding_bounds(self) -> FloatArray:
        """Return bounds (K,) on rounding errors: by the type of the results, or as measured."""
        of_type = self.type_rounding * self._term_magnitudes()
        return (
            np.maximum(of_type, self.measured_rounding) if len(self.measured_rounding) else of_type
        )

    def _measured_rounding_bounds(self) -> FloatArray:
        """Measure the rounding errors of the loss; return bounds (K,) on them.

        The type of the results does not show whether intermediate values are float16 or bfloat16.
        Along a line of inputs, with one seed, an exact loss is smooth, so that its sixth
        differences are small and show the rounding. The array is empty if the rounding is not
        larger than the type of the results implies, or so large that draws must depend on the
        inputs.
        """
        scales, allowed, last = self._term_magnitudes(), np.zeros(0), np.inf
        for step in _STEPS:
            deviations, here = self._measure_rounding(step, self._batch_problem)
            sized = scales > 0.0
            found = float((deviations[sized] / scales[sized]).max())
            # stop: the exact loss or its draws change at this step, or nothing is rounded
            if found > min(_MAX_ROUNDING, _MAX_GROWTH_OF_STEP * last) or found <= _MIN_ROUNDING:
                break
            # few digits may mean float16, whose smallest numbers are far apart
            least = _HALF_OF_LEAST if found > _FEW_DIGITS else 0.0
            allowed = np.maximum(here, allowed if len(allowed) else least)
            last, self._rounding_step = found, step
        return allowed

    def _measure_rounding(self, step: float, problem: Problem) -> tuple[FloatArray, FloatArray]:
        """Measure the rounding of a loss from its sixth differences along random lines of inputs.

        Inputs are multiplied by 1 + k * step * (a random number in [-1, 1]) for k = 0 to 6. Returns
        the standard deviations (K,) of rounding errors, and bounds (K,) on the errors.
        """
        rng, given = np.random.default_rng(0), (problem.class_embeddings, problem.h)
        lines = []
        for line in range(_LINES):
            steps = [step * rng.uniform(-1.0, 1.0, array.shape) for array in given]
            points = []
            for k in range(_POINTS):
                rows, h = (x * (1.0 + k * change) for x, change in zip(given, steps, strict=True))
                here = replace(problem, class_embeddings=rows, h=h)
                points.append(self.results_of_call(here, line))
            lines.append([np.array(values) for values in zip(*points, strict=True)])
        deviations, allowed = [], []
        # sum of squares of the coefficients of a sixth difference
        size = comb(2 * _POINTS - 2, _POINTS - 1)
        for values in map(np.array, zip(*lines, strict=True)):  # shape (lines, points, ...)
            part = np.abs(np.diff(values, _POINTS - 1, axis=1)[:, 0]) / np.sqrt(size)
            units = _units_in_last_place(values).max(axis=1)
            if part.shape[1] == self.batch_size:  # one row for each copy of an example
                shape = -1, len(self.problem.labels), *part.shape[2:]
                part, units = part.reshape(shape), units.reshape(shape)
            deviation = (np.quantile(part, _UPPER[0], axis=0) / _UPPER[1]).ravel()
            unit = units.max(axis=0).ravel()
            # the last rounding is off by at most half a unit; earlier roundings explain the rest
            before = np.sqrt(np.maximum(deviation**2 - unit**2 / 12.0, 0.0))
            before = np.maximum(before, _MIN_INNER_ROUNDING * deviation)
            deviations.append(deviation)
            allowed.append(0.5 * unit + _DEVIATIONS * before)
        return np.concatenate(deviations), np.concatenate(allowed)

    def _term_magnitudes(self) -> FloatArray:
        """Return the magnitudes (K,) of the terms of which losses and gradients are sums."""
        problem = self.problem
        losses: FloatArray = 10.0 + np.abs(problem.logits).max(axis=1)
        of_h = np.tile(
            2.0 * problem.tau * np.abs(problem.class_embeddings).max(axis=0), len(losses)
        )
        of_views = 8.0 * problem.weights.max()
        of_classes = np.tile(of_views * problem.tau * np.abs(problem.h).max(axis=0), NUM_VIEWS)
        parts = losses, of_h, of_classes, np.full(NUM_VIEWS, of_views)
        return np.concatenate(parts[: 1 + self.num_gradients])

    def _means_of_call(self, seed: int) -> FloatArray:
        """Call the loss once; return the means over the copies of each example.

        These are K values, followed by the E mean squares of losses minus `centre`.
        """
        problem, order = self.problem, self._example_of_row
        parts = self.results_of_call(self._batch_problem, seed)
        examples = len(problem.labels)
        if np.ptp(parts[0].reshape(REPLICAS, examples), axis=0).any():  # copies do not share draws
            self._num_sets = REPLICAS
        parts.append((parts[0] - np.tile(self.centre, REPLICAS)) ** 2)
        means = [
            part.reshape(REPLICAS, examples, -1).mean(axis=0) if len(part) == len(order) else part
            for part in parts
        ]
        return np.concatenate([mean.ravel() for mean in means])

    def results_of_call(self, problem: Problem, seed: int) -> list[FloatArray]:
        """Call the loss once; return its checked results.

        These are the losses (B,) and, if the loss returns them, the gradient in h (B, d), and the
        projections of the gradients in class vectors (4, d) and biases (4,) on random directions.
        Losses and gradients in h are divided by the weights of their examples.
        """
        h, labels, weights = problem.h, problem.labels, problem.weights
        optional = {"biases": problem.biases, "weights": weights if self._has_weights else None}
        names = [_ARGUMENTS, *(name for name, value in optional.items() if value is not None)]
        # pass copies, because a loss may write into its arguments
        arrays = [value.copy() for value in optional.values() if value is not None]
        first = problem.class_embeddings.copy(), h.copy(), labels.copy(), self.num_sampled, seed
        returned = call_loss(self._loss, ", ".join(names), *first, *arrays)
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
        losses, *gradients = results
        self.num_gradients = len(gradients)
        of_norms = _ROUNDING_OF_UNIT if problem.has_unit_vectors else 0.0
        self.type_rounding = max(self._given_rounding, of_norms)
        parts = [self._checked_result("losses", losses, labels.shape) / weights]
        for (name, shape), value in zip(shapes.items(), gradients, strict=False):
            part = self._checked_result(name, value, shape)
            projected = (
                part / weights[:, None]
                if name == "dh"
                else problem.view_directions.T @ part / len(h)
            )
            parts.append(projected)
        return parts

    def _checked_result(self, name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
        """Return a result of the loss as float64; TypeError or ValueError if it is malformed."""
        try:
            array = np.asarray(value)
        except Exception as error:  # such as from a tensor that needs a gradient
            raise TypeError(
                f"`loss` must return {name} as an array of floats, got {type(value).__name__}, "
                f"which numpy.asarray does not take: {error}"
            ) from error
        if array.dtype.name == "bfloat16":  # the type of ml_dtypes, which JAX returns
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
        # of half precision allow only the last rounding: earlier roundings are measured
        self.type_rounding = max(
            self.type_rounding,
            unit * (_MAX_ERROR_UNITS if unit < _MAX_FULL_PRECISION_UNIT else 0.5),
        )
        return array.astype(np.float64)
