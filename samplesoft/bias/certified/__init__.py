"""Certified results: intervals that are proved to contain the bias, by ball arithmetic.

They need python-flint 0.9 or later, which the extra ``certified`` of the package brings.

- `bias`: `certified_bias`, for draws with replacement, independent draws, and sets of draws.
- `integral`: the means of 1 / S and log S over draws, by a rule whose error is known beforehand.
- `theorems`: claims about the bias, which are proved or refuted for given numbers.
- `balls`: exact inputs, the working precision, and rounding outwards to float64.
"""

from samplesoft.bias.certified.bias import CertifiedBias as CertifiedBias
from samplesoft.bias.certified.bias import certified_bias as certified_bias
from samplesoft.bias.certified.theorems import CertifiedClaim as CertifiedClaim
from samplesoft.bias.certified.theorems import Intervals as Intervals
from samplesoft.bias.certified.theorems import (
    certified_finite_sample_bounds as certified_finite_sample_bounds,
)
from samplesoft.bias.certified.theorems import certified_label_bounds as certified_label_bounds
from samplesoft.bias.certified.theorems import certified_theorem1 as certified_theorem1
from samplesoft.bias.certified.theorems import certified_theorem2 as certified_theorem2
