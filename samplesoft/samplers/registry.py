"""Samplers by name, for the command line and for the suite that tests all of them.

A new sampler is a file, and a line here that makes one from a `SamplerInputs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from samplesoft._device.select import arrays_on, as_device, require_cpu, to_host
from samplesoft._validation import FloatArray, as_choice, as_counts
from samplesoft.samplers.base import Rows, Sampler
from samplesoft.samplers.fourier import RFSoftmaxSampler
from samplesoft.samplers.frequency import LogUniformSampler, UnigramSampler
from samplesoft.samplers.kernel import PositiveSampler, QuadraticSampler
from samplesoft.samplers.learned import LearnedUnigramSampler
from samplesoft.samplers.mixture import MixtureSampler
from samplesoft.samplers.softmax import SoftmaxSampler
from samplesoft.samplers.static import UniformSampler
from samplesoft.samplers.two_pass import TwoPassSampler


@dataclass(frozen=True)
class SamplerInputs:
    """What a sampler may be made from.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        Class vectors, float32 or float64; of norm 1 for the ``rff`` samplers.
    counts : array_like, shape (n,), or None
        How often each class occurs, in any unit; needed where counts are drawn from.
    tau : float
        Inverse temperature.
    nu : float
        Sharpness of the Gaussian kernel of the ``rff`` samplers.
    num_features : int
        Random frequencies of the ``rff`` samplers, features of ``positive``.
    alpha : float
        Weight of the square of the logit in ``quadratic``.
    power : float
        Distortion of the counts.
    rng : int, numpy.random.Generator or None
        Seed of random features and candidates.
    device : {"cpu", "cuda"}
        Where the sampler works; some have no kernels for CUDA.

    Raises
    ------
    TypeError, ValueError
        If vectors or counts are malformed; the samplers check what they use of the others.
    """

    class_embeddings: Rows
    counts: Any = None
    tau: float = 1.0
    nu: float = 4.0
    num_features: int = 1024
    alpha: float = 100.0
    power: float = 0.75
    rng: int | np.random.Generator | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        arrays = arrays_on(as_device(self.device))
        rows = arrays.float_rows("class_embeddings", self.class_embeddings)
        object.__setattr__(self, "class_embeddings", rows)
        if self.counts is not None:
            object.__setattr__(
                self, "counts", as_counts("counts", to_host(self.counts), rows.shape[0])
            )

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return int(self.class_embeddings.shape[0])


def _counts(inputs: SamplerInputs) -> FloatArray:
    if inputs.counts is None:
        raise ValueError(
            "`counts` must hold how often each class occurs, (n,), for a sampler that draws by "
            "counts, got None; give them, or take another sampler."
        )
    return np.asarray(inputs.counts)


def _learned(inputs: SamplerInputs) -> Sampler:
    """Start as if the counts, of one unit, had been observed, each class once more than that."""
    require_cpu("learned-unigram", inputs.device)
    counts = _counts(inputs) + 1.0
    return LearnedUnigramSampler(len(counts), power=inputs.power, initial=counts)


def _unigram(inputs: SamplerInputs) -> Sampler:
    return UnigramSampler(_counts(inputs), power=inputs.power, device=inputs.device)


def _softmax(inputs: SamplerInputs) -> Sampler:
    return SoftmaxSampler(inputs.class_embeddings, tau=inputs.tau, device=inputs.device)


def _quadratic(inputs: SamplerInputs) -> Sampler:
    require_cpu("quadratic", inputs.device)
    alpha = inputs.alpha * inputs.tau**2
    return QuadraticSampler(inputs.class_embeddings, alpha=alpha, tau=inputs.tau, leaf="kernel")


def _fourier(inputs: SamplerInputs, **options: Any) -> Sampler:
    return RFSoftmaxSampler(
        inputs.class_embeddings,
        nu=inputs.nu,
        num_features=inputs.num_features,
        tau=inputs.tau,
        rng=inputs.rng,
        device=inputs.device,
        **options,
    )


def _paper_fourier(frequencies: str) -> Callable[[SamplerInputs], Sampler]:
    return lambda inputs: _fourier(inputs, frequencies=frequencies, leaf="kernel", leaf_size=1)


def _positive(inputs: SamplerInputs) -> Sampler:
    return PositiveSampler(
        inputs.class_embeddings,
        num_features=inputs.num_features,
        tau=inputs.tau,
        leaf="kernel",
        rng=inputs.rng,
        device=inputs.device,
    )


def _two_pass(inputs: SamplerInputs) -> Sampler:
    """Take as many candidates as an eighth of the classes, at least 16, by their counts."""
    require_cpu("two-pass", inputs.device)
    rows = inputs.class_embeddings
    num = max(16, inputs.num_classes // 8)
    return TwoPassSampler(
        _unigram(inputs), rows, num_candidates=num, tau=inputs.tau, rng=inputs.rng
    )


def _mixture(inputs: SamplerInputs) -> Sampler:
    """Mix a sampler that follows the model with one that bounds the importance weights."""
    require_cpu("mixture", inputs.device)
    return MixtureSampler(_fourier(inputs), _unigram(inputs))


SAMPLERS: dict[str, Callable[[SamplerInputs], Sampler]] = {
    "uniform": lambda inputs: UniformSampler(inputs.num_classes, device=inputs.device),
    "log-uniform": lambda inputs: LogUniformSampler(inputs.num_classes, device=inputs.device),
    "unigram": _unigram,
    "learned-unigram": _learned,
    "softmax": _softmax,
    "quadratic": _quadratic,
    "rff": _paper_fourier("iid"),
    "rff:orthogonal": _paper_fourier("orthogonal"),
    "rff:structured": _paper_fourier("structured"),
    "rff+softmax-leaf": _fourier,
    "positive": _positive,
    "two-pass": _two_pass,
    "mixture": _mixture,
}


@cache
def needs_unit_vectors(name: str) -> bool:
    """Return whether a sampler takes class vectors of norm 1 only.

    Parameters
    ----------
    name : str
        A key of `SAMPLERS`.

    Returns
    -------
    bool
        Whether it refuses others.

    Examples
    --------
    >>> needs_unit_vectors("rff"), needs_unit_vectors("softmax")
    (True, False)
    """
    longer = 2.0 * np.eye(2, dtype=np.float32)
    try:
        make_sampler(name, SamplerInputs(longer, np.ones(2), num_features=2, rng=0))
    except ValueError:
        return True
    return False


def make_sampler(name: str, inputs: SamplerInputs) -> Sampler:
    """Make a sampler by its name in `SAMPLERS`.

    Parameters
    ----------
    name : str
        A key of `SAMPLERS`.
    inputs : SamplerInputs
        What it is made from.

    Returns
    -------
    Sampler
        A new sampler.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or the sampler refuses the inputs.

    Examples
    --------
    >>> inputs = SamplerInputs(class_embeddings=[[1.0, 0.0], [0.6, 0.8]], counts=[1, 16])
    >>> make_sampler("unigram", inputs).probs(None).round(3)
    array([[0.111, 0.889]])
    """
    if not isinstance(inputs, SamplerInputs):
        raise TypeError(
            f"`inputs` must be SamplerInputs, got {type(inputs).__name__}; write "
            "SamplerInputs(class_embeddings, ...)."
        )
    return SAMPLERS[as_choice("name", name, SAMPLERS)](inputs)
