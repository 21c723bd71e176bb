"""What a classifier predicts, once it has been fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from samplesoft._memory import require_bytes
from samplesoft._validation import in_small_unit
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.sklearn.calibration import Calibration
from samplesoft.sklearn.example_weights import check_sample_weight
from samplesoft.sklearn.inputs import checked_inputs
from samplesoft.sklearn.label_codec import LabelCodec
from samplesoft.sklearn.learner import Learner


class PredictionMixin:
    """Labels, scores and probabilities by a model that has been fitted."""

    classes_: NDArray[Any]
    model_: LinearSoftmax
    _learner: Learner
    _codec: LabelCodec

    @property
    def calibration_(self) -> Calibration:
        """How `predict_proba` makes probabilities of scores."""
        return self._learner.calibration

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each input, or all of at least even odds.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N,), or labels in the form in which `fit` got several for an example
            Labels. Of several, those with a probability of `predict_proba` of at least 1/2.
        """
        X = self._check_fitted_inputs(X)
        if not self._codec.multilabel:
            return self._codec.decode(self._learner.top_k(X, 1)[0][:, 0])
        chosen = [sparse.csr_array(proba >= 0.5) for _, proba in self._learner.probabilities(X)]
        return self._codec.decode_matrix(sparse.csr_array(sparse.vstack(chosen, format="csr")))

    def predict_topk(
        self, X: Any, k: int = 5, *, exclude: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the labels of the greatest scores, without a matrix of all scores.

        `samplesoft.sklearn.predict_topk` does the same for a pipeline.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.
        k : int
            How many labels, at most n.
        exclude : sparse matrix, shape (N, n), or list of N lists of labels, optional
            Labels that are not wanted, such as those that are known; columns are in the order of
            `classes_`. Labels that are no class are ignored.

        Returns
        -------
        labels : ndarray, shape (N, k)
            The best first.
        scores : ndarray, shape (N, k)
            Their scores: logits of the softmax; -inf for labels that are not wanted, where fewer
            than k are left.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        X = self._check_fitted_inputs(X)
        if exclude is not None:
            exclude = self._codec.encode_unwanted("exclude", exclude, X.shape[0])
        ids, scores = self._learner.top_k(X, k, exclude)
        return self._codec.decode(ids), scores

    def embed(self, X: Any) -> NDArray[Any]:
        """Return contexts, which class vectors are compared with.

        Scores are their inner products with the rows of ``model_.class_vectors()``, times
        ``model_.settings.tau``. An index of these rows for the greatest inner product, such as
        ``IndexFlatIP`` of FAISS or ``space="ip"`` of hnswlib, finds the labels of `predict_topk`.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N, d)
            Contexts, of norm 1 if the model normalises, as its class vectors then are: inner
            products are cosines.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        return self.model_.embed(self._check_fitted_inputs(X))

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return scores: logits of the softmax, or of two classes their difference.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N, n), or (N,) with two classes
            Scores.

        Raises
        ------
        MemoryError
            If they would not fit.
        ValueError
            If inputs are malformed, or so large that a score is infinite.
        """
        X = self._check_fitted_inputs(X)
        out = self._room(X.shape[0])
        for part, scores in self._learner.scores(X):
            out[part] = scores
        if len(self.classes_) == 2 and not self._codec.multilabel:
            difference: NDArray[Any] = out[:, 1] - out[:, 0]
            return difference
        return out

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return probabilities.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N, n)
            The softmax p of the scores divided by the temperature of `calibration_`. Where
            examples may have several labels, ``1 - (1 - p)**L``: that of a label to be among L
            draws, the ``labels_each`` of `calibration_`.

        Raises
        ------
        MemoryError
            If they would not fit.
        ValueError
            If inputs are malformed, or so large that a score is infinite.
        """
        X = self._check_fitted_inputs(X)
        out = self._room(X.shape[0])
        for part, probabilities in self._learner.probabilities(X):
            out[part] = probabilities
        return out

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of inputs whose label, or set of labels, is predicted.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.
        y : array_like or matrix
            Labels, as in `fit`, but ones not seen there too, which are never predicted.
        sample_weight : array_like, shape (N,), optional
            Weights of the inputs, at least 0.

        Returns
        -------
        float
            Accuracy.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        predicted = self.predict(X)
        check_consistent_length(predicted, y)
        found, wanted = (self._codec.encode(labels, unseen=True) for labels in (predicted, y))
        if self._codec.multilabel:
            right = np.diff(sparse.csr_array(found != wanted).indptr) == 0
        else:
            right = found == wanted
        weights = check_sample_weight(sample_weight, len(right))
        if not weights.any():
            raise ValueError("`sample_weight` must be above 0 for an example, got zero for all.")
        return float(np.average(right, weights=in_small_unit(weights)))

    def _check_fitted_inputs(self, X: Any) -> Any:
        """Check inputs to predict for."""
        check_is_fitted(self)
        return self._learner.prepared(checked_inputs(self, X, reset=False))

    def _room(self, num: int) -> NDArray[Any]:
        """Return an array for a number for each input and class, or raise MemoryError."""
        n = len(self.classes_)
        require_bytes(
            f"{num:,} inputs times {n:,} classes",
            8 * num * n,
            "pass fewer inputs at a time, or take predict_topk",
        )
        return np.empty((num, n))
