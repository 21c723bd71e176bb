"""A scikit-learn classifier for very many classes; it needs the optional package scikit-learn."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("samplesoft.sklearn needs scikit-learn; pip install scikit-learn.") from error

from samplesoft.sklearn.classifier import SampledSoftmaxClassifier, predict_topk

__all__ = ["SampledSoftmaxClassifier", "predict_topk"]
