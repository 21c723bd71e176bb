"""What losses by Markov chains need besides classes: the uniform numbers that decide on steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from samplesoft._random import as_key
from samplesoft._validation import FloatArray
from samplesoft.losses.draws import require_replacement
from samplesoft.losses.pairs import Pairs
from samplesoft.losses.sampled import Request, Seed
from samplesoft.samplers.base import Draw


@dataclass(frozen=True, eq=False)
class ChainDraw(Draw):
    """Sampled classes, and the uniform numbers of a chain through them.

    Parameters
    ----------
    ids, log_q, log_inclusion
        As for `Draw`; `log_inclusion` is None.
    uniforms : ndarray of float64, shape (B, k)
        Numbers in [0, 1), one for each step and example; shape (1, k) for the same of all.
    """

    uniforms: FloatArray = field(default_factory=lambda: np.empty((1, 0)))


def chain_draw(request: Request, num: int, steps: int, rng: Seed, loss: str) -> ChainDraw:
    """Draw `num` classes and the uniforms of so many steps, for a loss of that name."""
    generator = np.random.default_rng(int(as_key(rng)))
    draw = request.sample(num, generator)
    require_replacement(draw, loss)
    size = len(request.targets.firsts())
    return ChainDraw(draw.ids, draw.log_q, None, generator.random((size, steps)))


def uniforms_of(pairs: Pairs, loss: str) -> FloatArray:
    """Return the uniforms (P, k) of the pairs; TypeError, ValueError if there are none."""
    draw = pairs.draw
    if not isinstance(draw, ChainDraw):
        raise TypeError(
            f"`draw` must be a ChainDraw, got {type(draw).__name__}; take it from {loss}.draw, or "
            "let a SoftmaxLayer draw."
        )
    size, shape = len(pairs.drawn), np.shape(draw.uniforms)
    if len(shape) != 2 or shape[0] not in (1, size):
        raise ValueError(
            f"`draw` must hold uniforms of shape ({size}, k) or (1, k), got {shape}; take it from "
            f"{loss}.draw."
        )
    return np.broadcast_to(draw.uniforms, (size, shape[1]))[pairs.owners]
