"""Samplers by name, with what each needs and can do.

A new sampler is a file, and an entry of `SAMPLERS`. The command line, the classifier, the settings
of a layer and the tests read the declarations here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samplesoft._device.select import require_cpu
from samplesoft._temperature import as_tau
from samplesoft._validation import FloatArray, as_choice, as_count, require_instance
from samplesoft.samplers.base import Sampler
from samplesoft.samplers.certain import CertainSampler
from samplesoft.samplers.clusters.sampler import ClusterSampler
from samplesoft.samplers.fourier import RFSoftmaxSampler
from samplesoft.samplers.frequency import (
    LogUniformSampler,
    UnigramSampler,
    log_uniform_weights,
    unigram_weights,
)
from samplesoft.samplers.inputs import SamplerInputs
from samplesoft.samplers.kernel import PositiveSampler, QuadraticSampler
from samplesoft.samplers.learned import LearnedUnigramSampler
from samplesoft.samplers.mixture import MixtureSampler
from samplesoft.samplers.softmax import SoftmaxSampler
from samplesoft.samplers.static import UniformSampler
from samplesoft.samplers.two_pass import TwoPassSampler

_WHAT = {
    "class_embeddings": "class vectors (n, d)",
    "counts": "class counts (n,)",
    "h": "context vectors (B, d)",
}


@dataclass(frozen=True)
class SamplerSpec:
    """What a sampler declares: how it is made, what it needs and what it can do.

    Parameters
    ----------
    make : callable
        Makes the sampler from a `SamplerInputs`.
    summary : str
        One line on what it draws by, for the help of the command line.
    reads : tuple of str
        The fields of `SamplerInputs` that `make` reads, beside ``device`` and ``num_classes``.
        Class vectors and counts that are read here must be given.
    unit_vectors : bool
        Whether contexts and class vectors must have norm 1.
    cuda : bool
        Whether there are kernels for CUDA.
    every_class : bool
        Whether each class has a probability above 0 at all times.
    weights : callable, optional
        Where the probabilities follow from the logits (B, n) without a sampler: a function of
        those and of a `SamplerInputs` that returns positive weights, (n,) or (B, n).

    Examples
    --------
    >>> SAMPLERS["rff"].unit_vectors, SAMPLERS["softmax"].unit_vectors
    (True, False)
    >>> SAMPLERS["unigram"].reads
    ('counts', 'power')
    """

    make: Callable[[SamplerInputs], Sampler]
    summary: str
    reads: tuple[str, ...] = ()
    unit_vectors: bool = False
    cuda: bool = False
    every_class: bool = True
    weights: Callable[[FloatArray, SamplerInputs], FloatArray] | None = None

    @property
    def follows_vectors(self) -> bool:
        """Whether draws depend on context vectors, and follow `update` of class vectors."""
        return "class_embeddings" in self.reads

    @property
    def needs_counts(self) -> bool:
        """Whether it is made from how often each class occurs."""
        return "counts" in self.reads

    def lacks(self, inputs: SamplerInputs, unit_vectors: bool) -> str:
        """Return what it needs and the inputs do not have; empty if there is nothing.

        `unit_vectors` says whether their vectors have norm 1.
        """
        if self.needs_counts and inputs.counts is None:
            return "needs class counts"
        if self.weights is not None or not self.follows_vectors:
            return ""
        if inputs.h is None:
            return "needs contexts and class vectors"
        return "needs vectors of norm 1" if self.unit_vectors and not unit_vectors else ""


def _learned(inputs: SamplerInputs) -> Sampler:
    """Start as if the counts, of one unit, had been observed, each class once more than that."""
    counts = inputs.counts + 1.0
    return LearnedUnigramSampler(len(counts), power=inputs.power, initial=counts)


def _unigram(inputs: SamplerInputs) -> Sampler:
    return UnigramSampler(inputs.counts, power=inputs.power, device=inputs.device)


def _softmax(inputs: SamplerInputs) -> Sampler:
    return SoftmaxSampler(inputs.class_embeddings, tau=inputs.tau, device=inputs.device)


def _softmax_weights(logits: FloatArray, inputs: SamplerInputs) -> FloatArray:
    weights: FloatArray = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights


def _quadratic(inputs: SamplerInputs) -> Sampler:
    """Weigh the square of the logit tau h . c, as Blanc and Rendle do."""
    tau = as_tau(inputs.tau, unit_vectors=False)
    alpha = inputs.alpha * tau * tau
    if not alpha < np.inf:
        raise ValueError(f"`tau` must have a finite square, got {tau:g}; scale the class vectors.")
    sampler = QuadraticSampler(inputs.class_embeddings, alpha=alpha, leaf="kernel")
    sampler.tau = tau
    return sampler


def _quadratic_weights(logits: FloatArray, inputs: SamplerInputs) -> FloatArray:
    return inputs.alpha * logits**2 + 1.0


def _fourier(inputs: SamplerInputs, **options: Any) -> Sampler:
    return RFSoftmaxSampler(
        inputs.class_embeddings,
        nu=inputs.nu,
        num_features=inputs.num_features,
        rng=inputs.rng,
        device=inputs.device,
        **options,
    )


def _fourier_softmax_leaf(inputs: SamplerInputs) -> Sampler:
    return _fourier(inputs, tau=inputs.tau)


def _positive(inputs: SamplerInputs) -> Sampler:
    return PositiveSampler(
        inputs.class_embeddings,
        num_features=inputs.num_features,
        tau=inputs.tau,
        leaf="kernel",
        rng=inputs.rng,
        device=inputs.device,
    )


def _clusters(inputs: SamplerInputs) -> Sampler:
    return ClusterSampler(
        inputs.class_embeddings, tau=inputs.tau, rng=inputs.rng, device=inputs.device
    )


def _two_pass(inputs: SamplerInputs) -> Sampler:
    """Take as many candidates as an eighth of the classes, at least 16, by their counts."""
    rows = inputs.class_embeddings
    num = max(16, len(rows) // 8)
    return TwoPassSampler(
        _unigram(inputs), rows, num_candidates=num, tau=inputs.tau, rng=inputs.rng
    )


def _mixture(inputs: SamplerInputs) -> Sampler:
    """Mix a sampler that follows the model with one that bounds the importance weights."""
    return MixtureSampler(_fourier_softmax_leaf(inputs), _unigram(inputs))


def _paper_fourier(frequencies: str) -> SamplerSpec:
    """Return the sampler of Rawat et al.: a tree down to single classes."""
    return SamplerSpec(
        lambda inputs: _fourier(inputs, frequencies=frequencies, leaf="kernel", leaf_size=1),
        f"random Fourier features of the Gaussian kernel, {frequencies} frequencies",
        reads=("class_embeddings", "nu", "num_features", "rng"),
        unit_vectors=True,
        cuda=True,
    )


SAMPLERS: dict[str, SamplerSpec] = {
    "uniform": SamplerSpec(
        lambda inputs: UniformSampler(inputs.num_classes, device=inputs.device),
        "every class with the same probability",
        cuda=True,
        weights=lambda logits, inputs: np.ones(logits.shape[1]),
    ),
    "log-uniform": SamplerSpec(
        lambda inputs: LogUniformSampler(inputs.num_classes, device=inputs.device),
        "Zipf's law, for classes numbered by falling frequency",
        cuda=True,
        weights=lambda logits, inputs: log_uniform_weights(logits.shape[1]),
    ),
    "unigram": SamplerSpec(
        _unigram,
        "a power of how often each class occurs",
        reads=("counts", "power"),
        cuda=True,
        weights=lambda logits, inputs: unigram_weights(inputs.counts, inputs.power),
    ),
    "learned-unigram": SamplerSpec(
        _learned,
        "a power of the counts, which go on with the labels seen in training",
        reads=("counts", "power"),
    ),
    "softmax": SamplerSpec(
        _softmax,
        "the softmax of all classes: no bias, at the price of all logits",
        reads=("class_embeddings", "tau"),
        cuda=True,
        weights=_softmax_weights,
    ),
    "quadratic": SamplerSpec(
        _quadratic,
        "alpha o^2 + 1 of the logit o",
        reads=("class_embeddings", "tau", "alpha"),
        weights=_quadratic_weights,
    ),
    "rff": _paper_fourier("iid"),
    "rff:orthogonal": _paper_fourier("orthogonal"),
    "rff:structured": _paper_fourier("structured"),
    "rff+softmax-leaf": SamplerSpec(
        _fourier_softmax_leaf,
        "random Fourier features down to leaves of classes, in which the softmax draws",
        reads=("class_embeddings", "tau", "nu", "num_features", "rng"),
        unit_vectors=True,
        cuda=True,
    ),
    "positive": SamplerSpec(
        _positive,
        "positive random features of exp(tau h . c)",
        reads=("class_embeddings", "tau", "num_features", "rng"),
        cuda=True,
    ),
    "clusters": SamplerSpec(
        _clusters,
        "the softmax in leaves of similar classes, reached by the estimated mass of cells",
        reads=("class_embeddings", "tau", "rng"),
        cuda=True,
    ),
    "two-pass": SamplerSpec(
        _two_pass,
        "the softmax among candidates that a unigram draws for the batch",
        reads=("class_embeddings", "counts", "tau", "power", "rng"),
        every_class=False,
    ),
    "mixture": SamplerSpec(
        _mixture,
        "half the draws by rff+softmax-leaf, half by unigram",
        reads=("class_embeddings", "counts", "tau", "nu", "num_features", "power", "rng"),
        unit_vectors=True,
    ),
}


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
        If the name is unknown, the inputs lack what the sampler reads, or it refuses them.

    Examples
    --------
    >>> inputs = SamplerInputs(class_embeddings=[[1.0, 0.0], [0.6, 0.8]], counts=[1, 16])
    >>> make_sampler("unigram", inputs).probs(None).round(3)
    array([[0.111, 0.889]])
    """
    require_instance("inputs", inputs, SamplerInputs)
    spec = SAMPLERS[as_choice("name", name, SAMPLERS)]
    if not spec.cuda:
        require_cpu(name, inputs.device)
    for attribute in ("class_embeddings", "counts"):
        if attribute in spec.reads:
            require_input(name, inputs, attribute)
    return spec.make(inputs)


def make_certain_sampler(name: str, inputs: SamplerInputs, num_certain: int) -> CertainSampler:
    """Put the most frequent classes into every draw, and draw the others by a sampler's name.

    Parameters
    ----------
    name : str
        A key of `SAMPLERS`. It is made for the other classes alone, in their order.
    inputs : SamplerInputs
        What it is made from, with counts.
    num_certain : int
        How many classes are certain: those of the greatest counts, of equal ones the first.

    Returns
    -------
    CertainSampler
        A new sampler.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or no class is left to draw.

    Examples
    --------
    >>> inputs = SamplerInputs(counts=[16, 900, 81, 256])
    >>> sampler = make_certain_sampler("unigram", inputs, 1)
    >>> sampler.certain, sampler.probs(None).round(3)
    (array([1]), array([[0.081, 0.   , 0.273, 0.646]]))
    """
    require_instance("inputs", inputs, SamplerInputs)
    num_certain = as_count("num_certain", num_certain)
    if inputs.counts is None:
        raise ValueError(
            "`inputs` must have counts, by which the certain classes are chosen, got None; give "
            "them, or make a CertainSampler of classes that you choose."
        )
    if num_certain >= inputs.num_classes:
        raise ValueError(
            f"`num_certain` must be less than the number of classes {inputs.num_classes}, got "
            f"{num_certain}; with all of them take the full softmax."
        )
    order = np.argsort(-inputs.counts, kind="stable")
    rest = np.sort(order[num_certain:])
    counts = inputs.counts[rest]
    if not counts.any():  # classes that never occur are all alike
        counts = np.ones(len(rest))
    rows = inputs.class_embeddings
    tail = replace(
        inputs, counts=counts, class_embeddings=None if rows is None else rows[rest], logits=None
    )
    return CertainSampler(make_sampler(name, tail), order[:num_certain])


def require_input(name: str, inputs: SamplerInputs, attribute: str) -> None:
    """Raise ValueError if `inputs` lack what the sampler `name` needs."""
    if getattr(inputs, attribute) is None:
        raise ValueError(
            f"sampler {name!r} needs {_WHAT[attribute]} as `{attribute}`, got None; give them, or "
            "take another sampler."
        )
