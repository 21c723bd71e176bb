"""A softmax layer with classes sharded over workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import cpu
from samplesoft._random import stream_key
from samplesoft._validation import (
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_counts,
    require_instance,
)
from samplesoft.distributed.rows import ShardedRows, ShardedSampler
from samplesoft.distributed.transport import DaskShards, Shards
from samplesoft.distributed.worker import CLASS_VECTORS, SHARDED
from samplesoft.losses.base import Loss
from samplesoft.losses.sampled import SampledLoss
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.optimizers.base import Optimizer
from samplesoft.samplers.frequency import unigram_weights
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs
from samplesoft.search import top_k_classes


class ShardedSoftmaxLayer(SoftmaxLayer):
    r"""A `SoftmaxLayer` with classes sharded over workers, each with an optimizer and a sampler.

    Use this class if one machine cannot hold the classes, or is too slow to draw and update them.
    Otherwise use a `SoftmaxLayer`, which is faster: a step of this layer takes five round trips.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        Initial class vectors, float32 or float64: an array, which may be memory-mapped, or the
        result of `samplesoft.training.read_shards`, which includes the state of the optimizer.
    loss : SampledLoss
        A loss on draws with replacement, on the CPU.
    sampler : str
        ``"uniform"``, ``"unigram"``, ``"clusters"``, one of the ``"rff"`` family, ``"positive"`` or
        ``"quadratic"``: a key of `samplesoft.samplers.SAMPLERS`. Each shard has such a sampler.
    num_sampled : int
        Number of draws m for each example.
    optimizer : Optimizer
        Each shard has a copy. In each step, the copies use the `learning_rate` of this optimizer.
    workers : int, distributed.Client or str
        A number of shards in this process, for tests; or a Dask cluster, which gets one shard per
        worker: the address of its scheduler, or a client. A client made with
        ``direct_to_workers=True`` sends messages without passing the scheduler.
    counts : array_like, shape (n,), optional
        Count of each class, for ``"unigram"``.
    shared, update_every
        As for a `SoftmaxLayer`.
    rng : int, numpy.random.Generator or None
        Seed of the samplers.
    **options
        Fields of `samplesoft.samplers.SamplerInputs`, such as `nu` and `num_features`.

    Attributes
    ----------
    shards : Shards
        The shards, with the counters `round_trips`, `bytes_sent` and `bytes_received`.
    steps : int
        Steps taken by the optimizers.

    Raises
    ------
    MemoryError
        If a worker has too little memory for its shard.
    RuntimeError
        In any method, if a worker is lost; the message names the last checkpoint.
    TypeError, ValueError
        If an argument is malformed, versions differ between this process and the workers, or no
        scheduler answers at an address within ten seconds.

    Notes
    -----
    A step consists of `forward`, `backward` and `update`. Gradients of class vectors stay on the
    workers, which run their optimizers in `update`; `backward` returns only the ids of the rows.

    **Draws.** For each context, shard s returns :math:`M_s`, the sum of the proposal weights of its
    classes. Depending on the sampler, this is the number of its classes, the sum of their weights,
    a sum over its clusters, or the value at the root of its tree. A draw selects shard s with
    probability :math:`M_s / \sum_r M_r`, and then class j with probability :math:`q_{j|s}`. The
    product of the two probabilities is the exact proposal q, whatever the sums are. With one shard,
    draws, losses and vectors equal the results of a `SoftmaxLayer` to the last bit. With several
    shards, uniform and unigram draws have the same distribution as without shards.

    **Partial steps.** If the optimizer of one shard rejects a step, other shards may have taken it.
    `update` then raises an error, and training must continue from a checkpoint.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.losses import SampledSoftmaxLoss
    >>> from samplesoft.optimizers import make_optimizer
    >>> rng = np.random.default_rng(0)
    >>> rows, h, labels = rng.normal(size=(50, 4)), rng.normal(size=(8, 4)), np.arange(8)
    >>> sgd = make_optimizer("sgd", 2.0)
    >>> layer = ShardedSoftmaxLayer(
    ...     rows, SampledSoftmaxLoss(), "uniform", 10, optimizer=sgd, workers=3
    ... )
    >>> before = layer.evaluate(h, labels).loss
    >>> for step in range(20):
    ...     loss, cache = layer.forward(h, labels, rng=step)
    ...     dh, _ = layer.backward(cache)
    ...     layer.update()
    >>> layer.evaluate(h, labels).loss < before
    True
    """

    def __init__(
        self,
        class_embeddings: Any,
        loss: Loss,
        sampler: str = "clusters",
        num_sampled: int = 100,
        *,
        optimizer: Optimizer,
        workers: Any = 1,
        counts: ArrayLike | None = None,
        shared: bool | None = None,
        update_every: int = 1,
        rng: int | np.random.Generator | None = None,
        **options: Any,
    ) -> None:
        require_instance("optimizer", optimizer, Optimizer)
        if not isinstance(loss, SampledLoss) or loss.device != "cpu":
            raise ValueError(
                "`loss` must be a sampled loss on the processor for classes in shards, got "
                f"{type(loss).__name__}; use a SampledSoftmaxLoss."
            )

        spec = SAMPLERS[as_choice("sampler", sampler, SHARDED)]
        all_rows = class_embeddings
        is_stored = hasattr(class_embeddings, "part")  # whether it is a result of `read_shards`
        if not is_stored:
            all_rows = cpu.shaped_rows(CLASS_VECTORS, class_embeddings)
        n, d = all_rows.shape
        dtype = all_rows.dtype

        # one seed for all shards: with other random features, sums of weights are not comparable
        options["rng"] = rng if isinstance(rng, int) else int(stream_key(rng))
        inputs = SamplerInputs(counts=np.ones(1) if counts is None else counts, **options)

        weights = None
        if spec.needs_counts:
            class_counts = as_counts("counts", as_array("counts", counts), n)
            weights = unigram_weights(class_counts, inputs.power)

        is_local = isinstance(workers, (int, np.integer))
        shards = Shards(as_count("workers", workers)) if is_local else DaskShards(workers)
        if shards.num > max(1, n // 2):
            raise ValueError(
                f"`workers` must be at most {max(1, n // 2)} for {n} classes, two for each, got "
                f"{shards.num}; use fewer."
            )

        shards.bounds = np.linspace(0, n, shards.num + 1).astype(np.int64)

        # arrays of a shard that are as large as its vectors: the vectors, two copies while they are
        # sent, the states of the optimizer, and two copies of a sampler that follows the vectors
        copies = 3 + len(optimizer._state_names) + 2 * spec.follows_vectors
        size = int(np.diff(shards.bounds).max()) * d * dtype.itemsize
        shards.require_memory(f"shards of {n:,} classes", copies * size)

        for s, (start, stop) in enumerate(shards.ranges):
            if is_stored:
                rows, state = all_rows.part(start, stop)
            else:
                rows = all_rows[start:stop]
                state = None
            rows = cpu.float_rows(CLASS_VECTORS, np.asarray(rows))
            shard_weights = None if weights is None else weights[start:stop]
            shard_arguments = (
                shard_weights,
                loss,
                sampler,
                options,
                optimizer,
                as_count("update_every", update_every),
            )
            shards.make_shard(s, rows, state, *shard_arguments)

        if is_stored:
            shards.set_checkpoint_hint(all_rows.folder)
        self.steps: int = all_rows.steps if is_stored else 0
        self.shards = shards
        self.optimizer = optimizer
        self._sharded = ShardedRows(shards, (n, d), dtype)
        super().__init__(
            self._sharded,
            loss,
            ShardedSampler(self._sharded, spec.follows_vectors),
            num_sampled,
            shared=shared,
            update_every=update_every,
        )

    def update(self, ids: Any = None) -> None:
        """Run the optimizers on the workers, with the gradients of the last `backward`.

        Every `update_every` calls, the samplers on the workers are updated too.

        Parameters
        ----------
        ids : object
            Ignored, because the workers know the ids of the changed rows.

        Raises
        ------
        RuntimeError
            If a worker is lost, or has missed an earlier step.
        TypeError, ValueError
            If `backward` has not been called since the last step, or the optimizer of a shard
            rejects the step.
        """
        arguments = [(self.optimizer.learning_rate, self.steps)] * self.shards.num
        are_done = self.shards.call_all("step", arguments)
        if not all(are_done):
            raise self.shards.lost_worker_error(
                are_done.index(False), "it was started again, or refused a step"
            )
        self.steps += 1

    def refresh(self) -> None:
        """Rebuild the samplers on the workers from the current class vectors."""
        self.shards.call_all("refresh", [()] * self.shards.num)

    def predict_topk(
        self, h: ArrayLike, k: int, *, leave_out: Any = None
    ) -> tuple[IntArray, NDArray[Any]]:
        """Return the k classes with the largest scores, as `samplesoft.metrics.top_k_classes` does.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        k : int
            Number of classes, at most n.
        leave_out : scipy.sparse matrix, shape (B, n), optional
            Row b has nonzero entries for the classes to exclude for context b.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes by decreasing score; among equal scores by increasing index.
        scores : ndarray, shape (B, k)
            Scores of these classes.
        """
        loss = self.loss
        options: dict[str, Any] = {
            "tau": loss.tau,
            "normalize": loss.normalize,
            "absolute": loss.absolute,
        }
        return top_k_classes(h, self.class_embeddings, k, leave_out=leave_out, **options)
