"""Losses of the softmax layer, forward and backward by hand.

========================  =====================================================================
loss                      what it is
========================  =====================================================================
`FullSoftmaxLoss`         the full softmax, in blocks: never a matrix of all scores
`HierarchicalLoss`        a softmax at each step down a tree of classes, such as Huffman's
`FullLogisticLoss`        a logistic regression of each class, for several labels
`SampledSoftmaxLoss`      label and draws, corrected; its schemes are in `samplesoft.schemes`
`JackknifeLoss`           the same with a bias of order 1/m**2 and not 1/m, and more variance
`MultilevelLoss`          the same without any bias, from a random number of draws
`DoubleSumLoss`           the same without bias where a number for each example is learned too
`OneVsEachLoss`           a bound of the full softmax, without bias for that
`InBatchLoss`             draws are the labels of the other examples, with more or without
`ImportanceSoftmaxLoss`   draws alone, without a term for the label: importance sampling
`BilateralSoftmaxLoss`    label against a weighted log-sum-exp of the draws, for ranking
`NCELoss`                 noise-contrastive estimation: is a class the label, or drawn from q?
`NegativeSamplingLoss`    the same question without the correction, as in word2vec
`GBCELoss`                the same with a label that weighs less, so that scores are calibrated
`BPRLoss`                 ranking: the label against each draw by itself
`WARPLoss`                ranking: the label against the first draw that comes too near
========================  =====================================================================

Schemes ``"negatives"``, ``"masked"`` and ``"reject"`` tend to the full loss of each example as m
grows; ``"candidate"`` and ``"candidate_masked"`` are those of CNTK and TensorFlow. All take `tau`,
`normalize`, `absolute` (absolute softmax), class biases, weights of examples, draws for each
example or one set for all, and labels as (B,) or as a sparse matrix (B, n), of which
`label_reduction` and `mask_other_labels` say what becomes of several for an example.
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
from samplesoft.losses.logistic import FullLogisticLoss, NCELoss, NegativeSamplingLoss
from samplesoft.losses.multilevel import MultilevelDraw, MultilevelLoss
from samplesoft.losses.ranking import BPRLoss, WARPLoss
from samplesoft.losses.registry import LOSSES, LossSpec, make_loss
from samplesoft.losses.sampled import SampledLoss, SampledSoftmaxLoss
from samplesoft.losses.sums import DoubleSumLoss, OneVsEachLoss

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
    "MultilevelDraw",
    "MultilevelLoss",
    "NCELoss",
    "NegativeSamplingLoss",
    "OneVsEachLoss",
    "SampledLoss",
    "SampledSoftmaxLoss",
    "SparseRows",
    "WARPLoss",
    "huffman_tree",
    "make_loss",
    "two_level_tree",
]
