"""Losses of the softmax layer, with hand-written forward and backward passes.

========================  =====================================================================
loss                      description
========================  =====================================================================
`FullSoftmaxLoss`         the full softmax, in blocks: never a matrix of all scores
`HierarchicalLoss`        a softmax at each step down a tree of classes, such as Huffman's
`FullLogisticLoss`        a logistic regression of each class, for several labels
`SampledSoftmaxLoss`      softmax over label and corrected draws; see `samplesoft.schemes`
`JackknifeLoss`           sampled softmax with a bias of order 1/m**2, not 1/m; more variance
`MultilevelLoss`          sampled softmax without bias, from a random number of draws
`DoubleSumLoss`           the dual of the log-sum, with a trained log-sum per example; U-max
`SafeKLLoss`              safe KL: a double sum with a softer exponential
`MovingAverageLoss`       a running sum per example as the divisor: SogCLR, SOX, SCENT
`OneVsEachLoss`           an unbiased estimate of a bound of the full softmax
`InBatchLoss`             the labels of the other examples as draws, and optional extra draws
`ImportanceSoftmaxLoss`   importance sampling: draws only, without a term for the label
`BilateralSoftmaxLoss`    label against a weighted log-sum-exp of the draws, for ranking
`NCELoss`                 noise-contrastive estimation: label against draws from q
`NegativeSamplingLoss`    `NCELoss` without correction for the proposal, as in word2vec
`GBCELoss`                negative sampling with a smaller label weight: calibrated scores
`BPRLoss`                 ranking: the label against each draw separately
`WARPLoss`                ranking: the label against the first draw within a margin
========================  =====================================================================

Schemes ``"negatives"``, ``"masked"`` and ``"reject"`` tend to the full loss of each example as m
grows; ``"candidate"`` and ``"candidate_masked"`` are used by CNTK and TensorFlow. All losses take
`tau`, `normalize`, `absolute` (absolute softmax), class biases, and weights of examples. Draws are
per example or shared. Labels are (B,), or a sparse matrix (B, n); `label_reduction` and
`mask_other_labels` control how several labels of an example are treated.
"""

from samplesoft.losses.base import Batch, Cache, Gradients, Loss, SparseRows
from samplesoft.losses.bilateral import BilateralSoftmaxLoss, ImportanceSoftmaxLoss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.gbce import GBCELoss
from samplesoft.losses.hierarchical import (
    ClassTree,
    HierarchicalLoss,
    huffman_tree,
    two_level_tree,
)
from samplesoft.losses.in_batch import InBatchLoss
from samplesoft.losses.jackknife import JackknifeLoss
from samplesoft.losses.log_sums import DoubleSumLoss, MovingAverageLoss, SafeKLLoss
from samplesoft.losses.logistic import FullLogisticLoss, NCELoss, NegativeSamplingLoss
from samplesoft.losses.multilevel import MultilevelDraw, MultilevelLoss
from samplesoft.losses.one_vs_each import OneVsEachLoss
from samplesoft.losses.ranking import BPRLoss, WARPLoss
from samplesoft.losses.registry import LOSSES, LossSpec, make_loss
from samplesoft.losses.sampled import SampledLoss, SampledSoftmaxLoss

__all__ = [
    "LOSSES",
    "BPRLoss",
    "Batch",
    "BilateralSoftmaxLoss",
    "Cache",
    "ClassTree",
    "DoubleSumLoss",
    "FullLogisticLoss",
    "FullSoftmaxLoss",
    "GBCELoss",
    "Gradients",
    "HierarchicalLoss",
    "ImportanceSoftmaxLoss",
    "InBatchLoss",
    "JackknifeLoss",
    "Loss",
    "LossSpec",
    "MovingAverageLoss",
    "MultilevelDraw",
    "MultilevelLoss",
    "NCELoss",
    "NegativeSamplingLoss",
    "OneVsEachLoss",
    "SafeKLLoss",
    "SampledLoss",
    "SampledSoftmaxLoss",
    "SparseRows",
    "WARPLoss",
    "huffman_tree",
    "make_loss",
    "two_level_tree",
]
