"""What an object works out once, when it is first asked for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without the lock that Python 3.11 still has there.

        That is one for all objects of a class, so that in a forked child it may be held for ever,
        by a thread of the parent. Two threads that ask at once may both do the work, as in later
        versions.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Return the value, and keep it where Python looks first from then on."""
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
