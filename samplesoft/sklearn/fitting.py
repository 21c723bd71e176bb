"""How a classifier is trained: anew, further, and a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from samplesoft._progress import progress_phase
from samplesoft._validation import FloatArray, shown
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.sklearn.example_weights import (
    check_sample_weight,
    class_counts,
    class_weights,
    example_weights,
    labelled_rows,
)
from samplesoft.sklearn.inputs import checked_examples, mean_norm
from samplesoft.sklearn.label_codec import LabelCodec, infer_codec
from samplesoft.sklearn.label_forms import LISTS, SINGLE
from samplesoft.sklearn.learner import Learner
from samplesoft.sklearn.parameters import (
    check_parameters,
    learning_rate,
    model_settings,
    require_same_model,
    wants_pilot,
    warn_of_many_draws,
)
from samplesoft.sklearn.pilot import auto_choice
from samplesoft.sklearn.rounds import Examples, train_rounds


class FittingMixin:
    """`fit` and `partial_fit` of a classifier."""

    calibrate: bool
    class_weight: Any
    early_stopping: bool
    learning_rate: float | None
    optimizer: str
    random_state: Any
    validation_fraction: float
    verbose: bool
    warm_start: bool

    classes_: NDArray[Any]
    model_: LinearSoftmax
    _learner: Learner
    _codec: LabelCodec

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, eval_set: tuple[Any, Any] | None = None
    ) -> Self:
        """Train anew, or with `warm_start` go on.

        Parameters
        ----------
        X : array_like, sparse matrix or dataframe, shape (N, v)
            Inputs; sparse ones stay sparse. A row of zeros is an example like others.
        y : array_like, shape (N,), or indicator matrix (N, n), or list of N lists of labels
            One label an example, or several. Examples without any are left out and counted. The
            names of the columns of a dataframe with several are its labels, which
            `predict_topk` returns; `predict` returns an array of zeros and ones, as
            scikit-learn's own classifiers do.
        sample_weight : array_like, shape (N,), optional
            Weights of the losses of examples, times those of `class_weight`. An example counts as
            often as its weight says where classes are counted; one of weight 0 is left out.
        eval_set : tuple of X and y, optional
            Other inputs and labels, for `validation_scores_`, and for `early_stopping` and
            `calibrate`, which then hold out nothing. Labels that are not in `y` count as ones that
            were not found; examples without a label do not count. In a pipeline, inputs as its
            last step gets them.

        Returns
        -------
        SampledSoftmaxClassifier
            The estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or training diverges.
        MemoryError
            If a model of such parameters does not fit.

        Warns
        -----
        UserWarning
            If examples are without a label, or `num_sampled` is more than there are classes.
        """
        check_parameters(self)
        with self._unchanged_on_error():
            self._fit(X, y, sample_weight, eval_set)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, eval_set: Any) -> None:
        go_on = self.warm_start and hasattr(self, "model_")
        X = checked_examples(self, X, y, reset=not go_on)
        codec = self._codec if go_on else infer_codec(y)
        codes = codec.encode(y)
        labelled = labelled_rows(codes)
        if not len(labelled):
            raise ValueError("`y` must hold a label for at least one example, got none.")
        sample_weight = check_sample_weight(sample_weight, X.shape[0])
        of_class = class_weights(self.class_weight, codec, codes, sample_weight)
        weights = example_weights(of_class, codes, sample_weight)
        rows = labelled[sample_weight[labelled] > 0.0]
        if not len(rows):
            raise ValueError(
                "`sample_weight` must be above 0 for an example with a label, got zero for all."
            )
        validation = None if eval_set is None else self._checked_eval_set(eval_set, codec)
        if go_on:
            require_same_model(self)
            X = self._learner.prepared(X)
        else:
            counts = class_counts(codes, len(codec.classes), sample_weight)
            seed = self._new_seed()
            self.__dict__.pop("auto_choice_", None)
            if wants_pilot(self, len(codec.classes)):
                self.auto_choice_ = auto_choice(self, X, codec, codes, weights, rows, counts, seed)
            self._begin(X, codec, counts, seed)
            warn_of_many_draws(self, len(codec.classes), stacklevel=3)
        self.num_unlabeled_ = X.shape[0] - len(labelled)
        if self.num_unlabeled_:
            warnings.warn(
                f"{self.num_unlabeled_:,} of {X.shape[0]:,} examples are without a label and were "
                "left out.",
                stacklevel=3,
            )
        learner, apart = self._learner, rows[:0]
        if validation is not None:
            validation = validation._replace(X=learner.prepared(validation.X))
        elif self.early_stopping:
            rows, held_out = learner.split(rows, self.validation_fraction)
            validation = Examples(X, codes, sample_weight).rows(held_out)
        elif self.calibrate and not go_on:
            rows, apart = learner.split_to_calibrate(rows, self.validation_fraction)
        train_rounds(self, Examples(X, codes, weights), rows, validation, apart, of_class)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Take one step on a batch.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (B, v)
            Inputs.
        y : array_like or matrix
            Labels, as in `fit`.
        classes : array_like, shape (n,)
            All labels, or what the columns of `y` are called; needed in the first call, unless `y`
            is an indicator matrix. Samplers that draw by counts go by those of the first batch,
            one more for each class.
        sample_weight : array_like, shape (B,), optional
            Weights of the examples, as in `fit`.

        Returns
        -------
        SampledSoftmaxClassifier
            The estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or classes differ from those of before.
        MemoryError
            If a model of such parameters does not fit.

        Warns
        -----
        UserWarning
            If `num_sampled` is more than there are classes, in the first call.
        """
        check_parameters(self)
        if isinstance(self.class_weight, str):
            raise ValueError(
                "`class_weight` must not be 'balanced' for partial_fit, which sees one batch at a "
                "time; pass the weights as a dict."
            )
        with self._unchanged_on_error():
            self._partial_fit(X, y, classes, sample_weight)
        return self

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> None:
        first = not hasattr(self, "model_")
        X = checked_examples(self, X, y, reset=first)
        sample_weight = check_sample_weight(sample_weight, X.shape[0])
        if first:
            codec = infer_codec(y, classes)
            if classes is None and codec.form in (SINGLE, LISTS):
                raise ValueError(
                    "`classes` must hold all labels in the first call of partial_fit, got None."
                )
            if wants_pilot(self, len(codec.classes)):
                raise ValueError(
                    "`sampler` and `num_sampled` must not be 'auto' in the first call of "
                    "partial_fit, which sees one batch; call fit on some of the data first, or "
                    "name them."
                )
            codes = codec.encode(y)
            counts = class_counts(codes, len(codec.classes), sample_weight) + 1.0
            self._begin(X, codec, counts, self._new_seed())
            warn_of_many_draws(self, len(codec.classes), stacklevel=3)
            self.n_iter_ = 0
        else:
            if classes is not None and not np.array_equal(
                np.unique(classes), np.unique(self.classes_)
            ):
                raise ValueError(
                    "`classes` must be those of the first call of partial_fit; leave it out."
                )
            codes = self._codec.encode(y)
            require_same_model(self)
            X = self._learner.prepared(X)
        rows = labelled_rows(codes)
        rows = rows[sample_weight[rows] > 0.0]
        if len(rows):
            of_class = class_weights(self.class_weight, self._codec, codes, sample_weight)
            weights = example_weights(of_class, codes, sample_weight)
            rate = learning_rate(self, self._learner.row_norm)
            self._learner.step(X[rows], codes[rows], weights[rows], rate)
        self.n_iter_ += 1

    def _checked_eval_set(self, eval_set: Any, codec: LabelCodec) -> Examples:
        """Return the examples of `eval_set` that have a label."""
        if not isinstance(eval_set, tuple) or len(eval_set) != 2:
            raise TypeError(
                f"`eval_set` must be a tuple (X, y), got {type(eval_set).__name__} "
                f"{shown(eval_set)}; give one set of inputs, and their labels."
            )
        X, y = eval_set
        X, codes = checked_examples(self, X, y, reset=False), codec.encode(y, unseen=True)
        rows = labelled_rows(codes)
        if not len(rows):
            raise ValueError("`eval_set` must hold a label for at least one example, got none.")
        return Examples(X, codes, np.ones(X.shape[0])).rows(rows)

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Undo what the body has set if it fails; trained parameters stay changed."""
        before = dict(vars(self))
        try:
            yield
        except Exception:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _new_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _begin(self, X: Any, codec: LabelCodec, counts: FloatArray, seed: int) -> None:
        """Make a model with random parameters."""
        chosen = getattr(self, "auto_choice_", {})
        settings = model_settings(self, codec.multilabel, len(codec.classes), chosen)
        with progress_phase(bool(self.verbose), "making the model"):
            learner = Learner(codec, X.shape[1], settings, counts, X.dtype, seed, self.optimizer)
        learner.row_norm = mean_norm(X)
        self._take(learner)

    def _take(self, learner: Learner) -> None:
        self._learner, self._codec = learner, learner.codec
        self.classes_, self.model_ = learner.codec.classes, learner.model
