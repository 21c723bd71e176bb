"""The linear softmax model of a checkpoint, made again for prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray, as_count, as_counts, shown
from samplesoft.models.direct_softmax import make_linear_softmax
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.samplers.base import Rows
from samplesoft.training.checkpoint import (
    Arrays,
    Checkpoint,
    copy_arrays,
    part_of,
    read_checkpoint,
    rebuilding,
)
from samplesoft.training.unit_norm import unit_norm


@dataclass(frozen=True, eq=False)
class TrainedLinearSoftmax:
    """A model that ranks classes for sparse inputs.

    Attributes
    ----------
    model : LinearSoftmax
        Without a sampler.
    unit_inputs : bool
        Whether the model wants inputs divided by their norms.
    leave_out : bool
        Whether inputs are items, which are left out of the lists.
    classes : ndarray, shape (n,), or None
        What classes are called, if not by their numbers.
    counts : ndarray of float64, shape (n,), or None
        How often each class occurs in the training data, where the file has that.
    absolute : bool
        Whether the scores that were trained are absolute values of the model's.
    step : int
        Steps of training.
    """

    model: LinearSoftmax
    unit_inputs: bool
    leave_out: bool
    classes: Any
    counts: FloatArray | None
    absolute: bool
    step: int

    @property
    def num_inputs(self) -> int:
        """Columns v of an input."""
        return self.model.num_inputs

    @property
    def num_classes(self) -> int:
        """Classes n."""
        return self.model.num_classes

    def top_k(self, inputs: Any, k: int) -> tuple[IntArray, Rows]:
        """Find the best classes, as `LinearSoftmax.top_k`, of inputs (B, v) as they were read."""
        return self.model.top_k(
            self._prepared(inputs), k, leave_out=inputs if self.leave_out else None
        )

    def embed(self, inputs: Any) -> Rows:
        """Return contexts (B, d), as `LinearSoftmax.embed`, of inputs (B, v) as they were read."""
        return self.model.embed(self._prepared(inputs))

    def _prepared(self, inputs: Any) -> Any:
        return (unit_norm(inputs) if self.unit_inputs else inputs).astype(self.model.dtype)


def linear_softmax_config(
    model: LinearSoftmax, *, unit_inputs: bool, leave_out: bool
) -> dict[str, Any]:
    """Return what `read_linear_softmax` must know: ``linear_softmax`` in a checkpoint's config.

    The checkpoint holds the parameters of the model as its part ``parameters``.
    """
    settings = model.settings
    return {
        "num_inputs": model.num_inputs,
        "num_classes": model.num_classes,
        "embedding_dim": settings.embedding_dim,
        "tau": settings.tau,
        "normalize": settings.normalize,
        "absolute": model.softmax.loss.absolute,
        "dtype": str(model.dtype),
        "unit_inputs": unit_inputs,
        "leave_out": leave_out,
    }


def read_linear_softmax(path: str | Path) -> TrainedLinearSoftmax:
    """Read a model for prediction.

    Parameters
    ----------
    path : str or Path
        A checkpoint of ``samplesoft train xc`` or ``items``, or a file of
        `samplesoft.sklearn.SampledSoftmaxClassifier.save`.

    Returns
    -------
    TrainedLinearSoftmax
        The model.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If the model would not fit.
    ValueError
        If it is damaged, of another format, or holds another model.
    """
    checkpoint = read_checkpoint(path)
    with rebuilding(path):
        config = checkpoint.config.get("task", checkpoint.config)
        about = config.get("linear_softmax")
        if about is None:
            raise ValueError(
                f"{str(path)!r} must hold a model that ranks classes for sparse inputs, got "
                f"{shown(config.get('model', 'something else'))}; take best.npz of samplesoft "
                "train xc or items, or what SampledSoftmaxClassifier.save wrote."
            )
        return _rebuilt(path, about, checkpoint)


def _rebuilt(
    path: str | Path, about: dict[str, Any], checkpoint: Checkpoint
) -> TrainedLinearSoftmax:
    parameters, arrays = part_of(checkpoint, "parameters"), checkpoint.arrays
    classes, counts = arrays.get("classes"), arrays.get("counts", arrays.get("examples/counts"))
    require_sizes(about, parameters)
    if classes is not None and classes.shape != (about["num_classes"],):
        raise ValueError(f"{about['num_classes']} classes of shape {classes.shape}")
    if counts is not None:
        counts = as_counts("counts", counts, about["num_classes"])
    about = {"absolute": False, **about}  # which files of before do not say
    for name in ("normalize", "absolute", "unit_inputs", "leave_out"):
        if not isinstance(about[name], bool):
            raise TypeError(f"{name} is {shown(about[name])}")
    settings = LinearSoftmaxSettings(
        loss="full",
        sampler=None,
        num_sampled=None,
        tau=about["tau"],
        normalize=about["normalize"],
        embedding_dim=about["embedding_dim"],
    )
    model = make_linear_softmax(
        about["num_inputs"], about["num_classes"], settings, dtype=np.dtype(about["dtype"]), rng=0
    )
    copy_arrays(path, parameters, model.parameters)
    values = checkpoint.values
    return TrainedLinearSoftmax(
        model,
        about["unit_inputs"],
        about["leave_out"],
        classes,
        counts,
        about["absolute"],
        as_count("step", values.get("step", values.get("num_steps")), 0),
    )


def require_sizes(about: Mapping[str, Any], parameters: Arrays) -> None:
    """Raise ValueError unless parameters have the sizes of their `linear_softmax_config`.

    A model of other sizes, which may be huge, is then not made.
    """
    dim, inputs, classes = (about[k] for k in ("embedding_dim", "num_inputs", "num_classes"))
    wanted: dict[str, tuple[int, ...]] = {
        "embedding.weights": (inputs, dim),
        "softmax.class_embeddings": (classes, dim),
    }
    if dim is None:
        wanted = {"softmax.weights": (inputs + 1, classes)}
        parameters = {name: array.reshape(-1, classes) for name, array in parameters.items()}
    for name, shape in wanted.items():
        if parameters[name].shape != shape:
            raise ValueError(f"{name} of shape {parameters[name].shape} where it says {shape}")
