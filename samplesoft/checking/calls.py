"""Calls of the user's code: the loss and the proposal."""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray

DRAWS = ("own", "given", "given-negatives")


def call_loss(loss: Callable[..., Any], names: str, *given: Any) -> Any:
    """Return ``loss(*given)``; if it does not take these arguments, a TypeError shows `names`."""
    try:
        return loss(*given)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from inside the loss
        raise TypeError(
            f"`loss` must take {len(given)} arguments by position, as it is called: "
            f"loss({names}), got the error: {error}; wrap it in a function that takes these."
        ) from error


def call_proposal(function: Callable[..., Any], *given: Any) -> Any:
    """Return ``function(*given)`` of a proposal, which may be the user's code."""
    return function(*given)


def frames_of_user(error: BaseException) -> list[tuple[str, int, str]] | None:
    """Return (file, line, function) of the frames in which the user's code raised, outermost first.

    Only frames of the file that defines it are included, not of libraries. An empty frame stands
    for a function that is not Python. None if the error is not from a loss or a proposal.
    """
    frames = list(walk_tb(error.__traceback__))
    of_calls = [i for i, (frame, _) in enumerate(frames) if frame.f_code in _CALLS_OF_USER]
    if not of_calls:
        return None
    inside = frames[of_calls[-1] + 1 :]
    # what `call_loss` and `make_drawing_loss` say themselves is no error of the user's code
    if inside and inside[0][0].f_code.co_filename == __file__:
        return None
    if not inside and error.__cause__ is not None:
        return None
    named = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in inside]
    return [one for one in named if one[0] == named[0][0]] or [("", 0, "")]


_CALLS_OF_USER = (call_loss.__code__, call_proposal.__code__)


def make_drawing_loss(
    loss: Callable[..., Any], q: FloatArray, labels: IntArray, tau: float, exclude: bool
) -> Callable[..., Any]:
    """Return ``loss(scores, ids, log_q, labels)`` as a loss that draws from q (E, n).

    `labels` (E,) are those of the examples, which are not drawn if they are to `exclude`.
    """
    examples = np.arange(len(labels))
    q = q.copy()
    if exclude:
        q[examples, labels] = 0.0
        q /= q.sum(axis=1, keepdims=True)
    ends = np.cumsum(q, axis=1)
    ends /= ends[:, -1:]
    with np.errstate(divide="ignore"):
        log_q = np.log(q)

    def drawn(c: Any, h: Any, labels: IntArray, m: int, seed: int, biases: Any = 0.0) -> Any:
        scores = tau * h @ c.T + biases
        copies = len(h) // len(examples)
        parts = np.random.default_rng(seed).random((copies, len(examples), m))
        ids = [ends[e].searchsorted(parts[:, e], side="right") for e in examples]
        given = np.stack(ids, axis=1).reshape(len(h), m), np.tile(log_q, (copies, 1)), labels
        returned = call_loss(loss, "scores, ids, log_q, labels", scores, *given)
        if not isinstance(returned, (tuple, list)):
            return returned
        shape = np.shape(returned[1]) if len(returned) == 2 else None
        if shape != scores.shape:
            raise ValueError(
                "`loss` must return the losses, or a tuple (losses, dscores) with the gradient "
                f"{scores.shape} of their sum in the scores, got a {type(returned).__name__} of "
                f"{len(returned)}{'' if shape is None else f' with a gradient {shape}'}."
            )
        losses, d_scores = returned
        return losses, tau * np.asarray(d_scores) @ c

    return drawn
