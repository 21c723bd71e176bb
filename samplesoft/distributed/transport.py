"""All shards, asked at once: in this process, or as Dask actors on workers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._executors import connect_client, require_same_versions
from samplesoft._memory import human_bytes
from samplesoft._validation import IntArray, require_instance
from samplesoft.distributed.worker import Shard
from samplesoft.samplers.base import Rows

_PATIENCE = 2.0  # seconds of silence after which it is asked whether the worker lives


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

    def require_memory(self, what: str, needed: int) -> None:
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
            client = connect_client(client, what, direct_to_workers=True)
        distributed = import_module("distributed")
        require_instance("workers", client, distributed.Client)
        require_same_versions(client, "workers")
        self._client = client
        # the last two of a worker that goes while its shard is made
        self._losses = (OSError, RuntimeError, CancelledError, distributed.KilledWorker)
        known = client.scheduler_info(n_workers=-1)["workers"]
        self._workers = sorted(known)
        self._resources = [known[address] for address in self._workers]
        super().__init__(len(self._workers))

    def require_memory(self, what: str, needed: int) -> None:
        """Raise MemoryError if a worker has less memory than a shard needs."""
        for address, resources in zip(self._workers, self._resources, strict=True):
            if 0 < resources["memory_limit"] < needed:
                raise MemoryError(
                    f"{what} need {human_bytes(needed)} on each of {self.num} workers, and "
                    f"{address} may take {human_bytes(resources['memory_limit'])}; take more "
                    "workers, or float32."
                )

    def start(self, s: int, rows: Rows, *arguments: Any) -> None:
        """Make shard s on its worker, to which the rows go without a way through the scheduler."""
        place: dict[str, Any] = {"workers": [self._workers[s]]}
        placed = self._client.scatter(rows, direct=True, hash=False, **place)
        arguments = (*arguments, self._resources[s]["nthreads"])
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
