"""``samplesoft train`` and ``verify --checkpoint``: what they write, print, and refuse."""

import errno
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from run_files import assert_same_end

from samplesoft.cli import main
from samplesoft.data.corpus import read_corpus
from samplesoft.losses import SparseRows
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers.registry import SAMPLERS as SAMPLER_NAMES
from samplesoft.training import (
    LanguageModelSettings,
    LanguageModelTask,
    ToySettings,
    ToyTask,
    read_checkpoint,
    read_examples,
    read_log,
)

FILES = ("checkpoint.npz", "best.npz", "log.jsonl")
SMALL = [
    "--embedding-dim",
    "8",
    "--layers",
    "2",
    "--batch",
    "10",
    "--window",
    "14",
    "--epochs",
    "2",
]
SAMPLED = ["--num-sampled", "6"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return a folder with a text whose next word follows from the word before in most cases."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    follower = rng.permutation(30)
    for part, lines in (("train", 400), ("valid", 12), ("test", 10)):
        text = []
        for _ in range(lines):
            word, words = int(rng.integers(30)), []
            for _ in range(6):
                words.append(f"w{word}")
                word = int(follower[word]) if rng.random() < 0.8 else int(rng.integers(30))
            text.append(" ".join(words))
        (folder / f"my.{part}.txt").write_text("\n".join(text) + "\n")
    return folder


def lm(corpus, out, *options):
    return main(["train", "lm", "--corpus", str(corpus), "--out", str(out), *SMALL, *options])


def test_language_model(corpus, tmp_path, capsys):
    out, results = tmp_path / "run", tmp_path / "results.json"
    assert lm(corpus, out, *SAMPLED, "--json", str(results)) == 0
    text = capsys.readouterr().out
    for words in (
        "epoch  train loss",
        "Lowest validation loss in epoch",
        "validation perplexity",
        "test",
    ):
        assert words in text
    values = json.loads(results.read_text())
    assert [line["epoch"] for line in values["epochs"]] == [1, 2]
    assert values["config"]["sampler"] == "clusters"
    losses = [line["validation_loss"] for line in values["epochs"]]
    assert values["validation"]["loss"] == min(losses)
    assert values["validation"]["perplexity"] == pytest.approx(np.exp(min(losses)))
    assert values["test"]["perplexity"] == pytest.approx(np.exp(values["test"]["loss"]))
    assert {path.name for path in out.iterdir()} == {*FILES, "options.json"}
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert max(map(len, text.splitlines())) <= 100


def test_language_model_of_one_text(corpus, tmp_path):
    results = tmp_path / "results.json"
    text = corpus / "my.train.txt"
    assert lm(text, tmp_path / "run", *SAMPLED, "--json", str(results)) == 0
    assert json.loads(results.read_text())["test"]["perplexity"] > 1.0


LEARNING = [
    "--layers",
    "1",
    "--embedding-dim",
    "32",
    "--tau",
    "5",
    "--epochs",
    "6",
    "--learning-rate",
    "0.01",
]


@pytest.mark.parametrize(
    "options",
    [
        ["--loss", "full"],
        ["--sampler", "unigram", "--num-sampled", "20"],
        ["--sampler", "rff", "--num-sampled", "20", "--num-features", "64"],
        ["--loss", "sampled-masked", "--sampler", "softmax", "--num-sampled", "20", "--shared"],
    ],
)
def test_language_model_learns(options, corpus, tmp_path):
    """The text has a perplexity of about 4; counts of words alone reach about 25."""
    results = tmp_path / "results.json"
    assert lm(corpus, tmp_path / "run", *LEARNING, *options, "--json", str(results)) == 0
    assert json.loads(results.read_text())["validation"]["perplexity"] < 7.0


@pytest.mark.parametrize(
    "options, tau, optimizer, rate",
    [
        (["--sampler", "unigram", "--num-sampled", "6"], 10.0, "adam", 0.003),
        (["--loss", "full", "--no-normalize"], 1.0, "sgd", 1.0),
        (["--loss", "full", "--optimizer", "adagrad", "--tau", "3"], 3.0, "adagrad", 0.1),
        (["--loss", "full", "--learning-rate", "0.5"], 10.0, "adam", 0.5),
    ],
)
def test_defaults_follow_what_is_trained(options, tau, optimizer, rate, corpus, tmp_path):
    assert lm(corpus, tmp_path / "run", *options, "--epochs", "1") == 0
    config = read_checkpoint(tmp_path / "run" / "checkpoint.npz").config
    assert config["task"]["tau"] == config["task"]["softmax"]["tau"] == tau
    assert config["training"]["optimizer"] == optimizer
    assert config["training"]["learning_rate"] == rate


FEATURES, OFTEN, SELDOM = ["--num-features", "16"], [], ["--update-every", "3"]
SAMPLERS = [
    *(["rff", *FEATURES, *every] for every in (OFTEN, SELDOM)),
    *(["quadratic", *every] for every in (OFTEN, SELDOM)),
    *(["two-pass", *every] for every in (OFTEN, SELDOM)),
    ["rff+softmax-leaf", *FEATURES],
    ["softmax", *SELDOM],
    ["mixture", *FEATURES, *SELDOM],
    ["unigram"],
    ["learned-unigram"],
]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS, ids=" ".join)
def test_resumed_language_model_ends_with_the_same_bits(
    sampler, corpus, tmp_path, monkeypatch, capsys
):
    options = ["--num-sampled", "6", "--sampler", *sampler, "--dropout", "0.2"]
    options += ["--checkpoint-every", "7"]
    assert lm(corpus, tmp_path / "whole", *options) == 0

    step, calls = LanguageModelTask.step, []

    def interrupted(self, epoch, index):
        calls.append(index)
        if len(calls) in (12, 29):
            raise KeyboardInterrupt
        return step(self, epoch, index)

    monkeypatch.setattr(LanguageModelTask, "step", interrupted)
    resume = ["train", "lm", "--out", str(tmp_path / "parts"), "--resume"]
    assert lm(corpus, tmp_path / "parts", *options) == 130
    assert "interrupted; continue with --out" in capsys.readouterr().err
    assert main(resume) == 130
    assert "steps in an epoch, goes on in epoch 1" in capsys.readouterr().out
    assert main(resume) == 0
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_sampler_that_is_not_refreshed_is_noticed(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("samplesoft.models.softmax_layer.SoftmaxLayer.refresh", lambda self: None)
    assert lm(corpus, tmp_path / "whole", *SAMPLED) == 0
    assert lm(corpus, tmp_path / "parts", *SAMPLED, "--epochs", "1") == 0
    assert lm(corpus, tmp_path / "parts", *SAMPLED, "--resume") == 0
    with pytest.raises(AssertionError):
        assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_sampler_that_forgets_is_noticed(corpus, tmp_path, monkeypatch):
    options = ["--num-sampled", "6", "--sampler", "learned-unigram", "--learning-rate", "0.01"]
    assert lm(corpus, tmp_path / "whole", *options) == 0
    assert lm(corpus, tmp_path / "parts", *options, "--epochs", "1") == 0
    monkeypatch.setattr(SoftmaxLayer, "load_state", lambda self, state: None)
    assert lm(corpus, tmp_path / "parts", *options, "--resume") == 0
    with pytest.raises(AssertionError):
        assert_same_end(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_killed_process_resumes(corpus, tmp_path):
    options = [*SAMPLED, "--checkpoint-every", "3", "--seed", "1"]
    assert lm(corpus, tmp_path / "whole", *options) == 0
    command = [sys.executable, "-c", KILL, "train", "lm", "--corpus", str(corpus)]
    command += ["--out", str(tmp_path / "parts"), *SMALL, *options]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert lm(corpus, tmp_path / "parts", *options, "--resume") == 0
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


KILL = """
import os, signal, sys
import numpy as np
from samplesoft.cli import main

savez, calls = np.savez, []

def killed(stream, **arrays):
    calls.append(arrays)
    savez(stream, **arrays)
    if len(calls) == 5:
        stream.truncate(1000)
        os.kill(os.getpid(), signal.SIGKILL)

np.savez = killed
sys.exit(main(sys.argv[1:]))
"""


def test_gradients_of_the_language_model(corpus):
    """Central differences of the full loss in float32, on the largest entry of each parameter."""
    settings = LanguageModelSettings(
        embedding_dim=6, batch_size=3, num_steps=4, loss="full", sampler=None, num_sampled=None
    )
    task = LanguageModelTask(read_corpus(corpus), settings)
    _, gradients = task.step(0, 0)
    for name, array in task.parameters.items():
        gradient = gradients[name]
        dense = np.zeros_like(array)
        if isinstance(gradient, SparseRows):
            dense[gradient.ids] = gradient.rows
        else:
            dense[...] = gradient
        place = np.unravel_index(np.abs(dense).argmax(), dense.shape)
        assert abs(dense[place]) > 0.04, f"{name} is not tested by an error of 0.01"
        losses = []
        for change in (0.002, -0.002):
            array[place] += change
            losses.append(4 * task.step(0, 0)[0])  # reported for a word, minimised for a row
            array[place] -= change
        slope = (losses[0] - losses[1]) / 0.004
        assert slope == pytest.approx(float(dense[place]), rel=0.02, abs=0.01), name


def test_state_is_carried_from_window_to_window(corpus):
    text = read_corpus(corpus)
    settings = LanguageModelSettings(embedding_dim=6, batch_size=1, num_steps=7, num_features=16)
    task = LanguageModelTask(text, settings)
    for index in range(3):
        task.step(0, index)
    inputs = np.asarray(text.train)[:21, None]
    _, state, _ = task.lstm.forward(task.embedding.forward(inputs)[0])
    np.testing.assert_allclose(task.state()["hidden"], state[0], atol=1e-6)
    np.testing.assert_allclose(task.state()["cells"], state[1], atol=1e-6)
    task.step(1, 0)
    _, state, _ = task.lstm.forward(task.embedding.forward(inputs[:7])[0])
    np.testing.assert_allclose(task.state()["hidden"], state[0], atol=1e-6)


def test_validation_is_the_perplexity_of_the_whole_text(corpus):
    text = read_corpus(corpus)
    task = LanguageModelTask(text, LanguageModelSettings(embedding_dim=6, num_features=16))
    ids = np.asarray(text.valid)
    h, _, _ = task.lstm.forward(task.embedding.forward(ids[:-1, None])[0])
    h = h[:, 0].astype(np.float64)
    rows = task.parameters["softmax.class_embeddings"].astype(np.float64)
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    logits = 10.0 * h @ rows.T
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(h)), ids[1:]]
    found = task.validate()
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-5)


def test_the_most_frequent_words_take_part_for_certain(corpus, tmp_path):
    out, options = tmp_path / "run", ["--sampler", "unigram", "--epochs", "1", "--json"]
    options += [str(tmp_path / "results.json"), "--num-sampled", "2", "--num-certain", "25"]
    assert lm(corpus, out, *options) == 0
    values = json.loads((tmp_path / "results.json").read_text())
    assert values["config"]["num_certain"] == 25


def toy(out, *options):
    return main(["train", "toy", "--out", str(out), *options])


def test_toy_follows_the_tutorial(tmp_path):
    """CNTK printed 3.07, 2.46 and 1.71 nats after 25, 45 and 95 batches."""
    losses = []
    for seed in range(5):
        assert toy(tmp_path / str(seed), "--seed", str(seed)) == 0
        lines = read_log(tmp_path / str(seed) / "log.jsonl")
        losses.append([line["validation_loss"] for line in lines])
    by_batch = np.mean(losses, axis=0)  # after 10, 20, ... 100 batches
    np.testing.assert_allclose(np.interp(25, [20, 30], by_batch[1:3]), 3.067, atol=0.25)
    np.testing.assert_allclose(np.interp(45, [40, 50], by_batch[3:5]), 2.459, atol=0.25)
    np.testing.assert_allclose(np.interp(95, [90, 100], by_batch[8:]), 1.707, atol=0.25)


@pytest.mark.parametrize("options", [[], ["--data", "zipf", "--proposal", "zipf"]])
def test_resumed_toy_ends_with_the_same_bits(options, tmp_path, monkeypatch):
    options = [*options, "--checkpoint-every", "4"]
    assert toy(tmp_path / "whole", *options) == 0
    step, calls = ToyTask.step, []

    def interrupted(self, epoch, index):
        calls.append(index)
        if len(calls) == 37:
            raise KeyboardInterrupt
        return step(self, epoch, index)

    monkeypatch.setattr(ToyTask, "step", interrupted)
    assert toy(tmp_path / "parts", *options) == 130
    assert toy(tmp_path / "parts", "--resume") == 0
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_toy_data_follow_their_distribution():
    for data, weights in (("uniform", np.ones(50)), ("zipf", 1 / (np.arange(50) + 5))):
        task = ToyTask(ToySettings(data=data, test_size=20_000))
        expected = 20_000 * weights / weights.sum()
        chi_square = ((np.bincount(task.test, minlength=50) - expected) ** 2 / expected).sum()
        assert chi_square < 85.4  # 49 degrees of freedom, 0.001
        wrong = np.bincount(task.test[task.test < 49], minlength=50)
        assert ((wrong - expected) ** 2 / expected).sum() > 85.4


def test_verify_a_checkpoint(corpus, tmp_path, capsys):
    assert lm(corpus, tmp_path / "run", *SAMPLED) == 0
    path, out = tmp_path / "run" / "best.npz", tmp_path / "report.json"
    args = ["verify", "--checkpoint", str(path), "--trials", "1500", "--num-sampled", "5,20"]
    capsys.readouterr()
    assert main([*args, "--json", str(out), "--samplers", "uniform,unigram,rff"]) == 0
    report = json.loads(out.read_text())
    assert report["ok"] is True
    assert report["settings"]["tau"] == 10.0
    assert "best.npz" in report["settings"]["input"]
    assert "unigram" in capsys.readouterr().out
    found = read_examples(path)
    np.testing.assert_allclose(np.linalg.norm(found.embeddings.h, axis=1), 1.0)
    np.testing.assert_allclose(np.linalg.norm(found.embeddings.class_embeddings, axis=1), 1.0)


def test_examples_give_the_logits_of_the_model(tmp_path):
    assert toy(tmp_path / "run") == 0
    found = read_examples(tmp_path / "run" / "checkpoint.npz")
    parameters = read_checkpoint(tmp_path / "run" / "checkpoint.npz").arrays
    task = ToyTask(ToySettings())
    labels = task.test[:300]
    expected = task.projection[labels] @ parameters["parameters/softmax.class_embeddings"].T
    expected = expected + parameters["parameters/softmax.biases"]
    logits = found.tau * found.embeddings.h @ found.embeddings.class_embeddings.T
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert found.embeddings.labels.tolist() == labels.tolist()
    args = ["--trials", "1500", "--num-sampled", "5", "--samplers", "uniform", "--examples", "2"]
    assert main(["verify", "--checkpoint", str(tmp_path / "run" / "checkpoint.npz"), *args]) == 0


def test_verify_an_absolute_softmax(corpus, tmp_path):
    options = ["--loss", "sampled-absolute", "--sampler", "quadratic", "--num-sampled", "6"]
    assert lm(corpus, tmp_path / "run", *options, "--epochs", "1") == 0
    path = tmp_path / "run" / "checkpoint.npz"
    args = ["verify", "--checkpoint", str(path), "--trials", "1500", "--num-sampled", "5"]
    out = tmp_path / "report.json"
    assert main([*args, "--samplers", "uniform,unigram,quadratic", "--json", str(out)]) == 0
    assert {row["wrt"] for row in json.loads(out.read_text())["rows"]} == {"logits"}


def test_divergence_exits_1(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(LanguageModelTask, "validate", lambda self: {"loss": np.inf})
    assert lm(corpus, tmp_path / "run", *SAMPLED) == 1
    assert "training has diverged" in capsys.readouterr().err
    assert read_checkpoint(tmp_path / "run" / "checkpoint.npz").values["step"] == 0


LM = ["train", "lm", "--corpus", "{c}", "--out", "{t}/a"]


def test_rate_that_is_far_too_high(corpus, tmp_path, capsys):
    assert toy(tmp_path / "toy", "--learning-rate", "1e10") == 1
    message = capsys.readouterr().err
    assert "training has diverged" in message
    assert "Train anew in another folder with a lower learning rate." in message
    options = ["--optimizer", "sgd", "--learning-rate", "1e38", "--clip", "1e30"]
    assert lm(corpus, tmp_path / "lm", *SAMPLED, *options) == 1
    assert "epoch 1, after 0 of 19 steps: training has diverged" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2])
def test_overflow_is_divergence(count, threads, corpus, tmp_path, capsys):
    """Every loss is finite here, for vectors are divided by their norms."""
    threads(count)
    assert lm(corpus, tmp_path / "run", *SAMPLED, "--learning-rate", "1e30") == 1
    assert "training has diverged: overflow" in capsys.readouterr().err


def test_first_step_that_fails_leaves_the_folder_free(tmp_path, monkeypatch, capsys):
    def fails(self, epoch, index):
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(ToyTask, "step", fails)
        assert toy(tmp_path / "run") == 2
    assert "epoch 1, after 0 of 10 steps: no" in capsys.readouterr().err
    assert toy(tmp_path / "run") == 0


def test_few_classes(tmp_path):
    assert toy(tmp_path / "run", "--classes", "5") == 0
    assert read_checkpoint(tmp_path / "run" / "best.npz").config["task"]["num_sampled"] == 5


def test_words_that_training_has_not_seen(corpus, tmp_path):
    for part in ("train", "valid", "test"):
        text = (corpus / f"my.{part}.txt").read_text()
        (tmp_path / f"{part}.txt").write_text(text + ("" if part == "train" else "never seen\n"))
    before, after = read_corpus(corpus), read_corpus(tmp_path)
    assert "<unk>" in after.vocabulary.words and "<unk>" not in before.vocabulary.words
    assert len(after.vocabulary.words) == len(before.vocabulary.words) - 1
    unk = after.vocabulary.words.index("<unk>")
    assert after.vocabulary.counts[unk] == np.sort(before.vocabulary.counts)[:2].sum()
    assert after.test[-3:-1].tolist() == [unk, unk]
    assert lm(tmp_path, tmp_path / "run", *SAMPLED, "--epochs", "1") == 0
    assert main(["train", "lm", "--out", str(tmp_path / "run"), "--resume"]) == 0


def test_results_of_a_run_whose_files_are_missing(tmp_path, capsys):
    assert toy(tmp_path) == 0
    (tmp_path / "log.jsonl").unlink()
    capsys.readouterr()
    assert toy(tmp_path, "--resume") == 0
    assert "the log of the epochs is missing" in capsys.readouterr().out
    (tmp_path / "best.npz").unlink()
    assert toy(tmp_path, "--resume") == 2
    assert "copy checkpoint.npz to that name" in capsys.readouterr().err


def test_json_in_a_folder_to_be_made(tmp_path):
    out = tmp_path / "new" / "run"
    assert toy(out, "--json", str(out / "results.json"), "--epochs", "1") == 0
    assert json.loads((out / "results.json").read_text())["best_epoch"] == 1


def test_full_disk_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    def full(stream, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert toy(tmp_path / "run") == 2
    message = capsys.readouterr().err
    assert "checkpoint.npz' cannot be written: No space left on device; make room" in message
    assert message.count("\n") == 1


def test_sizes_are_checked_before_the_work(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("samplesoft.commands.softmax_options.available_bytes", lambda: 10**9)
    assert main([arg.format(c=corpus, t=tmp_path) for arg in [*LM, "--num-sampled", "20000"]]) == 2
    message = capsys.readouterr().err
    assert "--num-sampled 20000 draws for 700 words need 1.05 GB" in message
    assert "lower it to 19,047 or less, or draw once for all words with --shared" in message


@pytest.mark.parametrize("name", SAMPLER_NAMES)
def test_options_without_effect_are_refused_and_others_are_not(name, corpus, tmp_path, capsys):
    useful = {
        "--nu": name.startswith("rff") or name == "mixture",
        "--num-features": name.startswith("rff") or name in ("mixture", "positive"),
        "--update-every": "uni" not in name and "uniform" not in name,
    }
    for option, is_useful in useful.items():
        folder = tmp_path / option
        common = ["--sampler", name, "--num-sampled", "4", "--epochs", "1", option, "2"]
        assert lm(corpus, folder, *common) == (0 if is_useful else 2)
        assert (f"{option} has no effect with" in capsys.readouterr().err) is not is_useful


BAD = {
    "model": (["train"], "required: model"),
    "out": (["train", "toy"], "--out"),
    "corpus": (["train", "lm", "--out", "{t}/a"], "--corpus"),
    "no corpus": (["train", "lm", "--corpus", "{t}/absent", "--out", "{t}/a"], "no such file"),
    "empty corpus": (["train", "lm", "--corpus", "{t}", "--out", "{t}/a"], "a text named *train*"),
    "loss": ([*LM, "--loss", "x"], "--loss: invalid choice"),
    "sampler": (
        [*LM, "--sampler", "x"],
        "--sampler",
    ),
    "sampler of full": (
        [*LM, "--loss", "full", "--nu", "2"],
        "--nu has no effect with --loss full",
    ),
    "dropout": (
        [*LM, "--dropout", "1"],
        "--dropout",
    ),
    "norms": (
        [*LM, "--sampler", "rff", "--no-normalize"],
        "--no-normalize does not go with --sampler rff",
    ),
    "too short": (
        [*LM, "--window", "500"],
        "--batch 20 rows of --window 500",
    ),
    "resume": (["train", "toy", "--out", "{t}/a", "--resume"], "nothing to resume"),
    "m above n": (
        ["train", "toy", "--out", "{t}/a", "--num-sampled", "51"],
        "--num-sampled must be at most 50",
    ),
    "m of full": (
        ["train", "toy", "--out", "{t}/a", "--loss", "full", "--num-sampled", "5"],
        "--num-sampled has no effect with",
    ),
    "epochs": (["train", "toy", "--out", "{t}/a", "--epochs", "0"], "--epochs"),
    "rate": (["train", "toy", "--out", "{t}/a", "--learning-rate", "-1"], "--learning-rate"),
    "json": (["train", "toy", "--out", "{t}/a", "--json", "{t}/b/c.json"], "--json must name"),
    "shared by full": ([*LM, "--loss", "full", "--shared"], "--shared has no effect with"),
    "penalty of an embedding": (
        ["train", "xc", "--train", "{t}/x", "--out", "{t}/a", "--alpha", "1"],
        "--alpha has no effect with an embedding",
    ),
    "length of no embedding": (
        [*("train", "xc", "--train", "{t}/x", "--out", "{t}/a"), "--no-embedding"]
        + ["--embedding-dim", "3"],
        "--embedding-dim has no effect with --no-embedding",
    ),
    "auto and no embedding": (
        [*("train", "xc", "--train", "{t}/x", "--out", "{t}/a"), "--no-embedding"]
        + ["--sampler", "auto"],
        "--sampler auto does not go with --no-embedding",
    ),
    "shared and exclusive": (
        [*LM, "--shared"],
        "--shared does not go with --loss sampled, ",
    ),
    "two of full": (
        [*LM, "--loss", "full", "--nu", "2", "--update-every", "3"],
        "--nu, --update-every have no effect with",
    ),
    "one of jackknife": (
        [*LM, "--loss", "jackknife", "--num-sampled", "1"],
        "--num-sampled must be at least 2 for --loss jackknife",
    ),
    "certain classes of nce": (
        [*LM, "--loss", "nce", "--num-certain", "2"],
        "--num-certain does not go with --loss nce; take --loss sampled, sampled-masked",
    ),
    "certain classes of full": (
        [*LM, "--loss", "full", "--num-certain", "2"],
        "--num-certain has no effect with",
    ),
    "all words certain": (
        [*LM, "--num-certain", "999"],
        "`num_certain` must be less than the number of classes 31, got 999",
    ),
    "labels beyond the candidates": (
        [*LM, "--loss", "nce", "--sampler", "two-pass"],
        "--sampler two-pass does not go with --loss nce",
    ),
    "one word": ([*LM, "--vocabulary", "1"], "--vocabulary: expected an integer of at least 2"),
    "one class": (["train", "toy", "--out", "{t}/a", "--classes", "1"], "--classes"),
    "proposal of full": (
        ["train", "toy", "--out", "{t}/a", "--loss", "full", "--proposal", "zipf"],
        "--proposal has no effect with",
    ),
    "empty out": (["train", "toy", "--out", ""], "--out: expected the name of a folder"),
    "below a file": (
        ["train", "toy", "--out", "{c}/my.test.txt/a"],
        "my.test.txt' is a file; choose another",
    ),
    "json is out": (
        ["train", "toy", "--out", "{t}/a", "--json", "{t}/b/../a"],
        "--json must name a file of its own",
    ),
    "json is the log": (
        ["train", "toy", "--out", "{t}/a", "--json", "{t}/a/log.jsonl"],
        "--json must name a file of its own",
    ),
    "out is a file": (["train", "toy", "--out", "{c}/my.test.txt"], "my.test.txt"),
}


@pytest.mark.parametrize("args, message", BAD.values(), ids=BAD)
def test_bad_input_exits_2_with_a_message(args, message, corpus, tmp_path, capsys):
    assert main([arg.format(c=corpus, t=tmp_path) for arg in args]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_changed_settings_are_named_on_resuming(corpus, tmp_path, capsys):
    assert toy(tmp_path, "--epochs", "1", "--embedding-dim", "5") == 0
    assert toy(tmp_path, "--epochs", "1") == 2
    assert "resume it, choose another folder, or delete them" in capsys.readouterr().err
    assert toy(tmp_path, "--resume", "--num-sampled", "20", "--seed", "3") == 2
    message = capsys.readouterr().err
    assert "task.num_sampled = 10 (asked for: 20), task.seed = 0 (asked for: 3)" in message
    assert lm(corpus, tmp_path, "--resume") == 2
    assert "holds a run of samplesoft train toy" in capsys.readouterr().err


def test_epochs_are_saved(tmp_path):
    assert toy(tmp_path, "--epochs", "1") == 0
    assert toy(tmp_path, "--resume", "--epochs", "3") == 0
    assert toy(tmp_path, "--resume") == 0
    assert read_checkpoint(tmp_path / "checkpoint.npz").values["epoch"] == 3
    (tmp_path / "options.json").unlink()  # as of a run that was begun from Python
    assert toy(tmp_path, "--resume", "--epochs", "4") == 0
    (tmp_path / "options.json").write_text("[")
    assert toy(tmp_path, "--resume") == 2


def test_help_is_printed():
    for model in ("lm", "toy"):
        done = subprocess.run(
            [sys.executable, "-m", "samplesoft", "train", model, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "--checkpoint-every" in done.stdout
