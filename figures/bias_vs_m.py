"""Bias decreases with the sample size, at different rates (Blanc and Rendle, 2018).

Writes ``bias_vs_m.csv`` and ``bias_vs_m.png`` beside this script: for next-word examples of a text,
the exact bias of the sampled-softmax gradient against the number of draws m, for six proposals, and
for the jackknife with uniform draws; and the part of the bias in the mean squared error of one
gradient in h. Only the examples are sampled. The committed files come from the training text of the
Penn Treebank, about five minutes on two cores::

    python figures/bias_vs_m.py --corpus ptb.train.txt.xz

Without ``--corpus`` the text is the source of the Python standard library.

References
----------
G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling", ICML 2018.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import write_csv
from tqdm import tqdm
from words import next_words

import samplesoft
from samplesoft._files import atomic_write
from samplesoft.data import Embeddings
from samplesoft.samplers import SamplerInputs, dense_proposals
from samplesoft.schemes import SCHEMES

# line: proposal, scheme, label, colour (Okabe and Ito's, safe for the colour-blind), marker
LINES: tuple[tuple[str, str, str, str, str], ...] = (
    ("uniform", "negatives", "uniform", "#000000", "o"),
    ("uniform", "jackknife", "uniform, jackknife", "#999999", "D"),
    ("log-uniform", "negatives", "log-uniform", "#E69F00", "s"),
    ("unigram", "negatives", "unigram$^{0.75}$", "#56B4E9", "^"),
    ("rff", "negatives", "RFF", "#D55E00", "v"),
    ("quadratic", "negatives", "quadratic", "#009E73", "P"),
    ("softmax", "negatives", "softmax", "#CC79A7", "X"),
)
FIELDS = (
    "proposal",
    "scheme",
    "num_sampled",
    "l1_bias_mean",  # over the examples: L1 norm of E[p'] - p
    "l1_bias_median",
    "loss_bias_mean",  # of E[L'] - L, nats
    "relative_h_bias_mean",  # of |bias of the gradient in h| / |gradient in h|
    "h_squared_bias_mean",
    "h_variance_mean",
)
ROUNDING = 1e-15  # a proposal in float64 is proportional to exp(o) only up to rounding
LABEL_GAP = 0.27  # decades between neighbouring labels


def main() -> None:
    """Read the command line, compute, write both files."""
    args = parse_arguments()
    examples = next_words(args.corpus, args.vocabulary_size, args.dim, args.num_examples, args.seed)
    rows = compute(examples, args)
    settings = describe(examples, args)
    folder: Path = args.output
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(
        folder / "bias_vs_m.csv",
        rows,
        FIELDS,
        settings,
        f"for softmax, values below {ROUNDING:g} are the rounding of q",
    )
    with atomic_write(folder / "bias_vs_m.png") as path:
        draw(path, rows, settings)
    print(f"wrote {folder / 'bias_vs_m.csv'} and {folder / 'bias_vs_m.png'}")


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corpus", type=Path, help="plain text, also .gz, .xz or .bz2")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--vocabulary-size", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--num-examples", type=int, default=64)
    parser.add_argument("--max-num-sampled", type=int, default=100_000)
    parser.add_argument("--tau", type=float, default=11.1, help="inverse temperature")
    parser.add_argument("--nu", type=float, default=4.0, help="sharpness of the RFF kernel")
    parser.add_argument("--num-features", type=int, default=1000, help="frequencies D of the RFF")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def compute(examples: Embeddings, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row for each line of the figure and each number of draws."""
    logits = args.tau * examples.h @ examples.class_embeddings.T
    inputs = SamplerInputs(
        examples.class_embeddings,
        examples.counts,
        tau=args.tau,
        nu=args.nu,
        num_features=args.num_features,
        rng=args.seed,
        h=examples.h,
        logits=logits,
    )
    proposals = dense_proposals({line[0]: None for line in LINES}, inputs)
    grid = [m for k in range(12) for m in (10**k, 3 * 10**k) if m <= args.max_num_sampled]
    tasks = [
        (proposal, scheme, m)
        for proposal, scheme, *_ in LINES
        for m in grid
        if m >= SCHEMES[scheme].min_draws
    ]
    return [
        measure(examples, logits, proposals[proposal], proposal, scheme, m, args.tau)
        for proposal, scheme, m in tqdm(tasks, desc="proposals x m", unit="point")
    ]


def measure(
    examples: Embeddings,
    logits: np.ndarray,
    q: np.ndarray,
    proposal: str,
    scheme: str,
    m: int,
    tau: float,
) -> dict[str, Any]:
    """Return the averages over the examples, exact for each of them."""
    labels, classes = examples.labels, examples.class_embeddings
    exact = samplesoft.exact_bias(logits, labels, q, m, scheme=scheme)
    if not np.isfinite(exact.bias).all():
        raise FloatingPointError(f"no exact bias for {proposal}, {scheme}, m = {m}")
    l1 = np.abs(exact.bias).sum(axis=1)
    gradient = tau * (exact.probs @ classes - classes[labels])
    bias = tau * exact.bias @ classes
    relative = np.linalg.norm(bias, axis=1) / np.linalg.norm(gradient, axis=1)
    variance: float | str = ""
    if has_moments(scheme, m):
        moments = samplesoft.exact_gradient_moments(logits, labels, q, m, classes, tau=tau)
        variance = float(np.mean(moments.variance))
    values = (
        l1.mean(),
        np.median(l1),
        np.mean(exact.loss_bias),
        relative.mean(),
        np.mean((bias**2).sum(axis=1)),
        variance,
    )
    return dict(zip(FIELDS, (proposal, scheme, m, *values), strict=True))


def has_moments(scheme: str, m: int) -> bool:
    """Return whether the variance is computed: ten times the work, and none for the jackknife."""
    return SCHEMES[scheme].has_bounds and m in {10**k for k in range(12)}


def describe(examples: Embeddings, args: argparse.Namespace) -> str:
    """Return the settings in one line, without anything of this machine."""
    source = "Python's standard library" if args.corpus is None else args.corpus.name
    num, dim = examples.h.shape
    return (
        f"{source}: {num} next-word examples, n = {len(examples.class_embeddings):,} classes, "
        f"d = {dim} (PPMI and SVD), tau = {args.tau:g}; RFF: nu = {args.nu:g}, "
        f"D = {args.num_features} frequencies; quadratic: 100 o^2 + 1; seed {args.seed}"
    )


def draw(path: Path, rows: list[dict[str, Any]], settings: str) -> None:
    """Draw the L1 bias, and the share of bias in the mean squared error, against m."""
    figure = Figure(figsize=(10.0, 5.0), dpi=110)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1.25, 1.0)})
    ends = []
    for proposal, scheme, label, colour, marker in LINES:
        chosen = [r for r in rows if r["proposal"] == proposal and r["scheme"] == scheme]
        m, l1 = (np.array([r[k] for r in chosen], float) for k in ("num_sampled", "l1_bias_mean"))
        if l1.max() < ROUNDING:
            note = f"{label}: no bias\n(computed: below {ROUNDING:.0e},\nthe rounding of q)"
            left.text(0.03, 0.05, note, color=colour, fontsize=9, transform=left.transAxes)
            continue
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.6}
        left.loglog(m, l1, **style)
        ends.append((float(np.log10(l1[-1])), label, colour))
        if SCHEMES[scheme].has_bounds:
            known = [r for r in chosen if r["h_variance_mean"] != ""]
            m = [r["num_sampled"] for r in known]
            square = np.array([r["h_squared_bias_mean"] for r in known])
            total = square + np.array([r["h_variance_mean"] for r in known])
            right.semilogx(m, 100.0 * square / total, label=label, **style)
    largest = max(r["num_sampled"] for r in rows)
    floor = min(ends)[0]
    guide = np.array([largest / 30.0, largest])
    left.loglog(guide, 0.3 * 10.0**floor * largest / guide, ":", color="0.4", linewidth=1.2)
    ends.append((floor + np.log10(0.3), "slope of 1/m", "0.4"))
    place_labels(left, ends, largest)
    left.set_xlim(0.8, largest * 60.0)
    left.set_ylim(10.0 ** (floor - 1.7), 3.0)
    left.set_xticks([10.0**k for k in range(int(np.log10(largest)) + 1)])
    left.set_ylabel("mean L1 norm of E[p'] - p (probability)")
    left.set_title("Exact bias of the gradient in the logits", fontsize=11)
    right.set_ylabel("bias$^2$ / mean squared error (%)")
    right.set_ylim(0.0, None)
    right.legend(frameon=False, fontsize=9)
    right.set_title("How much of the error in h is bias", fontsize=11)
    for axes in (left, right):
        axes.set_xlabel("negatives drawn, m")
        axes.grid(True, which="major", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.015, textwrap.fill(settings, 170), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.07, 1.0, 1.0))
    figure.savefig(path, metadata={"Software": None})


def place_labels(axes: Any, ends: list[tuple[float, str, str]], largest: int) -> None:
    """Name the lines at their ends, moved apart where they are close."""
    last = -np.inf
    for height, label, colour in sorted(ends):
        last = max(height, last + LABEL_GAP)
        leader = [10.0**height, 10.0**last]
        axes.plot([largest * 1.2, largest * 2.2], leader, color=colour, linewidth=0.7)
        axes.text(largest * 2.5, leader[1], label, color=colour, fontsize=9, va="center")


if __name__ == "__main__":
    main()
