"""Squared bias, variance and mean squared error of the sampled gradient.

Section 9 of ``samplesoft/bias/README.md`` derives the integrals. All of them integrate squares over
nodes, and carry the magnitudes of their terms for the error estimate. Read in this order:

- `gradient`: the public function.
- `squares`: integrals of squares over nodes, and their errors.
- `draws`: draws with replacement, and independent inclusion of the classes; the jackknife is in
  ``figures/jackknife_moments.py``.
- `sets`: draws without replacement, section 22, with nodes in u, in t and on a circle.
- `chunks`: classes in chunks, section 23.
"""

from samplesoft.bias.moments.gradient import GradientMoments as GradientMoments
from samplesoft.bias.moments.gradient import exact_gradient_moments as exact_gradient_moments
