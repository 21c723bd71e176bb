"""Cached properties: computed once, at first access."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without the lock that it has in Python 3.11.

        That lock is shared by all objects of a class. In a forked child it may be held forever by a
        thread of the parent. Without it, two threads that access the property at once may both
        compute it, as in later versions of Python.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Return the value, and store it in the object's dict, where Python looks first."""
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
