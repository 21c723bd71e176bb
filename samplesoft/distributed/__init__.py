"""A softmax layer whose classes are sharded over workers, with their optimizers and samplers.

Read in this order: `Shard` in ``worker.py``, what one worker keeps and answers; `Shards` in
``transport.py``, all of them, who are asked at once, in this process or (`DaskShards`) as Dask
actors; `ShardedRows` and `ShardedSampler` in ``rows.py``, which stand for class vectors and for
their sampler where a `SoftmaxLayer` looks at them; the layer; and a linear model with such a layer.

What travels in a step of B contexts with m draws each: contexts to the shards, and their masses
back; how many draws each shard owes, and the draws back; labels and draws, and their scores back;
derivatives in the scores, and those in the contexts back. Class vectors never do.
"""

from samplesoft.distributed.layer import ShardedSoftmaxLayer
from samplesoft.distributed.linear_softmax import ShardedOptimizer, require_shardable, shard

__all__ = ["ShardedOptimizer", "ShardedSoftmaxLayer", "require_shardable", "shard"]
