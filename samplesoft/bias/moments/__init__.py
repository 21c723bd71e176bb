"""How far one sampled gradient is from the full one: squared bias, variance, mean squared error.

Section 9 of ``samplesoft/bias/README.md`` derives the integrals. They have one shape, an integral
over nodes of squares, and each comes with the sizes of its terms, which say how large the error is.
Read in this order:

- `gradient`: the public function.
- `squares`: integrals of squares over nodes, and their errors.
- `draws`: draws with replacement, and classes that are included independently of each other;
  the jackknife is in ``figures/jackknife_moments.py``.
- `sets`: draws without replacement, section 22, with nodes in two times and on a circle.
- `chunks`: classes in chunks, section 23.
"""

from samplesoft.bias.moments.gradient import GradientMoments as GradientMoments
from samplesoft.bias.moments.gradient import exact_gradient_moments as exact_gradient_moments
