"""Values that NumPy would take: each is refused in words that name the argument."""

import numpy as np
import pytest
from scipy import sparse

import samplesoft
from samplesoft.data import Vocabulary
from samplesoft.data.corpus import Corpus
from samplesoft.feature_maps import RandomFourierFeatures, RandomMaclaurinFeatures
from samplesoft.losses import FullSoftmaxLoss, SparseRows, make_loss
from samplesoft.metrics import evaluate, ranking_scores, top_k_classes
from samplesoft.models import Embedding, SoftmaxLayer, make_optimizer
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.samplers import (
    Draw,
    LearnedUnigramSampler,
    MixtureSampler,
    SamplerInputs,
    SoftmaxSampler,
    UniformSampler,
    make_sampler,
)
from samplesoft.training import LanguageModelSettings, LanguageModelTask

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
    "x": lambda: Embedding(4, 3).forward(masked([0, 1])),
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


BEYOND = {
    "tau": lambda: FullSoftmaxLoss(tau=10**400),
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
    with pytest.raises(ValueError, match=f"`{argument.strip()}`"):
        BEYOND[argument]()


def test_numbers_near_the_least_are_taken():
    assert np.isfinite(RandomFourierFeatures(3, 4, nu=1e-310)(np.eye(3))).all()


def test_a_variance_beyond_float64_is_infinite():
    phi = RandomMaclaurinFeatures(3, 16, rng=0)
    rows = np.full((2, 3), 1e4)
    assert (phi.variance(rows, rows) == np.inf).all()


STATES = {
    "sampler": lambda: UniformSampler(4),
    "learned": lambda: LearnedUnigramSampler(4),
    "mixture": lambda: MixtureSampler(UniformSampler(4), UniformSampler(4)),
    "optimizer": lambda: make_optimizer("adam", 0.1),
    "layer": lambda: SoftmaxLayer(W.copy(), FullSoftmaxLoss()),
    "sampled layer": lambda: SoftmaxLayer(W.copy(), make_loss("sampled"), UniformSampler(4), 2),
    "model": lambda: LinearSoftmax(3, 4, FULL),
    "language model": lambda: language_model(),
}
FULL = LinearSoftmaxSettings(loss="full", sampler=None, num_sampled=None)


def language_model():
    ids = np.arange(100) % 4
    corpus = Corpus(Vocabulary(tuple("abcd"), np.bincount(ids)), ids, ids, ids)
    return LanguageModelTask(
        corpus, LanguageModelSettings(sampler="learned-unigram", batch_size=2, num_steps=4)
    )


@pytest.mark.parametrize("state", [b"x", [1], "x", 3, None, {1: W}], ids=repr)
@pytest.mark.parametrize("kind", STATES)
def test_a_state_of_something_else_is_refused(kind, state):
    with pytest.raises(TypeError, match="`state` must map names to arrays, got"):
        STATES[kind]().load_state(state)


@pytest.mark.parametrize("kind", STATES)
def test_a_foreign_state_is_refused(kind):
    with pytest.raises((TypeError, ValueError), match=r"`(state|hidden)` must"):
        STATES[kind]().load_state({"sampler.x": W, "steps": "x"})


def test_a_state_with_a_part_of_a_wrong_shape_is_refused():
    task = language_model()
    state = task.state()
    for name, value in (("cells", W), ("hidden", np.full_like(state["hidden"], np.nan))):
        with pytest.raises((TypeError, ValueError), match=f"`{name}` must"):
            task.load_state(state | {name: value})
    del state["sampler.counts"]
    with pytest.raises(ValueError, match="`state` must hold counts, got nothing"):
        task.load_state(state)
