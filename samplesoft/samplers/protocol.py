"""What the library asks of a sampler, so that one written elsewhere can take its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._validation import FloatArray
from samplesoft.samplers.draw import Draw


@runtime_checkable
class SamplerProtocol(Protocol):
    """A distribution over classes for each context vector: what a `SoftmaxLayer` calls.

    `Sampler` and its subclasses have all of this, with the arguments checked. To write a sampler
    of your own, derive from `DenseSampler`, which leaves one method to write; a class that
    implements this protocol without a base class of the library works too.

    Attributes
    ----------
    num_classes : int
        Number of classes n.
    dim : int or None
        Length d of context and class vectors; None if draws do not depend on them.
    tau : float or None
        Inverse temperature of the logits that draws follow, which must be that of the loss; None
        where they follow none.
    device : {"cpu", "cuda"}
        Where its arrays lie.
    """

    num_classes: int
    dim: int | None
    tau: float | None
    device: str

    def sample(
        self,
        h: ArrayLike | None,
        num_sampled: int,
        *,
        exclude: Any = None,
        shared: bool = False,
        rng: int | np.random.Generator | None = None,
    ) -> Draw:
        """Draw classes for each context (B, d), with ``log_q`` the logarithm of `probs`."""

    def probs(
        self, h: ArrayLike | None, *, exclude: Any = None, shared: bool = False
    ) -> FloatArray:
        """Return the probabilities (B, n) of all classes; 0 for the excluded class (B,).

        With ``shared=True``, here and below, those (1, n) of the set that serves all contexts.
        """

    def log_prob(
        self, h: ArrayLike | None, ids: Any, *, exclude: Any = None, shared: bool = False
    ) -> FloatArray:
        """Return the logarithms (B, k) of the probabilities of classes (B, k)."""

    def log_expected_count(
        self,
        h: ArrayLike | None,
        ids: Any,
        num_sampled: int,
        *,
        exclude: Any = None,
        shared: bool = False,
    ) -> FloatArray:
        """Return the logarithms (B, k) of how often a draw contains classes in the mean."""

    def update(self, ids: Any, class_embeddings: ArrayLike) -> None:
        """Take new class vectors (k, d) of classes (k,); nothing to do where `dim` is None."""

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Draw anew what serves all draws of a batch, such as candidates; most have none."""

    def observe(self, labels: Any) -> None:
        """Learn from the labels (k,) of a batch; most do not."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what has been learned and does not follow from class vectors; often nothing."""

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state`."""


def as_sampler(name: str, value: Any) -> SamplerProtocol:
    """Return the argument `name` if it is a sampler; TypeError names what it lacks to be one."""
    members = [*SamplerProtocol.__annotations__]
    members += [key for key in vars(SamplerProtocol) if not key.startswith("_")]
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        what = type(value).__name__
        if len(missing) < len(members):
            what += f" without {', '.join(missing)}"
        raise TypeError(
            f"`{name}` must be a Sampler, got {what}; samplesoft.samplers has some, and "
            "samplesoft.samplers.DenseSampler is a base for your own."
        )
    return value  # type: ignore[no-any-return]
