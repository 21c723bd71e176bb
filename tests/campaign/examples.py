"""A valid call of every public callable: what its fuzzing starts from.

`make` gives a function, or a method of a new object, and new arguments, so that no call sees what
another has changed. A public name is here or in `NOT_CALLED`, which says why not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.pipeline import make_pipeline

import samplesoft
from samplesoft import (
    data,
    feature_maps,
    losses,
    metrics,
    models,
    optimizers,
    samplers,
    schemes,
    training,
)
from samplesoft.bias import metropolis_bias, theorems, truncated_bias
from samplesoft.sklearn import SampledSoftmaxClassifier, predict_topk

Call = tuple[Callable[..., Any], dict[str, Any]]

PACKAGES = ("", "data", "feature_maps", "losses", "metrics", "models", "optimizers", "samplers")
PACKAGES += ("training", "sklearn")

NOT_CALLED = {
    "holds what a function has computed": (
        "Batch Cache Gradients SparseRows Evaluation Draw GumbelDraw "
        "MultilevelDraw "
        "SparseExamples Checkpoint Progress TrainedLinearSoftmax TrainedSoftmax"
    ),
    "a line of a registry, written by developers": "FeatureMapSpec LossSpec SamplerSpec",
    "a base class or a protocol, of which nobody makes one": (
        "FeatureMap Loss SampledLoss Optimizer DenseSampler Sampler Task"
    ),
    "reads or writes a file, which is damaged elsewhere": (
        "load_embeddings load_interactions load_logits load_xml_repository read_tokens "
        "stdlib_tokens load_parameters read_checkpoint read_examples read_linear_softmax read_log "
        "require_free require_run train write_checkpoint"
    ),
}

H = np.array([[0.6, 0.8, 0.0], [0.0, 0.6, 0.8]])
W = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.8, 0], [0, 0.6, 0.8], [0.8, 0, 0.6]])
N, D = W.shape
LABELS, IDS = np.array([1, 4]), np.array([[0, 3], [2, 5]])
COUNTS = np.array([5.0, 4.0, 3.0, 3.0, 2.0, 1.0])
LOGITS = 2.0 * H @ W.T
Q = COUNTS / COUNTS.sum()
BIASES = np.linspace(-0.5, 0.5, N)
X = sparse.csr_array(np.eye(4, 5) + 0.5 * np.eye(4, 5, 1))  # inputs
Y = sparse.csr_array(np.eye(4, N))  # their labels
FOUR = [0, 1, 2, 3]  # one of each
TEXT = ["a", "b", "c", "a", "b", "d", "a", "c"] * 8
SMALL = {"embedding_dim": 3, "num_sampled": 3, "batch_size": 4}
_ids = np.arange(60) % 4


def _call(made: Callable[..., Any], **arguments: Any) -> Call:
    return made, arguments


_bias = {"logits": LOGITS, "labels": LABELS, "q": Q, "num_sampled": 4}
_map = {"dim": D, "num_features": 8, "rng": 0}
_vectors = {"class_embeddings": W, "tau": 2.0}
_tree = {"leaf_size": 2, "progress": False}
_loss = {"tau": 2.0, "normalize": False, "absolute": False, "reduction": "mean"}
_loss |= {"label_reduction": "pal", "mask_other_labels": True}
_scores = {"h": H, "class_embeddings": W, **_loss, "biases": BIASES}
for _name in ("reduction", "label_reduction", "mask_other_labels"):
    del _scores[_name]
_settings = {"loss": "sampled-masked", "tau": 2.0, "normalize": True, "sampler": "rff+softmax-leaf"}
_settings |= {"num_sampled": 3, "nu": 2.0, "num_features": 8, "shared": True, "update_every": 1}
_linear = {**_settings, "embedding_dim": 3, "dropout": 0.1}
_linear |= {"label_reduction": "pal", "mask_other_labels": False}
_places = {"ranks": [2, 3, 1], "num_candidates": 9, "examples": [0, 0, 1], "better": [0.2, 0.3, 0]}
_sampled = {"targets": metrics.TargetRanks(**_places), "num_sampled": 2, "replacement": True}
_layer = {"init_scale": 0.1, "dtype": np.float64, "rng": 0}


def _fitted(**options: Any) -> Any:
    """Return a fitted classifier, for it looks at its parameters when it is fitted.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `SampledSoftmaxClassifier.fit`.

    Warns
    -----
    UserWarning
        As `SampledSoftmaxClassifier.fit`.
    """
    return SampledSoftmaxClassifier(**options).fit(X, FOUR)


def _full(class_embeddings: Any, h: Any, labels: Any, num_sampled: int, seed: int) -> Any:
    """Return the full softmax losses of a batch."""
    logits = h @ class_embeddings.T
    return np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(labels)), labels]


def _scores_of(ids: Any) -> Any:
    """Return the logits of some classes of each context."""
    return np.take_along_axis(LOGITS, ids, axis=1)


MADE: dict[str, Call] = {
    "to_host": _call(samplesoft.to_host, value={"a": H}),
    "exact_bias": _call(samplesoft.exact_bias, **_bias, scheme="candidate"),
    "asymptotic_bias": _call(samplesoft.asymptotic_bias, logits=LOGITS, labels=LABELS, q=Q, h=None),
    "finite_sample_bounds": _call(samplesoft.finite_sample_bounds, **_bias),
    "num_sampled_for": _call(
        samplesoft.num_sampled_for, logits=LOGITS, labels=LABELS, q=Q, bias=0.1, h=None
    ),
    "exact_gradient_moments": _call(
        samplesoft.exact_gradient_moments, **_bias, class_embeddings=W, tau=2.0
    ),
    "self_normalized_terms": _call(
        samplesoft.self_normalized_terms, **_bias, scheme="negatives", h=None
    ),
    "monte_carlo_bias": _call(
        samplesoft.monte_carlo_bias, **_bias, num_trials=20, scheme="masked", rng=0
    ),
    "metropolis_bias": _call(
        metropolis_bias, logits=LOGITS, q=Q, num_steps=[1, 20], start=LABELS, h=None
    ),
    "truncated_bias": _call(truncated_bias, logits=LOGITS, labels=LABELS, ids=IDS),
    "theorem1_bounds": _call(theorems.theorem1_bounds, **_bias, jacobian=W),
    "theorem1_corrected": _call(theorems.theorem1_corrected, **_bias, jacobian=W),
    "theorem2_corrected": _call(
        theorems.theorem2_corrected,
        cosine=(H @ W.T)[0],
        labels=1,
        tau=2.0,
        nu=1.0,
        num_features=500,
        gamma=0.2,
    ),
    "theorem2_ratio": _call(
        theorems.theorem2_ratio,
        cosine=(H @ W.T)[0],
        labels=1,
        estimates=Q,
        tau=2.0,
        nu=1.0,
    ),
    "verify": _call(
        samplesoft.verify,
        logits=LOGITS,
        labels=LABELS,
        proposals={"counts": Q},
        num_sampled=[2, 3],
        h=H,
        class_embeddings=W,
        tau=2.0,
        wrt=("logits", "h"),
        scheme="negatives",
        num_trials=20,
        rng=0,
        settings={},
    ),
    "check_loss": _call(
        samplesoft.check_loss,
        loss=_full,
        proposal="uniform",
        num_sampled=3,
        draws="own",
        tau=1.0,
        biases=False,
        seconds=0.1,
    ),
    "tune": _call(
        samplesoft.tune,
        **{"class_embeddings": W, "h": H, "labels": LABELS, "counts": COUNTS, "tau": 2.0},
        **{"samplers": ("uniform", "unigram"), "num_sampled": (2, 3), "shared": None},
        **{"masked": False, "batch": 2, "largest_bias": 0.05, "seconds": 0.01, "rng": 0},
    ),
    "KernelTree": _call(
        samplers.KernelTree,
        class_embeddings=W,
        **_tree,
        leaf="kernel",
        scale=2.0,
        floor=1e-6,
    ),
    "Embeddings": _call(data.Embeddings, h=H, class_embeddings=W, labels=LABELS, counts=COUNTS),
    "examples_from_corpus": _call(
        data.examples_from_corpus, tokens=TEXT, vocabulary_size=4, dim=3, num_examples=5
    ),
    "ppmi_svd": _call(data.ppmi_svd, ids=IDS.ravel(), num_classes=N, dim=3),
    "PositiveRandomFeatures": _call(
        feature_maps.PositiveRandomFeatures, **_map, tau=2.0, frequencies="orthogonal"
    ),
    "QuadraticFeatures": _call(feature_maps.QuadraticFeatures, dim=D, alpha=10.0),
    "RandomFourierFeatures": _call(
        feature_maps.RandomFourierFeatures, **_map, nu=2.0, frequencies="iid"
    ),
    "RandomMaclaurinFeatures": _call(feature_maps.RandomMaclaurinFeatures, **_map, tau=2.0),
    "make_feature_map": _call(
        feature_maps.make_feature_map, name="positive", **_map, sharpness=2.0
    ),
    "FullSoftmaxLoss": _call(losses.FullSoftmaxLoss, **_loss),
    "SampledSoftmaxLoss": _call(losses.SampledSoftmaxLoss, **_loss, scheme="negatives"),
    "FullLogisticLoss": _call(losses.FullLogisticLoss, **_loss | {"label_reduction": "ova"}),
    "InBatchLoss": _call(
        losses.InBatchLoss, proposal=samplers.UnigramSampler(COUNTS), scheme="masked", **_loss
    ),
    "BilateralSoftmaxLoss": _call(losses.BilateralSoftmaxLoss, **_loss, negative_weight=1.2),
    "ImportanceSoftmaxLoss": _call(losses.ImportanceSoftmaxLoss, **_loss),
    "JackknifeLoss": _call(losses.JackknifeLoss, **_loss, scheme="masked"),
    "MultilevelLoss": _call(losses.MultilevelLoss, **_loss, scheme="masked"),
    "OneVsEachLoss": _call(losses.OneVsEachLoss, **_loss),
    "DoubleSumLoss": _call(losses.DoubleSumLoss, **_loss, slack=1.0),
    "MovingAverageLoss": _call(losses.MovingAverageLoss, **_loss, gamma=0.2),
    "SafeKLLoss": _call(losses.SafeKLLoss, **_loss, rho=0.1),
    "NCELoss": _call(losses.NCELoss, **_loss, scheme="candidate"),
    "NegativeSamplingLoss": _call(losses.NegativeSamplingLoss, **_loss),
    "GBCELoss": _call(losses.GBCELoss, **_loss, scheme="masked", calibration=0.5),
    "BPRLoss": _call(losses.BPRLoss, **_loss),
    "WARPLoss": _call(losses.WARPLoss, **_loss),
    "make_loss": _call(losses.make_loss, name="sampled-masked", **_loss),
    "evaluate": _call(metrics.evaluate, **_scores, labels=LABELS, k=(1, 2), batch_size=2),
    "propensities": _call(metrics.propensities, counts=COUNTS, num_examples=9, a=0.55, b=1.5),
    "ranking_scores": _call(metrics.ranking_scores, ids=IDS, labels=Y[:2], k=[1, 2]),
    "TargetRanks": _call(metrics.TargetRanks, **_places),
    "correct_metric": _call(
        metrics.correct_metric, metric=Q, num_sampled=2, gamma=0.2, prior=Q, replacement=True
    ),
    "estimate_rank_distribution": _call(
        metrics.estimate_rank_distribution, counts=[3, 2, 1], num_candidates=9, tol=1e-3
    ),
    "rank_metric": _call(metrics.rank_metric, name="ndcg", k=2, ranks=[1, 3]),
    "sampled_metrics": _call(metrics.sampled_metrics, **_sampled, k=[1, 2]),
    "sampled_rank_distribution": _call(metrics.sampled_rank_distribution, **_sampled),
    "target_ranks": _call(metrics.target_ranks, scores=LOGITS, labels=Y[: len(LOGITS)], q=Q),
    "top_k_classes": _call(metrics.top_k_classes, **_scores, k=2),
    "SGD": _call(optimizers.SGD, learning_rate=0.1),
    "Momentum": _call(optimizers.Momentum, learning_rate=0.1, momentum=0.9, nesterov=True),
    "Adagrad": _call(optimizers.Adagrad, learning_rate=0.1, epsilon=1e-8, initial_accumulator=0.1),
    "Adam": _call(optimizers.Adam, learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-8),
    "Linear": _call(models.Linear, num_inputs=5, embedding_dim=D, dtype=np.float64, rng=0),
    "SoftmaxSettings": _call(models.SoftmaxSettings, **_settings),
    "LinearSoftmaxSettings": _call(models.LinearSoftmaxSettings, **_linear),
    "LinearSoftmax": _call(
        models.LinearSoftmax,
        **{"num_inputs": 5, "num_classes": N, "settings": models.LinearSoftmaxSettings(**_linear)},
        **{"counts": COUNTS, "dtype": np.float64, "rng": 0},
    ),
    "SoftmaxLayer": _call(
        models.SoftmaxLayer,
        **{"class_embeddings": W, "loss": losses.make_loss("sampled-masked"), "biases": BIASES},
        **{"sampler": samplers.UniformSampler(N), "num_sampled": 3, "shared": False},
        **{"update_every": 1, "allow_other_tau": False},
    ),
    "SphericalSoftmax": _call(
        models.SphericalSoftmax,
        **{"num_classes": N, "embedding_dim": D, "kind": "spherical", "epsilon": 0.5},
        **{"reduction": "mean", "dtype": np.float64, "rng": 0},
    ),
    "make_optimizer": _call(
        optimizers.make_optimizer, name="adam", learning_rate=0.1, beta1=0.9, epsilon=1e-8
    ),
    "CertainSampler": _call(
        samplers.CertainSampler, tail=samplers.UniformSampler(N - 2), certain=[0, 3]
    ),
    "make_certain_sampler": _call(
        samplers.make_certain_sampler,
        name="uniform",
        inputs=samplers.SamplerInputs(W, counts=COUNTS),
        num_certain=2,
    ),
    "ClusterSampler": _call(
        samplers.ClusterSampler, **_vectors, leaf_size=2, progress=False, rng=0
    ),
    "KernelSampler": _call(
        samplers.KernelSampler,
        **{"class_embeddings": W, "feature_map": feature_maps.QuadraticFeatures(D)},
        **{"leaf": "softmax", "leaf_size": 2, "tau": 2.0, "floor": 1e-6},
    ),
    "LSHSampler": _call(
        samplers.LSHSampler,
        **{"class_embeddings": W, "num_tables": 3, "num_bits": 2, "uniform_share": 0.2, "rng": 0},
    ),
    "LearnedUnigramSampler": _call(
        samplers.LearnedUnigramSampler, num_classes=N, power=0.75, initial=COUNTS
    ),
    "BigramSampler": _call(samplers.BigramSampler, counts=sparse.csr_array(np.eye(3, N))),
    "effective_sample_size": _call(
        samplers.effective_sample_size, scores=LOGITS, log_q=np.log(Q)[None]
    ),
    "sample_until": _call(
        samplers.sample_until,
        **{"sampler": samplers.UnigramSampler(COUNTS), "h": H, "score": _scores_of, "least": 5.0},
        **{"block": 4, "most": 20, "exclude": LABELS, "rng": 0},
    ),
    "StreamingUnigramSampler": _call(
        samplers.StreamingUnigramSampler, num_classes=N, rate=0.1, power=0.75, initial=COUNTS
    ),
    "LogUniformSampler": _call(samplers.LogUniformSampler, num_classes=N, replace=True),
    "LazyGumbel": _call(samplers.LazyGumbel, **_vectors, num_head=2, num_clusters=3),
    "MetropolisSampler": _call(
        samplers.MetropolisSampler, **_vectors, counts=COUNTS, num_steps=3, power=0.5
    ),
    "MixtureSampler": _call(
        samplers.MixtureSampler,
        first=samplers.SoftmaxSampler(W),
        second=samplers.UnigramSampler(COUNTS),
        weight=0.5,
    ),
    "PositiveSampler": _call(samplers.PositiveSampler, **_vectors, **_tree, num_features=8, rng=0),
    "QuadraticSampler": _call(samplers.QuadraticSampler, **_vectors, **_tree, alpha=10.0),
    "RFSoftmaxSampler": _call(
        samplers.RFSoftmaxSampler, **_vectors, **_tree, nu=2.0, num_features=8, leaf="kernel", rng=0
    ),
    "SoftmaxSampler": _call(samplers.SoftmaxSampler, **_vectors, block_size=2),
    "TwoPassSampler": _call(
        samplers.TwoPassSampler,
        **{"candidates": samplers.UnigramSampler(COUNTS), "class_embeddings": W},
        **{"num_candidates": 20, "tau": 2.0, "rng": 0},
    ),
    "UniformSampler": _call(samplers.UniformSampler, num_classes=N, replace=False),
    "UnigramSampler": _call(samplers.UnigramSampler, counts=COUNTS, power=0.75, replace=True),
    "WeightedSampler": _call(samplers.WeightedSampler, weights=COUNTS, replace=False),
    "SamplerInputs": _call(
        samplers.SamplerInputs,
        **_vectors,
        **{"counts": COUNTS, "nu": 2.0, "num_features": 8, "alpha": 10.0, "power": 0.5, "rng": 0},
        **{"h": H, "logits": LOGITS},
    ),
    "dense_proposals": _call(
        samplers.dense_proposals,
        names=["softmax", "quadratic", "rff"],
        inputs=samplers.SamplerInputs(W, h=H, logits=LOGITS, num_features=8),
    ),
    "gumbel_top_k": _call(samplers.gumbel_top_k, logits=LOGITS, k=2, rng=0),
    "make_sampler": _call(
        samplers.make_sampler,
        name="mixture",
        inputs=samplers.SamplerInputs(W, counts=COUNTS, num_features=8),
    ),
    "Scheme": _call(
        schemes.Scheme,
        **{"name": "toy", "formula": "S", "base": "plain", "hits": "masked"},
        **{"corrects_draws": True, "independent": False, "jackknife": False},
    ),
    "Settings": _call(
        training.Settings,
        **{"epochs": 2, "optimizer": "momentum", "learning_rate": 0.1},
        **{
            "optimizer_options": {"momentum": 0.5},
            "patience": 2,
            "checkpoint_every": 2,
            "log_every": 5,
        },
    ),
    "RetrievalSettings": _call(training.RetrievalSettings, **_linear, batch_size=2, seed=0),
    "RetrievalTask": _call(
        training.RetrievalTask,
        **{"inputs": X, "labels": Y, "leave_out": False},
        settings=training.RetrievalSettings(**_linear, batch_size=2, validation=0.5),
    ),
    "SampledSoftmaxClassifier": _call(
        _fitted,
        **{**SMALL, "num_features": 8, "max_iter": 1, "update_every": 1, "optimizer": "adam"},
    ),
    "predict_topk": _call(
        predict_topk,
        estimator=make_pipeline("passthrough", SampledSoftmaxClassifier(3)).fit(X, FOUR),
        **{"X": X, "k": 2, "exclude": sparse.csr_array(np.eye(4))},
    ),
}


_rows = np.array([[0.0, 1.0, 0.0]])
SAMPLER = {
    "sample": {"h": H, "num_sampled": 3, "exclude": LABELS, "shared": False, "rng": 0},
    "log_prob": {"h": H, "ids": IDS, "exclude": LABELS},
    "log_expected_count": {"h": H, "ids": IDS, "num_sampled": 3, "exclude": LABELS},
    "probs": {"h": H, "exclude": LABELS},
    "update": {"ids": np.array([1]), "class_embeddings": _rows},
    "refresh": {"rng": 0},
    "observe": {"labels": LABELS},
    "load_state": {"state": {}},
    "inclusion_probs": {"num_sampled": 3, "exclude": LABELS},
    "class_embeddings": {"ids": LABELS},
    "collision_log_prob": {"h": H, "class_embeddings": W, "num_tables": 2},
}
MAP = {
    "transform": {"X": H},
    "kernel": {"X": H, "Y": W},
}
LOSS = {"forward": {"h": H, "class_embeddings": W, "labels": LABELS, "biases": BIASES}}
LOSS["forward"] |= {"draw": None, "weights": np.ones(2), "label_log_count": np.full(2, -1.0)}
STEP = {
    "step": {
        "parameters": {"x": H, "w": W},
        "gradients": {"x": H, "w": losses.SparseRows(LABELS, H)},
    },
    "load_state": {"state": {"steps": np.array(3)}},
}

METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "Sampler": SAMPLER,
    "FeatureMap": MAP,
    "Loss": LOSS,
    "Optimizer": STEP,
    "Linear": {"forward": {"x": X.toarray()}},
    "LinearSoftmax": {
        "step": {"x": X, "labels": Y, "weights": np.ones(4), "rng": 0},
        "embed": {"x": X},
        "top_k": {"x": X, "k": 2, "leave_out": Y},
        "load_state": {"state": {}},
    },
    "SoftmaxLayer": {
        "forward": {"h": H, "labels": LABELS, "weights": np.ones(2), "rng": 0},
        "update": {"ids": LABELS},
        "evaluate": {"h": H, "labels": LABELS, "k": (1, 2)},
    },
    "SphericalSoftmax": {
        "forward": {"h": H, "labels": LABELS, "weights": np.ones(2)},
        "class_embeddings": {"ids": LABELS},
        "set_class_embeddings": {"class_embeddings": W},
        "log_probs": {"h": H},
        "top_k": {"h": H, "k": 2},
        "evaluate": {"h": H, "labels": LABELS, "k": (1, 2)},
    },
    "BigramSampler": {
        **{name: given | {"h": [0, 2]} for name, given in SAMPLER.items() if "h" in given},
        "adapt": {"h": [0, 2], "ids": IDS, "scores": LOGITS[:, :2], "rate": 0.1},
    },
    "LazyGumbel": {
        "sample": {"h": H, "num_sampled": 3, "head": IDS, "tail_bound": np.full(2, 9.0), "rng": 0},
        "log_partition": {"h": H, "num_tail": 3, "head": IDS, "rng": 0},
    },
    "Embeddings": {"take": {"num_examples": 1, "rng": 0}},
    "SampledSoftmaxClassifier": {
        "fit": {"X": X, "y": FOUR, "sample_weight": np.ones(4), "eval_set": (X, FOUR)},
        "partial_fit": {"X": X, "y": FOUR, "classes": None, "sample_weight": np.ones(4)},
        "predict": {"X": X},
        "predict_proba": {"X": X},
        "predict_topk": {"X": X, "k": 1, "exclude": sparse.csr_array(np.eye(4))},
        "embed": {"X": X},
        "decision_function": {"X": X},
        "score": {"X": X, "y": FOUR, "sample_weight": np.ones(4)},
    },
}
RESULTS: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
    "ExactBias": (samplesoft.exact_bias(**_bias), {"gradient_bias": {"jacobian": W}}),
    "FiniteSampleBounds": (
        samplesoft.finite_sample_bounds(**_bias),
        {"gradient": {"jacobian": W}},
    ),
}


def make(name: str) -> Call:
    """Return what a name of `names` calls, and valid arguments."""
    owner, _, method = name.partition(".")
    if not method:
        return deepcopy(MADE[name])
    if owner in RESULTS:
        thing, methods = deepcopy(RESULTS[owner])
    else:
        made, given = deepcopy(MADE[owner])
        thing = made(**given)
        methods = methods_of(thing)
    return getattr(thing, method), methods[method]


def names() -> Iterator[str]:
    """Yield a name for each constructor and function, and for each method with arguments."""
    for name, (made, given) in MADE.items():
        yield name
        if inspect.isclass(made) or made is _fitted:
            yield from (f"{name}.{method}" for method in methods_of(made(**deepcopy(given))))
    for name, (_, methods) in RESULTS.items():
        yield from (f"{name}.{method}" for method in methods)


def methods_of(thing: Any) -> dict[str, dict[str, Any]]:
    """Return new arguments of each method that has some, for an object."""
    kinds = [kind.__name__ for kind in type(thing).__mro__]
    known = next((METHODS[kind] for kind in kinds if kind in METHODS), {})
    there = [name for name in known if callable(getattr(thing, name, None))]
    methods = deepcopy({name: known[name] for name in there})
    if "load_state" in methods and hasattr(thing, "state") and "steps" not in thing.state():
        methods["load_state"]["state"] = thing.state()
    if isinstance(thing, losses.SampledLoss):
        methods["forward"] |= {"draw": _draw(thing)}
        if not thing.needs_label_count:
            methods["forward"]["label_log_count"] = None
    if isinstance(thing, losses.DoubleSumLoss | losses.MovingAverageLoss | losses.SafeKLLoss):
        methods["forward"]["log_sums"] = np.ones(2)
    if isinstance(thing, losses.InBatchLoss):  # it follows from the proposal
        methods["forward"]["label_log_count"] = None
    return methods


def _draw(loss: losses.SampledLoss) -> samplers.Draw:
    """Return three draws, or as many as the loss makes of them."""
    exclude, sampler = LABELS if loss.excludes_label else None, samplers.UniformSampler(N)
    batch = loss.check_batch(H, W, LABELS, None)

    def sample(num: int, rng: Any) -> samplers.Draw:
        return sampler.sample(H, num, exclude=exclude, rng=rng)

    return loss.draw(sample, 3, batch.targets, N, 0)


def missing() -> set[str]:
    """Return the public callables without an example."""
    modules = [import_module(".".join(filter(None, ("samplesoft", p)))) for p in PACKAGES]
    public = {
        name
        for module in modules
        for name in module.__all__
        if inspect.isroutine(getattr(module, name)) or inspect.isclass(getattr(module, name))
    }
    return public - set(MADE) - set(" ".join(NOT_CALLED.values()).split())
