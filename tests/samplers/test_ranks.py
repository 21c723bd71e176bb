"""Zipf's law by the rank of a class: from counts where they are known, whatever its name."""

import pickle
import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array

from samplesoft.models.softmax_settings import SoftmaxSettings
from samplesoft.samplers import (
    SAMPLERS,
    CertainSampler,
    LogUniformSampler,
    MixtureSampler,
    SamplerInputs,
    UniformSampler,
    dense_proposals,
    make_certain_sampler,
    make_sampler,
)
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import RetrievalSettings, RetrievalTask

RISING = np.array([1.0, 2.0, 2.0, 7.0, 50.0])
SHUFFLED = np.array([3.0, 0.0, 20.0, 3.0, 5.0])


def law_of(counts):
    """Return Zipf's law by hand: of equal counts the first class comes first."""
    n = len(counts)
    law = [np.log((k + 2.0) / (k + 1.0)) / np.log(n + 1.0) for k in range(n)]
    ranks = [sorted(range(n), key=lambda j: (-counts[j], j)).index(i) for i in range(n)]
    return np.array([law[rank] for rank in ranks])


@pytest.mark.parametrize("counts", [RISING, SHUFFLED, RISING[::-1], np.ones(6)])
def test_a_sampler_of_counts_draws_by_their_ranks(counts):
    n = len(counts)
    inputs = SamplerInputs(counts=counts)
    for sampler in (LogUniformSampler(n, counts=counts), make_sampler("log-uniform", inputs)):
        np.testing.assert_allclose(sampler.probs(None)[0], law_of(counts), rtol=1e-13)
        draw = sampler.sample(None, 20_000, rng=0)
        np.testing.assert_allclose(np.exp(draw.log_q[0]), law_of(counts)[draw.ids[0]], rtol=1e-13)
        shares = np.bincount(draw.ids[0], minlength=n) / 20_000
        np.testing.assert_allclose(shares, law_of(counts), atol=0.02)
    # with logits and without
    given = SamplerInputs(counts=counts, logits=np.zeros(n))
    for each in (inputs, given):
        found = dense_proposals(["log-uniform"], each)["log-uniform"]
        np.testing.assert_allclose(found, law_of(counts), rtol=1e-13)


def test_classes_that_are_numbered_by_rank_are_drawn_as_before_to_the_bit():
    for counts in (np.arange(40.0)[::-1], np.repeat([9.0, 5.0, 5.0, 0.0], 10), np.ones(40)):
        plain, ranked = LogUniformSampler(40), LogUniformSampler(40, counts=counts)
        np.testing.assert_array_equal(plain.probs(None), ranked.probs(None))
        first, second = (each.sample(None, 100, rng=1) for each in (plain, ranked))
        np.testing.assert_array_equal(first.ids, second.ids)
        np.testing.assert_array_equal(first.log_q, second.log_q)


@pytest.mark.parametrize("replace", [True, False])
def test_other_names_of_classes_rename_what_is_drawn(replace):
    n, rng = 30, np.random.default_rng(0)
    plain, names = LogUniformSampler(n, replace=replace), rng.permutation(n)
    counts = np.empty(n)
    counts[names] = np.arange(n)[::-1]
    renamed = LogUniformSampler(n, counts=counts, replace=replace)
    exclude = rng.integers(n, size=8)
    h, ids = np.zeros((8, 1)), rng.integers(n, size=(8, 5))
    for out in (None, exclude):
        other = None if out is None else names[out]
        first = plain.sample(h, 12, exclude=out, rng=1)
        second = renamed.sample(h, 12, exclude=other, rng=1)
        np.testing.assert_array_equal(names[first.ids], second.ids)
        np.testing.assert_array_equal(first.log_expected_count, second.log_expected_count)
        np.testing.assert_array_equal(first.log_q, second.log_q)
        for name, given in (("log_prob", ()), ("log_expected_count", (4,))):
            wanted = getattr(plain, name)(h, ids, *given, exclude=out)
            found = getattr(renamed, name)(h, names[ids], *given, exclude=other)
            np.testing.assert_array_equal(wanted, found)
        wanted = plain.probs(h, exclude=out)
        np.testing.assert_array_equal(wanted, renamed.probs(h, exclude=other)[:, names])
        wanted = np.atleast_2d(plain.inclusion_probs(4, exclude=out))
        found = np.atleast_2d(renamed.inclusion_probs(4, exclude=other))
        np.testing.assert_allclose(wanted, found[:, names], rtol=1e-12)


def test_the_others_are_ranked_where_some_are_certain():
    sampler = make_certain_sampler("log-uniform", SamplerInputs(counts=SHUFFLED), 1)
    q = sampler.probs(None)[0]
    assert sampler.certain.tolist() == [2] and q[2] == 0.0
    np.testing.assert_allclose(np.delete(q, 2), law_of(np.delete(SHUFFLED, 2)), rtol=1e-13)


def data(names):
    """Return examples of four classes, of which class i occurs 2 * 3**i times."""
    labels = np.repeat(np.arange(4), [2, 6, 18, 54])
    rng = np.random.default_rng(0)
    return rng.normal(size=(80, 5)), np.array(names)[labels]


def sampler_of(model):
    return model.model_.softmax.sampler


@pytest.mark.parametrize("names", ["abcd", "dcba", "bdac"])
@pytest.mark.parametrize("hidden", [{}, {"embedding_dim": None}])
def test_the_classifier_ranks_classes_by_counts(names, hidden, tmp_path):
    X, y = data(list(names))
    counts = np.array([(y == name).sum() for name in sorted(names)])
    options = {"sampler": "log-uniform", "num_sampled": 3, "random_state": 0, **hidden}
    fitted = SampledSoftmaxClassifier(max_iter=1, **options).fit(X, y)
    by_parts = SampledSoftmaxClassifier(**options).partial_fit(X, y, classes=sorted(names))
    copied = pickle.loads(pickle.dumps(fitted))
    fitted.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    for model in (fitted, by_parts, copied, loaded):
        np.testing.assert_allclose(sampler_of(model).probs(None)[0], law_of(counts), rtol=1e-13)
    # what a later batch brings changes no rank
    by_parts.partial_fit(X[:10], np.full(10, min(names)))
    np.testing.assert_allclose(sampler_of(by_parts).probs(None)[0], law_of(counts), rtol=1e-13)


def test_a_run_of_training_ranks_labels_by_counts():
    X, _ = data(list("abcd"))
    labels = np.repeat(np.arange(4), [2, 6, 18, 54])
    Y = csr_array((np.ones(80), (np.arange(80), labels)), (80, 4))
    settings = RetrievalSettings(
        loss="sampled-masked", sampler="log-uniform", num_sampled=3, validation=0.0
    )
    task = RetrievalTask(csr_array(X), Y, settings)
    q = task.model.softmax.sampler.probs(None)[0]
    np.testing.assert_allclose(q, law_of(np.array([2, 6, 18, 54])), rtol=1e-13)


def test_names_of_samplers_say_that_counts_rank():
    assert "counts" in SAMPLERS["log-uniform"].summary


# --- samplers of one's own --------------------------------------------------------------------


def wrapped(kind, n, **options):
    plain = LogUniformSampler(n, **options)
    if kind == "certain":
        return CertainSampler(LogUniformSampler(n - 1, **options), [0])
    return {"plain": plain, "mixture": MixtureSampler(UniformSampler(n), plain)}[kind]


@pytest.mark.parametrize("kind", ["plain", "certain", "mixture"])
@pytest.mark.parametrize("function", [True, False])
def test_ranks_that_counts_contradict_are_told(kind, function):
    counts = 1.1 ** np.arange(50.0)
    rows = np.random.default_rng(0).normal(size=(50, 4))
    sampler = wrapped(kind, 50)
    settings = SoftmaxSettings(sampler=(lambda inputs: sampler) if function else sampler)
    with pytest.warns(UserWarning, match="LogUniformSampler takes the number of a class"):
        settings.make_sampler(rows, counts, 0)


@pytest.mark.parametrize(
    "counts",
    [
        None,
        1.1 ** -np.arange(50.0),
        np.ones(50),
        # few examples of Zipf's law are in no order
        np.random.default_rng(0).poisson(30.0 / np.arange(1.0, 51.0)),
    ],
)
def test_ranks_that_agree_in_the_main_are_not_blamed(counts):
    rows = np.random.default_rng(0).normal(size=(50, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("plain", "certain", "mixture"):
            SoftmaxSettings(sampler=wrapped(kind, 50)).make_sampler(rows, counts, 0)
        if counts is not None and kind == "plain":
            ranked = LogUniformSampler(50, counts=counts[::-1])
            SoftmaxSettings(sampler=ranked).make_sampler(rows, counts[::-1], 0)


def test_counts_are_checked():
    for counts, words in (([1.0, 2.0], "shape"), ([0.0] * 3, "not all 0"), ([-1, 1, 1], "least")):
        with pytest.raises(ValueError, match=f"`counts` must.*{words}"):
            LogUniformSampler(3, counts=counts)
