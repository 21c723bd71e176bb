"""Whether logits are those of the vectors that come with them."""

from __future__ import annotations

import warnings

import numpy as np

from samplesoft._jit import chunks
from samplesoft._limits import quiet
from samplesoft._validation import FloatArray

_FLOAT32 = float(np.finfo(np.float32).eps)
_BLOCK = 1 << 20  # logits at a time
_SAME = 1e-6  # share of the squares that a better tau may leave unexplained


def warn_unless_products(
    logits: FloatArray, h: FloatArray, class_embeddings: FloatArray, tau: float
) -> None:
    """Warn where logits (B, n) are not ``tau h . c``, in the name of the caller's caller.

    A bias of each class and a constant of each example are allowed, and rounding as of logits and
    vectors in float32. The biases are taken from the example with the shortest context, so that one
    example by itself fits always.
    """
    with quiet():  # numbers whose products overflow say nothing
        norms = np.linalg.norm(h, axis=1)
        base, n = int(norms.argmin()), len(class_embeddings)
        # d products and their sum, the norms before, and what was added
        unit = _FLOAT32 * (h.shape[1] + 4) * tau * np.linalg.norm(class_embeddings, axis=1)
        size, allowed, place, squares = 0.0, 0.0, 0, np.zeros(3)
        for part in chunks(len(h), max(1, _BLOCK // n)):
            given = logits[part] - logits[base]
            products = (h[part] - h[base]) @ class_embeddings.T
            slack = (norms[part, None] + norms[base]) * unit
            slack += 4.0 * _FLOAT32 * (np.abs(logits[part]) + np.abs(logits[base]))
            slack += np.median(slack, axis=1, keepdims=True)
            off = given - tau * products
            off = np.abs(off - np.median(off, axis=1, keepdims=True))
            worst = int(np.argmax(off - slack))
            if off.flat[worst] - slack.flat[worst] > size - allowed:
                size, allowed = float(off.flat[worst]), float(slack.flat[worst])
                place = part.start * n + worst
            given -= given.mean(axis=1, keepdims=True)
            products -= products.mean(axis=1, keepdims=True)
            pairs = (given, given), (given, products), (products, products)
            squares += [np.vdot(x, y) for x, y in pairs]
    if size > allowed:
        row, column = divmod(place, n)
        warnings.warn(
            "`logits` must be tau h . c of `h` and `class_embeddings`, to which a bias of each "
            "class and a constant of each example may be added, else gradients in these are wrong: "
            f"with tau = {tau:g} class {column} of example {row} is off by {size:.3g} against "
            f"example {base}, and rounding explains {allowed:.1g}; {_remedy(*squares)}.",
            RuntimeWarning,
            stacklevel=3,
        )


def _remedy(yy: float, xy: float, xx: float) -> str:
    """Return what to do, by the squares and products of logits y and products x of vectors."""
    if xy > 0.0 and yy - xy / xx * xy <= _SAME * yy:
        return f"pass tau={xy / xx:.6g}, which fits"
    return "pass the vectors and the tau that the logits were made of, or leave the vectors out"
