"""Checks of what sampled losses are given: draws, and expected counts of the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray, as_array, require_plain
from samplesoft.kernels.losses.candidate_logits import are_drawable
from samplesoft.losses.targets import Targets
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme


def check_draw(draw: Draw | None, batch: int, n: int) -> tuple[IntArray, FloatArray]:
    """Return classes, (B, m) or (1, m) for all, and logarithms of how often a draw contains each.

    The draw must be for `batch` contexts or one for all, of classes below `n`.
    """
    if not isinstance(draw, Draw):
        raise no_draw(draw)
    for name, kind in {"ids": "iu", "log_q": "f", "log_inclusion": "f"}.items():
        array = getattr(draw, name)
        if array is None and name == "log_inclusion":
            continue
        require_plain(f"draw.{name}", array)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kind:
            raise TypeError(
                f"`draw.{name}` must be an array of {'floats' if kind == 'f' else 'integers'}, got "
                f"{getattr(array, 'dtype', type(array).__name__)}; take it from sampler.sample."
            )
    logs = draw.log_q if draw.log_inclusion is None else draw.log_inclusion
    require_shapes(draw.ids.shape, logs.shape, batch)
    ids = draw.ids.astype(np.int64, copy=False)
    log_counts = draw.log_expected_count.astype(np.float64, copy=False)
    if not are_drawable(ids, log_counts, n):
        raise _explained(ids, log_counts, n)
    return ids, log_counts


def no_draw(value: Any) -> TypeError:
    """Return the error for something that is not a draw."""
    return TypeError(
        f"`draw` must be a Draw, got {type(value).__name__}; sampled losses take one from "
        "sampler.sample(h, num_sampled, ...)."
    )


def require_replacement(draw: Draw, loss: str) -> None:
    """Raise for draws without replacement, which a loss of that name cannot do with."""
    if draw.log_inclusion is not None:
        raise ValueError(
            f"`draw` must be with replacement for {loss}, got probabilities of inclusion in "
            "distinct classes; use a sampler that may repeat a class."
        )


def require_shapes(ids: tuple[int, ...], log_counts: tuple[int, ...], batch: int) -> None:
    """Raise for a draw that is not for `batch` contexts, or one for all."""
    if len(ids) != 2 or ids[1] == 0 or ids[0] not in (1, batch):
        raise ValueError(
            f"`draw` must hold ids of shape ({batch}, m) or (1, m), got {ids}; draw for the same "
            "contexts."
        )
    if log_counts != ids:
        raise ValueError(
            f"`draw` must hold log-probabilities of the shape of its ids {ids}, got {log_counts}."
        )


def _explained(ids: IntArray, log_counts: FloatArray, n: int) -> ValueError:
    """Return the error for a draw that `are_drawable` refuses."""
    if ids.min() < 0 or ids.max() >= n:
        return ValueError(
            f"`draw` must hold classes in 0..{n - 1}, got {ids.min()}..{ids.max()}; the sampler "
            "was made for other classes."
        )
    row, k = np.argwhere(~np.isfinite(log_counts))[0].tolist()
    return ValueError(
        f"`draw` must hold finite log-probabilities, got {log_counts[row, k]} for class "
        f"{ids[row, k]} at index {[row, k]}: what was drawn has a probability above 0."
    )


def check_label_count(value: ArrayLike | None, targets: Targets, scheme: Scheme) -> FloatArray:
    """Return the logarithms (P,) of how many draws of each pair's label are expected, as float64.

    A label that cannot be drawn, -inf, is for schemes that divide by the draws that are kept.
    """
    size = len(targets.labels)
    if value is None:
        raise TypeError(
            f"`label_log_count` must be given with scheme={scheme.name!r}: the log expected "
            "count of each label in a draw; use sampler.log_expected_count."
        )
    counts = as_array("label_log_count", value)
    if counts.dtype.kind not in "iuf":
        raise TypeError(
            f"`label_log_count` must hold real numbers, got {counts.dtype}; use "
            "sampler.log_expected_count."
        )
    with np.errstate(over="ignore"):  # of a wider type, refused next
        counts = counts.astype(np.float64)
    if counts.shape != (size,):
        raise ValueError(f"`label_log_count` must have shape ({size},), got {counts.shape}.")
    good = np.isfinite(counts) | ((counts == -np.inf) & scheme.divides_by_kept)
    if not good.all():
        worst = int(np.argmin(good))
        raise ValueError(
            f"`label_log_count` must be finite, got {counts[worst]} for label "
            f"{targets.labels[worst]} of pair {worst}; where no draw can contain the label, take "
            "scheme='masked', or mix the proposal with one that covers all classes."
        )
    return counts
