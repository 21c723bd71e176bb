"""Sampled softmax with NumPy and Numba: exact bias, bounds, Monte Carlo, kernel sampling."""

from samplesoft import feature_maps, samplers
from samplesoft._device.select import to_host
from samplesoft.bias.asymptotic import asymptotic_bias
from samplesoft.bias.bounds import FiniteSampleBounds, finite_sample_bounds
from samplesoft.bias.exact import ExactBias, exact_bias
from samplesoft.bias.moments import GradientMoments, exact_gradient_moments
from samplesoft.bias.monte_carlo import MonteCarloBias, monte_carlo_bias
from samplesoft.bias.theorem1 import Theorem1Bounds, theorem1_bounds
from samplesoft.bias.theorem2 import Theorem2Ratio, theorem2_ratio
from samplesoft.samplers.tree.kernel_tree import KernelTree
from samplesoft.verification.report import VerificationReport
from samplesoft.verification.rows import VerificationRow
from samplesoft.verification.verify import verify

__all__ = [
    "ExactBias",
    "FiniteSampleBounds",
    "GradientMoments",
    "KernelTree",
    "MonteCarloBias",
    "Theorem1Bounds",
    "Theorem2Ratio",
    "VerificationReport",
    "VerificationRow",
    "asymptotic_bias",
    "exact_bias",
    "exact_gradient_moments",
    "feature_maps",
    "finite_sample_bounds",
    "monte_carlo_bias",
    "samplers",
    "theorem1_bounds",
    "theorem2_ratio",
    "to_host",
    "verify",
]
