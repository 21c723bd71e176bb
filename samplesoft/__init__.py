"""Sampled softmax with NumPy and Numba: exact bias, bounds and Monte Carlo."""

from samplesoft.bias.asymptotic import asymptotic_bias
from samplesoft.bias.bounds import FiniteSampleBounds, finite_sample_bounds
from samplesoft.bias.exact import ExactBias, exact_bias
from samplesoft.bias.moments import GradientMoments, exact_gradient_moments
from samplesoft.bias.monte_carlo import MonteCarloBias, monte_carlo_bias
from samplesoft.bias.theorem1 import Theorem1Bounds, theorem1_bounds
from samplesoft.bias.theorem2 import Theorem2Ratio, theorem2_ratio
from samplesoft.verification.report import VerificationReport
from samplesoft.verification.rows import VerificationRow
from samplesoft.verification.verify import verify

__all__ = [
    "ExactBias",
    "FiniteSampleBounds",
    "GradientMoments",
    "MonteCarloBias",
    "Theorem1Bounds",
    "Theorem2Ratio",
    "VerificationReport",
    "VerificationRow",
    "asymptotic_bias",
    "exact_bias",
    "exact_gradient_moments",
    "finite_sample_bounds",
    "monte_carlo_bias",
    "theorem1_bounds",
    "theorem2_ratio",
    "verify",
]
