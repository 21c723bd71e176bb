"""Theory, bounds and Monte Carlo side by side, for samplers on given logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._progress import progress_bar
from samplesoft._random import as_key, mix64
from samplesoft._validation import require_mapping
from samplesoft.schemes import Scheme
from samplesoft.verification.agreement import ALPHA, Scores, merge, z_limit
from samplesoft.verification.blocks import WRT
from samplesoft.verification.cells import Cell, compute_cell
from samplesoft.verification.fit import warn_unless_products
from samplesoft.verification.problem import check_counts, check_problem, check_proposals
from samplesoft.verification.report import VerificationReport, VerificationRow, one_line
from samplesoft.verification.summary import make_pictures, make_row


def verify(
    logits: ArrayLike,
    labels: Any,
    proposals: Mapping[str, Any],
    num_sampled: int | Iterable[int] = (10, 100, 1000),
    *,
    h: ArrayLike | None = None,
    class_embeddings: ArrayLike | None = None,
    tau: float = 1.0,
    wrt: Sequence[str] = WRT,
    scheme: str | Scheme = "negatives",
    num_trials: int = 4000,
    rng: int | np.random.Generator | None = None,
    progress: bool | Callable[[str], object] = False,
    settings: Mapping[str, Any] | None = None,
) -> VerificationReport:
    """Check the exact bias of sampled softmax by Monte Carlo, and the bounds by the exact bias.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits. Where vectors are given, ``tau * h @ class_embeddings.T``, to which a bias
        of each class and a constant of each example may be added.
    labels : int or array_like of int, shape () or (B,)
        The true class of each example.
    proposals : mapping of str to array_like, shape (n,) or (B, n), or to sampler
        Probabilities of all classes by name, see `samplesoft.samplers.dense_proposals`; or
        samplers, that is objects with a method ``probs(h)``, which are taken at the contexts `h`.
        For scheme ``poisson`` class j is included with the probability ``1 - (1 - q_j)^m`` of
        being among m draws.
    num_sampled : int or iterable of int
        Numbers of draws m.
    h : array_like, shape (d,) or (B, d), optional
        Context vectors.
    class_embeddings : array_like, shape (n, d), optional
        Class vectors; given together with `h`.
    tau : float
        Inverse temperature.
    wrt : sequence of str
        Blocks of parameters: ``logits``, ``h``, ``class_embeddings``. The last two are left out
        where there are no vectors.
    scheme : str or samplesoft.schemes.Scheme
        See `exact_bias`. Theorem 1 and the limit are of ``negatives``; bounds for every m, moments
        and the terms of `samplesoft.self_normalized_terms` of ``masked`` too.
    num_trials : int
        Monte Carlo trials for each example, sampler and m; at least 2.
    rng : int or numpy.random.Generator or None
        Seed of the trials.
    progress : bool or callable
        Show progress on stderr: a bar if that is a terminal, else lines. A callable, such as
        ``print``, gets a line of text too whenever a proposal at one m has been checked.
    settings : mapping, optional
        Shown and saved with the report, for example where the data came from.

    Returns
    -------
    VerificationReport
        Rows for each sampler, m and block; `agrees`, `bounds_hold`, `ok`; `to_dict`,
        `to_text`, `to_json`, `to_csv`, `to_html`, `plot`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a proposal misses a class that the scheme draws.

    Warns
    -----
    RuntimeWarning
        As `exact_bias`; and where two or more examples show that `logits` are not those of `h`,
        `class_embeddings` and `tau`, to the rounding of float32.

    Notes
    -----
    Monte Carlo is compared on bins of classes of similar weight that are each hit in 400 trials or
    more, on every coordinate of h, on two norms and on the loss. A statistic whose skewness,
    predicted from the proposal, exceeds 1/20 is not tested but counted, as its standard error
    would be misleading. The whole report has one Bonferroni limit, which a correct library exceeds
    with probability 1e-4 as far as the statistics are normal.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 1.
    .. [2] G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling",
       ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.linspace(0.0, 2.0, 50)
    >>> report = verify(logits, 3, {"uniform": np.full(50, 0.02)}, num_sampled=(2, 20), rng=0)
    >>> report.agrees, report.bounds_hold
    (True, True)
    >>> [(row.num_sampled, round(row.l1_bias, 4)) for row in report.rows]
    [(2, 0.2588), (20, 0.0251)]
    """
    if settings is not None:
        require_mapping("settings", settings)
    problem = check_problem(logits, labels, h, class_embeddings, tau, wrt, scheme, num_trials)
    counts = check_counts(num_sampled, problem.scheme)
    samplers = check_proposals(proposals, problem, counts)
    if problem.h is not None and problem.class_embeddings is not None:
        warn_unless_products(problem.logits, problem.h, problem.class_embeddings, problem.tau)
    key = as_key(rng)
    rows: list[VerificationRow] = []
    cells: dict[str, Cell] = {}  # those that the figure shows
    tests: list[Scores] = []
    shown = counts[len(counts) // 2]
    total = len(samplers) * len(counts) * len(problem.logits)
    with progress_bar(bool(progress), total=total, unit="example", desc="verify") as bar:
        for i, (name, q) in enumerate(samplers.items()):
            for k, m in enumerate(counts):
                stream = mix64(key, np.uint64(i * len(counts) + k))
                cell = compute_cell(problem, q, m, np.uint64(stream), bar)
                rows += [make_row(problem, name, q, m, wrt, cell) for wrt in problem.wrt]
                if callable(progress):
                    progress(one_line(rows[-len(problem.wrt)]))
                tests += cell.scores()
                if m == shown and cell.theory is not None:
                    cells[name] = cell
    everything = merge(tests)
    return VerificationReport(
        rows=tuple(rows),
        scheme=problem.scheme.name,
        num_classes=problem.logits.shape[1],
        num_examples=len(problem.logits),
        num_trials=problem.num_trials,
        tau=problem.tau,
        alpha=ALPHA,
        num_tests=everything.z.size,
        max_abs_z=everything.max_abs_z,
        z_limit=z_limit(everything.z.size),
        settings=dict(settings or {}),
        pictures=make_pictures(cells, shown),
    )
