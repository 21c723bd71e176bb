"""Dense proposals: the sampling distributions of the literature as probabilities of all classes.

A new one is a function that takes a `Model` and returns positive weights, with `proposal` above
it; the tests and the command line then know it by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from samplesoft._validation import (
    FloatArray,
    as_choice,
    as_count,
    as_counts,
    as_positive,
    as_real_array,
)
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs, make_sampler
from samplesoft.samplers.weights import log_uniform_weights, unigram_weights

_LEAST = 1e-300  # a softmax may underflow, and a class without mass has no importance weight


@dataclass(frozen=True)
class Model:
    """What a proposal may look at.

    Parameters
    ----------
    logits : array_like, shape (B, n)
        The logits of B examples, or (n,) for one.
    h : array_like or None, shape (B, d)
        Context vectors.
    class_embeddings : array_like or None, shape (n, d)
        Class vectors.
    counts : array_like or None, shape (n,)
        How often each class occurs; any unit.
    tau : float
        Inverse temperature: the logits are ``tau * h @ class_embeddings.T`` where those are given.
    nu : float
        Sharpness of the Gaussian kernel of the ``rff`` samplers; 4 did best in the paper.
    num_features : int
        Random frequencies of the ``rff`` samplers, features of ``positive``.
    alpha : float
        Weight of the square in ``quadratic``.
    power : float
        Distortion of ``unigram``: 1 for the counts as they are, near 0 for uniform.
    seed : int
        Seed of the random features.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed or shapes disagree.
    """

    logits: FloatArray
    h: FloatArray | None = None
    class_embeddings: FloatArray | None = None
    counts: FloatArray | None = None
    tau: float = 1.0
    nu: float = 4.0
    num_features: int = 1000
    alpha: float = 100.0
    power: float = 0.75
    seed: int = 0

    def __post_init__(self) -> None:
        logits = np.atleast_2d(as_real_array("logits", self.logits, (1, 2)))
        batch, n = logits.shape
        object.__setattr__(self, "logits", logits)
        for name, rows in (("h", batch), ("class_embeddings", n)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _with_rows(name, value, rows, logits.shape))
        if self.h is not None and self.class_embeddings is not None:
            if self.h.shape[1] != self.class_embeddings.shape[1]:
                raise ValueError(
                    f"`h` and `class_embeddings` must have the same dimension d, got shapes "
                    f"{self.h.shape} and {self.class_embeddings.shape}."
                )
        if self.counts is not None:
            counts = as_counts("counts", self.counts, n)
            object.__setattr__(self, "counts", counts)
        for name in ("tau", "nu", "alpha", "power"):
            object.__setattr__(self, name, as_positive(name, getattr(self, name)))
        object.__setattr__(self, "num_features", as_count("num_features", self.num_features))
        object.__setattr__(self, "seed", as_count("seed", self.seed, 0))


def _with_rows(name: str, value: Any, rows: int, logits_shape: tuple[int, ...]) -> FloatArray:
    array = as_real_array(name, value, (2,))
    if len(array) != rows:
        raise ValueError(
            f"`{name}` must have {rows} rows to match `logits` of shape {logits_shape}, "
            f"got shape {array.shape}."
        )
    return array


Proposal = Callable[[Model], FloatArray]
PROPOSALS: dict[str, Proposal] = {}
PAPERS = ("uniform", "log-uniform", "unigram", "softmax", "quadratic", "rff")  # by default


def proposal(name: str) -> Callable[[Proposal], Proposal]:
    """Register a function from a `Model` to weights (n,) or (B, n) as the proposal `name`.

    Parameters
    ----------
    name : str
        What ``--samplers`` and `dense_proposals` call it.

    Returns
    -------
    callable
        A decorator. The decorated function returns the weights divided by their sums, each at
        least 1e-300, and raises ValueError where they are negative, not finite or all 0.
    """

    def register(weights: Proposal) -> Proposal:
        @wraps(weights)
        def normalised(model: Model) -> FloatArray:
            values = np.asarray(weights(model), dtype=np.float64)
            totals = values.sum(axis=-1, keepdims=True)
            if not (values.min() >= 0.0 and np.isfinite(totals).all() and totals.min() > 0.0):
                raise ValueError(
                    f"proposal {name!r} must give weights that are finite, at least 0 and not all "
                    f"0, got weights from {values.min()} to {values.max()} with a sum of "
                    f"{totals.min()}; correct the function."
                )
            q: FloatArray = np.maximum(values / totals, _LEAST)
            return q

        PROPOSALS[name] = normalised
        return normalised

    return register


def dense_proposals(names: Iterable[str], model: Model) -> dict[str, FloatArray]:
    """Evaluate proposals by name.

    Parameters
    ----------
    names : iterable of str
        Keys of `PROPOSALS`.
    model : Model
        What they look at.

    Returns
    -------
    dict of str to ndarray of float64, shape (n,) or (B, n)
        Probabilities: greater than 0, each row sums to 1. One row serves all examples where the
        proposal does not depend on the example.

    Raises
    ------
    TypeError, ValueError
        If a name is unknown, or a proposal needs what the model does not have.

    Examples
    --------
    >>> model = Model(logits=[[0.0, 1.0, 2.0]], counts=[16, 81, 256])
    >>> dense_proposals(["uniform", "unigram"], model)["unigram"].round(3)
    array([0.081, 0.273, 0.646])
    """
    if isinstance(names, str):
        raise TypeError(f"`names` must be a list of names, got the string {names!r}.")
    checked = [as_choice("names", name, PROPOSALS) for name in names]
    return {name: PROPOSALS[name](model) for name in checked}


@proposal("uniform")
def uniform(model: Model) -> FloatArray:
    """Give every class the same probability, shape (n,)."""
    return np.ones(model.logits.shape[1])


@proposal("log-uniform")
def log_uniform(model: Model) -> FloatArray:
    """Follow Zipf's law, for classes numbered by falling frequency, shape (n,)."""
    return log_uniform_weights(model.logits.shape[1])


@proposal("unigram")
def unigram(model: Model) -> FloatArray:
    """Give each class its count to the power ``power``, shape (n,)."""
    return unigram_weights(_needed(model, "unigram", "counts"), model.power)


@proposal("softmax")
def softmax(model: Model) -> FloatArray:
    """Give each class its exact softmax probability, shape (B, n).

    References
    ----------
    Blanc and Rendle (2018), Theorem 2.1: the one proposal that leaves no bias.
    """
    weights: FloatArray = np.exp(model.logits - model.logits.max(axis=1, keepdims=True))
    return weights


@proposal("quadratic")
def quadratic(model: Model) -> FloatArray:
    """Weigh each class by ``alpha * o**2 + 1`` of its logit o, shape (B, n).

    Blanc and Rendle's kernel, whose o is the whole logit; the form of Rawat et al., eq. 15, takes
    the dot product h . c without tau, which is `alpha` divided by ``tau**2`` here.

    References
    ----------
    Blanc and Rendle (2018), section 3.3; Rawat et al. (2019), eq. 15.
    """
    return model.alpha * model.logits**2 + 1.0


def _of_sampler(name: str) -> None:
    """Register the probabilities of a sampler made from vectors under its own name."""

    @proposal(name)
    def weights(model: Model) -> FloatArray:
        h = _needed(model, name, "h")
        inputs = SamplerInputs(
            _needed(model, name, "class_embeddings"),
            model.counts,
            tau=model.tau,
            nu=model.nu,
            num_features=model.num_features,
            alpha=model.alpha,
            power=model.power,
            rng=model.seed,
        )
        return make_sampler(name, inputs).probs(h)


for _name in SAMPLERS:
    if _name not in PROPOSALS:
        _of_sampler(_name)


_SOURCES = {
    "h": ("context vectors (B, d)", "use --corpus or --embeddings in place of --logits"),
    "class_embeddings": ("class vectors (n, d)", "use --corpus or --embeddings, not --logits"),
    "counts": ("class counts (n,)", "use --corpus, or an --embeddings .npz file with `counts`"),
}


def _needed(model: Model, name: str, attribute: str) -> FloatArray:
    value: FloatArray | None = getattr(model, attribute)
    if value is None:
        what, remedy = _SOURCES[attribute]
        raise ValueError(
            f"proposal {name!r} needs {what} as `{attribute}`, got None; {remedy}, or leave "
            f"{name!r} out of --samplers."
        )
    return value
