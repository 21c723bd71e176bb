"""Theory, bounds and Monte Carlo side by side, for samplers on given logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._progress import progress_bar
from samplesoft._random import as_key, mix64
from samplesoft._validation import FloatArray
from samplesoft.bias.exact import ExactBias, exact_bias
from samplesoft.bias.moments import exact_gradient_moments
from samplesoft.schemes import Scheme
from samplesoft.verification.agreement import (
    ALPHA,
    Scores,
    Trials,
    compare,
    merge,
    p_value,
    z_limit,
)
from samplesoft.verification.blocks import (
    WRT,
    Coordinates,
    Figures,
    Theory,
    carry,
    class_vector_figures,
    coordinates,
    figures,
    read_theory,
)
from samplesoft.verification.problem import (
    Problem,
    check_counts,
    check_problem,
    check_proposals,
)
from samplesoft.verification.report import VerificationReport
from samplesoft.verification.rows import Picture, VerificationRow
from samplesoft.verification.tables import one_line


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
        Finite logits; ``tau * h @ class_embeddings.T`` where those are given.
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
        See `exact_bias`. The bounds, the limit and the moments are those of ``negatives``.
    num_trials : int
        Monte Carlo trials for each example, sampler and m; at least 2.
    rng : int or numpy.random.Generator or None
        Seed of the trials.
    progress : bool or callable
        Show a progress bar on stderr, if that is a terminal. A callable, such as ``print``, gets
        a line of text too whenever a proposal at one m has been checked.
    settings : mapping, optional
        Shown and saved with the report, for example where the data came from.

    Returns
    -------
    VerificationReport
        Rows for each sampler, m and block; `agrees`, `bounds_hold`, `ok`; `to_dict`,
        `to_markdown`, `plot`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a proposal misses a class that the scheme draws.

    Notes
    -----
    Monte Carlo is compared on bins of classes of like weight that are each hit in 400 trials or
    more, on every coordinate of h, on two norms and on the loss. A statistic whose skewness,
    foreseen from the proposal, exceeds 1/20 is not tested, for its standard error would
    mislead; the report counts it. One Bonferroni limit serves the whole report: a correct
    library fails it with probability 1e-4 as far as the statistics are normal.

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
    problem = check_problem(logits, labels, h, class_embeddings, tau, wrt, scheme, num_trials)
    counts = check_counts(num_sampled, problem.scheme)
    samplers = check_proposals(proposals, problem, counts)
    key = as_key(rng)
    rows: list[VerificationRow] = []
    cells: dict[str, Cell] = {}  # those that the figure shows
    tests: list[Scores] = []
    shown = counts[len(counts) // 2]
    total = len(samplers) * len(counts) * len(problem.logits)
    with progress_bar(bool(progress), total=total, unit="example") as bar:
        for i, (name, q) in enumerate(samplers.items()):
            for k, m in enumerate(counts):
                stream = mix64(key, np.uint64(i * len(counts) + k))
                cell = _cell(problem, q, m, np.uint64(stream), bar)
                rows += [_row(problem, name, q, m, wrt, cell) for wrt in problem.wrt]
                if callable(progress):
                    progress(one_line(rows[-len(problem.wrt)]))
                tests += [merge([getattr(t, part) for t in cell.trials]) for part in _PARTS]
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
        pictures=_pictures(cells, shown),
    )


_PARTS = ("logits", "h", "loss")


@dataclass(frozen=True)
class Cell:
    """One sampler at one m: the exact result, and for each example theory, blocks and trials."""

    exact: ExactBias
    theory: list[Theory] | None
    blocks: dict[str, list[Coordinates]]
    trials: list[Trials]


def _cell(problem: Problem, q: FloatArray, m: int, key: np.uint64, bar: Any) -> Cell:
    scheme = problem.scheme
    if scheme.independent:
        q = -np.expm1(m * np.log1p(-np.minimum(q, 1.0)))
    exact = exact_bias(problem.logits, problem.labels, q, m, scheme=scheme)
    theory: list[Theory] | None = None
    if scheme.has_bounds:
        theory = read_theory(problem.logits, problem.labels, q, m)
    jacobian = problem.jacobian if "h" in problem.wrt else None
    blocks = {"logits": _block(exact.bias, exact, theory, m, 1.0)}
    if jacobian is not None:
        moved = None if theory is None else carry(theory, jacobian)
        scale = float(np.abs(jacobian).max())
        blocks["h"] = _block(exact.bias @ jacobian, exact, moved, m, scale)
    trials = []
    for b, label in enumerate(problem.labels):
        one = (exact.bias[b], float(exact.loss_bias[b]), float(exact.error[b]))
        trials.append(
            compare(
                problem.logits[b],
                int(label),
                q[b if len(q) > 1 else 0],
                m,
                scheme,
                exact.probs[b],
                one,
                jacobian,
                problem.num_trials,
                np.uint64(mix64(key, np.uint64(b))),
            )
        )
        bar.update()
    return Cell(exact, theory, blocks, trials)


def _block(
    bias: FloatArray, exact: ExactBias, theory: list[Theory] | None, m: int, scale: float
) -> list[Coordinates]:
    return [
        coordinates(bias[b], float(exact.error[b]), None if theory is None else theory[b], m, scale)
        for b in range(len(bias))
    ]


def _row(
    problem: Problem, name: str, q: FloatArray, m: int, wrt: str, cell: Cell
) -> VerificationRow:
    examples = _figures(problem, m, wrt, cell)
    tested = merge([t.h if wrt == "h" else t.logits for t in cell.trials])
    loss = merge([t.loss for t in cell.trials])
    resolved = all(one.resolved for one in examples)
    l1 = _mean(examples, "l1_bias")
    width = _mean(examples, "finite_width")
    norms: dict[str, float | None] = {}
    for norm in ("max", "l1"):
        values = np.array([getattr(t, f"{norm}_bias") for t in cell.trials])
        shown = wrt == "logits"
        norms[f"monte_carlo_{norm}"] = float(values[:, 0].mean()) if shown else None
        spread = float(np.sqrt((values[:, 1] ** 2).sum())) / len(values)
        norms[f"monte_carlo_{norm}_stderr"] = spread if shown else None
    moments: dict[str, float] = {}
    if wrt == "h" and problem.scheme.has_bounds and problem.class_embeddings is not None:
        exact = exact_gradient_moments(
            problem.logits, problem.labels, q, m, problem.class_embeddings, tau=problem.tau
        )
        for moment in ("squared_bias", "variance", "mse"):
            moments[moment] = float(np.mean(getattr(exact, moment)))
    outside = _total(examples, "finite_outside")
    return VerificationRow(
        sampler=name,
        num_sampled=m,
        wrt=wrt,
        num_coordinates=sum(one.size for one in examples),
        max_bias=float(np.mean([one.max_bias for one in examples])),
        l1_bias=float(np.mean([one.l1_bias for one in examples])),
        **norms,
        max_abs_z=tested.max_abs_z if tested.z.size else None,
        num_tested=tested.z.size,
        num_untested=tested.num_untested,
        p_value=p_value(tested.max_abs_z, tested.z.size) if tested.z.size else None,
        printed_max=_mean(examples, "printed_max"),
        outside_printed=_total(examples, "outside"),
        outside_printed_limit=_total(examples, "outside_limit"),
        sign_condition=_total(examples, "sign_condition"),
        finite_hold=None if outside is None else outside == 0,
        finite_outside=outside,
        finite_tightness=width / l1 if width is not None and l1 and resolved else None,
        finite_min_max=_mean(examples, "finite_min_max"),
        finite_max_max=_mean(examples, "finite_max_max"),
        loss_bias=float(np.mean(cell.exact.loss_bias)),
        loss_z=loss.max_abs_z if loss.z.size else None,
        **moments,
    )


def _figures(problem: Problem, m: int, wrt: str, cell: Cell) -> list[Figures]:
    if wrt != "class_embeddings":
        return [figures(block) for block in cell.blocks[wrt]]
    assert problem.h is not None
    theory: Sequence[Theory | None] = cell.theory or [None] * len(problem.h)
    return [
        class_vector_figures(block, known, m, problem.tau * slopes)
        for block, known, slopes in zip(cell.blocks["logits"], theory, problem.h, strict=True)
    ]


def _mean(examples: list[Figures], name: str) -> float | None:
    values = [getattr(one, name) for one in examples]
    if values[0] is None:
        return None
    mean = float(np.mean(values))
    return mean if np.isfinite(mean) else None


def _total(examples: list[Figures], name: str) -> int | None:
    values = [getattr(one, name) for one in examples]
    return None if values[0] is None else int(sum(values))


def _pictures(cells: dict[str, Cell], m: int) -> tuple[Picture, ...]:
    """Keep, for all samplers, the example with most coordinates outside the printed bounds.

    In h where there is one, for its coordinates are few.
    """
    pictures = []
    outside: Any = 0
    for cell in cells.values():
        wrt = "h" if "h" in cell.blocks else "logits"
        outside = outside + np.array(
            [0 if one.printed is None else one.printed.outside.sum() for one in cell.blocks[wrt]]
        )
    example = int(np.argmax(outside))
    for name, cell in cells.items():
        block = cell.blocks[wrt][example]
        probs = cell.exact.probs[example]
        if wrt == "h" and block.printed is not None:
            order = np.argsort(block.printed.upper)
            position = np.arange(1.0, len(order) + 1.0)
        else:
            order = np.argsort(probs)
            position = probs[order]
        pictures.append(Picture(name, m, wrt, example, order, position, block))
    return tuple(pictures)
