"""The recurrent language model of the figures: its text, its steps, its runs, and its script."""

import bz2
import doctest
import gzip
import importlib
import lzma
from pathlib import Path

import numpy as np
import pytest
from language_model.task import LanguageModelSettings, LanguageModelTask
from language_model.text import UNK, Corpus, Vocabulary, Windows, build_vocabulary, read_corpus
from run_files import assert_same_end
from scripts import run_script

from samplesoft.losses import SparseRows
from samplesoft.models import SoftmaxLayer
from samplesoft.training import Settings, read_checkpoint, read_examples, train

FIGURES = Path(__file__).parents[2] / "figures"
SMALL = {"embedding_dim": 8, "batch_size": 10, "num_steps": 14, "num_sampled": 6}


@pytest.mark.parametrize("name", ["layers", "lstm", "clipping", "task", "text"])
def test_examples_of_docstrings(name):
    module = importlib.import_module(f"language_model.{name}")
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def naive(ids, batch, steps, keep_short):
    """Cut a list into rows, walk them in steps, pair each token with the next of its row."""
    length = len(ids) // batch
    rows = [ids[b * length : (b + 1) * length] for b in range(batch)]
    windows = []
    for start in range(0, length - 1, steps):
        inputs = [row[start : start + steps][: length - 1 - start] for row in rows]
        targets = [row[start + 1 : start + 1 + steps] for row in rows]
        if len(targets[0]) == steps or keep_short:
            windows.append((inputs, targets))
    return windows


@pytest.mark.parametrize("keep_short", [True, False])
@pytest.mark.parametrize("batch, steps", [(1, 1), (1, 5), (3, 4), (4, 3), (7, 2), (20, 1)])
@pytest.mark.parametrize("size", [40, 41, 59, 60, 61, 100])
def test_windows(size, batch, steps, keep_short):
    ids = np.random.default_rng(size).integers(0, 1000, size)
    windows = Windows(ids, batch, steps, keep_short=keep_short)
    expected = naive(ids.tolist(), batch, steps, keep_short)
    assert len(windows) == len(expected)
    for (inputs, targets), (a, b) in zip(windows, expected, strict=True):
        assert inputs.shape == targets.shape
        assert inputs.T.tolist() == a
        assert targets.T.tolist() == b


def test_one_row_predicts_every_token_but_the_first():
    ids = np.arange(23)
    windows = Windows(ids, 1, 5, keep_short=True)
    assert np.concatenate([targets[:, 0] for _, targets in windows]).tolist() == [*range(1, 23)]


@pytest.mark.parametrize("size, batch, steps, keep", [(9, 5, 1, True), (11, 3, 3, False)])
def test_text_too_short(size, batch, steps, keep):
    needed = batch * 2 if keep else batch * (steps + 1)
    with pytest.raises(ValueError, match=f"at least {needed} tokens .* got {size}"):
        Windows(np.arange(size), batch, steps, keep_short=keep)
    assert len(Windows(np.arange(needed), batch, steps, keep_short=keep)) == 1


def test_window_out_of_range():
    windows = Windows(np.arange(10), 1, 3, keep_short=False)
    for index in (-1, 3):
        with pytest.raises(IndexError):
            windows[index]


TEXTS = {"train": "the cat sat\nthe dog sat\n", "valid": "the cat\n", "test": "a dog\nthe end\n"}


def write(folder, names):
    for part, name in names.items():
        opener = {"gz": gzip, "xz": lzma, "bz2": bz2}.get(name.rsplit(".", 1)[-1])
        with (opener.open if opener else open)(folder / name, "wt") as stream:
            stream.write(TEXTS[part])


def test_corpus_from_files_of_any_compression(tmp_path):
    write(tmp_path, {"train": "my.train.txt.gz", "valid": "valid.txt.xz", "test": "test-1.txt.bz2"})
    (tmp_path / "train.md").write_text("not a text")
    (tmp_path / "README").write_text("train")
    corpus = read_corpus(tmp_path, vocabulary_size=4)
    assert corpus.vocabulary.words == ("<eos>", "<unk>", "sat", "the")
    assert corpus.train.tolist() == [3, 1, 2, 0, 3, 1, 2, 0]
    assert corpus.valid.tolist() == [3, 1, 0]
    assert corpus.test.tolist() == [1, 1, 0, 3, 1, 0]


def test_one_text_is_split_by_lines(tmp_path):
    path = tmp_path / "text.txt.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("".join(f"word{line % 7} a b\n" for line in range(25)))
    corpus = read_corpus(path)
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [84, 8, 8]
    words = corpus.vocabulary.words
    assert [words[i] for i in corpus.valid[::4]] == ["word0", "word1"]
    (tmp_path / "short.txt").write_text("a b\na b\n")
    with pytest.raises(ValueError, match="must have at least 3 lines to be split"):
        read_corpus(tmp_path / "short.txt")
    (tmp_path / "short.txt").write_text("a b\na b\nb\n")
    assert read_corpus(tmp_path / "short.txt").test.size == 2


def test_missing_and_ambiguous_parts(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_corpus(tmp_path / "absent")
    write(tmp_path, {"train": "train.txt", "test": "test.txt"})
    with pytest.raises(FileNotFoundError, match=r"a text named \*valid\* .* got none"):
        read_corpus(tmp_path)
    write(tmp_path, {"valid": "valid.txt"})
    write(tmp_path, {"train": "train.txt.gz"})
    with pytest.raises(ValueError, match=r"one text named \*train\*, got train.txt, train.txt.gz"):
        read_corpus(tmp_path)


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


def run(corpus, out, *, epochs=2, resume=False, learning_rate=0.003, every=None, **options):
    """Train a small model in a folder."""
    task = LanguageModelTask(read_corpus(corpus), LanguageModelSettings(**{**SMALL, **options}))
    settings = Settings(epochs, "adam", learning_rate, checkpoint_every=every)
    return task, train(task, settings, out, resume=resume)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "full", "sampler": None, "num_sampled": None},
        {"sampler": "unigram", "num_sampled": 20},
        {"sampler": "rff", "num_sampled": 20, "num_features": 64},
        {"loss": "sampled-masked", "sampler": "softmax", "num_sampled": 20, "shared": True},
    ],
)
def test_language_model_learns(options, corpus, tmp_path):
    """The text has a perplexity of about 4; counts of words alone reach about 25."""
    one = {"num_layers": 1, "embedding_dim": 32, "tau": 5.0, **options}
    task, at = run(corpus, tmp_path, epochs=6, learning_rate=0.01, **one)
    assert np.exp(at.best_loss) < 7.0
    assert task.validate()["perplexity"] == pytest.approx(np.exp(task.validate()["loss"]))


SAMPLERS = [
    *({"sampler": "rff", "num_features": 16, "update_every": every} for every in (1, 3)),
    {"sampler": "quadratic"},
    {"sampler": "two-pass", "update_every": 3},
    {"sampler": "rff+softmax-leaf", "num_features": 16},
    {"sampler": "softmax", "update_every": 3},
    {"sampler": "mixture", "num_features": 16, "update_every": 3},
    {"sampler": "unigram"},
    {"sampler": "learned-unigram"},
]


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("options", SAMPLERS, ids=lambda o: o["sampler"])
def test_resumed_language_model_ends_with_the_same_bits(options, corpus, tmp_path, monkeypatch):
    options = {**options, "dropout": 0.2, "every": 7}
    run(corpus, tmp_path / "whole", **options)
    step, calls = LanguageModelTask.step, []

    def interrupted(self, epoch, index):
        calls.append(index)
        if len(calls) in (12, 29):
            raise KeyboardInterrupt
        return step(self, epoch, index)

    monkeypatch.setattr(LanguageModelTask, "step", interrupted)
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            run(corpus, tmp_path / "parts", resume=resume, **options)
    run(corpus, tmp_path / "parts", resume=True, **options)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_sampler_that_is_not_refreshed_is_noticed(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(SoftmaxLayer, "refresh", lambda self: None)
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "parts", epochs=1)
    run(corpus, tmp_path / "parts", resume=True)
    with pytest.raises(AssertionError):
        assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_sampler_that_forgets_is_noticed(corpus, tmp_path, monkeypatch):
    options = {"sampler": "learned-unigram", "learning_rate": 0.01}
    run(corpus, tmp_path / "whole", **options)
    run(corpus, tmp_path / "parts", epochs=1, **options)
    monkeypatch.setattr(SoftmaxLayer, "load_state", lambda self, state: None)
    run(corpus, tmp_path / "parts", resume=True, **options)
    with pytest.raises(AssertionError):
        assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_gradients_of_the_language_model(corpus):
    """Central differences of the full loss in float32, on the largest entry of each parameter."""
    settings = LanguageModelSettings(
        embedding_dim=6,
        batch_size=3,
        num_steps=4,
        loss="full",
        sampler=None,
        num_sampled=None,
        clip=1e9,
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


def test_examples_of_a_checkpoint_are_contexts_of_norm_1(corpus, tmp_path):
    run(corpus, tmp_path, epochs=1)
    found = read_examples(tmp_path / "best.npz")
    assert found.tau == 10.0
    np.testing.assert_allclose(np.linalg.norm(found.embeddings.h, axis=1), 1.0)
    np.testing.assert_allclose(np.linalg.norm(found.embeddings.class_embeddings, axis=1), 1.0)


@pytest.mark.parametrize("count", [1, 2])
def test_divergence_is_named(count, threads, corpus, tmp_path):
    """Losses may stay finite, for vectors are divided by their norms."""
    threads(count)
    with pytest.raises(FloatingPointError, match="training has diverged"):
        run(corpus, tmp_path, learning_rate=1e30)
    assert read_checkpoint(tmp_path / "checkpoint.npz").values["step"] == 0


@pytest.mark.parametrize(
    ("hold", "decay"), [(4, 2.0), (6, 1.2), (14, 1.15)], ids=["small", "medium", "large"]
)
def test_rates_follow_the_tutorial_of_tensorflow(hold, decay, small):
    # the tutorial raises lr_decay = 1 / decay to max(i + 1 - max_epoch, 0), i from 0
    rate, task = 1.0, small(hold=hold, decay=decay)
    for epoch in range(40):
        if epoch >= hold:
            rate /= decay
        assert task.schedule(epoch * task.num_steps + 1) == pytest.approx(rate, rel=1e-13)


def test_rates_are_those_worked_out_by_hand(small):
    wanted = {0: 1, 3: 1, 4: 1 / 2, 5: 1 / 4, 12: 2.0**-9}
    task = small()
    first = {epoch: task.schedule(epoch * task.num_steps + 1) for epoch in wanted}
    last = {epoch: task.schedule((epoch + 1) * task.num_steps) for epoch in wanted}
    assert first == last == wanted


def test_rates_are_in_the_log_and_gradients_are_clipped(small, tmp_path):
    task = small(hold=1, decay=4.0, clip=1e-3)
    lines = []
    how = {"schedule": task.schedule, "progress": lines.append}
    train(task, Settings(3, learning_rate=0.05), tmp_path, **how)
    assert [line["learning_rate"] for line in lines] == [0.05, 0.0125, 0.003125]
    _, gradients = task.step(0, 0)
    arrays = [getattr(gradient, "rows", gradient) for gradient in gradients.values()]
    assert sum(float((array**2).sum()) for array in arrays) ** 0.5 == pytest.approx(1e-3, rel=1e-4)


@pytest.fixture
def small():
    """Return a function that makes a task of six words."""

    def make(**options):
        ids = np.random.default_rng(0).integers(0, 6, 900)
        corpus = Corpus(Vocabulary(tuple("abcdef"), np.bincount(ids)), ids, ids, ids)
        options = {"sampler": "uniform", "num_sampled": 3, "num_steps": 8, **options}
        return LanguageModelTask(corpus, LanguageModelSettings(embedding_dim=8, **options))

    return make


def test_a_context_of_which_dropout_leaves_nothing_does_not_stop_training(small):
    loss, _ = small(dropout=0.5).step(0, 0)
    assert np.isfinite(loss)


@pytest.mark.parametrize(
    "options, name",
    [
        ({"embedding_dim": -1}, "embedding_dim"),
        ({"loss": "x"}, "loss"),
        ({"sampler": None}, "sampler"),
        ({"sampler": "x"}, "sampler"),
        ({"num_sampled": None}, "num_sampled"),
        ({"loss": "full"}, "sampler"),
        ({"loss": "moving-average"}, "loss"),
        ({"shared": True}, "shared"),
        ({"dropout": 1.0}, "dropout"),
        ({"nu": 0.0}, "nu"),
        ({"seed": -1}, "seed"),
        ({"clip": 0.0}, "clip"),
        ({"hold": -1}, "hold"),
        ({"decay": 0.0}, "decay"),
    ],
)
def test_malformed_settings(options, name):
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        LanguageModelSettings(**options)


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


def test_the_script_trains_and_goes_on(corpus, tmp_path):
    small = "--embedding-dim 8 --batch-size 10 --num-steps 14 --num-sampled 6".split()
    small += ["--corpus", corpus, "--out", tmp_path / "run"]
    printed = run_script(FIGURES / "train_lm.py", *small, "--epochs", 1)
    assert printed.startswith("epoch 1: train loss ") and "test perplexity" in printed
    printed = run_script(FIGURES / "train_lm.py", *small, "--epochs", 2, "--resume")
    assert printed.startswith("epoch 2: ")
    assert read_checkpoint(tmp_path / "run" / "best.npz").config["task"]["sampler"] == "clusters"
    full = ["--loss", "full", "--no-normalize", "--optimizer", "sgd", "--epochs", 1, *small[:6]]
    run_script(FIGURES / "train_lm.py", *full, *small[8:10], "--out", tmp_path / "full")
    assert read_checkpoint(tmp_path / "full" / "best.npz").config["task"]["tau"] == 1.0


def test_a_state_with_a_part_of_a_wrong_shape_is_refused(small):
    task = small(sampler="learned-unigram")
    state = task.state()
    for name, value in (("cells", np.eye(3)), ("hidden", np.full_like(state["hidden"], np.nan))):
        with pytest.raises((TypeError, ValueError), match=f"`{name}` must"):
            task.load_state(state | {name: value})
    del state["sampler.counts"]
    with pytest.raises(ValueError, match="`state` must hold counts, got nothing"):
        task.load_state(state)


def test_arguments_of_another_kind_are_refused(small):
    task = small()
    for corpus, settings in ((task.corpus, Settings(1)), ("text", task.settings)):
        with pytest.raises(TypeError, match="`(corpus|settings)` must be"):
            LanguageModelTask(corpus, settings)


TEXT = ["a", "b", "a", "c"] * 4
MASKED = np.ma.masked_array([0.0, 1.0], [True, False])
WRONG = {
    "tokens with numbers": lambda: build_vocabulary(TEXT, 3).encode(["a", 1]),
    "tokens that are masked": lambda: build_vocabulary(TEXT, 3).encode(MASKED),
    "tokens of no length": lambda: build_vocabulary(TEXT, 3).encode(np.array("a")),
    "words": lambda: Vocabulary("ab", [1, 2]),
    "words must be distinct, got 'a' twice": lambda: Vocabulary(("a", "b", "a"), [3, 2, 1]),
    "counts": lambda: Vocabulary(("a", "b"), [1.5, 2.0]),
    "counts must have shape": lambda: Vocabulary(("a", "b"), [3, 2, 1]),
}


@pytest.mark.parametrize("argument", WRONG)
def test_words_and_counts_that_are_none(argument):
    name, _, rest = argument.partition(" must")
    with pytest.raises((TypeError, ValueError), match=f"`{name.split()[0]}` must{rest}"):
        WRONG[argument]()


@pytest.mark.parametrize("words", [tuple(TEXT), iter(TEXT), np.array(TEXT), range(0)], ids=type)
def test_words_of_any_sequence_are_taken(words):
    vocabulary = build_vocabulary(TEXT, 3)
    wanted = [0, 1, 0, 2] * 4 if not isinstance(words, range) else []
    assert vocabulary.encode(words).tolist() == wanted


def test_vocabulary_orders_by_count_then_alphabet_and_pools_the_rest():
    tokens = "d d d b b a a c <unk>".split()
    full = build_vocabulary(tokens, 10)
    assert full.words == ("d", "a", "b", UNK, "c")
    np.testing.assert_array_equal(full.counts, [3, 2, 2, 1, 1])
    small = build_vocabulary(tokens, 3)
    assert small.words == (UNK, "d", "a")
    np.testing.assert_array_equal(small.counts, [4, 3, 2])
    ids = small.encode(tokens)
    np.testing.assert_array_equal(np.bincount(ids), small.counts)


def test_vocabulary_errors():
    with pytest.raises(ValueError, match="`size` must be at least 2, got 1"):
        build_vocabulary(["a", "b"], 1)
    with pytest.raises(ValueError, match="at least 2 distinct words, got 1"):
        build_vocabulary(["a", "a"], 5)
    with pytest.raises(ValueError, match="got 'c'.*smaller `size`"):
        build_vocabulary(["a", "b"], 5).encode(["c"])
