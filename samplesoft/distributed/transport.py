"""Method calls on all shards at once: in this process, or on Dask actors of a cluster."""

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

_TIMEOUT_SECONDS = 2.0  # without an answer; then check that the worker is alive


class Shards:
    """Shards in this process, called one after another, with the same bits as on a cluster.

    Parameters
    ----------
    num : int
        Number of shards.

    Attributes
    ----------
    bounds : ndarray of int64, shape (num + 1,)
        Shard s has the classes from ``bounds[s]`` to ``bounds[s + 1] - 1``.
    round_trips, bytes_sent, bytes_received : int
        Totals of all calls so far, and of the arrays in them.
    recovery_hint : str
        Advice in the error for a lost worker.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.bounds: IntArray = np.zeros(num + 1, np.int64)
        self.round_trips = self.bytes_sent = self.bytes_received = 0
        self.recovery_hint = "there is no checkpoint: start again, and write some with write_shards"
        self._shards: list[Any] = []

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First class of each shard, and of the next shard."""
        return list(pairwise(self.bounds.tolist()))

    def require_memory(self, what: str, needed: int) -> None:
        """Raise MemoryError if a worker has less memory than a shard needs."""

    def start(self, s: int, *arguments: Any) -> None:
        """Make shard s."""
        self._shards.append(Shard(*arguments))

    def call_all(self, method: str, arguments: list[Any], first: int = 0) -> list[Any]:
        """Call a method on shards `first`, `first` + 1, ..., one for each tuple of arguments."""
        pending = [self._submit(s, method, each) for s, each in enumerate(arguments, first)]
        answers = [self._wait(s, each) for s, each in enumerate(pending, first)]
        self.round_trips += 1
        self.bytes_sent += _nbytes(arguments)
        self.bytes_received += _nbytes(answers)
        return answers

    def _submit(self, s: int, method: str, arguments: Sequence[Any]) -> Any:
        return self._shards[s].call(method, *arguments)

    def _wait(self, s: int, pending: Any) -> Any:
        return pending

    def lost_error(self, s: int, why: object) -> RuntimeError:
        """Return the error for a shard whose worker is lost."""
        lo, hi = self.ranges[s]
        what = f"the worker of classes {lo} to {hi - 1} was lost ({why})"
        return RuntimeError(f"{what}; {self.recovery_hint}.")

    def name_checkpoint(self, folder: str) -> None:
        """Set the checkpoint that errors for a lost worker name."""
        self.recovery_hint = f"go on from {folder!r}, with read_shards and any number of workers"

    def concatenated(self, name: str) -> NDArray[Any]:
        """Return an array (n, d), concatenated from all shards."""
        return np.concatenate(self.call_all("array", [(name,)] * self.num))


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, (list, tuple)) else 0


class DaskShards(Shards):
    """Shards as actors of a Dask cluster, one on each worker.

    Parameters
    ----------
    client : distributed.Client or str
        Client of the cluster; or the address of its scheduler.
    """

    def __init__(self, client: Any) -> None:
        if isinstance(client, str):
            what = "`workers` must be a number, a client of Dask or"
            client = connect_client(client, what, direct_to_workers=True)
        distributed = import_module("distributed")
        require_instance("workers", client, distributed.Client)
        require_same_versions(client, "workers")
        self._client = client
        # the last two if a worker is lost while its shard is made
        self._losses = (OSError, RuntimeError, CancelledError, distributed.KilledWorker)
        worker_info = client.scheduler_info(n_workers=-1)["workers"]
        self._workers = sorted(worker_info)
        self._resources = [worker_info[address] for address in self._workers]
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
        """Make shard s on its worker; rows are sent directly, not through the scheduler."""
        on_worker: dict[str, Any] = {"workers": [self._workers[s]]}
        remote_rows = self._client.scatter(rows, direct=True, hash=False, **on_worker)
        arguments = (*arguments, self._resources[s]["nthreads"])
        actor = self._client.submit(
            Shard, remote_rows, *arguments, actor=True, pure=False, **on_worker
        )
        self._shards.append(actor)

    def _submit(self, s: int, method: str, arguments: Sequence[Any]) -> Any:
        try:
            # a future, so that all shards are made concurrently
            if hasattr(self._shards[s], "result"):
                self._shards[s] = self._shards[s].result()
            return self._shards[s].call(method, *arguments)
        except self._losses as error:
            raise self.lost_error(s, error) from None

    def _wait(self, s: int, pending: Any) -> Any:
        while True:
            try:
                return pending.result(timeout=_TIMEOUT_SECONDS)
            except OSError as error:
                # on a timeout check the worker: waiting for an actor of a lost worker never ends
                if (
                    not isinstance(error, TimeoutError)
                    or self._workers[s] not in self._client.nthreads()
                ):
                    raise self.lost_error(s, error) from None
