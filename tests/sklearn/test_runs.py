"""A classifier from what ``samplesoft train xc`` and ``train items`` have written."""

import json

import numpy as np
import pytest
from oracles.linear_task import LinearTask
from retrieval_files import write_files

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.base import clone

from samplesoft.cli import main
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import (
    RetrievalSettings,
    RetrievalTask,
    Settings,
    read_checkpoint,
    train,
    write_checkpoint,
)

load = SampledSoftmaxClassifier.load
SMALL = ["--batch", "16", "--epochs", "2"]
DRAWS = ["--sampler", "unigram", "--num-sampled", "5", "--tau", "6"]
RUNS = {
    "xc": ["xc", *DRAWS],
    "plain": ["xc", "--loss", "full", "--no-normalize"],
    "single": ["xc", *DRAWS],
    "items": ["items", *DRAWS],
    "direct": ["xc", "--no-embedding", "--loss", "full-logistic", "--alpha", "1e-4"],
    "adam": ["xc", *DRAWS, "--optimizer", "adam"],
    "certain": ["xc", *DRAWS, "--num-certain", "3"],
    "absolute": ["xc", "--loss", "full-absolute"],
}
DATA = {"single": "single", "items": "items"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(files):
    """Return a function that trains, once, a run by its name, and returns its folder."""

    def trained(name):
        kind, *options = RUNS[name]
        if not (files / name).exists():
            data = ["--train", str(data_of(files, name)), "--out", str(files / name)]
            small = [] if "--no-embedding" in options else ["--embedding-dim", "8"]
            assert main(["train", kind, *data, *SMALL, *small, *options]) == 0
        return files / name

    return trained


def data_of(files, name):
    return files / f"{DATA.get(name, 'xc')}-train.txt"


def examples(files, name):
    """Return inputs and labels of a run."""
    if RUNS[name][0] == "items":
        taken = load_interactions(data_of(files, name))
        return taken, taken
    X, Y = load_xml_repository(data_of(files, name))
    return X, Y.indices if name == "single" else Y


@pytest.mark.parametrize("name", ["xc", "plain", "single", "items", "adam", "direct"])
@pytest.mark.parametrize("part", ["best.npz", "checkpoint.npz"])
def test_predictions_are_those_of_the_command(name, part, run, files, tmp_path):
    path, saved, out = run(name) / part, tmp_path / "saved.npz", tmp_path / "out.jsonl"
    clf, (X, _) = load(path), examples(files, name)
    ids, scores = clf.predict_topk(X, 3)
    clf.save(saved)
    for model in (path, saved):
        given = ["--input", str(data_of(files, name)), "--k", "3"]
        assert main(["predict", "--model", str(model), *given, "--output", str(out)]) == 0
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        np.testing.assert_array_equal([line["classes"] for line in lines], ids)
        np.testing.assert_allclose([line["scores"] for line in lines], scores, atol=1e-6)
    for other, given in ((load(saved), X), (clf, X.toarray()), (clf, X.astype(np.float64))):
        np.testing.assert_array_equal(other.predict_topk(given, 3)[0], ids)
    assert clf.classes_.tolist() == list(range(30 if name == "items" else 10))
    inner = clf.embed(X) @ clf.model_.class_vectors().T * clf.model_.settings.tau
    if name == "items":
        inner[X.nonzero()] = -np.inf
    np.testing.assert_allclose(-np.sort(-inner, axis=1)[:, :3], scores, rtol=1e-5)
    if name == "xc":  # inputs that were not divided by their norms would differ
        wrong = clf.model_.top_k(X, 3)[1]
        assert np.abs(wrong - scores).max() > 0.01


def test_labels_come_in_the_form_of_the_data(run, files):
    X, Y = examples(files, "xc")
    several = load(run("xc") / "best.npz")
    scores, each = (
        several.decision_function(X).astype(float),
        Y.sum() / np.diff(Y.indptr).astype(bool).sum(),
    )
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(several.predict_proba(X), 1.0 - (1.0 - p) ** each, rtol=1e-5)
    np.testing.assert_array_equal(several.predict(X).toarray(), 1.0 - (1.0 - p) ** each >= 0.5)
    assert 0.0 < several.score(X, Y) <= 1.0
    X, y = examples(files, "single")
    one = load(run("single") / "best.npz")
    np.testing.assert_array_equal(one.predict(X), one.predict_topk(X, 1)[0][:, 0])
    np.testing.assert_allclose(one.predict_proba(X).sum(axis=1), 1.0)
    assert one.score(X, y) == np.mean(one.predict(X) == y) > 0.3


def test_items_that_were_taken_are_left_out(run, files):
    X, _ = examples(files, "items")
    clf, taken = load(run("items") / "best.npz"), X.toarray() > 0
    ids, scores = clf.predict_topk(X, 30)
    assert (np.isneginf(scores).sum(axis=1) == taken.sum(axis=1)).all()
    assert not taken[np.arange(200)[:, None], ids][np.isfinite(scores)].any()
    np.testing.assert_array_equal(np.isneginf(clf.decision_function(X)), taken)
    p = clf.predict_proba(X)
    assert (p[taken] == 0.0).all() and (p[~taken] > 0.0).all()
    assert not clf.predict(X).multiply(X).nnz
    more = [[row[0]] for row in ids]  # the best of each, besides
    others, _ = clf.predict_topk(X, 3, exclude=more)
    np.testing.assert_array_equal(others, ids[:, 1:4])
    with pytest.raises(ValueError, match="`early_stopping` must be False for a model of samplesof"):
        clf.set_params(early_stopping=True, warm_start=True).fit(X, X)


@pytest.mark.parametrize("name", ["xc", "plain", "items", "adam"])
def test_parameters_are_the_settings_of_the_run(name, run):
    path = run(name) / "best.npz"
    config, found = read_checkpoint(path).config, load(path).get_params()
    named = {key: value for key, value in config["task"].items() if key in found}
    assert len(named) == 15
    drawn = {key: value for key, value in named.items() if value is not None}
    assert {key: found[key] for key in drawn} == drawn
    assert len(drawn) == (12 if name == "plain" else 14)  # others have defaults
    wanted = ("adam", 0.01) if name == "adam" else ("adagrad", 0.1)
    assert (found["optimizer"], found["learning_rate"]) == wanted
    assert found["random_state"] == config["task"]["seed"]


def same(first, second):
    return all(np.array_equal(array, second[name]) for name, array in first.items())


@pytest.mark.parametrize(
    ("sampler", "optimizer"),
    [
        ("clusters", "adagrad"),
        ("learned-unigram", "adam"),
        ("rff", "momentum"),
        ("unigram", "sgd"),
    ],
)
@pytest.mark.parametrize("kind", ["xc", "items"])
def test_a_step_is_the_next_one_of_the_run(kind, sampler, optimizer, files, tmp_path):
    """To the last bit, in a run whose epochs are one step."""
    X, Y = examples(files, kind)
    how = {"sampler": sampler, "num_sampled": 5, "num_features": 16, "embedding_dim": 6}
    settings = RetrievalSettings(**how, batch_size=300, validation=0.0, seed=3)
    task = RetrievalTask(X, Y, settings, leave_out=kind == "items")
    rate = {"optimizer": optimizer, "learning_rate": 0.2}
    train(task, Settings(epochs=3, **rate), tmp_path)
    load(tmp_path / "checkpoint.npz").save(tmp_path / "saved.npz")
    clf, anew = (load(tmp_path / name) for name in ("saved.npz", "checkpoint.npz"))
    anew._learner.optimizer.load_state({"steps": np.array(0)})
    rows = task._steps.order(task._rows, 3)
    train(task, Settings(epochs=4, **rate), tmp_path, resume=True)
    assert same(task.parameters, clf.partial_fit(X[rows], Y[rows]).model_.parameters)
    stateless = optimizer == "sgd"
    found = anew.partial_fit(X[rows], Y[rows]).model_.parameters
    assert same(task.parameters, found) == stateless


def test_a_round_is_the_next_epoch_of_the_run(files, tmp_path):
    """To the last bit: both make the sampler anew after 128 steps, within the second epoch."""
    X, Y = examples(files, "xc")
    how = {"sampler": "rff", "num_sampled": 5, "num_features": 16, "embedding_dim": 6}
    settings = RetrievalSettings(**how, batch_size=4, validation=0.0)
    rate = {"optimizer": "adagrad", "learning_rate": 0.2}
    task = RetrievalTask(X, Y, settings)
    assert 64 < task.num_steps < 128 < 2 * task.num_steps
    train(task, Settings(epochs=1, **rate), tmp_path)
    clf = load(tmp_path / "checkpoint.npz").set_params(warm_start=True, max_iter=1)
    train(task, Settings(epochs=2, **rate), tmp_path, resume=True)
    labelled = np.flatnonzero(np.diff(Y.indptr))
    assert same(task.parameters, clf.fit(X[labelled], Y[labelled]).model_.parameters)
    assert not same(task.parameters, clf.fit(X[labelled], Y[labelled]).model_.parameters)


@pytest.mark.parametrize("name", ["xc", "single", "items", "certain", "adam"])
def test_training_goes_on(name, run, files, tmp_path):
    X, y = examples(files, name)
    clf = load(run(name) / "best.npz").set_params(warm_start=True, max_iter=12)
    before = clf.model_
    if name in ("xc", "certain", "adam"):
        X, y = X[:7], y[:7]  # with a label each
    clf.fit(X, y)
    assert clf.model_ is before
    assert clf.loss_curve_[-1] < clf.loss_curve_[0]
    assert clf.model_.settings.num_certain == 3 * (name == "certain")
    clf.set_params(tau=2.0)
    with pytest.raises(ValueError, match="made with other tau: got 2.0, and it has 6.0"):
        clf.partial_fit(X, y)
    clf.set_params(tau=6.0, optimizer="momentum")
    with pytest.raises(ValueError, match="made with other optimizer: got 'momentum', and it has"):
        clf.partial_fit(X, y)


def test_what_a_classifier_lacks_is_not_gone_on_with(files, tmp_path):
    X, y = examples(files, "xc")
    X, y = X[:7], y[:7]
    how = {"optimizer": "momentum", "optimizer_options": {"momentum": 0.5}}
    small = {"sampler": "unigram", "num_sampled": 5, "embedding_dim": 6, "validation": 0.0}
    task = RetrievalTask(X, y, RetrievalSettings(**small))
    train(task, Settings(epochs=1, learning_rate=0.1, **how), tmp_path / "run")
    clf = load(tmp_path / "run" / "best.npz")
    clf.save(tmp_path / "saved.npz")
    for model in (clf, load(tmp_path / "saved.npz")):
        with pytest.raises(ValueError, match="with options of"):
            model.partial_fit(X, y)
        with pytest.raises(ValueError, match="call fit without warm_start"):
            model.set_params(warm_start=True).fit(X, y)
        model.set_params(warm_start=False, max_iter=1).fit(X, y).partial_fit(X, y)
        wanted = clone(model).fit(X, y).partial_fit(X, y)
        assert same(wanted.model_.parameters, model.model_.parameters)


def test_checkpoints_that_are_refused(run, tmp_path):
    path = tmp_path / "best.npz"
    train(LinearTask(), Settings(epochs=1, learning_rate=0.1), tmp_path / "other")
    for model, message in [
        (tmp_path / "other" / "best.npz", "sparse inputs, got 'linear'; take best"),
        (run("absolute") / "best.npz", "a model of plain scores, got one of absolute"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(model)
    for change, message in [
        (lambda c: c.arrays.pop("examples/counts"), "how often each class occurs, as this version"),
        (lambda c: c.arrays.update({"examples/counts": np.ones(9)}), "`counts` must have shape"),
        (lambda c: c.config["task"].update(num_labeled="1"), "`num_labeled` must be an integer"),
        (lambda c: c.config["task"].update(seed=-1), "seed"),
        (lambda c: c.config["task"]["linear_softmax"].update(unit_inputs=1), "unit_inputs"),
        (lambda c: c.config["task"].pop("dropout"), "unknown 'dropout'"),
        (lambda c: c.config.pop("training"), "unknown 'training'"),
        (lambda c: c.config.update(training=3), "must hold what this version"),
        (lambda c: c.arrays.pop("optimizer/steps"), "must hold what this version"),
        (lambda c: c.values.update(step=-1), "`num_steps` must be at least 0"),
    ]:
        checkpoint = read_checkpoint(run("xc") / "best.npz")
        change(checkpoint)
        write_checkpoint(path, checkpoint)
        with pytest.raises(ValueError, match=message) as error:
            load(path)
        assert str(error.value).startswith(f"{str(path)!r} must hold ")
