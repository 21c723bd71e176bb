"""Files of a recommender: arrays and JSON."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._names import part, prefixed
from samplesoft._validation import as_nonnegative, require_finite, shown
from samplesoft.models.linear import Linear
from samplesoft.recommend.parameters import check_parameters
from samplesoft.training.checkpoint import (
    Checkpoint,
    copy_arrays,
    plain,
    read_checkpoint,
    rebuilding,
    write_checkpoint,
)

MODEL = "SampledSoftmaxRecommender"
_CURVES = ("loss_curve_", "validation_scores_")


def write_recommender(path: str | Path, recommender: Any) -> None:
    """Write a recommender that has been fitted; see `SampledSoftmaxRecommender.save`."""
    names = inspect.signature(type(recommender)).parameters
    parameters = {name: getattr(recommender, name) for name in names}
    seed = parameters.pop("random_state")
    if isinstance(seed, (int, np.integer)):
        parameters["random_state"] = int(seed)
    values = {name: getattr(recommender, name) for name in (*_CURVES, "propagation_")}
    arrays = {
        "item_factors": recommender.item_factors,
        "user_factors": recommender.user_factors,
        **prefixed({"embedding": recommender._embedding.parameters}, "/"),
    }
    config = {"model": MODEL, "parameters": parameters}
    write_checkpoint(path, Checkpoint(plain(config), plain(values), arrays))


def read_recommender(path: str | Path, make: Any) -> Any:
    """Read a recommender; see `SampledSoftmaxRecommender.load`."""
    checkpoint = read_checkpoint(path)
    with rebuilding(path):
        model = checkpoint.config.get("model")
        if model != MODEL:
            raise ValueError(
                f"{str(path)!r} must hold a {MODEL}, got {shown(model)}; read it with what wrote "
                "it."
            )
        recommender = make(**checkpoint.config["parameters"])
        check_parameters(recommender)
        embedding = part("embedding", checkpoint.arrays, "/")
        items, users = (checkpoint.arrays[f"{name}_factors"] for name in ("item", "user"))
        found = Linear(*items.shape)
        copy_arrays(path, embedding, found.parameters)
        for name, factors in (("item_factors", items), ("user_factors", users)):
            if factors.dtype != np.float32 or factors.shape[1:] != items.shape[1:]:
                raise ValueError(f"{name} of {factors.dtype} and shape {factors.shape}")
            require_finite(name, factors)
            setattr(recommender, name, factors)
        recommender._embedding = found
        recommender.propagation_ = as_nonnegative("propagation_", checkpoint.values["propagation_"])
        for name in _CURVES:
            setattr(recommender, name, [float(x) for x in checkpoint.values[name]])
    return recommender
