"""Losses on the label and a few drawn classes; the first of them is sampled softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import as_device, twin
from samplesoft._validation import FloatArray, IntArray, as_choice
from samplesoft.kernels.losses.candidate_logits import gains_of_kept
from samplesoft.kernels.losses.merged_draws import merge_exponentials
from samplesoft.kernels.losses.softmax_terms import softmax_terms
from samplesoft.losses.base import Batch, Cache, Loss
from samplesoft.losses.draws import check_draw, check_label_count, require_replacement
from samplesoft.losses.examples import merged_draws
from samplesoft.losses.gradients import Gradients
from samplesoft.losses.pairs import Pairs, Results, Rules, each_pair, find_label_draws
from samplesoft.losses.scores import CandidateScores, candidate_scores
from samplesoft.losses.targets import Targets
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme, select

Seed = int | np.random.Generator | None


@dataclass(frozen=True, eq=False)
class Request:
    """What a layer asks a loss to draw.

    Parameters
    ----------
    targets : Targets
        Labels of the batch.
    num_classes : int
        Number of classes n.
    num_sampled : int
        Number of draws m that was asked for.
    sample : callable
        ``sample(num, rng)`` returns a `Draw` of so many for the contexts of the batch.
    batch_of : callable
        ``batch_of(draw)`` returns the `Batch` on which `draw` can be scored, and the draw with its
        classes as that batch numbers them.
    """

    targets: Targets
    num_classes: int
    num_sampled: int
    sample: Callable[[int, Seed], Draw]
    batch_of: Callable[[Draw], tuple[Batch, Draw | None]]


@dataclass(frozen=True, eq=False)
class _Saved:
    """What the backward pass needs: the scores, and the derivatives of each example's loss."""

    scores: CandidateScores
    d_own: Rows  # (P,): in the scores of the labels
    d_drawn: Rows  # (B, m): in those of the draws


class SampledLoss(Loss):
    """A loss on the label's logit and those of the drawn classes.

    A new one implements `_terms`, and names its `schemes`; where it is a softmax, its bias is that
    of its scheme, or `why_no_bias` says why not. One that decides on the number of its draws
    overrides `draw`. With several labels an example, `_terms` is given a row for each of them, with
    all draws, which takes time by the number of labels. A loss for which one logit can stand for
    many draws may implement `_merge` too, and draws then cost what they cost with one label.

    Parameters
    ----------
    scheme : str, optional
        A key of `schemes`; the first of them by default.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Attributes
    ----------
    schemes : dict of str to Scheme
        Those that the loss makes sense with, its default first.
    is_softmax : bool
        Whether the loss of an example is an estimate of that of the full softmax.
    with_replacement : bool
        Whether draws must be independent, and so may not be of distinct or of certain classes.
    why_no_bias : str
        Why the bias of a softmax is not that of its scheme; empty where it is.
    scheme : str
        How draws are treated.
    facts : Scheme
        What is known of that scheme.
    excludes_label : bool
        Whether draws must be made with ``exclude=labels``.
    needs_label_count : bool
        Whether `forward` must be given `label_log_count`.
    bias_scheme : str or None
        The scheme under which `samplesoft.exact_bias` gives the bias of this loss; None where
        no exact bias is known, as for logistic losses.
    """

    schemes: ClassVar[dict[str, Scheme]]
    is_softmax: ClassVar[bool] = False
    with_replacement: ClassVar[bool] = False
    why_no_bias: ClassVar[str] = ""
    offset = 0.0  # added to all scores

    def __init__(self, *, scheme: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        name = self.default_scheme() if scheme is None else scheme
        self.scheme = as_choice("scheme", name, self.schemes)
        self.facts = facts = self.schemes[self.scheme]
        self.excludes_label = facts.excludes_label
        self.needs_label_count = facts.needs_label_count
        has_bias = self.is_softmax and facts.has_exact_bias and not self.why_no_bias
        self.bias_scheme = facts.name if has_bias else None

    @classmethod
    def default_scheme(cls) -> str:
        """Return the first of `schemes`."""
        return next(iter(cls.schemes))

    @property
    def takes_certain(self) -> bool:
        """Whether classes may be in every draw for certain."""
        return self.facts.loss_takes_certain and not self.with_replacement

    def draw(self, request: Request, rng: Seed) -> Draw:
        """Draw what the loss needs; as many as asked for, unless the loss decides on their number.

        Parameters
        ----------
        request : Request
            How many are asked for, and for what batch.
        rng : int, numpy.random.Generator or None
            Seed of the draws, and of what else is random.

        Returns
        -------
        Draw
            For `forward`.
        """
        return request.sample(request.num_sampled, rng)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, _Saved]:
        targets = batch.targets
        ids, log_counts = check_draw(draw, len(batch.z), len(batch.class_embeddings))
        assert draw is not None
        if self.with_replacement:
            require_replacement(draw, type(self).__name__)
        if not self.facts.corrects_draws:
            log_counts = np.zeros_like(log_counts)
        label_count = None
        if self.needs_label_count:
            label_count = check_label_count(label_log_count, targets, self.facts)
        scores = candidate_scores(batch, ids, self.normalize)
        own, drawn = scores.own, scores.drawn
        if self.absolute:
            own, drawn = np.abs(own), np.abs(drawn)
        found = None
        if targets.owners is not None or self.facts.divides_by_kept:
            found = find_label_draws(scores, targets)
        own = own.astype(np.float64) + self.offset
        log_counts = log_counts - self.offset
        if label_count is not None and self.facts.corrects_label:
            own -= label_count
        elif label_count is not None and found is not None:
            hits = found.hits
            if self.mask_other_labels:  # no draw of any label is kept
                hits = targets.rows(targets.per_example(hits))
                label_count = targets.rows(np.logaddexp.reduceat(label_count, targets.firsts()))
            own -= _gains(drawn.shape[1], hits, label_count)
        if targets.owners is None:
            found = None
        own_draws, others = self.facts.draws_label, not self.mask_other_labels
        rules = Rules(own_draws, others)
        if self.label_reduction == "ova":  # all labels of an example are its own
            rules = Rules(own_draws and others, own_draws and others, once=True)
        shares = np.ones(len(own)) if targets.shares is None else targets.shares
        logits = own, drawn, ids, log_counts
        results = self._results(Pairs(targets, *logits, found, rules, scores.owners, shares, draw))
        if self.excludes_label and results.hits.any():
            raise self.contains_label(targets.labels, int(results.hits.argmax()))
        d_own, d_drawn = results.d_own, results.d_drawn
        if self.absolute:
            d_own *= np.sign(scores.own)
            d_drawn *= np.sign(scores.drawn)
        losses = targets.per_example(results.losses * shares)
        return losses, _Saved(scores, d_own, d_drawn)

    def _results(self, pairs: Pairs) -> Results:
        """Return losses and derivatives; several labels share their draws where the loss can."""
        if pairs.found is None or type(self)._merge is SampledLoss._merge:
            return each_pair(pairs, self._terms)
        return merged_draws(pairs, self._terms, self._merge)

    def _backward(self, batch: Batch, saved: _Saved, weights: FloatArray) -> Gradients:
        return saved.scores.backward(saved.d_own, saved.d_drawn, weights)

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        """Compute losses (P,) of corrected logits (P, 1 + m), and replace these by derivatives.

        The label's logit is in column 0. A logit of -inf is a draw without weight. A loss whose
        terms need more than logits overrides `_results`.
        """
        raise NotImplementedError

    def _merge(self, logits: FloatArray, merged: FloatArray) -> None:
        """Compute logits (B,) that stand for the rows of logits (B, m) of draws in the loss.

        Replace rows by their derivatives. A loss for which no one logit does so leaves this out.
        """
        raise NotImplementedError

    def contains_label(self, labels: IntArray, pair: int) -> ValueError:
        """Return the error for a draw that must not contain the label."""
        return ValueError(
            f"`draw` must not contain the label with scheme={self.scheme!r}, got class "
            f"{labels[pair]} for pair {pair}; draw with exclude=labels, or take scheme='masked'."
        )


def _gains(m: int, hits: IntArray, label_counts: FloatArray) -> FloatArray:
    """Return what the logits of draws gain where those of the label are left out, for each pair.

    A softmax is the same where the label's logit loses it.
    """
    gains = np.empty(len(hits))
    gains_of_kept(m, hits, label_counts, gains)
    return gains


class SampledSoftmaxLoss(SampledLoss):
    """Softmax over the label and the drawn classes, corrected for how they were drawn.

    Parameters
    ----------
    scheme : str
        ``"negatives"``, ``"masked"`` and ``"reject"`` follow the importance convention: the
        label's score is not adjusted, and the loss of each example tends to the full softmax loss
        as m grows. ``"negatives"`` takes draws that exclude the label; ``"masked"`` leaves out
        all draws of the label; ``"reject"`` also divides by the number of draws that are left.
        ``"candidate"`` and ``"candidate_masked"`` adjust the label's score too, as CNTK and
        TensorFlow do: the gradient of one example is biased at every m, while its mean over the
        data is 0 at the true model. With hits masked that holds where draws are distinct and
        equally likely, and else nearly. Compare models by the full softmax loss, not by these.
    device : {"cpu", "cuda"}
        Where it computes; on a GPU for draws with replacement and one label an example.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.
    .. [2] S. Jean et al., "On using very large target vocabulary for neural machine translation",
       ACL 2015: the candidate convention.
    .. [3] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       eq. 5.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> rng = np.random.default_rng(0)
    >>> h, class_embeddings = rng.normal(size=(2, 3)), rng.normal(size=(5, 3))
    >>> labels = np.array([4, 1])
    >>> draw = UniformSampler(5).sample(h, 3, exclude=labels, rng=0)
    >>> loss = SampledSoftmaxLoss()
    >>> value, cache = loss.forward(h, class_embeddings, labels, draw)
    >>> ids, rows = loss.backward(cache).dW
    >>> ids  # labels and draws
    array([1, 2, 3, 4])
    """

    schemes: ClassVar[dict[str, Scheme]] = select(
        "negatives", "masked", "reject", "candidate", "candidate_masked"
    )
    is_softmax = True

    def __init__(self, *, scheme: str = "negatives", device: str = "cpu", **options: Any) -> None:
        super().__init__(scheme=scheme, **options)
        self.device = as_device(device)

    @property
    def _passes(self) -> Any:
        """The passes on the device; not kept, for those of a copy must read the copy's options."""
        return twin(self.device, "samplesoft.losses.sampled:Passes")(self)

    def check_batch(
        self, h: ArrayLike, class_embeddings: ArrayLike, labels: Any, biases: ArrayLike | None
    ) -> Batch:
        """Check the arguments of `forward`, and normalise contexts."""
        batch: Batch = self._passes.check_batch(h, class_embeddings, labels, biases)
        return batch

    def forward_batch(
        self,
        batch: Batch,
        draw: Draw | None,
        *,
        label_log_count: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Any, Cache]:
        """Compute the loss, as `forward` does, of arguments that `check_batch` has checked."""
        found: tuple[Any, Cache] = self._passes.forward_batch(
            batch, draw, label_log_count=label_log_count, weights=weights
        )
        return found

    def backward(self, cache: Cache) -> Gradients:
        """Compute the gradient of what `forward` returned, or of its sum."""
        gradients: Gradients = self._passes.backward(cache)
        return gradients

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        softmax_terms(logits, losses, 0)

    def _merge(self, logits: FloatArray, merged: FloatArray) -> None:
        merge_exponentials(logits, merged)


class HostPasses:
    """The passes of a `SampledSoftmaxLoss` on the processor: those of every loss."""

    def __init__(self, loss: SampledSoftmaxLoss) -> None:
        self.check_batch = partial(SampledLoss.check_batch, loss)
        self.forward_batch = partial(SampledLoss.forward_batch, loss)
        self.backward = partial(SampledLoss.backward, loss)
