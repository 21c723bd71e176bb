"""`Observer`: the means of a loss over many calls, and bounds on their rounding errors."""

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

_MIN_CALLS_OF_LOOK = 64  # calls before the first test; their number doubles for each next test
_MAX_EQUAL_SEEDS = 500  # a loss with equal results for this number of seeds is deterministic
_ARGUMENTS = "class_embeddings, h, labels, num_sampled, seed"
# number of calls that estimate the mean losses, which are subtracted from losses before squaring
_NUM_PILOT_CALLS = 32
# A loss with a memory is found by rounds of calls: some with other seeds, then repeats of one call.
_NUM_ROUNDS = 3
_NUM_REPEATS = 6
_NUM_CALLS_OF_OTHER_SIZE = 128  # number of calls with batches of another size
# largest unit in the last place of a result type that also bounds the earlier rounding errors;
# results with a larger unit are half precision, and their earlier rounding is measured
_MAX_FULL_PRECISION_UNIT = 1e-6
# allowed error of a loss in float32 or float64, in units in the last place of its type
_MAX_ERROR_UNITS = 64.0
# The rounding of a loss is measured at equidistant points on random lines of inputs.
_NUM_LINES = 4  # number of lines
_NUM_POINTS = 7  # points on each line
# relative distances of the points that are tried in turn; half precision, whose numbers are far
# apart, needs the larger ones
_LINE_STEPS = (4e-3, 0.016, 0.064)
_MAX_DEVIATIONS = 6.0  # bound on a rounding error, in measured standard deviations
# Sixth differences of a smooth loss grow by 4**6 from one of the `_LINE_STEPS` to the next, and
# differences that are rounding do not grow. Above this factor they do not show rounding.
_MAX_GROWTH_OF_STEP = 8.0
# values with more significant bits are not half precision: float16 has 11 bits, bfloat16 has 8
_MAX_HALF_PRECISION_BITS = 16
# smallest fraction of a deviation that is attributed to the rounding of intermediate values
_MIN_INNER_ROUNDING = 0.25
# A standard deviation is estimated by this quantile of |x| over lines and copies, divided by the
# quantile of a standard normal |x|. Unlike a maximum, it ignores a few points where a loss jumps.
_QUANTILE = 0.8
_NORMAL_QUANTILE = 1.2816
# Largest relative rounding error that is taken for rounding, four units of bfloat16. Beyond it, the
# loss or its draws must have changed.
_MAX_ROUNDING = 2.0**-6
# Up to this relative rounding error, the type of the results explains the rounding.
_MIN_ROUNDING = 1e-9
_MIN_HALF_PRECISION_ROUNDING = 1e-5  # a smaller relative rounding error may be that of float32
_HALF_OF_MIN_FLOAT16 = 2.0**-25  # half of the smallest positive float16
# units in the last place at 1 of the types in which a loss may compute some of its terms
HALF_PRECISION_UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
# a result with a larger rounding error, relative to the terms of the loss, is in half precision
_MIN_HALF_PRECISION_ERROR = 1e-4
# If vectors get other lengths, a loss that divides them by their norms may change by this number of
# nats: it may add 1e-6 to the norms.
_MAX_CHANGE_BY_LENGTH = 1e-3
# allowed relative error of a loss for unit vectors, because it may add 1e-6 to their norms
_ROUNDING_OF_UNIT_VECTORS = 2e-6


@dataclass(frozen=True)
class Observed:
    """Means of the K values of a loss over its calls, with the statistics for testing them.

    The K values are the losses of E examples; then, if the loss returns gradients, the E d entries
    of the gradients in h, and the sums over classes of the gradients in class vectors and in
    biases, each with 4 sets of random weights of the classes.

    Attributes
    ----------
    means, stderrs : ndarray, shape (K,)
        Means over the calls, and their standard errors.
    rounding_bounds : ndarray, shape (K,)
        Bounds on the rounding errors of the means.
    magnitudes : ndarray, shape (K,)
        Magnitudes of the terms that are added up to the values; rounding errors are relative to
        these.
    num_calls : int
        Number of calls.
    skewness : ndarray, shape (K,)
        Skewness of the values of single calls.
    num_sets : int
        Number of independent sets of draws for an example in one call: 1 if all copies of the
        example in the batch share a set, otherwise the number of copies.
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
    """Return the unit in the last place of each value, for values in half precision.

    The number of bits is the smallest with which all values are exact. If it is more than 16, the
    values are not in half precision, and zeros are returned.
    """
    mantissas, exponents = np.frexp(values)
    has_few_bits = (mantissas * 2.0**_MAX_HALF_PRECISION_BITS) % 1.0 == 0.0
    if not has_few_bits.all():
        return np.zeros_like(values)
    num_bits = next(
        b
        for b in range(1, _MAX_HALF_PRECISION_BITS + 1)
        if ((mantissas * 2.0**b) % 1.0 == 0.0).all()
    )
    return np.where(values == 0.0, 0.0, np.ldexp(1.0, exponents - num_bits))


class Observer:
    """Calls a loss on a problem with many seeds, and adds up its results and their powers.

    A batch contains 16 copies of each example; adjacent rows are different examples. Means are
    over the calls and the copies. The constructor makes some calls to find out whether the loss
    draws at random, and how its results are rounded.

    Parameters
    ----------
    loss : callable
        The loss, which draws classes by itself; see `check_loss`.
    problem : Problem
        The examples.
    num_sampled : int
        Number of draws m that is passed to the loss.
    key : uint64
        Seed of the generator that makes the seeds for the loss.
    max_calls : int
        Maximum number of calls for the means.
    relative_rounding : float
        Unit in the last place of the type in which some terms of the loss are computed; 0 if
        unknown.
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
        self._loss = loss
        self.problem = problem
        self.num_sampled = num_sampled
        self.max_calls = max_calls
        self.num_looks = 1 + ((max_calls - 1) // _MIN_CALLS_OF_LOOK).bit_length() + MAX_EXTREMES

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

        # measured bounds (K,) on rounding errors; empty if the type of the results explains the
        # errors
        self.measured_rounding = np.zeros(0)
        self._rounding_step = 0.0  # the last of `_LINE_STEPS` that measured rounding

        # Call with the same seed twice, to find out whether draws depend on the seed only, and with
        # other seeds, to find out whether the loss is random.
        first_means = self._means_of_call(0)
        self.follows_seed = bool(np.array_equal(first_means, self._means_of_call(0)))
        if self.follows_seed:
            self.measured_rounding = self._measured_rounding_bounds()

        other_means = (self._means_of_call(seed) for seed in range(1, _MAX_EQUAL_SEEDS))
        num_values = len(first_means) - len(self.centre)  # the squared losses come last
        rounding_bounds = self._rounding_bounds()

        # Differences below the rounding error do not show random draws: terms may only have been
        # added in another order.
        self.is_random = any(
            (np.abs(first_means - means)[:num_values] > rounding_bounds).any()
            for means in other_means
        )

        self.num_calls = 0
        # hashes of the results of all calls; fewer hashes than calls show that results repeat
        self._result_hashes: set[int] = set()

        pilot_means = [
            self._means_of_call(seed) for seed in range(min(_NUM_PILOT_CALLS, 1 + max_calls // 16))
        ]
        self.centre = np.mean(pilot_means, axis=0)[: len(problem.labels)]
        self._origin = self._means_of_call(0)  # is subtracted before powers are added up

        # Whether the results for a seed are the same after calls with other seeds. Measured bounds
        # do not hold here, because a loss with a memory may be taken for one with rough rounding.
        changes = np.abs(first_means - self._origin)[:num_values]
        self._is_repeatable = not (changes > self._type_bounds()).any()

        # With y = x - origin for the values x of a call: sums over the calls of y, y**2, y**3, and
        # y times the y of the previous call.
        self._power_sums = np.zeros((4, len(self._origin)))
        self._last_change = np.zeros_like(self._origin)

    def run_calls(self, num_calls: int) -> None:
        """Call the loss `num_calls` more times."""
        for seed in self._seeds.integers(0, 2**31 - 1, num_calls):
            change = self._means_of_call(int(seed)) - self._origin
            self._result_hashes.add(hash(change.tobytes()))
            self._power_sums += change, change**2, change**3, change * self._last_change
            self._last_change = change
            self.num_calls += 1

    @property
    def calls_before_next_look(self) -> int:
        """Number of calls before the next test of means: as many as so far, but at least 64."""
        return min(max(_MIN_CALLS_OF_LOOK, self.num_calls), self.max_calls - self.num_calls)

    @property
    def num_results(self) -> int:
        """Number of calls with different results."""
        return len(self._result_hashes)

    @property
    def autocorrelation(self) -> float:
        """Correlation of the losses of a call with the losses of the next call."""
        means, mean_squares, _, products = self._power_sums[:, : len(self.centre)] / self.num_calls
        variance = mean_squares - means**2
        products = products * self.num_calls / max(self.num_calls - 1, 1) - means**2
        return float(products.sum() / variance.sum()) if variance.sum() > 0.0 else 0.0

    @property
    def num_sets(self) -> float:
        """Estimated number of independent sets of draws among the 16 copies of an example.

        The estimate is the variance of single losses divided by the variance of their mean over
        the copies; it is 0 if nothing is random.
        """
        observed = self.means()
        num_examples = len(self.centre)
        if observed.squared_losses is None or not self.is_random:
            return 0.0

        # with independent draws, the mean over 16 copies has 1/16 of the variance of a single loss
        single_variances = (
            observed.squared_losses.means - (observed.means[:num_examples] - self.centre) ** 2
        )
        call_variances = observed.stderrs[:num_examples] ** 2 * (self.num_calls - 1)
        if not call_variances.sum() > 0.0:
            return 0.0
        return float(single_variances.sum() / call_variances.sum())

    @property
    def has_negatives_of_batch(self) -> bool:
        """Whether the loss of an example changes with the labels of other examples."""
        half = len(self._example_of_row) // 2
        other_labels = self._batch_problem.labels.copy()
        other_labels[half:] = other_labels[0]
        changed = self.problem.select_examples(self._example_of_row, other_labels)
        before, after = (
            self.results_of_call(problem, 0)[0][:half] for problem in (self._batch_problem, changed)
        )
        return not np.allclose(before, after, rtol=1e-4, atol=1e-4)

    @property
    def drift(self) -> float:
        """How far losses drift while a call is repeated, if they do so like moving averages; or 0.

        In each round, each loss must move in one direction, by steps that get smaller in total.
        Losses whose draws do not follow the seed move back and forth.
        """
        if self._is_repeatable:
            return 0.0

        bounds = np.tile(self._type_bounds()[: len(self.centre)], REPLICAS)
        drifts = []
        for repeat in range(_NUM_ROUNDS):
            for seed in range(1, _NUM_REPEATS):
                self.results_of_call(self._batch_problem, repeat * _NUM_REPEATS + seed)
            losses = [self.results_of_call(self._batch_problem, 0)[0] for _ in range(_NUM_REPEATS)]
            steps = np.diff(losses, axis=0)
            moves_back = (steps[1:] * steps[:-1] < 0.0) & (np.abs(steps[1:]) > bounds)
            sizes = np.abs(steps).sum(axis=1)

            # draws of the last call that are used again change the losses once
            if moves_back.any() or not (sizes[0] > sizes[-1] and sizes[1] > bounds.sum()):
                return 0.0
            drifts.append(float(np.abs(losses[-1] - losses[0]).max()))

        return max(drifts)

    @property
    def divides_by_norms(self) -> bool:
        """Whether the losses for one seed stay the same if the lengths of the vectors change."""
        # each vector gets another factor, because a common factor is like another temperature
        factors = np.random.default_rng(0).uniform(
            0.5, 2.0, self.problem.num_classes + self.batch_size
        )
        class_factors, context_factors = np.split(factors[:, None], [self.problem.num_classes])
        if np.ptp(self.problem.q, axis=0).any():  # q depends on contexts: do not change contexts
            context_factors = np.ones_like(context_factors)

        rows = self.problem.class_embeddings * class_factors
        h = self._batch_problem.h * context_factors
        changed = replace(self._batch_problem, class_embeddings=rows, h=h)
        before, after = (
            self.results_of_call(problem, 0)[0] for problem in (self._batch_problem, changed)
        )
        rounding = self.measured_rounding[: len(self.centre)].max(initial=0.0)
        max_change = _MAX_CHANGE_BY_LENGTH + rounding

        # the value S / U of a loss that ignores its memory is 1 for all vectors
        is_constant = self.problem.memory is not None and np.ptp(before) <= max_change
        is_equal = bool((np.abs(before - after) <= max_change).all())
        return self.follows_seed and is_equal and not is_constant

    def mean_gradient_with_copies(self, copies: int) -> FloatArray:
        """Return the mean gradient (E, d) in h, in batches with `copies` copies of each example."""
        example_ids = np.tile(np.arange(len(self.problem.labels)), copies)
        batch = self.problem.select_examples(example_ids, self.problem.labels[example_ids])
        num_calls = _NUM_CALLS_OF_OTHER_SIZE if self.is_random else 1
        gradients = [self.results_of_call(batch, seed)[1] for seed in range(num_calls)]
        mean: FloatArray = (
            np.mean(gradients, axis=0).reshape(copies, *self.problem.h.shape).mean(axis=0)
        )
        return mean

    def names_of_marked_results(self, mask: NDArray[np.bool_]) -> list[str]:
        """Return the names of the results with a True in the mask (K,): losses, dh, dW, db."""
        num_examples, d = self.problem.h.shape
        offsets = np.cumsum([num_examples, num_examples * d, NUM_VIEWS * d])
        named_marks = zip(("losses", "dh", "dW", "db"), np.split(mask, offsets), strict=True)
        return [name for name, marks in named_marks if marks.any()]

    def means(self) -> Observed:
        """Return the means over all calls so far, with standard errors and rounding bounds."""
        change, second_moments, third_moments, _ = self._power_sums / self.num_calls
        variances = np.maximum(second_moments - change**2, 0.0)
        third_central = third_moments - 3.0 * change * variances - change**3
        skewness = third_central / np.where(variances > 0.0, variances, 1.0) ** 1.5

        means = self._origin + change
        num_examples = len(self.centre)
        magnitudes = self._term_magnitudes()

        # an error e of a loss x changes x**2 by at most e (2 |x| + e)
        root_mean_squares = np.sqrt(means[-num_examples:])
        rounding = self._rounding_bounds()
        rounding_of_squares = rounding[:num_examples] * (
            2.0 * root_mean_squares + rounding[:num_examples]
        )

        all_values = Observed(
            means,
            np.sqrt(variances / max(self.num_calls - 1, 1)),
            np.concatenate([rounding, rounding_of_squares]),
            np.concatenate([magnitudes, 1.0 + root_mean_squares]),
            self.num_calls,
            skewness,
            self._num_sets,
            self.num_looks,
        )
        squares = all_values.select_values(slice(-num_examples, None))

        return replace(all_values.select_values(slice(None, -num_examples)), squared_losses=squares)

    def rounding_bounds_by_result(self, problem: Problem) -> list[float]:
        """Measure bounds on the rounding errors of a loss on a problem, one for each result.

        The first bound is for the losses, the others are for the gradients. All are 0 if the
        constructor measured no rounding that the type of the results does not explain.
        """
        num_examples, d = self.problem.h.shape
        offsets = np.cumsum([num_examples, num_examples * d, NUM_VIEWS * d])[: self.num_gradients]
        if not len(self.measured_rounding):
            return [0.0] * (1 + self.num_gradients)
        _, allowed = self._measure_rounding(self._rounding_step, problem)
        return [float(bounds.max()) for bounds in np.split(allowed, offsets)]

    @property
    def in_half_precision(self) -> bool:
        """Whether results have rounding errors as large as those of float16 or bfloat16."""
        scales = self._term_magnitudes()
        return bool(
            (self._rounding_bounds() > _MIN_HALF_PRECISION_ERROR * scales)[scales > 0.0].any()
        )

    def _rounding_bounds(self) -> FloatArray:
        """Return bounds (K,) on rounding errors, by the type of the results and as measured."""
        type_bounds = self._type_bounds()
        if not len(self.measured_rounding):
            return type_bounds
        return np.maximum(type_bounds, self.measured_rounding)

    def _type_bounds(self) -> FloatArray:
        """Return bounds (K,) on the rounding errors that the type of the results explains."""
        return self.type_rounding * self._term_magnitudes()

    def _measured_rounding_bounds(self) -> FloatArray:
        """Measure the rounding errors of the loss, and return bounds (K,) on the errors.

        The type of the results does not show whether intermediate values are float16 or bfloat16.
        Along a line of inputs, with one seed, an exact loss is smooth, and its sixth differences
        are small. What is left in the sixth differences is rounding. The array is empty if the
        rounding errors are tiny, or so large that draws must depend on the inputs.
        """
        magnitudes = self._term_magnitudes()
        bounds = np.zeros(0)
        last_deviation = np.inf
        for step in _LINE_STEPS:
            deviations, step_bounds = self._measure_rounding(step, self._batch_problem)
            has_magnitude = magnitudes > 0.0
            max_deviation = float((deviations[has_magnitude] / magnitudes[has_magnitude]).max())

            # Stop if deviations are too large for rounding, because the exact loss or its draws
            # change, or if they are too small to matter.
            if (
                max_deviation > min(_MAX_ROUNDING, _MAX_GROWTH_OF_STEP * last_deviation)
                or max_deviation <= _MIN_ROUNDING
            ):
                break

            # the loss may use float16, which rounds tiny values to a multiple of 2**-24
            min_bound = 0.0
            if max_deviation > _MIN_HALF_PRECISION_ROUNDING:
                min_bound = _HALF_OF_MIN_FLOAT16

            bounds = np.maximum(step_bounds, bounds if len(bounds) else min_bound)

            last_deviation = max_deviation
            self._rounding_step = step

        return bounds

    def _measure_rounding(self, step: float, problem: Problem) -> tuple[FloatArray, FloatArray]:
        """Return standard deviations (K,) of rounding errors, and bounds (K,) on the errors.

        They are measured by sixth differences of the loss along random lines of inputs: the entries
        of the inputs are multiplied by 1 + k * step * (a random number in [-1, 1]), k = 0 to 6.
        """
        rng = np.random.default_rng(0)
        inputs = (problem.class_embeddings, problem.h)
        lines = []
        for line in range(_NUM_LINES):
            steps = [step * rng.uniform(-1.0, 1.0, array.shape) for array in inputs]

            points = []
            for k in range(_NUM_POINTS):
                rows, h = (
                    array * (1.0 + k * change) for array, change in zip(inputs, steps, strict=True)
                )
                moved = replace(problem, class_embeddings=rows, h=h)
                points.append(self.results_of_call(moved, line))

            lines.append([np.array(values) for values in zip(*points, strict=True)])

        deviations = []
        bounds = []

        # sum of the squared coefficients of a sixth difference, by which it multiplies a variance
        square_sum = comb(2 * _NUM_POINTS - 2, _NUM_POINTS - 1)

        for values in map(np.array, zip(*lines, strict=True)):  # shape (lines, points, ...)
            differences = np.diff(values, _NUM_POINTS - 1, axis=1)[:, 0]
            differences = np.abs(differences) / np.sqrt(square_sum)
            units = _units_in_last_place(values).max(axis=1)

            # put the copies of an example on an axis of their own
            if differences.shape[1] == self.batch_size:
                shape = -1, len(self.problem.labels), *differences.shape[2:]
                differences = differences.reshape(shape)
                units = units.reshape(shape)

            deviation = (np.quantile(differences, _QUANTILE, axis=0) / _NORMAL_QUANTILE).ravel()
            unit = units.max(axis=0).ravel()

            # The rounding of the result has an error of at most half a unit in the last place, and
            # a variance of unit**2 / 12. The rest of the variance is from intermediate values.
            inner_deviation = np.sqrt(np.maximum(deviation**2 - unit**2 / 12.0, 0.0))
            inner_deviation = np.maximum(inner_deviation, _MIN_INNER_ROUNDING * deviation)
            deviations.append(deviation)
            bounds.append(0.5 * unit + _MAX_DEVIATIONS * inner_deviation)

        return np.concatenate(deviations), np.concatenate(bounds)

    def _term_magnitudes(self) -> FloatArray:
        """Return the magnitudes (K,) of the terms that add up to losses and gradients."""
        problem = self.problem
        losses: FloatArray = 10.0 + np.abs(problem.logits).max(axis=1)
        h_gradients = np.tile(
            2.0 * problem.tau * np.abs(problem.class_embeddings).max(axis=0), len(losses)
        )

        view_gradient = 8.0 * problem.weights.max()
        class_gradients = np.tile(
            view_gradient * problem.tau * np.abs(problem.h).max(axis=0), NUM_VIEWS
        )

        magnitudes = losses, h_gradients, class_gradients, np.full(NUM_VIEWS, view_gradient)
        return np.concatenate(magnitudes[: 1 + self.num_gradients])

    def _means_of_call(self, seed: int) -> FloatArray:
        """Call the loss once, and return the means of its results over the copies of an example.

        The first K entries are the losses and gradients. The last E entries are the means of
        ``(loss - centre)**2``.
        """
        problem = self.problem
        example_ids = self._example_of_row
        results = self.results_of_call(self._batch_problem, seed)
        num_examples = len(problem.labels)

        # the copies of an example have their own draws if their losses differ
        if np.ptp(results[0].reshape(REPLICAS, num_examples), axis=0).any():
            self._num_sets = REPLICAS

        results.append((results[0] - np.tile(self.centre, REPLICAS)) ** 2)

        # losses and gradients in h have a row for each example of the batch, other gradients do not
        means = []
        for result in results:
            if len(result) == len(example_ids):
                result = result.reshape(REPLICAS, num_examples, -1).mean(axis=0)
            means.append(result.ravel())

        return np.concatenate(means)

    def results_of_call(self, problem: Problem, seed: int) -> list[FloatArray]:
        """Call the loss once, check its results, and return them as a list.

        The list contains the losses (B,) and, as far as the loss returns gradients, the gradient in
        h (B, d), the gradient in class vectors as sums over classes with random weights (4, d), and
        the gradient in biases likewise (4,). Losses and gradients in h are divided by the weights
        of their examples.
        """
        h = problem.h
        labels = problem.labels
        weights = problem.weights
        optional = {
            "biases": problem.biases,
            "log_sums": None if problem.memory is None else problem.memory.log_sums,
            "weights": weights if self._has_weights else None,
        }
        names = [_ARGUMENTS, *(name for name, value in optional.items() if value is not None)]

        # pass copies, because a loss may write into its arguments
        optional_arrays = [value.copy() for value in optional.values() if value is not None]
        arguments = problem.class_embeddings.copy(), h.copy(), labels.copy(), self.num_sampled, seed
        returned = call_loss(self._loss, ", ".join(names), *arguments, *optional_arrays)

        returned_values = returned if isinstance(returned, (tuple, list)) else (returned,)

        shapes = {"dh": h.shape, "dW": problem.class_embeddings.shape}
        if problem.biases is not None:
            shapes["db"] = problem.biases.shape
        if not 0 < len(returned_values) <= 1 + len(shapes):
            raise ValueError(
                "`loss` must return the losses, or a tuple (losses, dh), (losses, dh, dW) or, with "
                f"biases, (losses, dh, dW, db), got a {type(returned).__name__} of "
                f"{len(returned_values)}."
            )

        losses, *gradients = returned_values
        self.num_gradients = len(gradients)
        norm_rounding = _ROUNDING_OF_UNIT_VECTORS if problem.has_unit_vectors else 0.0
        self.type_rounding = max(self._given_rounding, norm_rounding)
        checked = [self._checked_result("losses", losses, labels.shape) / weights]

        for (name, shape), value in zip(shapes.items(), gradients, strict=False):
            gradient = self._checked_result(name, value, shape)
            if name == "dh":
                checked.append(gradient / weights[:, None])
            else:
                checked.append(problem.view_directions.T @ gradient / len(h))

        return checked

    def _checked_result(self, name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
        """Return a result of the loss as float64; raise an error if it is malformed."""
        try:
            array = np.asarray(value)
        except Exception as error:  # for example, a PyTorch tensor with requires_grad
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
                "look for a masked logit in a mean, a product 0 * inf, or log of 0"
                + (
                    ", also where `log_sums` is -inf, as for a new example."
                    if self.problem.memory is not None
                    else "."
                )
            )

        unit = float(np.finfo(array.dtype).eps)

        # For half precision, bound only the rounding of the result itself by its type: the rounding
        # of intermediate values is measured.
        self.type_rounding = max(
            self.type_rounding,
            unit * (_MAX_ERROR_UNITS if unit < _MAX_FULL_PRECISION_UNIT else 0.5),
        )

        return array.astype(np.float64)
