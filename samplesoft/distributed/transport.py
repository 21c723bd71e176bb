"""Calls of methods of all shards at once, in this process or on the actors of a Dask cluster."""

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

_TIMEOUT_SECONDS = 2.0  # time without an answer after which the cluster is asked for the worker


class Shards:
    """Shards in this process, called one after another, with the same results as on a cluster.

    Parameters
    ----------
    num : int
        Number of shards.

    Attributes
    ----------
    bounds : ndarray of int64, shape (num + 1,)
        Shard s has the classes from ``bounds[s]`` to ``bounds[s + 1] - 1``.
    round_trips, bytes_sent, bytes_received : int
        Number of calls of all shards so far, and the total bytes of the arrays sent and received.
    recovery_hint : str
        Advice in the error for a lost worker.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.bounds: IntArray = np.zeros(num + 1, np.int64)
        self.round_trips = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.recovery_hint = "there is no checkpoint: start again, and save some with write_shards"
        self._shards: list[Any] = []

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The range of classes of each shard, as pairs (start, stop) with `stop` excluded."""
        return list(pairwise(self.bounds.tolist()))

    def require_memory(self, what: str, needed: int) -> None:
        """Do nothing; `DaskShards` raises MemoryError if a worker has less memory than `needed`."""

    def make_shard(self, s: int, *arguments: Any) -> None:
        """Make shard s, which must be the next one, with the arguments of `Shard`."""
        self._shards.append(Shard(*arguments))

    def call_all(self, method: str, arguments: list[Any], first_shard: int = 0) -> list[Any]:
        """Call a method of several shards, and return the list of their answers.

        ``arguments[k]`` is the tuple of arguments for shard ``first_shard + k``.
        """
        calls = [
            self._submit_call(s, method, shard_arguments)
            for s, shard_arguments in enumerate(arguments, first_shard)
        ]
        answers = [self._wait_for_result(s, call) for s, call in enumerate(calls, first_shard)]

        self.round_trips += 1
        self.bytes_sent += _num_array_bytes(arguments)
        self.bytes_received += _num_array_bytes(answers)
        return answers

    def _submit_call(self, s: int, method: str, arguments: Sequence[Any]) -> Any:
        """Begin a call of shard s, and return an object for `_wait_for_result`."""
        return self._shards[s].call_method(method, *arguments)

    def _wait_for_result(self, s: int, pending: Any) -> Any:
        """Return the result of a call of shard s that `_submit_call` began."""
        return pending

    def lost_worker_error(self, s: int, why: object) -> RuntimeError:
        """Return the error to raise if the worker of shard s is lost, for the reason `why`."""
        start, stop = self.ranges[s]
        what = f"the worker of classes {start} to {stop - 1} was lost ({why})"
        return RuntimeError(f"{what}; {self.recovery_hint}.")

    def set_checkpoint_hint(self, folder: str) -> None:
        """Make the error for a lost worker advise to continue from the checkpoint in `folder`."""
        self.recovery_hint = f"continue from {folder!r}, with read_shards and any number of workers"

    def concatenated_array(self, name: str) -> NDArray[Any]:
        """Return the array `name` of `Shard.named_array`, concatenated over all shards."""
        return np.concatenate(self.call_all("named_array", [(name,)] * self.num))


def _num_array_bytes(value: Any) -> int:
    """Return the number of bytes of the arrays in nested lists and tuples."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_num_array_bytes, value)) if isinstance(value, (list, tuple)) else 0


class DaskShards(Shards):
    """Shards as actors of a Dask cluster, one on each worker.

    Parameters
    ----------
    client : distributed.Client or str
        Client of the cluster; or the address of its scheduler.
    """

    def __init__(self, client: Any) -> None:
        if isinstance(client, str):
            error_prefix = "`workers` must be a number, a client of Dask or"
            client = connect_client(client, error_prefix, direct_to_workers=True)
        distributed = import_module("distributed")
        require_instance("workers", client, distributed.Client)
        require_same_versions(client, "workers")

        self._client = client
        # errors that a lost worker causes; the last two occur while its shard is made
        self._lost_worker_errors = (OSError, RuntimeError, CancelledError, distributed.KilledWorker)

        worker_info = client.scheduler_info(n_workers=-1)["workers"]
        self._workers = sorted(worker_info)
        self._worker_infos = [worker_info[address] for address in self._workers]
        super().__init__(len(self._workers))

    def require_memory(self, what: str, needed: int) -> None:
        """Raise MemoryError if a worker has less memory than the `needed` bytes of a shard.

        The error calls the shards `what`.
        """
        for address, resources in zip(self._workers, self._worker_infos, strict=True):
            if 0 < resources["memory_limit"] < needed:
                raise MemoryError(
                    f"{what} need {human_bytes(needed)} on each of {self.num} workers, and "
                    f"{address} may use {human_bytes(resources['memory_limit'])}; use more "
                    "workers, or float32."
                )

    def make_shard(self, s: int, rows: Rows, *arguments: Any) -> None:
        """Make shard s on its worker, with the arguments of `Shard`.

        The rows are sent to the worker directly, not through the scheduler.
        """
        on_worker: dict[str, Any] = {"workers": [self._workers[s]]}
        remote_rows = self._client.scatter(rows, direct=True, hash=False, **on_worker)
        arguments = (*arguments, self._worker_infos[s]["nthreads"])
        actor = self._client.submit(
            Shard, remote_rows, *arguments, actor=True, pure=False, **on_worker
        )
        self._shards.append(actor)

    def _submit_call(self, s: int, method: str, arguments: Sequence[Any]) -> Any:
        try:
            # `make_shard` leaves a future, so that all shards are made concurrently
            if hasattr(self._shards[s], "result"):
                self._shards[s] = self._shards[s].result()
            return self._shards[s].call_method(method, *arguments)
        except self._lost_worker_errors as error:
            raise self.lost_worker_error(s, error) from None

    def _wait_for_result(self, s: int, pending: Any) -> Any:
        while True:
            try:
                return pending.result(timeout=_TIMEOUT_SECONDS)
            except OSError as error:
                # After a timeout, check that the cluster still has the worker, because an actor of
                # a lost worker never answers.
                is_timeout = isinstance(error, TimeoutError)
                if not is_timeout or self._workers[s] not in self._client.nthreads():
                    raise self.lost_worker_error(s, error) from None
