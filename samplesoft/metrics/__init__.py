"""Measures of a model, on all classes and not on drawn ones.

`evaluate` gives the loss of the full softmax and hits among the best classes, `top_k_classes` the
best classes themselves, and `ranking_scores` precision, recall and nDCG of such lists, with
`propensities` also the precision that counts rare labels for more.

`sampled_metrics` says what such measures are among sampled negatives, on average and with which
variance, from the `target_ranks` among all; `correct_metric` and `estimate_rank_distribution` go
the other way.
"""

from samplesoft.metrics.corrections import correct_metric, estimate_rank_distribution
from samplesoft.metrics.evaluation import Evaluation, evaluate
from samplesoft.metrics.rank_distribution import sampled_rank_distribution
from samplesoft.metrics.ranking import propensities, rank_metric, ranking_scores
from samplesoft.metrics.sampled import sampled_metrics
from samplesoft.metrics.target_ranks import TargetRanks, target_ranks
from samplesoft.search import top_k_classes

__all__ = [
    "Evaluation",
    "TargetRanks",
    "correct_metric",
    "estimate_rank_distribution",
    "evaluate",
    "propensities",
    "rank_metric",
    "ranking_scores",
    "sampled_metrics",
    "sampled_rank_distribution",
    "target_ranks",
    "top_k_classes",
]
