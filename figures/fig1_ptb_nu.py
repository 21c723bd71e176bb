"""Figure 1 of Rawat et al.: RF-softmax on the Penn Treebank for several sharpnesses of the kernel.

Writes ``fig1_ptb_nu.csv`` and ``fig1_ptb_nu.png`` beside this script: validation perplexity of the
model of ``fig3_ptb_samplers.py`` for T = 1 / sqrt(nu) from 0.3, where nu is tau, to 1. The
committed files come from the Penn Treebank, with ten epochs::

    python figures/fig1_ptb_nu.py --corpus ptb --runs runs --jobs 2

An interrupted script continues where it stopped.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Figure 1.
"""

from __future__ import annotations

from ptb_runs import FULL, parser, run_all, sampled, write_sweep

WIDTHS = (0.3, 0.5, 0.8, 1.0)  # T


def main() -> None:
    """Train the models, then write the CSV and the figure."""
    options = parser(__doc__ or "", epochs=10).parse_args()
    runs = {f"T = {width}": sampled("rff", nu=1.0 / width**2) for width in WIDTHS}
    rows = run_all({"FULL": FULL, **runs}, options)
    write_sweep(
        rows,
        options,
        "fig1_ptb_nu",
        setting="T",
        label=r"$T = 1/\sqrt{\nu}$",
        title="RF-softmax, m = 100, D = 1024",
    )


if __name__ == "__main__":
    main()
