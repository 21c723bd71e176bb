"""A softmax layer whose classes are sharded over workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import cpu
from samplesoft._random import as_key
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
    r"""A `SoftmaxLayer` whose classes lie on several workers, with their optimizer and sampler.

    It pays where one machine does not hold the classes, or does not draw and update fast enough;
    else a `SoftmaxLayer` is quicker, for a step here takes five round trips.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        Class vectors at the start, float32 or float64: an array, which may be mapped from a file,
        or what `samplesoft.training.read_shards` returns, with the state of the optimizer.
    loss : SampledLoss
        A loss on draws with replacement, on the processor.
    sampler : str
        ``"uniform"``, ``"unigram"``, ``"clusters"``, one of the ``"rff"`` family, ``"positive"`` or
        ``"quadratic"``: a key of `samplesoft.samplers.SAMPLERS`. Each shard has its own.
    num_sampled : int
        Number of draws m of an example.
    optimizer : Optimizer
        Of which each shard takes a copy. The layer goes by the `learning_rate` of this one.
    workers : int, distributed.Client or str
        Number of shards in this process, for tests; or a Dask cluster, each worker of which takes
        one: the address of its scheduler, or its client, which should have been made with
        ``direct_to_workers=True``; else all goes through the scheduler.
    counts : array_like, shape (n,), optional
        How often each class occurs, for ``"unigram"``.
    shared, update_every
        As for a `SoftmaxLayer`.
    rng : int, numpy.random.Generator or None
        Seed of the samplers.
    **options
        Fields of `samplesoft.samplers.SamplerInputs`, such as `nu` and `num_features`.

    Attributes
    ----------
    shards : Shards
        With the `round_trips`, `bytes_sent` and `bytes_received` so far.
    steps : int
        Steps that the optimizers have taken.

    Raises
    ------
    MemoryError
        If a worker has not the memory for its shard.
    RuntimeError
        If a worker is lost, in any method: it names the last checkpoint.
    TypeError, ValueError
        If an argument is malformed, versions differ between this process and the workers, or no
        scheduler answers at an address within ten seconds.

    Notes
    -----
    A step is `forward`, `backward` and `update`. The derivatives of class vectors stay with the
    workers, which take the step of the optimizer in `update`; `backward` returns the ids of the
    rows alone.

    **Draws.** A shard says the mass of its proposal for each context: the number of its classes,
    the sum of their weights, that of its cells, or that at the root of its tree. A draw takes shard
    s with :math:`M_s / \sum_r M_r`, and there class j with :math:`q_{j|s}`, so that q is their
    product, whatever the masses are worth. With one shard draws, losses and vectors are those of a
    `SoftmaxLayer` to the bit; with more, draws by counts and uniform ones have the same
    distribution.

    **Partial steps.** Where the optimizer of a shard refuses a step, others may have taken it. Go
    on from a checkpoint then; `update` refuses to go on otherwise.

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
                f"{type(loss).__name__}; take a SampledSoftmaxLoss."
            )
        spec = SAMPLERS[as_choice("sampler", sampler, SHARDED)]
        stored, whole = hasattr(class_embeddings, "part"), class_embeddings
        if not stored:
            whole = cpu.shaped_rows(CLASS_VECTORS, class_embeddings)
        (n, d), dtype, weights = whole.shape, whole.dtype, None
        # a seed for all: features of one map have masses that can be compared
        options["rng"] = rng if isinstance(rng, int) else int(as_key(rng))
        inputs = SamplerInputs(counts=np.ones(1) if counts is None else counts, **options)
        if spec.needs_counts:
            counted = as_counts("counts", as_array("counts", counts), n)
            weights = unigram_weights(counted, inputs.power)
        local = isinstance(workers, (int, np.integer))
        shards = Shards(as_count("workers", workers)) if local else DaskShards(workers)
        if shards.num > max(1, n // 2):
            raise ValueError(
                f"`workers` must be at most {max(1, n // 2)} for {n} classes, two for each, got "
                f"{shards.num}; take fewer."
            )
        shards.bounds = np.linspace(0, n, shards.num + 1).astype(np.int64)
        # vectors and two copies while they come, states, and what a sampler copies
        copies = 3 + len(optimizer._state_names) + 2 * spec.follows_vectors
        size = int(np.diff(shards.bounds).max()) * d * dtype.itemsize
        shards.require_memory(f"shards of {n:,} classes", copies * size)
        for s, (lo, hi) in enumerate(shards.ranges):
            rows, state = whole.part(lo, hi) if stored else (whole[lo:hi], None)
            rows = cpu.float_rows(CLASS_VECTORS, np.asarray(rows))
            part = None if weights is None else weights[lo:hi]
            made = (part, loss, sampler, options, optimizer, as_count("update_every", update_every))
            shards.start(s, rows, state, *made)
        if stored:
            shards.name_checkpoint(whole.folder)
        self.steps: int = whole.steps if stored else 0
        self.shards, self.optimizer = shards, optimizer
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
        """Let the workers take a step by the derivatives of the last `backward`.

        Their samplers follow, every `update_every` calls.

        Parameters
        ----------
        ids : object
            Ignored: the workers know which rows have changed.

        Raises
        ------
        RuntimeError
            If a worker is lost, or has not taken all steps before.
        TypeError, ValueError
            If there are no such derivatives, or the optimizer of a shard refuses the step.
        """
        told = [(self.optimizer.learning_rate, self.steps)] * self.shards.num
        done = self.shards.ask("step", told)
        if not all(done):
            raise self.shards.lost(done.index(False), "it was started again, or refused a step")
        self.steps += 1

    def refresh(self) -> None:
        """Let the samplers be as if just made from the class vectors."""
        self.shards.ask("refresh", [()] * self.shards.num)

    def predict_topk(
        self, h: ArrayLike, k: int, *, leave_out: Any = None
    ) -> tuple[IntArray, NDArray[Any]]:
        """Find the classes of the largest scores, as `samplesoft.metrics.top_k_classes` does.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        k : int
            How many classes, at most n.
        leave_out : scipy.sparse matrix, shape (B, n), optional
            Classes that are not wanted for a context.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes of each example, the best first, and of classes of equal score the first one.
        scores : ndarray, shape (B, k)
            Their scores.
        """
        loss = self.loss
        scored: dict[str, Any] = {
            "tau": loss.tau,
            "normalize": loss.normalize,
            "absolute": loss.absolute,
        }
        return top_k_classes(h, self.class_embeddings, k, leave_out=leave_out, **scored)
