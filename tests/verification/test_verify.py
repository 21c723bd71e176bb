"""The verification report: what it must find, and what must make it fail."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

import samplesoft
from samplesoft.bias.bounds.finite import finite_sample_bounds_of
from samplesoft.bias.exact import exact_bias_of
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.theorems import theorem1_bounds, theorem1_terms_of
from samplesoft.reports.parts import Table
from samplesoft.schemes import SCHEMES, exact_schemes
from samplesoft.verification import bounds, trials
from samplesoft.verification import verify as verify_module
from samplesoft.verification.bounds import (
    class_vector_row_values,
    row_values,
    theory_terms,
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
    draws = max(2, SCHEMES[scheme].min_draws), 30
    got = verify(**problem | {"num_sampled": draws}, scheme=scheme)
    assert got.agrees
    assert got.ok
    assert len(got.rows) == 3 * 2 * 3
    assert got.num_tests > 300
    assert (got.rows[0].printed_max is None) == (scheme != "negatives")
    of_both = [got.rows[0].finite_hold, got.rows[1].mse]
    assert all((value is None) == (scheme not in ("negatives", "masked")) for value in of_both)
    json.dumps(got.to_dict(), allow_nan=False)


def test_same_seed_same_report(problem, report):
    assert verify(**problem).to_dict() == report.to_dict()
    assert verify(**(problem | {"rng": 2})).max_abs_z != report.max_abs_z


def test_a_wrong_exact_value_is_found(problem, monkeypatch):
    def twin(inputs):
        return exact_bias_of(replace(inputs, q=np.full((1, N), 1 / N)))

    monkeypatch.setattr(verify_module, "exact_bias_of", twin)
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
    def narrow(inputs):
        found = finite_sample_bounds_of(inputs)
        return samplesoft.bias.bounds.FiniteSampleBounds(found.lower * 0.5, found.upper * 0.5)

    monkeypatch.setattr(verify_module, "finite_sample_bounds_of", narrow)
    got = verify(**problem, scheme=scheme)
    assert not got.bounds_hold
    assert got.agrees
    assert not got.ok
    assert "VIOLATED" in got.to_text()


def narrow(terms, factor=0.1):
    """Return wrong terms of the corrected theorem, from which bounds follow that are too close."""
    scaled = ("variance_above", "label_part", "root", "gap_above", "spread", "shifted")
    return terms._replace(**{name: factor * getattr(terms, name) for name in scaled})


def test_a_corrected_theorem_that_fails_is_reported(problem, monkeypatch):
    monkeypatch.setattr(
        bounds, "theorem1_terms_of", lambda inputs: narrow(theorem1_terms_of(inputs))
    )
    got = verify(**problem)
    assert not got.bounds_hold
    assert all(not row.finite_outside for row in got.rows)
    for wrt in ("logits", "h", "class_embeddings"):
        assert sum(row.corrected_outside for row in got.rows if row.wrt == wrt) > 0
    assert "VIOLATED" in got.verdict


def test_the_corrected_theorem_holds_and_is_over_the_bias(report):
    for row in report.rows:
        assert row.corrected_outside == 0
        assert row.corrected_max >= row.max_bias * (1.0 - 1e-12)
    assert report.bounds_hold
    assert "corrected_max: The bound of the" in report.to_text(details=True)


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
    q = np.full(1001, 1 / 1001)
    printed = theorem1_bounds(logits, 0, q, 1000, jacobian=np.eye(1001))
    exact = samplesoft.exact_bias(logits, 0, q, 1000).bias
    assert report.rows[0].max_bias == pytest.approx(np.abs(exact).max(), rel=1e-12)
    assert 1000 * exact[0] == pytest.approx(34.48, abs=0.005)
    assert 1000 * printed.upper[0] == pytest.approx(3.954, abs=5e-4)
    assert report.rows[0].outside_with_sign == report.rows[0].outside_printed
    assert "of them where its condition g >= 0 is met" in report.verdict


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
    printed = theorem1_bounds(logits, 0, q, m, jacobian=np.array(slopes)[:, None])
    assert m * row.max_bias == pytest.approx(abs(here), abs=0.006)
    assert samplesoft.asymptotic_bias(logits, 0, q) @ slopes == pytest.approx(limit, abs=0.005)
    if upper is not None:
        assert row.sign_condition == 1
        assert m * printed.upper[0] == pytest.approx(upper, abs=0.005)
    else:
        assert m * printed.lower[0] == pytest.approx(-0.0889, abs=5e-5)


@pytest.mark.parametrize("factor", [1.0, 0.1])
@pytest.mark.parametrize("m", [1, 3, 50])
def test_class_vectors_match_the_whole_jacobian(m, factor):
    rng = np.random.default_rng(m)
    n, d, batch = 12, 4, 3
    labels = np.array([2, 0, 11])
    q = rng.dirichlet(np.full(n, 0.3), size=batch) * 0.99 + 0.01 / n
    inputs = check_inputs(3.0 * rng.standard_normal((batch, n)), labels, q, m)
    slopes = rng.standard_normal((batch, d))
    slopes[:, 1] = 0.0
    exact, finite = exact_bias_of(inputs), finite_sample_bounds_of(inputs)
    theory = theory_terms(inputs)
    theory = theory._replace(terms=narrow(theory.terms, factor))
    ends = finite.lower, finite.upper
    got = class_vector_row_values(exact.bias, exact.error, theory, ends, m, slopes)
    assert got["corrected_outside"].any() == (factor < 1.0)
    assert not got["finite_outside"].any()
    for b in range(batch):
        jacobian = np.zeros((n, n * d))
        for i in range(n):
            jacobian[i, i * d : (i + 1) * d] = slopes[b]
        whole = row_values(
            exact.bias @ jacobian,
            exact.error,
            theory.to_parameters(jacobian),
            finite.gradient(jacobian),
            m,
            float(np.abs(slopes[b]).max()),
        )
        assert set(whole) == set(got)
        for name, values in whole.items():
            assert got[name][b] == pytest.approx(values[b], rel=1e-9), name


def test_class_vector_counts_see_violations():
    logits = np.zeros((1, 1001))
    logits[0, :2] = math.log(1000.0)
    inputs = check_inputs(logits, [0], np.full(1001, 1 / 1001), 1000)
    exact, theory = exact_bias_of(inputs), theory_terms(inputs)
    ends = exact.bias, exact.bias
    slopes = np.array([[1.0, -1.0, 0.01]])
    got = class_vector_row_values(exact.bias, exact.error, theory, ends, 1000, slopes)
    assert got["outside_printed"][0] >= got["outside_with_sign"][0] >= 1


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
    text = report.to_text(details=True)
    assert ("leading_ratio" in text) == ("finite_hold" in text) == (scheme != "reject")
    assert ("outside_printed_limit" in text) == (scheme == "negatives")
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
    text = report.to_text(details=True)
    for word in ("uniform", "unigram", "softmax", "Gradient in h", "class vectors", "agrees"):
        assert word in text
    assert values["verdict"] == report.verdict
    for name in ("figure.png", "figure.svg"):
        report.plot(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(ValueError, match=r"must end in \.png"):
        report.plot(tmp_path / "figure.txt")
    with pytest.raises(OSError, match="No such file"):
        report.plot(tmp_path / "absent" / "figure.png")


def summary_of(report):
    """Return titles and cells of the table that a newcomer sees first."""
    (table,) = [part for part in report._parts() if isinstance(part, Table)]
    lines = [[column.cell_text(row) for column in table.columns] for row in table.rows]
    return [" ".join(column.title.split()) for column in table.columns], lines


def sentences_of(report):
    return re.split(r"(?<=\.) (?=[A-Z])", report.verdict)


def test_the_summary_is_one_table_of_seven_columns(report):
    titles, lines = summary_of(report)
    assert titles == [
        *("proposal", "m", "exact bias", "Monte Carlo agrees", "printed Theorem 1"),
        *("bound for every m", "draws for a bias of 0.01"),
    ]
    assert [line[:2] for line in lines] == [
        [name, m] for name in ("uniform", "unigram", "softmax") for m in ("2", "30")
    ]
    text = report.to_text().splitlines()
    assert max(map(len, text)) <= 80
    assert text[-1] == "All figures: --details, or to_text(details=True)."
    rows = len({(row.sampler, row.num_sampled) for row in report.rows})
    assert len(text) <= rows + 27  # 45 lines for 18 rows: one screen
    assert len(text) < 40
    assert len(sentences_of(report)) == 3
    assert "--details" not in report.to_text(details=True)
    assert "--details" not in report.to_html()


def test_what_is_no_bias_is_written_as_0(report):
    _, lines = summary_of(report)
    softmax = [line for line in lines if line[0] == "softmax"]
    assert [line[2] for line in softmax] == [line[5] for line in softmax] == ["0", "0"]
    assert [line[6] for line in softmax] == ["1", "1"]
    assert not re.search(r"e-(1[5-9]|[2-9]\d)", report.to_text(details=True))
    assert all(row.resolved == (row.sampler != "softmax") for row in report.rows)


def test_the_draws_that_the_summary_names(problem, report):
    needed = {row.sampler: row.draws_needed for row in report.rows}
    args = problem["logits"], problem["labels"], problem["proposals"]["unigram"]
    m = needed["unigram"]
    norms = [np.abs(samplesoft.exact_bias(*args, k).bias).sum(axis=1).mean() for k in (m - 1, m)]
    assert norms[0] > 0.01 >= norms[1]
    one = verify(problem["logits"][0], 3, {"q": args[2]}, 5, num_trials=50, rng=0)
    exact = samplesoft.num_sampled_for(problem["logits"][0], 3, args[2], 0.01).exact
    assert one.rows[0].draws_needed == exact
    assert f"{exact:,} draws of q" in one.verdict
    best, worst = sorted(("uniform", "unigram"), key=needed.get)
    assert sentences_of(report)[2] == (
        f"For a bias of 0.01, {needed[best]:,} draws of {best} are as good as "
        f"{needed[worst]:,} of {worst}."
    )


def test_a_bias_that_no_number_of_draws_ends(monkeypatch):
    def fails(*args):
        raise ValueError

    monkeypatch.setattr(verify_module, "smallest_num_sampled", fails)
    report = verify([0.0, 1.0, 2.0], 0, {"q": [0.2, 0.4, 0.4]}, 5, num_trials=50, rng=0)
    assert report.rows[0].draws_needed is None and summary_of(report)[1][0][-1] == "-"
    assert "draws of q" not in report.verdict


def test_the_verdict_says_where_the_printed_theorem_fails(report):
    outside = sum(row.outside_printed for row in report.rows)
    with_sign = sum(row.outside_with_sign for row in report.rows)
    where = f"{with_sign} of them" if with_sign else "none"
    assert f"as printed, Theorem 1 fails in {outside} coordinates, {where} where" in report.verdict
    assert all(0 <= row.outside_with_sign <= row.outside_printed for row in report.rows)


def test_the_bound_on_the_norm_is_over_it(report):
    for row in report.rows:
        assert row.l1_bias <= row.finite_max_l1 * (1 + 1e-12)
        assert row.finite_max_l1 <= row.l1_bias * (1 + 1e-6) + 1e-11


def test_the_verdict_says_what_could_not_be_tested(problem):
    few = verify(**problem | {"num_trials": 300, "num_sampled": 2})
    untested = sum(row.num_untested for row in few.rows if row.wrt != "class_embeddings")
    assert few.agrees and few.num_untested >= untested > 0
    share = 100.0 * few.num_untested / (few.num_untested + few.num_tests)
    assert f"{few.num_untested} ({share:.2g}%) could not, for lack of effective" in few.verdict
    rows = [row for row in few.rows if row.wrt != "class_embeddings"]
    least = min(rows, key=lambda row: row.num_tested / (row.num_tested + row.num_untested))
    total = least.num_tested + least.num_untested
    where = "h" if least.wrt == "h" else "the logits"
    assert f"({least.sampler}, m = 2: only {least.num_tested} of {total} in {where}" in few.verdict
    (cell,) = [line[3] for line in summary_of(few)[1] if line[0] == least.sampler]
    assert re.fullmatch(r"yes, (\d+|< 1)%|not tested", cell) and cell != "yes, 100%"


@pytest.mark.parametrize("wrt", ["h", "class_embeddings", "logits"])
def test_the_summary_of_one_block(problem, wrt):
    got = verify(**problem | {"num_sampled": 9, "num_trials": 500}, wrt=wrt)
    row = got.rows[0]
    line = summary_of(got)[1][0]
    assert line[:3] == ["uniform", "9", f"{row.l1_bias:#.3g}"]
    assert line[3].startswith("yes, ") or line[3] == "not tested"


def test_the_summary_of_a_scheme_without_bounds(problem):
    got = verify(**problem, scheme="candidate")
    titles, _ = summary_of(got)
    assert titles == ["proposal", "m", "exact bias", "Monte Carlo agrees"]
    assert len(sentences_of(got)) == 1


def test_names_keep_to_their_cell(report):
    named = replace(report.rows[0], sampler="a|b\\|c\r\nd\n\ne")
    other = replace(report, rows=(named, *report.rows[1:]), settings={"a": "b\nc"})
    lines = other.to_text().splitlines()
    assert len([line for line in lines if " yes, " in line]) == 7  # one that is named apart
    assert any(line.startswith("a|b\\|c d e   2  ") for line in lines)
    assert "a: b c." in " ".join(lines)


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
    axis = drawn[0].axes[0]
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
    n, m, num_trials = 1000, 10, 5000
    p, q = rng.dirichlet(np.ones(n)), rng.dirichlet(np.full(n, 0.3)) * 0.9 + 0.1 / n
    predicted = trials.predict_draw_moments(p, 7, q, m, SCHEMES["negatives"])
    bins = trials.bin_classes(7, predicted, num_trials)
    assert np.sum(bins == bins[7]) == 1
    hits = np.bincount(bins, num_trials * predicted.hit_probs)
    assert np.delete(hits, bins[7]).min() >= trials.MIN_EXPECTED_HITS
    assert 20 < bins.max() <= 130


def test_z_limit():
    assert trials.z_limit(1, 0.05) == pytest.approx(1.96, abs=1e-3)
    assert trials.p_value(trials.z_limit(100), 100) == pytest.approx(trials.ALPHA)


GOOD = {"logits": [0.0, 1.0, 2.0], "labels": 0, "proposals": {"q": [0.2, 0.3, 0.5]}}
BAD = {
    "logits": ({"logits": [0.0, np.nan, 1.0]}, "`logits` must be finite"),
    "labels": ({"labels": 3}, "`labels` must lie in"),
    "sum": ({"proposals": {"q": [0.2, 0.3, 0.4]}}, r"`proposals\['q'\]` must sum to 1"),
    "negative": ({"proposals": {"q": [-0.2, 0.7, 0.5]}}, r"`proposals\['q'\]` must hold"),
    "shape": ({"proposals": {"q": [0.5, 0.5]}}, r"`proposals\['q'\]` must cover all 3"),
    "zero": ({"proposals": {"q": [0.5, 0.5, 0.0]}}, r"proposals\['q'\].*got 0 at class 2"),
    "tiny": ({"proposals": {"q": [0.5, 0.5, 1e-310]}}, "at least 2.2e-308.*got 1e-310 at class 2"),
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
