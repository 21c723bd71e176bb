"""Sampled softmax with NumPy and Numba: exact bias, bounds, Monte Carlo, kernel sampling.

Names and modules are loaded when they are first used, so ``import samplesoft`` itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors read; `_HOMES` says the same to Python
    from samplesoft import (
        bias,
        data,
        feature_maps,
        losses,
        metrics,
        models,
        samplers,
        schemes,
        sklearn,
        training,
        verification,
    )
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

    __version__: str

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
    "__version__",
    "asymptotic_bias",
    "bias",
    "data",
    "exact_bias",
    "exact_gradient_moments",
    "feature_maps",
    "finite_sample_bounds",
    "losses",
    "metrics",
    "models",
    "monte_carlo_bias",
    "samplers",
    "schemes",
    "sklearn",
    "theorem1_bounds",
    "theorem2_ratio",
    "to_host",
    "training",
    "verification",
    "verify",
]

_HOMES = {
    "ExactBias": "bias.exact",
    "FiniteSampleBounds": "bias.bounds",
    "GradientMoments": "bias.moments",
    "KernelTree": "samplers.tree.kernel_tree",
    "MonteCarloBias": "bias.monte_carlo",
    "Theorem1Bounds": "bias.theorem1",
    "Theorem2Ratio": "bias.theorem2",
    "VerificationReport": "verification.report",
    "VerificationRow": "verification.rows",
    "asymptotic_bias": "bias.asymptotic",
    "exact_bias": "bias.exact",
    "exact_gradient_moments": "bias.moments",
    "finite_sample_bounds": "bias.bounds",
    "monte_carlo_bias": "bias.monte_carlo",
    "theorem1_bounds": "bias.theorem1",
    "theorem2_ratio": "bias.theorem2",
    "to_host": "_device.select",
    "verify": "verification.verify",
}


if not TYPE_CHECKING:  # type checkers would take any name for granted

    def __getattr__(name: str) -> Any:
        """Load a name of `__all__` when it is first used (PEP 562)."""
        if name == "__version__":
            value = _version()
        elif name in _HOMES:
            value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        elif name in __all__:
            value = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    """Return the version of the installed package; pyproject.toml is its only source."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:  # a source tree that is on the path and not installed
        return "0+unknown"
