"""Sampled softmax with NumPy and Numba: exact bias, bounds, Monte Carlo, kernel sampling.

Names and modules are imported at first use, so ``import samplesoft`` itself is fast. If the
environment variable ``EAGER_IMPORT`` is set, all of them are imported at once.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# For type checkers and editors. At run time, `_MODULE_OF` maps the same names to their modules.
if TYPE_CHECKING:
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
# The functions that users need most, by name, with the module that defines each.
_MODULE_OF = {
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
__all__ = ["__version__", *_MODULE_OF, *_MODULES]  # without sklearn, an optional dependency


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    """Return the version of the installed package, which pyproject.toml defines."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:  # a source tree on the path that is not installed
        return "0+unknown"


if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name of `__all__`, or `sklearn`, at first use (PEP 562)."""
        if name == "__version__":
            value = _version()
        elif name in _MODULE_OF:
            value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
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

    if os.environ.get("EAGER_IMPORT"):  # SPEC 1 of Scientific Python: shows import errors
        for _name in __all__:
            __getattr__(_name)
