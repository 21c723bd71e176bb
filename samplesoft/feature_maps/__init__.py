"""Feature maps phi, such that phi(x) . phi(y) estimates a kernel close to exp(tau x . y)."""

from samplesoft.feature_maps.base import FeatureMap
from samplesoft.feature_maps.exponential import PositiveRandomFeatures, RandomMaclaurinFeatures
from samplesoft.feature_maps.fourier import RandomFourierFeatures
from samplesoft.feature_maps.quadratic import QuadraticFeatures
from samplesoft.feature_maps.registry import FEATURE_MAPS, FeatureMapSpec, make_feature_map

__all__ = [
    "FEATURE_MAPS",
    "FeatureMap",
    "FeatureMapSpec",
    "PositiveRandomFeatures",
    "QuadraticFeatures",
    "RandomFourierFeatures",
    "RandomMaclaurinFeatures",
    "make_feature_map",
]
