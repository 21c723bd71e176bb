"""Squared bias, variance and mean squared error of the sampled gradient.

Section 9 of ``samplesoft/bias/README.md`` derives the integrals. Each sums squares of vectors over
quadrature nodes, and adds up the magnitudes of their terms for the error estimate. Read the modules
in this order:

- `gradient`: the public function.
- `squares`: integrals of squares over nodes, and their errors.
- `draws`: draws with replacement, and independent inclusion of the classes. The jackknife is in
  ``figures/jackknife_moments.py``.
- `sets`: draws without replacement, section 22 of the README, with nodes in u, in t and on a
  circle.
- `chunks`: classes in chunks, section 23 of the README.
"""

from samplesoft.bias.moments.gradient import GradientMoments as GradientMoments
from samplesoft.bias.moments.gradient import exact_gradient_moments as exact_gradient_moments
