"""Feature maps by name, with what each estimates and can do.

A new map is a file, and an entry of `FEATURE_MAPS`.
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

# the kernels by name of their formula, of which the one free letter is the sharpness
GAUSSIAN = "exp(-nu |x - y|^2 / 2)"
EXPONENTIAL = "exp(tau x . y)"
QUADRATIC = "alpha (x . y)^2 + 1"


@dataclass(frozen=True)
class FeatureMapSpec:
    """What a feature map declares: how it is made, what it estimates and what it can do.

    Parameters
    ----------
    make : callable
        Makes the map from d, a number of features, a sharpness and ``rng=``; also ``device=`` if
        `cuda`. The sharpness has a default.
    kernel : str
        The formula of what it estimates, whose one parameter is the sharpness.
    summary : str
        One line on how.
    random : bool
        Whether the map is drawn at random, so that a seed and a number of features matter.
    nonnegative : bool
        Whether no estimate is ever negative.
    unbiased : bool
        Whether the mean estimate over seeds is the kernel.
    cuda : bool
        Whether it has kernels for CUDA.

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


def _quadratic(dim: int, num: int, alpha: float = 100.0, *, rng: Any = None) -> FeatureMap:
    """Make the quadratic map, which has a length of its own and draws nothing."""
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
        _quadratic, QUADRATIC, "all products of two entries", random=False, nonnegative=True
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
        Number D of random features; of frequencies, each a cosine and a sine, for ``rff``. The
        quadratic map has ``d (d + 1) / 2 + 1`` features, whatever this is.
    sharpness : float, optional
        Parameter of the kernel: nu, tau or alpha, as ``FEATURE_MAPS[name].kernel`` says. By
        default that of the map: 1, and 100 for alpha.
    rng : int, numpy.random.Generator or None
        Seed of the map.
    device : {"cpu", "cuda"}
        Where features are computed, and stay.

    Returns
    -------
    FeatureMap
        A new map.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or the map refuses an argument.
    MemoryError
        If so many features do not fit.

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
    # left out, not passed as None: each map has a default of its own
    parameters = () if sharpness is None else (as_positive("sharpness", sharpness),)
    return spec.make(dim, num_features, *parameters, **options)
