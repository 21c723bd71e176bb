"""What a sampler may be made from, and what its probabilities of all classes may depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from samplesoft._device.arrays import ARRAYS
from samplesoft._device.select import as_device, to_host, twin
from samplesoft._random import as_key
from samplesoft._validation import FloatArray, as_count, as_counts, as_positive, as_real_array
from samplesoft.samplers.base import Rows


@dataclass(frozen=True, eq=False)
class SamplerInputs:
    """What `make_sampler` and `dense_proposals` may use.

    Each sampler reads some of it and says which: ``SAMPLERS[name].reads``.

    Parameters
    ----------
    class_embeddings : array_like or None, shape (n, d)
        Class vectors, float32 or float64; of norm 1 for the ``rff`` samplers.
    counts : array_like or None, shape (n,)
        How often each class occurs, in any unit.
    tau : float or None
        Inverse temperature; None for the default of each sampler, which is 10 where it takes
        vectors of norm 1 only, and 1 elsewhere.
    nu : float
        Sharpness of the Gaussian kernel of the ``rff`` samplers; 4 did best in the paper.
    num_features : int
        Random frequencies of the ``rff`` samplers, features of ``positive``.
    alpha : float
        Weight of the square of the logit in ``quadratic``.
    power : float
        Distortion of the counts: 1 for the counts as they are, near 0 for uniform.
    rng : int, numpy.random.Generator or None
        Seed of random features and candidates.
    device : {"cpu", "cuda"}
        Where the sampler works; ``SAMPLERS[name].cuda`` says whether it has kernels for CUDA.
    h : array_like or None, shape (B, d)
        Context vectors, for `dense_proposals`.
    logits : array_like or None, shape (B, n) or (n,)
        Logits of B examples, for `dense_proposals`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, shapes disagree, or nothing says how many classes there are.
    """

    class_embeddings: Any = None
    counts: Any = None
    tau: float | None = None
    nu: float = 4.0
    num_features: int = 1024
    alpha: float = 100.0
    power: float = 0.75
    rng: int | np.random.Generator | None = None
    device: str = "cpu"
    h: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        arrays = twin(as_device(self.device), ARRAYS)
        checked: dict[str, Any] = {
            name: as_positive(name, getattr(self, name))
            for name in ("tau", "nu", "alpha", "power")
            if name != "tau" or self.tau is not None
        }
        checked["num_features"] = as_count("num_features", self.num_features)
        if self.logits is not None:
            logits = as_real_array("logits", to_host(self.logits), (1, 2))
            checked["logits"] = np.atleast_2d(logits)
        if not isinstance(self.rng, np.random.Generator):  # of which a key would be drawn
            as_key(self.rng)
        for name in ("class_embeddings", "h"):
            if getattr(self, name) is not None:
                checked[name] = arrays.float_rows(name, getattr(self, name))
        _require_same_sizes(**{k: checked.get(k) for k in ("logits", "class_embeddings", "h")})
        if self.counts is not None:
            counts = as_real_array("counts", to_host(self.counts), (1,))
            n = _num_classes(checked.get("class_embeddings"), checked.get("logits"), counts)
            checked["counts"] = as_counts("counts", counts, n)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.class_embeddings is self.counts is self.logits is None:
            raise ValueError(
                "one of `class_embeddings`, `counts` and `logits` must be given, for they say how "
                "many classes there are, got None for each."
            )

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return _num_classes(self.class_embeddings, self.logits, self.counts)


def _num_classes(rows: Rows | None, logits: FloatArray | None, counts: FloatArray | None) -> int:
    if rows is not None:
        return int(rows.shape[0])
    if logits is not None:
        return int(logits.shape[1])
    assert counts is not None
    return len(counts)


def _require_same_sizes(logits: Any, class_embeddings: Any, h: Any) -> None:
    if logits is not None:
        for name, rows, wanted in (
            ("h", h, logits.shape[0]),
            ("class_embeddings", class_embeddings, logits.shape[1]),
        ):
            if rows is not None and rows.shape[0] != wanted:
                raise ValueError(
                    f"`{name}` must have {wanted} rows to match `logits` of shape {logits.shape}, "
                    f"got shape {rows.shape}."
                )
    if h is not None and class_embeddings is not None and h.shape[1] != class_embeddings.shape[1]:
        raise ValueError(
            "`h` and `class_embeddings` must have the same dimension d, got shapes "
            f"{h.shape} and {class_embeddings.shape}."
        )
