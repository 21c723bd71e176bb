"""The registry of feature maps: for each name, its kernel, its properties and how to make it.

To add a feature map, write a module with its class and add an entry to `FEATURE_MAPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from samplesoft._device.select import require_cpu
from samplesoft._validation import as_choice, as_positive
from samplesoft.feature_maps.base import FeatureMap
from samplesoft.feature_maps.exponential import PositiveRandomFeatures, RandomMaclaurinFeatures
from samplesoft.feature_maps.fourier import RandomFourierFeatures
from samplesoft.feature_maps.quadratic import QuadraticFeatures

# formulas of the kernels; the parameter of a kernel (nu, tau or alpha) is called its sharpness
GAUSSIAN = "exp(-nu |x - y|^2 / 2)"
EXPONENTIAL = "exp(tau x . y)"
QUADRATIC = "alpha (x . y)^2 + 1"


@dataclass(frozen=True)
class FeatureMapSpec:
    """Declaration of a feature map: how it is made, what it estimates and what it can do.

    Parameters
    ----------
    make : callable
        Function that makes the map. Its arguments are the dimension d, a number of features,
        optionally a sharpness, and ``rng=``; if `cuda`, also ``device=``.
    kernel : str
        Formula of the kernel that the features estimate; the sharpness is its only parameter.
    summary : str
        One line on the features.
    random : bool
        Whether the map is random. If not, the seed and the number of features have no effect.
    nonnegative : bool
        Whether estimates are never negative.
    unbiased : bool
        Whether the expectation of the estimate is the kernel.
    cuda : bool
        Whether the map can run on a GPU.

    Examples
    --------
    >>> spec = FEATURE_MAPS["positive"]
    >>> spec.kernel, spec.nonnegative
    ('exp(tau x . y)', True)
    """

    make: Callable[..., FeatureMap]
    kernel: str
    summary: str
    random: bool = True
    nonnegative: bool = False
    unbiased: bool = True
    cuda: bool = False


def _make_quadratic(
    dim: int, num_features: int, alpha: float = 100.0, *, rng: Any = None
) -> FeatureMap:
    """Return the quadratic map, which is not random: `num_features` and `rng` have no effect."""
    return QuadraticFeatures(dim, alpha)


FEATURE_MAPS: dict[str, FeatureMapSpec] = {
    # Rahimi and Recht (2007)
    "rff": FeatureMapSpec(
        RandomFourierFeatures, GAUSSIAN, "cosines and sines at independent frequencies", cuda=True
    ),
    # Yu et al. (2016), section 3
    "rff:orthogonal": FeatureMapSpec(
        partial(RandomFourierFeatures, frequencies="orthogonal"),
        GAUSSIAN,
        "cosines and sines at frequencies orthogonal in blocks: a smaller variance",
        cuda=True,
    ),
    # Yu et al. (2016), section 4; the bias is at most about 0.6 / p
    "rff:structured": FeatureMapSpec(
        partial(RandomFourierFeatures, frequencies="structured"),
        GAUSSIAN,
        "cosines and sines at products of Hadamard matrices: the fastest for long vectors",
        unbiased=False,
        cuda=True,
    ),
    # Blanc and Rendle (2018), section 3.3: exact, at d^2 / 2 features
    "quadratic": FeatureMapSpec(
        _make_quadratic, QUADRATIC, "all products of two entries", random=False, nonnegative=True
    ),
    # Kar and Karnick (2012)
    "maclaurin": FeatureMapSpec(
        RandomMaclaurinFeatures, EXPONENTIAL, "products of random projections"
    ),
    # Choromanski et al. (2021), lemma 1
    "positive": FeatureMapSpec(
        PositiveRandomFeatures,
        EXPONENTIAL,
        "exponentials of random projections",
        nonnegative=True,
        cuda=True,
    ),
    "positive:orthogonal": FeatureMapSpec(
        partial(PositiveRandomFeatures, frequencies="orthogonal"),
        EXPONENTIAL,
        "exponentials of projections orthogonal in blocks: a smaller variance",
        nonnegative=True,
        cuda=True,
    ),
}


def make_feature_map(
    name: str,
    dim: int,
    num_features: int = 1024,
    sharpness: float | None = None,
    *,
    rng: int | np.random.Generator | None = None,
    device: str = "cpu",
) -> FeatureMap:
    """Make a feature map by its name in `FEATURE_MAPS`.

    Parameters
    ----------
    name : str
        A key of `FEATURE_MAPS`.
    dim : int
        Length d of the vectors.
    num_features : int
        Number D of random features; for ``rff`` the number of frequencies, each of which gives a
        cosine and a sine. The quadratic map has ``d (d + 1) / 2 + 1`` features, whatever the value.
    sharpness : float, optional
        Parameter of the kernel: nu, tau or alpha, see ``FEATURE_MAPS[name].kernel``. The default is
        1 for nu and tau, and 100 for alpha.
    rng : int, numpy.random.Generator or None
        Seed of the map.
    device : {"cpu", "cuda"}
        Device of the features.

    Returns
    -------
    FeatureMap
        A new map.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or an argument is invalid for the map.
    MemoryError
        If the features do not fit in memory.

    Examples
    --------
    >>> make_feature_map("quadratic", 3, sharpness=2.0).kernel([1.0, 2.0, 0.0], [1.0, 1.0, 0.0])
    array([[19.]])
    """
    spec = FEATURE_MAPS[as_choice("name", name, FEATURE_MAPS)]
    options: dict[str, Any] = {"rng": rng}
    if spec.cuda:
        options["device"] = device
    else:
        require_cpu(name, device)

    # omit the sharpness rather than pass None, so that the default of the map applies
    parameters = () if sharpness is None else (as_positive("sharpness", sharpness),)
    return spec.make(dim, num_features, *parameters, **options)
