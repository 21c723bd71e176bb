"""Losses on the label and a few drawn classes; the first of them is sampled softmax.

`SampledLoss._forward` is the path of a step: draws are checked, scored beside the labels, corrected
for how they were drawn, and a loss makes its terms of the logits. An example with L labels makes L
pairs, all with its m draws, and a row of logits for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import as_device
from samplesoft._jit import chunks, njit, thread_each
from samplesoft._limits import call_quietly
from samplesoft._validation import FloatArray, IntArray, as_choice
from samplesoft.kernels.exponential import exp_to
from samplesoft.kernels.weights import greatest, total
from samplesoft.losses.base import Batch, Gradients, Loss, Targets
from samplesoft.losses.candidates import (
    as_arrays,
    check_label_count,
    require_replacement,
    score_candidates,
    score_gradients,
)
from samplesoft.losses.differentiate import by_merged, by_rows
from samplesoft.losses.step import Pairs, find_hits, reject_corrections
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme, select

Kernel = Callable[..., None]
Seed = int | np.random.Generator | None
Sample = Callable[[int, Seed], Draw]  # so many draws for the contexts of a batch

CHUNK_NUMBERS = 1 << 14  # logits that a thread computes at a time: they stay in its cache
_JOB_CHUNKS = 8  # chunks that a thread takes at once: fewer are done before it is awake
_NO_WEIGHTS = np.empty((0, 0))
_ALL_ONE = np.empty(0)
_FLOAT = np.dtype(np.float64)
_LEAST = 5e-324  # what `exp_to` gives for all that is too small


class Terms(NamedTuple):
    """How a loss is computed from rows of logits: by a kernel, and by what can be said of it.

    Attributes
    ----------
    kernel : callable
        ``kernel(logits, losses, *numbers)`` writes the losses (P,) of corrected logits (P, 1 + m),
        with the label's in column 0, and replaces these by derivatives. A logit of -inf is a draw
        without weight. Where it is of the ``njit`` of ``samplesoft/_jit.py``, whole steps of
        training are compiled too.
    numbers : tuple
        What it takes besides, by the number of draws and of classes: many steps have the same.
    merge : callable or None
        ``merge(logits, merged)`` writes logits (B,) that stand for the rows of logits (B, m) of
        draws in the loss, and replaces rows by their derivatives; None where none can. With several
        labels an example draws then cost what they cost with one: see `merge_exponentials`.
    adds_exponentials : bool
        Whether k draws of one logit are one draw of that logit plus log k.
    of_differences : bool
        Whether the loss is the same of logits that are all more or less by one number. Those of
        float32 vectors then come in float32, of which they keep the digits less their largest.
    weighs_draws : bool
        Whether the first of `numbers` that the kernel takes are weights (P, m) of the draws, 1 over
        how often each is expected, which come by themselves; logits are not corrected then.
    """

    kernel: Kernel
    numbers: tuple[Any, ...] = ()
    merge: Kernel | None = None
    adds_exponentials: bool = False
    of_differences: bool = False
    weighs_draws: bool = False


class SampledLoss(Loss):
    """A loss on the label's logit and those of the drawn classes.

    A new one implements `_terms`, or returns a kernel in `_terms_of`, and names its `schemes`;
    where it is a softmax, its bias is that of its scheme, or `why_no_bias` says why not. One that
    decides on the number of its draws overrides `draw`. With several labels an example, the kernel
    is given a row for each of them, with all draws, which takes time by the number of labels.

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
    _warns: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Mark a subclass with a pass of its own, where NumPy may compute and warn."""
        super().__init_subclass__(**options)
        own = vars(cls)
        if "_warns" not in own and ("_forward" in own or "_backward" in own):
            cls._warns = True

    def __init__(self, *, scheme: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        name = self.default_scheme() if scheme is None else scheme
        self.scheme = as_choice("scheme", name, self.schemes)
        self.properties = properties = self.schemes[self.scheme]
        self.excludes_label = properties.excludes_label
        self.needs_label_count = properties.needs_label_count
        has_bias = self.is_softmax and properties.has_exact_bias and not self.why_no_bias
        self.bias_scheme = properties.name if has_bias else None

    @classmethod
    def default_scheme(cls) -> str:
        """Return the first of `schemes`."""
        return next(iter(cls.schemes))

    @property
    def takes_certain(self) -> bool:
        """Whether classes may be in every draw for certain."""
        return self.properties.loss_takes_certain and not self.with_replacement

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
    ) -> tuple[FloatArray, Any]:
        targets, properties = batch.targets, self.properties
        ids, log_counts = as_arrays(draw, batch.z.shape[0])

        # Scores of the labels (P,) and of the draws (B, m), and which draws are labels.
        scores = score_candidates(batch, ids, log_counts, self.normalize)
        own, drawn = scores.own, scores.drawn
        assert draw is not None
        if self.with_replacement:
            require_replacement(draw, type(self).__name__)
        terms = self._terms_of(draw, batch.class_embeddings.shape[0])
        if self.needs_label_count:
            label_count = check_label_count(label_log_count, targets, properties)
        if self.absolute:
            own, drawn = np.abs(own), np.abs(drawn)  # copies: derivatives take the place of `drawn`
        once = self.label_reduction == "ova"
        keeps_own, keeps_others = properties.draws_label, not self.mask_other_labels
        if once:  # all labels of an example are its own
            keeps_own = keeps_others = keeps_own and keeps_others
        # which draws are labels: asked only where some are not kept, as where draws exclude them
        hit_starts = hit_stops = hit_columns = hits = no_hits(own.shape[0])
        if scores.listed[0, -1] > 0 and not (keeps_own and keeps_others):
            hit_starts, hit_stops, hit_columns = find_hits(
                scores.label_places,
                scores.example_ids,
                scores.listed[3, :-1],
                scores.listed[4],
                drawn.shape[1],
                scores.shared,
            )
            hits = hit_stops - hit_starts
            if self.excludes_label and hits.any():
                raise self.contains_label(targets.labels, int(hits.argmax()))

        # Logits: what a draw stands for is its weight divided by how often it is expected.
        # In float64: of float32 the logarithm of a small probability would lose digits.
        weights = call_quietly(np.exp, -log_counts) if terms.weighs_draws else _NO_WEIGHTS
        if terms.weighs_draws or not properties.corrects_draws:
            log_counts = np.zeros_like(log_counts)
        if self.offset != 0.0:
            own, log_counts = own + self.offset, log_counts - self.offset  # what draws do not lose
        if properties.corrects_label:
            own = own - label_count
        elif properties.divides_by_kept:
            if self.mask_other_labels:  # no draw of any label is kept
                hits = targets.rows(targets.per_example(hits))
                label_count = targets.rows(np.logaddexp.reduceat(label_count, targets.offsets()))
            # a softmax is the same as if the logits of all draws gained it
            own = own - reject_corrections(ids.shape[1], hits, label_count)

        # Terms of the loss, and their derivatives in the scores.
        pairs = Pairs(
            own=own,
            drawn=drawn,
            log_counts=log_counts,
            example_ids=scores.example_ids,
            begin=0,
            label_weights=_ALL_ONE if targets.label_weights is None else targets.label_weights,
            hit_starts=hit_starts,
            hit_stops=hit_stops,
            hit_columns=hit_columns,
            keeps_own=keeps_own,
            keeps_others=keeps_others,
            once=once,
        )
        losses, d_own, d_drawn = differentiated(pairs, targets, terms, weights)
        if self.absolute:  # from derivatives in |o| to those in o
            d_own *= np.sign(scores.own)
            d_drawn *= np.sign(scores.drawn)
        losses = (
            losses if targets.example_ids is None else call_quietly(targets.per_example, losses)
        )
        self.require_draws(losses)
        return losses, (scores, d_own, d_drawn)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        scores, d_own, d_drawn = saved
        return score_gradients(batch, scores, d_own, d_drawn, weights)

    def require_draws(self, losses: FloatArray) -> None:
        """Raise where the losses (B,) of a batch say that an example needs other draws."""

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        """Return the kernel of the loss and its numbers, for a draw of so many classes."""
        return Terms(self._terms)

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        """Compute losses as the kernel of `Terms` does, for a loss that has none."""
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
    _warns = False

    def __init__(self, *, scheme: str = "negatives", device: str = "cpu", **options: Any) -> None:
        super().__init__(scheme=scheme, **options)
        self.device = as_device(device)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        if self.device == "cpu":
            return super()._forward(batch, draw, label_log_count)
        from samplesoft.losses.sampled_cuda import CudaPasses

        passes = CudaPasses(self)
        losses, saved = passes.forward(batch, draw, label_log_count)
        return losses, (passes, saved)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        if self.device == "cpu":
            return super()._backward(batch, saved, weights)
        passes, of_passes = saved
        gradients: Gradients = passes.backward(batch, of_passes, weights)
        return gradients

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        return _SOFTMAX


def differentiated(
    pairs: Pairs, targets: Targets, terms: Terms, weights: FloatArray
) -> tuple[FloatArray, Rows, Rows]:
    """Return losses of all pairs and their derivatives, as `losses.differentiate` writes them.

    Derivatives in the scores of draws take the place of these where each example has one label. The
    loss of a pair whose label has no finite logit is NaN.
    """
    drawn, num = pairs.drawn, pairs.own.shape[0]
    width, dtype = 1 + drawn.shape[1], _FLOAT
    losses, d_own = np.empty(num), np.empty(num, drawn.dtype)
    if targets.example_ids is None or terms.merge is None:
        differentiate = by_rows(terms.kernel, terms.weighs_draws)
        d_drawn = drawn if targets.example_ids is None else np.empty_like(drawn)
        if terms.of_differences:
            dtype = drawn.dtype
    else:  # where an example has several labels, one logit may stand for most of its draws
        differentiate = by_merged(terms.kernel, terms.merge, pairs.keeps_own or pairs.keeps_others)
        d_drawn = np.empty(drawn.shape)
    most = CHUNK_NUMBERS // width or 1  # pairs at a time
    size = max(min(most, num) * width, 3 * (1 + width))
    if num <= _JOB_CHUNKS * most:
        logits = np.empty(size, dtype)
        differentiate(pairs, 0, num, terms.numbers, weights, logits, losses, d_own, d_drawn)
    else:
        offsets = [*targets.offsets().tolist(), num]

        def work(examples: slice) -> None:
            first, last = offsets[examples.start], offsets[examples.stop]
            logits = np.empty(size, dtype)
            differentiate(
                pairs, first, last, terms.numbers, weights, logits, losses, d_own, d_drawn
            )

        # fewer pairs are done before a thread is awake
        pairs_each = -(-num // len(drawn))
        thread_each(work, chunks(len(drawn), max(1, _JOB_CHUNKS * most // pairs_each)))
    return losses, d_own, d_drawn if d_drawn.dtype == drawn.dtype else d_drawn.astype(drawn.dtype)


@lru_cache(4)
def no_hits(size: int) -> IntArray:
    """Return zeros, which nobody changes: batches are mostly as large as the last."""
    return np.zeros(size, np.int64)


@njit
def softmax_terms(logits: FloatArray, losses: FloatArray) -> None:
    """Write ``logsumexp(logits) - logits[0]`` of each row, and turn rows into its gradient.

    Column 0 of the logits (P, 1 + m) is the label's, and finite. Rows of float32 are less their
    largest already, as from `pair_logits`.
    """
    for b in range(len(logits)):
        row = logits[b]
        top = 0.0 if row.itemsize == 4 else greatest(row)
        losses[b] = top - row[0]  # until the sum is known, how far the label is below the top
        if top != 0.0:
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
        row[0] = label_derivative(own, drawn)


@njit
def merge_exponentials(logits: FloatArray, merged: FloatArray) -> None:
    """Write the logit (B,) whose exponential is that of a row, which becomes its gradient.

    `logits` are (B, m). A row of -inf merges to -inf.
    """
    for b in range(len(logits)):
        row = logits[b]
        merged[b] = greatest(row)
        if merged[b] != -np.inf:
            for k in range(len(row)):
                row[k] -= merged[b]
    # The derivative of the merged logit in a draw is the draw's share of the mass.
    weigh(logits.reshape(-1))
    for b in range(len(logits)):
        row = logits[b]
        mass = total(row)
        if mass > 0.0:
            merged[b] += np.log(mass)
            for k in range(len(row)):
                row[k] /= mass


@njit
def weigh(x: FloatArray) -> None:
    """Replace each of `x`, at most 0, by its exponential; what is too small has no weight."""
    exp_to(x, len(x))
    if x.itemsize == 8:  # float32 has zeros already
        for i in range(len(x)):
            x[i] = x[i] if x[i] > _LEAST else 0.0


@njit
def label_derivative(own: float, drawn: float) -> float:
    """Return the derivative ``p - 1`` in the label's logit, for ``p = own / (own + drawn)``.

    A p near 1 is rounded, so that p - 1 has no digits; ``-drawn / (own + drawn)`` has them all.
    """
    return -drawn / (own + drawn)


@njit
def log_ratio(own: float, drawn: float, above: float) -> float:
    """Return ``log((own + drawn) / e)`` where e is ``exp(-above)``, and `own` if that is not 0."""
    if own > drawn:  # a small loss keeps its digits
        return math.log1p(drawn / own)
    return above + math.log(own + drawn)


_SOFTMAX = Terms(
    softmax_terms, merge=merge_exponentials, adds_exponentials=True, of_differences=True
)
