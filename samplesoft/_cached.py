"""`cached_property`, a property that is computed at first access and then stored."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without a lock, as in Python 3.12 and later.

        In Python 3.11 all objects of a class share the lock. In a forked child, the lock may stay
        locked forever, held by a thread that exists only in the parent. Without the lock, two
        threads that access the property at the same time may both compute it.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Compute the value, and store it in the object's dict, where Python finds it first."""
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
