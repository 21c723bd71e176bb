"""Designs of fixed size: bias and mean squared error of six ways to draw m negatives.

Writes ``fixed_size_designs.csv`` and ``fixed_size_designs.png`` beside this script. Draws with
replacement and successive draws without replacement (``negatives`` and ``distinct``, in proportion
to q) are compared with independent inclusions (``poisson``) and three designs of fixed size:
conditional Poisson, pivotal and systematic sampling. The last four have the same inclusion
probabilities pi, in proportion to q with a cap of 1, and the sum m. All draws are corrected by
their inclusion probabilities. All numbers are exact for each example; only the examples are
sampled:

- log-uniform: Gaussian logits of deviation 2, and a log-uniform q over the ids;
- near: a q that is the softmax of the logits plus noise of deviation 0.5.

Pivotal and systematic sampling depend on the order of the classes, which is that of the ids, of the
logits, or of the weights e / pi. A fourth order is in step with the draws: the m classes of a
systematic set have nearly equal weights. The picture shows ratios to ``distinct``. A line of the
table that is not in the picture is conditional Poisson with the inclusion probabilities of
``distinct``. Five minutes on one core::

    python figures/fixed_size_designs.py

References
----------
Y. Tillé, "Sampling Algorithms", Springer, 2006.
J.-C. Deville and Y. Tillé, "Unequal probability sampling without replacement through a splitting
method", Biometrika 85, 1998.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from sampling_designs import (
    ConditionalPoisson,
    OrderedPivotal,
    Systematic,
    design_bias,
    design_mse,
    proportional_inclusion,
)
from scipy.special import softmax
from tables import write_both
from tqdm import tqdm

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.without_replacement.expectations import StratumDistribution
from samplesoft.bias.without_replacement.race import ExponentialRace

DEVIATION, NOISE = 2.0, 0.5
FIELDS = (
    "problem",
    "design",
    "order",  # of the classes, where the design depends on it
    "num_sampled",
    "l1_bias_mean",  # over the examples: L1 norm of E[p'] - p
    "loss_bias_mean",  # of E[L'] - L, nats
    "mse_mean",  # of E|p' - p|**2, the error of the gradient in the logits
)
PROBLEMS = "log-uniform", "near"
PANELS = {  # problem and order: title
    ("log-uniform", "id"): "log-uniform q,\nclasses by id",
    ("log-uniform", "logit"): "log-uniform q,\nclasses by logit",
    ("near", "id"): "q near the softmax,\nclasses by id",
    ("near", "weight"): "q near the softmax,\nclasses by weight",
}
MEASURES = {
    "l1_bias_mean": "L1 norm of the bias",
    "loss_bias_mean": "bias of the loss",
    "mse_mean": "mean squared error",
}
IN_STEP = "systematic, in step"
STYLES = {  # Okabe and Ito's colours, safe for the colour-blind
    "negatives": ("#000000", "o", "-"),
    "distinct": ("#D55E00", "s", "-"),
    "poisson": ("#E69F00", "^", "-"),
    "conditional Poisson": ("#0072B2", "P", "-"),
    "pivotal": ("#56B4E9", "D", "--"),
    "systematic": ("#009E73", "v", "-"),
    IN_STEP: ("#CC79A7", "X", ":"),
}
TICKS = {  # of ratios; draws with replacement leave the picture
    "l1_bias_mean": (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
    "loss_bias_mean": (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
    "mse_mean": (0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0),
}
Row = dict[str, Any]


class Example(NamedTuple):
    """One example of a problem."""

    logits: FloatArray  # (n,)
    label: int
    q: FloatArray  # (n,)

    @property
    def others(self) -> IntArray:
        """The classes (n - 1,) other than the label."""
        return np.delete(np.arange(len(self.logits)), self.label)


def main() -> None:
    """Read the command line, compute, write both files."""
    args = parse_arguments()
    rows = [row for problem in PROBLEMS for row in compute(problem, args)]
    what = (
        f"n = {args.num_classes} classes, {args.num_examples} examples, logits of deviation "
        f"{DEVIATION:g}, seed {args.seed}"
    )
    write_both(args.output, "fixed_size_designs", rows, FIELDS, what, draw(rows))


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--num-classes", type=int, default=200)
    parser.add_argument("--num-examples", type=int, default=10)
    parser.add_argument("--num-sampled", type=int, nargs="+", default=[1, 2, 5, 10, 20, 50, 100])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def compute(problem: str, args: argparse.Namespace) -> list[Row]:
    """Return one row for each design, order and number of draws: means over the examples."""
    rng = np.random.default_rng(args.seed)
    examples = [make_example(problem, args.num_classes, rng) for _ in range(args.num_examples)]
    rows = []
    for m in tqdm(args.num_sampled, desc=problem, unit="m"):
        results = [measure(example, m) for example in examples]
        for design, order in results[0]:
            means = np.mean([result[design, order] for result in results], axis=0)
            values = problem, design, order, m, *map(float, means)
            rows.append(dict(zip(FIELDS, values, strict=True)))
    return rows


def make_example(problem: str, n: int, rng: np.random.Generator) -> Example:
    """Return an example, whose label is drawn from the softmax."""
    logits = DEVIATION * rng.normal(size=n)
    label = int(rng.choice(n, p=softmax(logits)))
    noise = NOISE * rng.normal(size=n)
    ids = np.arange(n)
    q = softmax(logits + noise) if problem == "near" else np.log((ids + 2.0) / (ids + 1.0))
    return Example(logits, label, q / q.sum())


def measure(example: Example, m: int) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Return the L1 norm of the bias, the loss bias and the mean squared error.

    Keys are the design, and the order of the classes if it matters.
    """
    others = example.others
    q = example.q[others]
    pi = proportional_inclusion(q, m)
    logits = example.logits[others]
    log_weights = logits - np.log(pi)
    race = ExponentialRace(q, m)
    sets: dict[tuple[str, str], StratumDistribution] = {
        ("distinct", ""): race,
        ("conditional Poisson", ""): ConditionalPoisson(pi),
        ("conditional Poisson, pi of distinct", ""): ConditionalPoisson(
            np.minimum(race.inclusion[0], 1.0)
        ),
    }
    orders = {
        "id": np.arange(len(pi)),
        "logit": np.argsort(-logits),
        "weight": np.argsort(-log_weights),
        "in step": order_in_step(log_weights, pi),
    }
    for name, order in orders.items():
        sets["pivotal", name] = OrderedPivotal(pi, order)
        sets["systematic", name] = Systematic(pi, order)
    inclusion = np.ones(len(example.q))
    inclusion[others] = pi
    return {
        ("negatives", ""): of_scheme(example, example.q, m, "negatives"),
        ("poisson", ""): of_scheme(example, inclusion, m, "poisson"),
        **{name: of_design(example, design) for name, design in sets.items()},
    }


def of_scheme(example: Example, q: FloatArray, m: int, scheme: str) -> tuple[float, float, float]:
    """Return the three measures of a scheme of the package."""
    num_classes = len(q)
    exact = exact_bias(example.logits, example.label, q, m, scheme=scheme)
    moments = exact_gradient_moments(
        example.logits, example.label, q, m, np.eye(num_classes), scheme=scheme
    )
    return float(np.abs(exact.bias).sum()), float(exact.loss_bias), float(moments.mse)


def of_design(example: Example, design: StratumDistribution) -> tuple[float, float, float]:
    """Return the three measures of a distribution over sets."""
    exact = design_bias(example.logits, example.label, design)
    mse = design_mse(example.logits, example.label, design)
    return float(np.abs(exact.bias).sum()), exact.loss_bias, mse


def order_in_step(log_weights: FloatArray, pi: FloatArray) -> IntArray:
    """Return an order (N,) in which weights at distance 1 on the line are nearly equal.

    The line of systematic sampling gives class j the length `pi` (N,). Weights fall from each whole
    number to the next one, so that a set of classes has only large weights, or only small ones.
    """
    falling = np.argsort(-log_weights)
    lengths = pi[falling]
    middles = (np.cumsum(lengths) - 0.5 * lengths) / lengths.sum()
    order: list[int] = []
    place = 0.0
    free = np.ones(len(pi), np.bool_)
    for _ in range(len(pi)):
        aims = (place + 0.5 * lengths) % 1.0
        nearest = int(np.where(free, np.abs(middles - aims), np.inf).argmin())
        free[nearest] = False
        order.append(int(falling[nearest]))
        place += lengths[nearest]
    return np.array(order)


def is_of(row: Row, design: str, order: str) -> bool:
    """Return whether a row is of a design, and of the order if it depends on one."""
    return bool(row["design"] == design and row["order"] in ("", order))


def draw(rows: list[Row]) -> Figure:
    """Plot three measures over those of `distinct`, by the number of draws, for each panel."""
    figure = Figure(figsize=(12.5, 9.6), layout="constrained")
    grid = figure.subplots(len(MEASURES), len(PANELS), sharex=True, sharey="row")
    for ((problem, order), title), column in zip(PANELS.items(), grid.T, strict=True):
        for design, (colour, marker, line) in STYLES.items():
            wanted = ("systematic", "in step") if design == IN_STEP else (design, order)
            if design == IN_STEP and order == "id":
                continue
            own = [r for r in rows if r["problem"] == problem and is_of(r, *wanted)]
            base = [r for r in rows if r["problem"] == problem and is_of(r, "distinct", "")]
            for field, axes in zip(MEASURES, column, strict=True):
                x = [r["num_sampled"] for r in own]
                y = [r[field] / one[field] for r, one in zip(own, base, strict=True)]
                style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.5}
                axes.plot(x, y, line, label=design, **style)
        column[0].set_title(title, fontsize="medium")
        column[-1].set(xlabel="negatives drawn, m", xscale="log")
        ticks = sorted({r["num_sampled"] for r in rows})
        column[-1].set_xticks(ticks, [str(tick) for tick in ticks])
        column[-1].minorticks_off()
    for (field, label), line_of_axes in zip(MEASURES.items(), grid, strict=True):
        line_of_axes[0].set(ylabel=f"{label}\nover that of distinct", yscale="log")
        line_of_axes[0].set_yticks(TICKS[field], [f"{tick:g}" for tick in TICKS[field]])
        line_of_axes[0].minorticks_off()
        line_of_axes[0].set_ylim(TICKS[field][0], TICKS[field][-1])
        for axes in line_of_axes:
            axes.grid(alpha=0.3)
    handles, labels = grid[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    main()
