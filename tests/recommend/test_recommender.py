"""The recommender: what it learns, lists, new users, files, seeds and refusals."""

import re

import numpy as np
import pytest
from oracles import naive_recommend as naive
from scipy import sparse

from samplesoft._random import stream_key
from samplesoft.metrics import ranking_scores
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.recommend.training import _HELD_OUT_STREAM, HeldOut, checked_settings
from samplesoft.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from samplesoft.training.resolved import resolve
from samplesoft.training.task import derive_seed

SMALL = {"embedding_dim": 8, "num_sampled": 10, "batch_size": 16, "max_iter": 8, "random_state": 0}
TAKEN = naive.planted()


def make(**options):
    return SampledSoftmaxRecommender(**SMALL | options)


@pytest.fixture(scope="module")
def model():
    return make(propagation=0.3).fit(TAKEN)


def hits(model, taken, number=3):
    """How many of the listed items are of the group of the user."""
    ids, _ = model.recommend(np.arange(60), taken, N=number)
    return np.mean(ids // 10 == np.arange(60)[:, None] % 3)


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "sampled-masked"},
        {"loss": "full"},
        {"loss": "bpr"},
        {"loss": "warp"},
        {"loss": "warp", "shared": False},
        {"loss": "gbce"},
        {"sampler": "unigram"},
        {"sampler": "clusters"},
        {"sampler": "clusters", "loss": "sampled-masked"},
        {"early_stopping": False, "propagation": 0.0},
        {"embedding_dim": 40, "dropout": 0.0},
    ],
    ids=str,
)
def test_groups_are_learned(options):
    assert hits(make(**options).fit(TAKEN), TAKEN) > 0.9


def test_without_early_stopping_all_else_may_be_the_default():
    model = SampledSoftmaxRecommender(early_stopping=False, max_iter=1, random_state=0).fit(TAKEN)
    given = SampledSoftmaxRecommender(
        early_stopping=False, propagation=0.1, max_iter=1, random_state=0
    ).fit(TAKEN)
    assert model.propagation_ == 0.1 and model.validation_scores_ == []
    np.testing.assert_array_equal(model.item_factors, given.item_factors)


def test_vectors_and_scores(model):
    dense = TAKEN.toarray()
    weights, intercept = model._embedding.parameters.values()
    users = naive.user_vectors(weights, intercept, dense)
    np.testing.assert_allclose(model.user_factors, users, rtol=1e-4, atol=1e-6)
    classes = model.item_factors - 0.3 * naive.graph(dense).T @ users
    np.testing.assert_allclose(np.sqrt((classes**2).sum(axis=1)), 1.0, rtol=1e-5)
    ids, scores = model.recommend([4, 2], TAKEN[[4, 2]], N=5)
    for user, own, found in zip([4, 2], ids, scores, strict=True):
        wanted = naive.best(users[user] @ model.item_factors.T, 5, np.flatnonzero(dense[user]))
        assert own.tolist() == [j for j, _ in wanted]
        np.testing.assert_allclose(found, [s for _, s in wanted], rtol=1e-4)


def test_lists_as_implicit_makes_them(model):
    one, many = model.recommend(7, TAKEN[[7]]), model.recommend([7], TAKEN[[7]])
    assert one[0].shape == one[1].shape == (10,)
    assert (one[0].dtype, one[1].dtype) == (np.int32, np.float32)
    np.testing.assert_array_equal(one, [many[0][0], many[1][0]])
    own = set(TAKEN[[7]].indices)
    assert not own & set(one[0])
    everything, _ = model.recommend(7, N=30, filter_already_liked_items=False)
    assert sorted(everything) == list(range(30))
    some, scores = model.recommend(7, TAKEN[[7]], N=4, items=[3, 1, *own], filter_items=[3])
    assert some.tolist() == [1, -1, -1, -1] and (scores[1:] == -np.inf).all()
    assert model.recommend(7, TAKEN[[7]], N=50)[0].tolist().count(-1) == 50 - 24


def test_new_users_need_no_training(model):
    history = sparse.csr_array(([2.0, 1.0], ([0, 0], [10, 13])), (1, 30))
    ids, _ = model.recommend(10**6, history, N=5, recalculate_user=True)
    assert set(ids) < set(range(10, 20)) - {10, 13}
    again, _ = model.recommend([7], TAKEN[[7]], recalculate_user=True)
    np.testing.assert_array_equal(again, model.recommend([7], TAKEN[[7]])[0])
    with pytest.raises(ValueError, match="`userids` must be below 60"):
        model.recommend(60, history)


def test_partial_fit_users():
    model = make().fit(TAKEN)
    before, items = model.user_factors.copy(), model.item_factors.copy()
    assert model.partial_fit_users([63, 0], TAKEN[[5, 6]]) is model
    assert model.user_factors.shape == (64, 8)
    np.testing.assert_array_equal(model.user_factors[[63, 0]], before[[5, 6]])
    np.testing.assert_array_equal(model.user_factors[1:60], before[1:])
    np.testing.assert_array_equal(model.user_factors[60], model.user_factors[62])  # of no items
    np.testing.assert_array_equal(model.item_factors, items)
    with pytest.raises(ValueError, match="each user once"):
        model.partial_fit_users([1, 1], TAKEN[[5, 6]])


def test_similar_items(model):
    ids, cosines = model.similar_items([3, 25], N=6)
    vectors = naive.unit(model.item_factors.astype(float))
    for item, own, found in zip([3, 25], ids, cosines, strict=True):
        wanted = vectors @ vectors[item]
        assert own[0] == item and set(own // 10) == {item // 10}
        np.testing.assert_allclose(found, np.sort(wanted)[::-1][:6], rtol=1e-5)
    np.testing.assert_array_equal(model.similar_items(3, 6)[0], ids[0])


def test_similar_users(model):
    ids, cosines = model.similar_users([3, 25], N=8)
    vectors = naive.unit(model.user_factors.astype(float))
    for user, own, found in zip([3, 25], ids, cosines, strict=True):
        wanted = np.sort(vectors @ vectors[user])[::-1][:8]
        assert set(own % 3) == {user % 3}  # the group of a user
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert len(set(model.similar_users(3, 60)[0])) == 60
    assert model.similar_users(3, 90)[0].tolist()[60:] == [-1] * 30


def test_what_is_hidden_has_no_part_in_training():
    """Its weights change no loss and no parameter; those of what is left do."""
    seed = derive_seed(stream_key(0), _HELD_OUT_STREAM)
    left = HeldOut(TAKEN, 0.5, seed).remaining.toarray()
    dense = TAKEN.toarray()
    options = {"validation_fraction": 0.5, "max_iter": 3, "propagation": 0.1}
    base = make(**options).fit(TAKEN)
    hidden, seen = dense.copy(), dense.copy()
    hidden[(dense > 0) & (left == 0)] = 5.0
    user = int(np.argmax((dense == left).all(axis=1)))
    seen[user, np.flatnonzero(dense[user])[0]] = 5.0
    assert (hidden != dense).sum() == 30  # one item of half of the users
    for data, same in ((hidden, True), (seen, False)):
        other = make(**options).fit(sparse.csr_array(data))
        assert (other.loss_curve_ == base.loss_curve_) is same
        weights = [x._embedding.parameters["weights"] for x in (base, other)]
        assert np.array_equal(*weights) is same


@pytest.mark.parametrize(("loss", "weight"), [("bilateral", 1.3), ("sampled-masked", None)])
def test_the_weight_of_negatives_is_that_of_the_loss(loss, weight):
    asked = checked_settings(make(loss=loss, negative_weight=1.3))
    settings = resolve(asked, 8, 8, several_labels=True).model
    layer = settings.make_layer(np.eye(8, dtype=np.float32), None, 0)
    assert getattr(layer.loss, "negative_weight", None) == weight


@pytest.mark.parametrize("loss", ["bpr", "warp", "gbce"])
def test_losses_that_others_compare_with(loss, tmp_path):
    """They draw uniformly, from one set for a batch, and a file holds them as any other."""
    settings = resolve(checked_settings(make(loss=loss)), 8, 8, several_labels=True).model
    assert (settings.sampler, settings.shared, settings.mask_other_labels) == (
        "uniform",
        True,
        True,
    )
    model = make(loss=loss, max_iter=1).fit(TAKEN)
    model.save(tmp_path / "model.npz")
    again = SampledSoftmaxRecommender.load(tmp_path / "model.npz")
    assert again.loss == loss
    np.testing.assert_array_equal(again.item_factors, model.item_factors)
    with pytest.raises(ValueError, match=f"`loss` must be one of .*{loss}.*got 'triplet'"):
        make(loss="triplet").fit(TAKEN)


@pytest.mark.parametrize(("items", "draws"), [(30, 1000), (25_000, 2500), (10**6, 4000)])
def test_more_items_are_given_more_draws(items, draws):
    for given, found in ((None, draws), (7, 7)):
        asked = checked_settings(make(num_sampled=given), items)
        assert resolve(asked, items, 100, several_labels=True).model.num_sampled == found


def test_early_stopping_keeps_the_best():
    stopped = make(max_iter=40, n_iter_no_change=2, propagation=0.0).fit(TAKEN)
    scores = stopped.validation_scores_
    assert stopped.n_iter_ == len(scores) < 40
    assert int(np.argmax(scores)) == len(scores) - 3
    whole = make(early_stopping=False, propagation=0.0).fit(TAKEN)
    assert whole.validation_scores_ == [] and whole.n_iter_ == 8


@pytest.mark.parametrize(
    "options",
    [{"sampler": "clusters"}, *({"loss": name} for name in ("bilateral", "bpr", "warp", "gbce"))],
    ids=str,
)
def test_seeds_and_threads(options, threads):
    found = []
    for seed, number in ((0, 1), (0, 2), (1, 1)):
        threads(number)
        model = make(random_state=seed, max_iter=2, **options).fit(TAKEN)
        found.append((model.item_factors.tobytes(), model.loss_curve_, model.propagation_))
    assert found[0] == found[1] != found[2]


def test_users_and_items_without_interactions():
    dense = TAKEN.toarray()
    dense[7] = 0.0
    dense[:, 11] = 0.0
    model = make(embedding_dim=50).fit(sparse.csr_array(dense))
    ids, scores = model.recommend(7, sparse.csr_array((1, 30)), N=30)
    assert sorted(ids) == list(range(30)) and np.isfinite(scores).all()
    single = make(early_stopping=False, propagation=0.1).fit(sparse.csr_array(np.ones((3, 1))))
    assert single.recommend(0, N=1, filter_already_liked_items=False)[0].tolist() == [0]


def test_a_round_trip(model, tmp_path):
    path = tmp_path / "model.npz"
    model.save(path)
    again = SampledSoftmaxRecommender.load(path)
    for name, value in vars(model).items():
        if name not in ("_embedding", "item_factors", "user_factors"):
            assert getattr(again, name) == value, name
    np.testing.assert_array_equal(
        again.recommend([1, 2], TAKEN[[1, 2]]), model.recommend([1, 2], TAKEN[[1, 2]])
    )
    new = model.recommend([0], TAKEN[[9]], recalculate_user=True)
    np.testing.assert_array_equal(again.recommend([0], TAKEN[[9]], recalculate_user=True), new)
    other = make(random_state=np.random.default_rng(0), max_iter=1, num_sampled=None)
    other.fit(TAKEN).save(path)
    again = SampledSoftmaxRecommender.load(path)
    assert again.random_state is None and again.num_sampled is None


def changed(checkpoint, **changes):
    config, values, arrays = (dict(part) for part in checkpoint)
    for name, value in changes.items():
        part = next(part for part in (config, values, arrays) if name.replace("__", "/") in part)
        part[name.replace("__", "/")] = value
    return Checkpoint(config, values, arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "SampledSoftmaxClassifier"}, "must hold a SampledSoftmaxRecommender"),
        ({"parameters": {"embedding_dims": 3}}, "embedding_dims"),
        ({"item_factors": np.zeros((29, 8), np.float32)}, "embedding|weights"),
        ({"embedding__weights": np.zeros((30, 7), np.float32)}, "weights"),
    ],
)
def test_files_that_hold_something_else(changes, message, model, tmp_path):
    path = tmp_path / "model.npz"
    model.save(path)
    write_checkpoint(path, changed(read_checkpoint(path), **changes))
    with pytest.raises(ValueError, match=message) as caught:
        SampledSoftmaxRecommender.load(path)
    assert str(path) in str(caught.value)


def test_damaged_files(model, tmp_path):
    path = tmp_path / "model.npz"
    model.save(path)
    whole = path.read_bytes()
    for part in (whole[:-9], whole[: len(whole) // 2], whole[:500] + b"x" + whole[501:], b""):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="must be a whole checkpoint"):
            SampledSoftmaxRecommender.load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_dim": 0}, "`embedding_dim` must be at least 1"),
        ({"loss": "sampled"}, "`loss` must be one of"),
        ({"loss": "full-logistic"}, "`loss` must be one of"),
        ({"sampler": "none"}, "`sampler` must be one of"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
        ({"negative_weight": 0.0}, "`negative_weight` must be"),
        ({"tau": 0.0}, "`tau`"),
        ({"dropout": 1.0}, "`dropout`"),
        ({"propagation": -0.1}, "`propagation` must be at least 0"),
        ({"propagation": "best"}, "`propagation` must be a number or 'auto', got 'best'"),
        ({"early_stopping": 1}, "`early_stopping` must be True or False"),
        ({"validation_fraction": 0.0}, "`validation_fraction` must be greater than 0"),
        ({"max_iter": 0}, "`max_iter`"),
        ({"batch_size": 2.5}, "`batch_size`"),
        ({"learning_rate": -1}, "`learning_rate`"),
        ({"n_iter_no_change": 0}, "`n_iter_no_change`"),
        ({"random_state": "a"}, "`random_state` must be an int seed"),
        ({"random_state": -1}, "`random_state` as a seed must be at least 0"),
    ],
)
def test_parameters_that_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(**options).fit(TAKEN)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (TAKEN.toarray(), "must be a scipy.sparse matrix"),
        (-TAKEN, "weights of at least 0, got -1.0"),
        (TAKEN * np.nan, "`user_items` must be finite"),
        (TAKEN * 0.0, "must hold items of some users"),
        (sparse.csr_array(np.eye(4)), "`early_stopping` needs users with at least two items"),
    ],
)
def test_interactions_that_are_refused(matrix, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        make().fit(matrix)


def test_calls_that_are_refused(model):
    with pytest.raises(AttributeError, match="not fitted yet; call fit first"):
        make().recommend(0, TAKEN[[0]])
    with pytest.raises(AttributeError, match="not fitted yet; call fit first"):
        make().similar_users(0)
    with pytest.raises(ValueError, match="`user_items` must hold what the users have taken"):
        model.recommend(0)
    with pytest.raises(ValueError, match="a row for each of the 2 users, got 60"):
        model.recommend([0, 1], TAKEN)
    with pytest.raises(ValueError, match="a column for each of the 30 items, got 4"):
        model.recommend(0, sparse.csr_array((1, 4)))
    for name, call in {
        "userids": lambda: model.recommend(0.5, TAKEN[[0]]),
        "N": lambda: model.recommend(0, TAKEN[[0]], N=0),
        "items": lambda: model.recommend(0, TAKEN[[0]], items=[30]),
        "filter_items": lambda: model.recommend(0, TAKEN[[0]], filter_items=[-1]),
        "itemid": lambda: model.similar_items(30),
        "userid": lambda: model.similar_users([60]),
        "recalculate_user": lambda: model.recommend(0, TAKEN[[0]], recalculate_user=1),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.recommend(-1, TAKEN[[0]]), "`userids` must be at least 0, got -1"),
        (lambda model: model.partial_fit_users(-1, TAKEN[[0]]), "`userids` must be at least 0"),
        (lambda model: model.recommend("a", TAKEN[[0]]), "users are counted from 0"),
        (lambda model: model.recommend(0, TAKEN[[0]], items=[30]), "0..29 for 30 items, got 30"),
        (lambda model: model.similar_items(-1), "0..29 for 30 items, got -1"),
        (lambda model: model.similar_users(60), "0..59 for 60 users, got 60"),
    ],
)
def test_refusals_speak_of_users_and_items(call, message, model):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(model)


def test_progress_lines(capsys):
    model = make(verbose=True, max_iter=2).fit(TAKEN)
    lines = capsys.readouterr().err.splitlines()
    first, *lines = [line for line in lines if not line.startswith("compiling kernels")]
    assert len(lines) == 2 and first == f"fit: {model.resolved_}"
    times = r"\d+\.\d s"
    figures = r"loss -?\d\.\d{4}, ndcg_at_20 \d\.\d{4}"
    assert re.fullmatch(rf"fit: epoch 1 of 2, {figures}, {times}, about {times} left", lines[0])
    assert re.fullmatch(rf"fit: epoch 2 of 2, {figures}, {times}", lines[1])


HIDDEN = sparse.csr_array(np.kron(np.ones((20, 1)), np.kron(np.eye(3), np.ones((1, 10)))) - TAKEN)


def test_the_recommender_is_scored_by_its_lists(model):
    hidden = HIDDEN.multiply(np.arange(60)[:, None] % 7 > 0).tocsr()
    found = model.evaluate(TAKEN, hidden, [3, 10])
    ids, _ = model.recommend(np.arange(60), TAKEN, N=10)
    for name, value in ranking_scores(ids, hidden, [3, 10]).items():
        assert found[name.replace("_at_", "@")] == pytest.approx(value, abs=1e-12)
    assert found["recall@3"] > 0.6 and found["auc"] > 0.9


def test_sampled_metrics_of_a_recommender_have_other_names_and_are_no_estimates(model):
    full, found = (model.evaluate(TAKEN, HIDDEN, 5, sampled=m) for m in (None, 6))
    assert list(found) == [f"sampled_{name}" for name in full]
    scores = model.user_factors @ model.item_factors.T
    rng, total = np.random.default_rng(0), []
    for u in range(60):
        own, taken = (np.flatnonzero(x[[u]].toarray()) for x in (HIDDEN, TAKEN))
        others = np.setdiff1d(np.arange(30), [*own, *taken])
        for _ in range(50):
            listed = [*own, *rng.choice(others, 6, replace=False)]
            best = sorted(listed, key=lambda i, u=u: -scores[u, i])[:5]
            total.append(np.isin(best, own).sum() / len(own))
    error = np.std(total) / np.sqrt(len(total))
    assert abs(np.mean(total) - found["sampled_recall@5"]) < 4 * error + 1e-12
    every = model.evaluate(TAKEN, HIDDEN, 5, sampled=20)  # as many as there are
    assert list(every.values()) == pytest.approx(list(full.values()), abs=1e-12)


def test_what_was_fitted_is_not_taken_for_what_was_hidden(model, tmp_path):
    """Whose vectors are made from what is called hidden, all else being as it should be."""
    model.save(tmp_path / "model.npz")
    again = SampledSoftmaxRecommender.load(tmp_path / "model.npz")
    again.partial_fit_users([60, 61], TAKEN[[1, 0]])
    for one, rows in ((model, np.arange(60)), (again, [*range(60), 1, 0])):
        hidden = HIDDEN[rows]
        with pytest.raises(ValueError, match="pass what `fit` was given first, and the hidden"):
            one.evaluate(hidden, TAKEN[rows])
        one.evaluate(TAKEN[rows], hidden)
        # more or less than what was fitted may be left out of the lists
        part = hidden.multiply(np.arange(30) % 2 == 0).tocsr()
        one.evaluate(TAKEN[rows] + part, hidden - part)
        one.evaluate(TAKEN[rows] * 0, hidden)


@pytest.mark.parametrize(
    "hidden, sampled, message",
    [
        (HIDDEN * 0, None, "`hidden` must hold items to be found.*got 0 items"),
        (HIDDEN[:5], None, r"`hidden` must have shape \(60, 30\), got \(5, 30\)"),
        (TAKEN, None, "`hidden` must hold items to be found, and none of `user_items`"),
        (HIDDEN, 21, "`num_sampled` must be at most the number of negatives, got 21 of 20"),
        (HIDDEN, 0, "`num_sampled` must be at least 1"),
    ],
)
def test_hidden_items_that_are_refused(model, hidden, sampled, message):
    with pytest.raises(ValueError, match=message):
        model.evaluate(TAKEN, hidden, 5, sampled=sampled)


def test_what_was_done_is_saved_and_a_file_without_it_can_be_saved_again(tmp_path):
    model = make(max_iter=2).fit(TAKEN)
    done, model.num_sampled = model.resolved_, 7  # which the next fit goes by
    model.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxRecommender.load(tmp_path / "model.npz")
    assert loaded.resolved_ == done
    del loaded.resolved_  # as of a file of an older version
    loaded.save(tmp_path / "old.npz")
    again = SampledSoftmaxRecommender.load(tmp_path / "old.npz")
    assert not hasattr(again, "resolved_") and again.loss_curve_ == model.loss_curve_
