"""One suite for every registered sampler: what is drawn, what is reported, what is refused."""

import pickle

import numpy as np
import pytest
from oracles.naive_samplers import ORACLES, chi_square

from samplesoft.samplers import SAMPLERS, SamplerInputs, make_sampler

NAMES = sorted(SAMPLERS)
OF_UNIT_VECTORS = [name for name in NAMES if SAMPLERS[name].unit_vectors]
OF_VECTORS = [name for name in NAMES if SAMPLERS[name].follows_vectors]
CHI_SQUARE_TESTS = 11 * len(NAMES)
DRAWS = 200_000
# in float32 a class or node is weighed by products that another batch may round otherwise
TOLERANCE = {np.float64: 1e-10, np.float32: 1e-5}


def unit_rows(num, dim, seed, dtype=np.float64):
    rows = np.random.default_rng(seed).normal(size=(num, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)


def inputs(n, dtype=np.float64, **options):
    counts = np.random.default_rng(n).permutation(1.0 + np.arange(n) ** 2.0)
    given = {"counts": counts, "tau": 3.0, "nu": 2.0, "num_features": 32, "rng": 5} | options
    return SamplerInputs(class_embeddings=unit_rows(n, 8, 1, dtype), **given)


def dominated(name, n, label):
    """Inputs under which the label has nearly all the mass for the context ``eye(n)[label]``."""
    counts = np.ones(n)
    # with more, it would be the only candidate where others draw candidates first
    counts[label] = 1e15 if SAMPLERS[name].every_class else 1.0
    return SamplerInputs(
        class_embeddings=np.eye(n),
        counts=counts,
        power=1.0,
        tau=40.0,
        alpha=1e9,
        num_features=64,
        rng=2,
    )


def contexts(batch, dtype=np.float64, seed=2):
    return unit_rows(batch, 8, seed, dtype)


def counted(ids, n):
    return np.bincount(np.ravel(ids), minlength=n)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def dtype(request):
    return request.param


def oracle(name, sampler, given, h, exclude=None):
    """Probabilities (B, n) by the definition; a sampler without an entry in ORACLES needs one."""
    assert name in ORACLES, f"no oracle for {name!r}: add one in oracles/naive_samplers.py"
    labels = [None] * len(h) if exclude is None else exclude
    rows = (ORACLES[name](sampler, x, given, label) for x, label in zip(h, labels, strict=True))
    return np.array([[float(p) for p in row] for row in rows])


@pytest.mark.parametrize("n", [2, 37])
def test_probabilities_are_those_of_the_oracle(name, n):
    given, h = inputs(n), contexts(2)
    sampler = make_sampler(name, given)
    for exclude in (None, [0, n - 1]):
        wanted = oracle(name, sampler, given, h, exclude)
        np.testing.assert_allclose(sampler.probs(h, exclude=exclude), wanted, rtol=1e-9)
    # the twin of a sharpness or of counts that are off by a tenth
    off = {"tau": 3.3, "alpha": 110.0, "nu": 2.2, "power": 0.825}
    reads = [field for field in off if field in SAMPLERS[name].reads]
    if reads and n > 2:
        twin = oracle(name, make_sampler(name, inputs(n, **off)), inputs(n, **off), h)
        assert not np.allclose(sampler.probs(h), twin, rtol=1e-3)


@pytest.mark.parametrize(("n", "dtype"), [(1, np.float64), (37, np.float32), (300, np.float64)])
def test_the_three_views_of_q_agree(name, n, dtype):
    sampler, h = make_sampler(name, inputs(n, dtype)), contexts(4, dtype)
    every = np.arange(n)
    for exclude in [None, every[[0, -1, n // 2, 0]]] if n > 1 else [None]:
        draw = sampler.sample(h, 50, exclude=exclude, rng=0)
        assert draw.ids.shape == draw.log_q.shape == (4, 50)
        assert draw.ids.dtype == np.int64 and draw.log_q.dtype == np.float64
        assert draw.ids.min() >= 0 and draw.ids.max() < n
        again = sampler.log_prob(h, draw.ids, exclude=exclude)
        np.testing.assert_allclose(draw.log_q, again, rtol=0, atol=TOLERANCE[dtype])
        probs = sampler.probs(h, exclude=exclude)
        assert probs.dtype == np.float64
        np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-12)
        log_prob = sampler.log_prob(h, every, exclude=exclude)
        np.testing.assert_allclose(np.exp(log_prob), probs, rtol=TOLERANCE[dtype], atol=1e-300)
        if exclude is not None:
            assert (probs[range(4), exclude] == 0.0).all()
            assert (log_prob[range(4), exclude] == -np.inf).all()


def test_expected_counts_are_those_of_the_draws(name):
    sampler, h, every = make_sampler(name, inputs(37)), contexts(2), np.arange(37)
    for exclude in (None, [3, 36]):
        counts = np.exp(sampler.log_expected_count(h, every, 7, exclude=exclude))
        np.testing.assert_allclose(counts, 7.0 * sampler.probs(h, exclude=exclude), rtol=1e-9)
        draw = sampler.sample(h, 7, exclude=exclude, rng=0)
        wanted = np.take_along_axis(counts, draw.ids, axis=1)
        np.testing.assert_allclose(np.exp(draw.log_expected_count), wanted, rtol=1e-9)


def is_told_apart(q, wrong):
    """Whether so many draws from q show that they are not from `wrong`: not if q is nearly flat."""
    drawn = q > 0.0
    difference = (wrong[drawn] - q[drawn]) ** 2
    return DRAWS * (difference / np.maximum(wrong[drawn], 1e-300)).sum() > 400.0


def test_a_flat_and_a_steep_proposal_are_told_apart_from_sharper_ones():
    for q, wanted in ((np.full(150, 1 / 150), False), (np.r_[149.0, np.ones(149)], True)):
        q = q / q.sum()
        assert is_told_apart(q, q**1.05 / (q**1.05).sum()) == wanted


def test_draws_follow_q(name):
    n = 150  # more than one leaf or block
    sampler, h = make_sampler(name, inputs(n)), contexts(2)
    draw, q = sampler.sample(h, DRAWS, rng=1), sampler.probs(h)
    for row in range(2):
        counts = counted(draw.ids[row], n)
        assert chi_square(counts, q[row]) > 1e-3 / CHI_SQUARE_TESTS
        for wrong in (q[row] ** 1.05 / (q[row] ** 1.05).sum(), np.roll(q[row], 1)):
            if is_told_apart(q[row], wrong):
                assert chi_square(counts, wrong) < 1e-9


def test_draws_without_the_label_follow_q_given_that(name):
    n = 150
    sampler, h = make_sampler(name, inputs(n)), contexts(2)
    labels = sampler.probs(h).argmax(axis=1)
    draw, q = sampler.sample(h, DRAWS, exclude=labels, rng=2), sampler.probs(h, exclude=labels)
    for row, label in enumerate(labels):
        counts = counted(draw.ids[row], n)
        assert counts[label] == 0
        assert chi_square(counts, q[row]) > 1e-3 / CHI_SQUARE_TESTS
        assert chi_square(counts, sampler.probs(h)[row]) < 1e-9  # as if it were not excluded
        sharper = q[row] ** 1.05 / (q[row] ** 1.05).sum()
        if is_told_apart(q[row], sharper):
            assert chi_square(counts, sharper) < 1e-9


def test_excluding_a_label_with_nearly_all_the_mass(name):
    n, label = 37, 5
    given, h = dominated(name, n, label), np.eye(n)[[label]]
    sampler = make_sampler(name, given)
    draw, q = sampler.sample(h, 20_000, exclude=label, rng=3), sampler.probs(h, exclude=label)[0]
    # 1 - q would keep no digit of masses of 1e-15; sums in the quadratic tree keep five
    np.testing.assert_allclose(q, oracle(name, sampler, given, h, [label])[0], rtol=1e-4)
    assert not (draw.ids == label).any()
    assert q.sum() == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(np.exp(draw.log_q), q[draw.ids], rtol=1e-10)
    assert chi_square(counted(draw.ids, n), q) > 1e-3 / CHI_SQUARE_TESTS


def test_the_same_seed_gives_the_same_draws_at_any_number_of_threads(name, threads, monkeypatch):
    monkeypatch.setattr("samplesoft.samplers.static._CHUNK_DRAWS", 1000)
    sampler, h = make_sampler(name, inputs(300)), contexts(70)
    for shared in (False, True):
        drawn = []
        for count in (1, 5):
            threads(count)
            drawn.append(sampler.sample(h, 300, shared=shared, rng=4))
        np.testing.assert_array_equal(drawn[0].ids, drawn[1].ids)
        np.testing.assert_array_equal(drawn[0].log_q, drawn[1].log_q)
        again = sampler.sample(h, 300, shared=shared, rng=np.random.default_rng(4))
        assert (again.ids != drawn[0].ids).any()


def test_equal_contexts_draw_by_random_numbers_of_their_own(name, monkeypatch):
    monkeypatch.setattr("samplesoft.samplers.static._CHUNK_DRAWS", 200)
    sampler, h = make_sampler(name, inputs(300)), np.repeat(contexts(1), 64, axis=0)
    ids = sampler.sample(h, 20, rng=6).ids  # in several parts
    assert len(np.unique(ids, axis=0)) == 64


def test_a_context_gets_the_same_draws_whatever_contexts_follow_it(name):
    sampler, h = make_sampler(name, inputs(300)), contexts(40)
    labels = np.arange(40)
    many = sampler.sample(h, 20, exclude=labels, rng=5)
    few = sampler.sample(h[:3], 20, exclude=labels[:3], rng=5)
    np.testing.assert_array_equal(few.ids, many.ids[:3])
    np.testing.assert_allclose(few.log_q, many.log_q[:3], rtol=0, atol=1e-10)


def test_a_shared_set_comes_from_the_mean(name):
    n = 150
    sampler, h = make_sampler(name, inputs(n)), contexts(3)
    draw, mean = sampler.sample(h, 40_000, shared=True, rng=6), sampler.probs(h).mean(axis=0)
    assert draw.ids.shape == draw.log_q.shape == (1, 40_000)
    np.testing.assert_allclose(draw.log_q, np.log(mean[draw.ids]), rtol=0, atol=1e-10)
    assert chi_square(counted(draw.ids, n), mean) > 1e-3 / CHI_SQUARE_TESTS
    with pytest.raises(ValueError, match="`exclude` must be None with shared=True"):
        sampler.sample(h, 3, exclude=[0, 1, 2], shared=True)


def test_what_is_said_of_a_shared_set_is_what_is_drawn(name):
    n, m = 150, 40_000
    sampler, h = make_sampler(name, inputs(n)), contexts(100)  # so many that they are pooled
    draw, q = sampler.sample(h, m, shared=True, rng=6), sampler.probs(h, shared=True)
    assert draw.ids.shape == (1, m)
    assert q.shape == (1, n)
    assert q.sum() == pytest.approx(1.0, rel=1e-12)
    assert chi_square(counted(draw.ids, n), q[0]) > 1e-3 / CHI_SQUARE_TESTS
    log_q = sampler.log_prob(h, draw.ids[0], shared=True)
    np.testing.assert_allclose(draw.log_q, log_q, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.exp(log_q), q[:, draw.ids[0]], rtol=1e-10)
    few = sampler.sample(h, 5, shared=True, rng=6)
    counts = sampler.log_expected_count(h, few.ids[0], 5, shared=True)
    np.testing.assert_allclose(counts, few.log_expected_count, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="`exclude` must be None with shared=True"):
        sampler.log_prob(h, [0], exclude=np.arange(100), shared=True)


def test_an_updated_sampler_is_like_a_new_one(name, dtype):
    n, h = 37, contexts(3, dtype)
    frequent = np.argsort(inputs(n).counts)[-4:]  # so likely candidates of the two-pass sampler
    ids, new = frequent[[3, 0, 1, 3, 2]], unit_rows(5, 8, 9, dtype)
    moved = unit_rows(n, 8, 1, dtype)
    moved[ids] = new  # of the class named twice, the last
    updated, fresh = (make_sampler(name, inputs(n, dtype)) for _ in range(2))
    if SAMPLERS[name].follows_vectors:
        plain = inputs(n, dtype)
        fresh = make_sampler(
            name,
            SamplerInputs(moved, plain.counts, plain.tau, plain.nu, plain.num_features, rng=5),
        )
        assert not np.allclose(updated.probs(h), fresh.probs(h), rtol=1e-2)
    updated.update(ids, new)
    tolerance = {np.float64: 1e-8, np.float32: 1e-3}[dtype]  # sums of features drift
    np.testing.assert_allclose(updated.probs(h), fresh.probs(h), rtol=tolerance)


@pytest.mark.thorough(but=4)
def test_a_sampler_whose_arrays_can_only_be_read_copies_them_to_be_updated(name):
    sampler, h = make_sampler(name, inputs(37)), contexts(3)
    buffers = []
    dumped = pickle.dumps(sampler, protocol=5, buffer_callback=buffers.append)
    held = [bytes(buffer.raw()) for buffer in buffers]  # as mapped from a file
    mapped = pickle.loads(dumped, buffers=held)
    np.testing.assert_array_equal(mapped.probs(h), sampler.probs(h))
    for each in (sampler, mapped):
        each.update([3, 5], unit_rows(2, 8, 9))
        each.observe([1, 1, 2])
    np.testing.assert_array_equal(mapped.probs(h), sampler.probs(h))


ROWS = unit_rows(2, 8, 7)
BAD_UPDATES = {
    "NaN": ([0, 1], np.where(np.arange(8) == 3, np.nan, ROWS), "must be finite"),
    "too few rows": ([0, 1], ROWS[:1], "one row for each"),
    "beyond": ([0, 37], ROWS, r"must lie in 0\.\.36"),
    "negative": ([0, -1], ROWS, r"must lie in 0\.\.36"),
    "short rows": ([0, 1], ROWS[:, :7], "must have 8 columns"),
    "norm 2": ([0, 1], [[1.0], [2.0]] * ROWS, "got 2 at row 1; divide"),
    "overflow": ([0, 1], ROWS * 1e200, "finite|norm 1"),
}


def test_a_refused_update_changes_nothing(name):
    sampler, h = make_sampler(name, inputs(37, np.float32)), contexts(2)
    before = sampler.probs(h)
    for case, (ids, rows, message) in BAD_UPDATES.items():
        if case == "norm 2" and not SAMPLERS[name].unit_vectors:
            continue
        if case in ("short rows", "overflow") and not SAMPLERS[name].follows_vectors:
            continue
        with pytest.raises(ValueError, match=message):
            sampler.update(ids, rows)
        np.testing.assert_array_equal(sampler.probs(h), before)


BAD_CALLS = {
    "no draws": ((ROWS, 0), {}, ValueError, "`num_sampled` must be at least 1, got 0"),
    "half a draw": ((ROWS, 2.5), {}, TypeError, "`num_sampled` must be an integer"),
    "too many labels": ((ROWS, 3), {"exclude": [0, 1, 2]}, ValueError, "`exclude` must have shape"),
    "label beyond": ((ROWS, 3), {"exclude": [0, 37]}, ValueError, "`exclude` must lie in"),
    "negative label": ((ROWS, 3), {"exclude": [0, -1]}, ValueError, "`exclude` must lie in"),
    "float label": ((ROWS, 3), {"exclude": [0.0, 1.0]}, TypeError, "`exclude` must hold integers"),
    "negative seed": ((ROWS, 3), {"rng": -1}, ValueError, "`rng` as a seed"),
}
BAD_CONTEXTS = {
    "NaN": (np.full((2, 8), np.nan), ValueError, "`h` must be finite"),
    "short": (ROWS[:, :7], ValueError, "`h` must have 8 columns"),
    "none": (None, TypeError, "`h` must hold context vectors"),
    "complex": (ROWS * 1j, TypeError, "`h` must hold real numbers"),
    "cube": (ROWS[None], ValueError, "`h` must"),
}


def test_bad_arguments_are_named(name):
    sampler = make_sampler(name, inputs(37))
    for arguments, options, error, message in BAD_CALLS.values():
        with pytest.raises(error, match=message):
            sampler.sample(*arguments, **options)


@pytest.mark.parametrize("name", OF_VECTORS)
def test_bad_contexts_are_named(name):
    sampler = make_sampler(name, inputs(37))
    for h, error, message in BAD_CONTEXTS.values():
        with pytest.raises(error, match=message):
            sampler.sample(h, 3)
        with pytest.raises(error, match=message):
            sampler.probs(h)


def test_bad_classes_are_named(name):
    sampler = make_sampler(name, inputs(37))
    for ids, error in (([0, 37], ValueError), ([-1], ValueError), ([0.5], TypeError)):
        with pytest.raises(error, match="`ids` must"):
            sampler.log_prob(ROWS, ids)


def test_the_only_class_cannot_be_excluded(name):
    sampler = make_sampler(name, inputs(1))
    with pytest.raises(ValueError, match="`exclude` must leave a class to draw"):
        sampler.sample(contexts(1), 2, exclude=0)


@pytest.mark.parametrize("name", OF_UNIT_VECTORS)
def test_fourier_features_need_unit_vectors(name):
    with pytest.raises(ValueError, match="`class_embeddings` must have norm 1, got 2 at row 0"):
        make_sampler(name, SamplerInputs([[2.0, 0.0], [0.0, 1.0]], counts=[1, 2]))
    sampler = make_sampler(name, inputs(37))
    with pytest.raises(ValueError, match=r"`h` must have norm 1, got 1\.01 at row 1; divide each"):
        sampler.sample([[1.0], [1.01]] * ROWS, 3)
    sampler.sample(ROWS * 1.0005, 3)


def test_unknown_names_and_malformed_inputs():
    with pytest.raises(ValueError, match="`name` must be one of uniform"):
        make_sampler("zipf", inputs(2))
    with pytest.raises(ValueError, match=r"`counts` must have shape \(2,\)"):
        SamplerInputs(class_embeddings=np.eye(2), counts=[1.0])
    with pytest.raises(ValueError, match="`class_embeddings` must be finite"):
        SamplerInputs(class_embeddings=[[np.inf]])
    with pytest.raises(ValueError, match="sampler 'unigram' needs class counts .* got None"):
        make_sampler("unigram", SamplerInputs(class_embeddings=np.eye(2)))
    with pytest.raises(ValueError, match="one of `class_embeddings`, `counts` and `logits` must"):
        SamplerInputs(h=np.eye(2))
    with pytest.raises(TypeError, match="`inputs` must be SamplerInputs, got ndarray"):
        make_sampler("unigram", np.eye(2))


def test_labels_are_not_taken_for_contexts():
    sampler = make_sampler("uniform", inputs(37))
    for h in (np.array([3, 4]), 4, "some words", np.empty((0, 8))):
        with pytest.raises(ValueError, match="`h` must hold context vectors"):
            sampler.sample(h, 3)
    assert sampler.sample(None, 3, exclude=[1, 2]).ids.shape == (2, 3)


def test_one_class_of_each_context_is_asked_for_as_a_column(name):
    sampler, h, labels = make_sampler(name, inputs(37)), contexts(3), np.array([5, 9, 36])
    columns = sampler.log_prob(h, labels[:, None])
    np.testing.assert_array_equal(columns[:, 0], np.diag(sampler.log_prob(h, labels[None])))
    with pytest.raises(ValueError, match=r"`ids` must have shape \(3, k\).* ids\[:, None\]"):
        sampler.log_prob(h, labels)
