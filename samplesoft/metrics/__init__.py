"""Metrics of a model on all classes, and their relation to metrics on sampled negatives.

`evaluate` computes the loss of the full softmax and top-k accuracy. `top_k_classes` returns the
best classes themselves. `ranking_scores` computes precision, recall and nDCG of such lists, and
with `propensities` the propensity-scored precision, which gives rare labels more weight.

`sampled_metrics` computes the exact mean and variance of a metric on sampled negatives from the
`target_ranks` among all candidates. `correct_metric` and `estimate_rank_distribution` estimate
metrics on all candidates from sampled ranks.
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
