"""Losses of the softmax layer, forward and backward by hand.

========================  =====================================================================
loss                      what it is
========================  =====================================================================
`FullSoftmaxLoss`         the full softmax, in blocks: never a matrix of all scores
`FullLogisticLoss`        a logistic regression of each class, for several labels
`SampledSoftmaxLoss`      label and draws, corrected; its schemes are in `samplesoft.schemes`
`JackknifeLoss`           the same with a bias of order 1/m**2 and not 1/m, and more variance
`MultilevelLoss`          the same without any bias, from a random number of draws
`CoupledLoss`             its gradient without any bias, by two Markov chains until they meet
`BrSnisLoss`              a Markov chain through its draws, with less bias where they are many
`InBatchLoss`             draws are the labels of the other examples, with more or without
`ImportanceSamplingLoss`  log Z estimated from draws of all classes, not from the label
`BilateralSoftmaxLoss`    label against a weighted log-sum-exp of the draws, for ranking
`NCELoss`                 noise-contrastive estimation: is a class the label, or drawn from q?
`NegativeSamplingLoss`    the same question without the correction, as in word2vec
========================  =====================================================================

Schemes ``"negatives"``, ``"masked"`` and ``"reject"`` tend to the full loss of each example as m
grows; ``"candidate"`` and ``"candidate_masked"`` are those of CNTK and TensorFlow. All take `tau`,
`normalize`, `absolute` (absolute softmax), class biases, weights of examples, draws for each
example or one set for all, and labels as (B,) or as a sparse matrix (B, n), of which
`label_reduction` and `mask_other_labels` say what becomes of several for an example.
"""

from samplesoft.losses.base import Batch, Cache, Loss
from samplesoft.losses.bilateral import BilateralSoftmaxLoss
from samplesoft.losses.br_snis import BrSnisLoss
from samplesoft.losses.chains import ChainDraw
from samplesoft.losses.coupled import CoupledLoss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.full_logistic import FullLogisticLoss
from samplesoft.losses.gradients import Gradients, SparseRows
from samplesoft.losses.importance import ImportanceSamplingLoss
from samplesoft.losses.in_batch import InBatchLoss
from samplesoft.losses.jackknife import JackknifeLoss
from samplesoft.losses.multilevel import MultilevelDraw, MultilevelLoss
from samplesoft.losses.nce import NCELoss
from samplesoft.losses.negative_sampling import NegativeSamplingLoss
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.sampled import SampledLoss, SampledSoftmaxLoss
from samplesoft.losses.spec import LossSpec

__all__ = [
    "LOSSES",
    "Batch",
    "BilateralSoftmaxLoss",
    "BrSnisLoss",
    "Cache",
    "ChainDraw",
    "CoupledLoss",
    "FullLogisticLoss",
    "FullSoftmaxLoss",
    "Gradients",
    "ImportanceSamplingLoss",
    "InBatchLoss",
    "JackknifeLoss",
    "Loss",
    "LossSpec",
    "MultilevelDraw",
    "MultilevelLoss",
    "NCELoss",
    "NegativeSamplingLoss",
    "SampledLoss",
    "SampledSoftmaxLoss",
    "SparseRows",
    "make_loss",
]
