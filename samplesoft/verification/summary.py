"""Rows and pictures of the report, from the cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.moments import exact_gradient_moments
from samplesoft.verification.agreement import merge, p_value
from samplesoft.verification.blocks import (
    BlockSummary,
    Theory,
    summarize,
    summarize_class_vectors,
)
from samplesoft.verification.cells import Cell
from samplesoft.verification.problem import Problem
from samplesoft.verification.report import Picture, VerificationRow


def make_row(
    problem: Problem, name: str, q: FloatArray, m: int, wrt: str, cell: Cell
) -> VerificationRow:
    """Sum up a cell in one row: the sampler `name` of proposal `q` at `m`, in the block `wrt`."""
    examples = _summaries(problem, m, wrt, cell)
    tested = merge([t.h if wrt == "h" else t.logits for t in cell.comparisons])
    loss = merge([t.loss for t in cell.comparisons])
    resolved = all(one.resolved for one in examples)
    l1 = _mean(examples, "l1_bias")
    width = _mean(examples, "finite_width")
    norms: dict[str, float | None] = {}
    for norm in ("max", "l1"):
        values = np.array([getattr(t, f"{norm}_bias") for t in cell.comparisons])
        shown = wrt == "logits"
        norms[f"monte_carlo_{norm}"] = float(values[:, 0].mean()) if shown else None
        stderr = float(np.sqrt((values[:, 1] ** 2).sum())) / len(values)
        norms[f"monte_carlo_{norm}_stderr"] = stderr if shown else None
    moments: dict[str, float] = {}
    if wrt == "h" and cell.classical is not None and problem.class_embeddings is not None:
        exact = exact_gradient_moments(
            problem.logits,
            problem.labels,
            q,
            m,
            problem.class_embeddings,
            tau=problem.tau,
            scheme=problem.scheme,
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
        corrected_max=_mean(examples, "corrected_max"),
        corrected_outside=_total(examples, "corrected_outside"),
        finite_hold=None if outside is None else outside == 0,
        finite_outside=outside,
        draws_per_moment=_draws_per_moment(m, cell),
        finite_tightness=width / l1 if width is not None and l1 and resolved else None,
        finite_min_max=_mean(examples, "finite_min_max"),
        finite_max_max=_mean(examples, "finite_max_max"),
        **_classical(wrt, cell, l1 if resolved else None),
        loss_bias=float(np.mean(cell.exact.loss_bias)),
        loss_z=loss.max_abs_z if loss.z.size else None,
        **moments,
    )


def _draws_per_moment(m: int, cell: Cell) -> float | None:
    moments = [float(one.terms.second_moment) for one in cell.theory or ()]
    if not moments or not 0.0 < min(moments) <= max(moments) < np.inf:
        return None
    return float(np.mean([m / moment for moment in moments]))


def _classical(wrt: str, cell: Cell, l1: float | None) -> dict[str, float | None]:
    """Return the terms of self-normalised importance sampling, the norms divided by `l1`."""
    names = ("leading_ratio", "agapiou_ratio", "effective_sample_size")
    terms = cell.classical
    if wrt != "logits" or terms is None:
        return dict.fromkeys(names)
    norms = np.abs(terms.leading_bias).sum(axis=-1), terms.agapiou_bound
    ratios = [float(np.mean(norm)) / l1 if l1 else np.inf for norm in norms]
    values = (*ratios, float(np.mean(terms.effective_sample_size)))
    return {k: x if np.isfinite(x) else None for k, x in zip(names, values, strict=True)}


def _summaries(problem: Problem, m: int, wrt: str, cell: Cell) -> list[BlockSummary]:
    if wrt != "class_embeddings":
        return [summarize(block) for block in cell.blocks[wrt]]
    assert problem.h is not None
    theory: Sequence[Theory | None] = cell.theory or [None] * len(problem.h)
    return [
        summarize_class_vectors(block, known, m, problem.tau * slopes)
        for block, known, slopes in zip(cell.blocks["logits"], theory, problem.h, strict=True)
    ]


def _mean(examples: list[BlockSummary], name: str) -> float | None:
    values = [getattr(one, name) for one in examples]
    if values[0] is None:
        return None
    mean = float(np.mean(values))
    return mean if np.isfinite(mean) else None


def _total(examples: list[BlockSummary], name: str) -> int | None:
    values = [getattr(one, name) for one in examples]
    return None if values[0] is None else int(sum(values))


def make_pictures(cells: dict[str, Cell], m: int) -> tuple[Picture, ...]:
    """Return pictures of the example with most coordinates outside the printed bounds.

    There is one for each sampler: of the coordinates of h, which are few, or else of the logits.
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
