"""Samplers: proposal distributions over classes, with the exact probability of each draw.

Each sampler has the methods `sample`, `log_prob`, `update`, and `probs`, which returns the
probabilities of all n classes for `exact_bias` and for tests.

===================================  ==========================================  ==============
sampler                              draws in proportion to                      cost of a draw
===================================  ==========================================  ==============
`UniformSampler`                     1                                           O(1)
`LogUniformSampler`                  about 1 / rank, by count or by index        O(1)
`UnigramSampler`, `WeightedSampler`  counts to a power; your own weights         O(1)
`LearnedUnigramSampler`              counts that `observe` adds to               O(log n)
`StreamingUnigramSampler`            recent frequency, by gaps between labels    O(log n)
`BigramSampler`                      counts after the previous state             O(log n)
`SoftmaxSampler`                     the softmax itself                          O(n d)
`ClusterSampler`                     about exp(tau h.c), by cells of classes     O(d n**(1/3))
`LSHSampler`                         number of shared buckets in L tables        O(L)
`RFSoftmaxSampler`                   about exp(nu h.c), by random features       O(D log n)
`QuadraticSampler`                   alpha (h.c)**2 + 1                          O(d**2 log n)
`PositiveSampler`                    about exp(tau h.c), by positive features    O(D log n)
`KernelSampler`                      your own kernel                             O(F log n)
`MixtureSampler`                     a mixture of two proposals                  sum of both
`CertainSampler`                     another proposal; adds fixed classes        as the other
`TwoPassSampler`                     the softmax over drawn candidates           O(candidates)
`MetropolisSampler`                  last state of a Metropolis-Hastings chain   O(n d)
`DenseSampler`                       weights from your own method                O(n)
===================================  ==========================================  ==============

Which one? With up to about 10,000 classes, use `SoftmaxSampler`: it has no bias, and takes about as
long as the others. With more classes, use `ClusterSampler`: with 100,000 identifiers of programs
and m = 100 its bias is 0.0009, compared with 0.033 for `RFSoftmaxSampler` with D = 1024 and 0.42
for uniform draws. Compared with random features, clusters take half the time for draws and a tenth
of the time for updates. `LSHSampler` draws in a fifth of the time of clusters, with 20 to 40 times
their bias, which is a tenth of the bias of uniform draws. With a million classes and a batch of
1,024, a training step with clusters is 34 times faster than with the full softmax, and twice as
fast as with 256 random features.

`UniformSampler` and `UnigramSampler` are the fastest, and have the largest bias. They often suffice
if a batch shares a set of a thousand draws. A `CertainSampler` removes much of their bias for the
cost of a few hundred scores of frequent classes. ``figures/bias_vs_cost.png`` shows bias against
time, and ``figures/throughput.png`` shows the time of a step. `UniformSampler`,
`LogUniformSampler`, `UnigramSampler` and `WeightedSampler` support draws without replacement
(``replace=False``), with exact inclusion probabilities.

In addition, `gumbel_top_k` draws distinct classes from a softmax with given logits, and
`LazyGumbel` draws from a softmax by means of the nearest neighbours of a context.
"""

from samplesoft.samplers.base import Draw, Sampler
from samplesoft.samplers.bigram import BigramSampler, effective_sample_size, sample_until
from samplesoft.samplers.clusters.sampler import ClusterSampler
from samplesoft.samplers.composed import CertainSampler, MixtureSampler, TwoPassSampler
from samplesoft.samplers.dense import DenseSampler
from samplesoft.samplers.frequency import (
    LearnedUnigramSampler,
    LogUniformSampler,
    StreamingUnigramSampler,
    UnigramSampler,
)
from samplesoft.samplers.gumbel import GumbelDraw, LazyGumbel, gumbel_top_k
from samplesoft.samplers.kernel import (
    KernelSampler,
    PositiveSampler,
    QuadraticSampler,
    RFSoftmaxSampler,
)
from samplesoft.samplers.lsh import LSHSampler
from samplesoft.samplers.metropolis import MetropolisSampler
from samplesoft.samplers.registry import (
    SAMPLERS,
    SamplerInputs,
    SamplerSpec,
    dense_proposals,
    make_certain_sampler,
    make_sampler,
)
from samplesoft.samplers.softmax import SoftmaxSampler
from samplesoft.samplers.static import UniformSampler, WeightedSampler
from samplesoft.samplers.tree.kernel_tree import KernelTree

__all__ = [
    "BigramSampler",
    "CertainSampler",
    "ClusterSampler",
    "SAMPLERS",
    "DenseSampler",
    "Draw",
    "GumbelDraw",
    "KernelSampler",
    "KernelTree",
    "LSHSampler",
    "LazyGumbel",
    "LearnedUnigramSampler",
    "LogUniformSampler",
    "MetropolisSampler",
    "MixtureSampler",
    "PositiveSampler",
    "QuadraticSampler",
    "RFSoftmaxSampler",
    "Sampler",
    "SamplerInputs",
    "SamplerSpec",
    "SoftmaxSampler",
    "StreamingUnigramSampler",
    "TwoPassSampler",
    "UniformSampler",
    "UnigramSampler",
    "WeightedSampler",
    "dense_proposals",
    "effective_sample_size",
    "gumbel_top_k",
    "make_certain_sampler",
    "make_sampler",
    "sample_until",
]
