"""Objects that joblib has mapped from a file for reading: they go on as the originals would."""

import copy
import gc

import numpy as np
import pytest
from same_bits import require_same
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
import joblib

from samplesoft.feature_maps import FEATURE_MAPS, make_feature_map
from samplesoft.losses import LOSSES, make_loss, two_level_tree
from samplesoft.losses.base import SparseRows
from samplesoft.models import (
    AdaptiveSoftmax,
    HierarchicalSoftmax,
    Linear,
    LinearSoftmax,
    LinearSoftmaxSettings,
    SoftmaxLayer,
    SphericalSoftmax,
)
from samplesoft.optimizers import OPTIMIZERS, make_optimizer
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.samplers import (
    SAMPLERS,
    BigramSampler,
    KernelTree,
    SamplerInputs,
    WeightedSampler,
    make_certain_sampler,
    make_sampler,
)
from samplesoft.sklearn import SampledSoftmaxClassifier

N, D, B, M = 30, 4, 6, 8
RNG = np.random.default_rng(0)


def unit(*shape):
    rows = RNG.normal(size=shape)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


ROWS, H, MOVED = unit(N, D), unit(B, D), unit(2, 3, D)
LABELS = RNG.integers(0, N, B)
X = (np.eye(6)[np.arange(60) % 6] + 0.1 * RNG.normal(size=(60, 6))).astype(np.float32)
SPARSE, Y = sparse.csr_array(X * (X > 0.0)), np.arange(60) % 6
TAKEN = sparse.csr_array((RNG.random((40, 30)) < 0.3).astype(np.float32))


@pytest.fixture
def mapped(tmp_path):
    """Return a function that makes an object whose arrays are in a file, and can be read only."""

    def through_a_file(thing):
        joblib.dump(thing, tmp_path / "thing.joblib")
        return joblib.load(tmp_path / "thing.joblib", mmap_mode="r")

    yield through_a_file
    gc.collect()  # an open map keeps its file on Windows


def require_alike(act, thing, mapped):
    """Act on an object and on its twin in a file, which the acts must not change."""
    twin = mapped(copy.deepcopy(thing))
    require_same(act(thing), act(twin))


def inputs(**options):
    given = {"counts": np.arange(1, N + 1), "tau": 3.0, "num_features": 64, "rng": 0}
    return SamplerInputs(ROWS, **given | options)


def drawn(sampler, h=H, **options):
    found = sampler.sample(h, M, **options)
    return [found.ids, found.log_q]


def draws(sampler):
    found = []
    for k in range(2):
        found += drawn(sampler, rng=3)
        sampler.observe(LABELS)
        if sampler.dim is not None:
            sampler.update(np.array([1, 5, 7]), MOVED[k])
        sampler.refresh(4)
        found.append(sampler.log_prob(H, np.arange(N)[None]))
        sampler.load_state(sampler.state())
        found += drawn(sampler, exclude=LABELS, rng=5)
    return found


@pytest.mark.thorough(but=9)
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name, mapped):
    require_alike(draws, make_sampler(name, inputs()), mapped)


@pytest.mark.parametrize("name", ["unigram", "streaming-unigram", "clusters"])
def test_samplers_with_certain_classes(name, mapped):
    def act(sampler):
        found = drawn(sampler, rng=3)
        sampler.observe(LABELS)
        return [*found, *drawn(sampler, rng=4)]

    require_alike(act, make_certain_sampler(name, inputs(), 4), mapped)


def test_trees_and_weights(mapped):
    def act(tree):
        tree.update(np.array([1, 5]), np.abs(MOVED[0, :2]))
        return drawn(tree, np.abs(H), rng=0)

    require_alike(act, KernelTree(np.abs(ROWS)), mapped)
    require_alike(lambda sampler: drawn(sampler, rng=0), WeightedSampler(np.arange(1, N)), mapped)


def steps(layer, optimizer="adam"):
    found, step = [], make_optimizer(optimizer, 0.1)
    for k in range(3):
        value, cache = layer.forward(H, LABELS, **({} if k else {"weights": np.arange(1.0, B + 1)}))
        dh, gradients = layer.backward(cache)
        step.step(layer.parameters, gradients)
        if hasattr(layer, "update"):
            layer.update()
        found += [value, dh]
    return [*found, layer.parameters, step.state()]


@pytest.mark.thorough(but=9)
@pytest.mark.parametrize("name", [name for name in LOSSES if not LOSSES[name].on_tree])
def test_layers(name, mapped, monkeypatch):
    sampler = make_sampler("learned-unigram", inputs()) if LOSSES[name].draws else None
    layer = SoftmaxLayer(
        ROWS, make_loss(name), sampler, M if sampler else None, biases=np.linspace(0.0, 1.0, N)
    )
    forward = SoftmaxLayer.forward
    monkeypatch.setattr(SoftmaxLayer, "forward", lambda *a, **o: forward(*a, **o, rng=7))
    require_alike(steps, layer, mapped)


@pytest.mark.parametrize("name", ["rff", "clusters", "softmax", "lsh", "two-pass"])
def test_layers_whose_sampler_follows(name, mapped, monkeypatch):
    loss = make_loss("sampled-masked", tau=3.0, normalize=True)
    forward = SoftmaxLayer.forward
    monkeypatch.setattr(SoftmaxLayer, "forward", lambda *a, **o: forward(*a, **o, rng=7))
    require_alike(steps, SoftmaxLayer(ROWS, loss, make_sampler(name, inputs()), M), mapped)


def test_other_layers(mapped):
    tree = two_level_tree(np.arange(1, N + 1))
    nodes = RNG.normal(size=(tree.num_nodes, D))
    require_alike(steps, HierarchicalSoftmax(nodes, tree), mapped)
    counts = np.arange(N, 0, -1)
    require_alike(steps, AdaptiveSoftmax(D, counts, [10, 20], dtype=np.float64, rng=0), mapped)

    def act(layer):
        found = []
        for _ in range(2):
            value, cache = layer.forward(H, LABELS)
            dh, gradient = layer.backward(cache)
            layer.step(gradient, 0.1)
            found += [value, dh, layer.log_probs(H)]
        return found

    require_alike(act, SphericalSoftmax(N, D, rng=0), mapped)


@pytest.mark.parametrize("x", [X, SPARSE], ids=["dense", "sparse"])
def test_linear_layers(x, mapped):
    def act(layer):
        y, cache = layer.forward(x)
        make_optimizer("sgd", 0.1).step(layer.parameters, layer.backward(cache, y)[1])
        return layer.parameters

    require_alike(act, Linear(6, 3, rng=0), mapped)


@pytest.mark.parametrize("dim", [4, None])
def test_linear_softmax(dim, mapped):
    options = {"sampler": "unigram", "num_sampled": 3, "embedding_dim": dim}
    model = LinearSoftmax(6, 6, LinearSoftmaxSettings(**options), counts=np.ones(6), rng=0)

    def act(model):
        step, found = make_optimizer("adagrad", 0.1), []
        for k in range(3):
            loss, gradients = model.step(SPARSE, Y, rng=k)
            step.step(model.parameters, gradients)
            model.after_step(gradients)
            found.append(loss)
        return [found, model.parameters, model.state()]

    require_alike(act, model, mapped)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, mapped):
    optimizer, parameters = make_optimizer(name, 0.1), {"w": np.ones((5, 3)), "b": np.ones(4)}
    optimizer.step(parameters, {"w": np.full((5, 3), 0.3), "b": np.ones(4)})

    def act(optimizer):
        given = {"w": np.ones((5, 3)), "b": np.ones(4)}
        for _ in range(2):
            of_rows = SparseRows(np.array([1, 3]), np.ones((2, 3)))
            optimizer.step(given, {"w": of_rows, "b": np.full(4, 0.1)})
        return [given, optimizer.state()]

    require_alike(act, optimizer, mapped)


def test_parameters_that_an_optimizer_cannot_change(mapped):
    parameters = mapped({"w": np.ones(3)})
    with pytest.raises(ValueError, match="must be C-contiguous and writable"):
        make_optimizer("sgd", 0.1).step(parameters, {"w": np.ones(3)})


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_feature_maps(name, mapped):
    feature_map = make_feature_map(name, D, num_features=16, rng=0)
    require_alike(lambda phi: [phi(H), phi(ROWS)], feature_map, mapped)


CLASSIFIERS = {
    "sparse": {},
    "dense": {"dense": True},
    "adam": {"optimizer": "adam"},
    "momentum": {"optimizer": "momentum"},
    "no embedding": {"embedding_dim": None},
    "no embedding, full": {"embedding_dim": None, "loss": "full"},
    "full": {"loss": "full"},
    "logistic": {"loss": "full-logistic"},
    "tree": {"loss": "hierarchical"},
    "clusters": {"sampler": "clusters"},
    "rff": {"sampler": "rff"},
    "streaming": {"sampler": "streaming-unigram"},
    "lsh": {"sampler": "lsh"},
    "early stopping": {"early_stopping": True},
    "no average": {"average": False},
}


def went_on(classifier, x):
    found = [classifier.predict(x), classifier.predict_proba(x), classifier.predict_topk(x, 2)]
    classifier.partial_fit(x[:20], Y[:20])
    found.append(dict(classifier.model_.parameters))
    classifier.partial_fit(x[20:], Y[20:])
    classifier.set_params(warm_start=True).fit(x, Y)
    optimizer = classifier._learner.optimizer.state()
    return [*found, classifier.model_.parameters, optimizer, classifier.predict_proba(x)]


@pytest.mark.thorough(but=5)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name, mapped):
    options = {"embedding_dim": 4, "num_sampled": 3, "max_iter": 2, "random_state": 0}
    options |= {"batch_size": 16, **CLASSIFIERS[name]}
    x = X if options.pop("dense", False) else SPARSE
    require_alike(
        lambda clf: went_on(clf, x), SampledSoftmaxClassifier(**options).fit(x, Y), mapped
    )


def test_a_model_is_copied_when_it_is_trained_and_not_before(mapped):
    clf = mapped(SampledSoftmaxClassifier(4, max_iter=1, random_state=0).fit(SPARSE, Y))
    clf.predict_proba(SPARSE), clf.score(SPARSE, Y), clf.embed(SPARSE)
    assert all(isinstance(array, np.memmap) for array in clf.model_.parameters.values())
    clf.partial_fit(SPARSE, Y)
    before = clf.model_.parameters
    assert all(type(array) is np.ndarray for array in before.values())
    clf.partial_fit(SPARSE, Y)  # once
    assert all(array is before[name] for name, array in clf.model_.parameters.items())


def test_a_warm_start_without_a_partial_fit(mapped):
    clf = SampledSoftmaxClassifier(4, max_iter=2, random_state=0, warm_start=True).fit(SPARSE, Y)
    require_alike(lambda clf: clf.fit(SPARSE, Y).model_.parameters, clf, mapped)


def test_recommenders(mapped):
    def act(model):
        found = [model.recommend([1, 2], TAKEN[[1, 2]]), model.similar_items(3)]
        model.partial_fit_users([3, 44], TAKEN[[5, 6]])
        return [*found, model.user_factors, model.fit(TAKEN).item_factors]

    options = {"num_sampled": 5, "max_iter": 2, "random_state": 0}
    require_alike(act, SampledSoftmaxRecommender(8, **options).fit(TAKEN), mapped)


def test_bigrams(mapped):
    counts = sparse.csr_array(np.kron(np.eye(2), np.ones((3, 3))))
    require_alike(lambda s: drawn(s, np.array([0, 4]), rng=0), BigramSampler(counts), mapped)
