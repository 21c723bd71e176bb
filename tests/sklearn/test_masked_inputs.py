"""Masked arrays: what lies below a mask is no number and no label."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from samplesoft.sklearn import SampledSoftmaxClassifier

X = np.random.default_rng(0).standard_normal((20, 3))
Y = np.arange(20) % 4


def masked(array):
    return np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) % 7 == 0)


def make():
    return SampledSoftmaxClassifier(max_iter=1, random_state=0)


@pytest.mark.parametrize(
    "use",
    [
        lambda: make().fit(masked(X), Y),
        lambda: make().fit(X, masked(Y)),
        lambda: make().fit(X, Y, eval_set=(masked(X), Y)),
        lambda: make().fit(X, Y, eval_set=(X, masked(Y))),
        lambda: make().partial_fit(X, masked(Y), classes=np.arange(4)),
        lambda: make().fit(X, Y).predict(masked(X)),
        lambda: make().fit(X, Y).predict_topk(masked(X), 2),
        lambda: make().fit(X, Y).score(X, masked(Y)),
    ],
    ids=["X", "y", "X_val", "y_val", "partial_fit", "predict", "predict_topk", "score"],
)
def test_masks_are_not_ignored(use):
    with pytest.raises((TypeError, ValueError), match="masked array"):
        use()
