"""Losses on the label and a few drawn classes; the first of them is sampled softmax."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, thread_each
from samplesoft._validation import FloatArray, IntArray, as_choice, as_real_array
from samplesoft.kernels.candidate_logits import correct, softmax_terms
from samplesoft.losses.base import Batch, Loss
from samplesoft.losses.gradients import Gradients
from samplesoft.losses.scores import CandidateScores, candidate_scores
from samplesoft.losses.targets import Targets
from samplesoft.sampler import Draw

_CHUNK_NUMBERS = 1 << 15
_NO_LABEL = -1


@dataclass(frozen=True)
class Scheme:
    """How draws are treated.

    Parameters
    ----------
    adjusts_label : bool
        Candidate-sampling convention: the label's score loses its log expected count too.
    hits : {"absent", "masked", "counted", "kept"}
        Draws of the label: raise for them, leave them out, leave them out and spread their
        weight over the rest, or keep them as negatives.
    """

    adjusts_label: bool
    hits: str


SCHEMES = {
    "negatives": Scheme(adjusts_label=False, hits="absent"),
    "masked": Scheme(adjusts_label=False, hits="masked"),
    "reject": Scheme(adjusts_label=False, hits="counted"),
    "candidate": Scheme(adjusts_label=True, hits="kept"),
    "candidate_masked": Scheme(adjusts_label=True, hits="masked"),
}


class SampledLoss(Loss):
    """A loss on the label's logit and those of the drawn classes.

    A new one implements `_terms`.

    Parameters
    ----------
    scheme : str
        A key of `SCHEMES`.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Attributes
    ----------
    scheme : str
        How draws are treated.
    excludes_label : bool
        Whether draws must be made with ``exclude=labels``.
    needs_label_count : bool
        Whether `forward` must be given `label_log_count`.
    """

    def __init__(self, *, scheme: str = "negatives", **options: Any) -> None:
        super().__init__(**options)
        self.scheme = as_choice("scheme", scheme, SCHEMES)
        self._treatment = SCHEMES[self.scheme]
        self.excludes_label = self._treatment.hits == "absent"
        self.needs_label_count = self._treatment.adjusts_label or self._treatment.hits == "counted"

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, tuple[CandidateScores, FloatArray]]:
        targets = batch.targets
        ids, log_counts = _read_draw(draw, targets, len(batch.z), len(batch.class_embeddings))
        label_count = self._read_label_count(label_log_count, targets)
        candidates = candidate_scores(batch, ids, self.normalize)
        logits = np.empty(candidates.scores.shape)
        losses = np.empty(len(logits))

        def work(part: slice) -> None:
            own = slice(None) if len(ids) == 1 else part
            scores = candidates.scores[part]
            rows = logits[part]
            self._correct(
                np.abs(scores) if self.absolute else scores,
                ids[own],
                log_counts[own],
                targets.labels[part],
                None if label_count is None else label_count[part],
                rows,
                part.start,
            )
            self._terms(rows, losses[part])

        thread_each(work, chunks(len(logits), max(1, _CHUNK_NUMBERS // logits.shape[1])))
        if targets.shares is not None:
            losses = targets.per_example(losses * targets.shares)
        return losses, (candidates, logits)

    def _backward(
        self, batch: Batch, saved: tuple[CandidateScores, FloatArray], weights: FloatArray
    ) -> Gradients:
        candidates, derivatives = saved
        d_scores = derivatives * batch.targets.shared_out(weights)[:, None]
        if self.absolute:
            d_scores *= np.sign(candidates.scores)
        return candidates.backward(d_scores.astype(batch.z.dtype))

    @abstractmethod
    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        """Compute losses (P,) of corrected logits (P, 1 + m), and replace these by derivatives.

        The label's logit is in column 0. A logit of -inf is a draw without weight.
        """

    def _correct(
        self,
        scores: FloatArray,
        ids: IntArray,
        log_counts: FloatArray,
        labels: IntArray,
        label_count: FloatArray | None,
        logits: FloatArray,
        first: int,
    ) -> None:
        """Turn scores into logits, in which what was drawn stands for all that could have been."""
        keeps = self._treatment.hits == "kept"
        hit = correct(
            scores, ids, log_counts, np.full_like(labels, _NO_LABEL) if keeps else labels, logits
        )
        if hit >= 0 and self.excludes_label:
            raise ValueError(
                f"`draw` must not contain the label with scheme='negatives', got class "
                f"{labels[hit]} for pair {first + hit}; draw with exclude=labels, or take "
                "scheme='masked'."
            )
        if label_count is None:
            return
        if self._treatment.adjusts_label:
            logits[:, 0] -= label_count
        if self._treatment.hits == "counted":
            m = ids.shape[1]
            with np.errstate(divide="ignore"):  # all are hits, and none is left to correct
                log_expected = np.log(m) + np.log(-np.expm1(label_count - np.log(m)))
                log_kept = np.log(np.isfinite(logits[:, 1:]).sum(axis=1))
            logits[:, 1:] += np.where(np.isfinite(log_kept), log_expected - log_kept, 0.0)[:, None]

    def _read_label_count(self, value: ArrayLike | None, targets: Targets) -> FloatArray | None:
        if not self.needs_label_count:
            return None
        size = len(targets.labels)
        if value is None:
            raise TypeError(
                f"`label_log_count` must be given with scheme={self.scheme!r}: the log expected "
                "count of each label in a draw; use sampler.log_expected_count."
            )
        checked = np.asarray(value, dtype=np.float64)
        if checked.shape != (size,):
            raise ValueError(f"`label_log_count` must have shape ({size},), got {checked.shape}.")
        if self._treatment.adjusts_label and not np.isfinite(checked).all():
            worst = int(np.argmin(np.isfinite(checked)))
            raise ValueError(
                f"`label_log_count` must be finite, got {checked[worst]} for label "
                f"{targets.labels[worst]} of pair {worst}, which is absent from its candidates: "
                "no draw can contain it; take scheme='masked', or mix the proposal with one that "
                "covers all classes."
            )
        return checked


class SampledSoftmaxLoss(SampledLoss):
    """Softmax over the label and the drawn classes, corrected for how they were drawn.

    Parameters
    ----------
    scheme : str
        ``"negatives"``, ``"masked"`` and ``"reject"`` follow the importance convention: the
        label's score is not adjusted, and the loss of each example tends to the full softmax loss
        as m grows. ``"negatives"`` takes draws that exclude the label; ``"masked"`` leaves out
        all draws of the label; ``"reject"`` also divides by the number of draws that are left.
        ``"candidate"`` and ``"candidate_masked"`` adjust the label's score too, as TensorFlow and
        CNTK do: the gradient of one example is biased at every m, while its mean over the data
        is 0 at the true model.
    **options
        ``tau``, ``normalize``, ``absolute`` and ``reduction`` of `samplesoft.losses.base.Loss`.

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
    >>> ids
    array([0, 1, 2, 3, 4])
    """

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        softmax_terms(logits, losses, 0)


def _read_draw(
    draw: Draw | None, targets: Targets, batch: int, n: int
) -> tuple[IntArray, FloatArray]:
    """Return drawn classes and their log expected counts, for each pair or one row for all."""
    if not isinstance(draw, Draw):
        raise TypeError(
            f"`draw` must be a Draw, got {type(draw).__name__}; sampled losses take one from "
            "sampler.sample(h, num_sampled, ...)."
        )
    ids, log_counts = draw.ids, draw.log_expected_count
    if ids.ndim != 2 or ids.shape[1] == 0 or len(ids) not in (1, batch):
        raise ValueError(
            f"`draw` must hold ids of shape ({batch}, m) or (1, m), got {ids.shape}; draw for the "
            "same contexts."
        )
    if log_counts.shape != ids.shape:
        raise ValueError(
            f"`draw` must hold log-probabilities of the shape of its ids {ids.shape}, got "
            f"{log_counts.shape}."
        )
    if ids.min() < 0 or ids.max() >= n:
        raise ValueError(
            f"`draw` must hold classes in 0..{n - 1}, got {ids.min()}..{ids.max()}; the sampler "
            "was made for other classes."
        )
    if len(ids) == 1:
        return ids, log_counts
    return targets.rows(ids), targets.rows(log_counts)
