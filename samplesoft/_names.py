"""Names of arrays that say which part of a model or a checkpoint they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_T = TypeVar("_T")


def prefixed(parts: Mapping[str, Mapping[str, _T]], separator: str = ".") -> dict[str, _T]:
    """Join mappings into one, with the name of each before its keys.

    >>> prefixed({"lstm": {"w": 1}, "softmax": {"w": 2}})
    {'lstm.w': 1, 'softmax.w': 2}
    """
    return {
        f"{part}{separator}{name}": value
        for part, values in parts.items()
        for name, value in values.items()
    }


def part(name: str, arrays: Mapping[str, _T], separator: str = ".") -> dict[str, _T]:
    """Return one of the mappings that `prefixed` has joined, empty if it was.

    >>> part("lstm", {"lstm.w": 1, "softmax.w": 2})
    {'w': 1}
    """
    prefix = f"{name}{separator}"
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }
