"""In-batch negatives: the labels of the other examples of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray, as_choice, require_instance
from samplesoft.losses.base import Batch, Gradients, Loss
from samplesoft.losses.candidates import missing_draw_error
from samplesoft.losses.sampled import SampledSoftmaxLoss
from samplesoft.samplers.base import Draw, Sampler

_INFONCE = "infonce"


class InBatchLoss(Loss):
    r"""Sampled softmax whose negatives are the labels of the other examples of the batch.

    Mostly used in retrieval models: the vectors of the batch's labels are computed anyway, and
    nothing is drawn. Frequent labels occur more often as negatives; the loss corrects for that.

    Parameters
    ----------
    proposal : Sampler, optional
        The distribution of labels, independent of contexts: ``UnigramSampler(counts, power=1.0)``
        for known counts; a `StreamingUnigramSampler` or a `LearnedUnigramSampler` that learns from
        labels (call its ``observe`` after each step); or a `WeightedSampler` of probabilities. None
        for ``"infonce"``, which corrects nothing.
    scheme : {"masked", "candidate_masked", "infonce"}
        Which logits are corrected: only those of the negatives, those of the label too, or none;
        see Notes.
    extra : Sampler, optional
        Sampler of additional negatives, also independent of contexts, such as a `UniformSampler`.
        `forward` then takes a draw from it (mixed negatives).
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` also if a batch has one example and no draw, if
        examples have several labels, or the proposal gives a label the probability 0.

    Notes
    -----
    **What it estimates.** Let an example have the label t, and let the other m = B - 1 labels of
    its batch be drawn from q, independently of it. Then they *are* m draws from q, and with

    .. math:: S = e_t + \sum_{i:\, s_i \ne t} \frac{e_{s_i}}{m\, q_{s_i}}

    the mean of the loss and of its gradient is that of scheme ``"masked"``, which
    ``exact_bias(logits, t, q, B - 1, scheme="masked")`` computes. The examples of a batch share
    their negatives, so that the noise of their gradients is correlated and does not average out
    within a batch. If batches are slices of a shuffled list, labels are drawn without replacement,
    and the mean differs by O(1/N) for N examples.

    **The label's logit.** Yi et al. [1]_ correct all logits, the label's too: scheme
    ``"candidate_masked"``. But the label is always in the sum, and is not a draw from q. Write the
    gradient of the full softmax as

    .. math:: \nabla L = (1 - p_t) \Big(\!\sum_{j \ne t} \frac{p_j}{1 - p_t} \nabla o_j
        - \nabla o_t\Big)

    and estimate the sum, a mean over the softmax without t, by weights among the negatives, and
    :math:`p_t` by :math:`e_t / S`, both from the same draws. This is the correction of [2]_: a
    sampled softmax among the negatives alone, times a weight that is not differentiated. The
    product of the two estimates is
    :math:`\sum_i \frac{e_{s_i}}{m q_{s_i} S} \nabla o_{s_i} - (1 - e_t / S) \nabla o_t`, which is
    the gradient of ``"masked"``. That scheme therefore needs no weight and no second sum.

    **Mixed negatives.** With U more draws from a distribution u, the expected count of class j is
    :math:`m q_j + U u_j`, and all draws are corrected by it. A class that is rare in q can then be
    frequent in u. S is unbiased. Section 13 of ``samplesoft/bias/README.md`` has the mean of the
    loss and of its gradient.

    **InfoNCE** [3]_ is the same without the correction, ``scheme="infonce"``: with K = B examples
    it is :math:`-\log (e_t / \sum_{i=1}^{B} e_{s_i})`, the softmax loss of finding the example's
    label among the labels of the batch, with K - 1 negatives from the distribution of labels. As in
    CLIP [4]_, only the position of the example in the batch is positive. The same label at another
    position, or among draws of `extra`, is a negative; the loss is then at least the logarithm of
    the number of times that the label occurs. At the minimum :math:`o_j` is
    :math:`\log(p_j / q_j)` plus a constant of the context: an estimate of information, not the
    logit of a probability. To rank classes by probability, add :math:`\log q_j`, or use
    ``"masked"``. CLIP adds the same loss over the batch's contexts for each label, and `tau` is the
    inverse of its temperature.

    References
    ----------
    .. [1] X. Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
       Recommendations", RecSys 2019, eq. 3.
    .. [2] "Correcting the LogQ Correction: Revisiting Sampled Softmax for Large-Scale Retrieval",
       RecSys 2025, arXiv 2507.09331.
    .. [3] A. van den Oord, Y. Li and O. Vinyals, "Representation learning with contrastive
       predictive coding", 2018, arXiv 1807.03748, eq. 4.
    .. [4] A. Radford et al., "Learning transferable visual models from natural language
       supervision", ICML 2021, figure 3.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UnigramSampler
    >>> loss = InBatchLoss(UnigramSampler([8, 4, 2, 1], power=1.0))
    >>> vectors = np.eye(4)
    >>> value, cache = loss.forward(vectors[[0, 1, 0, 3]], vectors, [0, 1, 0, 3])
    >>> loss.backward(cache).dh.shape
    (4, 4)
    """

    def __init__(
        self,
        proposal: Sampler | None = None,
        *,
        scheme: str = "masked",
        extra: Sampler | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.scheme = as_choice("scheme", scheme, ("masked", "candidate_masked", _INFONCE))
        if scheme == _INFONCE and proposal is not None:
            raise ValueError(
                "`proposal` must be None with scheme='infonce', which corrects nothing, got a "
                f"{type(proposal).__name__}; omit it, or use scheme='masked'."
            )

        for name, sampler in (("proposal", proposal), ("extra", extra)):
            if sampler is not None or (name == "proposal" and scheme != _INFONCE):
                require_instance(name, sampler, Sampler)
            if sampler is not None and sampler.dim is not None:
                raise ValueError(
                    f"`{name}` must not look at contexts, got a {type(sampler).__name__}; take "
                    "for example a UnigramSampler of the counts of the labels."
                )

        self.proposal = proposal
        self.extra = extra

        # sampled softmax, whose draws are the labels of the batch and the draws from `extra`
        inner_scheme = "candidate_masked" if scheme == _INFONCE else scheme
        options = {"tau": self.tau, "normalize": self.normalize, "absolute": self.absolute}
        self._softmax = SampledSoftmaxLoss(scheme=inner_scheme, **options)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        labels = batch.targets.labels
        for name, sampler in (("proposal", self.proposal), ("extra", self.extra)):
            if sampler is not None and sampler.num_classes != len(batch.class_embeddings):
                raise ValueError(
                    f"`{name}` must be over the {len(batch.class_embeddings)} classes of "
                    f"`class_embeddings`, got a {type(sampler).__name__} over "
                    f"{sampler.num_classes}; make one of as many counts."
                )

        if batch.targets.example_ids is not None:
            raise ValueError(
                "`labels` must hold one label of each example for in-batch negatives, got a "
                "matrix; use scheme 'masked' of SampledSoftmaxLoss."
            )
        if label_log_count is not None:
            raise ValueError("`label_log_count` must be None: it follows from `proposal`.")
        if self.extra is None and draw is not None:
            raise ValueError(
                "`draw` must be None without an `extra` sampler, got a Draw; pass the sampler "
                "that it comes from as `extra`."
            )
        if self.extra is not None and not isinstance(draw, Draw):
            raise missing_draw_error(draw)
        if len(labels) < 2 and draw is None:
            raise ValueError(
                "a batch must have at least 2 examples for in-batch negatives, got 1; use larger "
                "batches, or an `extra` sampler."
            )

        # All examples share the B labels of the batch as draws. The scheme masks the draws that
        # equal the example's label, so that at most B - 1 remain.
        ids = labels[None]
        if draw is not None:
            rows = len(draw.ids)
            ids = np.concatenate([np.repeat(ids, rows, axis=0), draw.ids], axis=1)

        # `label_log_counts` is subtracted from the label's logit, `added_loss` added to the loss
        label_log_counts = None
        added_loss = 0.0
        if self.scheme == _INFONCE:
            # In the sum of InfoNCE the label occurs c times. Sampled softmax masks these draws; the
            # label's logit o_t + log c makes up for them. Its loss subtracts o_t + log c where
            # InfoNCE subtracts o_t, so log c is added.
            log_counts = np.zeros(ids.shape)
            added_loss = np.log(np.count_nonzero(ids == labels[:, None], axis=1))
            label_log_counts = -added_loss
        else:
            log_counts = self._log_counts(ids, len(labels), draw)

        if self.scheme == "candidate_masked":
            label_log_counts = self._log_counts(labels[:, None], len(labels), draw)[:, 0]

        # The draws have two distributions, so no single log q: the counts are passed as
        # `log_inclusion`.
        combined_draw = Draw(ids, log_counts - np.log(ids.shape[1]), log_counts)
        losses, saved = self._softmax._forward(batch, combined_draw, label_log_counts)
        return losses + added_loss, saved

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        return self._softmax._backward(batch, saved, weights)

    def _log_counts(self, ids: IntArray, batch_size: int, draw: Draw | None) -> FloatArray:
        """Return the log expected counts of the classes `ids`, an array of the same shape.

        They are expected counts among the ``batch_size - 1`` labels of the other examples, plus
        those among the draws from `extra`.
        """
        assert self.proposal is not None
        classes = ids.reshape(1, -1)
        with np.errstate(divide="ignore"):  # log(0) is -inf for a batch of one example
            log_counts: FloatArray = self.proposal.log_prob(None, classes) + np.log(
                batch_size - 1.0
            )

        if draw is not None and self.extra is not None:
            num_drawn = draw.ids.shape[1] - len(getattr(self.extra, "certain", ()))
            extra_log_counts = self.extra.log_expected_count(None, classes, num_drawn)
            log_counts = np.logaddexp(log_counts, extra_log_counts)  # m q_j + U u_j

        if not np.isfinite(log_counts).all():
            raise self._zero_probability_error(
                int(classes[0, np.argmin(np.isfinite(log_counts[0]))]), batch_size
            )
        return log_counts.reshape(ids.shape)

    def _zero_probability_error(self, label: int, batch_size: int) -> ValueError:
        """Return the error for a label with the probability 0, which cannot be drawn."""
        name = "proposal"
        sampler = self.proposal
        reason = ""
        if self.extra is not None:
            reason = ", and `extra` does not draw it either"

        if batch_size == 1:
            name = "extra"
            sampler = self.extra
            reason = ", and the batch has no other example"

        return ValueError(
            f"`{name}` must give each label of the batch a probability above 0, got q = 0 for "
            f"label {label} by a {type(sampler).__name__}{reason}; give that class a count or "
            "weight above 0 (a UnigramSampler does so by itself), or leave its examples out."
        )
