"""Names of arrays that say which part of a model or a checkpoint they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_T = TypeVar("_T")


def prefixed(parts: Mapping[str, Mapping[str, _T]], separator: str = ".") -> dict[str, _T]:
    """Join mappings into one, with the name of each before its keys.

    Parameters
    ----------
    parts : mapping of str to mapping
        Such as the parameters of the parts of a model.
    separator : str
        What stands between.

    Returns
    -------
    dict
        Of all of them.

    Examples
    --------
    >>> prefixed({"lstm": {"w": 1}, "softmax": {"w": 2}})
    {'lstm.w': 1, 'softmax.w': 2}
    """
    return {
        f"{part}{separator}{name}": value
        for part, values in parts.items()
        for name, value in values.items()
    }


def part(name: str, arrays: Mapping[str, _T], separator: str = ".") -> dict[str, _T]:
    """Return one of the mappings that `prefixed` has joined.

    Parameters
    ----------
    name : str
        Its name.
    arrays : mapping
        The joined one.
    separator : str
        As given to `prefixed`.

    Returns
    -------
    dict
        Empty if it was.

    Examples
    --------
    >>> part("lstm", {"lstm.w": 1, "softmax.w": 2})
    {'w': 1}
    """
    prefix = f"{name}{separator}"
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }
