"""The verification report: what it must find, and what must make it fail."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest

import samplesoft
from samplesoft.bias import theorems
from samplesoft.schemes import SCHEMES, exact_schemes
from samplesoft.verification import agreement, cells, tails
from samplesoft.verification.blocks import (
    compare_with_bounds,
    compute_theory,
    summarize,
    summarize_class_vectors,
    transform_theory,
)
from samplesoft.verification.verify import verify

N, D, B, TAU = 40, 5, 3, 4.0


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    h = rng.standard_normal((B, D))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    c = rng.standard_normal((N, D))
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    logits = TAU * h @ c.T
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    unigram = rng.dirichlet(np.ones(N))
    proposals = {"uniform": np.full(N, 1 / N), "unigram": 0.9 * unigram + 0.1 / N}
    proposals["softmax"] = softmax
    return {
        "logits": logits,
        "labels": np.array([3, 0, N - 1]),
        "proposals": proposals,
        "h": h,
        "class_embeddings": c,
        "tau": TAU,
        "num_sampled": (2, 30),
        "num_trials": 3000,
        "rng": 1,
    }


@pytest.fixture(scope="module")
def report(problem):
    return verify(**problem)


@pytest.mark.parametrize("scheme", exact_schemes())
def test_every_scheme_agrees(problem, scheme):
    draws = max(2, SCHEMES[scheme].least_draws), 30
    got = verify(**problem | {"num_sampled": draws}, scheme=scheme)
    assert got.agrees
    assert got.ok
    assert len(got.rows) == 3 * 2 * 3
    assert got.num_tests > 300
    assert (got.rows[0].printed_max is None) == (scheme != "negatives")
    of_both = [got.rows[0].finite_hold, got.rows[1].mse]
    assert all((value is None) == (scheme not in ("negatives", "masked")) for value in of_both)
    assert bool(got.pictures) == (scheme == "negatives")
    json.dumps(got.to_dict(), allow_nan=False)


def test_same_seed_same_report(problem, report):
    assert verify(**problem).to_dict() == report.to_dict()
    assert verify(**(problem | {"rng": 2})).max_abs_z != report.max_abs_z


def test_a_wrong_exact_value_is_found(problem, monkeypatch):
    def twin(logits, labels, q, m, scheme):
        return samplesoft.exact_bias(logits, labels, np.full(N, 1 / N), m, scheme=scheme)

    monkeypatch.setattr(cells, "exact_bias", twin)
    got = verify(**(problem | {"proposals": {"unigram": problem["proposals"]["unigram"]}}))
    assert not got.agrees
    assert not got.ok
    assert "DISAGREES" in got.to_text()


def test_a_correction_with_the_wrong_sign_is_found(problem, monkeypatch):
    from samplesoft.bias import monte_carlo

    def flipped(log_p, q):
        return np.where(q > 0.0, log_p + np.log(np.maximum(q, 1e-300)), -np.inf)

    monkeypatch.setattr(monte_carlo, "_divide_logs", flipped)
    assert not verify(**problem).agrees


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
def test_finite_bounds_that_fail_are_reported(problem, monkeypatch, scheme):
    def narrow(*args, **options):
        bounds = samplesoft.finite_sample_bounds(*args, **options)
        return samplesoft.FiniteSampleBounds(bounds.lower * 0.5, bounds.upper * 0.5)

    monkeypatch.setattr(cells, "finite_sample_bounds", narrow)
    got = verify(**problem, scheme=scheme)
    assert not got.bounds_hold
    assert got.agrees
    assert not got.ok
    assert "VIOLATED" in got.to_text()


def narrow(terms, factor=0.1):
    """Return wrong terms of the corrected theorem, from which bounds follow that are too close."""
    scaled = ("variance_above", "label_part", "root", "max_gap", "spread", "shifted")
    return terms._replace(**{name: factor * getattr(terms, name) for name in scaled})


def test_a_corrected_theorem_that_fails_is_reported(problem, monkeypatch):
    from samplesoft.verification import blocks

    monkeypatch.setattr(
        blocks, "corrected_terms_of", lambda *args: narrow(theorems.corrected_terms_of(*args))
    )
    got = verify(**problem)
    assert not got.bounds_hold
    assert all(not row.finite_outside for row in got.rows)
    for wrt in ("logits", "h", "class_embeddings"):
        assert sum(row.corrected_outside for row in got.rows if row.wrt == wrt) > 0
    assert " OUT " in got.to_text()


def test_the_corrected_theorem_holds_and_is_over_the_bias(report):
    for row in report.rows:
        assert row.corrected_outside == 0
        assert row.corrected_max >= row.max_bias * (1.0 - 1e-12)
    assert report.bounds_hold
    assert "corrected/max" in report.to_text()


def one_row(logits, label, q, m, **options):
    (row,) = verify(logits, label, {"q": q}, m, num_trials=50, rng=0, **options).rows
    return row


def test_label_counterexample_is_counted():
    """m * bias of the label tends to 36.96, m * UB to 3.954."""
    logits = np.zeros(1001)
    logits[:2] = math.log(1000.0)
    for m, here in ((100, 12.67), (1000, 34.48)):
        row = one_row(logits, 0, np.full(1001, 1 / 1001), m)
        assert row.max_bias * m == pytest.approx(here, abs=0.005) or row.max_bias * m > here
        assert row.outside_printed >= 1
        assert row.outside_printed_limit >= 1
        assert row.sign_condition == 1
        assert row.finite_outside == 0
    report = verify(logits, 0, {"q": np.full(1001, 1 / 1001)}, 1000, num_trials=50, rng=0)
    (picture,) = report.pictures
    printed = picture.coordinates.printed
    assert printed.outside[0]
    assert printed.outside_limit[0]
    assert 1000 * picture.coordinates.bias[0] == pytest.approx(34.48, abs=0.005)
    assert 1000 * printed.upper[0] == pytest.approx(3.954, abs=5e-4)


@pytest.mark.parametrize(
    ("logits", "q", "slopes", "figures_"),
    [
        ([0.0, 0.0, 0.0], [0.0, 0.999, 0.001], [1.0, 1.0, 0.0], (1000, 69.00, 73.96, 40.88)),
        ([math.log(8), 0.0, 0.0], [0.0, 0.9, 0.1], [-1.0, -1.0, 1.0], (10, -0.1385, -0.1458, None)),
    ],
)
def test_counterexamples_in_h(logits, q, slopes, figures_):
    m, here, limit, upper = figures_
    report = verify(
        logits, 0, {"q": q}, m, h=[0.0], class_embeddings=np.array(slopes)[:, None],
        wrt="h", num_trials=50, rng=0,
    )  # fmt: skip
    (row,) = report.rows
    assert (row.outside_printed, row.outside_printed_limit, row.finite_outside) == (1, 1, 0)
    block = report.pictures[0].coordinates
    assert m * block.bias[0] == pytest.approx(here, abs=0.006)
    assert samplesoft.asymptotic_bias(logits, 0, q) @ slopes == pytest.approx(limit, abs=0.005)
    if upper is not None:
        assert row.sign_condition == 1
        assert m * block.printed.upper[0] == pytest.approx(upper, abs=0.005)
    else:
        assert m * block.printed.lower[0] == pytest.approx(-0.0889, abs=5e-5)


@pytest.mark.parametrize("factor", [1.0, 0.1])
@pytest.mark.parametrize("m", [1, 3, 50])
def test_class_vectors_match_the_whole_jacobian(m, factor):
    rng = np.random.default_rng(m)
    n, d = 12, 4
    logits = 3.0 * rng.standard_normal((1, n))
    label = np.array([2])
    q = rng.dirichlet(np.full(n, 0.3))[None] * 0.99 + 0.01 / n
    slopes = rng.standard_normal(d)
    slopes[1] = 0.0
    jacobian = np.zeros((n, n * d))
    for i in range(n):
        jacobian[i, i * d : (i + 1) * d] = slopes
    exact = samplesoft.exact_bias(logits, label, q, m)
    error, scale = float(exact.error[0]), float(np.abs(slopes).max())
    theory = compute_theory(logits, label, q)
    theory[0] = replace(theory[0], corrected=narrow(theory[0].corrected, factor))
    finite = samplesoft.finite_sample_bounds(logits, label, q, m)
    ends = finite.lower[0], finite.upper[0]
    block = compare_with_bounds(exact.bias[0], error, theory[0], ends, m, 1.0)
    below, above = finite.gradient(jacobian)
    got = summarize_class_vectors(block, theory[0], m, slopes)
    dense = summarize(
        compare_with_bounds(
            exact.bias[0] @ jacobian,
            error,
            transform_theory(theory, jacobian)[0],
            (below[0], above[0]),
            m,
            scale,
        )
    )
    assert (got.corrected_outside > 0) is (factor < 1.0)
    for name in got.__dataclass_fields__:
        if name == "finite_width":  # contracting with zeros widens by rounding
            assert getattr(got, name) == pytest.approx(getattr(dense, name), rel=1e-9)
        else:
            assert getattr(got, name) == pytest.approx(getattr(dense, name), rel=1e-9), name
    assert got.finite_outside == 0


def test_class_vector_counts_see_violations():
    logits = np.zeros((1, 1001))
    logits[0, :2] = math.log(1000.0)
    theory = compute_theory(logits, np.array([0]), np.full((1, 1001), 1 / 1001))
    exact = samplesoft.exact_bias(logits, [0], np.full(1001, 1 / 1001), 1000)
    ends = exact.bias[0], exact.bias[0]
    block = compare_with_bounds(exact.bias[0], float(exact.error[0]), theory[0], ends, 1000, 1.0)
    slopes = np.array([1.0, -1.0, 0.01])
    assert summarize_class_vectors(block, theory[0], 1000, slopes).outside >= 1


def test_moments_and_norms(problem, report):
    row = next(r for r in report.rows if (r.sampler, r.num_sampled, r.wrt) == ("unigram", 30, "h"))
    q = problem["proposals"]["unigram"]
    args = (problem["logits"], problem["labels"], q, 30)
    exact = samplesoft.exact_bias(*args)
    gradient = exact.gradient_bias(TAU * problem["class_embeddings"])
    assert row.l1_bias == pytest.approx(np.abs(gradient).sum(axis=1).mean())
    assert row.max_bias == pytest.approx(np.abs(gradient).max(axis=1).mean())
    assert row.squared_bias == pytest.approx((gradient**2).sum(axis=1).mean())
    assert row.mse == pytest.approx(row.squared_bias + row.variance)
    assert row.loss_bias == pytest.approx(exact.loss_bias.mean())
    logits = report.rows[report.rows.index(row) - 1]
    assert logits.wrt == "logits"
    assert abs(logits.monte_carlo_l1 - logits.l1_bias) < 5 * logits.monte_carlo_l1_stderr
    assert logits.finite_min_max <= logits.max_bias <= logits.finite_max_max
    assert 0.0 < logits.finite_tightness < 0.5
    p = exact.probs
    np.put_along_axis(p, problem["labels"][:, None], 0.0, axis=1)
    others = q.sum() - q[problem["labels"]]
    rho = (p**2 / q).sum(axis=1) * others
    assert row.draws_per_moment == pytest.approx((30 / rho).mean())


@pytest.mark.parametrize("scheme", ["negatives", "masked", "reject"])
def test_terms_of_self_normalised_importance_sampling(problem, scheme):
    q = problem["proposals"]["unigram"]
    few = problem | {"proposals": {"unigram": q}, "num_sampled": 30, "num_trials": 100}
    logits, h, _ = (report := verify(**few, scheme=scheme)).rows
    assert h.leading_ratio is h.agapiou_ratio is h.effective_sample_size is None
    assert ("leading/L1" in report.to_text()) == (scheme != "reject")
    assert ("finite-m" in report.to_text()) == (scheme != "reject")
    assert ("in limit" in report.to_text()) == (scheme == "negatives")
    if scheme == "reject":
        assert logits.leading_ratio is logits.agapiou_ratio is logits.effective_sample_size is None
        return
    args = (problem["logits"], problem["labels"], q, 30)
    vectors = {"class_embeddings": problem["class_embeddings"], "tau": problem["tau"]}
    moments = samplesoft.exact_gradient_moments(*args, **vectors, scheme=scheme)
    assert h.variance == pytest.approx(moments.variance.mean())
    bounds = samplesoft.finite_sample_bounds(*args, scheme=scheme)
    terms = samplesoft.self_normalized_terms(*args, scheme=scheme)
    norm = np.abs(samplesoft.exact_bias(*args, scheme=scheme).bias).sum(axis=1).mean()
    leading = np.abs(terms.leading_bias).sum(axis=1).mean()
    assert logits.leading_ratio == pytest.approx(leading / norm)
    width = (bounds.upper - bounds.lower).sum(axis=1).mean()
    assert logits.finite_tightness == pytest.approx(width / norm)
    assert logits.finite_hold and h.finite_hold and report.bounds_hold
    assert logits.agapiou_ratio == pytest.approx(terms.agapiou_bound.mean() / norm)
    assert logits.effective_sample_size == pytest.approx(terms.effective_sample_size.mean())


def test_softmax_has_no_bias(report):
    rows = [row for row in report.rows if row.sampler == "softmax"]
    assert len(rows) >= 3
    for row in rows:
        assert row.l1_bias < 1e-12
        assert row.finite_tightness is None
        assert row.leading_ratio is None
        assert row.agapiou_ratio is None
        assert row.outside_printed == 0


@pytest.mark.slow
def test_forms(report, tmp_path):
    values = report.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["ok"] is True
    text = report.to_text()
    for word in ("uniform", "unigram", "softmax", "Gradient in h", "class vectors", "agrees"):
        assert word in text
    lines = text.splitlines()
    rules = [line for line in lines if line.startswith("-------")]
    table = lines[lines.index(rules[1]) + 1 :][:6]
    assert {len(line) for line in table} == {len(rules[1])} or len(rules) < 2
    for name in ("figure.png", "figure.svg"):
        report.plot(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(ValueError, match=r"must end in \.png"):
        report.plot(tmp_path / "figure.txt")
    with pytest.raises(OSError, match="No such file"):
        report.plot(tmp_path / "absent" / "figure.png")


def test_names_keep_to_their_cell(report):
    named = replace(report.rows[0], sampler="a|b\\|c\r\nd\n\ne")
    other = replace(report, rows=(named, *report.rows[1:]), settings={"a": "b\nc"})
    lines = other.to_text().splitlines()
    assert len(lines) == len(report.to_text().splitlines()) + 2  # the settings
    assert any(line.startswith("a|b\\|c d e   2  ") for line in lines)
    assert "a: b c." in lines


def test_csv(report):
    rows = list(csv.DictReader(report.to_csv().splitlines()))
    assert len(rows) == len(report.rows)
    for got, row in zip(rows, report.rows, strict=True):
        assert got.pop("scheme") == "negatives"
        expected = asdict(row)
        assert list(got) == list(expected)
        for name, value in expected.items():
            if isinstance(value, float):
                assert float(got[name]) == pytest.approx(value, rel=1e-7)
            else:
                assert got[name] == ("" if value is None else str(value))


def test_figure_of_logits_and_of_other_schemes(problem, tmp_path):
    fewer = problem | {"proposals": {"uniform": np.full(N, 1 / N)}, "num_trials": 100}
    for scheme in ("negatives", "importance"):
        report = verify(**fewer, wrt=("logits",), scheme=scheme)
        report.plot(tmp_path / f"{scheme}.png")
        assert (tmp_path / f"{scheme}.png").stat().st_size > 10_000


def test_figure_of_one_m_shows_every_mark(problem, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, **_: (drawn.append(self), path.touch())
    )
    one = problem | {"proposals": {"uniform": np.full(N, 1 / N)}, "num_sampled": 10}
    verify(**one).plot(tmp_path / "one.png")
    assert drawn[0].get_figwidth() >= 8.0
    axis = drawn[0].subfigs[0].axes[0]
    assert all(line.get_marker() not in ("None", None, "") for line in axis.lines[:2])
    (low, high) = axis.collections[0].get_segments()[0][:, 1]
    assert low < high


def test_too_few_trials_do_not_agree():
    report = verify(np.zeros(5), 0, {"q": np.arange(1, 6) / 15}, 2, num_trials=2, rng=0)
    assert report.num_tests == 0
    assert not report.agrees
    assert "NOTHING" in report.to_text()


def test_bins_are_hit_often_enough():
    rng = np.random.default_rng(0)
    n, m, trials = 1000, 10, 5000
    p, q = rng.dirichlet(np.ones(n)), rng.dirichlet(np.full(n, 0.3)) * 0.9 + 0.1 / n
    predicted = tails.predict_tails(p, 7, q, m, SCHEMES["negatives"])
    bins = tails.bin_classes(7, predicted, trials)
    assert np.sum(bins == bins[7]) == 1
    hits = np.bincount(bins, trials * predicted.hits)
    assert np.delete(hits, bins[7]).min() >= tails.HITS
    assert 20 < bins.max() <= 130


def test_z_limit():
    assert agreement.z_limit(1, 0.05) == pytest.approx(1.96, abs=1e-3)
    assert agreement.p_value(agreement.z_limit(100), 100) == pytest.approx(agreement.ALPHA)


GOOD = {"logits": [0.0, 1.0, 2.0], "labels": 0, "proposals": {"q": [0.2, 0.3, 0.5]}}
BAD = {
    "logits": ({"logits": [0.0, np.nan, 1.0]}, "`logits` must be finite"),
    "labels": ({"labels": 3}, "`labels` must lie in"),
    "sum": ({"proposals": {"q": [0.2, 0.3, 0.4]}}, r"`proposals\['q'\]` must sum to 1"),
    "negative": ({"proposals": {"q": [-0.2, 0.7, 0.5]}}, r"`proposals\['q'\]` must hold"),
    "shape": ({"proposals": {"q": [0.5, 0.5]}}, r"`proposals\['q'\]` must cover all 3"),
    "zero": ({"proposals": {"q": [0.5, 0.5, 0.0]}}, r"proposals\['q'\].*got 0 at class 2"),
    "only label": ({"proposals": {"q": [1.0, 0.0, 0.0]}}, "no negative to draw"),
    "none": ({"proposals": {}}, "`proposals` must map at least one name"),
    "m": ({"num_sampled": 0}, "`num_sampled` must be at least 1, got 0"),
    "no m": ({"num_sampled": ()}, "`num_sampled` must hold one or more"),
    "m twice": ({"num_sampled": (3, 3)}, "`num_sampled` must hold one or more"),
    "jackknife": ({"num_sampled": 1, "scheme": "jackknife"}, "at least 2, got 1"),
    "scheme": ({"scheme": "other"}, "`scheme` must be one of"),
    "wrt": ({"wrt": ("x",)}, "`wrt` must be one of"),
    "no vectors": ({"wrt": "h"}, "`wrt` must name at least one block"),
    "h alone": ({"h": [1.0]}, "`class_embeddings` must be given together with `h`"),
    "c alone": ({"class_embeddings": [[1.0]]}, "`h` must be given together"),
    "vectors": ({"h": [1.0], "class_embeddings": [[1.0]]}, r"must have shapes \(1, d\)"),
    "tau": ({"tau": 0.0}, "`tau` must be finite and greater than 0"),
    "trials": ({"num_trials": 1}, "`num_trials` must be at least 2, got 1"),
    "rng": ({"rng": -1}, "`rng` as a seed must be at least 0"),
}


@pytest.mark.parametrize("change, message", BAD.values(), ids=BAD)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        verify(**(GOOD | change))
