"""When sampling pays: the time of a training epoch, and of a step as the classes grow.

Writes ``epoch_times.csv`` and ``epoch_times.png`` beside this script. Left: an epoch of the models
of ``fig3_ptb_samplers.py`` on the Penn Treebank, from the median time of a step, which includes
draws, LSTM, gradients, the optimizer and updates of the sampler. Right: a step of the softmax layer
alone, forward, backward, optimizer and updates of the sampler, for 1,000 to 1,000,000 classes;
sampling begins to pay where the line of a sampler crosses the line of FULL. The machine should be
idle::

    python figures/epoch_times.py --corpus ptb
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fig3_ptb_samplers import METHODS, STYLES
from language_model.task import LanguageModelSettings, LanguageModelTask
from language_model.text import Corpus, read_corpus
from matplotlib.figure import Figure
from tables import write_csv
from tqdm import tqdm

from samplesoft._files import atomic_write
from samplesoft._jit import num_threads
from samplesoft.losses import make_loss
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.samplers import SamplerInputs, make_sampler

BLOCK = 20  # steps, one update of the sampler among them
FIELDS = ("part", "method", "num_classes", "step_ms", "epoch_s", "ratio_to_full")
BATCH, DIM, TAU = 128, 64, 1.0 / 0.3**2
CLASSES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
LAYERS = {  # method: loss, sampler, shared
    "FULL": ("full", None, False),
    "UNIFORM": ("sampled", "uniform", False),
    "UNIFORM, shared": ("sampled-masked", "uniform", True),
    "CLUSTERS": ("sampled", "clusters", False),
    "EXP": ("sampled", "softmax", False),
    "RFF": ("sampled", "rff", False),
    "RFF, softmax in buckets": ("sampled", "rff+softmax-leaf", False),
}


def main() -> None:
    """Measure, then write the CSV and the figure."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--corpus", required=True, help="folder of train, valid and test text")
    options.add_argument(
        "--steps", type=int, default=60, help="steps, of a layer at most 40 (default 60)"
    )
    options.add_argument("--largest", type=int, default=CLASSES[-1], help="most classes")
    options.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="folder of CSV and PNG"
    )
    chosen = options.parse_args()
    corpus = read_corpus(chosen.corpus, vocabulary_size=10_000)
    rows = [
        epoch_row(name, settings, corpus, chosen.steps)
        for name, settings in tqdm(METHODS.items(), unit="model")
    ]
    for n in tqdm([n for n in CLASSES if n <= chosen.largest], unit="size"):
        rows += layer_rows(n, chosen.steps)
    for row in rows:
        full = next(
            r
            for r in rows
            if r["method"] == "FULL" and all(r[k] == row[k] for k in ("part", "num_classes"))
        )
        row["ratio_to_full"] = row["step_ms"] / full["step_ms"]
    chosen.output.mkdir(parents=True, exist_ok=True)
    write_csv(chosen.output / "epoch_times.csv", rows, FIELDS)
    with atomic_write(chosen.output / "epoch_times.png") as draft:
        draw(rows).savefig(draft, dpi=130)
    for row in rows:
        print(
            " ".join(
                f"{row[k]:>26}" if isinstance(row[k], str) else f"{row[k]:10.4g}" for k in FIELDS
            )
        )


def epoch_row(
    name: str, settings: LanguageModelSettings, corpus: Corpus, num_steps: int
) -> dict[str, Any]:
    """Return the time of an epoch of a language model."""
    task = LanguageModelTask(corpus, settings)
    optimizer = make_optimizer("sgd", 1.0)

    def step(index: int) -> None:
        _, gradients = task.step(0, index % task.num_steps)
        optimizer.step(task.parameters, gradients)
        task.after_step(gradients)

    seconds = mean_time(step, num_steps)
    return {
        "part": "language model",
        "method": name,
        "num_classes": len(corpus.vocabulary.words),
        "step_ms": 1e3 * seconds,
        "epoch_s": seconds * task.num_steps,
    }


def layer_rows(n: int, num_steps: int) -> list[dict[str, Any]]:
    """Return the time of a step of the softmax layer for n classes."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((n, DIM), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = []
    for name, (loss, sampler, shared) in LAYERS.items():
        made = None
        if sampler is not None:
            made = make_sampler(sampler, SamplerInputs(vectors, tau=TAU, num_features=256, rng=0))
        layer = SoftmaxLayer(
            vectors,
            make_loss(loss, tau=TAU, normalize=True),
            made,
            None if made is None else 100,
            shared=shared,
            update_every=20,
        )
        optimizer = make_optimizer("sgd", 0.1)

        def step(index: int, layer: SoftmaxLayer = layer, optimizer: Any = optimizer) -> None:
            draws = np.random.default_rng(index)
            labels = draws.integers(0, n, BATCH)
            h = layer.parameters["class_embeddings"][labels] + 0.1 * draws.standard_normal(
                (BATCH, DIM), np.float32
            )
            _, cache = layer.forward(h, labels, rng=index)
            _, gradients = layer.backward(cache)
            optimizer.step(layer.parameters, gradients)
            layer.update(gradients["class_embeddings"].ids)

        seconds = mean_time(step, min(num_steps, 40 if n < 500_000 else 20))
        found.append(
            {
                "part": "layer",
                "method": name,
                "num_classes": n,
                "step_ms": 1e3 * seconds,
                "epoch_s": float("nan"),
            }
        )
    return found


def mean_time(step: Callable[[int], None], num_steps: int) -> float:
    """Return seconds a step: the median of the means of blocks of 20 steps, after a first one."""
    size = min(BLOCK, num_steps)
    blocks = []
    for block in range(1 + num_steps // size):
        start = time.perf_counter()
        for index in range(size):
            step(size * block + index)
        blocks.append((time.perf_counter() - start) / size)
    del blocks[0]
    return float(np.median(blocks))


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Plot epochs as bars, and steps against the number of classes."""
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    models = sorted((r for r in rows if r["part"] != "layer"), key=lambda r: r["epoch_s"])
    names = [row["method"] for row in models]
    bars = left.barh(
        names, [row["epoch_s"] for row in models], color=[STYLES[name][0] for name in names]
    )
    left.bar_label(bars, fmt="%.0f s", padding=3, fontsize=9)
    left.margins(x=0.15)
    left.set(xlabel="seconds")
    left.set_title("an epoch on the Penn Treebank, n = 10,000, D = 1024", fontsize=10)
    for name in LAYERS:
        own = [row for row in rows if row["part"] == "layer" and row["method"] == name]
        colour, marker, line = STYLES.get(name, ("#8C564B", "<", "-."))
        x, y = [row["num_classes"] for row in own], [row["step_ms"] for row in own]
        right.plot(x, y, line, color=colour, marker=marker, markersize=5, label=name)
    right.set(
        xscale="log",
        yscale="log",
        xlabel="number of classes n",
        ylabel="milliseconds a step",
    )
    right.set_title(f"a step of the layer: batch {BATCH}, d = {DIM}, m = 100, D = 256", fontsize=10)
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    figure.suptitle(f"When sampling pays: {num_threads()} threads")
    return figure


if __name__ == "__main__":
    main()
