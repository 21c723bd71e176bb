"""How the bias of each sampler grows or shrinks while a full softmax is trained.

Writes ``bias_during_training.csv`` and ``bias_during_training.png`` beside this script. After each
epoch of the FULL run of ``fig3_ptb_samplers.py``, on contexts of the validation text: the exact
bias of the sampled-softmax gradient with m = 100, and the exact squared bias and variance of the
gradient in h. No sample is drawn. The committed files come from the Penn Treebank; epochs that are
not in ``--runs`` are trained first::

    python figures/bias_during_training.py --corpus ptb --runs runs

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019: the samplers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from ptb_runs import FULL, epoch_checkpoint, parser, run_all, run_folder
from tables import write_csv
from tqdm import tqdm

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft._files import atomic_write
from samplesoft.samplers import SamplerInputs, dense_proposals
from samplesoft.training.trained import read_examples

NUM_SAMPLED = 100
STYLES = {  # Okabe and Ito's colours, safe for the colour-blind
    "uniform": ("#E69F00", "^"),
    "log-uniform": ("#8C564B", "<"),
    "unigram": ("#56B4E9", "v"),
    "quadratic": ("#009E73", "P"),
    "rff": ("#0072B2", "D"),
    "rff+softmax-leaf": ("#D55E00", "X"),
    "positive": ("#777777", "h"),
    "softmax": ("#CC79A7", "s"),
}
FIELDS = (
    "sampler",
    "epoch",
    "l1_bias",  # mean over the examples: L1 norm of E[p'] - p
    "jackknife_l1_bias",  # the same for the jackknife
    "loss_bias",  # mean of E[L'] - L, nats
    "h_squared_bias",  # of the gradient in h, means
    "h_variance",
    "h_squared_norm",  # of the full gradient in h
)


def main() -> None:
    """Compute the biases, then write the CSV and the figure."""
    options = parser(__doc__ or "", epochs=10)
    options.add_argument("--examples", type=int, default=20, help="contexts (default 20)")
    chosen = options.parse_args()
    run_all({"FULL": FULL}, chosen)
    folder = run_folder(chosen.runs, FULL)
    rows = [
        row
        for epoch in tqdm(range(1, chosen.epochs + 1), unit="epoch")
        for row in measure(epoch_checkpoint(folder, epoch), epoch, chosen.examples)
    ]
    chosen.output.mkdir(parents=True, exist_ok=True)
    write_csv(chosen.output / "bias_during_training.csv", rows, FIELDS)
    with atomic_write(chosen.output / "bias_during_training.png") as draft:
        draw(rows, chosen.examples).savefig(draft, dpi=130)


def measure(checkpoint: Path, epoch: int, num_examples: int) -> list[dict[str, Any]]:
    """Return a row for each sampler, for contexts spread over those of the checkpoint."""
    layer = read_examples(checkpoint)
    vectors = layer.embeddings
    some = np.linspace(0, len(vectors.h) - 1, num_examples).astype(int)
    h, labels, classes = vectors.h[some], vectors.labels[some], vectors.class_embeddings
    logits = layer.tau * h @ classes.T
    inputs = SamplerInputs(classes, vectors.counts, tau=layer.tau, rng=0, h=h, logits=logits)
    rows = []
    for sampler, q in dense_proposals(STYLES, inputs).items():
        one = exact_bias(logits, labels, q, NUM_SAMPLED)
        two = exact_bias(logits, labels, q, NUM_SAMPLED, scheme="jackknife")
        moments = exact_gradient_moments(logits, labels, q, NUM_SAMPLED, classes, tau=layer.tau)
        full = layer.tau * (one.probs @ classes - classes[labels])
        rows.append(
            {
                "sampler": sampler,
                "epoch": epoch,
                "l1_bias": float(np.abs(one.bias).sum(axis=1).mean()),
                "jackknife_l1_bias": float(np.abs(two.bias).sum(axis=1).mean()),
                "loss_bias": float(np.mean(one.loss_bias)),
                "h_squared_bias": float(np.mean(moments.squared_bias)),
                "h_variance": float(np.mean(moments.variance)),
                "h_squared_norm": float((full**2).sum(axis=1).mean()),
            }
        )
    return rows


def draw(rows: list[dict[str, Any]], num_examples: int) -> Figure:
    """Plot bias, and squared bias and variance of the gradient in h, against epochs."""
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    bias, squared, variance = figure.subplots(1, 3)
    for sampler, (colour, marker) in STYLES.items():
        own = [row for row in rows if row["sampler"] == sampler]
        style = {"color": colour, "marker": marker, "markersize": 5, "label": sampler}
        epochs = [row["epoch"] for row in own]
        if sampler != "softmax":  # which has none, but for rounding
            bias.plot(epochs, [row["l1_bias"] for row in own], **style)
            squared.plot(epochs, [row["h_squared_bias"] for row in own], **style)
        variance.plot(epochs, [row["h_variance"] for row in own], **style)
    own = [row for row in rows if row["sampler"] == "uniform"]
    norm = [row["h_squared_norm"] for row in own]
    variance.plot(
        [row["epoch"] for row in own], norm, "k:", label="squared norm of the full gradient"
    )
    bias.set(ylabel=r"$\Vert E[p'] - p \Vert_1$", title="gradient in the logits: bias")
    squared.set(ylabel="squared norm", title="gradient in h: squared bias")
    variance.set(ylabel="squared norm", title="gradient in h: variance")
    for axes in (bias, squared, variance):
        axes.set(xlabel="epoch of the full softmax", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    handles, labels = variance.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    figure.suptitle(
        f"Penn Treebank, n = 10,000, m = {NUM_SAMPLED}: exact, mean of {num_examples} contexts"
    )
    return figure


if __name__ == "__main__":
    main()
