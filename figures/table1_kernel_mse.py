"""How well feature maps estimate exp(tau h . c) (Rawat et al., 2019, Table 1).

Writes ``table1_kernel_mse.csv`` and ``table1_kernel_mse.png`` beside this script: the mean squared
error over 4,000 random pairs of USPS digits, scaled to norm 1, for every random map, and for the
best fit ``alpha (h . c)^2 + beta``, at several tau, because the paper does not state its tau. The
committed files take about ten minutes on two cores::

    python figures/table1_kernel_mse.py --usps zip.train.gz

``--usps`` takes the training digits as they are published (see ``SOURCE`` below), or an ``.npz``
file whose ``train_x`` (N, 256) holds integers, thousandths of a pixel.

References
----------
A. S. Rawat, J. Chen, F. Yu, A. T. Suresh and S. Kumar, "Sampled Softmax with Random Fourier
Features", NeurIPS 2019, Table 1.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from feature_moments import variance
from matplotlib.figure import Figure
from tables import write_csv
from tqdm import tqdm

from samplesoft._files import atomic_write
from samplesoft._jit import chunks
from samplesoft.feature_maps import QuadraticFeatures, make_feature_map

SOURCE = (
    "USPS digits are published as zip.train.gz at https://hastie.su.domains/ElemStatLearn/data.html"
)
# name in FEATURE_MAPS, label, colour (Okabe and Ito's, safe for the colour-blind), marker
MAPS: tuple[tuple[str, str, str, str], ...] = (
    ("rff", "Fourier, iid", "#D55E00", "v"),
    ("rff:orthogonal", "Fourier, orthogonal", "#E69F00", "s"),
    ("rff:structured", "Fourier, structured", "#56B4E9", "^"),
    ("positive", "positive, iid", "#0072B2", "o"),
    ("positive:orthogonal", "positive, orthogonal", "#CC79A7", "D"),
    ("maclaurin", "random Maclaurin", "#000000", "X"),
)
COLOURS = {name: colour for name, _, colour, _ in MAPS} | {"quadratic": "#009E73"}
PAPER_COUNTS = (100, 1000, 256**2)
# what Table 1 prints: random Fourier at each of these D, quadratic and Maclaurin at D = 256^2
PRINTED: dict[tuple[str, int], float] = {
    ("rff", 100): 2.6e-3,
    ("rff", 1000): 2.7e-4,
    ("rff", 256**2): 5.5e-6,
    ("quadratic", 256**2): 2.8e-3,
    ("maclaurin", 256**2): 8.8e-2,
}
FIELDS = (
    "tau",
    "map",
    "D",  # Fourier: frequencies, as in the paper; quadratic: d^2; else the number of features
    "num_features",  # F, the length of phi
    "num_maps",  # drawn, of which the next two are the mean and the standard deviation
    "mse",  # of the estimate of exp(tau h . c), over the pairs
    "mse_std",
    "mse_expected",  # from the exact variance of the estimate, where it is known
    "mse_gaussian",  # mse times exp(-2 tau): of the estimate of exp(-tau |h - c|^2 / 2)
    "kernel_variance",  # of exp(tau h . c) over the pairs, the error of the best constant
    "mse_printed",  # by the paper, for a tau that it does not give
)
NUMBERS = 1 << 24  # features held at a time

NOTES = (
    "mse: of the estimates of exp(tau h . c), the mean over the pairs and over num_maps "
    "maps; mse_expected: from the exact variance",
    "mse_gaussian: mse * exp(-2 tau), of the Gaussian kernel in place of exp(tau h . c); "
    "kernel_variance: the mse of the best constant",
    "D: rff, frequencies; quadratic (best alpha and beta for these pairs), d^2 of which "
    "num_features differ; else features",
)


def main() -> None:
    """Read the command line, compute, write both files."""
    args = parse_arguments()
    h, c = random_pairs(read_digits(args.usps), args.num_pairs, args.seed)
    rows = compute(h, c, args)
    settings = (
        f"USPS training digits: {len(h):,} random pairs h, c of rows of {h.shape[1]} pixels, "
        f"scaled to norm 1; seed {args.seed}; mean over {args.num_maps} maps, above D = 10,000 "
        "over 1. Rings: Table 1 of Rawat et al., who print no tau, shown up to tau = 1"
    )
    args.output.mkdir(parents=True, exist_ok=True)
    write_csv(args.output / "table1_kernel_mse.csv", rows, FIELDS, settings, *NOTES, digits=4)
    with atomic_write(args.output / "table1_kernel_mse.png") as path:
        draw(path, rows, settings)
    report(rows)
    print(f"wrote table1_kernel_mse.csv and table1_kernel_mse.png to {args.output}")


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--usps", type=Path, help="zip.train.gz, or an .npz file with train_x")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--taus", type=float, nargs="+", default=[0.5, 1.0, 4.0, 11.1])
    parser.add_argument("--counts", type=int, nargs="+", default=PAPER_COUNTS, help="values of D")
    parser.add_argument("--num-pairs", type=int, default=4000)
    parser.add_argument("--num-maps", type=int, default=20, help="1 where D is above 10,000")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.usps is None:
        parser.error(f"--usps FILE is needed: {SOURCE}")
    if not args.usps.exists():
        parser.error(f"--usps {args.usps} is not there: {SOURCE}")
    return args


def read_digits(path: Path) -> np.ndarray:
    """Return pixels (N, 256) in [-1, 1] as rows of norm 1."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            if "train_x" not in arrays:
                sys.exit(f"{path.name} has no array `train_x`, but {', '.join(arrays)}. {SOURCE}")
            pixels = arrays["train_x"] / 1000.0
    else:
        pixels = np.loadtxt(path)[:, 1:]  # the label comes first
    return pixels / np.linalg.norm(pixels, axis=1, keepdims=True)


def random_pairs(digits: np.ndarray, num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows h (num, d) and c (num, d), drawn independently."""
    first, second = np.random.default_rng(seed).integers(0, len(digits), (2, num))
    return digits[first], digits[second]


def compute(h: np.ndarray, c: np.ndarray, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row for each tau, map and D."""
    tasks = [(tau, name, num) for tau in args.taus for name, *_ in MAPS for num in args.counts]
    rows = [best_fit(h, c, tau) for tau in args.taus]
    for tau, name, num in tqdm(tasks, desc="tau x map x D", unit="row"):
        rows.append(measure(h, c, tau, name, num, args))
    order = [name for name, *_ in MAPS]
    return sorted(rows, key=lambda r: (r["tau"], order.index(r["map"]) if r["map"] in order else 9))


def measure(
    h: np.ndarray, c: np.ndarray, tau: float, name: str, num: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the errors of some maps of one kind."""
    kernel = np.exp(tau * np.einsum("ij,ij->i", h, c))
    # for unit vectors exp(tau h . c) is exp(tau) times the Gaussian kernel, with nu = tau
    factor = np.exp(tau) if name.startswith("rff") else 1.0
    errors = []
    for seed in range(args.num_maps if num <= 10_000 else 1):
        phi = make_feature_map(name, h.shape[1], num, tau, rng=args.seed + seed)
        errors.append(np.mean((factor * estimates(phi, h, c) - kernel) ** 2))
    expected: float | str = ""
    known = [variance(phi, x, y) for x, y in zip(h, c, strict=True)]
    if known[0] is not None:
        expected = factor**2 * float(np.mean(known))
    return row(kernel, tau, name, num, phi.feature_dim, errors, expected)


def estimates(phi: Any, h: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return phi(h) . phi(c) for each pair (N,), some pairs at a time, with float32 features."""
    h, c = h.astype(np.float32), c.astype(np.float32)
    return np.concatenate(
        [
            np.vecdot(phi.transform(h[part]), phi.transform(c[part]))
            for part in chunks(len(h), max(1, NUMBERS // phi.feature_dim))
        ]
    )


def best_fit(h: np.ndarray, c: np.ndarray, tau: float) -> dict[str, Any]:
    """Return the error of the quadratic kernel with the best weights for these very pairs."""
    dots = np.einsum("ij,ij->i", h, c)
    kernel = np.exp(tau * dots)
    columns = np.stack([dots**2, np.ones_like(dots)], axis=1)
    weights = np.linalg.lstsq(columns, kernel, rcond=None)[0]
    error = np.mean((columns @ weights - kernel) ** 2)
    width = QuadraticFeatures(h.shape[1]).feature_dim
    return row(kernel, tau, "quadratic", h.shape[1] ** 2, width, [error], "")


def row(
    kernel: np.ndarray,
    tau: float,
    name: str,
    num: int,
    num_features: int,
    errors: list[float],
    expected: float | str,
) -> dict[str, Any]:
    """Return one line of the table."""
    mse = float(np.mean(errors))
    spread: float | str = float(np.std(errors, ddof=1)) if len(errors) > 1 else ""
    gaussian = mse * float(np.exp(-2.0 * tau))
    printed = PRINTED.get((name, num), "")
    values = (tau, name, num, num_features, len(errors), mse, spread, expected, gaussian)
    return dict(zip(FIELDS, (*values, float(kernel.var()), printed), strict=True))


def report(rows: list[dict[str, Any]]) -> None:
    """Print our figures beside those of the paper."""
    print("  tau  map                      D        MSE  of the Gaussian  printed (no tau)")
    for r in rows:
        print(
            f"{r['tau']:5g}  {r['map']:<19} {r['D']:>6}  {r['mse']:9.2e}  {r['mse_gaussian']:15.2e}"
            f"  {r['mse_printed']}"
        )


def draw(path: Path, rows: list[dict[str, Any]], settings: str) -> None:
    """Draw the errors against D, one panel for each tau."""
    taus = sorted({r["tau"] for r in rows})
    figure = Figure(figsize=(3.4 * len(taus) + 0.6, 5.2), dpi=110)
    panels = figure.subplots(1, len(taus), squeeze=False)[0]
    for axes, tau in zip(panels, taus, strict=True):
        here = [r for r in rows if r["tau"] == tau]
        axes.axhline(here[0]["kernel_variance"], color="0.5", linestyle="--", linewidth=1.0)
        for name, label, colour, marker in MAPS:
            chosen = sorted((r for r in here if r["map"] == name), key=lambda r: r["D"])
            count, mse = ([r[k] for r in chosen] for k in ("D", "mse"))
            style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.4}
            axes.loglog(count, mse, label=label, **style)
        for r in here:
            if r["map"] == "quadratic":
                style = {"color": COLOURS["quadratic"], "linestyle": "none", "markersize": 7}
                axes.loglog(r["D"], r["mse"], "P", label="quadratic, best fit", **style)
        for r in here if tau <= 1.0 else []:
            if r["mse_printed"] != "":
                style = {"markerfacecolor": "none", "linestyle": "none", "markersize": 11}
                axes.loglog(r["D"], r["mse_printed"], "o", color=COLOURS[r["map"]], **style)
        axes.set_title(f"tau = {tau:g}", fontsize=11)
        axes.set_xlabel("D (Fourier: frequencies)")
        axes.grid(True, which="major", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean squared error of exp(tau h . c)")
    handles, labels = panels[0].get_legend_handles_labels()
    rings = panels[0].plot([], [], "o", markerfacecolor="none", color="0.2", markersize=9)
    line = panels[0].plot([], [], "--", color="0.5", linewidth=1.0)
    handles += [*rings, *line]
    labels += ["in the paper, in the colour of the map", "the best constant"]
    figure.legend(handles, labels, loc="upper center", ncols=5, frameon=False, fontsize=9)
    figure.text(0.01, 0.015, textwrap.fill(settings, 220), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.06, 1.0, 0.89))
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
