"""What the jackknife's gradient and loss share: its kernel under the integral, and where to cut."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import erfc

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.transform import Nodes

# of the smooth step, in log v: wide beside the nodes, narrow beside the integrand
_STEP_WIDTH = 0.3
_STEP_END = 6.5  # widths beyond the cut, where the step has fallen to 4e-20, and is taken for 0


class Kernel(NamedTuple):
    """A kernel g and its derivatives in s, over exp(-(m - 1) s), all (K,).

    For m draws the bias is the integral of m exp(-m s) H(s), and the loss bias that of exp(-m s)
    K(s). The jackknife takes g'' and -g' in place of these exponentials, eqs. (B13) and (B70). All
    are polynomials in 1 - exp(-s); sizes are those of their terms without signs.
    """

    s: FloatArray  # -log theta at the nodes
    decay: FloatArray  # exp(-(m - 1) s)
    values: tuple[FloatArray, ...]  # of g, g', g''
    sizes: tuple[FloatArray, ...]


class Step(NamedTuple):
    """A smooth step from 1 to 0, (K,), v times its derivative, and v**2 times its second."""

    value: FloatArray
    first: FloatArray
    second: FloatArray


def negative_log_theta(law: DrawLaw, nodes: Nodes) -> FloatArray:
    """Return s = -log theta = v B - log T at the nodes (K,), a sum of numbers above 0."""
    v_base: FloatArray = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    return v_base - nodes.log_transform


def make_kernel(law: DrawLaw, s: FloatArray) -> Kernel:
    """Return the kernel of the jackknife at numbers s (K,), eq. (B14)."""
    m = float(law.num_draws)
    x = -np.expm1(-s)
    values = -x, m * x - 1.0, 2.0 * m - 1.0 - m * m * x
    sizes = x, m * x + 1.0, 2.0 * m - 1.0 + m * m * x
    return Kernel(s, np.exp(-(m - 1.0) * s), values, sizes)


def choose_cuts(law: DrawLaw, nodes: Nodes, s: FloatArray) -> list[float]:
    """Return places log v for a cut, those first that most often suffice.

    They are where s stalls, before everything, where m draws have decayed, and nowhere (inf).
    A stall is a step before v ds/dv has fallen to half of s. With the decay, exp(-m s) m**2 is
    about exp(-10): the plain difference is harmless beyond it.
    """
    m = law.num_draws
    decayed = float(np.interp((10.0 + 2.0 * np.log(m)) / m, s, nodes.x))
    stalled = nodes.x[-nodes.gap > 0.5 * s][:1] - _STEP_END * _STEP_WIDTH
    if not len(stalled):
        return [np.inf, decayed, -np.inf]
    return [float(stalled[0]), -np.inf, decayed, np.inf]


def smooth_step(x: FloatArray, cut: float) -> Step:
    """Return a step down at log v = `cut`, at the nodes `x` (K,)."""
    if np.isinf(cut):
        return Step(np.full_like(x, float(cut > 0.0)), np.zeros_like(x), np.zeros_like(x))
    t = (x - cut) / _STEP_WIDTH
    here = t < _STEP_END
    first = np.where(here, -np.exp(-(t**2)) / (_STEP_WIDTH * math.sqrt(math.pi)), 0.0)
    return Step(0.5 * erfc(t) * here, first, -first * (2.0 * t / _STEP_WIDTH + 1.0))
