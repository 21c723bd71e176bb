"""A model while it is trained: order, steps, and what has been counted so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._validation import FloatArray, IntArray
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.optimizers import Optimizer, make_optimizer
from samplesoft.samplers.base import Rows
from samplesoft.sklearn.label_codec import LabelCodec
from samplesoft.training.linear_steps import LinearSteps, held_out_order
from samplesoft.training.unit_norm import unit_norm

_FIRST_REFRESH = 64  # steps after which, and whenever they have doubled, the sampler is made anew


class Learner:
    """A linear softmax model with random parameters, and Adagrad.

    `counts` (n,) say how often each class occurs, for samplers that draw by that; all randomness
    follows from the seed. A model that ``samplesoft train`` has trained may want inputs divided by
    their norms (`unit_inputs`), or items left out of the lists that are its inputs (`leave_out`);
    and it has no optimizer where its own was not Adagrad alone.
    """

    unit_inputs = leave_out = False
    optimizer: Optimizer | None

    def __init__(
        self,
        codec: LabelCodec,
        num_inputs: int,
        settings: LinearSoftmaxSettings,
        counts: FloatArray,
        dtype: Any,
        seed: int,
    ) -> None:
        self.codec, self.counts, self.seed = codec, counts, seed
        self._steps = LinearSteps(num_inputs, len(codec.classes), settings, counts, seed, dtype)
        self.optimizer = make_optimizer("adagrad", 0.0)
        self.num_steps = self.num_epochs = self.num_examples = self.num_labels = 0

    @property
    def model(self) -> LinearSoftmax:
        """The model that is trained."""
        return self._steps.model

    def split(self, rows: IntArray, share: float) -> tuple[IntArray, IntArray]:
        """Return the rows to train on, and a share of them that is held out."""
        if self.leave_out:
            raise ValueError(
                "`early_stopping` must be False for a model of samplesoft train items, whose lists "
                "leave out the items of the inputs; turn it off."
            )
        held = int(np.ceil(share * len(rows)))
        if held >= len(rows):
            raise ValueError(
                f"`early_stopping` needs examples to hold out, got {len(rows)} in all; turn it "
                "off, or give more."
            )
        order = held_out_order(rows, self.seed)
        return np.sort(order[held:]), np.sort(order[:held])

    def epoch(
        self,
        X: Any,
        codes: Any,
        weights: FloatArray,
        rows: IntArray,
        batch_size: int,
        learning_rate: float,
    ) -> float:
        """Go over some rows once; return the mean loss."""
        total = 0.0
        for batch in self.batches(rows, batch_size):
            loss = self.step(X[batch], codes[batch], weights[batch], learning_rate)
            total += loss * len(batch)
        self.model.softmax.refresh()  # classes have moved, and their sampler may be stale
        return total / len(rows)

    def batches(self, rows: IntArray, batch_size: int) -> Iterator[IntArray]:
        """Yield the rows of each step of the next epoch."""
        order = self._steps.order(rows, self.num_epochs)
        self.num_epochs += 1
        for part in chunks(len(order), batch_size):
            yield order[part]

    def tune_inputs(self, X: Any, codes: Any) -> dict[str, Any]:
        """Return arguments of `samplesoft.tune` for some examples."""
        return {**self._steps.tune_inputs(X, codes), "counts": self.counts}

    def step(self, x: Any, codes: Any, weights: FloatArray, learning_rate: float) -> float:
        """Take a step on a batch; return its mean loss."""
        assert self.optimizer is not None, "see `require_same_model`"
        loss, gradients = self._steps.gradients(self.num_steps, x, codes, weights)
        self.optimizer.learning_rate = learning_rate
        self.optimizer.step(self.model.parameters, gradients)
        self.model.after_step(gradients)
        self.num_steps += 1
        if self.num_steps >= _FIRST_REFRESH and self.num_steps & (self.num_steps - 1) == 0:
            self.model.softmax.refresh()
        self.num_examples += x.shape[0]
        self.num_labels += codes.nnz if self.codec.multilabel else x.shape[0]
        return loss

    def prepared(self, X: Any) -> Any:
        """Return inputs as the model wants them, and in its type."""
        if self.unit_inputs:
            X = unit_norm(sparse.csr_array(X))
        return X.astype(self.model.dtype, copy=False)

    def top_k(self, X: Any, k: int) -> tuple[IntArray, Rows]:
        """Find the best classes of inputs that are prepared, as `LinearSoftmax.top_k`."""
        return self.model.top_k(X, k, leave_out=X if self.leave_out else None)

    def scores(self, X: Any) -> Iterator[tuple[slice, Rows]]:
        """Yield scores of all classes, as `LinearSoftmax.scores`."""
        return self.model.scores(X, leave_out=X if self.leave_out else None)

    def precision_at_1(self, X: Any, codes: Any) -> float:
        """Return how often the best class is a label."""
        best = self.top_k(X, 1)[0][:, 0]
        if not self.codec.multilabel:
            return float(np.mean(best == codes))
        return float(np.mean(codes[np.arange(len(best)), best]))

    def probabilities(self, X: Any) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the softmax of the scores, or of several labels that of each to be among them."""
        for part, scores in self.scores(X):
            p = scores.astype(np.float64)
            p -= p.max(axis=1, keepdims=True)
            np.exp(p, out=p)
            p /= p.sum(axis=1, keepdims=True)
            if self.codec.multilabel:
                labels_each = self.num_labels / self.num_examples if self.num_examples else 1.0
                with np.errstate(divide="ignore"):
                    p = -np.expm1(labels_each * np.log1p(-p))
            yield part, p
