"""A log-bilinear language model: the previous words, a vector each, under a layer of any kind.

Not a script: the figures that compare ways around the softmax import it. Words come from a folder
with the Penn Treebank, or from the sources of the Python packages that are installed.

References
----------
A. Mnih and G. Hinton, "Three new graphical models for statistical language modelling", ICML 2007.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from samplesoft.data import read_tokens
from samplesoft.models import Linear, SoftmaxSettings
from samplesoft.optimizers import make_optimizer

_TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9]+|[^\sA-Za-z_0-9]")
BATCH = 256
Words = NDArray[np.int64]


class Corpus(NamedTuple):
    """Examples: the words before a word, and the word."""

    before: Words  # (N, width)
    labels: Words  # (N,)
    counts: NDArray[np.float64]  # (V,), in the text
    train: Words  # places of examples
    held_out: Words

    @property
    def num_words(self) -> int:
        """Number of words V."""
        return len(self.counts)


def penn_treebank(folder: Path, width: int) -> Corpus:
    """Return the text as it is split, with its 10,000 words."""
    parts = [read_tokens(next(folder.glob(f"*{name}.txt*"))) for name in ("train", "valid")]
    names, ids = np.unique(parts[0] + parts[1], return_inverse=True)
    cut = len(parts[0])
    counts = np.bincount(ids[:cut], minlength=len(names)).astype(float)
    places = np.arange(width, len(ids))
    before = ids[places[:, None] - np.arange(1, width + 1)]
    first = np.flatnonzero(places < cut)
    return Corpus(before, ids[places], counts, first, np.flatnonzero(places >= cut))


def package_text() -> Iterator[str]:
    """Yield the texts of Python's library and of the packages beside it."""
    paths = sysconfig.get_paths()
    for root in dict.fromkeys((paths["stdlib"], paths["purelib"])):
        for path in sorted(Path(root).rglob("*.py")):
            if root != paths["stdlib"] or "site-packages" not in path.parts:
                yield path.read_text(encoding="utf-8", errors="replace")


def packages(
    width: int, num_words: int, num_train: int, *, names_only: bool, num_tokens: int = 15_000_000
) -> Corpus:
    """Return words of installed packages: so many examples, and 10,000 held out.

    `num_words` counts the word that stands for all rarer ones. With `names_only` labels are
    identifiers that have a number of their own, else any word.
    """
    tokens: list[str] = []
    for text in package_text():
        tokens += _TOKEN.findall(text)
        if len(tokens) >= num_tokens:
            break
    tokens = tokens[:num_tokens]
    frequent = [name for name, _ in Counter(tokens).most_common(num_words - 1)]
    number = {name: i for i, name in enumerate(frequent, start=1)}  # 0: all the others
    ids = np.array([number.get(token, 0) for token in tokens])
    counts = np.maximum(np.bincount(ids, minlength=num_words), 1).astype(float)
    is_name = np.array([True, *(name.isidentifier() for name in frequent)])
    places = np.arange(width, len(ids))
    if names_only:
        places = places[(ids[places] > 0) & is_name[ids[places]]]
        counts = np.maximum(np.bincount(ids[places], minlength=num_words), 1).astype(float)
    # held-out text is of places that are drawn like those of training, so that its words are known
    places = np.random.default_rng(0).permutation(places)[: num_train + 10_000]
    before = ids[places[:, None] - np.arange(1, width + 1)]
    every = np.arange(len(places))
    return Corpus(before, ids[places], counts, every[:num_train], every[num_train:])


def softmax_layer(corpus: Corpus, dim: int, seed: int, **settings: Any) -> Any:
    """Return a layer by its settings, with class vectors in +-1 / sqrt(d)."""
    rows = np.random.default_rng(seed).uniform(-1.0, 1.0, (corpus.num_words, dim)) * dim**-0.5
    of_layer = SoftmaxSettings(**settings)
    return of_layer.make_layer(rows.astype(np.float32), corpus.counts, seed)


class LogBilinear:
    """The sum of a vector for each previous word and place, under a layer.

    Parameters
    ----------
    corpus : Corpus
        What it is to be trained on.
    layer : object
        With the methods of a `samplesoft.models.SoftmaxLayer` that a step calls.
    dim : int
        Length of the vectors.
    rate : float
        Of Adagrad.
    seed : int
        Of all that is random.
    clock : callable
        Returns the time in seconds; by default that of the wall.
    """

    def __init__(
        self,
        corpus: Corpus,
        layer: Any,
        dim: int,
        rate: float,
        seed: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.corpus, self.layer, self.seed, self.clock = corpus, layer, seed, clock
        self.width = corpus.before.shape[1]
        self.encoder = Linear(corpus.num_words * self.width, dim, rng=seed)
        self.optimizer = make_optimizer("adagrad", rate)
        self.steps, self.seconds = 0, 0.0  # of training

    def inputs(self, examples: Words) -> sparse.csr_array:
        """Return a one for each previous word, at its place."""
        n, num = self.corpus.num_words, len(examples)
        columns = self.corpus.before[examples] + n * np.arange(self.width)
        ends = np.arange(0, columns.size + 1, self.width)
        ones = np.ones(columns.size, np.float32)
        return sparse.csr_array((ones, columns.ravel(), ends), (num, n * self.width))

    def contexts(self, examples: Words) -> Any:
        """Return the context vectors of examples."""
        return self.encoder.forward(self.inputs(examples))[0]

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the encoder and of the layer."""
        return {**self.encoder.parameters, **self.layer.parameters}

    def gradients(self, examples: Words, seed: int) -> tuple[float, dict[str, Any]]:
        """Return the loss of examples, and its gradients by parameter."""
        x, labels = self.inputs(examples), self.corpus.labels[examples]
        start = self.clock()
        h, cache = self.encoder.forward(x)
        given = {"examples": examples} if hasattr(self.layer, "takes_examples") else {}
        loss, saved = self.layer.forward(h, labels, rng=seed, **given)
        dh, of_layer = self.layer.backward(saved)
        gradients = {**self.encoder.backward(cache, dh)[1], **of_layer}
        self.seconds += self.clock() - start
        return loss, gradients

    def update(self, gradients: dict[str, Any]) -> None:
        """Let the layer follow a step of the optimizer."""
        changed = gradients.get("class_embeddings")
        self.layer.update(None if changed is None else changed.ids)

    def train(self, examples: Words, progress: Callable[[], object]) -> None:
        """Go over the examples once, in batches."""
        for first in range(0, len(examples), BATCH):
            seed = (self.seed << 40) + self.steps
            _, gradients = self.gradients(examples[first : first + BATCH], seed)
            start = self.clock()
            self.optimizer.step(self.parameters, gradients)
            self.update(gradients)
            self.steps += 1
            self.seconds += self.clock() - start
            progress()

    def evaluate(self, k: int = 10) -> tuple[float, float]:
        """Return the loss of the held-out examples in nats, and how often a label is in k."""
        examples, loss, found = self.corpus.held_out, 0.0, 0.0
        for first in range(0, len(examples), 1024):
            some = examples[first : first + 1024]
            h, labels = self.contexts(some), self.corpus.labels[some]
            if hasattr(self.layer, "evaluate"):
                result = self.layer.evaluate(h, labels, k=(k,))
                loss += result.loss * len(some)
                found += result.top_k[k] * len(some)
            else:
                logs = self.layer.log_probs(h)
                own = np.take_along_axis(logs, labels[:, None], axis=1)
                loss -= float(own.sum())
                found += int(((logs > own).sum(axis=1) < k).sum())
        return loss / len(examples), found / len(examples)
