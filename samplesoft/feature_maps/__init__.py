"""Feature maps: phi(x) . phi(y) estimates a kernel that stands in for exp(tau x . y)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from samplesoft.feature_maps.base import FeatureMap
from samplesoft.feature_maps.fourier import RandomFourierFeatures
from samplesoft.feature_maps.maclaurin import RandomMaclaurinFeatures
from samplesoft.feature_maps.positive import PositiveRandomFeatures
from samplesoft.feature_maps.quadratic import QuadraticFeatures


def _quadratic(dim: int, num: int, alpha: float = 100.0, *, rng: Any = None) -> FeatureMap:
    """Make the quadratic map, which has a width of its own and draws nothing."""
    return QuadraticFeatures(dim, alpha)


# each entry is called with d, a number of features (Fourier: of frequencies), a sharpness (nu,
# alpha or tau), and rng=
FEATURE_MAPS: dict[str, Callable[..., FeatureMap]] = {
    "rff": RandomFourierFeatures,
    "rff:orthogonal": partial(RandomFourierFeatures, frequencies="orthogonal"),
    "rff:structured": partial(RandomFourierFeatures, frequencies="structured"),
    "quadratic": _quadratic,
    "maclaurin": RandomMaclaurinFeatures,
    "positive": PositiveRandomFeatures,
    "positive:orthogonal": partial(PositiveRandomFeatures, frequencies="orthogonal"),
}

__all__ = [
    "FEATURE_MAPS",
    "FeatureMap",
    "PositiveRandomFeatures",
    "QuadraticFeatures",
    "RandomFourierFeatures",
    "RandomMaclaurinFeatures",
]
