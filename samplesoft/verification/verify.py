"""Theory, bounds and Monte Carlo side by side, for samplers on given logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._progress import progress_bar
from samplesoft._random import as_key, mix64
from samplesoft._validation import FloatArray, require_mapping
from samplesoft.bias.asymptotic import SelfNormalizedTerms, self_normalized_terms_of
from samplesoft.bias.bounds import finite_sample_bounds_of, least_num_sampled
from samplesoft.bias.exact import ExactBias, exact_bias_of, with_replacement_bias
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.moments import exact_gradient_moments_of
from samplesoft.schemes import Scheme
from samplesoft.verification.bounds import (
    BLOCKS,
    Block,
    Figures,
    Theory,
    class_vector_figures,
    compare_with_bounds,
    figures_of,
    theory_of,
)
from samplesoft.verification.problem import (
    Problem,
    check_problem,
    check_proposals,
    warn_unless_products,
)
from samplesoft.verification.report import (
    WANTED_BIAS,
    Picture,
    VerificationReport,
    VerificationRow,
    one_line,
)
from samplesoft.verification.trials import ALPHA, Comparison, compare, merge, p_value, z_limit

_MEANS = ("printed_max", "corrected_max", "finite_min_max", "finite_max_max", "finite_max_l1")
_TOTALS = (
    "outside_printed",
    "outside_printed_limit",
    "outside_with_sign",
    "sign_condition",
    "corrected_outside",
    "finite_outside",
)


def verify(
    logits: ArrayLike,
    labels: Any,
    proposals: Mapping[str, Any],
    num_sampled: int | Iterable[int] = (10, 100, 1000),
    *,
    h: ArrayLike | None = None,
    class_embeddings: ArrayLike | None = None,
    tau: float = 1.0,
    wrt: Sequence[str] = BLOCKS,
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
    problem = check_problem(
        logits, labels, num_sampled, h, class_embeddings, tau, wrt, scheme, num_trials
    )
    samplers = check_proposals(proposals, problem)
    if problem.h is not None and problem.class_embeddings is not None:
        warn_unless_products(problem.logits, problem.h, problem.class_embeddings, problem.tau)
    key = as_key(rng)
    counts = problem.counts
    rows: list[VerificationRow] = []
    shown: dict[str, Cell] = {}  # of the figure
    comparisons: list[Comparison] = []
    total = len(samplers) * len(counts) * len(problem.logits)
    with progress_bar(bool(progress), total=total, unit="example", desc="verify") as bar:
        for i, (name, inputs) in enumerate(samplers.items()):
            # Theorem 1 and the limit know m only as a factor: once for all numbers of draws
            theory = theory_of(inputs) if problem.scheme.has_bounds else None
            of_sampler = []
            for k, m in enumerate(counts):
                # streams are keyed by place, so that no row depends on the order or on threads
                stream = np.uint64(mix64(key, np.uint64(i * len(counts) + k)))
                cell = _compute_cell(problem, inputs, m, theory, stream, bar)
                of_sampler += [_make_row(problem, name, wrt, cell) for wrt in problem.blocks]
                if callable(progress):
                    progress(one_line(of_sampler[-len(problem.blocks)]))
                comparisons += cell.comparisons
                if m == counts[len(counts) // 2] and theory is not None:
                    shown[name] = cell
            # asked for last, so that the first line is printed sooner
            needed = _draws_needed(inputs)
            rows += [replace(row, draws_needed=needed) for row in of_sampler]
    scores = merge([part for one in comparisons for part in (one.logits, one.h, one.loss)])
    return VerificationReport(
        rows=tuple(rows),
        scheme=problem.scheme.name,
        num_classes=problem.logits.shape[1],
        num_examples=len(problem.logits),
        num_trials=problem.num_trials,
        tau=problem.tau,
        alpha=ALPHA,
        num_tests=scores.z.size,
        num_untested=scores.num_untested,
        max_abs_z=scores.max_abs_z,
        z_limit=z_limit(scores.z.size),
        settings=dict(settings or {}),
        pictures=_make_pictures(shown),
    )


@dataclass(frozen=True)
class Cell:
    """One sampler at one m: the exact bias, its bounds, and Monte Carlo of each example.

    `blocks` has the keys ``logits`` and ``h``; `theory` is None for all schemes but ``negatives``,
    and `classical` for those whose sum is not ``e_t`` plus a mean, which have no bounds either.
    """

    inputs: Inputs
    exact: ExactBias
    theory: Theory | None
    classical: SelfNormalizedTerms | None
    blocks: dict[str, Block]
    comparisons: list[Comparison]


def _compute_cell(
    problem: Problem, inputs: Inputs, m: int, theory: Theory | None, key: np.uint64, bar: Any
) -> Cell:
    """Compute what is known of one sampler at one m; `bar` counts the examples."""
    scheme, inputs = problem.scheme, inputs.at(m)
    if scheme.independent:  # each class is included as often as m draws would hold it
        inputs = replace(inputs, q=-np.expm1(m * np.log1p(-np.minimum(inputs.q, 1.0))))
    exact = exact_bias_of(inputs)
    finite = classical = None
    # their proofs need a sum of e_t and a mean of independent draws
    if _has_bounds_for_every_m(scheme):
        classical, finite = self_normalized_terms_of(inputs), finite_sample_bounds_of(inputs)
    ends = None if finite is None else (finite.lower, finite.upper)
    blocks = {"logits": compare_with_bounds(exact.bias, exact.error, theory, ends, m, 1.0)}
    jacobian = problem.jacobian if "h" in problem.blocks else None
    if jacobian is not None:
        blocks["h"] = compare_with_bounds(
            exact.bias @ jacobian,
            exact.error,
            None if theory is None else theory.of_h(jacobian),
            None if finite is None else finite.gradient(jacobian),
            m,
            float(np.abs(jacobian).max()),
        )
    comparisons = []
    for b in range(len(problem.logits)):
        stream = np.uint64(mix64(key, np.uint64(b)))
        comparisons.append(compare(inputs, exact, b, jacobian, problem.num_trials, stream))
        bar.update()
    return Cell(inputs, exact, theory, classical, blocks, comparisons)


def _has_bounds_for_every_m(scheme: Scheme) -> bool:
    return scheme.adds_mean and not scheme.jackknife


def _draws_needed(inputs: Inputs) -> int | None:
    """Return the least m whose bias is at most `WANTED_BIAS` in the mean of the examples.

    None where no m in the range of float64 is enough, and for schemes whose bias has not been
    proved to fall with m.
    """
    if not _has_bounds_for_every_m(inputs.scheme):
        return None

    def norm(m: int) -> float:
        biases = (with_replacement_bias(*row, m, inputs.scheme).bias for row in inputs.rows())
        return float(np.mean([np.abs(bias).sum() for bias in biases]))

    # the norm falls with m for each example (bias/README.md, section 14), and so does the mean
    try:
        return least_num_sampled(norm, 1, WANTED_BIAS)
    except ValueError:
        return None


def _make_row(problem: Problem, name: str, wrt: str, cell: Cell) -> VerificationRow:
    """Sum up a cell in one row: the sampler `name` in the block `wrt`."""
    m = cell.inputs.num_sampled
    figures = _figures(problem, wrt, cell)
    tested = merge([one.h if wrt == "h" else one.logits for one in cell.comparisons])
    loss = merge([one.loss for one in cell.comparisons])
    resolved = bool(figures["resolved"].all())
    l1_bias = float(np.mean(figures["l1_bias"]))
    width = _mean(figures.get("finite_width"))
    summed_up: dict[str, Any] = {field: _mean(figures.get(field)) for field in _MEANS}
    summed_up |= {field: _total(figures.get(field)) for field in _TOTALS}
    outside = summed_up["finite_outside"]
    return VerificationRow(
        sampler=name,
        num_sampled=m,
        wrt=wrt,
        num_coordinates=int(figures["num_coordinates"].sum()),
        max_bias=float(np.mean(figures["max_bias"])),
        l1_bias=l1_bias,
        resolved=resolved,
        **_estimates(wrt, cell),
        max_abs_z=tested.max_abs_z if tested.z.size else None,
        num_tested=tested.z.size,
        num_untested=tested.num_untested,
        p_value=p_value(tested.max_abs_z, tested.z.size) if tested.z.size else None,
        **summed_up,
        finite_hold=None if outside is None else outside == 0,
        draws_per_moment=_draws_per_moment(m, cell.theory),
        finite_tightness=width / l1_bias if width is not None and l1_bias and resolved else None,
        **_classical(wrt, cell, l1_bias if resolved else None),
        loss_bias=float(np.mean(cell.exact.loss_bias)),
        loss_z=loss.max_abs_z if loss.z.size else None,
        **_moments(problem, wrt, cell),
        draws_needed=None,  # which is asked for once a sampler
    )


def _figures(problem: Problem, wrt: str, cell: Cell) -> Figures:
    if problem.h is None or wrt != "class_embeddings":
        return figures_of(cell.blocks[wrt])
    block, slopes = cell.blocks["logits"], problem.tau * problem.h
    return class_vector_figures(block, cell.theory, cell.inputs.num_sampled, slopes)


def _mean(values: Any) -> float | None:
    mean = np.nan if values is None else float(np.mean(values))
    return mean if np.isfinite(mean) else None


def _total(values: Any) -> int | None:
    return None if values is None else int(values.sum())


def _estimates(wrt: str, cell: Cell) -> dict[str, Any]:
    """Return the estimates of both norms, which Monte Carlo has in the logits."""
    estimates: dict[str, Any] = {}
    for norm in ("max", "l1"):
        values = np.array([getattr(one, f"{norm}_bias") for one in cell.comparisons])
        # of a mean of independent estimates
        stderr = float(np.sqrt((values[:, 1] ** 2).sum())) / len(values)
        in_logits = wrt == "logits"
        estimates[f"monte_carlo_{norm}"] = float(values[:, 0].mean()) if in_logits else None
        estimates[f"monte_carlo_{norm}_stderr"] = stderr if in_logits else None
    return estimates


def _moments(problem: Problem, wrt: str, cell: Cell) -> dict[str, Any]:
    """Return the exact moments of the gradient in h, for schemes that have them."""
    # variances of the logits' gradient have no use, and need n integrals
    if wrt != "h" or cell.classical is None or problem.class_embeddings is None:
        return {}
    moments = exact_gradient_moments_of(cell.inputs, problem.class_embeddings, problem.tau)
    names = ("squared_bias", "variance", "mse")
    return {name: float(np.mean(getattr(moments, name))) for name in names}


def _draws_per_moment(m: int, theory: Theory | None) -> float | None:
    if theory is None:
        return None
    moments: FloatArray = theory.printed.second_moment
    return _mean(m / moments) if 0.0 < moments.min() <= moments.max() < np.inf else None


def _classical(wrt: str, cell: Cell, l1_bias: float | None) -> dict[str, Any]:
    """Return the terms of self-normalised importance sampling, the norms divided by `l1_bias`."""
    terms = cell.classical
    if wrt != "logits" or terms is None:
        return dict.fromkeys(("leading_ratio", "agapiou_ratio", "effective_sample_size"))
    leading = float(np.mean(np.abs(terms.leading_bias).sum(axis=-1)))
    agapiou = float(np.mean(terms.agapiou_bound))
    return {
        "leading_ratio": _mean(leading / l1_bias) if l1_bias else None,
        "agapiou_ratio": _mean(agapiou / l1_bias) if l1_bias else None,
        "effective_sample_size": _mean(terms.effective_sample_size),
    }


def _make_pictures(cells: dict[str, Cell]) -> tuple[Picture, ...]:
    """Return a picture for each sampler, of the example with most coordinates outside in all.

    It is of the coordinates of h, which are few, or else of the logits.
    """
    pictures = []
    wrt = "h" if any("h" in cell.blocks for cell in cells.values()) else "logits"
    blocks = [cell.blocks[wrt] for cell in cells.values()]
    # one example for all panels, so that they can be compared
    outside = sum(block.printed.outside.sum(axis=1) for block in blocks if block.printed)
    example = int(np.argmax(outside)) if cells else 0
    for (name, cell), block in zip(cells.items(), blocks, strict=True):
        if block.printed is None or block.ends is None:
            continue
        probs, upper = cell.exact.probs[example], block.printed.upper[example]
        order = np.argsort(upper if wrt == "h" else probs)
        position = np.arange(1.0, len(order) + 1.0) if wrt == "h" else probs[order]
        pictures.append(
            Picture(
                sampler=name,
                num_sampled=cell.inputs.num_sampled,
                wrt=wrt,
                example=example,
                order=order,
                position=position,
                bias=block.bias[example],
                ends=(block.ends[0][example], block.ends[1][example]),
                printed=(block.printed.lower[example], upper),
                outside=block.printed.outside[example],
                outside_limit=block.printed.outside_limit[example],
            )
        )
    return tuple(pictures)
