"""Measurement of one setting: exact bias, error of gradients, and time of draws and of steps."""

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

# A function is timed until both minima, or one of the maxima, have been reached.
_MIN_TIMED_CALLS = 5
_MIN_TIMED_SECONDS = 0.05
_MAX_TIMED_CALLS = 20
_MAX_TIMED_SECONDS = 1.0

_NUM_GRADIENTS = 8  # number of gradients over which the error is averaged
_LEARNING_RATE = 1e-9  # so small that timed steps do not change the vectors

# max number of logits (examples times classes) of the examples whose bias is computed, unless there
# are only `MIN_BIAS_EXAMPLES`
MAX_BIAS_LOGITS = 4_000_000
MIN_BIAS_EXAMPLES = 4  # min number of examples whose bias is computed
MAX_BIAS_EXAMPLES = 256  # max number of examples whose bias is computed
# Number of examples whose bias is computed first. If a tenth of all contexts have a large bias, the
# probability that 64 examples contain none of them is 0.9^64 = 0.1%. More examples are added if the
# mean bias is too close to its limit.
_NUM_FIRST_BIAS_EXAMPLES = 64
_NUM_STDERRS = 2.0  # number of standard errors between a mean bias and its upper bound

# Parameters of the search for the number of classes at which a step with draws and a step of the
# full softmax take the same time:
_MAX_VECTOR_ENTRIES = 8_000_000  # max number of entries of the timed class vectors
_MAX_SECANT_STEPS = 4  # max number of class counts that are timed
# smallest change of the log class count that is timed; a smaller change is lost in timing noise
_MIN_LOG_SIZE_RATIO = 0.1
# min slope of the log time ratio; a smaller measured slope is mostly noise, and this one is used
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
        Number of draws m for an example, or for the batch if `shared`; None for the full softmax.
    bias : float
        Exact L1 norm of the bias of the gradient in the logits, averaged over the examples.
    bias_stderr : float
        Standard error of this average over the examples; infinite for a single example.
    error : float
        Root mean square error of the gradient in h, from bias and noise together, divided by the
        norm of the gradient of the full softmax.
    draw_seconds, step_seconds : float
        Time of the draws for a batch, and time of a whole step: draws, loss, gradients, optimizer
        and update of the sampler.
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
    def bias_plus_two_stderrs(self) -> float:
        """Upper bound on the mean bias: `bias` plus two standard errors."""
        return self.bias + _NUM_STDERRS * self.bias_stderr

    @property
    def title(self) -> str:
        """Description of the setting in words, such as "unigram, 100 draws shared by the batch"."""
        if self.sampler is None:
            return "the full softmax"
        sharing = "shared by the batch" if self.shared else "for each example"
        return f"{self.sampler}, {self.num_sampled:,} draws {sharing}"


@dataclass(frozen=True)
class Workload:
    """The data of the timed steps, and of the examples whose bias is computed."""

    rows: Rows  # (n, d): class vectors
    h: Rows  # (B, d): contexts of the batch of a timed step
    labels: IntArray  # (B,): labels of this batch
    tau: float  # inverse temperature
    unit_vectors: bool  # whether vectors have norm 1; the layer then normalises them
    # whether separate draws for an example may contain its label, with weight 0
    masked: bool
    bias_logits: FloatArray  # (E, n): logits of the bias examples
    bias_examples: tuple[Rows, IntArray]  # contexts (E, d) and labels (E,) of these examples
    # bias examples are added until the mean bias is clearly above or below this limit; if it is
    # None, only the first `_NUM_FIRST_BIAS_EXAMPLES` are used
    largest_bias: float | None
    executor: Executor | None = None  # computes biases; not used while steps are timed

    def make_layer(
        self, name: str, sampler: Sampler | None, m: int | None, shared: bool
    ) -> SoftmaxLayer:
        """Return a new softmax layer with the class vectors `rows` and the loss `name`.

        The full softmax ignores `sampler`, the number of draws `m`, and `shared`.
        """
        loss = make_loss(name, tau=self.tau, normalize=self.unit_vectors, reduction="sum")
        return SoftmaxLayer(self.rows, loss, sampler, m, shared=None if sampler is None else shared)


def measure_full_softmax(workload: Workload) -> tuple[Setting, FloatArray]:
    """Measure the full softmax; return its `Setting`, and its gradient in the contexts (B, d)."""
    layer = workload.make_layer("full", None, None, False)
    gradient = _context_gradient(layer, workload, 0)
    return Setting(
        None, False, None, 0.0, 0.0, 0.0, 0.0, _min_step_seconds(layer, workload)
    ), gradient


def measure_sampler(
    name: str,
    sampler: Sampler,
    shared: bool,
    draw_counts: list[int],
    workload: Workload,
    full_gradient: FloatArray,
) -> Iterator[Setting]:
    """Measure a sampler; yield a `Setting` for each number of draws m in `draw_counts`.

    `full_gradient` (B, d) is the gradient of the full softmax in the contexts of the batch.
    """
    h, labels = workload.bias_examples
    # if draws may contain the label of an example, these accidental hits are masked
    masks = shared or workload.masked
    scheme, loss = ("masked", "sampled-masked") if masks else ("negatives", "sampled")
    exclude = None if masks else workload.labels

    if shared:
        q = sampler.probs(workload.h, shared=True)
    else:
        q = sampler.probs(h, exclude=None if masks else labels)

    q = np.maximum(q, 1e-300)  # above 0, even if the probabilities of a softmax underflow
    full_square = float((full_gradient**2).sum())

    for m in draw_counts:
        bias, bias_stderr = _mean_bias(workload, q, m, scheme)
        layer = workload.make_layer(loss, sampler, m, shared)

        # mean square error over independent draws, from both bias and noise
        squares = [
            ((_context_gradient(layer, workload, k) - full_gradient) ** 2).sum()
            for k in range(_NUM_GRADIENTS)
        ]
        mean_square = float(np.mean(squares))
        if full_square > 0.0:
            error = np.sqrt(mean_square / full_square)
        else:
            error = np.inf if mean_square else 0.0

        def draw(seed: int, m: int = m) -> None:
            sampler.sample(workload.h, m, exclude=exclude, shared=shared, rng=seed)

        draw_seconds = _min_call_seconds(draw)
        step_seconds = _min_step_seconds(layer, workload)
        yield Setting(name, shared, m, bias, bias_stderr, float(error), draw_seconds, step_seconds)


def _mean_bias(workload: Workload, q: FloatArray, m: int, scheme: str) -> tuple[float, float]:
    """Return the mean over examples of the L1 norm of the bias, and the mean's standard error.

    `q` is the proposal, (1, n) for all examples or (E, n). Examples are added until the mean is
    clearly above or below ``workload.largest_bias``, or all of them have been used.
    """
    labels = workload.bias_examples[1]
    norms = np.empty(0)

    while True:
        # double the number of examples in each round
        stop = min(max(2 * len(norms), _NUM_FIRST_BIAS_EXAMPLES), len(labels))
        next_examples = slice(len(norms), stop)
        proposal = q if len(q) == 1 else q[next_examples]
        result = exact_bias(
            workload.bias_logits[next_examples],
            labels[next_examples],
            proposal,
            m,
            scheme=scheme,
            executor=workload.executor,
        )

        norms = np.append(norms, np.abs(result.bias).sum(axis=1))
        mean = float(norms.mean())
        stderr = float(norms.std(ddof=1) / np.sqrt(len(norms))) if len(norms) > 1 else np.inf

        is_decided = (
            workload.largest_bias is None
            or abs(mean - workload.largest_bias) > _NUM_STDERRS * stderr
        )
        if is_decided or len(norms) == len(labels):
            return mean, stderr


def _context_gradient(layer: SoftmaxLayer, workload: Workload, seed: int) -> FloatArray:
    """Return the gradient (B, d) of the batch's loss in the contexts, for the draws of `seed`."""
    _, cache = layer.forward(workload.h, workload.labels, rng=seed)
    return layer.backward(cache)[0].astype(np.float64)


def _min_step_seconds(layer: SoftmaxLayer, workload: Workload) -> float:
    """Return the shortest time of several training steps, in seconds."""
    optimizer = make_optimizer("adagrad", _LEARNING_RATE)

    def step(seed: int) -> None:
        _, cache = layer.forward(workload.h, workload.labels, rng=seed)
        _, gradients = layer.backward(cache)
        optimizer.step(layer.parameters, gradients)
        layer.update(getattr(gradients["class_embeddings"], "ids", None))

    return _min_call_seconds(step)


def find_crossover(
    setting: Setting, full: Setting, workload: Workload, inputs: SamplerInputs
) -> int | None:
    """Return the number of classes above which a sampled step is faster than a full-softmax step.

    Steps of `setting` and `full` are timed with various numbers of classes, whose vectors are a
    subset of the class vectors, or contain them more than once. Returns None if the result is
    larger than the number of classes that can be timed.
    """
    n, d = workload.rows.shape
    m = setting.num_sampled or 1
    loss = "sampled-masked" if setting.shared or workload.masked else "sampled"

    # The time of a full step is linear in the number of classes, and the time of a sampled step
    # nearly constant. So the ratio of the two measured times gives a good first guess of the class
    # count. From there, the secant method converges fast; it is applied to the log time ratio as a
    # function of the log class count.
    previous_size = n
    log_time_ratio = np.log(full.step_seconds / setting.step_seconds)
    guess = previous_size * np.exp(-log_time_ratio)
    max_size = max(n, _MAX_VECTOR_ENTRIES // d)

    for _ in range(_MAX_SECANT_STEPS):
        size = round(float(np.clip(guess, m // 2 + 2, max_size)))
        # for a smaller change of the class count, the slope would be dominated by timing noise
        if abs(np.log(size / previous_size)) < _MIN_LOG_SIZE_RATIO:
            break

        ids = np.arange(size) * n // size
        resized = replace(workload, rows=workload.rows[ids], labels=workload.labels * size // n)

        # plus 1, because the counts of a subset might all be 0
        counts = None if inputs.counts is None else inputs.counts[ids] + 1.0
        resized_inputs = replace(inputs, class_embeddings=resized.rows, counts=counts)
        sampler = make_sampler(str(setting.sampler), resized_inputs)
        sampled_seconds = _min_step_seconds(
            resized.make_layer(loss, sampler, m, setting.shared), resized
        )
        full_seconds = _min_step_seconds(resized.make_layer("full", None, None, False), resized)
        new_log_time_ratio = np.log(full_seconds / sampled_seconds)

        slope = (new_log_time_ratio - log_time_ratio) / np.log(size / previous_size)
        previous_size = size
        log_time_ratio = new_log_time_ratio
        guess = size * np.exp(-new_log_time_ratio / max(slope, _MIN_SLOPE))

    is_in_range = guess <= max_size and log_time_ratio > -_MIN_SLOPE
    return round(float(guess)) if is_in_range else None


def _min_call_seconds(function: Callable[[int], Any]) -> float:
    """Return the shortest time of several calls ``function(k)``, in seconds.

    A first call is not timed, because it may compile functions. The minimum is taken because other
    processes can only make a call slower.
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
