"""A linear model whose class vectors are on workers, which also run their optimizers."""

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
    """The optimizer of a model with a sharded layer, whose class vectors are updated by the shards.

    The state equals the state of an `Optimizer` for the same model without shards.

    Parameters
    ----------
    layer : ShardedSoftmaxLayer
        The sharded layer, whose `optimizer` updates all parameters except the class vectors.
    name : str
        Name of the class vectors among the model's parameters.
    """

    def __init__(self, layer: ShardedSoftmaxLayer, name: str) -> None:
        self._layer = layer
        self._name = name

    @property
    def learning_rate(self) -> float:
        """The learning rate, in this process and in the shards."""
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
        """Number of steps that the optimizer has taken."""
        return self._layer.optimizer.steps

    def step(self, parameters: dict[str, Any], gradients: dict[str, Any]) -> None:
        """Update all parameters in place, except the class vectors, which the shards update."""
        other_gradients = {
            name: gradient for name, gradient in gradients.items() if name != self._name
        }
        self._layer.optimizer.step(parameters, other_gradients)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the optimizer by name, as `Optimizer.state` does."""
        layer = self._layer
        state = layer.optimizer.state()
        state_names = layer.optimizer._state_names if layer.steps else ()
        for name in state_names:
            state[f"{name}/{self._name}"] = layer.shards.concatenated_array(
                f"{name}/{CLASS_VECTORS}"
            )
        return state

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore the optimizer's `state`, saved with any number of shards or without shards."""
        layer = self._layer
        suffix = f"/{self._name}"
        sharded_names = {name for name in state if name.endswith(suffix)}
        layer.optimizer.load_state({name: state[name] for name in state.keys() - sharded_names})

        shard_states = [
            {
                name.removesuffix(suffix) + f"/{CLASS_VECTORS}": state[name][start:stop]
                for name in sharded_names
            }
            for start, stop in layer.shards.ranges
        ]
        layer.shards.call_all(
            "load_optimizer_state",
            [({"steps": state["steps"], **shard_state},) for shard_state in shard_states],
        )
        layer.steps = layer.optimizer.steps


def require_shardable(settings: LinearSoftmaxSettings) -> None:
    """Raise ValueError unless the class vectors of a model can be sharded.

    Parameters
    ----------
    settings : LinearSoftmaxSettings
        Settings of the model.

    Raises
    ------
    ValueError
        If the loss, the sampler or another setting does not support shards.
    """
    where = "for class vectors on workers"
    loss = settings.loss
    sampler = settings.sampler

    if settings.embedding_dim is None:
        raise ValueError(
            f"`embedding_dim` must be a number {where}, got None: those on the inputs "
            "themselves stay in memory."
        )

    if not LOSSES[loss].draws:
        choices = ", ".join(name for name, spec in LOSSES.items() if spec.shares_draws)
        raise ValueError(f"`loss` must be one of {choices} {where}, got {loss!r}.")
    if sampler not in SHARDED:
        choices = ", ".join(SHARDED)
        raise ValueError(f"`sampler` must be one of {choices} {where}, got {sampler!r}.")
    if settings.num_certain:
        raise ValueError(f"`num_certain` must be 0 {where}, got {settings.num_certain}.")


def shard(
    model: LinearSoftmax,
    settings: LinearSoftmaxSettings,
    *,
    counts: ArrayLike,
    workers: Any,
    optimizer: Optimizer,
) -> ShardedOptimizer:
    """Move the class vectors of a model to workers, which make samplers for them.

    Parameters
    ----------
    model : LinearSoftmax
        Its `softmax` is replaced by a `ShardedSoftmaxLayer` with the same class vectors.
    settings : LinearSoftmaxSettings
        Settings of the model, including the sampler that the workers make.
    counts : array_like, shape (n,)
        Count of each class.
    workers : int, distributed.Client or str
        As for a `ShardedSoftmaxLayer`.
    optimizer : Optimizer
        Each shard gets a copy.

    Returns
    -------
    ShardedOptimizer
        The optimizer to use for the model from now on.

    Raises
    ------
    MemoryError
        If a worker has too little memory for its shard.
    TypeError, ValueError
        If an argument is malformed, or `require_shardable` rejects the settings.
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

    layer.shards.recovery_hint = "resume if there is a checkpoint, with any number of workers"
    model.softmax = layer
    return ShardedOptimizer(layer, "softmax.class_embeddings")
