"""Evaluation metrics on all classes, and their relation to metrics on sampled negatives.

`evaluate` computes the full-softmax loss and the top-k accuracy, and `top_k_classes` returns the k
best classes. `ranking_scores` computes precision, recall and nDCG of such lists, and with
`propensities` also the propensity-scored precision, which gives rare labels more weight.

`target_ranks` ranks relevant items among all candidates. From these ranks `sampled_metrics`
computes the exact mean and variance of a metric on sampled negatives. Conversely, `correct_metric`
and `estimate_rank_distribution` estimate metrics on all candidates from ranks among sampled
negatives.
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
