"""A softmax layer whose classes are sharded over workers, with their optimizers and samplers.

Reading order: `Shard` in ``worker.py``, the range of classes on one worker; `Shards` in
``transport.py``, calls to all shards at once, in this process or (`DaskShards`) on Dask actors;
`ShardedRows` and `ShardedSampler` in ``rows.py``, the class vectors and the sampler of a
`SoftmaxLayer`; the layer; and a linear model with such a layer.

Messages in a step of B contexts with m draws each: contexts to the shards, and the masses of their
proposals back; numbers of draws to each shard, and the draws back; labels and draws, and their
scores back; derivatives in the scores, and gradients in the contexts back. Class vectors are never
sent.
"""

from samplesoft.distributed.layer import ShardedSoftmaxLayer
from samplesoft.distributed.linear_softmax import ShardedOptimizer, require_shardable, shard

__all__ = ["ShardedOptimizer", "ShardedSoftmaxLayer", "require_shardable", "shard"]
