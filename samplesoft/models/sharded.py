"""A softmax layer whose classes are sharded over workers, with their optimizers and samplers.

Read in this order: `Shard`, what one worker keeps and answers; `Shards`, all of them, who are asked
at once, in this process or (`DaskShards`) as Dask actors; `ShardedRows` and `ShardedSampler`, who
stand for class vectors and for their sampler where a `SoftmaxLayer` looks at them; and the layer.

What travels in a step of B contexts with m draws each: contexts to the shards, and their masses
back; how many draws each shard owes, and the draws back; labels and draws, and their scores back;
derivatives in the scores, and those in the contexts back. Class vectors never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from copy import deepcopy
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device import cpu
from samplesoft._device.arrays import DistantRows
from samplesoft._executors import connected, require_alike
from samplesoft._files import prefixed
from samplesoft._jit import use_threads
from samplesoft._memory import human_bytes
from samplesoft._random import as_key, mix64, uniform_block
from samplesoft._temperature import times_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_counts,
    require_instance,
)
from samplesoft.losses.base import Batch, Loss, SparseRows, Targets
from samplesoft.losses.candidates import score_candidates, score_gradients
from samplesoft.losses.full import FullSoftmaxLoss, LabelPlaces
from samplesoft.losses.registry import LOSSES
from samplesoft.losses.sampled import SampledLoss
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.optimizers import Optimizer
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler
from samplesoft.samplers.frequency import unigram_weights
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs, make_sampler
from samplesoft.samplers.static import UniformSampler, WeightedSampler
from samplesoft.search import best_classes, top_k_classes

# those whose masses say how often each shard is drawn from
_TREES = "rff", "rff:orthogonal", "rff:structured", "rff+softmax-leaf", "positive", "quadratic"
SHARDED = "uniform", "unigram", "clusters", *_TREES
_ROWS = "class_embeddings"
_PATIENCE = 2.0  # seconds of silence after which it is asked whether the worker lives


class Shard(SoftmaxLayer):
    """A range of classes, with their optimizer and sampler, and what these are asked.

    Parameters
    ----------
    rows : ndarray, shape (k, d)
        Class vectors, copied.
    state : dict of str to ndarray or None
        Of the optimizer.
    weights : ndarray of float64, shape (k,), or None
        What the classes are drawn by, for a sampler that looks at counts.
    loss : SampledLoss
        Of the layer.
    sampler : str
        One of `SHARDED`.
    options : dict
        Fields of `SamplerInputs` for it.
    optimizer : Optimizer
        Copied.
    update_every : int
        Updates from one of the sampler to the next.
    threads : int or None
        That kernels may use; None for all that there are.
    """

    sampler: Sampler

    def __init__(
        self,
        rows: Rows,
        state: dict[str, NDArray[Any]] | None,
        weights: FloatArray | None,
        loss: SampledLoss,
        sampler: str,
        options: dict[str, Any],
        optimizer: Optimizer,
        update_every: int,
        threads: int | None = None,
    ) -> None:
        self._threads, self._optimizer = threads, deepcopy(optimizer)
        if state is not None:
            self._optimizer.load_state(state)
        self._gradient: SparseRows | None = None
        made: Sampler = UniformSampler(len(rows))
        if weights is not None:
            made = WeightedSampler(weights)
        elif SAMPLERS[sampler].follows_vectors:
            self._use_threads()
            seen = unit_rows(_ROWS, rows.copy())[0] if loss.normalize else rows
            made = make_sampler(sampler, SamplerInputs(seen, tau=loss.tau, **options))
        super().__init__(rows, loss, made, loss.facts.least_draws, update_every=update_every)

    def answer(self, question: str, *arguments: Any) -> Any:
        """Return what a method returns."""
        self._use_threads()
        return getattr(self, question)(*arguments)

    def _use_threads(self) -> None:
        if self._threads is not None:  # a setting of the thread, and any may call
            use_threads(self._threads)

    def masses(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log masses (R,) of the proposals for contexts, which are kept."""
        if self.sampler.dim is not None:
            h = self.sampler._check_contexts(h)
        self._h, self._exclude = h, exclude
        return self.sampler._log_mass(h, exclude)

    def draw(self, counts: IntArray, key: np.uint64) -> tuple[IntArray, FloatArray]:
        """Return so many draws (R,) for the contexts, one after another, and their log q here."""
        slots = np.arange(counts.max()) < counts[:, None]
        ids, log_q = np.zeros(slots.shape, np.int64), np.zeros(slots.shape)
        octaves = np.frexp(counts - 1)[1]  # 1, 2, 3 to 4, 5 to 8 draws
        # contexts with about as many draws together, so that few are made which nobody has asked
        # for; in streams of their own, the first of which is that of an unsharded sampler
        for turn, octave in enumerate(np.unique(octaves[counts > 0])):
            some = np.flatnonzero((octaves == octave) & (counts > 0))
            stream = key if turn == 0 else np.uint64(mix64(key, np.uint64(turn)))
            m = int(counts[some].max())
            drawn = self.sampler._sample(self._h[some], m, self._exclude[some], stream)
            ids[some, :m], log_q[some, :m] = drawn.ids, drawn.log_q
        return ids[slots], log_q[slots]

    def log_probs(self, ids: IntArray) -> FloatArray:
        """Return the log q (R, k) here of classes for the contexts."""
        return self.sampler._log_prob(self._h, ids, self._exclude)

    def scores(
        self, h: Rows | None, labels: IntArray, owners: IntArray, counts: IntArray, ids: IntArray
    ) -> tuple[Rows, Rows]:
        """Return the scores of labels of some examples, and of so many draws of each, or of all."""
        h = self._h if h is None else h
        z = h if self.loss.tau == 1.0 else times_tau(h, self.loss.tau)
        self._batch = Batch(h, None, z, self.class_embeddings, Targets(labels, owners), None)
        self._slots = np.arange(counts.max()) < counts[:, None]
        drawn = np.full(self._slots.shape, ids[0] if len(ids) else 0)  # any of them fills up
        drawn[self._slots] = ids
        none = np.zeros(drawn.shape)  # the whole draw has been checked
        found = self._scores = score_candidates(self._batch, drawn, none, self.loss.normalize)
        return found.own, found.drawn if found.shared else found.drawn[self._slots]

    def gradients(self, d_own: Rows, d_drawn: Rows, weights: FloatArray) -> Rows:
        """Keep the gradient of the rows, and return that (B, d) of the contexts times tau."""
        if not self._scores.shared:
            flat, d_drawn = d_drawn, np.zeros(self._slots.shape, d_drawn.dtype)
            d_drawn[self._slots] = flat
        d_drawn = np.ascontiguousarray(d_drawn)
        found = score_gradients(self._batch, self._scores, d_own, d_drawn, weights)
        self._gradient = found.dW
        return found.dh

    def step(self, learning_rate: float, steps: int) -> bool:
        """Take a step by the gradient that is kept, and let the sampler follow.

        Returns False if it has taken other steps before than the layer, and so is another shard.
        """
        if self._optimizer.steps != steps:
            return False
        gradient, self._gradient = self._gradient, None
        if gradient is None:
            raise ValueError("`update` must follow `backward`, which has not been called; call it.")
        self._optimizer.learning_rate = learning_rate
        self._optimizer.step(self.parameters, {_ROWS: gradient})
        self.update(gradient.ids)
        return True

    def take(self, ids: IntArray) -> Rows:
        """Return rows (k, d)."""
        return self.class_embeddings.take(ids, axis=0)

    def exponentials(self, z: Rows, labels: IntArray, owners: IntArray) -> tuple[Rows, FloatArray]:
        """Return the greatest score (B,), and the sum relative to it, without some labels."""
        loss = FullSoftmaxLoss(normalize=self.loss.normalize, absolute=self.loss.absolute)
        targets = Targets(labels, owners)
        batch = Batch(z, None, z, self.class_embeddings, targets, None)
        return loss._other_classes(batch, LabelPlaces(targets))

    def best(self, z: Rows, k: int, options: dict[str, Any]) -> tuple[IntArray, Rows]:
        """Return the k best classes (B, k), or all that there are, and their scores."""
        rows = self.class_embeddings
        return best_classes(z, rows, min(k, len(rows)), **options)

    def array(self, name: str) -> NDArray[Any]:
        """Return the rows, or one of the arrays of the state of the optimizer."""
        return self.class_embeddings if name == _ROWS else self._optimizer.state()[name]

    def write(self, rows: Rows) -> None:
        """Let the rows be others; the sampler follows in `refresh`."""
        self.class_embeddings[...] = rows

    def load_optimizer(self, state: dict[str, NDArray[Any]]) -> None:
        """Let the optimizer go on from a state of this range of classes."""
        self._optimizer.load_state(state)

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return the rows and, after ``"optimizer/"``, the state of the optimizer."""
        return {
            _ROWS: self.class_embeddings,
            **prefixed({"optimizer": self._optimizer.state()}, "/"),
        }


class Shards:
    """Shards in this process, asked one after another: the same bits as on a cluster.

    Parameters
    ----------
    num : int
        How many.

    Attributes
    ----------
    bounds : ndarray of int64, shape (num + 1,)
        Shard s has the classes from ``bounds[s]`` to ``bounds[s + 1] - 1``.
    round_trips, bytes_sent, bytes_received : int
        Of all questions so far, and the arrays in them.
    go_on : str
        What to do if a worker is lost.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.bounds: IntArray = np.zeros(num + 1, np.int64)
        self.round_trips = self.bytes_sent = self.bytes_received = 0
        self.go_on = "there is no checkpoint: start again, and write some with write_shards"
        self._shards: list[Any] = []

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First class of each shard, and of the next."""
        return list(pairwise(self.bounds.tolist()))

    def require_room(self, what: str, needed: int) -> None:
        """Raise MemoryError if a worker has less memory than a shard needs."""

    def start(self, s: int, *arguments: Any) -> None:
        """Make shard s."""
        self._shards.append(Shard(*arguments))

    def ask(self, question: str, arguments: list[Any], first: int = 0) -> list[Any]:
        """Ask shards from the first on, all at once, with arguments of their own for each."""
        pending = [self._put(s, question, each) for s, each in enumerate(arguments, first)]
        answers = [self._answer(s, each) for s, each in enumerate(pending, first)]
        self.round_trips += 1
        self.bytes_sent += _nbytes(arguments)
        self.bytes_received += _nbytes(answers)
        return answers

    def _put(self, s: int, question: str, arguments: Sequence[Any]) -> Any:
        return self._shards[s].answer(question, *arguments)

    def _answer(self, s: int, pending: Any) -> Any:
        return pending

    def lost(self, s: int, why: object) -> RuntimeError:
        """Return the error for a shard that does not answer any more."""
        lo, hi = self.ranges[s]
        what = f"the worker of classes {lo} to {hi - 1} was lost ({why})"
        return RuntimeError(f"{what}; {self.go_on}.")

    def name_checkpoint(self, folder: str) -> None:
        """Let errors for a lost worker name what was written or read last."""
        self.go_on = f"go on from {folder!r}, with read_shards and any number of workers"

    def joined(self, name: str) -> NDArray[Any]:
        """Return an array (n, d) of all shards."""
        return np.concatenate(self.ask("array", [(name,)] * self.num))


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, (list, tuple)) else 0


class DaskShards(Shards):
    """Shards that are actors of a Dask cluster, one on each worker.

    Parameters
    ----------
    client : distributed.Client or str
        Connected to the cluster; or the address of its scheduler.
    """

    def __init__(self, client: Any) -> None:
        if isinstance(client, str):
            what = "`workers` must be a number, a client of Dask or"
            client = connected(client, what, direct_to_workers=True)
        distributed = import_module("distributed")
        require_instance("workers", client, distributed.Client)
        require_alike(client, "workers")
        self._client = client
        # the last two of a worker that goes while its shard is made
        self._losses = (OSError, RuntimeError, CancelledError, distributed.KilledWorker)
        known = client.scheduler_info(n_workers=-1)["workers"]
        self._workers = sorted(known)
        self._facts = [known[address] for address in self._workers]
        super().__init__(len(self._workers))

    def require_room(self, what: str, needed: int) -> None:
        """Raise MemoryError if a worker has less memory than a shard needs."""
        for address, facts in zip(self._workers, self._facts, strict=True):
            if 0 < facts["memory_limit"] < needed:
                raise MemoryError(
                    f"{what} need {human_bytes(needed)} on each of {self.num} workers, and "
                    f"{address} may take {human_bytes(facts['memory_limit'])}; take more workers, "
                    "or float32."
                )

    def start(self, s: int, rows: Rows, *arguments: Any) -> None:
        """Make shard s on its worker, to which the rows go without a way through the scheduler."""
        place: dict[str, Any] = {"workers": [self._workers[s]]}
        placed = self._client.scatter(rows, direct=True, hash=False, **place)
        arguments = (*arguments, self._facts[s]["nthreads"])
        made = self._client.submit(Shard, placed, *arguments, actor=True, pure=False, **place)
        self._shards.append(made)

    def _put(self, s: int, question: str, arguments: Sequence[Any]) -> Any:
        try:
            if hasattr(self._shards[s], "result"):  # a future until all are made, side by side
                self._shards[s] = self._shards[s].result()
            return self._shards[s].answer(question, *arguments)
        except self._losses as error:
            raise self.lost(s, error) from None

    def _answer(self, s: int, pending: Any) -> Any:
        while True:
            try:
                return pending.result(timeout=_PATIENCE)
            except OSError as error:
                # silence, for which an actor on a worker that has gone would be waited for forever
                if (
                    not isinstance(error, TimeoutError)
                    or self._workers[s] not in self._client.nthreads()
                ):
                    raise self.lost(s, error) from None


class ShardedRows(DistantRows):
    """Class vectors (n, d) that lie in shards.

    Parameters
    ----------
    shards : Shards
        Who keeps them.
    shape : tuple of int
        n and d.
    dtype : dtype
        float32 or float64.
    """

    def __init__(self, shards: Shards, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shards, self.shape, self.dtype = shards, shape, dtype
        self.sent: Rows | None = None  # contexts that the shards have got with a question
        self._scored: tuple[Any, list[tuple[Any, Any]]] = None, []

    def shard_of(self, ids: IntArray) -> IntArray:
        """Return the shards of classes."""
        return np.searchsorted(self.shards.bounds[1:], ids, side="right")

    def take(self, ids: IntArray, axis: int = 0) -> Rows:
        """Return a copy of some rows (k, d)."""
        where, rows = self.shard_of(ids), np.empty((len(ids), self.shape[1]), self.dtype)
        firsts = self.shards.bounds
        asked = [(ids[where == s] - firsts[s],) for s in range(self.shards.num)]
        for s, some in enumerate(self.shards.ask("take", asked)):
            rows[where == s] = some
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Rows:
        """Return a copy of all rows, for a checkpoint."""
        return self.shards.joined(_ROWS)

    def __setitem__(self, every: Any, rows: Rows) -> None:
        """Let all rows be others, those of a checkpoint."""
        self.shards.ask("write", [(rows[lo:hi],) for lo, hi in self.shards.ranges])

    def scores(self, batch: Batch, ids: IntArray) -> tuple[Rows, Rows]:
        """Return the scores of the labels (P,) and draws (B, m), each from its shard."""
        labels, where = batch.targets.labels, self.shard_of(ids)
        owners, of_labels = batch.targets.rows(np.arange(len(batch.z))), self.shard_of(labels)
        shared = len(ids) < len(batch.z)
        places: list[tuple[Any, Any]] = [
            (of_labels == s, (slice(None), where[0] == s) if shared else where == s)
            for s in range(self.shards.num)
        ]
        h, self.sent = None if self.sent is batch.contexts else batch.contexts, None
        asked = []
        for s, (lo, _) in enumerate(self.shards.ranges):
            pairs, here = of_labels == s, where == s
            asked.append((h, labels[pairs] - lo, owners[pairs], here.sum(axis=1), ids[here] - lo))
        own = np.empty(len(labels), self.dtype)
        drawn = np.empty((len(batch.z), ids.shape[1]), self.dtype)
        for (pairs, draws), answer in zip(places, self.shards.ask("scores", asked), strict=True):
            own[pairs], drawn[draws] = answer
        self._scored = batch, places
        return own, drawn

    def gradients(self, batch: Batch, d_own: Rows, d_drawn: Rows, weights: FloatArray) -> Rows:
        """Return the gradient (B, d) in the contexts; shards keep that in their rows."""
        scored, places = self._scored
        if batch is not scored:
            raise ValueError(
                "`cache` must be that of the last `forward`, for shards keep no other; call "
                "`backward` before the next one."
            )
        asked = [(d_own[pairs], d_drawn[draws], weights) for pairs, draws in places]
        first, *others = self.shards.ask("gradients", asked)
        total: Rows = sum(others, first)
        return total

    def exponentials(self, batch: Batch, excluded: LabelPlaces) -> tuple[Rows, FloatArray]:
        """Return the greatest score (B,) of classes not excluded, and the sum relative to it."""
        asked = [(batch.z, *excluded.of(slice(*each))[1:]) for each in self.shards.ranges]
        tops, totals = map(np.stack, zip(*self.shards.ask("exponentials", asked), strict=True))
        top = tops.max(axis=0)
        shift = np.where(top == -np.inf, 0.0, top)  # of an example whose label is the only class
        return top, (totals * np.exp(tops.astype(np.float64) - shift)).sum(axis=0)

    def best(
        self, z: Rows, k: int, *, leave_out: Any = None, **options: Any
    ) -> tuple[IntArray, Rows]:
        """Return the k best classes (B, k) from the lists of the shards, and their scores."""
        asked = [
            (z, k, {**options, "leave_out": None if leave_out is None else leave_out[:, lo:hi]})
            for lo, hi in self.shards.ranges
        ]
        lists = self.shards.ask("best", asked)
        firsts = self.shards.bounds
        ids = np.hstack([np.where(i < 0, i, i + firsts[s]) for s, (i, _) in enumerate(lists)])
        scores = np.hstack([scores for _, scores in lists])
        # stable: of equal scores those of the first shard are first, and so the first class
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)


class ShardedSampler(Sampler):
    """Draws a shard by its mass, and a class within it: q is exact over all classes.

    Parameters
    ----------
    rows : ShardedRows
        The class vectors, whose shards have samplers.
    follows : bool
        Whether draws follow the contexts.
    """

    def __init__(self, rows: ShardedRows, follows: bool) -> None:
        n, d = rows.shape
        super().__init__(n, d if follows else None, rows.dtype if follows else None)
        self._rows, self._shards = rows, rows.shards

    def _log_shares(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (R, S) of the shards for contexts, which they keep."""
        contexts = h if self.dim is not None else h[:, :0]
        within = [
            np.where((lo <= exclude) & (exclude < hi), exclude - lo, NO_CLASS)
            for lo, hi in self._shards.ranges
        ]
        asked = [(contexts, excluded) for excluded in within]
        self._rows.sent = contexts
        masses = np.stack(self._shards.ask("masses", asked), axis=1)
        log_shares: FloatArray = masses - np.logaddexp.reduce(masses, axis=1, keepdims=True)
        return log_shares

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        log_shares, num = self._log_shares(h, exclude), self._shards.num
        edges = np.cumsum(np.exp(log_shares), axis=1)
        edges /= edges[:, -1:]  # 1 from the last shard with a mass on, and uniforms are below
        u = uniform_block(np.uint64(mix64(key, np.uint64(num))), len(h), m)
        where = (u[:, :, None] >= edges[:, None, :-1]).sum(axis=2)
        # with one shard the draws are those of its sampler
        keys = [np.uint64(mix64(key, np.uint64(s))) for s in range(num)] if num > 1 else [key]
        asked = [((where == s).sum(axis=1), keys[s]) for s in range(num)]
        ids, log_q = np.empty((len(h), m), np.int64), np.take_along_axis(log_shares, where, 1)
        for s, (drawn, logs) in enumerate(self._shards.ask("draw", asked)):
            ids[where == s] = drawn + self._shards.bounds[s]
            log_q[where == s] += logs
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_shares, where = self._log_shares(h, exclude), self._rows.shard_of(ids)
        asked = [(np.clip(ids - lo, 0, hi - lo - 1),) for lo, hi in self._shards.ranges]
        log_q = np.take_along_axis(log_shares, where, 1)
        for s, logs in enumerate(self._shards.ask("log_probs", asked)):
            log_q[where == s] += logs[where == s]
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        every = np.broadcast_to(np.arange(self.num_classes), (len(h), self.num_classes))
        return np.exp(self._log_prob(h, every, exclude))


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
    `SoftmaxLayer` to the bit; with more, draws by counts and uniform ones have the same law.

    **Partial steps.** Where the optimizer of a shard refuses a step, others may have taken it. Go
    on from a checkpoint then; `update` refuses to go on otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.losses import SampledSoftmaxLoss
    >>> from samplesoft.models import make_optimizer
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
            whole = cpu.shaped_rows(_ROWS, class_embeddings)
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
        shards.require_room(f"shards of {n:,} classes", copies * size)
        for s, (lo, hi) in enumerate(shards.ranges):
            rows, state = whole.part(lo, hi) if stored else (whole[lo:hi], None)
            rows = cpu.float_rows(_ROWS, np.asarray(rows))
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
        """Find the classes of the greatest scores, as `samplesoft.metrics.top_k_classes` does.

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


class ShardedOptimizer:
    """The optimizer of a model with a sharded layer, whose shards take its steps of class vectors.

    Its state is that of an optimizer in one process, with the arrays of all classes.

    Parameters
    ----------
    layer : ShardedSoftmaxLayer
        Whose `optimizer` takes the other steps.
    name : str
        That the model has for the class vectors among its parameters.
    """

    def __init__(self, layer: ShardedSoftmaxLayer, name: str) -> None:
        self._layer, self._name = layer, name

    @property
    def learning_rate(self) -> float:
        """Size of a step, here and in the shards."""
        return self._layer.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._layer.optimizer.learning_rate = value

    @property
    def schedule(self) -> Any:
        """The schedule of the learning rate, or None."""
        return self._layer.optimizer.schedule

    @schedule.setter
    def schedule(self, value: Any) -> None:
        self._layer.optimizer.schedule = value

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._layer.optimizer.steps

    def step(self, parameters: dict[str, Any], gradients: dict[str, Any]) -> None:
        """Change all parameters but the class vectors, which follow in the layer's `update`."""
        here = {name: gradient for name, gradient in gradients.items() if name != self._name}
        self._layer.optimizer.step(parameters, here)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state, as `Optimizer.state` does."""
        layer, state = self._layer, self._layer.optimizer.state()
        for name in layer.optimizer._state_names if layer.steps else ():
            state[f"{name}/{self._name}"] = layer.shards.joined(f"{name}/{_ROWS}")
        return state

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a `state`, written with any number of shards or none."""
        layer, end = self._layer, f"/{self._name}"
        there = {name for name in state if name.endswith(end)}
        layer.optimizer.load_state({name: state[name] for name in state.keys() - there})
        parts = [
            {name.removesuffix(end) + f"/{_ROWS}": state[name][lo:hi] for name in there}
            for lo, hi in layer.shards.ranges
        ]
        layer.shards.ask("load_optimizer", [({"steps": state["steps"], **p},) for p in parts])
        layer.steps = layer.optimizer.steps


def require_shardable(settings: LinearSoftmaxSettings) -> None:
    """Raise ValueError unless the class vectors of a model can lie on several workers.

    Parameters
    ----------
    settings : LinearSoftmaxSettings
        Of the model.

    Raises
    ------
    ValueError
        If the loss, the sampler or another setting is for one process alone.
    """
    there = "for class vectors on workers"
    loss, sampler = settings.loss, settings.sampler
    if settings.embedding_dim is None:
        raise ValueError(
            f"`embedding_dim` must be a number {there}, got None: those on the inputs "
            "themselves stay in memory."
        )
    if not LOSSES[loss].draws:
        able = ", ".join(name for name, spec in LOSSES.items() if spec.shares)
        raise ValueError(f"`loss` must be one of {able} {there}, got {loss!r}.")
    if sampler not in SHARDED:
        able = ", ".join(SHARDED)
        raise ValueError(f"`sampler` must be one of {able} {there}, got {sampler!r}.")
    if settings.num_certain:
        raise ValueError(f"`num_certain` must be 0 {there}, got {settings.num_certain}.")


def shard(
    model: LinearSoftmax,
    settings: LinearSoftmaxSettings,
    *,
    counts: ArrayLike,
    workers: Any,
    optimizer: Optimizer,
) -> ShardedOptimizer:
    """Let workers keep the class vectors of a model, and their sampler.

    Parameters
    ----------
    model : LinearSoftmax
        Its `softmax` becomes a `ShardedSoftmaxLayer` with the class vectors that it has.
    settings : LinearSoftmaxSettings
        Those of the model, but for its sampler, which the workers make.
    counts : array_like, shape (n,)
        How often each class occurs.
    workers : int, distributed.Client or str
        As for a `ShardedSoftmaxLayer`.
    optimizer : Optimizer
        Of which each shard takes a copy.

    Returns
    -------
    ShardedOptimizer
        The optimizer that takes the steps of the model from now on.

    Raises
    ------
    MemoryError
        If a worker has not the memory for its shard.
    TypeError, ValueError
        If an argument is malformed, or `require_shardable` refuses the settings.
    """
    require_shardable(settings)
    layer = ShardedSoftmaxLayer(
        np.asarray(model.softmax.class_embeddings),
        model.softmax.loss,
        settings.sampler,
        model.softmax.num_sampled,
        optimizer=optimizer,
        workers=workers,
        counts=counts,
        shared=settings.shared,
        update_every=settings.update_every,
        rng=model.sampler_seed,
        nu=settings.nu,
        num_features=settings.num_features,
    )
    layer.shards.go_on = "resume if there is a checkpoint, with any number of workers"
    model.softmax = layer
    return ShardedOptimizer(layer, "softmax.class_embeddings")
