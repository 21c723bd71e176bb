"""A model while it is trained: order, steps, and what has been counted so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._validation import FloatArray, IntArray, in_small_unit
from samplesoft.losses.logistic import FullLogisticLoss
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.models.optimizers import make_optimizer
from samplesoft.samplers.base import Rows
from samplesoft.sklearn.calibration import Calibration, LogisticCalibration, SoftmaxCalibration
from samplesoft.sklearn.label_codec import LabelCodec
from samplesoft.training.linear_epochs import LinearEpochs, held_out_order, unit_norm

_CALIBRATED = 1000  # examples at most, and so many of their scores
_SCORES = 1 << 24


class Learner(LinearEpochs):
    """A linear softmax model with random parameters, and an optimizer by its name.

    `counts` (n,) say how often each class occurs, for samplers that draw by that; all randomness
    follows from the seed. A model that ``samplesoft train`` has trained may want inputs divided by
    their norms (`unit_inputs`), or items left out of the lists that are its inputs (`leave_out`);
    and it has no optimizer where its own was not one with default options alone.
    """

    unit_inputs = leave_out = False
    calibrated: Calibration | None = None
    row_norm = 1.0  # of the inputs of the first fit, in the mean

    def __init__(
        self,
        codec: LabelCodec,
        num_inputs: int,
        settings: LinearSoftmaxSettings,
        counts: FloatArray,
        dtype: Any,
        seed: int,
        optimizer: str,
    ) -> None:
        made = make_optimizer(optimizer, 0.0)
        super().__init__(num_inputs, len(codec.classes), settings, counts, seed, made, dtype)
        self.codec, self.counts, self.seed = codec, counts, seed
        self.optimizer_name = optimizer
        self.num_examples = self.num_labels = 0

    def split(self, rows: IntArray, share: float) -> tuple[IntArray, IntArray]:
        """Return the rows to train on, and a share of them that is held out."""
        if self.leave_out:
            raise ValueError(
                "`early_stopping` must be False for a model of samplesoft train items, whose lists "
                "leave out the items of the inputs; turn it off, or give an `eval_set` of items "
                "that are known and of others."
            )
        held = int(np.ceil(share * len(rows)))
        if held >= len(rows):
            raise ValueError(
                f"`early_stopping` needs examples to hold out, got {len(rows)} in all; turn it "
                "off, or give more or an `eval_set`."
            )
        order = held_out_order(rows, self.seed)
        return np.sort(order[held:]), np.sort(order[:held])

    def tune_inputs(self, x: Any, labels: Any) -> dict[str, Any]:
        """Return arguments of `samplesoft.tune` for some examples."""
        return {**super().tune_inputs(x, labels), "counts": self.counts}

    def step(self, x: Any, labels: Any, weights: FloatArray, learning_rate: float) -> float:
        """Take a step on a batch, and count it; return its mean loss."""
        loss = super().step(x, labels, weights, learning_rate)
        self.num_examples += x.shape[0]
        self.num_labels += labels.nnz if self.codec.multilabel else x.shape[0]
        return loss

    def prepared(self, X: Any) -> Any:
        """Return inputs as the model wants them, and in its type."""
        if self.unit_inputs:
            X = unit_norm(sparse.csr_array(X))
        return X.astype(self.model.dtype, copy=False)

    def top_k(self, X: Any, k: int, exclude: Any = None) -> tuple[IntArray, Rows]:
        """Find the best classes of inputs that are prepared, as `LinearSoftmax.top_k`.

        `exclude` is a CSR matrix (N, n) of classes that are not wanted.
        """
        if self.leave_out:
            exclude = X if exclude is None else (X != 0) + (exclude != 0)
        return self.model.top_k(X, k, leave_out=exclude)

    def scores(self, X: Any) -> Iterator[tuple[slice, Rows]]:
        """Yield scores of all classes, as `LinearSoftmax.scores`; raise if one is infinite."""
        for part, scores in self.model.scores(X, leave_out=X if self.leave_out else None):
            if not scores.max() < np.inf:
                row = int(np.argmin(scores.max(axis=1) < np.inf))
                raise ValueError(
                    f"the scores of row {part.start + row} of `X` must be finite in "
                    f"{scores.dtype}, got {scores[row].max()}; bring inputs to the scale of those "
                    "that the model was trained on."
                )
            yield part, scores

    def precision_at_1(self, X: Any, codes: Any, weights: FloatArray) -> float:
        """Return the share of examples, by weights (N,), whose best class is a label."""
        best = self.top_k(X, 1)[0][:, 0]
        several = self.codec.multilabel
        right = codes[np.arange(len(best)), best] if several else best == codes
        return float(np.average(right, weights=in_small_unit(weights)))

    @property
    def calibration(self) -> Calibration:
        """How scores become probabilities."""
        if self.calibrated is not None:
            return self.calibrated
        several = self.codec.multilabel
        if isinstance(self.model.softmax.loss, FullLogisticLoss):
            return LogisticCalibration(1.0, several)
        if not several:
            return SoftmaxCalibration()
        labels_each = self.num_labels / self.num_examples if self.num_examples else 1.0
        return SoftmaxCalibration(1.0, labels_each)

    def split_to_calibrate(self, rows: IntArray, share: float) -> tuple[IntArray, IntArray]:
        """Return the rows to train on at first, and a share of them, if few, for `calibrate`."""
        order = held_out_order(rows, self.seed)
        held = min(int(share * len(rows)), self._most_calibrated())
        return np.sort(order[held:]), np.sort(order[:held])

    def calibrate(self, X: Any, codes: Any, weights: FloatArray, rows: IntArray) -> None:
        """Calibrate probabilities on some of the rows, which the model was not trained on."""
        some = np.sort(held_out_order(rows, self.seed)[: self._most_calibrated()])
        if weights[some].any():
            scores = np.concatenate([scores for _, scores in self.scores(X[some])])
            labels = codes[some]
            if self.codec.multilabel:
                labels = labels[:, : len(self.codec.classes)]
            self.calibrated = self.calibration.fitted(scores, labels, weights[some])

    def with_seen_labels(self, codes: Any) -> IntArray:
        """Return the rows whose labels are classes."""
        n = len(self.codec.classes)
        if not self.codec.multilabel:
            return np.flatnonzero(codes < n)
        unseen = codes[:, n:].sum(axis=1)
        return np.flatnonzero(unseen == 0)

    def probabilities(self, X: Any) -> Iterator[tuple[slice, FloatArray]]:
        """Yield probabilities of all classes, as `calibration` makes them of the scores."""
        for part, scores in self.scores(X):
            yield part, self.calibration.probabilities(scores)

    def _most_calibrated(self) -> int:
        return min(_CALIBRATED, max(1, _SCORES // len(self.codec.classes)))
