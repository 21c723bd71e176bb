"""Whether two results are the same, to the bit."""

import numpy as np


def require_same(first, second):
    """Require equal arrays, or lists and dicts of such."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        first, second = list(first.values()), [second[key] for key in first]
    if isinstance(first, (list, tuple)):
        for one, other in zip(first, second, strict=True):
            require_same(one, other)
    else:
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
