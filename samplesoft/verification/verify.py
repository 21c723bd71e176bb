"""`verify`: compare the exact bias of samplers with Monte Carlo, theory and bounds."""

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
from samplesoft._random import mix64, stream_key
from samplesoft._validation import FloatArray, require_mapping
from samplesoft.bias.asymptotic import self_normalized_terms_of
from samplesoft.bias.bounds.finite import finite_sample_bounds_of
from samplesoft.bias.bounds.num_sampled import smallest_num_sampled
from samplesoft.bias.exact import ExactBias, exact_bias_of, lost_digits
from samplesoft.bias.inputs import Inputs
from samplesoft.bias.moments.gradient import exact_gradient_moments_of
from samplesoft.bias.with_replacement.integral import with_replacement_bias
from samplesoft.schemes import Scheme
from samplesoft.verification.bounds import (
    PARAMETER_BLOCKS,
    RowValues,
    TheoryTerms,
    certified_values,
    class_vector_row_values,
    row_values,
    theory_terms,
)
from samplesoft.verification.problem import (
    VerificationProblem,
    checked_inputs,
    checked_problem,
    warn_unless_logits_fit_vectors,
)
from samplesoft.verification.report import (
    TARGET_BIAS,
    VerificationReport,
    VerificationRow,
    row_as_line,
)
from samplesoft.verification.trials import (
    ALPHA,
    Comparison,
    compare,
    merge_z_scores,
    p_value,
    z_limit,
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
    wrt: Sequence[str] = PARAMETER_BLOCKS,
    scheme: str = "negatives",
    num_trials: int = 4000,
    certified: bool = False,
    rng: int | np.random.Generator | None = None,
    progress: bool | Callable[[str], object] = False,
    settings: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
) -> VerificationReport:
    """Compare the exact bias of sampled softmax with Monte Carlo estimates and with its bounds.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits. With vectors, they must be ``tau * h @ class_embeddings.T``, plus optionally
        a bias of each class and a constant of each example.
    labels : int or array_like of int, shape () or (B,)
        The true class of each example.
    proposals : mapping of str to array_like, shape (n,) or (B, n), or to sampler
        Probabilities of all classes by name, see `samplesoft.samplers.dense_proposals`; or
        samplers, objects with a method ``probs(h)``, which are evaluated at the contexts `h`. For
        scheme ``poisson`` class j is included with probability ``1 - (1 - q_j)^m``, the probability
        that m draws contain it.
    num_sampled : int or iterable of int
        Numbers of draws m.
    h : array_like, shape (d,) or (B, d), optional
        Context vectors.
    class_embeddings : array_like, shape (n, d), optional
        Class vectors; given together with `h`.
    tau : float
        Inverse temperature.
    wrt : sequence of str
        Blocks of parameters: ``logits``, ``h``, ``class_embeddings``. The last two are omitted
        without vectors.
    scheme : str
        Name of the scheme, see `exact_bias`. Theorem 1 and the limit of the bias for many draws are
        reported for ``negatives`` only; bounds for every m, moments and
        `samplesoft.self_normalized_terms` also for ``masked``.
    num_trials : int
        Monte Carlo trials for each example, sampler and m; at least 2.
    certified : bool
        Also prove the bias of the logits, the bounds for every m and violations of the printed
        theorem by ball arithmetic, see `samplesoft.bias.certified`. It needs python-flint, and
        some 2 ms for each class, example, sampler and m.
    rng : int or numpy.random.Generator or None
        Seed of the trials.
    progress : bool or callable
        Show progress on stderr: a bar if that is a terminal, else lines. A callable, such as
        ``print``, is also called with a line of text when a proposal at one m has been checked.
    settings : mapping, optional
        Shown and saved with the report, for example the origin of the data.
    executor : concurrent.futures.Executor, optional
        Its workers compute the examples, each worker on one thread. It is a pool of threads or
        processes, or ``client.get_executor(pure=False)`` of Dask. The result has the same bits as
        without it.

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
        In the cases in which `exact_bias` warns; and if two or more examples show that `logits` are
        not products of `h`, `class_embeddings` and `tau`, up to float32 rounding.

    Notes
    -----
    Four kinds of statistics are compared with Monte Carlo: the gradient in the logits, summed over
    bins of classes of similar weight; each coordinate of the gradient in h; two norms of the bias;
    and the loss. If the trials are enough, 400 or more are expected to draw from each bin. If the
    predicted skewness of a statistic exceeds 1/20, its standard error would be misleading, and it
    is counted as untested. The whole report has one limit for ``|z|``, with Bonferroni's
    correction, which a correct library exceeds with probability 1e-4 if the statistics are normal.

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

    problem = checked_problem(
        logits, labels, num_sampled, h, class_embeddings, tau, wrt, scheme, num_trials, certified
    )
    samplers = checked_inputs(proposals, problem)
    task_executor = as_executor(executor)
    warn_unless_logits_fit_vectors(problem)

    key = stream_key(rng)
    counts = problem.draw_counts
    rows: list[VerificationRow] = []
    comparisons: list[Comparison] = []

    pairs = [(name, m) for name in samplers for m in counts]
    slices = next(iter(samplers.values())).parts(len(pairs))
    tasks = (
        # The key of a random stream depends on the index of sampler and m, so that rows do not
        # depend on the order of the tasks.
        _Task(
            problem.select_examples(examples),
            samplers[name].at(m).of(examples),
            examples.start,
            _stream_key(key, index),
        )
        for index, (name, m) in enumerate(pairs)
        for examples in slices
    )

    num_examples = len(pairs) * len(problem.logits)

    with progress_bar(bool(progress), total=num_examples, unit="example", desc="verify") as bar:
        results = run_tasks(_check_examples, tasks, task_executor)
        for name, m in pairs:
            task_results = []
            for examples in slices:
                task_results.append(next(results))
                bar.update(examples.stop - examples.start)

            rows_at_m, comparisons_at_m = _make_rows(name, m, task_results)
            if callable(progress):
                progress(row_as_line(rows_at_m[0]))
            rows += rows_at_m
            comparisons += comparisons_at_m

        # compute the numbers of draws that are needed last, so that progress is shown sooner
        counts_needed = run_tasks(_num_draws_needed, samplers.values(), task_executor)
        draws_needed = dict(zip(samplers, counts_needed, strict=True))

    rows = [replace(row, draws_needed=draws_needed[row.sampler]) for row in rows]
    scores = merge_z_scores(
        [block for one in comparisons for block in (one.logits, one.h, one.loss)]
    )

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


def _stream_key(key: np.uint64, index: int) -> np.uint64:
    """Return the key of random stream number `index` of the streams that belong to `key`."""
    return np.uint64(mix64(key, np.uint64(index)))


class _Task(NamedTuple):
    """The work of one task: a slice of the examples, with one sampler and one number of draws."""

    problem: VerificationProblem
    inputs: Inputs
    start: int  # index of the first example of the slice
    key: np.uint64  # key from which the random stream of each example is derived


class _TaskResult(NamedTuple):
    """The result of a `_Task` for its slice of the examples.

    `blocks` has the values of `row_values` (one per example) for each block of parameters,
    `comparisons` has one entry for each example, and `warning` is the text of a warning that the
    exact bias has lost digits, or None.
    """

    blocks: dict[str, RowValues]
    comparisons: list[Comparison]
    warning: str | None


def _check_examples(task: _Task) -> _TaskResult:
    """Compare the exact bias of the examples of a task with bounds and with Monte Carlo."""
    problem, inputs, start, key = task
    theory = theory_terms(inputs) if problem.scheme.has_bounds else None
    if problem.scheme.independent:  # replace q by the probability that m draws contain the class
        m = inputs.num_sampled
        with np.errstate(divide="ignore"):  # log 0 for a class with q = 1
            inputs = replace(inputs, q=-np.expm1(m * np.log1p(-np.minimum(inputs.q, 1.0))))

    exact = exact_bias_of(inputs)
    blocks = _row_values_of_blocks(problem, inputs, exact, theory)
    jacobian = problem.jacobian if "h" in problem.blocks else None
    comparisons = []

    for example in range(len(problem.logits)):
        stream = _stream_key(key, start + example)
        comparisons.append(compare(inputs, exact, example, jacobian, problem.num_trials, stream))

    return _TaskResult(blocks, comparisons, lost_digits(exact, inputs, start))


def _make_rows(
    name: str, m: int, results: list[_TaskResult]
) -> tuple[list[VerificationRow], list[Comparison]]:
    """Combine the results of all tasks of one sampler at one m.

    Returns a row for each block of parameters, and the comparisons of all examples. If tasks have
    warnings, the first one is issued.
    """
    warning = next((result.warning for result in results if result.warning is not None), None)
    if warning is not None:
        warnings.warn(warning, RuntimeWarning, stacklevel=3)
    comparisons = [one for result in results for one in result.comparisons]
    rows = []
    for wrt, fields in results[0].blocks.items():
        values = {f: np.concatenate([result.blocks[wrt][f] for result in results]) for f in fields}
        rows.append(_make_row(name, m, wrt, values, comparisons))
    return rows, comparisons


def _row_values_of_blocks(
    problem: VerificationProblem, inputs: Inputs, exact: ExactBias, theory: TheoryTerms | None
) -> dict[str, RowValues]:
    """Return the values (B,) of the report's fields for each block of parameters.

    The values of `finite_tightness`, `leading_ratio` and `agapiou_ratio` are not yet ratios, but
    norms, which `_make_row` divides by the bias.
    """
    m = inputs.num_sampled
    bias = exact.bias
    error = exact.error
    jacobian = problem.jacobian
    ends = None

    # the proofs of the bounds require that S is the label's term plus a mean of independent draws
    has_bounds = _has_bounds_for_every_m(problem.scheme)
    if has_bounds:
        finite = finite_sample_bounds_of(inputs)
        ends = finite.lower, finite.upper

    blocks: dict[str, RowValues] = {}
    if "logits" in problem.blocks:
        blocks["logits"] = row_values(bias, error, theory, ends, m, 1.0)
        if has_bounds:
            terms = self_normalized_terms_of(inputs)
            blocks["logits"] |= {
                "leading_ratio": np.abs(terms.leading_bias).sum(axis=-1),
                "agapiou_ratio": terms.agapiou_bound,
                "effective_sample_size": terms.effective_sample_size,
            }
        if problem.certified:
            blocks["logits"] |= certified_values(inputs, exact, ends, theory is not None)

    if "h" in problem.blocks and jacobian is not None:
        theory_in_h = theory and theory.to_parameters(jacobian)
        ends_in_h = finite.gradient(jacobian) if has_bounds else None
        scale = float(np.abs(jacobian).max())
        blocks["h"] = row_values(bias @ jacobian, error, theory_in_h, ends_in_h, m, scale)

        # moments are for h only: those of the gradient in the logits would need n integrals
        if has_bounds and problem.class_embeddings is not None:
            moments = exact_gradient_moments_of(inputs, problem.class_embeddings, problem.tau)
            names = ("squared_bias", "variance", "mse")
            blocks["h"] |= {name: getattr(moments, name) for name in names}

    if "class_embeddings" in problem.blocks and problem.h is not None:
        scaled_h = problem.tau * problem.h
        blocks["class_embeddings"] = class_vector_row_values(bias, error, theory, ends, m, scaled_h)

    for values in blocks.values():
        values["loss_bias"] = exact.loss_bias
        if theory is not None:
            second_moment: FloatArray = theory.terms.second_moment
            with np.errstate(divide="ignore"):
                values["draws_per_moment"] = np.where(
                    second_moment < np.inf, m / second_moment, np.inf
                )

    return {wrt: blocks[wrt] for wrt in problem.blocks}


def _has_bounds_for_every_m(scheme: Scheme) -> bool:
    """Return whether bounds that hold for every m are proved for a scheme."""
    return scheme.sum_is_label_plus_mean and not scheme.jackknife


def _num_draws_needed(inputs: Inputs) -> int | None:
    """Return the smallest m for which the mean L1 bias in the logits is at most `TARGET_BIAS`.

    Returns None if no m in the range of float64 is enough, or if the bias of the scheme is not
    proved to decrease with m.
    """
    if not _has_bounds_for_every_m(inputs.scheme):
        return None

    def mean_l1_bias(m: int) -> float:
        biases = (with_replacement_bias(*row, m, inputs.scheme).bias for row in inputs.rows())
        return float(np.mean([np.abs(bias).sum() for bias in biases]))

    # the L1 bias of each example decreases with m (bias/README.md, section 14)
    try:
        return smallest_num_sampled(mean_l1_bias, 1, TARGET_BIAS)
    except ValueError:
        return None


def _make_row(
    name: str, m: int, wrt: str, example_values: RowValues, comparisons: list[Comparison]
) -> VerificationRow:
    """Return the row of one sampler, m and block, given the values (B,) of all examples."""
    values = {field: _mean_or_total(field_values) for field, field_values in example_values.items()}
    resolved = values["resolved"] = bool(example_values["resolved"].all())

    if "certified_error" in example_values:  # of the worst example
        values["certified_error"] = float(example_values["certified_error"].max())

    # divide norms by the bias, unless the bias is 0 within its numerical error
    l1_bias = values["l1_bias"] if resolved else 0.0
    for field in ("finite_tightness", "leading_ratio", "agapiou_ratio"):
        norm = values.pop(field, None)
        values[field] = None if norm is None or not l1_bias else norm / l1_bias

    if wrt == "logits":
        norms = np.array([one.norms for one in comparisons])

        # standard error of a mean over the examples, whose estimates are independent
        stderr = np.sqrt((norms[:, 1] ** 2).sum(axis=0)) / len(norms)
        for k, norm in enumerate(("max", "l1")):
            values[f"monte_carlo_{norm}"] = float(norms[:, 0, k].mean())
            values[f"monte_carlo_{norm}_stderr"] = float(stderr[k])

    tested = merge_z_scores([one.h if wrt == "h" else one.logits for one in comparisons])
    if tested.z.size:
        values["max_abs_z"] = tested.max_abs_z
        values["p_value"] = p_value(tested.max_abs_z, tested.z.size)

    loss = merge_z_scores([one.loss for one in comparisons])
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


def _mean_or_total(example_values: Any) -> Any:
    """Return the total of integers or booleans, or the mean of floats (None if not finite)."""
    values = np.asarray(example_values)
    if values.dtype.kind != "f":
        return int(values.sum())
    mean = float(values.mean())
    return mean if np.isfinite(mean) else None
