"""Measures of a model, on all classes and not on drawn ones.

`evaluate` gives the loss of the full softmax and hits among the best classes, `top_k_classes` the
best classes themselves, and `ranking_scores` precision, recall and nDCG of such lists, with
`propensities` also the precision that counts rare labels for more.
"""

from samplesoft.metrics.best_classes import top_k_classes
from samplesoft.metrics.evaluation import Evaluation, evaluate
from samplesoft.metrics.ranking import propensities, ranking_scores

__all__ = ["Evaluation", "evaluate", "propensities", "ranking_scores", "top_k_classes"]
