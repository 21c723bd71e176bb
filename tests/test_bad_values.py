"""Values that NumPy would take: each is refused in words that name the argument."""

import re

import numpy as np
import pytest
from scipy import sparse

import samplesoft
from samplesoft.data import (
    Embeddings,
    examples_from_corpus,
    ppmi_svd,
)
from samplesoft.feature_maps import (
    PositiveRandomFeatures,
    RandomFourierFeatures,
    RandomMaclaurinFeatures,
    make_feature_map,
)
from samplesoft.losses import FullSoftmaxLoss, SparseRows, make_loss
from samplesoft.metrics import evaluate, ranking_scores, top_k_classes
from samplesoft.models import (
    Linear,
    LinearSoftmax,
    LinearSoftmaxSettings,
    SoftmaxLayer,
)
from samplesoft.optimizers import OPTIMIZERS, make_optimizer
from samplesoft.samplers import (
    Draw,
    LearnedUnigramSampler,
    LogUniformSampler,
    MixtureSampler,
    SamplerInputs,
    SoftmaxSampler,
    StreamingUnigramSampler,
    TwoPassSampler,
    UniformSampler,
    UnigramSampler,
    dense_proposals,
    make_sampler,
)
from samplesoft.samplers.tree.kernel_tree import KernelTree
from samplesoft.schemes import Scheme
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import (
    RetrievalSettings,
    RetrievalTask,
)

H, W, LOGITS, Q = np.ones((2, 3)), np.eye(4, 3), np.arange(4.0), np.full(4, 0.25)
DRAW = Draw(np.ones((2, 2), np.int64), np.full((2, 2), -1.0))


def masked(values):
    values = np.asarray(values)
    mask = np.zeros(values.shape, bool)
    mask.flat[0] = True
    return np.ma.masked_array(values, mask)


def sampled(h=H, rows=W, labels=(0, 0), draw=DRAW, **options):
    return make_loss("sampled").forward(h, rows, labels, draw, **options)


def stepped(gradient):
    make_optimizer("sgd", 0.1).step({"x": np.zeros((2, 2))}, {"x": gradient})


MASKED = {
    "logits": lambda: samplesoft.exact_bias(masked(LOGITS), 0, Q, 3),
    "q": lambda: samplesoft.exact_bias(LOGITS, 0, masked(Q), 3),
    "labels": lambda: samplesoft.exact_bias(LOGITS[None], masked([1]), Q, 3),
    "class_embeddings": lambda: SoftmaxSampler(masked(W)),
    "h": lambda: sampled(h=masked(H)),
    "h, float32": lambda: top_k_classes(masked(H.astype("f4")), W.astype("f4"), 2),
    "h, which is not read": lambda: UniformSampler(4).sample(masked(H), 2),
    "class_embeddings ": lambda: sampled(rows=masked(W)),
    "labels ": lambda: evaluate(H, W, masked([0, 1])),
    "biases": lambda: sampled(biases=masked(LOGITS)),
    "draw.ids": lambda: sampled(draw=Draw(masked(DRAW.ids), DRAW.log_q)),
    "draw.log_q": lambda: sampled(draw=Draw(DRAW.ids, masked(DRAW.log_q))),
    "ids": lambda: ranking_scores(masked([[0, 1]]), sparse.csr_array([[1, 0, 0, 1]]), 2),
    "exclude": lambda: UniformSampler(4).sample(None, 2, exclude=masked([0])),
    "x": lambda: Linear(3, 2, dtype=np.float64).forward(masked(H)),
    "gradients": lambda: stepped(masked(np.ones((2, 2)))),
    "gradients ": lambda: stepped(SparseRows(masked([0]), np.ones((1, 2)))),
}


@pytest.mark.parametrize("argument", MASKED)
def test_a_masked_array_is_refused(argument):
    name = argument.split(",")[0].strip()
    with pytest.raises(TypeError, match=rf"`{name}.*masked.*numpy\.ma\.filled"):
        MASKED[argument]()


DRAWS = {
    "lists": Draw([[1, 2], [1, 2]], [[-1.0, -1.0], [-1.0, -1.0]]),
    "objects": Draw(DRAW.ids, DRAW.log_q.astype(object)),
    "floats": Draw(DRAW.ids.astype(float), DRAW.log_q),
    "inclusion": Draw(DRAW.ids, DRAW.log_q, DRAW.log_q.astype(object)),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_draw_of_something_else_is_refused(kind):
    with pytest.raises(TypeError, match=r"`draw\.\w+` must be an array of"):
        sampled(draw=DRAWS[kind])


@pytest.mark.parametrize("kind", [np.uint64, np.int32, np.uint8])
def test_a_draw_of_any_integers_is_taken(kind):
    value, _ = sampled(draw=Draw(DRAW.ids.astype(kind), DRAW.log_q.astype(np.float32)))
    assert value == sampled()[0]


H32, W32, WEIGHTS = H.astype("f4"), W.astype("f4"), [1e308, 1e308]
BEYOND = {
    "tau": lambda: FullSoftmaxLoss(tau=10**400),
    "tau of float32": lambda: FullSoftmaxLoss(tau=1e39).forward(H32, W32, [0, 1]),
    "tau of best classes": lambda: top_k_classes(H32, W32, 2, tau=1e39),
    "tau of draws": lambda: SoftmaxSampler(W32, tau=1e39).probs(H32),
    "tau of a report": lambda: samplesoft.verify(LOGITS, 0, {"q": Q}, 2, tau=1e200, num_trials=2),
    "class_embeddings": lambda: samplesoft.verify(
        LOGITS, 0, {"q": Q}, 2, h=H[0], class_embeddings=1.7e308 * W, tau=2.0, num_trials=2
    ),
    "class_embeddings of moments": lambda: samplesoft.exact_gradient_moments(
        LOGITS, 0, Q, 2, 1e308 * W
    ),
    "class_embeddings that are tiny": lambda: samplesoft.exact_gradient_moments(
        LOGITS, 0, Q, 2, 1e-320 * W
    ),
    "biases": lambda: FullSoftmaxLoss().forward(H32, W32, [0, 1], biases=np.full(4, 1e39)),
    "weights": lambda: make_loss("full", reduction="sum").forward(H, W, [0, 1], weights=WEIGHTS),
    "weights in float32": lambda: make_loss("full", reduction="none").forward(
        H32, W32, [0, 1], weights=[1e30, 1.0]
    ),
    "h": lambda: FullSoftmaxLoss(tau=1e10).forward(1e300 * H, W, [0, 1]),
    "power": lambda: LearnedUnigramSampler(3, power=1e5, initial=[1.0, 2.0, 3.9]),
    "x": lambda: Linear(300, 2, dtype=np.float64, rng=0).forward(np.full(300, 1e308)),
    "learning_rate of a first step": lambda: make_optimizer("adam", 1e38).step(
        {"x": np.ones(2, np.float32)}, {"x": np.ones(2, np.float32)}
    ),
    "X": lambda: RandomMaclaurinFeatures(3, 64, tau=1.7e308, rng=0)(np.eye(3)),
    "Y": lambda: RandomMaclaurinFeatures(2, 8).kernel([[1e200, -1e200]], [[1e200, 1e200]]),
    "tau ": lambda: samplesoft.exact_gradient_moments(
        [0.0, 1.0], 0, [0.5, 0.5], 1, W[:2], tau=1e200
    ),
    "tau  ": lambda: make_sampler("quadratic", SamplerInputs(W, tau=1e200)),
    "learning_rate": lambda: make_optimizer("sgd", 10**400),
    "learning_rate ": lambda: make_optimizer("sgd", -(10**400)),
    "num_sampled": lambda: UniformSampler(4).sample(None, 10**400),
    "num_sampled ": lambda: UniformSampler(4).sample(None, 10**5000),
    "nu": lambda: RandomFourierFeatures(3, 4, nu=np.longdouble("1e400")),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("argument", BEYOND)
def test_a_number_beyond_float64_is_refused(argument):
    with pytest.raises(ValueError, match=f"`{argument.split()[0]}`"):
        BEYOND[argument]()


def test_numbers_near_the_least_are_taken():
    assert np.isfinite(RandomFourierFeatures(3, 4, nu=1e-310)(np.eye(3))).all()


STATES = {
    "sampler": lambda: UniformSampler(4),
    "learned": lambda: LearnedUnigramSampler(4),
    "streaming": lambda: StreamingUnigramSampler(4),
    "mixture": lambda: MixtureSampler(UniformSampler(4), UniformSampler(4)),
    "optimizer": lambda: make_optimizer("adam", 0.1),
    "layer": lambda: SoftmaxLayer(W.copy(), FullSoftmaxLoss()),
    "sampled layer": lambda: SoftmaxLayer(W.copy(), make_loss("sampled"), UniformSampler(4), 2),
    "model": lambda: LinearSoftmax(3, 4, FULL),
}
FULL = LinearSoftmaxSettings(loss="full", sampler=None, num_sampled=None)


@pytest.mark.parametrize("state", [b"x", [1], "x", 3, None, {1: W}], ids=repr)
@pytest.mark.parametrize("kind", STATES)
def test_a_state_of_something_else_is_refused(kind, state):
    with pytest.raises(TypeError, match="`state` must be a mapping from names"):
        STATES[kind]().load_state(state)


@pytest.mark.parametrize("kind", STATES)
def test_a_foreign_state_is_refused(kind):
    with pytest.raises((TypeError, ValueError), match="`state` must"):
        STATES[kind]().load_state({"sampler.x": W, "steps": "x"})


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_bound_for_a_jacobian_near_the_largest_number_holds(batch):
    """Of this bias the sum of the sizes is nearly 2, and no sum over the classes may overflow."""
    logits, q = np.array([5.0, 0.0, 0.0, 20.0]), np.array([0.2, 0.4, 0.4 - 1e-9, 1e-9])
    logits, labels = np.broadcast_to(logits, (*batch, 4)), np.zeros(batch, int)
    jacobian = np.array([[1.7e308, 0.8e308], [0.0, 0.0], [0.0, 0.0], [-1.7e308, -0.8e308]])
    exact = samplesoft.exact_bias(logits, labels, q, 1).gradient_bias(jacobian)
    assert (exact[..., 0] == np.inf).all() and np.isfinite(exact[..., 1]).all()
    lower, upper = samplesoft.finite_sample_bounds(logits, labels, q, 1).gradient(jacobian)
    assert np.isfinite(lower).all() and (lower <= exact).all() and (exact <= upper).all()
    printed = samplesoft.bias.theorems.theorem1_bounds(logits, labels, q, 1, jacobian)
    assert not np.isnan([printed.lower, printed.upper, printed.g]).any()
    true = samplesoft.bias.theorems.theorem1_corrected(logits, labels, q, 1, jacobian)
    assert (true.lower <= exact).all() and (exact <= true.upper).all()


def test_the_error_of_a_loss_of_huge_logits_is_a_number():
    logits = np.array([1e308, -1e308, 0.0, 1.0])
    result = samplesoft.monte_carlo_bias(logits, 1, Q, 3, num_trials=20, rng=0)
    assert not np.isnan([result.loss_bias, result.loss_stderr]).any()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("rows", [False, True])
def test_an_optimizer_refuses_parameters_that_are_not_finite(name, bad, rows):
    optimizer, parameters = make_optimizer(name, 0.1), {"x": np.array([[1.0], [bad]])}
    gradient = SparseRows(np.array([1]), np.ones((1, 1))) if rows else np.ones((2, 1))
    with pytest.raises(ValueError, match="`parameters` must be finite, .*'x'"):
        optimizer.step(parameters, {"x": gradient})
    assert optimizer.steps == 0 and parameters["x"][0, 0] == 1.0
    untouched = SparseRows(np.array([0]), np.ones((1, 1)))
    optimizer.step(parameters, {"x": untouched})  # costs what it changes, and looks no further


SETTINGS = LinearSoftmaxSettings(sampler="uniform", num_sampled=2, embedding_dim=2)
TEXT = ["a", "b", "a", "c"] * 4
EYE = sparse.csr_array(np.eye(4))
SMALL = RetrievalSettings(sampler="uniform", num_sampled=2, embedding_dim=2, validation=0.25)


def retrieval(inputs=EYE, labels=EYE, settings=SMALL, **options):
    return RetrievalTask(inputs, labels, settings, **options)


def float16(matrix):
    matrix = matrix.copy()
    matrix.data = matrix.data.astype(np.float16)  # scipy makes no such matrix, and lets this pass
    return matrix


KINDS = {
    "normalize": lambda: FullSoftmaxLoss(normalize=np.zeros(2)),
    "absolute": lambda: evaluate(H, W, [0, 1], absolute="no"),
    "shared": lambda: UniformSampler(4).sample(H, 2, shared=np.zeros(0)),
    "jackknife": lambda: Scheme("toy", "S", "plain", "masked", jackknife=np.zeros(2)),
    "formula": lambda: Scheme("toy", np.nan, "plain", "masked"),
    "settings": lambda: LinearSoftmax(3, 4, None),
    "settings of a report": lambda: samplesoft.verify(LOGITS, 0, {"q": Q}, 2, settings=3),
    "wrt": lambda: samplesoft.verify(LOGITS, 0, {"q": Q}, 2, wrt=1e15),
    "inputs": lambda: make_sampler("uniform", None),
    "names": lambda: dense_proposals(3, SamplerInputs(W)),
    "rng": lambda: SamplerInputs(W, rng=np.nan),
    "state": lambda: UniformSampler(4).load_state(b"x"),
    "state of an optimizer": lambda: make_optimizer("sgd", 0.1).load_state(np.ones(3)),
    "state with numbers": lambda: LearnedUnigramSampler(3).load_state({1: 2}),
    "parameters": lambda: make_optimizer("sgd", 0.1).step(3, {}),
    "dtype": lambda: Linear(3, 2, dtype=1e308),
    "sharpness": lambda: make_feature_map("rff", 3, 4, "1"),
    "labels": lambda: ranking_scores([[0, 1]], {"a": 1}, 1),
    "leave_out": lambda: LinearSoftmax(3, 4, SETTINGS).top_k(H, 2, leave_out=3),
    "k": lambda: LinearSoftmax(3, 4, SETTINGS).top_k(H, np.inf),
    "label_log_count": lambda: make_loss("nce").forward(
        H, W, [0, 1], DRAW, label_log_count=["a", "b"]
    ),
    "progress": lambda: KernelTree(W, progress=EYE),
    "progress of sums made again": lambda: KernelTree(W).rebuild(progress=np.zeros(2)),
    "settings of a retrieval": lambda: retrieval(settings=SETTINGS),
    "inputs of a retrieval": lambda: retrieval(inputs=np.eye(4)),
    "inputs of float16": lambda: retrieval(inputs=float16(EYE)),
    "num_features that are a time": lambda: RandomMaclaurinFeatures(3, np.timedelta64(3, "s")),
    "tau that is a time": lambda: FullSoftmaxLoss(tau=np.timedelta64(3, "s")),
    "labels of a retrieval": lambda: retrieval(labels=1j * EYE),
    "leave_out of a retrieval": lambda: retrieval(leave_out=np.zeros(2)),
    "inputs of an evaluation": lambda: retrieval().evaluate(H, EYE),
    "tokens that are a number": lambda: examples_from_corpus(np.nan),
    "tokens that are one string": lambda: examples_from_corpus("a b"),
    "tokens that are lists": lambda: examples_from_corpus([["a"], ["b"]]),
    "vocabulary_size": lambda: examples_from_corpus(TEXT, vocabulary_size=2.0),
    "num_examples": lambda: examples_from_corpus(TEXT, num_examples="1"),
}


@pytest.mark.parametrize("argument", KINDS)
def test_a_value_of_another_kind_is_refused(argument):
    with pytest.raises(TypeError, match=f"`{argument.split()[0]}`"):
        KINDS[argument]()


RAGGED = [[1.0, 2.0], [3.0]]
LISTS = {
    "labels": lambda: samplesoft.exact_bias(np.ones((2, 4)), RAGGED, Q, 2),
    "exclude": lambda: UniformSampler(4).sample(H, 2, exclude=RAGGED),
    "class_embeddings of no classes": lambda: UniformSampler(4).update([], RAGGED),
    "labels of vectors": lambda: Embeddings(H, W, RAGGED),
    "ids of a text": lambda: ppmi_svd(RAGGED, 4, 3),
    "exclude of a set": lambda: UniformSampler(4).inclusion_probs(2, exclude=RAGGED),
    "h": lambda: UniformSampler(4).sample(RAGGED, 2),
    "ids": lambda: UniformSampler(4).log_prob(None, RAGGED),
    "k": lambda: evaluate(H, W, [0, 1], k=RAGGED),
    "initial": lambda: LearnedUnigramSampler(2, initial=RAGGED),
    "gradients['x']": lambda: stepped(SparseRows(RAGGED, np.ones((1, 2)))),
    "x": lambda: Linear(4, 3).forward(RAGGED),
}


@pytest.mark.parametrize("argument", LISTS)
def test_lists_of_different_lengths_are_refused(argument):
    with pytest.raises(
        ValueError, match=rf"`{re.escape(argument.split()[0])}` must be a rectangular array"
    ):
        LISTS[argument]()


HUGE = 10**15
SIZES = {
    "num_sampled": lambda: UniformSampler(4).sample(None, HUGE),
    "h": lambda: UniformSampler(HUGE).probs(None),
    "num_candidates": lambda: TwoPassSampler(UniformSampler(4), W, num_candidates=HUGE),
    "num_classes of counts": lambda: LearnedUnigramSampler(HUGE),
    "num_classes": lambda: LogUniformSampler(HUGE),
    "num_classes of a model": lambda: LinearSoftmax(3, HUGE, SETTINGS),
    "num_features": lambda: PositiveRandomFeatures(3, HUGE),
    "num_inputs": lambda: Linear(HUGE, 3),
    "num_classes of a text": lambda: ppmi_svd([0, 1, 0], HUGE, 3),
}


@pytest.mark.parametrize("argument", SIZES)
def test_what_does_not_fit_is_refused_before_it_is_made(argument):
    with pytest.raises(MemoryError, match=f"`{argument.split()[0]}` (=|must leave room)"):
        SIZES[argument]()


def misplaced(matrix, place):
    matrix.indptr[-1] = place  # scipy's own check does not look at the others where this is 0
    return matrix


@pytest.mark.parametrize("place", [0, 99])
def test_a_matrix_whose_rows_lie_nowhere_is_refused(place):
    """Following them kills Python."""
    x, y = sparse.csr_array(np.eye(4)), sparse.csr_array(np.eye(4, dtype=int))
    classifier = SampledSoftmaxClassifier(2, num_sampled=2, num_features=4, max_iter=1).fit(x, y)
    model, broken = classifier.model_, misplaced(x.copy(), place)
    for call in (
        lambda: classifier.predict(broken),
        lambda: classifier.fit(broken, y),
        lambda: classifier.fit(x, misplaced(y.copy(), place)),
        lambda: model.step(broken, np.arange(4)),
        lambda: model.top_k(broken, 2),
        lambda: evaluate(np.ones((4, 3)), W, broken),
        lambda: ranking_scores(np.zeros((4, 1), int), broken, 1),
        lambda: retrieval(inputs=broken),
        lambda: retrieval(labels=broken),
        lambda: retrieval().evaluate(x, broken),
    ):
        with pytest.raises(ValueError, match="must be a well-formed CSR matrix"):
            call()


EXAMPLES = {
    "inputs must be finite": lambda: retrieval(inputs=np.nan * EYE),
    "labels must be finite": lambda: retrieval(labels=np.inf * EYE),
    "labels must hold weights of at least 0": lambda: retrieval(labels=-EYE),
    "labels must have a row for each of the 4 inputs": lambda: retrieval(labels=EYE[:3]),
    "labels must hold labels of some examples": lambda: retrieval().evaluate(EYE, 0 * EYE),
    "labels must be the items of `inputs`": lambda: retrieval(
        labels=sparse.csr_array(np.eye(4)[::-1]), leave_out=True
    ),
    "vocabulary_size must be at least 2": lambda: examples_from_corpus(TEXT, vocabulary_size=1),
}


@pytest.mark.parametrize("told", EXAMPLES)
def test_examples_that_do_not_fit_together_are_refused(told):
    name, _, rest = told.partition(" ")
    with pytest.raises(ValueError, match=re.escape(f"`{name}` {rest}")):
        EXAMPLES[told]()


def test_labels_that_are_zero_are_none():
    labels = EYE.copy()
    labels.data[1] = 0.0
    task = retrieval(labels=labels, settings=RetrievalSettings(num_features=4, validation=0.0))
    assert task.num_unlabeled == 1 and labels.nnz == 4
    assert np.isfinite(task.step(0, 0)[0])


@pytest.mark.parametrize("kind", [np.longdouble, np.float64])
def test_a_score_depends_on_ratios_of_weights_alone(kind):
    x, y = np.eye(4), [0, 1, 0, 1]
    classifier = SampledSoftmaxClassifier(2, loss="full", max_iter=1).fit(x, y)
    assert classifier.score(x, y, np.full(4, kind(1e308))) == classifier.score(x, y)


def test_weights_may_be_so_unequal_that_some_are_never_drawn():
    assert UnigramSampler([1.0, 100.0], power=1.7e308).probs(None).tolist() == [[0.0, 1.0]]
