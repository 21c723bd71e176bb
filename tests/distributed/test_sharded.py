"""Classes in shards: one shard is a `SoftmaxLayer`, several draw by the same law."""

import os
import signal
from concurrent.futures import CancelledError
from importlib import import_module
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse, stats

from samplesoft.distributed import ShardedSoftmaxLayer
from samplesoft.losses import SampledSoftmaxLoss, make_loss
from samplesoft.losses.vectors import unit_rows
from samplesoft.metrics import top_k_classes
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import SamplerInputs, make_sampler
from samplesoft.training import checkpoint, read_shards, write_shards

N, D, B, M = 60, 5, 7, 9
TAU = 3.0
UNIT = np.eye(N, D) + 1e-9
UNIT[D:, 0] = 1.0
COUNTS = np.arange(1.0, N + 1)
SHARDED = ["uniform", "unigram", "clusters", "rff", "rff+softmax-leaf", "positive", "quadratic"]


def vectors(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def loss_of(name="sampled", **options):
    return make_loss(name, tau=TAU, normalize=True, **options)


def sharded(name, loss, num, workers=1, rows=None, optimizer="adagrad", rate=0.3, **options):
    return ShardedSoftmaxLayer(
        vectors(0, N, D) if rows is None else rows,
        loss,
        name,
        num,
        optimizer=make_optimizer(optimizer, rate),
        workers=workers,
        **{"counts": COUNTS, "rng": 3, "num_features": 64, **options},
    )


def whole(name, loss, num, **options):
    rows = vectors(0, N, D)
    seen = unit_rows("rows", rows.copy())[0]
    inputs = SamplerInputs(seen, COUNTS, tau=TAU, num_features=64, rng=3)
    return SoftmaxLayer(rows, loss, make_sampler(name, inputs), num, **options)


def batches(steps, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield rng.normal(size=(B, D)), rng.integers(0, N, B)


@pytest.mark.thorough(but=8)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
@pytest.mark.parametrize(
    ("sampler", "loss"),
    [
        ("uniform", "sampled-masked"),
        ("uniform", "sampled"),
        ("unigram", "nce"),
        ("clusters", "sampled"),
        ("rff", "sampled-masked"),
        ("rff+softmax-leaf", "sampled-reject"),
    ],
)
def test_one_shard_is_a_softmax_layer_to_the_bit(sampler, loss, optimizer):
    loss = loss_of(loss)
    one, steps = sharded(sampler, loss, M, optimizer=optimizer), make_optimizer(optimizer, 0.3)
    other = whole(sampler, loss, M)
    assert one.shared is other.shared
    for step, (h, labels) in enumerate(batches(5)):
        value, cache = one.forward(h, labels, rng=step)
        wanted, its_cache = other.forward(h, labels, rng=step)
        assert value == wanted
        dh, kept = one.backward(cache)
        its_dh, gradients = other.backward(its_cache)
        np.testing.assert_array_equal(dh, its_dh)
        ids = gradients["class_embeddings"].ids
        np.testing.assert_array_equal(kept["class_embeddings"].ids, ids)
        steps.step(other.parameters, gradients)
        other.update(ids)
        one.update()
    rows = one.class_embeddings.take(np.arange(N))
    np.testing.assert_array_equal(rows, other.class_embeddings)
    assert one.evaluate(h, labels, k=(1, 5)) == other.evaluate(h, labels, k=(1, 5))


def test_features_are_of_one_map_without_a_seed_too():
    rows = np.repeat(vectors(0, 1, D), 4, axis=0)  # the same class in both shards
    layer = ShardedSoftmaxLayer(
        *(rows, loss_of(), "rff", 3),
        optimizer=make_optimizer("sgd", 0.1),
        workers=2,
        num_features=8,
    )
    masses = layer.sampler.probs(unit_rows("h", vectors(5, B, D))[0])
    np.testing.assert_allclose(masses, 0.25, rtol=1e-9)


@pytest.mark.parametrize("num_sampled", [1, 100])
@pytest.mark.parametrize("sampler", ["uniform", "clusters"])
def test_a_shard_may_have_no_draw_and_no_label(sampler, num_sampled):
    for shared in (False, True):
        layer = sharded(sampler, loss_of(scheme="masked"), num_sampled, 20, shared=shared)
        before = layer.class_embeddings.take(np.arange(N))
        value, cache = layer.forward(vectors(1, 2, D), [0, 0], rng=0)
        dh, gradients = layer.backward(cache)
        layer.update()
        after = layer.class_embeddings.take(np.arange(N))
        assert np.isfinite(value) and np.isfinite(dh).all()
        moved = np.flatnonzero((before != after).any(axis=1))
        assert set(moved) <= set(gradients["class_embeddings"].ids)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("sampler", SHARDED)
@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_log_q_is_that_of_all_classes(sampler, scheme, workers):
    layer = sharded(sampler, loss_of(scheme=scheme), 40, workers, shared=False)
    h = unit_rows("h", vectors(5, B, D))[0]
    labels = np.arange(B) * 7
    exclude = labels if scheme == "negatives" else None
    probs = layer.sampler.probs(h, exclude=exclude)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-12)
    draw = layer.sampler.sample(h, 40, exclude=exclude, rng=0)
    own = np.log(np.take_along_axis(probs, draw.ids, 1))
    np.testing.assert_allclose(draw.log_q, own, rtol=0, atol=1e-11)
    again = layer.sampler.log_prob(h, draw.ids, exclude=exclude)
    np.testing.assert_allclose(draw.log_q, again, rtol=0, atol=1e-11)


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("sampler", ["uniform", "unigram"])
def test_draws_that_follow_no_context_have_the_law_of_the_unsharded_sampler(sampler, exclude):
    layer = sharded(sampler, loss_of(), M, 3)
    labels = np.array([0, 19, 20, 21, 40, N - 2, N - 1])
    h, excluded = vectors(5, B, D), labels if exclude else None
    inputs = SamplerInputs(vectors(0, N, D), COUNTS)
    wanted = make_sampler(sampler, inputs).probs(h, exclude=excluded)
    found = layer.sampler.probs(h, exclude=excluded)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_the_mass_of_a_shard_is_that_of_its_cells():
    """Shards of 20 classes are one leaf each: two cumulants of the logits, and in it a softmax."""
    layer = sharded("clusters", loss_of(scheme="masked"), M, 3)
    rows, h = (unit_rows("x", vectors(s, k, D))[0] for s, k in ((0, N), (5, B)))
    logits = TAU * h @ rows.T
    cells = [slice(0, 20), slice(20, 40), slice(40, 60)]
    means = np.stack([logits[:, c].mean(axis=1) for c in cells])
    squares = TAU**2 * np.stack([h**2 @ rows[c].var(axis=0) for c in cells])
    masses = 20 * np.exp(means + squares / 2)
    within = [np.exp(logits[:, c]) / np.exp(logits[:, c]).sum(axis=1)[:, None] for c in cells]
    wanted = np.hstack([m[:, None] * q for m, q in zip(masses, within, strict=True)])
    wanted /= wanted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(layer.sampler.probs(h), wanted, rtol=1e-12)
    without = layer.sampler.probs(h, exclude=np.arange(B))
    within[0][np.arange(B), np.arange(B)] = 0.0
    kept = np.hstack([m[:, None] * q for m, q in zip(masses, within, strict=True)])
    np.testing.assert_allclose(without, kept / kept.sum(axis=1, keepdims=True), rtol=1e-12)


def test_a_tree_over_shards_is_the_tree_over_all_classes():
    """Two shards of 32 leaves are the halves of one tree, whose root has their masses."""
    rows = unit_rows("x", vectors(0, 64, D))[0]
    layer = ShardedSoftmaxLayer(
        *(rows, SampledSoftmaxLoss(tau=TAU, normalize=True), "rff", M),
        optimizer=make_optimizer("sgd", 0.1),
        **{"workers": 2, "rng": 3, "num_features": 64},
    )
    inputs = SamplerInputs(rows, tau=TAU, num_features=64, rng=3)
    h, labels = unit_rows("h", vectors(5, B, D))[0], 9 * np.arange(B)
    for exclude in (None, labels):
        wanted = make_sampler("rff", inputs).probs(h, exclude=exclude)
        np.testing.assert_allclose(layer.sampler.probs(h, exclude=exclude), wanted, rtol=1e-9)


def p_value(ids, probs):
    """Return the p-value of chi-square of draws (k,) against probabilities (n,)."""
    order = np.argsort(probs)
    expected = len(ids) * probs[order]
    bins = np.minimum(np.cumsum(expected) // 10, len(ids) // 10 - 1).astype(int)
    counts = np.bincount(bins, np.bincount(ids, minlength=len(probs))[order])
    sums = np.bincount(bins, expected)
    keep = sums > 0
    return stats.chisquare(counts[keep], sums[keep] * counts.sum() / sums.sum()).pvalue


@pytest.mark.parametrize("sampler", ["uniform", "unigram", "clusters", "rff"])
def test_draws_have_their_probabilities(sampler):
    layer = sharded(sampler, loss_of(), M, 3, shared=False)
    h, labels = unit_rows("h", vectors(5, B, D))[0], 9 * np.arange(B)
    probs = layer.sampler.probs(h, exclude=labels)
    draw = layer.sampler.sample(h, 20_000, exclude=labels, rng=1)
    for b in range(B):
        assert p_value(draw.ids[b], probs[b]) > 1e-3 / B
    flat = np.full(N, 1.0 / N)  # the wrong twin: shards drawn equally often, or no exclusion
    if sampler != "uniform":
        assert p_value(draw.ids[0], flat) < 1e-6
    # pairs of neighbours are independent: no context, no shard and no place shares a stream
    joint = (draw.ids[0] // 20) * 3 + draw.ids[1] // 20
    shares = probs[:2].reshape(2, 3, 20).sum(axis=2)
    assert p_value(joint, np.outer(*shares).ravel()) > 1e-3


def test_no_two_contexts_or_shards_draw_from_one_stream():
    """Not where a context has other numbers of draws in a shard, and is drawn for in another call.

    The first draws of two contexts in two shards of 30 classes agree once in 30 times.
    """
    layer, h, tries = sharded("uniform", loss_of(), M, 2), np.ones((2, D)), 400
    agree = np.zeros((4, 4))
    for seed in range(tries):
        ids = layer.sampler.sample(h, 5, rng=seed).ids
        offsets = [next(iter(row[row // 30 == s] % 30), -1 - s) for row in ids for s in range(2)]
        agree += np.equal.outer(offsets, offsets)
    rates = agree[np.triu_indices(4, 1)] / tries
    assert (rates < 1 / 30 + 5 * np.sqrt(1 / 30 / tries)).all() and (rates > 0).all()


def test_of_equal_scores_the_first_class_is_better():
    rows = np.tile(vectors(0, 10, D), (3, 1))
    layer = sharded("uniform", loss_of(), M, 3, rows=rows, counts=None)
    h = vectors(1, B, D)
    for k in (1, 2, 7, 30):
        wanted = top_k_classes(h, rows, k, tau=TAU, normalize=True)
        np.testing.assert_array_equal(layer.predict_topk(h, k)[0], wanted[0])


@pytest.mark.parametrize("sampler", ["uniform", "clusters"])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_are_those_of_the_loss_as_it_is_drawn(sampler, shared):
    """Draws do not move with the contexts that are shifted: they are drawn by one layer before."""
    loss = loss_of(scheme="masked")
    layer = sharded(sampler, loss, M, 3, optimizer="sgd", rate=1.0, shared=shared)
    rows, (h, labels) = vectors(0, N, D), next(batches(1))
    value, cache = layer.forward(h, labels, rng=2)
    dh, _ = layer.backward(cache)
    seen = unit_rows("h", h.copy())[0]
    draw = layer.sampler.sample(seen, M, shared=shared, rng=2)
    assert value == pytest.approx(loss.forward(h, rows, labels, draw)[0], rel=1e-12)
    layer.forward(h, labels, rng=2)
    layer.backward(layer.forward(h, labels, rng=2)[1])
    layer.update()
    moved = rows - layer.class_embeddings.take(np.arange(N))  # the gradient, by a rate of 1
    at = lambda h, rows: loss.forward(h, rows, labels, draw)[0]  # noqa: E731
    for step in np.eye(B * D)[:: B * D // 5].reshape(-1, B, D):
        slope = (at(h + 1e-6 * step, rows) - at(h - 1e-6 * step, rows)) / 2e-6
        assert slope == pytest.approx((step * dh).sum(), abs=1e-8)
    for j in {*labels, *draw.ids.ravel()[:4], 0}:
        step = np.zeros((N, D))
        step[j] = vectors(9, D)
        slope = (at(h, rows + 1e-6 * step) - at(h, rows - 1e-6 * step)) / 2e-6
        assert slope == pytest.approx((step * moved).sum(), abs=1e-8)


@pytest.mark.parametrize("labels_of_each", [1, 3])
def test_figures_and_lists_do_not_depend_on_the_number_of_shards(labels_of_each):
    h, labels = next(batches(1))
    if labels_of_each > 1:
        rows = np.repeat(np.arange(B), labels_of_each)
        columns = np.random.default_rng(0).permuted(np.tile(np.arange(N), (B, 1)), axis=1)
        columns = columns[:, :labels_of_each].ravel()
        labels = sparse.csr_array((np.ones(len(rows)), (rows, columns)), (B, N))
    one, many = (sharded("uniform", loss_of(), M, workers) for workers in (1, 7))
    wanted, found = one.evaluate(h, labels, k=(1, 20)), many.evaluate(h, labels, k=(1, 20))
    assert found.loss == pytest.approx(wanted.loss, rel=1e-13)
    assert found.top_k == wanted.top_k and found.precision_at_k == wanted.precision_at_k
    without = sparse.csr_array(np.random.default_rng(1).random((B, N)) < 0.4)
    for options in ({}, {"leave_out": without}):
        for k in (1, 20, N):
            mine, theirs = (layer.predict_topk(h, k, **options) for layer in (many, one))
            np.testing.assert_array_equal(mine[0], theirs[0])
            np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-13)


def test_training_in_shards_comes_as_far_as_in_one():
    losses = []
    for workers in (1, 4):
        layer = sharded("clusters", loss_of(), 20, workers)
        h, labels = vectors(2, 200, D), np.arange(200) % N
        h += 2.0 * vectors(7, N, D)[labels]
        for step in range(60):
            part = slice(step % 4 * 50, (step % 4 + 1) * 50)
            _, cache = layer.forward(h[part], labels[part], rng=step)
            layer.backward(cache)
            layer.update()
        losses.append(layer.evaluate(h, labels).loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[0] < 3.0 < np.log(N)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": 31}, "`workers` must be at most 30 for 60 classes"),
        ({"workers": 0}, "`workers` must be at least 1"),
        ({"workers": "no address"}, "`workers` must be a number, a client of Dask or the address"),
        ({"sampler": "softmax"}, "`sampler` must be one of uniform, unigram"),
        ({"counts": None, "sampler": "unigram"}, "`counts` must hold real numbers"),
        ({"counts": COUNTS[1:], "sampler": "unigram"}, r"`counts` must have shape \(60,\)"),
        ({"loss": make_loss("full")}, "`loss` must be a sampled loss"),
        ({"optimizer": "sgd"}, "`optimizer` must be Optimizer"),
        ({"class_embeddings": vectors(0, N, D) * np.nan}, "`class_embeddings` must be finite"),
        ({"nu": -1.0}, "`nu` must be finite and greater than 0"),
        ({"depth": 3}, "depth"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
    ],
)
def test_bad_arguments_are_told_before_work_starts(change, message):
    arguments = {
        **{"class_embeddings": vectors(0, N, D), "loss": loss_of(), "sampler": "uniform"},
        **{"num_sampled": M, "optimizer": make_optimizer("sgd", 0.1), "workers": 2},
        **{"counts": COUNTS},
    }
    if isinstance(change.get("workers"), str):
        pytest.importorskip("distributed", reason="needs the extra `dask`")
    with pytest.raises((TypeError, ValueError), match=message):
        ShardedSoftmaxLayer(**{**arguments, **change})


def test_derivatives_are_kept_for_one_step():
    layer, (h, labels) = sharded("uniform", loss_of(), M, 2), next(batches(1))
    with pytest.raises(ValueError, match="`update` must follow `backward`"):
        layer.update()
    _, old = layer.forward(h, labels, rng=0)
    _, cache = layer.forward(h, labels, rng=1)
    with pytest.raises(ValueError, match="`cache` must be that of the last `forward`"):
        layer.backward(old)
    layer.backward(cache)
    layer.update()
    with pytest.raises(ValueError, match="`update` must follow `backward`"):
        layer.update()


def test_a_shard_that_has_not_taken_all_steps_is_lost():
    layer, (h, labels) = sharded("uniform", loss_of(), M, 2), next(batches(1))
    for step in range(2):
        layer.backward(layer.forward(h, labels, rng=step)[1])
        if step:
            layer.shards._shards[1] = sharded("uniform", loss_of(), M, 2).shards._shards[1]
            layer.backward(layer.forward(h, labels, rng=step)[1])
            with pytest.raises(RuntimeError, match="worker of classes 30 to 59 was lost .*start"):
                layer.update()
        else:
            layer.update()


def trained(layer, steps, first=0):
    for step, (h, labels) in enumerate(batches(steps, seed=first), first):
        layer.backward(layer.forward(h, labels, rng=step)[1])
        layer.update()
    return layer.class_embeddings.take(np.arange(N))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_layer_goes_on_from_a_checkpoint_with_any_number_of_shards(workers, optimizer, tmp_path):
    options = {"optimizer": optimizer, "rate": 0.1}
    layer = sharded("clusters", loss_of(), M, 3, **options)
    for turn in range(2):
        rows = trained(layer, 3, turn)
        write_shards(tmp_path, layer)
    assert len(list(tmp_path.iterdir())) == 4  # the files of the first time have gone
    layer.refresh()
    again = sharded("clusters", loss_of(), M, workers, rows=read_shards(tmp_path), **options)
    assert again.steps == 6
    np.testing.assert_array_equal(again.class_embeddings.take(np.arange(N)), rows)
    for name in layer.shards.call_all("saved", [()])[0].keys() - {"optimizer/steps"}:
        old, new = (
            np.concatenate(
                [shard[name] for shard in some.shards.call_all("saved", [()] * some.shards.num)]
            )
            for some in (layer, again)
        )
        np.testing.assert_array_equal(old, new)
    wanted, found = trained(layer, 3, 9), trained(again, 3, 9)
    assert (workers == 3) == bool((found == wanted).all())


def test_a_checkpoint_is_the_old_one_until_the_new_one_is_whole(tmp_path, monkeypatch):
    layer = sharded("uniform", loss_of(), M, 3)
    rows = trained(layer, 2)
    write_shards(tmp_path, layer)
    trained(layer, 1)
    written = checkpoint.write_checkpoint

    def full(path, what):
        if path.name.endswith("-2.npz"):
            raise OSError("no room")
        written(path, what)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
        patch.setattr(checkpoint, "write_checkpoint", full)
        write_shards(tmp_path, layer)
    again = sharded("uniform", loss_of(), M, 2, rows=read_shards(tmp_path))
    np.testing.assert_array_equal(again.class_embeddings.take(np.arange(N)), rows)
    write_shards(tmp_path, layer)
    name = next(tmp_path.glob("shard-*-1.npz"))
    name.write_bytes(name.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"{name.name}.*cut short"):
        sharded("uniform", loss_of(), M, 2, rows=read_shards(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"shards\.npz"):
        read_shards(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="load the state of an optimizer of the same class"):
        name.unlink()
        write_shards(tmp_path, layer)
        sharded("uniform", loss_of(), M, 2, rows=read_shards(tmp_path), optimizer="adam")


def test_a_cluster_gives_the_bits_of_this_process(local_cluster):
    options = {"workers": local_cluster, "optimizer": "adam", "rate": 0.1}
    layer = sharded("clusters", loss_of(), M, **options)
    twin = sharded("clusters", loss_of(), M, **{**options, "workers": 2})
    np.testing.assert_array_equal(trained(layer, 4), trained(twin, 4))
    h, labels = next(batches(1))
    assert layer.evaluate(h, labels, k=(3,)) == twin.evaluate(h, labels, k=(3,))
    np.testing.assert_array_equal(layer.predict_topk(h, 5)[1], twin.predict_topk(h, 5)[1])
    for count in ("round_trips", "bytes_sent", "bytes_received"):
        assert getattr(layer.shards, count) == getattr(twin.shards, count) > 0
    with pytest.raises(ValueError, match="rows of `h` must have norm 1"):  # an error of a worker
        sharded("rff", make_loss("sampled", tau=TAU), M, local_cluster, rows=UNIT).forward(
            h, labels
        )


def test_bad_clusters_are_told_before_work_starts(local_cluster, monkeypatch):
    monkeypatch.setattr("samplesoft._executors._CONNECT_SECONDS", 0.5)
    with pytest.raises(ValueError, match=r"answers in 0\.5 s, .* got 'tcp://127\.0\.0\.1:9'"):
        sharded("uniform", loss_of(), M, "tcp://127.0.0.1:9")
    with pytest.raises(TypeError, match="`workers` must be Client, got list"):
        sharded("uniform", loss_of(), M, [1])
    workers = local_cluster.scheduler_info(n_workers=-1)["workers"]
    small = {address: {**worker, "memory_limit": 1000} for address, worker in workers.items()}
    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="on each of 2 workers"):
        patch.setattr(local_cluster, "scheduler_info", lambda n_workers: {"workers": small})
        sharded("clusters", loss_of(), M, local_cluster)
    old = {address: {"numba": "0.1"} for address in workers}
    for found, message in ((old, r"got numba 0\.1 on tcp"), ({}, "`workers` must have workers")):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=message):
            patch.setattr(local_cluster, "run", lambda function, found=found: found)
            sharded("clusters", loss_of(), M, local_cluster)


def test_a_worker_may_be_lost_while_its_shard_is_made(local_cluster, monkeypatch):
    killed = import_module("distributed").KilledWorker
    for error in (
        CancelledError("forgotten"),
        killed("a", Mock(address="b"), 3),
    ):
        made = Mock(**{"result.side_effect": error})
        with monkeypatch.context() as patch:
            patch.setattr(local_cluster, "submit", lambda *args, made=made, **options: made)
            layer = sharded("uniform", loss_of(), M, local_cluster)
        with pytest.raises(RuntimeError, match="worker of classes 0 to 29 was lost .*start again"):
            trained(layer, 1)


@pytest.mark.slow
def test_a_lost_worker_is_an_error_that_names_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("samplesoft.distributed.transport._TIMEOUT_SECONDS", 0.5)
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**how) as cluster, distributed.Client(cluster) as client:
        layer = sharded("uniform", loss_of(), M, client)
        rows = trained(layer, 2)
        write_shards(tmp_path, layer)
        pids = client.run(os.getpid)
        os.kill(pids[layer.shards._workers[1]], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="classes 30 to 59 was lost") as error:
            trained(layer, 2)
        assert str(tmp_path) in str(error.value) and "read_shards" in str(error.value)
        with pytest.raises(RuntimeError, match="was lost"):  # at once or after a silence
            trained(layer, 1)
    again = sharded("uniform", loss_of(), M, 1, rows=read_shards(tmp_path))
    np.testing.assert_array_equal(again.class_embeddings.take(np.arange(N)), rows)
