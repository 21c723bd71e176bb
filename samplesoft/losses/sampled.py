"""Losses on the label and a few drawn classes: `SampledLoss`, and sampled softmax.

`SampledLoss._forward` computes the losses of a batch: it validates the draws, scores labels and
draws, corrects the logits for the proposal, and calls the kernel of the loss. An example with L
labels makes L pairs of example and label, which share its m draws; each pair has a row of logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import as_device
from samplesoft._jit import chunks, njit, thread_for_each
from samplesoft._limits import call_ignoring_overflow
from samplesoft._validation import FloatArray, IntArray, as_choice
from samplesoft.kernels.exponential import replace_by_exp
from samplesoft.kernels.weights import row_max, total
from samplesoft.losses.base import Batch, Gradients, Loss, Targets
from samplesoft.losses.candidates import (
    checked_label_counts,
    ids_and_log_counts,
    require_replacement,
    score_candidates,
    score_gradients,
)
from samplesoft.losses.differentiate import make_merged_differentiator, make_row_differentiator
from samplesoft.losses.step import Pairs, find_accidental_hits, reject_corrections
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme, select

Kernel = Callable[..., None]
Seed = int | np.random.Generator | None
# function of a number of draws and a seed that returns draws for the contexts of a batch
Sample = Callable[[int, Seed], Draw]

# largest number of logits in a chunk: a thread computes a chunk at a time, in its cache
CHUNK_LOGITS = 1 << 14
# number of chunks of logits that a thread gets at once; with fewer, waking a thread costs more than
# the computation
_CHUNKS_PER_JOB = 8
_NO_WEIGHTS = np.empty((0, 0))
_UNIT_WEIGHTS = np.empty(0)
_FLOAT = np.dtype(np.float64)
_UNDERFLOWED_EXP = 5e-324  # float64 value that `replace_by_exp` writes in place of 0 on underflow


class LossKernel(NamedTuple):
    """The kernel that computes a loss from rows of logits, and properties of that loss.

    Attributes
    ----------
    kernel : callable
        ``kernel(logits, losses, *parameters)`` writes the losses (P,) of corrected logits
        (P, 1 + m), with the label's in column 0, and overwrites the logits by derivatives. A draw
        with the logit -inf is masked. If the kernel is compiled by the ``njit`` of
        ``samplesoft/_jit.py``, training can run many steps in one compiled call.
    parameters : tuple
        Further arguments of the kernel. They depend only on the loss and on the numbers of draws
        and classes, so that they are the same in many steps.
    merge : callable or None
        ``merge(logits, merged)`` writes, for each row of the draws' logits (B, m), one merged logit
        (B,) that can replace the row in the loss. It overwrites the rows by the derivatives of the
        merged logits. With `merge`, an example with several labels costs no more than one with a
        single label; see `merge_exponentials`. None if no single logit can replace the draws.
    adds_exponentials : bool
        Whether k draws with the same logit can be replaced by one draw whose logit is larger by
        log k.
    shift_invariant : bool
        Whether adding a constant to all logits of a row leaves the loss unchanged. Logits of
        float32 vectors are then computed in float32, relative to their maximum.
    weighs_draws : bool
        Whether the kernel takes the weights (P, m) of the draws, as an argument before its
        `parameters`. A weight is 1 divided by the draw's expected count. The logits that such a
        kernel gets are not corrected.
    """

    kernel: Kernel
    parameters: tuple[Any, ...] = ()
    merge: Kernel | None = None
    adds_exponentials: bool = False
    shift_invariant: bool = False
    weighs_draws: bool = False


class SampledLoss(Loss):
    """A loss on the logits of the label and of the drawn classes.

    A subclass implements `_terms`, or returns a kernel in `_kernel_for_draw`, and names its
    `schemes`. If it estimates the softmax loss, its bias is the exact bias of its scheme, unless
    `why_no_bias` gives a reason why not. A loss that chooses the number of draws overrides `draw`.
    For an example with several labels, the kernel gets one row for each label, with all draws, so
    that its time grows with the number of labels.

    Parameters
    ----------
    scheme : str, optional
        A key of `schemes`; by default the first.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Attributes
    ----------
    schemes : dict of str to Scheme
        Schemes that the loss supports, the default first.
    is_softmax : bool
        Whether the loss estimates the full softmax loss.
    with_replacement : bool
        Whether draws must be independent: not distinct, and without always-included classes.
    why_no_bias : str
        Reason why the exact bias of the scheme is not the bias of this loss; empty if it is.
    scheme : str
        Name of the scheme, which determines how draws are corrected and accidental hits treated.
    properties : Scheme
        Properties of that scheme.
    excludes_label : bool
        Whether draws must be made with ``exclude=labels``.
    needs_label_count : bool
        Whether `forward` must be given `label_log_count`.
    bias_scheme : str or None
        The scheme for which `samplesoft.exact_bias` returns the bias of this loss; None if no exact
        bias is known, as for logistic losses.
    """

    schemes: ClassVar[dict[str, Scheme]]
    is_softmax: ClassVar[bool] = False
    with_replacement: ClassVar[bool] = False
    why_no_bias: ClassVar[str] = ""
    offset = 0.0  # added to all scores
    _may_warn: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Suppress overflow warnings if a subclass overrides `_forward` or `_backward`.

        The override may compute in NumPy, which warns.
        """
        super().__init_subclass__(**options)
        members = vars(cls)
        if "_may_warn" not in members and ("_forward" in members or "_backward" in members):
            cls._may_warn = True

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
        """Return the name of the first scheme in `schemes`."""
        return next(iter(cls.schemes))

    @property
    def allows_always_included(self) -> bool:
        """Whether draws may contain always-included classes, which are in every set of draws."""
        return self.properties.loss_allows_always_included and not self.with_replacement

    @property
    def draws_num_sampled(self) -> bool:
        """Whether `draw` draws exactly `num_sampled` classes."""
        return type(self).draw is SampledLoss.draw

    def draw(
        self, sample: Sample, num_sampled: int, targets: Targets, num_classes: int, rng: Seed
    ) -> Draw:
        """Draw classes for a batch. A subclass may choose another number than `num_sampled`.

        Parameters
        ----------
        sample : callable
            ``sample(num_draws, rng)`` returns a `Draw` of `num_draws` classes for the contexts of
            the batch.
        num_sampled : int
            Number of draws m that the caller asks for.
        targets : Targets
            Labels of the batch.
        num_classes : int
            Number of classes n.
        rng : int, numpy.random.Generator or None
            Seed of the draws, and of any other random choice.

        Returns
        -------
        Draw
            The drawn classes, an argument of `forward`.
        """
        return sample(num_sampled, rng)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        targets = batch.targets
        properties = self.properties
        ids, log_counts = ids_and_log_counts(draw, batch.z.shape[0])

        # Scores of the labels (P,) and of the draws (B, m).
        scores = score_candidates(batch, ids, log_counts, self.normalize)
        label_logits = scores.label_scores  # corrected below
        sampled_scores = scores.sampled_scores
        assert draw is not None
        if self.with_replacement:
            require_replacement(draw, type(self).__name__)

        loss_kernel = self._kernel_for_draw(draw, batch.class_embeddings.shape[0])
        if self.needs_label_count:
            label_count = checked_label_counts(label_log_count, targets, properties)

        if self.absolute:
            label_logits = np.abs(label_logits)
            sampled_scores = np.abs(sampled_scores)  # a copy: derivatives overwrite it

        counts_draws_once_per_example = self.label_reduction == "ova"
        keeps_label_hits = properties.draws_label
        keeps_other_hits = not self.mask_other_labels

        # if each draw counts once per example, hits of all labels of the example are treated alike
        if counts_draws_once_per_example:
            keeps_label_hits = keeps_other_hits = keeps_label_hits and keeps_other_hits

        # search for accidental hits only if a label is drawn and hits must be masked or counted
        hit_starts = hit_stops = hit_columns = num_hits = cached_zeros(label_logits.shape[0])
        if scores.candidate_table[0, -1] > 0 and not (keeps_label_hits and keeps_other_hits):
            hit_starts, hit_stops, hit_columns = find_accidental_hits(
                scores.label_indices,
                scores.example_ids,
                scores.candidate_table[3, :-1],
                scores.candidate_table[4],
                sampled_scores.shape[1],
                scores.shared,
            )
            num_hits = hit_stops - hit_starts
            if self.excludes_label and num_hits.any():
                raise self.label_in_draw_error(targets.labels, int(num_hits.argmax()))

        # A logit is a score minus a log expected count. It is computed in float64, because the
        # logarithm of a small probability would lose digits in float32.
        weights = _NO_WEIGHTS
        if loss_kernel.weighs_draws:
            weights = call_ignoring_overflow(np.exp, -log_counts)

        if loss_kernel.weighs_draws or not properties.corrects_draws:
            log_counts = np.zeros_like(log_counts)

        if self.offset != 0.0:
            label_logits = label_logits + self.offset
            log_counts = log_counts - self.offset  # adds the offset to the draws' logits

        if properties.corrects_label:
            label_logits = label_logits - label_count
        elif properties.divides_by_accepted:
            # hits of all labels of the example are discarded: add up their counts
            if self.mask_other_labels:
                num_hits = targets.rows(targets.per_example(num_hits))
                label_count = targets.rows(np.logaddexp.reduceat(label_count, targets.offsets()))

            # gives the same softmax as adding the corrections to the logits of all draws
            label_logits = label_logits - reject_corrections(ids.shape[1], num_hits, label_count)

        # Losses of the pairs, and their derivatives in the scores.
        pairs = Pairs(
            label_logits=label_logits,
            sampled_scores=sampled_scores,
            log_counts=log_counts,
            example_ids=scores.example_ids,
            first_example=0,
            label_weights=_UNIT_WEIGHTS if targets.label_weights is None else targets.label_weights,
            hit_starts=hit_starts,
            hit_stops=hit_stops,
            hit_columns=hit_columns,
            keeps_label_hits=keeps_label_hits,
            keeps_other_hits=keeps_other_hits,
            counts_draws_once_per_example=counts_draws_once_per_example,
        )

        losses, d_labels, d_sampled = losses_and_derivatives(pairs, targets, loss_kernel, weights)

        # chain rule: the derivative of |o| is the sign of o
        if self.absolute:
            d_labels *= np.sign(scores.label_scores)
            d_sampled *= np.sign(scores.sampled_scores)

        if targets.example_ids is not None:
            losses = call_ignoring_overflow(targets.per_example, losses)

        self.require_usable_draws(losses)
        return losses, (scores, d_labels, d_sampled)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        scores, d_labels, d_sampled = saved
        return score_gradients(batch, scores, d_labels, d_sampled, weights)

    def require_usable_draws(self, losses: FloatArray) -> None:
        """Raise if the losses (B,) show that an example has no usable draw.

        The base method never raises.
        """

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        """Return the kernel of the loss, with its parameters for a draw and a number of classes."""
        return LossKernel(self._terms)

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        """Write the losses (P,) of rows of logits (P, 1 + m); overwrite the rows by derivatives.

        See `LossKernel.kernel`.
        """
        raise NotImplementedError

    def label_in_draw_error(self, labels: IntArray, pair: int) -> ValueError:
        """Return the error for a draw that contains the label of `pair`, but must exclude it."""
        return ValueError(
            f"`draw` must not contain the label with scheme={self.scheme!r}, got class "
            f"{labels[pair]} for pair {pair}; draw with exclude=labels, or use scheme='masked'."
        )


class SampledSoftmaxLoss(SampledLoss):
    """Softmax over the label and the drawn classes, corrected for how they were drawn.

    Parameters
    ----------
    scheme : str
        For ``"negatives"``, ``"masked"`` and ``"reject"`` the label's score is not corrected (the
        importance convention), and the loss of each example tends to the full softmax loss as m
        grows. ``"negatives"`` takes draws that exclude the label; ``"masked"`` leaves out
        accidental hits, draws of the label; ``"reject"`` also divides by the number of other draws.
        ``"candidate"`` and ``"candidate_masked"`` correct the label's score too, as CNTK and
        TensorFlow do. The gradient of one example is then biased at every m, but its mean over the
        data is 0 at the true model. With masked hits this is exact for distinct and equally likely
        draws, and approximate for others. Compare models by the full softmax loss, not by the
        values of these two schemes.
    device : {"cpu", "cuda"}
        Device of the computation. On a GPU, draws must be with replacement, and each example must
        have one label.
    **options
        Options of `samplesoft.losses.base.Loss`.

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
    _may_warn = False

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
        passes, saved_arrays = saved
        gradients: Gradients = passes.backward(batch, saved_arrays, weights)
        return gradients

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return SOFTMAX


def losses_and_derivatives(
    pairs: Pairs, targets: Targets, loss_kernel: LossKernel, weights: FloatArray
) -> tuple[FloatArray, Rows, Rows]:
    """Return losses (P,), and their derivatives in the scores of labels (P,) and draws (B, m).

    `weights` are the weights of the draws, as described in `losses.differentiate`. If each example
    has one label, the derivatives overwrite ``pairs.sampled_scores``. The loss of a pair is NaN if
    the label's logit is not finite.
    """
    sampled_scores = pairs.sampled_scores
    num_pairs = pairs.label_logits.shape[0]
    width = 1 + sampled_scores.shape[1]
    dtype = _FLOAT
    losses = np.empty(num_pairs)
    d_labels = np.empty(num_pairs, sampled_scores.dtype)

    # If an example has several labels, a merged differentiator replaces its draws by one logit. Not
    # all kernels allow it: others compute a row of logits for each label.
    if targets.example_ids is None or loss_kernel.merge is None:
        differentiate = make_row_differentiator(loss_kernel.kernel, loss_kernel.weighs_draws)
        d_sampled = sampled_scores if targets.example_ids is None else np.empty_like(sampled_scores)
        if loss_kernel.shift_invariant:
            dtype = sampled_scores.dtype
    else:
        differentiate = make_merged_differentiator(
            loss_kernel.kernel, loss_kernel.merge, pairs.keeps_label_hits or pairs.keeps_other_hits
        )
        d_sampled = np.empty(sampled_scores.shape)

    max_pairs = CHUNK_LOGITS // width or 1  # maximum number of pairs in a chunk
    workspace_size = max(min(max_pairs, num_pairs) * width, 3 * (1 + width))

    def differentiate_pairs(start: int, stop: int) -> None:
        differentiate(
            pairs,
            start,
            stop,
            loss_kernel.parameters,
            weights,
            np.empty(workspace_size, dtype),
            losses,
            d_labels,
            d_sampled,
        )

    if num_pairs <= _CHUNKS_PER_JOB * max_pairs:
        differentiate_pairs(0, num_pairs)
    else:
        offsets = [*targets.offsets().tolist(), num_pairs]

        def differentiate_examples(examples: slice) -> None:
            differentiate_pairs(offsets[examples.start], offsets[examples.stop])

        # a job has several chunks, because waking a thread for each chunk costs more than it saves
        pairs_per_example = -(-num_pairs // len(sampled_scores))
        examples_per_job = max(1, _CHUNKS_PER_JOB * max_pairs // pairs_per_example)
        thread_for_each(differentiate_examples, chunks(len(sampled_scores), examples_per_job))

    if d_sampled.dtype != sampled_scores.dtype:
        d_sampled = d_sampled.astype(sampled_scores.dtype)

    return losses, d_labels, d_sampled


@lru_cache(4)
def cached_zeros(size: int) -> IntArray:
    """Return an array of zeros (size,), which is cached and must not be changed."""
    return np.zeros(size, np.int64)


@njit
def softmax_kernel(logits: FloatArray, losses: FloatArray) -> None:
    """Write ``logsumexp(logits) - logits[0]`` of each row, and overwrite rows by its gradient.

    Column 0 of the logits (P, 1 + m) holds the label's logit, which is finite. The maximum of a
    float32 row must be 0: `write_pair_logits` has already subtracted it.
    """
    for b in range(len(logits)):
        row = logits[b]
        max_logit = 0.0 if row.itemsize == 4 else row_max(row)
        losses[b] = max_logit - row[0]  # stored until the loss replaces it below
        if max_logit != 0.0:
            for k in range(len(row)):
                row[k] -= max_logit

    # one call for all rows, because vector instructions are fast only on long arrays
    exp_in_place(logits.reshape(-1))
    for b in range(len(logits)):
        row = logits[b]
        label_mass = row[0]
        sampled_mass = total(row[1:])
        losses[b] = loss_from_masses(label_mass, sampled_mass, losses[b])
        scale = 1.0 / (label_mass + sampled_mass)
        for k in range(1, len(row)):
            row[k] *= scale
        row[0] = label_derivative(label_mass, sampled_mass)


@njit
def merge_exponentials(logits: FloatArray, merged: FloatArray) -> None:
    """Write ``logsumexp`` (B,) of each row of logits (B, m), and overwrite the row by its gradient.

    For a row in which all logits are -inf, ``logsumexp`` is -inf.
    """
    for b in range(len(logits)):
        row = logits[b]
        merged[b] = row_max(row)
        if merged[b] != -np.inf:
            for k in range(len(row)):
                row[k] -= merged[b]

    # the derivative of logsumexp in a logit is the exponential of the logit, divided by the sum
    exp_in_place(logits.reshape(-1))
    for b in range(len(logits)):
        row = logits[b]
        mass = total(row)
        if mass > 0.0:
            merged[b] += np.log(mass)
            for k in range(len(row)):
                row[k] /= mass


@njit
def exp_in_place(x: FloatArray) -> None:
    """Replace the elements of `x` (n,), which must be at most 0, by their exponentials, in place.

    An exponential that underflows becomes exactly 0.
    """
    replace_by_exp(x, len(x))
    if x.itemsize == 8:  # float32 underflows to 0 already
        for i in range(len(x)):
            x[i] = x[i] if x[i] > _UNDERFLOWED_EXP else 0.0


@njit
def label_derivative(label_mass: float, sampled_mass: float) -> float:
    """Return the derivative ``p - 1`` of the loss in the label's logit.

    The masses of the label and of the draws are sums of exponentials of their logits; p is the
    label's fraction of the total mass. For p near 1 the difference ``p - 1`` would lose its digits.
    The quotient ``-sampled_mass / (label_mass + sampled_mass)`` keeps them.
    """
    return -sampled_mass / (label_mass + sampled_mass)


@njit
def loss_from_masses(label_mass: float, sampled_mass: float, label_gap: float) -> float:
    """Return the softmax loss ``log(1 + sampled_mass / label_mass)``, for masses relative to a max.

    `label_gap` is the largest logit minus the label's, so that ``label_mass = exp(-label_gap)``. A
    small loss keeps its digits only with ``log1p(sampled_mass / label_mass)``, but that formula
    divides by 0 if the label mass underflows. It is therefore used only if the label has the larger
    mass; otherwise ``label_gap + log(label_mass + sampled_mass)`` is returned.
    """
    if label_mass > sampled_mass:
        return math.log1p(sampled_mass / label_mass)
    return label_gap + math.log(label_mass + sampled_mass)


SOFTMAX = LossKernel(
    softmax_kernel, merge=merge_exponentials, adds_exponentials=True, shift_invariant=True
)
