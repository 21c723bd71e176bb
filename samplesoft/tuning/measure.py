"""Measurement of one setting: exact bias, error of the gradients, time of draws and of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.exact import exact_bias
from samplesoft.losses import make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers.base import Rows, Sampler
from samplesoft.samplers.registry import SamplerInputs, make_sampler

_MIN_TIMED_CALLS = 5  # the fastest counts; a first call, which compiles, does not
_MAX_TIMED_CALLS = 20
_MIN_TIMED_SECONDS = 0.05  # after this time `_MIN_TIMED_CALLS` calls are enough
_MAX_TIMED_SECONDS = 1.0  # after this time a single call is enough
_NUM_GRADIENTS = 8  # number of gradients over which the error is averaged
MAX_BIAS_LOGITS = 4_000_000  # number of logits in the examples of the bias
# Examples of the bias: the first 64 almost never miss hard contexts that are a tenth of all
# (0.9^64 = 0.1%); more are added if the mean is too close to the limit to decide.
MIN_BIAS_EXAMPLES = 4
_FIRST_EXAMPLES = 64
MAX_BIAS_EXAMPLES = 256
_NUM_STDERRS = 2.0  # width of the margin around a mean bias
_LEARNING_RATE = 1e-9  # timed steps must not change the vectors
# Search for the crossover: largest number of entries in class vectors, which are copied to time
# more classes; number of sizes that are timed; smallest log ratio of sizes, and smallest slope,
# that timing noise does not dominate.
_MAX_VECTOR_ENTRIES = 8_000_000
_MAX_SECANT_STEPS = 4
_MIN_LOG_SIZE_RATIO = 0.1
_MIN_SLOPE = 0.5


@dataclass(frozen=True)
class Setting:
    """A sampler with a number of draws, and its measurements.

    Attributes
    ----------
    sampler : str or None
        A key of `samplesoft.samplers.SAMPLERS`; None for the full softmax.
    shared : bool
        Whether a batch shares one set of draws.
    num_sampled : int or None
        Number of draws m for an example, or for the batch.
    bias : float
        Exact L1 norm of the bias of the gradient in the logits, averaged over the examples.
    bias_stderr : float
        Standard error of this average over the examples; infinite for a single example.
    error : float
        Root mean square error, bias and noise, of the gradient in h, relative to its size.
    draw_seconds, step_seconds : float
        Time of the draws of a batch, and of a step: draws, loss, gradients, optimizer, update.
    """

    sampler: str | None
    shared: bool
    num_sampled: int | None
    bias: float
    bias_stderr: float
    error: float
    draw_seconds: float
    step_seconds: float

    @property
    def most_bias(self) -> float:
        """Mean bias plus two standard errors."""
        return self.bias + _NUM_STDERRS * self.bias_stderr

    @property
    def title(self) -> str:
        """Description of the setting, for sentences."""
        if self.sampler is None:
            return "the full softmax"
        sharing = "shared by the batch" if self.shared else "for each example"
        return f"{self.sampler}, {self.num_sampled:,} draws {sharing}"


@dataclass(frozen=True)
class Workload:
    """The data of a step: class vectors (n, d), contexts (B, d), labels (B,), and tau.

    `unit` says that vectors have norm 1 and are kept so. `masked` says that draws for each example
    may contain its label.
    """

    rows: Rows
    h: Rows
    labels: IntArray
    tau: float
    unit: bool
    masked: bool
    logits: FloatArray  # (E, n): logits of the examples for which the bias is computed
    examples: tuple[Rows, IntArray]  # their contexts and labels
    largest_bias: float | None  # examples are added until a bias is clearly above or below this
    executor: Executor | None = None  # computes biases, while nothing is timed

    def layer(
        self, name: str, sampler: Sampler | None, m: int | None, shared: bool
    ) -> SoftmaxLayer:
        """Return a softmax layer with the loss `name`."""
        loss = make_loss(name, tau=self.tau, normalize=self.unit, reduction="sum")
        return SoftmaxLayer(self.rows, loss, sampler, m, shared=None if sampler is None else shared)


def full_setting(work: Workload) -> tuple[Setting, FloatArray]:
    """Return the setting of the full softmax, and its gradient in h (B, d)."""
    layer = work.layer("full", None, None, False)
    gradient = _gradient(layer, work, 0)
    return Setting(None, False, None, 0.0, 0.0, 0.0, 0.0, _step_seconds(layer, work)), gradient


def measure_sampler(
    name: str, sampler: Sampler, shared: bool, sizes: list[int], work: Workload, full: FloatArray
) -> Iterator[Setting]:
    """Yield the measured setting of a sampler for each number of draws m in `sizes`.

    `full` is the gradient of the full softmax.
    """
    h, labels = work.examples
    # where draws may contain the label of an example, such hits are masked
    masks = shared or work.masked
    scheme, loss = ("masked", "sampled-masked") if masks else ("negatives", "sampled")
    exclude = None if masks else work.labels
    if shared:
        q = sampler.probs(work.h, shared=True)
    else:
        q = sampler.probs(h, exclude=None if masks else labels)
    q = np.maximum(q, 1e-300)  # a softmax may underflow
    size = float((full**2).sum())
    for m in sizes:
        bias, bias_stderr = _mean_bias(work, q, m, scheme)
        layer = work.layer(loss, sampler, m, shared)
        # mean square of bias and noise together, as in training
        mean_square = float(
            np.mean(
                [((_gradient(layer, work, k) - full) ** 2).sum() for k in range(_NUM_GRADIENTS)]
            )
        )
        error = np.sqrt(mean_square / size) if size > 0.0 else np.inf if mean_square else 0.0

        def draw(seed: int, m: int = m) -> None:
            sampler.sample(work.h, m, exclude=exclude, shared=shared, rng=seed)

        draw_seconds = _min_seconds(draw)
        step_seconds = _step_seconds(layer, work)
        yield Setting(name, shared, m, bias, bias_stderr, float(error), draw_seconds, step_seconds)


def _mean_bias(work: Workload, q: FloatArray, m: int, scheme: str) -> tuple[float, float]:
    """Return the mean over examples of the L1 norm of the bias, and its standard error."""
    labels = work.examples[1]
    norms = np.empty(0)
    while True:
        next_examples = slice(len(norms), min(max(2 * len(norms), _FIRST_EXAMPLES), len(labels)))
        proposal = q if len(q) == 1 else q[next_examples]
        exact = exact_bias(
            work.logits[next_examples],
            labels[next_examples],
            proposal,
            m,
            scheme=scheme,
            executor=work.executor,
        )
        norms = np.append(norms, np.abs(exact.bias).sum(axis=1))
        mean = float(norms.mean())
        stderr = float(norms.std(ddof=1) / np.sqrt(len(norms))) if len(norms) > 1 else np.inf
        decided = work.largest_bias is None or abs(mean - work.largest_bias) > _NUM_STDERRS * stderr
        if decided or len(norms) == len(labels):
            return mean, stderr


def _gradient(layer: SoftmaxLayer, work: Workload, seed: int) -> FloatArray:
    _, cache = layer.forward(work.h, work.labels, rng=seed)
    return layer.backward(cache)[0].astype(np.float64)


def _step_seconds(layer: SoftmaxLayer, work: Workload) -> float:
    optimizer = make_optimizer("adagrad", _LEARNING_RATE)

    def step(seed: int) -> None:
        _, cache = layer.forward(work.h, work.labels, rng=seed)
        _, gradients = layer.backward(cache)
        optimizer.step(layer.parameters, gradients)
        layer.update(getattr(gradients["class_embeddings"], "ids", None))

    return _min_seconds(step)


def crossover(setting: Setting, full: Setting, work: Workload, inputs: SamplerInputs) -> int | None:
    """Return the number of classes above which a sampled step is faster than a full one.

    Steps of both are timed with a part of the class vectors, or with copies of them. None if the
    crossover is beyond the number of classes that can be timed.
    """
    n, d = work.rows.shape
    m = setting.num_sampled or 1
    loss = "sampled-masked" if setting.shared or work.masked else "sampled"
    # The time of a full step is a constant plus a multiple of the number of classes, and the time
    # of a sampled step is nearly constant. So the first guess is close, and the secant method in
    # log size converges fast.
    last_size = n
    log_time_ratio = np.log(full.step_seconds / setting.step_seconds)
    guess = last_size * np.exp(-log_time_ratio)
    max_size = max(n, _MAX_VECTOR_ENTRIES // d)
    for _ in range(_MAX_SECANT_STEPS):
        size = round(float(np.clip(guess, m // 2 + 2, max_size)))
        if abs(np.log(size / last_size)) < _MIN_LOG_SIZE_RATIO:  # the slope would be noise
            break
        ids = np.arange(size) * n // size
        resized = replace(work, rows=work.rows[ids], labels=work.labels * size // n)
        counts = None if inputs.counts is None else inputs.counts[ids] + 1.0  # never all 0
        made_from = replace(inputs, class_embeddings=resized.rows, counts=counts)
        sampler = make_sampler(str(setting.sampler), made_from)
        sampled = _step_seconds(resized.layer(loss, sampler, m, setting.shared), resized)
        new_log_time_ratio = np.log(
            _step_seconds(resized.layer("full", None, None, False), resized) / sampled
        )
        slope = (new_log_time_ratio - log_time_ratio) / np.log(size / last_size)
        last_size = size
        log_time_ratio = new_log_time_ratio
        guess = size * np.exp(-new_log_time_ratio / max(slope, _MIN_SLOPE))
    return round(float(guess)) if guess <= max_size and log_time_ratio > -_MIN_SLOPE else None


def _min_seconds(function: Callable[[int], Any]) -> float:
    """Return the shortest time of several calls, after one that does not count.

    The minimum is taken because other processes can only slow a call down.
    """
    times: list[float] = []
    for k in range(_MAX_TIMED_CALLS + 1):
        spent = sum(times[1:])
        if spent > _MIN_TIMED_SECONDS and k > _MIN_TIMED_CALLS or spent > _MAX_TIMED_SECONDS:
            break
        start = perf_counter()
        function(k)
        times.append(perf_counter() - start)
    return min(times[1:])
