"""Bounds on the bias for every number of draws, and the number of draws for a given bias.

Section 14 of ``samplesoft/bias/README.md`` proves the bounds. Read the modules in this order:

- `finite`: the public function, and the bounds of one example.
- `classes`: the bounds of each class, before the constraint that the bias sums to 0.
- `gaps`: bounds on the gap E[1/S] - 1/E[S], where S is the sampled sum.
- `num_sampled`: the search for a number of draws.
- `chunks`: the bounds for classes in chunks, section 23 of the README.
"""

from samplesoft.bias.bounds.finite import FiniteSampleBounds as FiniteSampleBounds
from samplesoft.bias.bounds.finite import finite_sample_bounds as finite_sample_bounds
from samplesoft.bias.bounds.num_sampled import NumSampled as NumSampled
from samplesoft.bias.bounds.num_sampled import num_sampled_for as num_sampled_for
