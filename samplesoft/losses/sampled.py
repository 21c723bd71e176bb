"""Losses on the label and a few drawn classes; the first of them is sampled softmax.

`SampledLoss._forward` is the path of a step: draws are checked, scored beside the labels, corrected
for how they were drawn, and a loss makes its terms of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import as_device, twin
from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray, as_choice
from samplesoft.kernels.weights import greatest, total
from samplesoft.losses.base import Batch, Cache, Gradients, Loss, Targets
from samplesoft.losses.candidates import (
    Scores,
    check_draw,
    check_label_count,
    require_replacement,
    score_candidates,
    score_gradients,
)
from samplesoft.losses.pairs import (
    Kernel,
    Pairs,
    gains_of_kept,
    label_draws,
    log_ratio,
    pair_terms,
    weigh,
)
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme, select

Seed = int | np.random.Generator | None
Sample = Callable[[int, Seed], Draw]  # so many draws for the contexts of a batch


@dataclass(frozen=True, eq=False)
class _Saved:
    """What the backward pass needs: the scores, and the derivatives of each example's loss."""

    scores: Scores
    d_own: Rows  # (P,): in the scores of the labels
    d_drawn: Rows  # (B, m): in those of the draws


class SampledLoss(Loss):
    """A loss on the label's logit and those of the drawn classes.

    A new one implements `_terms`, and names its `schemes`; where it is a softmax, its bias is that
    of its scheme, or `why_no_bias` says why not. One that decides on the number of its draws
    overrides `draw`. With several labels an example, `_terms` is given a row for each of them, with
    all draws, which takes time by the number of labels. A loss for which one logit can stand for
    many draws may implement ``_merge(logits, merged)`` too, and draws then cost what they cost with
    one label: see `merge_exponentials`. Without `_merge`, nobody needs to know ``pairs.py``.

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

    # `_merge(logits, merged)` computes logits (B,) that stand for the rows of logits (B, m) of
    # draws in the loss, and replaces rows by their derivatives.
    _merge: Kernel | None = None

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

    def draw(
        self, sample: Sample, num_sampled: int, targets: Targets, num_classes: int, rng: Seed
    ) -> Draw:
        """Draw what the loss needs; as many as asked for, unless the loss decides on their number.

        Parameters
        ----------
        sample : callable
            ``sample(num, rng)`` returns a `Draw` of so many for the contexts of the batch.
        num_sampled : int
            Number of draws m that was asked for.
        targets : Targets
            Labels of the batch.
        num_classes : int
            Number of classes n.
        rng : int, numpy.random.Generator or None
            Seed of the draws, and of what else is random.

        Returns
        -------
        Draw
            For `forward`.
        """
        return sample(num_sampled, rng)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, _Saved]:
        targets, facts = batch.targets, self.facts
        ids, log_counts = check_draw(draw, len(batch.z), len(batch.class_embeddings))
        assert draw is not None
        if self.with_replacement:
            require_replacement(draw, type(self).__name__)
        terms = self._terms_of(draw)
        if self.needs_label_count:
            label_count = check_label_count(label_log_count, targets, facts)

        # Scores of the labels (P,) and of the draws (B, m).
        scores = score_candidates(batch, ids, self.normalize)
        own, drawn = scores.own, scores.drawn
        if self.absolute:
            own, drawn = np.abs(own), np.abs(drawn)

        # Logits: what a draw stands for is its weight divided by how often it is expected.
        # In float64: of float32 the logarithm of a small probability would lose digits.
        own = own.astype(np.float64) + self.offset
        if not facts.corrects_draws:
            log_counts = np.zeros_like(log_counts)
        log_counts = log_counts - self.offset  # so that scores of draws gain it too
        label_of = None
        if targets.owners is not None or facts.divides_by_kept:
            label_of, hits = label_draws(scores)
        if facts.corrects_label:
            own -= label_count
        elif facts.divides_by_kept:
            if self.mask_other_labels:  # no draw of any label is kept
                hits_left_out = targets.rows(targets.per_example(hits))
                label_count = targets.rows(np.logaddexp.reduceat(label_count, targets.firsts()))
            else:
                hits_left_out = hits
            gains = np.empty(len(own))
            gains_of_kept(drawn.shape[1], hits_left_out, label_count, gains)
            own -= gains  # the same softmax as if all draws gained it

        # Terms of the loss, and their derivatives in the scores.
        keeps_own, keeps_others = facts.draws_label, not self.mask_other_labels
        once = self.label_reduction == "ova"
        if once:  # all labels of an example are its own
            keeps_own = keeps_others = keeps_own and keeps_others
        several = targets.owners is not None
        label_of = label_of if several else None
        draws = own, drawn, ids, log_counts, targets, scores.owners, label_of
        pairs = Pairs(*draws, keeps_own, keeps_others, once)
        results = pair_terms(pairs, terms, self._merge)
        if self.excludes_label:
            hits = hits if several else results.hits
            if hits.any():
                raise self.contains_label(targets.labels, int(hits.argmax()))
        d_own, d_drawn = results.d_own, results.d_drawn
        if self.absolute:  # from derivatives in |o| to those in o
            d_own *= np.sign(scores.own)
            d_drawn *= np.sign(scores.drawn)
        return targets.per_example(results.losses), _Saved(scores, d_own, d_drawn)

    def _backward(self, batch: Batch, saved: _Saved, weights: FloatArray) -> Gradients:
        return score_gradients(batch, saved.scores, saved.d_own, saved.d_drawn, weights)

    def _terms_of(self, draw: Draw) -> Kernel:
        """Return `_terms`; a loss whose terms need more of the draw than logits overrides it."""
        return self._terms

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        """Compute losses (P,) of corrected logits (P, 1 + m), and replace these by derivatives.

        The label's logit is in column 0. A logit of -inf is a draw without weight.
        """
        raise NotImplementedError

    def contains_label(self, labels: IntArray, pair: int) -> ValueError:
        """Return the error for a draw that must not contain the label."""
        return ValueError(
            f"`draw` must not contain the label with scheme={self.scheme!r}, got class "
            f"{labels[pair]} for pair {pair}; draw with exclude=labels, or take scheme='masked'."
        )


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
    def _on_gpu(self) -> Any:
        """The passes on a GPU; not kept, for those of a copy must read the copy's options."""
        return twin("cuda", "samplesoft.losses.sampled:Passes")(self)

    def check_batch(
        self, h: ArrayLike, class_embeddings: ArrayLike, labels: Any, biases: ArrayLike | None
    ) -> Batch:
        """Check the arguments of `forward`, and normalise contexts."""
        passes: Any = super() if self.device == "cpu" else self._on_gpu
        batch: Batch = passes.check_batch(h, class_embeddings, labels, biases)
        return batch

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        passes: Any = super() if self.device == "cpu" else self._on_gpu
        losses, saved = passes._forward(batch, draw, label_log_count)
        return losses, saved

    def backward(self, cache: Cache) -> Gradients:
        """Compute the gradient of what `forward` returned, or of its sum."""
        passes: Any = super() if self.device == "cpu" else self._on_gpu
        gradients: Gradients = passes.backward(cache)
        return gradients

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        softmax_terms(logits, losses)

    def _merge(self, logits: FloatArray, merged: FloatArray) -> None:
        merge_exponentials(logits, merged)


@njit
def softmax_terms(logits: FloatArray, losses: FloatArray) -> None:
    """Write ``logsumexp(logits) - logits[0]`` of each row, and turn rows into its gradient.

    Column 0 of the logits (P, 1 + m) is the label's, and finite.
    """
    for b in range(len(logits)):
        row = logits[b]
        top = greatest(row)
        losses[b] = top - row[0]  # until the sum is known, how far the label is below the top
        for k in range(len(row)):
            row[k] -= top
    weigh(logits.reshape(-1))  # long rows leave few numbers that do not fill a vector
    for b in range(len(logits)):
        row = logits[b]
        own, drawn = row[0], total(row[1:])
        losses[b] = log_ratio(own, drawn, losses[b])
        scale = 1.0 / (own + drawn)
        for k in range(1, len(row)):
            row[k] *= scale
        row[0] = -drawn / (own + drawn)  # p - 1 without the rounding of a p near 1


@njit
def merge_exponentials(logits: FloatArray, merged: FloatArray) -> None:
    """Write the logit (B,) whose exponential is that of all of a row, which becomes its slopes.

    `logits` are (B, m). A row of -inf merges to -inf.
    """
    for b in range(len(logits)):
        row = logits[b]
        merged[b] = greatest(row)
        if merged[b] != -np.inf:
            for k in range(len(row)):
                row[k] -= merged[b]
    # The slope of the merged logit in a draw is the draw's share of the mass.
    weigh(logits.reshape(-1))
    for b in range(len(logits)):
        row = logits[b]
        mass = total(row)
        if mass > 0.0:
            merged[b] += np.log(mass)
            for k in range(len(row)):
                row[k] /= mass
