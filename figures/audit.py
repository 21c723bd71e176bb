"""An audit of published sampled losses: the verdict of `check_loss` on each, and its exact bias.

Writes ``audit.csv`` and ``audit.png`` beside this script. Each loss of ``audit_losses.py`` is
called as published, in a process of an environment with its package. The table also has the exact
bias of each loss on next words of a text, with 100 negatives, averaged over examples: the bias of
the loss, and the L1 norm of the bias of the gradient in the logits.
`docs/audit.md <../docs/audit.md>`_ discusses the results.

Environments are folders of one directory. The script makes missing ones, with about 12 GB of
packages. Then it takes an hour on two cores. ``--only`` checks some losses again, and keeps
the other rows::

    python figures/audit.py --environments ~/audit --corpus ptb.train.txt.xz
    python figures/audit.py --environments ~/audit --corpus ptb.train.txt.xz --only gensim,liger
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
from audit_losses import (
    CONTRASTIVE,
    ENVIRONMENTS,
    LOGISTIC,
    LOSSES,
    RIGHT,
    WRONG,
    Published,
    log_uniform,
)
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import expit, logsumexp
from tables import read_csv, write_both
from tqdm import tqdm
from words import next_words

from samplesoft import exact_bias
from samplesoft.data import Embeddings
from samplesoft.samplers.without_replacement import SuccessiveInclusion

FloatArray = NDArray[np.float64]

TAU, NEGATIVES, EXAMPLES = 11.1, 100, 64
OURS = ("numba", "scipy", "matplotlib", "tqdm")  # what samplesoft needs, of any version
FIELDS = (
    "name",
    "package",
    "version",
    "function",
    "settings",
    "judgement",
    "scheme",  # those of `check_loss`, empty where it finds none
    "mistake",
    "calls",
    "negatives",
    "l1_bias",  # of the gradient in the logits
    "loss_bias",  # nats
    "message",  # the first line of what `check_loss` says
)
COLOURS = {RIGHT: "#0072B2", CONTRASTIVE: "#E69F00", LOGISTIC: "#999999", WRONG: "#D55E00"}
Row = dict[str, Any]


def main() -> None:
    """Check the losses, compute the biases, and write both files."""
    args = parse_arguments()
    text = next_words(args.corpus, args.vocabulary_size, 64, EXAMPLES, 0)
    known = {row["name"]: row for row in read_csv(args.output / "audit.csv")}
    for name in tqdm(args.only, desc="losses", unit="loss"):
        one = LOSSES[name]
        found = check(name, environment(args.environments, one.environment))
        about = one._asdict() | {"name": name, "message": found.pop("verdict").splitlines()[0]}
        known[name] = about | {"scheme": None, "mistake": None} | found | bias(one, text)
    rows = [known[name] for name in LOSSES if name in known]
    description = (
        f"biases: {args.corpus.name}, {len(text.counts):,} words, {EXAMPLES} examples, tau = {TAU}"
    )
    write_both(args.output, "audit", rows, FIELDS, description, draw(rows))


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--environments", type=Path, required=True, help="folder")
    parser.add_argument("--corpus", type=Path, required=True, help="plain text, also .gz or .xz")
    parser.add_argument("--vocabulary-size", type=int, default=10_000)
    parser.add_argument("--only", type=names, default=list(LOSSES), help="names, by commas")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    return parser.parse_args()


def names(text: str) -> list[str]:
    """Return names of losses."""
    found = text.split(",")
    if unknown := [name for name in found if name not in LOSSES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(LOSSES)}")
    return found


# the checks --------------------------------------------------------------------------------------


def environment(folder: Path, name: str) -> Path:
    """Return the Python of an environment, which is made if it is not there."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        venv.create(folder / name, with_pip=True)
        install = [python, "-m", "pip", "install", "-q", *OURS, *ENVIRONMENTS[name]]
        subprocess.run(install, check=True)
    return python


def check(name: str, python: Path) -> Row:
    """Return what `check_loss` says of a loss, in an environment."""
    here = Path(__file__).parent
    # samplesoft as it is here: some packages ask for older versions of what it asks for
    variables = {"PYTHONPATH": str(here.parent), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    if name.startswith("tfrs"):
        variables["TF_USE_LEGACY_KERAS"] = "1"
    run = subprocess.run(
        [python, here / "audit_losses.py", name],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    if run.returncode:
        sys.exit(f"{name}: {run.stderr.strip().splitlines()[-1]}")
    found: Row = json.loads(run.stdout.splitlines()[-1])
    return found


# the biases --------------------------------------------------------------------------------------


def bias(one: Published, text: Embeddings) -> Row:
    """Return the bias of what a loss estimates; nothing where no form is given."""
    logits = TAU * text.h @ text.class_embeddings.T
    logits -= logsumexp(logits, axis=1, keepdims=True)  # as noise-contrastive estimation has them
    if one.scheme == "full":
        return {"l1_bias": 0.0, "loss_bias": 0.0}
    if not one.law:
        return {}
    m = 1 if one.num_sampled == 1 else NEGATIVES
    q = law(one.law, text.counts)
    if one.judgement == LOGISTIC:
        of_gradient, of_loss = logistic(logits, text.labels, q, m, one)
    else:
        found = exact_bias(
            logits, text.labels, q, m, scheme=one.scheme, correction=divisors(one, q, m)
        )
        of_gradient, of_loss = found.bias, found.loss_bias
    l1 = float(np.abs(of_gradient).sum(axis=1).mean())
    return {"negatives": m, "l1_bias": l1, "loss_bias": float(np.mean(of_loss))}


def divisors(one: Published, q: FloatArray, m: int) -> FloatArray | None:
    """Return what a loss divides the terms of its draws by, None if it is what is right."""
    if callable(one.corrected):
        return np.asarray(one.corrected(q, m))
    # without a correction S is a plain sum
    return None if one.corrected else np.full_like(q, 1.0 / m)


def law(name: str, counts: FloatArray) -> FloatArray:
    """Return the law of negatives over words; labels of a batch come by their counts."""
    if name == "log-uniform":  # by rank, which users see to
        q = np.empty_like(counts)
        q[np.argsort(-counts, kind="stable")] = log_uniform(len(counts))
        return q
    powers = {"uniform": 0.0, "counts": 1.0, "counts^0.75": 0.75}
    q = counts ** powers[name]
    return q / q.sum()


def logistic(
    logits: FloatArray, labels: Any, q: FloatArray, m: int, one: Published
) -> tuple[FloatArray, FloatArray]:
    """Return what sums of logistic losses have more than the softmax of normalised logits."""
    rows = np.arange(len(labels))
    counts = m * q
    if one.scheme == "nce_distinct":  # a class is at most once among the draws
        every = np.arange(len(q))[None]
        counts = SuccessiveInclusion(np.log(q), m).of_classes(every, np.array([-1]))[0]
    x = logits - np.log(counts) if one.corrected else logits
    times = np.broadcast_to(counts, x.shape).copy()
    if not one.scheme.endswith(("_kept", "nce_distinct")):
        times[rows, labels] = 0.0
    slopes = times * expit(x)
    slopes[rows, labels] -= expit(-x[rows, labels])
    losses = (times * np.logaddexp(0.0, x)).sum(axis=1) + np.logaddexp(0.0, -x[rows, labels])
    of_full = np.exp(logits)
    of_full[rows, labels] -= 1.0
    return slopes - of_full, losses + logits[rows, labels]


def line(row: Row) -> str:
    """Return a row of the table in ``docs/audit.md``, from one of the CSV file."""
    bias = f"{float(row['l1_bias']):.2f}" if row["l1_bias"] not in ("", None) else ""
    verdict = ", ".join(f"`{row[k]}`" for k in ("scheme", "mistake") if row[k])
    cells = f"{row['package']} {row['version']}", f"`{row['function']}`", row["judgement"]
    return f"| {' | '.join((*cells, bias, row['settings'], verdict))} |"


# the picture -------------------------------------------------------------------------------------


def draw(rows: list[Row]) -> Figure:
    """Plot the biases of losses that estimate a softmax."""
    shown = [r for r in rows if r.get("l1_bias") is not None and r["judgement"] != LOGISTIC]
    shown.sort(key=lambda r: r["l1_bias"])
    figure = Figure(figsize=(12, 0.32 * len(shown) + 1.5), layout="constrained")
    axes = figure.subplots()
    titles = [f"{r['package']} {r['version']}: {r['function']}, {r['settings']}" for r in shown]
    sizes = [r["l1_bias"] for r in shown]
    axes.barh(range(len(shown)), sizes, color=[COLOURS[r["judgement"]] for r in shown])
    axes.set_yticks(range(len(shown)), titles, fontsize=9)
    axes.set_ylim(-0.7, len(shown) - 0.3)
    for y, size in enumerate(sizes):
        axes.text(size + 0.01, y, f"{size:.2f}", va="center", fontsize=9)
    for judgement in dict.fromkeys(r["judgement"] for r in shown):
        axes.barh([0], [0], color=COLOURS[judgement], label=judgement)
    axes.legend(loc="lower right")
    axes.set(xlim=(0, 1.65), xlabel=f"L1 norm of the bias of the gradient, {NEGATIVES} negatives")
    figure.suptitle("What published losses estimate, on next words of a text")
    return figure


if __name__ == "__main__":
    main()
