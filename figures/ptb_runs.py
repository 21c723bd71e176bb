"""Language models trained in turn or side by side, for the figures that compare them.

Not a script: the figures of the Penn Treebank import it. Each run has a folder of its own, with
the checkpoint after each epoch; a script that was interrupted goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from language_model.task import LanguageModelSettings, LanguageModelTask
from language_model.text import read_corpus
from matplotlib import colormaps
from matplotlib.figure import Figure
from tables import ends_of_epochs, write_csv
from tqdm import tqdm

from samplesoft._files import atomic_write
from samplesoft.training import CHECKPOINT, LOG, Settings, train

UPDATE_EVERY = 20  # steps from one update of a sampler to the next
INIT_SCALE = 0.3  # with 0.1 outputs start near 0, and dividing by their norms blows gradients up
TAU = 1.0 / 0.3**2  # of the paper
FULL = LanguageModelSettings(
    loss="full", tau=TAU, sampler=None, num_sampled=None, init_scale=INIT_SCALE
)
FIELDS = (
    "method",
    "epoch",
    "validation_perplexity",
    "validation_loss",  # nats a word, full softmax
    "train_loss",  # nats a word, mean over the epoch, of the loss that was trained
    "learning_rate",
    "seconds",  # of training steps since the start, on as many threads as the script says
)


def sampled(sampler: str, **options: Any) -> LanguageModelSettings:
    """Return the small model with a sampled softmax."""
    return LanguageModelSettings(
        sampler=sampler, tau=TAU, update_every=UPDATE_EVERY, init_scale=INIT_SCALE, **options
    )


def parser(description: str, epochs: int) -> argparse.ArgumentParser:
    """Return the options that the scripts share."""
    options = argparse.ArgumentParser(description=description.splitlines()[0])
    options.add_argument("--corpus", required=True, help="folder of train, valid and test text")
    options.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    options.add_argument("--epochs", type=int, default=epochs, help=f"default: {epochs}")
    options.add_argument("--vocabulary", type=int, default=10_000, help="default: 10,000")
    options.add_argument(
        "--jobs", type=int, default=1, help="runs side by side, each on one thread (default 1)"
    )
    options.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="folder of CSV and PNG"
    )
    return options


def run_all(
    runs: Mapping[str, LanguageModelSettings], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Train what has not been trained yet, and return a row for each method and epoch."""
    jobs = [
        _Job(name, settings, options.corpus, options.vocabulary, options.epochs, options.runs)
        for name, settings in runs.items()
    ]
    if options.jobs == 1:
        for job in jobs:
            _run(job, progress=True)
    else:
        for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
            os.environ[name] = "1"  # for the processes to come
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            pending = [pool.submit(_run, job) for job in jobs]
            for done in tqdm(as_completed(pending), total=len(jobs), unit="run"):
                done.result()
    return [row for job in jobs for row in _rows(job)]


def run_folder(runs: Path, settings: LanguageModelSettings) -> Path:
    """Return the folder of a run, the same in all scripts: those that share a run train it once."""
    text = json.dumps(asdict(settings.resolved()), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = "-".join(filter(None, (settings.loss, settings.sampler, digest)))
    return runs / name.replace(":", "-").replace("+", "-")


def epoch_checkpoint(folder: Path, epoch: int) -> Path:
    """Return the checkpoint of a run after an epoch, counted from 1."""
    return folder / f"epoch_{epoch}.npz"


def write_sweep(
    rows: list[dict[str, Any]],
    options: argparse.Namespace,
    name: str,
    *,
    setting: str,
    label: str,
    title: str,
    logarithmic: bool = False,
) -> None:
    """Write the CSV and the plot of runs named ``"setting = value"``, with FULL beside them.

    Parameters
    ----------
    rows : list of dict
        From `run_all`.
    options : argparse.Namespace
        From `parser`.
    name : str
        Of the files.
    setting, label : str
        What varies: in the names of the runs, and on the axis.
    title : str
        What is common to the runs.
    logarithmic : bool
        Whether the setting has a logarithmic axis.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    write_csv(options.output / f"{name}.csv", rows, FIELDS)
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    last = max(row["epoch"] for row in rows)
    finals: dict[float, float] = {}
    for place, method in enumerate(methods):
        own = [row for row in rows if row["method"] == method]
        x, y = [r["epoch"] for r in own], [r["validation_perplexity"] for r in own]
        full = method == "FULL"
        colour = "#000000" if full else colormaps["viridis"](0.9 * place / (len(methods) - 1))
        left.plot(x, y, "--" if full else "-", color=colour, marker=".", label=method)
        if full:
            right.axhline(y[-1], color=colour, linestyle="--", label="FULL")
        else:
            finals[float(method.removeprefix(f"{setting} = "))] = y[-1]
    right.plot(list(finals), list(finals.values()), "o-", color="#0072B2", label="RF-softmax")
    left.set(xlabel="epoch", yscale="log", title=title)
    left.set_xticks(range(1, last + 1))
    lowest, highest = (f(row["validation_perplexity"] for row in rows) for f in (min, max))
    wide, near = (100, 120, 150, 200, 250, 300, 400, 500, 700, 1000, 1500), range(100, 700, 10)
    ticks = [t for t in (wide if highest > 2 * lowest else near) if lowest <= t <= highest]
    left.set_yticks(ticks, [str(t) for t in ticks])
    left.minorticks_off()
    if logarithmic:
        right.set_xscale("log", base=2)
    right.set_xticks(list(finals), [f"{value:g}" for value in finals])
    right.set(xlabel=label, title=f"after {last} epochs (the paper trains longer)")
    for axes in (left, right):
        axes.set_ylabel("validation perplexity")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("Penn Treebank, LSTM 2 x 200")
    with atomic_write(options.output / f"{name}.png") as draft:
        figure.savefig(draft, dpi=130)


@dataclass(frozen=True)
class _Job:
    name: str
    settings: LanguageModelSettings
    corpus: str
    vocabulary: int
    epochs: int
    runs: Path

    @property
    def folder(self) -> Path:
        return run_folder(self.runs, self.settings)


def _run(job: _Job, progress: bool = False) -> None:
    task: LanguageModelTask | None = None
    for epoch in range(1, job.epochs + 1):
        kept = epoch_checkpoint(job.folder, epoch)
        if kept.exists():
            continue
        if task is None:
            corpus = read_corpus(job.corpus, vocabulary_size=job.vocabulary)
            task = LanguageModelTask(corpus, job.settings)
        resume = (job.folder / CHECKPOINT).exists()
        train(
            task,
            Settings(epoch),
            job.folder,
            resume=resume,
            schedule=task.schedule,
            progress=progress,
        )
        with atomic_write(kept) as draft:
            shutil.copyfile(job.folder / CHECKPOINT, draft)


def _rows(job: _Job) -> list[dict[str, Any]]:
    lines = ends_of_epochs(job.folder / LOG)
    return [{"method": job.name, **line} for line in lines if line["epoch"] <= job.epochs]
