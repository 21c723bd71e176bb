"""Each declaration of a sampler is true: what it reads, what it refuses, and what it gives."""

from types import SimpleNamespace

import numpy as np
import pytest

from samplesoft.feature_maps import FEATURE_MAPS, make_feature_map
from samplesoft.samplers import SAMPLERS, SamplerInputs, make_sampler
from samplesoft.samplers.base import Sampler

UNIT = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0], [-0.8, 0.6]])
H = UNIT[[1, 3]]
GIVEN = {
    "class_embeddings": UNIT,
    "counts": np.array([1.0, 5.0, 2.0, 9.0]),
    "tau": 2.0,
    "nu": 3.0,
    "num_features": 4,
    "alpha": 50.0,
    "power": 0.5,
    "rng": 3,
}
OTHER = {
    "tau": 4.0,
    "nu": 1.0,
    "num_features": 5,
    "alpha": 1.0,
    "power": 1.0,
    "rng": 4,
}


@pytest.fixture(params=sorted(SAMPLERS))
def name(request):
    return request.param


def with_only(fields):
    return SimpleNamespace(num_classes=4, device="cpu", **{f: GIVEN[f] for f in fields})


def test_it_reads_what_it_declares_and_no_more(name):
    spec = SAMPLERS[name]
    assert set(spec.reads) <= set(GIVEN)
    assert isinstance(spec.make(with_only(spec.reads)), Sampler)
    for field in spec.reads:
        with pytest.raises(AttributeError, match=field):
            spec.make(with_only(set(spec.reads) - {field}))


def test_what_it_reads_decides_its_draws_and_nothing_else_does(name):
    angles = 2.0 * np.pi * np.random.default_rng(0).random(160)  # more than one leaf of classes
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    given = {**GIVEN, "class_embeddings": rows, "counts": np.arange(1.0, 161.0)}
    other = {**OTHER, "class_embeddings": rows[::-1], "counts": np.arange(160.0, 0.0, -1.0)}
    before = make_sampler(name, SamplerInputs(**given)).probs(H)
    for field in given:
        changed = make_sampler(name, SamplerInputs(**{**given, field: other[field]})).probs(H)
        assert np.array_equal(before, changed) == (field not in SAMPLERS[name].reads), field


def test_it_refuses_vectors_of_other_norms_if_it_says_so(name):
    given = {**GIVEN, "class_embeddings": 2.0 * UNIT}
    sampler = make_sampler(name, SamplerInputs(**GIVEN))
    if not SAMPLERS[name].unit_vectors:
        assert make_sampler(name, SamplerInputs(**given)).probs(2.0 * H).shape == (2, 4)
        return
    with pytest.raises(ValueError, match="rows of `class_embeddings` must have norm 1"):
        make_sampler(name, SamplerInputs(**given))
    with pytest.raises(ValueError, match="rows of `h` must have norm 1"):
        sampler.sample(2.0 * H, 3)


def test_it_looks_at_contexts_and_follows_updates_if_it_says_so(name):
    sampler = make_sampler(name, SamplerInputs(**GIVEN))
    follows = SAMPLERS[name].follows_vectors
    before = sampler.probs(H)
    assert (sampler.dim == 2) == follows == (sampler.dim is not None)
    assert (not np.array_equal(before[0], before[1])) == follows
    sampler.update(np.arange(4), UNIT[::-1])
    assert (not np.array_equal(sampler.probs(H), before)) == follows


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) & set(FEATURE_MAPS)))
def test_its_features_are_those_of_the_map_of_its_name(name):
    parts = FEATURE_MAPS[name].kernel.replace("(", " ").split()
    sharpness = {"alpha": 50.0 * 2.0**2, "-nu": 3.0, "tau": 2.0}
    (given,) = (sharpness[part] for part in parts if part in sharpness)
    phi = make_feature_map(name, 2, GIVEN["num_features"], given, rng=GIVEN["rng"])
    sampler = make_sampler(name, SamplerInputs(**GIVEN))
    np.testing.assert_array_equal(sampler.feature_map.transform(H), phi.transform(H))


@pytest.mark.parametrize(("n", "num"), [(4, 16), (128, 16), (400, 50)])
def test_candidates_are_an_eighth_of_the_classes(n, num):
    inputs = SamplerInputs(np.repeat(UNIT, n // 4, axis=0), np.ones(n), rng=0)
    assert make_sampler("two-pass", inputs).num_candidates == num


def test_its_tau_is_the_one_given_if_it_reads_one(name):
    spec = SAMPLERS[name]
    assert "tau" not in spec.reads or spec.follows_vectors
    without = {field: value for field, value in GIVEN.items() if field != "tau"}
    for given, tau in ((GIVEN, 2.0), (without, 10.0 if spec.unit_vectors else 1.0)):
        sampler = make_sampler(name, SamplerInputs(**given))
        assert sampler.tau == (tau if "tau" in spec.reads else None)


def test_a_class_may_have_no_mass_if_it_says_so(name):
    rows = np.repeat(UNIT, 40, axis=0)
    inputs = SamplerInputs(rows, 1.0 + np.arange(160.0), num_features=8, rng=0)
    assert (make_sampler(name, inputs).probs(H).min() > 0.0) == SAMPLERS[name].every_class


def test_it_is_described_in_a_line(name):
    summary = SAMPLERS[name].summary
    assert 10 < len(summary) < 90
    assert "\n" not in summary and not summary.endswith(".")


def test_weights_of_the_logits_are_those_of_the_sampler(name):
    spec = SAMPLERS[name]
    if spec.weights is None:
        return
    inputs = SamplerInputs(**GIVEN)
    weights = spec.weights(2.0 * H @ UNIT.T, inputs)
    q = np.broadcast_to(weights / weights.sum(axis=-1, keepdims=True), (2, 4))
    np.testing.assert_allclose(q, make_sampler(name, inputs).probs(H), rtol=1e-10)
