"""A softmax layer whose classes are sharded over workers, each with an optimizer and a sampler.

Read in this order:

- ``worker.py``: `Shard`, the range of classes on one worker.
- ``transport.py``: `Shards`, which calls all shards at once in this process, and `DaskShards`,
  which does so on Dask actors.
- ``rows.py``: `ShardedRows` and `ShardedSampler`, the class vectors and the sampler of the layer.
- ``layer.py``: the layer. ``linear_softmax.py``: a linear model with such a layer.

A training step of B contexts with m draws each sends five messages to the shards, which answer:

1. the contexts; the answers are the masses of the shards' proposals;
2. the number of draws for each shard; the answers are the draws;
3. the labels and draws; the answers are their scores;
4. the derivatives with respect to the scores; the answers are gradients of the contexts;
5. the learning rate, with which the shards run their optimizers.

Class vectors are never sent.
"""

from samplesoft.distributed.layer import ShardedSoftmaxLayer
from samplesoft.distributed.linear_softmax import ShardedOptimizer, require_shardable, shard

__all__ = ["ShardedOptimizer", "ShardedSoftmaxLayer", "require_shardable", "shard"]
