"""Parameters of a recommender: checked, and as settings of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samplesoft._validation import (
    as_choice,
    as_count,
    as_flag,
    as_nonnegative,
    as_positive,
    shown,
)
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings

AUTO, BILATERAL = "auto", "bilateral"
_FEWEST, _MOST, _SHARE = 1000, 4000, 10  # draws, if the caller gives none: a tenth of the items
OFFERED = [
    name
    for name, spec in LOSSES.items()
    if spec.several_labels and not spec.absolute and "label_reduction" not in spec.fixed
]  # labels have weights, which one versus all does not take


@dataclass(frozen=True)
class RecommenderSettings(LinearSoftmaxSettings):
    """A linear softmax model, with the weight of negatives in the bilateral loss."""

    negative_weight: float = 1.0

    def _loss_options(self) -> dict[str, Any]:
        own = {"negative_weight": self.negative_weight} if self.loss == BILATERAL else {}
        return {**super()._loss_options(), **own}


def check_parameters(recommender: Any, num_items: int = 2) -> RecommenderSettings:
    """Return the settings of the model, or raise TypeError or ValueError for a parameter.

    Nothing is drawn where there is only one item.
    """
    for name in ("max_iter", "batch_size", "n_iter_no_change"):
        as_count(name, getattr(recommender, name))
    for name in ("learning_rate", "negative_weight"):
        as_positive(name, getattr(recommender, name))
    as_nonnegative("dropout", recommender.dropout, below=1.0)
    for name in ("early_stopping", "verbose"):
        as_flag(name, getattr(recommender, name))
    share = as_nonnegative("validation_fraction", recommender.validation_fraction, below=1.0)
    if share == 0.0:
        raise ValueError(
            "`validation_fraction` must be greater than 0, got 0; or turn `early_stopping` off."
        )
    weight = recommender.propagation
    if not isinstance(weight, str):
        as_nonnegative("propagation", weight)
    elif weight != AUTO:
        raise ValueError(f"`propagation` must be a number or 'auto', got {shown(weight)}.")
    elif not recommender.early_stopping:
        raise ValueError(
            "`propagation` must be a number with early_stopping=False, got 'auto', which is chosen "
            "on what early stopping holds out; 0.1 is a fair one."
        )
    draws = LOSSES[as_choice("loss", recommender.loss, OFFERED)].draws and num_items > 1
    return RecommenderSettings(
        loss=recommender.loss if draws else "full",
        sampler=recommender.sampler if draws else None,
        num_sampled=_num_sampled(recommender.num_sampled, num_items) if draws else None,
        shared=recommender.shared if draws else False,
        tau=recommender.tau,
        embedding_dim=recommender.embedding_dim,
        negative_weight=recommender.negative_weight,
    )


def _num_sampled(given: Any, num_items: int) -> Any:
    return min(max(num_items // _SHARE, _FEWEST), _MOST) if given is None else given
