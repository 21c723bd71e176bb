"""Trials of sampled softmax on the processor, on all threads."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.bias.trials import Plan, run_block

_MAX_BLOCKS = 64


class HostTrials:
    """Runs the trials of one example."""

    @staticmethod
    def run(
        plan: Plan,
        center: FloatArray,
        num_trials: int,
        key: np.uint64,
        bin_of: IntArray | None = None,
        directions: FloatArray | None = None,
        direction_center: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run all trials and add up what they give: see `run_block` for the arguments.

        Returns sums (num_bins, 3), over the trials that draw from a bin of p' - center, of its
        squares and of 1; and the mean of the loss difference and of the projections (1 + P,), with
        the sums of squared deviations from it.
        """
        n = len(center)
        bin_of = np.zeros(0, np.int64) if bin_of is None else bin_of
        directions = np.zeros((n, 0)) if directions is None else directions
        direction_center = np.zeros(0) if direction_center is None else direction_center

        def block(trials: slice) -> tuple[FloatArray, FloatArray]:
            first, last = trials.start, trials.stop
            return run_block(plan, key, first, last, bin_of, center, directions, direction_center)

        # a block allocates and returns O(n) numbers: have as many as its draws pay for
        num_blocks = min(
            max(num_trials * plan.stride // (8 * len(directions)), 1), _MAX_BLOCKS, num_trials
        )
        parts = chunks(num_trials, -(-num_trials // num_blocks))
        sums = np.zeros((n, 3))
        mean = np.zeros(1 + directions.shape[1])
        squares = np.zeros_like(mean)
        for trials, (block_sums, (block_mean, block_squares)) in zip(
            parts, thread_map(block, parts), strict=True
        ):
            sums += block_sums[:, 1:]
            size = trials.stop - trials.start
            change = block_mean - mean
            mean += change * (size / trials.stop)
            with np.errstate(over="ignore"):  # losses of 1e154 have no squares in float64
                squares += block_squares
                if trials.start:
                    squares += change**2 * (trials.start * size / trials.stop)
        return sums, mean, squares
