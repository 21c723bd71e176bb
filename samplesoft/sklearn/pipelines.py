"""What a pipeline does not pass on to its last step."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from sklearn.pipeline import Pipeline


def predict_topk(
    estimator: Any, X: Any, k: int = 5, *, exclude: Any = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the best labels of inputs that a pipeline transforms first.

    It is ``pipeline[-1].predict_topk(pipeline[:-1].transform(X), k)``.

    Parameters
    ----------
    estimator : Pipeline or SampledSoftmaxClassifier
        Fitted; the last step of a pipeline is the classifier, or a pipeline that ends in it.
    X : array_like or sparse matrix, shape (N, v), or whatever the first step takes
        Inputs.
    k, exclude
        As in `SampledSoftmaxClassifier.predict_topk`.

    Returns
    -------
    labels, scores : ndarray, shape (N, k)
        As of `SampledSoftmaxClassifier.predict_topk`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the last step has no `predict_topk`.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from sklearn.pipeline import make_pipeline
    >>> from samplesoft.sklearn import SampledSoftmaxClassifier, predict_topk
    >>> texts, names = ["red fruit", "red berry", "green leaf"], ["apple", "cherry", "mint"]
    >>> pipe = make_pipeline(CountVectorizer(), SampledSoftmaxClassifier(random_state=0))
    >>> labels, scores = predict_topk(pipe.fit(texts, names), ["red"], 2)
    >>> sorted(labels[0].tolist())
    ['apple', 'cherry']
    >>> predict_topk(pipe, ["red"], 1, exclude=[["apple"]])[0].tolist()
    [['cherry']]
    """
    while isinstance(estimator, Pipeline):
        if len(estimator) > 1:
            X = estimator[:-1].transform(X)
        estimator = estimator[-1]
    if not hasattr(estimator, "predict_topk"):
        raise TypeError(
            "`estimator` must be a SampledSoftmaxClassifier, or a pipeline that ends in one, got "
            f"{type(estimator).__name__}."
        )
    found: tuple[NDArray[Any], NDArray[Any]] = estimator.predict_topk(X, k, exclude=exclude)
    return found
