"""Registry of losses by name, for settings, the command line and the common test suite.

To add a loss, write a module with its class, and add an entry to `LOSSES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samplesoft._device.select import require_cpu
from samplesoft._validation import as_choice
from samplesoft.losses.base import Loss
from samplesoft.losses.bilateral import BilateralSoftmaxLoss, ImportanceSoftmaxLoss
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.gbce import GBCELoss
from samplesoft.losses.hierarchical import HierarchicalLoss
from samplesoft.losses.jackknife import JackknifeLoss
from samplesoft.losses.log_sums import LogSumLoss, MovingAverageLoss
from samplesoft.losses.logistic import FullLogisticLoss, NCELoss, NegativeSamplingLoss
from samplesoft.losses.multilevel import MultilevelLoss
from samplesoft.losses.one_vs_each import OneVsEachLoss
from samplesoft.losses.ranking import BPRLoss, WARPLoss
from samplesoft.losses.sampled import SampledLoss, SampledSoftmaxLoss
from samplesoft.schemes import Scheme


@dataclass(frozen=True)
class LossSpec:
    """A loss that has a name in `LOSSES`: its class, and the properties of class and scheme.

    Parameters
    ----------
    make : type of Loss
        The class of the loss.
    fixed : mapping of str to object
        Arguments of the class that the name implies, such as a scheme.
    masked : str or None
        For a loss whose draws exclude the label: the name of its variant for draws that may contain
        the label, such as one set for a whole batch.
    cuda : bool
        Whether the loss supports ``device="cuda"``.
    classifier : bool
        Whether `samplesoft.sklearn.SampledSoftmaxClassifier` offers the loss.

    Examples
    --------
    >>> from samplesoft.losses import LOSSES
    >>> LOSSES["sampled"].excludes_label, LOSSES["sampled"].masked
    (True, 'sampled-masked')
    >>> [name for name, spec in LOSSES.items() if not spec.draws]
    ['full', 'full-absolute', 'full-logistic', 'hierarchical']
    >>> LOSSES["jackknife"].bias_scheme, LOSSES["nce"].why_no_bias
    ('jackknife', 'this loss does not estimate the full softmax loss')
    """

    # Only the arguments are stored; properties that follow from class and scheme are computed.
    make: type[Loss]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    masked: str | None = None
    cuda: bool = False
    classifier: bool = False

    @property
    def scheme(self) -> Scheme | None:
        """Default scheme, which says how draws are treated; None for losses over all classes."""
        if not issubclass(self.make, SampledLoss):
            return None
        return self.make.schemes[self.fixed.get("scheme", self.make.default_scheme())]

    @property
    def absolute(self) -> bool:
        """Whether the loss replaces scores by their absolute values."""
        return bool(self.fixed.get("absolute"))

    @property
    def on_tree(self) -> bool:
        """Whether the loss needs the argument `tree`, a tree of the classes."""
        return self.make.on_tree

    @property
    def draws(self) -> bool:
        """Whether the loss is on drawn classes, and needs a sampler."""
        return self.scheme is not None

    @property
    def is_softmax(self) -> bool:
        """Whether the loss estimates the full softmax loss from drawn classes."""
        return issubclass(self.make, SampledLoss) and self.make.is_softmax

    @property
    def excludes_label(self) -> bool:
        """Whether draws must not contain the label of their example."""
        return self.scheme is not None and self.scheme.excludes_label

    @property
    def shares_draws(self) -> bool:
        """Whether one set of draws may serve a whole batch."""
        return self.draws and not self.excludes_label

    @property
    def several_labels(self) -> bool:
        """Whether an example may have several labels."""
        return not self.excludes_label and not self.has_log_sums

    @property
    def has_log_sums(self) -> bool:
        """Whether the loss keeps a number for each example, the argument `log_sums`."""
        return issubclass(self.make, LogSumLoss)

    @property
    def distinct(self) -> bool:
        """Whether draws may be without replacement."""
        return issubclass(self.make, SampledLoss) and not self.make.with_replacement

    @property
    def allows_always_included(self) -> bool:
        """Whether draws may contain always-included classes, which are in every set of draws."""
        return self.distinct and self.scheme is not None and self.scheme.loss_allows_always_included

    @property
    def needs_label_count(self) -> bool:
        """Whether the loss needs the expected count of the label in a draw."""
        return self.scheme is not None and self.scheme.needs_label_count

    @property
    def min_draws(self) -> int:
        """Smallest number of draws m that the loss accepts."""
        return 0 if self.scheme is None else self.scheme.min_draws

    @property
    def bias_scheme(self) -> str | None:
        """The scheme for which `samplesoft.exact_bias` returns the bias of the loss, or None."""
        if self.scheme is None or self.why_no_bias:
            return None
        return self.scheme.name

    @property
    def why_no_bias(self) -> str:
        """Reason why `bias_scheme` is None; empty if it is not None."""
        # return the first reason that applies; the reasons go from general to specific
        if self.scheme is None:
            return "it sums over all classes, and has no bias"
        if why := getattr(self.make, "why_no_bias", ""):
            return str(why)
        if not self.is_softmax:
            return "this loss does not estimate the full softmax loss"
        if not self.scheme.has_exact_bias:
            return f"no exact bias is known for scheme {self.scheme.name!r}"
        return ""


def _sampled_softmax_spec(**options: Any) -> LossSpec:
    return LossSpec(SampledSoftmaxLoss, cuda=True, **options)


LOSSES: dict[str, LossSpec] = {
    "full": LossSpec(FullSoftmaxLoss, classifier=True),
    "full-absolute": LossSpec(FullSoftmaxLoss, {"absolute": True}),
    "full-logistic": LossSpec(FullLogisticLoss, {"label_reduction": "ova"}, classifier=True),
    "hierarchical": LossSpec(
        HierarchicalLoss, {"normalize": False, "mask_other_labels": False}, classifier=True
    ),
    "sampled": _sampled_softmax_spec(masked="sampled-masked", classifier=True),
    "sampled-masked": _sampled_softmax_spec(fixed={"scheme": "masked"}, classifier=True),
    "sampled-reject": _sampled_softmax_spec(fixed={"scheme": "reject"}),
    "sampled-candidate": _sampled_softmax_spec(fixed={"scheme": "candidate"}),
    "sampled-candidate-masked": _sampled_softmax_spec(fixed={"scheme": "candidate_masked"}),
    "sampled-absolute": _sampled_softmax_spec(fixed={"absolute": True}),
    "importance": LossSpec(ImportanceSoftmaxLoss, classifier=True),
    "jackknife": LossSpec(JackknifeLoss, masked="jackknife-masked", classifier=True),
    "jackknife-masked": LossSpec(JackknifeLoss, {"scheme": "masked"}, classifier=True),
    "multilevel": LossSpec(MultilevelLoss, masked="multilevel-masked", classifier=True),
    "multilevel-masked": LossSpec(MultilevelLoss, {"scheme": "masked"}, classifier=True),
    "nce": LossSpec(NCELoss, classifier=True),
    "negative-sampling": LossSpec(
        NegativeSamplingLoss, masked="negative-sampling-masked", classifier=True
    ),
    "negative-sampling-masked": LossSpec(
        NegativeSamplingLoss, {"scheme": "masked"}, classifier=True
    ),
    "gbce": LossSpec(GBCELoss, classifier=True),
    "bpr": LossSpec(BPRLoss, classifier=True),
    "warp": LossSpec(WARPLoss, classifier=True),
    "bilateral": LossSpec(BilateralSoftmaxLoss),
    "one-vs-each": LossSpec(OneVsEachLoss),
    "moving-average": LossSpec(MovingAverageLoss),
}


def make_loss(name: str, **options: Any) -> Loss:
    """Make a loss by its name in `LOSSES`.

    Parameters
    ----------
    name : str
        A key of `LOSSES`. ``"sampled"``, ``"jackknife"``, ``"multilevel"`` and
        ``"negative-sampling"`` take draws that exclude the label. ``"sampled-reject"``, names that
        end in ``-masked``, ``"gbce"``, ``"bpr"``, ``"warp"`` and ``"one-vs-each"`` mask accidental
        hits, so that a batch can share one set of draws. ``"sampled-candidate-masked"`` is
        TensorFlow's ``sampled_softmax_loss`` with ``remove_accidental_hits``;
        ``"sampled-candidate"`` is the same without it, and CNTK's.
    **options
        Options of `samplesoft.losses.base.Loss`; ``scheme``, if the loss has several and the name
        implies none; and ``tree``, a `samplesoft.losses.ClassTree`, for ``"hierarchical"``.

    Returns
    -------
    Loss
        A new loss.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or the loss rejects an option.

    Examples
    --------
    >>> make_loss("sampled-masked", tau=2.0).scheme
    'masked'
    """
    spec = LOSSES[as_choice("name", name, LOSSES)]
    for option in options:
        if option in spec.fixed:
            raise ValueError(
                f"`{option}` must be left out for {name!r}, which says "
                f"{option}={spec.fixed[option]!r}, got {options[option]!r}; use another name."
            )

    if spec.on_tree and "tree" not in options:
        raise TypeError(
            f"`tree` must be given for {name!r}; make one with samplesoft.losses.two_level_tree or "
            "huffman_tree."
        )

    if not spec.cuda:
        require_cpu(repr(name), options.pop("device", "cpu"))

    return spec.make(**spec.fixed, **options)
