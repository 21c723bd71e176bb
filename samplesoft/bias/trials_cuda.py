"""Trials of sampled softmax on a CUDA device."""

from __future__ import annotations

import numpy as np

from samplesoft._cuda import empty, launch_threads, launch_warps, to_device
from samplesoft._device.arrays_cuda import equal_runs, filled
from samplesoft._jit import chunks
from samplesoft._validation import FloatArray
from samplesoft.kernels.bias import trials_cuda as kernels
from samplesoft.kernels.bias.trials import Plan

_VALUES = 1 << 22  # numbers in the results of trials that run side by side


class CudaTrials:
    """Runs the trials of one example, each class a bin of its own."""

    @staticmethod
    def run(
        plan: Plan, center: FloatArray, num_trials: int, key: np.uint64
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run the trials of one example: its plan, and the full softmax `center` (n,).

        Returns for each class (n, 3), over the trials that draw it, the sum of p' - center, the sum
        of its squares, and their number; then, each (1,), the mean of the loss difference and the
        sum of squared deviations from it.
        """
        n = len(center)
        arrays = {k: to_device(x) for k, x in plan._asdict().items() if isinstance(x, np.ndarray)}
        there = plan._replace(**arrays)
        capacity = min(n, 1 + len(plan.fixed) + plan.stride) + 1
        at_once = max(1, min(num_trials, _VALUES // capacity))
        places = 1 << (2 * capacity).bit_length()  # of a hash set that is never half full
        seen, sums = filled((at_once, 2, places), np.int32(0)), filled((n, 3), 0.0)
        where = to_device(center)
        mean = squares = 0.0
        for part in chunks(num_trials, at_once):
            size = part.stop - part.start
            ids, counts = (empty((size, capacity), np.int32) for _ in range(2))
            values = empty((size, capacity), np.float64)
            rest = empty((size, capacity if plan.jackknife else 1), np.float64)
            losses, classes = empty(size, np.float64), empty((size, capacity), np.int64)
            drawn = there, key, part.start, where, (seen, ids, counts, values, rest)
            launch_threads(kernels.run_trials, size, *drawn, losses, classes)
            unique, _, order, starts = equal_runs(classes.reshape(-1), n + 1)
            runs = unique, starts, order, values.reshape(-1)
            launch_warps(kernels.add_deviations, unique.shape[0], *runs, sums)
            found = losses.copy_to_host()
            change = found.mean() - mean
            mean += change * (size / part.stop)
            squares += float(found.var() * size + change**2 * (part.start * size / part.stop))
        return sums.copy_to_host(), np.array([mean]), np.array([squares])
