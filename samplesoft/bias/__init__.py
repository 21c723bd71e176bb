"""The exact bias of sampled softmax, its bounds, limit and second moments, and Monte Carlo checks.

``samplesoft/bias/README.md`` derives the formulas.
"""

from samplesoft.bias import certified as certified
from samplesoft.bias import theorems as theorems
from samplesoft.bias.chain import metropolis_bias as metropolis_bias
from samplesoft.bias.chunks.passes import BiasSums as BiasSums
from samplesoft.bias.chunks.passes import ChunkBias as ChunkBias
from samplesoft.bias.chunks.passes import exact_bias_of_chunks as exact_bias_of_chunks
from samplesoft.bias.moving_average.bias import MovingAverageBias as MovingAverageBias
from samplesoft.bias.moving_average.bias import moving_average_bias as moving_average_bias
from samplesoft.bias.moving_average.moments import (
    moving_average_moments as moving_average_moments,
)
from samplesoft.bias.truncation import truncated_bias as truncated_bias
from samplesoft.bias.without_replacement.sets import tries_bias as tries_bias
from samplesoft.bias.without_replacement.stratified import stratified_bias as stratified_bias
