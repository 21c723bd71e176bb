"""JSON that somebody else may have written."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 50  # lists and objects in one another


def read_json(text: str | bytes) -> Any:
    """Return what strict JSON holds; raise ValueError for other text, and for what is deep.

    >>> read_json('{"a": [1, null]}')
    {'a': [1, None]}
    >>> read_json("[NaN]")
    Traceback (most recent call last):
        ...
    ValueError: NaN is no number of JSON
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [part for whole in level for part in _parts(whole)]
    if level:
        raise _too_deep()
    return value


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _too_deep() -> ValueError:
    return ValueError(f"lists and objects are more than {_DEEPEST} deep in one another")
