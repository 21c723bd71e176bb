"""The figures of the family run on a small corpus: their models, rows and plots."""

import family
import fig4_identifiers
import log_bilinear
import numpy as np
import pytest
import wrong_corrections
from log_bilinear import Corpus, LogBilinear, packages, softmax_layer

WORDS = 60


@pytest.fixture
def corpus(monkeypatch):
    """A word follows that before it, most of the time."""
    monkeypatch.setattr(family, "DIM", 8)
    rng = np.random.default_rng(0)
    ids = np.empty(3000, int)
    ids[0] = 0
    for i in range(1, len(ids)):
        ids[i] = (ids[i - 1] + 1) % WORDS if rng.random() < 0.8 else rng.zipf(1.5) % WORDS
    places = np.arange(2, len(ids))
    counts = np.maximum(np.bincount(ids, minlength=WORDS), 1).astype(float)
    before = ids[places[:, None] - [1, 2]]
    return Corpus(before, ids[places], counts, np.arange(2700), np.arange(2700, len(places)))


@pytest.mark.parametrize(
    "name",
    ["full softmax", "two levels", "adaptive", "Taylor", "in-batch", "bigrams", "hard negatives"],
)
def test_methods_learn(name, corpus):
    assert set(family.METHODS) > {name, "clusters", "one-vs-each, unigram", "hash tables"}
    rows = family.train(name, corpus, 0, 1.0)
    assert [row["part"] for row in rows] == [0.25, 0.5, 1.0]
    assert rows[-1]["perplexity"] < WORDS and rows[-1]["in_top_10"] > 0.2
    every = [{"task": "words", "method": name, "seed": 0, **row} for row in rows]
    panels = family.draw(every).axes
    assert len(panels) == 2 * len(family.FAMILIES)
    named = [text.get_text() for axes in panels for text in axes.texts]
    assert named == [name]  # in the panel of its family, and grey in the others
    own = [names for names in family.FAMILIES.values() if name in names]
    assert len(own) == 1


def test_each_method_is_in_a_family_once():
    named = [name for names in family.FAMILIES.values() for name in names]
    assert sorted(named) == sorted(family.METHODS)
    assert max(map(len, family.FAMILIES.values())) <= len(family.PALETTE) == len(family.MARKERS)


def test_the_model_of_figure_4(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(fig4_identifiers, "DIM", 8)
    rows = []
    for name in ("RFF", "CLUSTERS", "adaptive"):
        whole, parts = tmp_path / name, tmp_path / "parts" / name
        fig4_identifiers.run(name, corpus, 2, whole)
        for epochs in (1, 2):  # goes on with the bits of a run that was not interrupted
            fig4_identifiers.run(name, corpus, epochs, parts)
        rows += fig4_identifiers.found(name, whole)
        assert rows[-8:] == fig4_identifiers.found(name, parts)
        assert [row["epoch"] for row in rows[-8:]] == [0.25 * part for part in range(1, 9)]
        assert rows[-1]["validation_perplexity"] < 0.8 * rows[-8]["validation_perplexity"]
    assert len(fig4_identifiers.draw(rows).legends[0].get_texts()) == 3
    other = corpus._replace(labels=corpus.labels[::-1].copy())
    with pytest.raises(ValueError, match="labels"):
        fig4_identifiers.run("adaptive", other, 3, tmp_path / "adaptive")


def test_what_a_wrong_correction_costs(corpus, monkeypatch):
    monkeypatch.setattr(wrong_corrections, "AGES", (1, 2))
    monkeypatch.setattr(wrong_corrections, "DRAWS", 10)
    model = LogBilinear(corpus, softmax_layer(corpus, 8, 0, tau=5.0), 8, 0.2, 0)
    old = {}
    for age in (2, 1, 0):
        model.train(corpus.train[:600], lambda: None)
        old[age] = wrong_corrections.unit(model.layer.class_embeddings)
    h = wrong_corrections.unit(model.contexts(corpus.held_out[:5]))
    labels = corpus.labels[corpus.held_out[:5]]
    rows = wrong_corrections.by_age(h, labels, old)
    rows += wrong_corrections.by_draws(h, labels, old[0], corpus.counts, corpus.labels)
    found = {(row["method"], row["x"]): row["bias"] for row in rows}
    assert found["corrected by its own probabilities", 2] < found["corrected as if it were new", 2]
    assert found["counts", 10_000] < 0.1 * found["counts, no correction (InfoNCE)", 10_000]
    assert len(wrong_corrections.draw(rows).axes) == 2


def test_words_of_packages(monkeypatch):
    text = "def f(x):\n    return f(x) + 10\n" * 30
    monkeypatch.setattr(log_bilinear, "package_text", lambda: iter([text, text]))
    every = packages(2, 8, 100, names_only=False)
    assert len(every.train) == 100 and every.num_words == 8
    names = packages(2, 8, 100, names_only=True)
    assert len(set(names.labels)) < len(set(every.labels)) and 0 not in names.labels
