"""Theory, bounds and Monte Carlo side by side, for samplers on given logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._executors import as_executor, run_tasks
from samplesoft._progress import progress_bar
from samplesoft._random import as_key, mix64
from samplesoft._validation import FloatArray, require_mapping
from samplesoft.bias.asymptotic import self_normalized_terms_of
from samplesoft.bias.bounds.finite import finite_sample_bounds_of
from samplesoft.bias.bounds.num_sampled import least_num_sampled
from samplesoft.bias.exact import ExactBias, exact_bias_of, lost_digits
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.moments.gradient import exact_gradient_moments_of
from samplesoft.bias.with_replacement.integral import with_replacement_bias
from samplesoft.schemes import Scheme
from samplesoft.verification.bounds import (
    BLOCKS,
    Figures,
    Theory,
    class_vector_figures,
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
    VerificationReport,
    VerificationRow,
    one_line,
)
from samplesoft.verification.trials import ALPHA, Comparison, compare, merge, p_value, z_limit


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
    scheme: str = "negatives",
    num_trials: int = 4000,
    rng: int | np.random.Generator | None = None,
    progress: bool | Callable[[str], object] = False,
    settings: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
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
    scheme : str
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
    executor : concurrent.futures.Executor, optional
        Whose workers share the examples out, each on one thread: pools of threads or processes, or
        ``client.get_executor(pure=False)`` of Dask. The result has the same bits as without.

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
    workers = as_executor(executor)
    warn_unless_products(problem)
    key = as_key(rng)
    counts = problem.counts
    rows: list[VerificationRow] = []
    comparisons: list[Comparison] = []
    pairs = [(name, m) for name in samplers for m in counts]
    parts = next(iter(samplers.values())).parts(len(pairs))
    tasks = (
        # streams are keyed by place, so that no row depends on the order or on who works at it
        _Part(problem.of(part), samplers[name].at(m).of(part), part.start, _stream(key, place))
        for place, (name, m) in enumerate(pairs)
        for part in parts
    )
    total = len(pairs) * len(problem.logits)
    with progress_bar(bool(progress), total=total, unit="example", desc="verify") as bar:
        results = run_tasks(_check, tasks, workers)
        for name, m in pairs:
            checked = []
            for part in parts:
                checked.append(next(results))
                bar.update(part.stop - part.start)
            at_m, trials = _make_rows(name, m, checked)
            if callable(progress):
                progress(one_line(at_m[0]))
            rows += at_m
            comparisons += trials
        # asked for last, so that the first line is printed sooner
        needed = dict(
            zip(samplers, run_tasks(_draws_needed, samplers.values(), workers), strict=True)
        )
    rows = [replace(row, draws_needed=needed[row.sampler]) for row in rows]
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
    )


def _stream(key: np.uint64, place: int) -> np.uint64:
    return np.uint64(mix64(key, np.uint64(place)))


class _Part(NamedTuple):
    """Some examples of one sampler at one m, which one worker checks."""

    problem: Problem
    inputs: Inputs
    first: int  # number of the first example
    key: np.uint64  # of all examples


class _Checked(NamedTuple):
    """What came of it."""

    blocks: dict[str, Figures]
    comparisons: list[Comparison]
    warning: str | None


def _check(part: _Part) -> _Checked:
    """Compare the exact bias of examples with bounds and with trials."""
    problem, inputs, first, key = part
    theory = theory_of(inputs) if problem.scheme.has_bounds else None
    if problem.scheme.independent:  # each class is included as often as m draws would hold it
        m = inputs.num_sampled
        with np.errstate(divide="ignore"):  # of a class that has all of q
            inputs = replace(inputs, q=-np.expm1(m * np.log1p(-np.minimum(inputs.q, 1.0))))
    exact = exact_bias_of(inputs)
    blocks = _figures_of_blocks(problem, inputs, exact, theory)
    jacobian = problem.jacobian if "h" in problem.blocks else None
    comparisons = []
    for b in range(len(problem.logits)):
        stream = _stream(key, first + b)
        comparisons.append(compare(inputs, exact, b, jacobian, problem.num_trials, stream))
    return _Checked(blocks, comparisons, lost_digits(exact, inputs, first))


def _make_rows(
    name: str, m: int, parts: list[_Checked]
) -> tuple[list[VerificationRow], list[Comparison]]:
    """Return a row for each block, and the trials, of all examples; in the name of `verify`."""
    lost = next((part.warning for part in parts if part.warning is not None), None)
    if lost is not None:
        warnings.warn(lost, RuntimeWarning, stacklevel=3)
    comparisons = [one for part in parts for one in part.comparisons]
    rows = []
    for wrt, fields in parts[0].blocks.items():
        figures = {f: np.concatenate([part.blocks[wrt][f] for part in parts]) for f in fields}
        rows.append(_make_row(name, m, wrt, figures, comparisons))
    return rows, comparisons


def _figures_of_blocks(
    problem: Problem, inputs: Inputs, exact: ExactBias, theory: Theory | None
) -> dict[str, Figures]:
    """Return the fields of a row for each example; ratios are norms still, not yet divided."""
    m = inputs.num_sampled
    bias = exact.bias
    error = exact.error
    jacobian = problem.jacobian
    ends = None
    # their proofs need a sum of e_t and a mean of independent draws
    has_bounds = _has_bounds_for_every_m(problem.scheme)
    if has_bounds:
        finite = finite_sample_bounds_of(inputs)
        ends = finite.lower, finite.upper
    blocks: dict[str, Figures] = {}
    if "logits" in problem.blocks:
        blocks["logits"] = figures_of(bias, error, theory, ends, m, 1.0)
        if has_bounds:
            terms = self_normalized_terms_of(inputs)
            blocks["logits"] |= {
                "leading_ratio": np.abs(terms.leading_bias).sum(axis=-1),
                "agapiou_ratio": terms.agapiou_bound,
                "effective_sample_size": terms.effective_sample_size,
            }
    if "h" in problem.blocks and jacobian is not None:
        of_h = theory and theory.of_h(jacobian)
        ends_of_h = finite.gradient(jacobian) if has_bounds else None
        scale = float(np.abs(jacobian).max())
        blocks["h"] = figures_of(bias @ jacobian, error, of_h, ends_of_h, m, scale)
        # variances of the logits' gradient have no use, and need n integrals
        if has_bounds and problem.class_embeddings is not None:
            moments = exact_gradient_moments_of(inputs, problem.class_embeddings, problem.tau)
            names = ("squared_bias", "variance", "mse")
            blocks["h"] |= {name: getattr(moments, name) for name in names}
    if "class_embeddings" in problem.blocks and problem.h is not None:
        scaled_h = problem.tau * problem.h
        blocks["class_embeddings"] = class_vector_figures(bias, error, theory, ends, m, scaled_h)
    for figures in blocks.values():
        figures["loss_bias"] = exact.loss_bias
        if theory is not None:
            second: FloatArray = theory.terms.second_moment
            with np.errstate(divide="ignore"):
                figures["draws_per_moment"] = np.where(second < np.inf, m / second, np.inf)
    return {wrt: blocks[wrt] for wrt in problem.blocks}


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


def _make_row(
    name: str, m: int, wrt: str, figures: Figures, comparisons: list[Comparison]
) -> VerificationRow:
    """Sum up the examples in one row: the sampler `name` in the block `wrt`."""
    values = {field: _summed_up(of_examples) for field, of_examples in figures.items()}
    is_resolved = values["resolved"] = bool(figures["resolved"].all())
    # in parts of the bias, where it is not 0 as far as can be told
    l1_bias = values["l1_bias"] if is_resolved else 0.0
    for field in ("finite_tightness", "leading_ratio", "agapiou_ratio"):
        norm = values.pop(field, None)
        values[field] = None if norm is None or not l1_bias else norm / l1_bias
    if wrt == "logits":
        norms = np.array([one.norms for one in comparisons])
        # of means of independent estimates
        stderr = np.sqrt((norms[:, 1] ** 2).sum(axis=0)) / len(norms)
        for k, norm in enumerate(("max", "l1")):
            values[f"monte_carlo_{norm}"] = float(norms[:, 0, k].mean())
            values[f"monte_carlo_{norm}_stderr"] = float(stderr[k])
    tested = merge([one.h if wrt == "h" else one.logits for one in comparisons])
    if tested.z.size:
        values["max_abs_z"] = tested.max_abs_z
        values["p_value"] = p_value(tested.max_abs_z, tested.z.size)
    loss = merge([one.loss for one in comparisons])
    return VerificationRow(
        sampler=name,
        num_sampled=m,
        wrt=wrt,
        num_tested=tested.z.size,
        num_untested=tested.num_untested,
        finite_hold=None if "finite_outside" not in values else values["finite_outside"] == 0,
        loss_z=loss.max_abs_z if loss.z.size else None,
        **values,
    )


def _summed_up(of_examples: Any) -> Any:
    """Return the total of counts, and the mean of other figures or None if it is not finite."""
    values = np.asarray(of_examples)
    if values.dtype.kind != "f":
        return int(values.sum())
    mean = float(values.mean())
    return mean if np.isfinite(mean) else None
