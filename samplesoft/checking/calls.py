"""Calls of the user's code: the loss and the proposal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from traceback import walk_tb
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray

DRAWS = ("own", "given", "given-negatives")


def call_loss(loss: Callable[..., Any], names: str, *arguments: Any) -> Any:
    """Return ``loss(*arguments)``. If the loss does not accept these arguments, raise a TypeError.

    `names` are the names of the arguments, separated by commas, for the message.
    """
    try:
        return loss(*arguments)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from inside the loss
        raise TypeError(
            f"`loss` must take {len(arguments)} arguments by position, as it is called: "
            f"loss({names}), got the error: {error}; wrap it in a function that takes these."
        ) from error


def call_proposal(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``function(*arguments)``; `function` is a proposal that the user may have written.

    Such calls are made only here, because `frames_of_user` looks in a traceback for the frame of
    this function.
    """
    return function(*arguments)


def frames_of_user(error: BaseException) -> list[tuple[str, int, str]] | None:
    """Return the frames of the user's code in the traceback of an error, outermost first.

    A frame is (file, line, function). Only frames of the file that defines the loss or proposal are
    included, not frames of libraries that it calls. If the loss or proposal is not Python code,
    there is the single frame ``("", 0, "")``. Returns None if the error was raised outside of the
    user's code.
    """
    frames = list(walk_tb(error.__traceback__))
    user_calls = [i for i, (frame, _) in enumerate(frames) if frame.f_code in _CALLS_OF_USER]
    if not user_calls:
        return None

    inner_frames = frames[user_calls[-1] + 1 :]

    # the error was raised by this file, not by the user's code
    if inner_frames and inner_frames[0][0].f_code.co_filename == __file__:
        return None
    if not inner_frames and error.__cause__ is not None:
        return None

    named_frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in inner_frames
    ]
    return [frame for frame in named_frames if frame[0] == named_frames[0][0]] or [("", 0, "")]


_CALLS_OF_USER = (call_loss.__code__, call_proposal.__code__)


def make_drawing_loss(
    loss: Callable[..., Any],
    q: FloatArray,
    labels: IntArray,
    tau: float,
    excludes_label: bool,
    num_biases: int = 0,
    more_names: Sequence[str] = (),
) -> Callable[..., Any]:
    """Return a loss that draws classes, and passes them to a loss that gets its draws as arguments.

    Parameters
    ----------
    loss : callable
        ``loss(scores, ids, log_q, labels)``, see the argument `draws` of `check_loss`.
    q : ndarray, shape (E, n)
        Probabilities from which the returned loss draws, one row for each example.
    labels : ndarray of int, shape (E,)
        Labels of the examples.
    tau : float
        Inverse temperature of the scores.
    excludes_label : bool
        Whether an example's label is never drawn: its q is set to 0, and q is normalised.
    num_biases : int
        1 if the returned loss takes biases, else 0.
    more_names : sequence of str
        Names of further arguments (B,), which the returned loss takes last and passes on.

    Returns
    -------
    callable
        ``loss(class_embeddings, h, labels, num_sampled, seed, biases, ...)``, which returns the
        losses, or the losses and their gradient in `h`.
    """
    examples = np.arange(len(labels))
    q = q.copy()
    if excludes_label:
        q[examples, labels] = 0.0
        q /= q.sum(axis=1, keepdims=True)

    cumulative_q = np.cumsum(q, axis=1)
    cumulative_q /= cumulative_q[:, -1:]
    with np.errstate(divide="ignore"):
        log_q = np.log(q)

    def drawing_loss(c: Any, h: Any, labels: IntArray, m: int, seed: int, *others: Any) -> Any:
        scores = tau * h @ c.T + sum(others[:num_biases])
        copies = len(h) // len(examples)
        uniforms = np.random.default_rng(seed).random((copies, len(examples), m))
        ids = [cumulative_q[e].searchsorted(uniforms[:, e], side="right") for e in examples]
        draw_arguments = (
            np.stack(ids, axis=1).reshape(len(h), m),
            np.tile(log_q, (copies, 1)),
            labels,
            *others[num_biases:],
        )
        names = ", ".join(["scores, ids, log_q, labels", *more_names])
        returned = call_loss(loss, names, scores, *draw_arguments)
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

    return drawing_loss
