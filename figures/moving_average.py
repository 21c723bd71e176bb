"""What a running estimate of the normaliser is worth: exact bias over gamma and m.

Writes ``moving_average.csv`` and ``moving_average.png`` beside this script: for next-word examples
of a text, the exact bias of losses that divide by a moving average of their sums (SogCLR, SOX:
a constant gamma; SCENT: a constant alpha), in the long run at fixed logits. Three things are shown:
the bias and its two parts, the number of draws without memory that have the same bias, and the
mean squared error of one gradient in h. SCENT's alpha is that whose gamma is the given one at the
median sum of the examples. Only the examples are sampled. The committed files come from the
training text of the Penn Treebank, about fifteen minutes on two cores::

    python figures/moving_average.py --corpus ptb.train.txt.xz

Without ``--corpus`` the text is the source of the Python standard library.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from tables import write_both
from tqdm import tqdm
from words import next_words

import samplesoft
from samplesoft.bias import moving_average_bias, moving_average_moments
from samplesoft.data import Embeddings
from samplesoft.samplers import SamplerInputs, dense_proposals

GAMMAS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
NUM_SAMPLED = (10, 100, 1000)
DRAWS = tuple(round(10.0 ** (k / 2.0)) for k in range(13))  # of sampled softmax, to compare with
PROPOSALS = {"uniform": "#000000", "unigram": "#56B4E9", "quadratic": "#009E73"}
MARKERS = {10: "o", 100: "s", 1000: "^"}
FIELDS = (
    "proposal",
    "rule",  # gamma, alpha, or none for sampled softmax
    "gamma",
    "num_sampled",
    "l1_bias",  # means over the examples: L1 norm of the bias of the gradient in the logits
    "l1_turning",  # of the part that changes its direction
    "relative_step",  # mean of the relative change of the length of a step
    "worth",  # draws of sampled softmax with the same l1_bias, divided by m
    "worth_turning",  # with the same l1_turning
    "h_mse",  # of one gradient in h, relative to sampled softmax with as many draws
)
Row = dict[str, Any]
FloatArray = NDArray[np.float64]


def main() -> None:
    """Compute, and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="plain text, also .gz, .xz or .bz2")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--vocabulary-size", type=int, default=10_000)
    parser.add_argument("--num-examples", type=int, default=8)
    parser.add_argument("--tau", type=float, default=11.1, help="inverse temperature")
    args = parser.parse_args()
    text = next_words(args.corpus, args.vocabulary_size, 64, args.num_examples, 0)
    rows = compute(text, args.tau)
    source = "Python's standard library" if args.corpus is None else args.corpus.name
    settings = (
        f"{source}: {len(text.h)} next-word examples, n = {len(text.class_embeddings):,}, d = 64 "
        f"(PPMI and SVD), tau = {args.tau:g}; quadratic: 100 o^2 + 1; long run at fixed logits"
    )
    write_both(args.output, "moving_average", rows, FIELDS, settings, draw(rows, settings))


def compute(text: Embeddings, tau: float) -> list[Row]:
    """Return the rows of the table."""
    logits = tau * text.h @ text.class_embeddings.T
    inputs = SamplerInputs(
        text.class_embeddings, text.counts, tau=tau, rng=0, h=text.h, logits=logits
    )
    proposals = dense_proposals(dict.fromkeys(PROPOSALS), inputs)
    log_sums = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(logits)), text.labels]
    median_sum = float(np.exp(np.median(log_sums)))

    rows = []
    for name in PROPOSALS:
        q = proposals[name]
        known = [without_memory(text, logits, q, m) for m in tqdm(DRAWS, desc=name)]
        rows += [
            {"proposal": name, "rule": "none", "gamma": 1.0, "num_sampled": m, **row}
            for m, row in zip(DRAWS, known, strict=True)
        ]
        for m in NUM_SAMPLED:
            mse = None
            for gamma in tqdm(GAMMAS, desc=f"{name}, m = {m}"):
                rules = {"gamma": {"gamma": gamma}}
                if gamma < 1.0:
                    rules["alpha"] = {"alpha": gamma / (1.0 - gamma) / median_sum}
                for rule, rate in rules.items():
                    found = with_memory(text, logits, q, m, tau, rate)
                    mse = found["h_mse"] if mse is None else mse
                    found["h_mse"] /= mse
                    for field, worth in (("l1_bias", "worth"), ("l1_turning", "worth_turning")):
                        found[worth] = draws_with(found[field], field, known) / m
                    about = {"proposal": name, "rule": rule, "gamma": gamma, "num_sampled": m}
                    rows.append({**about, **found})
    return rows


def without_memory(text: Embeddings, logits: FloatArray, q: FloatArray, m: int) -> Row:
    """Return the mean bias of sampled softmax with m draws."""
    found = moving_average_bias(logits, text.labels, q, m, gamma=1.0)
    return averages(found)


def with_memory(
    text: Embeddings, logits: FloatArray, q: FloatArray, m: int, tau: float, rate: dict[str, float]
) -> Row:
    """Return the mean bias and the mean squared error in h with a running estimate."""
    found = moving_average_bias(logits, text.labels, q, m, **rate)
    moments = moving_average_moments(
        logits, text.labels, q, m, text.class_embeddings, tau=tau, **rate
    )
    return {**averages(found), "h_mse": float(np.mean(moments.mse))}


def averages(found: samplesoft.bias.MovingAverageBias) -> Row:
    """Return the means over the examples."""
    return {
        "l1_bias": float(np.abs(found.bias).sum(axis=1).mean()),
        "l1_turning": float(np.abs(found.turning_bias).sum(axis=1).mean()),
        "relative_step": float(np.mean(found.relative_step)),
    }


def draws_with(size: float, field: str, known: list[Row]) -> float:
    """Return the number of draws of sampled softmax whose bias is `size`, between known numbers."""
    sizes = np.log([row[field] for row in known])
    log_draws = np.log(DRAWS)
    if np.log(size) < sizes.min():  # beyond the largest number the bias falls like 1 / m
        return float(np.exp(log_draws[-1] + sizes[-1] - np.log(size)))
    return float(np.exp(np.interp(-np.log(size), -sizes, log_draws)))


def draw(rows: list[Row], settings: str) -> Figure:
    """Plot the bias, what memory is worth in draws, and the mean squared error, over gamma."""
    figure = Figure(figsize=(12.5, 5.2), dpi=100)
    bias, worth, error = figure.subplots(1, 3)
    for name, colour in PROPOSALS.items():
        for m in NUM_SAMPLED:
            own = [r for r in rows if (r["proposal"], r["num_sampled"]) == (name, m)]
            constant = [r for r in own if r["rule"] == "gamma"]
            gammas = [r["gamma"] for r in constant]
            style = {"color": colour, "marker": MARKERS[m], "markersize": 4, "linewidth": 1.3}
            label = f"{name}, m = {m:,}"
            bias.loglog(gammas, [r["l1_bias"] for r in constant], label=label, **style)
            turning = [r["l1_turning"] for r in constant]
            bias.loglog(gammas, turning, color=colour, linewidth=1.0, linestyle=":")
            worth.loglog(gammas, [r["worth_turning"] for r in constant], **style)
            scent = [r for r in own if r["rule"] == "alpha"]
            at = [r["gamma"] for r in scent]
            worth.loglog(at, [r["worth_turning"] for r in scent], "--", color=colour, linewidth=1.0)
            error.loglog(gammas, [r["h_mse"] for r in constant], **style)
            error.loglog(at, [r["h_mse"] for r in scent], "--", color=colour, linewidth=1.0)
    at = np.array([GAMMAS[-1], 1.0])
    worth.loglog(at, 1.0 / at, color="#D55E00", linewidth=1.2)
    worth.text(0.3, 5.0, "1 / gamma", color="#D55E00", fontsize=9)
    bias.set_title("L1 bias; dotted: the part that turns", fontsize=10)
    worth.set_title("draws for as little turning, divided by m", fontsize=10)
    error.set_title("mean squared error in h, relative to gamma = 1", fontsize=10)
    bias.set_ylabel("mean L1 norm of the bias in the logits")
    worth.text(0.04, 0.05, "dashed: SCENT", transform=worth.transAxes, fontsize=9)
    lines = bias.get_legend_handles_labels()
    figure.legend(
        *lines,
        frameon=False,
        fontsize=7.5,
        ncols=9,
        loc="lower left",
        columnspacing=0.9,
        handlelength=1.4,
    )
    error.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    error.minorticks_off()
    for axes in (bias, worth, error):
        axes.set_xlabel("gamma, weight of the new draws")
        axes.grid(True, color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.065, textwrap.fill(settings, 190), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.1, 1.0, 1.0))
    return figure


if __name__ == "__main__":
    main()
