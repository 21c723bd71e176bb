"""One call of a loss, in words where it does not take what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def call(loss: Callable[..., Any], names: str, *given: Any) -> Any:
    """Return ``loss(*given)``; TypeError that says what was passed if the call itself fails."""
    try:
        return loss(*given)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from inside the loss
        raise TypeError(
            f"`loss` must take {len(given)} arguments by position, as it is called: "
            f"loss({names}), got the error: {error}; wrap it in a function that takes these."
        ) from error
