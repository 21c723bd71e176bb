"""A linear model whose class vectors lie on workers, who take their part of its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft.distributed.layer import ShardedSoftmaxLayer
from samplesoft.distributed.worker import CLASS_VECTORS, SHARDED
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.optimizers.base import Optimizer


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
            state[f"{name}/{self._name}"] = layer.shards.joined(f"{name}/{CLASS_VECTORS}")
        return state

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a `state`, written with any number of shards or none."""
        layer, end = self._layer, f"/{self._name}"
        there = {name for name in state if name.endswith(end)}
        layer.optimizer.load_state({name: state[name] for name in state.keys() - there})
        parts = [
            {name.removesuffix(end) + f"/{CLASS_VECTORS}": state[name][lo:hi] for name in there}
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
        able = ", ".join(name for name, spec in LOSSES.items() if spec.shares_draws)
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
