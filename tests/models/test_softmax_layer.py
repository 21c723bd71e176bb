"""The softmax layer: it draws what the loss needs, and the sampler follows its class vectors."""

import numpy as np
import pytest
from scipy import sparse

from samplesoft.losses import LOSSES, FullSoftmaxLoss, SampledSoftmaxLoss, make_loss
from samplesoft.losses.vectors import unit_rows
from samplesoft.models import LinearSoftmaxSettings, SoftmaxLayer, SoftmaxSettings
from samplesoft.models.feature_layer import FeatureLayer
from samplesoft.samplers import (
    SAMPLERS,
    LearnedUnigramSampler,
    SamplerInputs,
    SoftmaxSampler,
    StreamingUnigramSampler,
    TwoPassSampler,
    UniformSampler,
    make_sampler,
)

N, D, B, M = 30, 4, 6, 8
TAU = 3.0


def unit(rng, *shape):
    rows = rng.normal(size=shape)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def rows(rng):
    return 2.0 * unit(rng, N, D)


def made(name, rows):
    inputs = SamplerInputs(
        unit_rows("rows", rows.copy())[0],
        counts=np.arange(1, N + 1),
        tau=TAU,
        num_features=64,
        rng=0,
    )
    return make_sampler(name, inputs)


def batch(rng):
    return rng.normal(size=(B, D)), rng.integers(0, N, B)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("scheme", ["negatives", "masked", "reject"])
def test_the_layer_gives_what_loss_and_sampler_give_by_hand(name, scheme, rows, rng):
    h, labels = batch(rng)
    sampler, twin = made(name, rows), made(name, rows)
    loss = make_loss("sampled", scheme=scheme, tau=TAU, normalize=True)
    layer = SoftmaxLayer(rows, loss, sampler, M, shared=False)
    value, cache = layer.forward(h, labels, rng=5)
    dh, gradients = layer.backward(cache)

    seen = h / np.linalg.norm(h, axis=1, keepdims=True)
    twin.refresh(5)
    draw = twin.sample(seen, M, exclude=labels if scheme == "negatives" else None, rng=5)
    count = twin.log_expected_count(seen, labels[:, None], M)[:, 0]
    wanted, by_hand = loss.forward(h, rows, labels, draw, label_log_count=count)
    assert value == pytest.approx(wanted, rel=1e-12)
    expected = loss.backward(by_hand)
    np.testing.assert_allclose(dh, expected.dh, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(gradients["class_embeddings"].ids, expected.dW.ids)
    found = gradients["class_embeddings"].rows
    np.testing.assert_allclose(found, expected.dW.rows, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scheme", ["reject", "candidate", "candidate_masked"])
@pytest.mark.parametrize("name", ["unigram", "softmax", "rff"])
def test_a_shared_set_counts_the_label_in_the_mean_of_the_distributions(scheme, name, rows, rng):
    """A count from the example's own distribution would be that of draws which were not made."""
    h, labels = batch(rng)
    sampler = made(name, rows)
    loss = SampledSoftmaxLoss(scheme=scheme, tau=TAU, normalize=True)
    layer = SoftmaxLayer(rows, loss, sampler, M, shared=True)
    value, _ = layer.forward(h, labels, rng=3)
    seen = h / np.linalg.norm(h, axis=1, keepdims=True)
    draw = sampler.sample(seen, M, shared=True, rng=3)
    mean = sampler.probs(seen).mean(axis=0)
    wanted, _ = loss.forward(h, rows, labels, draw, label_log_count=np.log(M * mean[labels]))
    assert value == pytest.approx(wanted, rel=1e-6)
    if name == "softmax":
        own = np.log(M * sampler.probs(seen)[np.arange(B), labels])
        wrong, _ = loss.forward(h, rows, labels, draw, label_log_count=own)
        assert value != pytest.approx(wrong, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in ("two-pass", "mixture")])
def test_after_update_and_refresh_the_sampler_is_one_made_from_the_vectors(name, rows, rng):
    h, labels = batch(rng)
    loss = make_loss("sampled", tau=TAU, normalize=True)
    layer = SoftmaxLayer(rows, loss, made(name, rows), M, update_every=2)
    before = layer.sampler.probs(unit(rng, 2, D))
    ids = np.array([3, 17])
    layer.parameters["class_embeddings"][ids] = 5.0 * unit(rng, 2, D)
    contexts = unit(rng, 2, D)
    old = layer.sampler.probs(contexts)
    layer.update(ids)
    np.testing.assert_array_equal(layer.sampler.probs(contexts), old)  # not updated yet
    layer.update(ids[:1])
    new = made(name, layer.parameters["class_embeddings"]).probs(contexts)
    np.testing.assert_allclose(layer.sampler.probs(contexts), new, rtol=1e-5, atol=1e-9)
    layer.refresh()
    np.testing.assert_array_equal(layer.sampler.probs(contexts), new)
    assert before.shape == new.shape


def test_update_without_ids_is_of_all(rows, rng):
    layer = SoftmaxLayer(
        rows, make_loss("sampled", tau=TAU, normalize=True), made("softmax", rows), M
    )
    layer.parameters["class_embeddings"][:] = unit(rng, N, D)
    layer.update()
    contexts = unit(rng, 2, D)
    wanted = made("softmax", layer.parameters["class_embeddings"]).probs(contexts)
    np.testing.assert_allclose(layer.sampler.probs(contexts), wanted, rtol=1e-9)


def test_learned_counts_learn_and_come_back_from_their_state(rows, rng):
    h, labels = batch(rng)
    sampler = LearnedUnigramSampler(N, power=0.5)
    layer = SoftmaxLayer(rows, make_loss("sampled-masked"), sampler, M)
    layer.forward(h, labels, rng=0)
    np.testing.assert_array_equal(sampler.counts, 1.0 + np.bincount(labels, minlength=N))
    twin = LearnedUnigramSampler(N, power=0.5)
    twin.load_state(sampler.state())
    layer.refresh()
    np.testing.assert_array_equal(sampler.probs(None), twin.probs(None))
    with pytest.raises(ValueError, match="`state` must hold counts, got nothing"):
        twin.load_state({})
    with pytest.raises(ValueError, match="`state` must be empty for UniformSampler, got counts"):
        UniformSampler(N).load_state(sampler.state())


LEARNERS = {
    "learned": LearnedUnigramSampler,
    "streaming": StreamingUnigramSampler,
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("direct", [False, True])
def test_examples_of_weight_zero_are_not_observed(name, several, direct, rows, rng):
    """Padding would be most of what is counted."""
    weights = np.array([1.0, 0.0, 2.0, 0.0, 0.0, 0.5])
    labels = rng.integers(0, N, B)
    if several:
        labels = sparse.csr_array(np.eye(N)[labels] + np.eye(N)[(labels + 1) % N])
    sampler, twin, loss = LEARNERS[name](N), LEARNERS[name](N), make_loss("sampled-masked")
    if direct:
        layer = FeatureLayer(D, N, loss, sampler, M, shared=True, alpha=0.0, dtype=np.float64)
        h = rng.normal(size=(B, D))
    else:
        layer, h = SoftmaxLayer(rows, loss, sampler, M), rng.normal(size=(B, D))
    layer.forward(h, labels, weights=weights, rng=0)
    kept = labels[np.flatnonzero(weights)]
    twin.observe(kept.indices if several else kept)
    for key, array in twin.state().items():
        np.testing.assert_array_equal(sampler.state()[key], array)


def test_candidates_are_new_in_each_step(rows, rng):
    h, labels = batch(rng)
    sampler = TwoPassSampler(UniformSampler(N), rows, num_candidates=8, rng=0)
    layer = SoftmaxLayer(rows, make_loss("sampled-masked"), sampler, M)
    seen = []
    for seed in (1, 2, 1):
        layer.forward(h, labels, rng=seed)
        seen.append(sampler.candidate_ids.tolist())
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_state_comes_back(name, rows, rng):
    sampler, twin = made(name, rows), made(name, rows)
    for one, labels in ((sampler, [1, 1, 2]), (twin, [5])):
        one.refresh(4)
        one.observe(labels)
    twin.load_state(sampler.state())
    contexts = unit(rng, 3, D)
    np.testing.assert_allclose(twin.probs(contexts), sampler.probs(contexts), rtol=1e-12)


def test_a_matrix_of_labels_and_evaluation(rows, rng):
    h, labels = batch(rng)
    matrix = sparse.csr_array((np.ones(B), (np.arange(B), labels)), (B, N))
    layer = SoftmaxLayer(
        rows, make_loss("sampled-masked"), UniformSampler(N), M, biases=rng.random(N)
    )
    one, _ = layer.forward(h, labels, rng=0)
    many, cache = layer.forward(h, matrix, rng=0)
    assert many == pytest.approx(one, rel=1e-12)
    found, wanted = layer.backward(cache)[1], layer.loss.backward(cache)
    assert set(found) == set(layer.parameters)
    np.testing.assert_array_equal(found["biases"].rows, wanted.db.rows)
    full, _ = FullSoftmaxLoss().forward(h, rows, labels, biases=layer.parameters["biases"])
    assert layer.evaluate(h, labels).loss == pytest.approx(full, rel=1e-12)
    excluding = SoftmaxLayer(rows, make_loss("sampled"), UniformSampler(N), M)
    with pytest.raises(ValueError, match="`labels` must hold one label an example"):
        excluding.forward(h, matrix)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_of_another_tau_is_refused_unless_it_is_asked_for(name, rows):
    sampler = made(name, rows)
    layer = make_loss("sampled", tau=TAU + 1.0, normalize=True), sampler, M
    if sampler.tau is None:  # it follows no tau
        SoftmaxLayer(rows, *layer)
    else:
        with pytest.raises(ValueError, match=f"tau of the loss, {TAU + 1.0}, got one with {TAU}"):
            SoftmaxLayer(rows, *layer)
    SoftmaxLayer(rows, *layer, allow_other_tau=True)
    SoftmaxLayer(rows, make_loss("sampled", tau=TAU * (1 + 1e-9), normalize=True), sampler, M)


def test_the_default_tau_follows_normalize():
    for normalize, tau in ((False, 1.0), (True, 10.0)):
        options = {"normalize": normalize, "sampler": "softmax"}
        assert make_loss("sampled", normalize=normalize).tau == tau
        for kind in (SoftmaxSettings, LinearSoftmaxSettings):
            assert kind(**options).resolved().tau == tau


def test_settings_hold_what_was_given_and_resolve_the_rest():
    given = SoftmaxSettings(sampler="uniform", loss="sampled-masked")
    assert (given.tau, given.normalize, given.shared) == (None, None, None)
    done = given.resolved()
    assert (done.tau, done.normalize, done.shared) == (10.0, True, True)
    assert done.resolved() == done
    own = LinearSoftmaxSettings(normalize=False, tau=3.0, sampler="unigram", shared=False)
    assert own.resolved() == own
    function = LinearSoftmaxSettings(sampler=lambda inputs: UniformSampler(N)).resolved()
    assert function.shared is None  # which the layer decides


def test_a_file_names_the_weight_of_negatives_only_where_it_is_given():
    """Files of before have no such key, and resume with the same settings."""
    given = {"loss": "bilateral", "sampler": "uniform"}
    assert "negative_weight" not in LinearSoftmaxSettings(**given).config()
    config = LinearSoftmaxSettings(**given, negative_weight=1.5).config()
    assert LinearSoftmaxSettings(**config).make_loss(N, 4, "mean").negative_weight == 1.5
    with pytest.raises(ValueError, match="`negative_weight` must be"):
        LinearSoftmaxSettings(**given, negative_weight=0.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_set_is_shared_by_default_where_that_loses_little(rows, loss):
    properties = LOSSES[loss]
    if properties.draws:  # of the label too, by a sampler that follows no context
        layer = SoftmaxLayer(rows, make_loss(loss), UniformSampler(N), M)
        assert layer.shared is not properties.excludes_label
        options = {"loss": loss, "sampler": "uniform"}
        own = SoftmaxSettings(**options, shared=False)
        assert own.shared is False and SoftmaxSettings(**options).resolved().shared is layer.shared
        loss = make_loss(loss, tau=TAU, normalize=True)
        assert SoftmaxLayer(rows, loss, made("softmax", rows), M).shared is False
        softmax = SoftmaxSettings(loss=options["loss"], sampler="softmax")
        assert softmax.resolved().shared is False
    else:
        options = {"loss": loss, "sampler": None, "num_sampled": None}
        assert SoftmaxSettings(**options).resolved().shared is False


def test_what_does_not_fit_is_refused_at_once(rows):
    sampled = make_loss("sampled")
    with pytest.raises(TypeError, match="`sampler` must be a Sampler, got NoneType; "):
        SoftmaxLayer(rows, sampled)
    with pytest.raises(TypeError, match="`num_sampled` must be an integer, got NoneType"):
        SoftmaxLayer(rows, sampled, UniformSampler(N))
    with pytest.raises(ValueError, match="`sampler` must be for 30 classes of dimension 4, got 29"):
        SoftmaxLayer(rows, sampled, UniformSampler(N - 1), M)
    with pytest.raises(ValueError, match="dimension 4, got 30 of dimension 3"):
        SoftmaxLayer(rows, sampled, SoftmaxSampler(rows[:, :3]), M)
    with pytest.raises(ValueError, match="`shared` must be False with scheme='negatives'"):
        SoftmaxLayer(rows, sampled, UniformSampler(N), M, shared=True)
    with pytest.raises(ValueError, match="must be None for FullSoftmaxLoss"):
        SoftmaxLayer(rows, make_loss("full"), UniformSampler(N), M)
    with pytest.raises(TypeError, match="`loss` must be a Loss, got str"):
        SoftmaxLayer(rows, "full")
    with pytest.raises(ValueError, match="`biases` must have shape"):
        SoftmaxLayer(rows, make_loss("full"), biases=np.zeros(3))
    with pytest.raises(ValueError, match="`scheme` must be left out for 'sampled-masked'"):
        make_loss("sampled-masked", scheme="reject")
    with pytest.raises(ValueError, match="`scheme` must be one of masked"):
        make_loss("bilateral", scheme="reject")


def test_class_vectors_are_copied_and_one_that_is_not_finite_is_named(rows, rng):
    h, labels = batch(rng)
    layer = SoftmaxLayer(rows, make_loss("sampled", tau=TAU, normalize=True), made("rff", rows), M)
    rows[:] = 0.0
    layer.forward(h, labels, rng=0)
    layer.parameters["class_embeddings"][7] = np.nan
    with pytest.raises(ValueError, match="`class_embeddings`.*row 7"):
        layer.update([7])


def test_a_draw_for_the_full_softmax_and_a_foreign_state_are_refused(rows, rng):
    h, labels = batch(rng)
    draw = UniformSampler(N).sample(h, M, rng=0)
    with pytest.raises(TypeError, match="`draw` must be None for FullSoftmaxLoss"):
        FullSoftmaxLoss().forward(h, rows, labels, draw)
    with pytest.raises(ValueError, match="`state` must be that of a mixture, got counts"):
        made("mixture", rows).load_state({"counts": np.ones(N)})
