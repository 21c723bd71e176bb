"""Every loader on files that are damaged: what is read, what is refused, and what neither."""

from __future__ import annotations

import argparse
import itertools
import signal
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy import sparse

from samplesoft import data, training
from samplesoft.commands import train as train_command
from samplesoft.sklearn import SampledSoftmaxClassifier
from tests.campaign import damage

FIELDS = ("loader", "file", "tries", "read", "refused", "undocumented", "wrong", "peak_mb")
FIELDS += ("example",)
AVAILABLE = 200e6  # bytes, which the library is told to be the memory
LONGEST = 20  # seconds of a try
DOCUMENTED = (ValueError, TypeError, MemoryError, OSError)
SETTINGS = training.Settings(epochs=2, optimizer="momentum", learning_rate=0.01)


class TooLong(BaseException):
    """A try has taken more than `LONGEST` seconds."""


@dataclass
class Case:
    """A loader and a sound file."""

    loader: str
    path: Path
    load: Callable[[], Any]
    named: tuple[str, ...] = ()  # of which messages name one; the file by default
    checked: bool = False  # whether a checksum in the file tells what is damaged
    tries: int = 0
    read: int = 0
    refused: int = 0
    undocumented: int = 0
    wrong: int = 0
    peak: int = 0
    example: str = ""
    content: bytes = field(init=False)
    result: Any = field(init=False)

    def __post_init__(self) -> None:
        self.content = self.path.read_bytes()
        self.result = plain(self.load())

    def damage(self, rng: np.random.Generator) -> bool:
        """Damage the file; return whether its checksum, if it has one, is wrong then."""
        archive, crafted = self.content[:2] == b"PK", rng.random() < 0.6
        if not crafted:
            self.path.write_bytes(damage.of_bytes(self.content, rng))
        elif archive:
            damage.of_members(self.path, self.content, rng, self.checked)
        elif self.path.suffix == ".npy":
            self.path.write_bytes(damage.of_array(self.content, rng))
        elif self.path.suffix in (".json", ".jsonl"):
            self.path.write_bytes(damage.of_lines(self.content, rng))
        else:
            self.path.write_bytes(damage.of_text(self.content, rng, self.path.suffix))
        return not crafted

    def attempt(self, rng: np.random.Generator) -> None:
        """Damage the file, try to load it, and count what happens."""
        by_chance = self.damage(rng)
        self.tries += 1
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        signal.alarm(LONGEST)
        try:
            found = self.load()
            self.read += 1
            self.wrong += self.checked and by_chance and plain(found) != self.result
        except DOCUMENTED as error:
            self.refused += 1
            if not any(name in str(error) for name in self.named or (self.path.name,)):
                self.undocumented += 1
                self.example = f"does not name the file: {error}"[:100]
        except (Exception, TooLong) as error:
            self.undocumented += 1
            self.example = f"{type(error).__name__}: {error}"[:100]
        finally:
            signal.alarm(0)
        self.peak = max(self.peak, tracemalloc.get_traced_memory()[1] - before)

    def row(self) -> dict[str, object]:
        """Return the row of the table."""
        numbers = {name: getattr(self, name) for name in FIELDS if name not in ("file", "peak_mb")}
        return {**numbers, "file": self.path.name, "peak_mb": f"{self.peak / 1e6:.0f}"}


def plain(value: Any) -> Any:
    """Return what a loader has returned as tuples that can be compared."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if sparse.issparse(value):
        return value.shape, *map(plain, (value.data, value.indices, value.indptr))
    if is_dataclass(value) and not isinstance(value, type):
        return plain({name: getattr(value, name) for name in value.__dataclass_fields__})
    if isinstance(value, dict):
        return tuple((key, plain(part)) for key, part in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    return value if isinstance(value, (str, int, float, type(None))) else type(value).__name__


def run(seconds: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each loader and file; all have the same number of tries.

    Of what is damaged by chance, and not made by hand with a checksum that is right, a file that
    has one must be refused or read as it was.
    """

    def stop(*_: Any) -> None:
        raise TooLong(f"more than {LONGEST} s")

    signal.signal(signal.SIGALRM, stop)
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        cases = list(_cases(Path(folder)))
        memory = mock.patch("samplesoft._memory.available_bytes", lambda: AVAILABLE)
        texts = mock.patch("samplesoft.data.files.available_bytes", lambda: AVAILABLE)
        with memory, texts:
            tracemalloc.start()
            for case in itertools.cycle(cases):
                if case is cases[0] and time.monotonic() > end:
                    break
                case.attempt(rng)
            tracemalloc.stop()
    yield from (case.row() for case in cases)


def _cases(folder: Path) -> Iterator[Case]:
    yield from _texts(folder)
    yield from _arrays(folder)
    yield from _checkpoints(folder)


def _texts(folder: Path) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    words = "\n".join(" ".join(rng.choice(["a", "bb", "naïve"], 9)) for _ in range(30)) + "\n"
    xml = ["30 9 7"] + [f"{i % 7},{(i + 1) % 7} {i % 8}:0.5 8:{i}" for i in range(30)]
    items = [f"{user} {user % 5} {user % 7 + 5}" for user in range(30)]
    texts = {
        "words": (words, data.read_tokens),
        "xml": ("\n".join(xml) + "\n", data.load_xml_repository),
        "interactions": ("\n".join(items) + "\n", data.load_interactions),
    }
    for name, (text, loader) in texts.items():
        for ending in (".txt", *damage.OPENERS):
            path = folder / f"{name}{ending}"
            opener = damage.OPENERS.get(ending)
            path.write_bytes(opener.compress(text.encode()) if opener else text.encode())
            load = lambda path=path, loader=loader: loader(path)  # noqa: E731
            yield Case(loader.__name__, path, load, checked=opener is not None)


def _arrays(folder: Path) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    arrays = {"h": rng.normal(size=(6, 3)), "class_embeddings": rng.normal(size=(5, 3))}
    arrays |= {"labels": np.arange(6) % 5, "counts": np.ones(5)}
    for name, write in (("stored", np.savez), ("deflated", np.savez_compressed)):
        path = folder / f"{name}.npz"
        write(path, **arrays)
        yield Case("load_embeddings", path, lambda path=path: data.load_embeddings(path))
    logits, labels = folder / "logits.npy", folder / "labels.npy"
    np.save(logits, rng.normal(size=(6, 5)))
    np.save(labels, arrays["labels"])
    other = folder / "other.npy"
    other.write_bytes(labels.read_bytes())
    named = (logits.name, other.name)
    yield Case("load_logits", logits, lambda: data.load_logits(logits, other), named)
    whole = folder / "whole.npy"
    whole.write_bytes(logits.read_bytes())
    yield Case("load_logits", labels, lambda: data.load_logits(whole, labels))


def _checkpoints(folder: Path) -> Iterator[Case]:
    X = np.random.default_rng(0).normal(size=(30, 4))
    y = np.array(["a", "bb", "ccc"])[np.arange(30) % 3]
    model = folder / "classifier.npz"
    SampledSoftmaxClassifier(
        max_iter=1, num_sampled=2, num_features=8, embedding_dim=4, random_state=0
    ).fit(X, y).save(model)
    yield Case("SampledSoftmaxClassifier.load", model, lambda: _predicted(model, X), checked=True)
    linear = folder / "linear.npz"
    linear.write_bytes(model.read_bytes())
    inputs = sparse.csr_array(X)
    yield Case(
        "read_linear_softmax",
        linear,
        lambda: training.read_linear_softmax(linear).top_k(inputs, 2),
        checked=True,
    )
    run = folder / "xc"
    training.train(_task(), training.Settings(epochs=3, learning_rate=0.1), run)
    best, log, options = run / "best.npz", run / "log.jsonl", run / "options.json"
    yield Case("read_examples", best, lambda: training.read_examples(best), checked=True)
    yield Case("read_log", log, lambda: training.read_log(log))
    checkpoint = run / "checkpoint.npz"
    yield Case(
        "read_checkpoint", checkpoint, lambda: training.read_checkpoint(checkpoint), checked=True
    )
    options.write_text('{"model": "xc", "epochs": 3, "seed": 0, "loss": "full"}\n')
    given = {"model": "xc", "out": str(run)}
    yield Case(
        "train --resume",
        options,
        lambda: train_command._saved_options(argparse.Namespace(**given), options),
        named=("xc",),
    )
    run_ = folder / "run"
    training.train(_task(), SETTINGS, run_)
    resumed = run_ / "resumed.npz"
    resumed.write_bytes((run_ / "checkpoint.npz").read_bytes())
    yield Case(
        "train(resume=True)",
        resumed,
        lambda: _resumed(resumed),
        named=(training.CHECKPOINT, "epoch 3, after"),
        checked=True,
    )


def _predicted(path: Path, X: Any) -> Any:
    clf = SampledSoftmaxClassifier.load(path)
    return clf.predict_proba(X), [str(label) for label in clf.classes_], str(clf.get_params())


def _task() -> training.RetrievalTask:
    X = sparse.random_array(
        (20, 5), density=0.5, random_state=np.random.default_rng(0), format="csr"
    )
    settings = training.RetrievalSettings(
        sampler="learned-unigram", embedding_dim=3, batch_size=4, num_sampled=2
    )
    return training.RetrievalTask(X, X, settings)


def _resumed(path: Path) -> Any:
    """Resume a run for an epoch more, from a copy of the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, training.CHECKPOINT).write_bytes(path.read_bytes())
        task = _task()
        more = training.Settings(**{**vars(SETTINGS), "epochs": 3})
        at = training.train(task, more, folder, resume=True)
        return at.epoch, at.step, task.parameters
