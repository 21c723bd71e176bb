"""Sampled softmax with NumPy and Numba: exact bias, bounds, Monte Carlo, kernel sampling.

Names and modules are loaded when they are first used, so ``import samplesoft`` itself is quick.
With ``EAGER_IMPORT=1`` in the environment all are loaded at once.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors read; `_HOMES` says the same to Python
    from samplesoft import bias as bias
    from samplesoft import checking as checking
    from samplesoft import data as data
    from samplesoft import distributed as distributed
    from samplesoft import feature_maps as feature_maps
    from samplesoft import losses as losses
    from samplesoft import metrics as metrics
    from samplesoft import models as models
    from samplesoft import optimizers as optimizers
    from samplesoft import recommend as recommend
    from samplesoft import samplers as samplers
    from samplesoft import schemes as schemes
    from samplesoft import sklearn as sklearn
    from samplesoft import teaching as teaching
    from samplesoft import training as training
    from samplesoft import tuning as tuning
    from samplesoft import verification as verification
    from samplesoft._device.select import to_host as to_host
    from samplesoft.bias.asymptotic import asymptotic_bias as asymptotic_bias
    from samplesoft.bias.asymptotic import self_normalized_terms as self_normalized_terms
    from samplesoft.bias.bounds.finite import finite_sample_bounds as finite_sample_bounds
    from samplesoft.bias.bounds.num_sampled import num_sampled_for as num_sampled_for
    from samplesoft.bias.exact import exact_bias as exact_bias
    from samplesoft.bias.moments.gradient import exact_gradient_moments as exact_gradient_moments
    from samplesoft.bias.monte_carlo import monte_carlo_bias as monte_carlo_bias
    from samplesoft.checking.check import check_loss as check_loss
    from samplesoft.tuning.tune import tune as tune
    from samplesoft.verification.verify import verify as verify

    __version__: str

_MODULES = (
    "bias",
    "checking",
    "data",
    "distributed",
    "feature_maps",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "recommend",
    "samplers",
    "schemes",
    "teaching",
    "training",
    "tuning",
    "verification",
)
# The functions that most people need, by the module that defines them. What they return is a class
# of that module.
_HOMES = {
    "to_host": "_device.select",
    "asymptotic_bias": "bias.asymptotic",
    "self_normalized_terms": "bias.asymptotic",
    "finite_sample_bounds": "bias.bounds.finite",
    "num_sampled_for": "bias.bounds.num_sampled",
    "exact_bias": "bias.exact",
    "exact_gradient_moments": "bias.moments.gradient",
    "monte_carlo_bias": "bias.monte_carlo",
    "check_loss": "checking.check",
    "tune": "tuning.tune",
    "verify": "verification.verify",
}
__all__ = ["__version__", *_HOMES, *_MODULES]  # not sklearn, which stars and tools would import


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    """Return the version of the installed package; pyproject.toml is its only source."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:  # a source tree that is on the path and not installed
        return "0+unknown"


if not TYPE_CHECKING:  # type checkers would take any name for granted

    def __getattr__(name: str) -> Any:
        """Load a name of `__all__`, or `sklearn`, when it is first used (PEP 562)."""
        if name == "__version__":
            value = _version()
        elif name in _HOMES:
            value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        elif name in _MODULES:
            value = import_module(f"{__name__}.{name}")
        elif name == "sklearn":
            try:
                value = import_module(f"{__name__}.sklearn")
            except ImportError as error:
                raise AttributeError(str(error)) from error
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    if os.environ.get("EAGER_IMPORT"):  # as SPEC 1 has it: what cannot be loaded is known at once
        for _name in __all__:
            __getattr__(_name)
