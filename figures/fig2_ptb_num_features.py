"""Figure 2 of Rawat et al.: RF-softmax on the Penn Treebank for several numbers of features.

Writes ``fig2_ptb_num_features.csv`` and ``fig2_ptb_num_features.png`` beside this script:
validation perplexity of the model of ``fig3_ptb_samplers.py`` for D = 64 to 1024 random
frequencies, the paper's largest number here, with T = 0.5. The committed files come from the Penn
Treebank, with ten epochs::

    python figures/fig2_ptb_num_features.py --corpus ptb --runs runs --jobs 2

An interrupted script continues where it stopped.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Figure 2.
"""

from __future__ import annotations

from ptb_runs import FULL, parser, run_all, sampled, write_sweep

FREQUENCIES = (64, 128, 256, 512, 1024)  # D


def main() -> None:
    """Train the models, then write the CSV and the figure."""
    options = parser(__doc__ or "", epochs=10).parse_args()
    runs = {f"D = {d}": sampled("rff", num_features=d) for d in FREQUENCIES}
    rows = run_all({"FULL": FULL, **runs}, options)
    write_sweep(
        rows,
        options,
        "fig2_ptb_num_features",
        setting="D",
        label="D, number of random frequencies",
        title="RF-softmax, m = 100, T = 0.5",
        logarithmic=True,
    )


if __name__ == "__main__":
    main()
