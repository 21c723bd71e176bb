"""One setting: its exact bias, the error of its gradients, and the time of draws and steps."""

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

_CALLS = 5  # of which the quickest counts, after one that compiles
_MOST_CALLS = 20
_SECONDS_ENOUGH = 0.05  # seconds after which `_CALLS` calls are enough
_MOST_SECONDS = 1.0  # seconds after which one call is enough
_DRAWS = 8  # over which the error of a gradient is averaged
NUMBERS = 4_000_000  # of logits in the examples of the bias
# Examples of the bias: at first so many that hard contexts, a tenth of all, are hardly ever missed
# (0.9^64 = 0.1%), and more where the mean is too near the limit to tell on which side it is.
LEAST = 4
_FIRST_EXAMPLES = 64
MOST = 256
_SURE_STDERRS = 2.0  # standard errors
_LEARNING_RATE = 1e-9  # steps are to cost time and change nothing
# Where sampling pays: numbers in class vectors that are copied to time more classes; how many
# numbers of classes are timed; and logs of their ratios, and slopes, below which noise rules.
_GROWTH = 8_000_000
_TRIES = 4
_NEAR = 0.1
_FLAT = 0.5


@dataclass(frozen=True)
class Setting:
    """A sampler with a number of draws, and what was measured.

    Attributes
    ----------
    sampler : str or None
        A key of `samplesoft.samplers.SAMPLERS`; None for the full softmax.
    shared : bool
        Whether a batch shares one set of draws.
    num_sampled : int or None
        Draws m of an example, or of the batch.
    bias : float
        Exact L1 norm of the bias of the gradient in the logits, in the mean over the examples.
    bias_stderr : float
        Standard error of that mean, for other examples would have another; infinite for one.
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
        """What the bias hardly exceeds: the mean and two standard errors."""
        return self.bias + _SURE_STDERRS * self.bias_stderr

    @property
    def title(self) -> str:
        """The setting in words."""
        if self.sampler is None:
            return "the full softmax"
        whom = "shared by the batch" if self.shared else "for each example"
        return f"{self.sampler}, {self.num_sampled:,} draws {whom}"


@dataclass(frozen=True)
class Workload:
    """What a step works on: class vectors (n, d), contexts (B, d), labels (B,), and tau.

    Vectors that are `unit` have norm 1, and stay so. Where `masked`, draws for each example may
    contain its label.
    """

    rows: Rows
    h: Rows
    labels: IntArray
    tau: float
    unit: bool
    masked: bool
    logits: FloatArray  # (E, n): of the examples for which the bias is computed, or some of them
    examples: tuple[Rows, IntArray]  # their contexts and labels
    largest_bias: float | None  # on which side of it a bias is should be clear
    executor: Executor | None = None  # whose workers compute biases, while nothing is timed

    def layer(
        self, name: str, sampler: Sampler | None, m: int | None, shared: bool
    ) -> SoftmaxLayer:
        """Return a softmax layer with a loss by its name."""
        loss = make_loss(name, tau=self.tau, normalize=self.unit, reduction="sum")
        return SoftmaxLayer(self.rows, loss, sampler, m, shared=None if sampler is None else shared)


def full_setting(work: Workload) -> tuple[Setting, FloatArray]:
    """Return the full softmax, and its gradient in h (B, d)."""
    layer = work.layer("full", None, None, False)
    gradient = _gradient(layer, work, 0)
    return Setting(None, False, None, 0.0, 0.0, 0.0, 0.0, _step_seconds(layer, work)), gradient


def measured(
    name: str, sampler: Sampler, shared: bool, sizes: list[int], work: Workload, full: FloatArray
) -> Iterator[Setting]:
    """Yield what a sampler costs and leaves with each number of draws m of `sizes`.

    `full` is the gradient of the full softmax.
    """
    h, labels = work.examples
    # draws that may hold the label of an example: hits have no weight there
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
        # bias and noise together, as a gradient of training has them
        off = float(
            np.mean([((_gradient(layer, work, k) - full) ** 2).sum() for k in range(_DRAWS)])
        )
        error = np.sqrt(off / size) if size > 0.0 else np.inf if off else 0.0

        def draw(seed: int, m: int = m) -> None:
            sampler.sample(work.h, m, exclude=exclude, shared=shared, rng=seed)

        draw_seconds = _least_seconds(draw)
        step_seconds = _step_seconds(layer, work)
        yield Setting(name, shared, m, bias, bias_stderr, float(error), draw_seconds, step_seconds)


def _mean_bias(work: Workload, q: FloatArray, m: int, scheme: str) -> tuple[float, float]:
    """Return the mean over examples of the L1 norm of the bias, and its standard error."""
    labels = work.examples[1]
    norms = np.empty(0)
    while True:
        more = slice(len(norms), min(max(2 * len(norms), _FIRST_EXAMPLES), len(labels)))
        proposal = q if len(q) == 1 else q[more]
        exact = exact_bias(
            work.logits[more], labels[more], proposal, m, scheme=scheme, executor=work.executor
        )
        norms = np.append(norms, np.abs(exact.bias).sum(axis=1))
        mean = float(norms.mean())
        stderr = float(norms.std(ddof=1) / np.sqrt(len(norms))) if len(norms) > 1 else np.inf
        clear = work.largest_bias is None or abs(mean - work.largest_bias) > _SURE_STDERRS * stderr
        if clear or len(norms) == len(labels):
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

    return _least_seconds(step)


def crossover(setting: Setting, full: Setting, work: Workload, inputs: SamplerInputs) -> int | None:
    """Return from how many classes on a sampled step takes less time than a full one.

    Steps of both are timed with some of the class vectors, or with copies of them; None where those
    would have to be more than can be timed.
    """
    n, d = work.rows.shape
    m = setting.num_sampled or 1
    loss = "sampled-masked" if setting.shared or work.masked else "sampled"
    # A full step takes time in proportion to the classes, and a constant; a sampled one nearly the
    # same with any number. So the first guess is near, and a secant does the rest.
    at = n
    ahead = np.log(full.step_seconds / setting.step_seconds)
    guess = at * np.exp(-ahead)
    most = max(n, _GROWTH // d)
    for _ in range(_TRIES):
        size = round(float(np.clip(guess, m // 2 + 2, most)))
        if abs(np.log(size / at)) < _NEAR:  # a slope between the two would be noise
            break
        ids = np.arange(size) * n // size
        part = replace(work, rows=work.rows[ids], labels=work.labels * size // n)
        counts = None if inputs.counts is None else inputs.counts[ids] + 1.0  # not all 0
        made_from = replace(inputs, class_embeddings=part.rows, counts=counts)
        sampler = make_sampler(str(setting.sampler), made_from)
        sampled = _step_seconds(part.layer(loss, sampler, m, setting.shared), part)
        now = np.log(_step_seconds(part.layer("full", None, None, False), part) / sampled)
        slope = (now - ahead) / np.log(size / at)
        at = size
        ahead = now
        guess = size * np.exp(-now / max(slope, _FLAT))
    return round(float(guess)) if guess <= most and ahead > -_FLAT else None


def _least_seconds(function: Callable[[int], Any]) -> float:
    """Return the least seconds of some calls, after one that does not count.

    What else a machine does can only add to the time of a call.
    """
    times: list[float] = []
    for k in range(_MOST_CALLS + 1):
        spent = sum(times[1:])
        if spent > _SECONDS_ENOUGH and k > _CALLS or spent > _MOST_SECONDS:
            break
        start = perf_counter()
        function(k)
        times.append(perf_counter() - start)
    return min(times[1:])
