"""Training with a running estimate for each example: what is kept, passed on, saved, refused."""

import numpy as np
import pytest
from scipy import sparse

from samplesoft.cli import main
from samplesoft.losses import MovingAverageLoss, SampledSoftmaxLoss
from samplesoft.models import LinearSoftmaxSettings, SoftmaxSettings
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers import make_optimizer
from samplesoft.training import (
    RetrievalSettings,
    RetrievalTask,
    Settings,
    fit,
    read_checkpoint,
    read_linear_softmax,
    train,
)
from samplesoft.training.linear_task import Examples, LinearTask

N, V, CLASSES = 90, 30, 11
SMALL = {"loss": "moving-average", "embedding_dim": 8, "num_sampled": 5, "batch_size": 8}
KINDS = {  # fused, with a sampler that follows the contexts, and with class vectors on the inputs
    "fused": {"sampler": "unigram", "gamma": 0.3},
    "clusters": {"sampler": "clusters"},
    "on inputs": {"sampler": "unigram", "scent_alpha": 0.5, "embedding_dim": None},
}


def data(several=False):
    rng = np.random.default_rng(0)
    x = sparse.random_array((N, V), density=0.2, format="csr", random_state=rng)
    labels = np.zeros((N, CLASSES))
    labels[np.arange(N), rng.integers(0, CLASSES, N)] = rng.uniform(0.5, 2.0, N)
    labels[7] = 0.0  # an example without a label
    if several:
        labels[[40, 50], :3] = 1.0
    return x, sparse.csr_array(labels)


def make_task(**options):
    return RetrievalTask(*data(), RetrievalSettings(**{**SMALL, **options}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_interrupted_ends_with_the_same_bits(kind, tmp_path, monkeypatch):
    """Within an epoch, and within a block of fused steps."""
    settings = Settings(epochs=3, learning_rate=0.1, checkpoint_every=4)
    whole = make_task(**KINDS[kind])
    train(whole, settings, tmp_path / "whole")
    assert (whole.why_step_by_step(make_optimizer("adagrad", 0.1)) is None) == (kind == "fused")

    name = "run_fused_steps" if kind == "fused" else "after_step"
    original, calls = getattr(RetrievalTask, name), []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == (6 if kind == "fused" else 18):
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RetrievalTask, name, interrupted)
        train(make_task(**KINDS[kind]), settings, tmp_path / "parts")

    parts = make_task(**KINDS[kind])
    train(parts, settings, tmp_path / "parts", resume=True)
    assert parts.log_sums.tobytes() == whole.log_sums.tobytes()
    one, other = (
        read_checkpoint(tmp_path / run / "checkpoint.npz").arrays for run in ("whole", "parts")
    )
    assert {k: a.tobytes() for k, a in one.items()} == {k: a.tobytes() for k, a in other.items()}
    np.testing.assert_array_equal(one["state/log_sums"], whole.log_sums)
    assert read_linear_softmax(tmp_path / "whole" / "best.npz").step > 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_example_has_its_own_number(kind):
    task = make_task(**KINDS[kind], validation=0.2)
    assert task.log_sums.shape == (N,) and np.isneginf(task.log_sums).all()
    optimizer = make_optimizer("adagrad", 0.1)
    fit(task, optimizer, epochs=1)
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(task.log_sums)), task.rows)
    before = task.log_sums.copy()
    task.begin_epoch(1, 0)
    fit(task, optimizer, epochs=1, max_steps=1)
    changed = np.flatnonzero(task.log_sums != before)
    assert 0 < len(changed) <= task.batch_size
    assert np.isin(changed, task._batches[0]).all()


@pytest.mark.parametrize("rates", [{}, {"gamma": 0.4}, {"scent_alpha": 0.5}])
def test_fused_epochs_are_those_of_single_steps(rates, monkeypatch):
    """With the draws of fused steps, which dense inputs get."""
    x, labels = data()
    classes = labels.toarray().argmax(axis=1)
    tasks = []
    for inputs in (x.astype(np.float64), x.toarray()):
        options = {"sampler": "unigram", "num_sampled": 5, "embedding_dim": 8}
        settings = LinearSoftmaxSettings(loss="moving-average", **options, **rates)
        task = LinearTask(V, CLASSES, settings, np.ones(CLASSES), 3, np.float64)
        task.use(Examples(inputs, classes, np.linspace(0.5, 1.5, N)), np.arange(N), 8)
        fit(task, make_optimizer("adagrad", 0.1), epochs=3)
        tasks.append(task)
    one, other = tasks
    np.testing.assert_allclose(one.log_sums, other.log_sums, rtol=1e-9)
    for name, array in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], array, rtol=1e-8, atol=1e-10)
    assert (one.log_sums != 0.0).all()


def test_gamma_of_one_is_sampled_softmax_to_the_bit():
    results = []
    for options in ({"gamma": 1.0}, {"loss": "sampled-masked"}):
        task = make_task(sampler="unigram", **options)
        progress = fit(task, make_optimizer("adagrad", 0.1), epochs=2)
        results.append((progress.loss_sum, *task.parameters.values()))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_gamma_changes_what_is_learned():
    """Or the numbers would not be used."""
    first, second = (make_task(sampler="unigram", gamma=gamma) for gamma in (1.0, 0.1))
    for task in (first, second):
        fit(task, make_optimizer("adagrad", 0.1), epochs=2)
    name = "softmax.class_embeddings"
    assert np.abs(first.parameters[name] - second.parameters[name]).max() > 1e-3


@pytest.mark.parametrize("reduction", ["pal-n", "pal"])
def test_the_weight_of_a_single_label(reduction):
    """In a sum it counts, as for other losses; in a mean it does not."""
    steps = []
    for options in ({"gamma": 1.0}, {"loss": "sampled-masked"}):
        task = make_task(sampler="clusters", label_reduction=reduction, **options)
        loss, gradients = task.step(0, 0)
        steps.append((loss, gradients["embedding.weights"].rows))
    for one, other in zip(*steps, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


def test_a_step_changes_nothing_until_it_is_taken():
    task = make_task(sampler="clusters")
    first, gradients = task.step(0, 0)
    assert np.isneginf(task.log_sums).all()
    assert task.step(0, 0)[0] == first
    task.after_step(gradients)
    assert np.isfinite(task.log_sums).sum() == task.batch_size


def test_other_examples_are_new():
    task = make_task(sampler="unigram")
    fit(task, make_optimizer("adagrad", 0.1), epochs=1)
    with task.using(task.data, task.rows[:20], 4):
        assert np.isneginf(task.log_sums).all()
    assert task.log_sums is None


# --- settings ---------------------------------------------------------------------------------


def test_rates_reach_the_loss():
    def loss(**options):
        settings = LinearSoftmaxSettings(loss="moving-average", sampler="unigram", **options)
        return settings.make_loss(CLASSES, 4, "sum")

    assert (loss().gamma, loss().alpha) == (0.5, None)
    assert (loss(gamma=0.4).gamma, loss(gamma=1).alpha) == (0.4, None)
    assert (loss(scent_alpha=3.0).gamma, loss(scent_alpha=3.0).alpha) == (None, 3.0)
    assert loss(alpha=0.5, embedding_dim=None).gamma == 0.5  # a penalty
    layer = SoftmaxSettings(loss="moving-average", sampler="uniform", num_sampled=2)
    assert isinstance(layer.make_layer(np.eye(4), None, 0).loss, MovingAverageLoss)


def test_files_have_rates_that_were_given():
    settings = LinearSoftmaxSettings(loss="moving-average", sampler="unigram")
    assert not {"gamma", "scent_alpha"} & settings.config().keys()
    given = LinearSoftmaxSettings(loss="moving-average", sampler="unigram", scent_alpha=2.0)
    assert given.config()["scent_alpha"] == 2.0 and "gamma" not in given.config()
    assert LinearSoftmaxSettings(**given.config()) == given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gamma": 0.0}, "`gamma` must be"),
        ({"gamma": 1.5}, "`gamma` must be"),
        ({"scent_alpha": -1.0}, "`scent_alpha` must be"),
        ({"scent_alpha": "1"}, "`scent_alpha` must be"),
        ({"gamma": 0.1, "scent_alpha": 1.0}, "`scent_alpha` must be left out where `gamma`"),
        ({"loss": "sampled-masked", "gamma": 0.1}, "`gamma` must be None with loss='sampled-m"),
        ({"loss": "sampled-masked", "scent_alpha": 1}, "`scent_alpha` must be None with loss"),
        ({"label_reduction": "ova"}, "`label_reduction` must not be 'ova'"),
    ],
)
def test_settings_that_are_refused(options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        RetrievalSettings(**{**SMALL, "sampler": "unigram", **options})


def test_several_labels_are_refused_before_any_work():
    settings = RetrievalSettings(**SMALL)
    with pytest.raises(ValueError, match="`labels` must hold one label an example.*in row 40"):
        RetrievalTask(*data(several=True), settings)


def test_rows_twice_are_refused():
    task = make_task()
    with pytest.raises(ValueError, match="`rows` must be distinct"):
        task.use(task.data, np.array([1, 2, 1]), 2)


def test_a_state_of_another_task_is_refused():
    task = make_task()
    state = task.state()
    with pytest.raises(ValueError, match=r"`log_sums` must have shape \(90,\)"):
        task.load_state({**state, "log_sums": np.zeros(3)})
    with pytest.raises(ValueError, match="`log_sums` must be finite, got nan"):
        task.load_state({**state, "log_sums": np.full(N, np.nan)})


def test_a_model_takes_an_array_it_can_overwrite():
    settings = LinearSoftmaxSettings(loss="moving-average", sampler="unigram", num_sampled=3)
    model = LinearSoftmax(V, CLASSES, settings, counts=np.ones(CLASSES), rng=0)
    x = data()[0][:2].astype(np.float32)
    kept = np.full(2, -np.inf)
    loss, _ = model.step(x, [0, 1], log_sums=kept, rng=0)
    assert loss == pytest.approx(kept.mean(), rel=1e-6)
    assert model.step(x, [0, 1], rng=0)[0] == loss  # new by default
    for wrong in ([0.0, 0.0], np.zeros(2, np.float32), np.broadcast_to(0.0, 2)):
        with pytest.raises(TypeError, match="`log_sums` must be"):
            model.step(x, [0, 1], log_sums=wrong, rng=0)
    model.softmax.loss = SampledSoftmaxLoss(scheme="masked", normalize=True, reduction="sum")
    with pytest.raises(TypeError, match="`log_sums` must be None"):
        model.step(x, [0, 1], log_sums=kept, rng=0)


# --- the command ------------------------------------------------------------------------------


def write(path, several=False):
    x, labels = data(several)
    lines = [f"{N} {V} {CLASSES}"]
    for row, own in zip(x.toarray(), labels.toarray(), strict=True):
        pairs = " ".join(f"{f}:{row[f]:.4f}" for f in np.flatnonzero(row))
        lines.append(f"{','.join(map(str, np.flatnonzero(own)))} {pairs}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def run(tmp_path, *options, several=False):
    path = write(tmp_path / "train.txt", several)
    small = ["--embedding-dim", "4", "--num-sampled", "3", "--batch", "16"]
    out = ["--out", str(tmp_path / "run")]
    loss = ["--loss", "moving-average"]
    return main(["train", "xc", "--train", path, *out, *small, *loss, *options])


def test_a_run_by_the_command(tmp_path):
    assert run(tmp_path, "--epochs", "1", "--gamma", "0.2") == 0
    assert main(["train", "xc", "--out", str(tmp_path / "run"), "--resume", "--epochs", "2"]) == 0
    checkpoint = read_checkpoint(tmp_path / "run" / "checkpoint.npz")
    assert checkpoint.config["task"]["gamma"] == 0.2
    assert checkpoint.arrays["state/log_sums"].shape == (N,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gamma", "2"], "--gamma must be"),
        (["--gamma", "0.2", "--scent-alpha", "1"], "--scent-alpha must be left out where --gamma"),
        (["--loss", "full", "--gamma", "0.2"], "--gamma has no effect with --loss full"),
        ([], "`labels` must hold one label an example with loss='moving-average', got "),
    ],
)
def test_what_the_command_refuses(options, said, tmp_path, capsys):
    assert run(tmp_path, *options, several=not options) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
