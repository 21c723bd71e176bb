"""The audit of published losses: its numbers, its document, and its adapters where packages are."""

import contextlib
import io
import itertools
import re
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import audit
import numpy as np
import pytest
from audit_losses import ENVIRONMENTS, LOSSES, WITH_MEMORY, Published, log_uniform
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, logsumexp
from scripts import read_rows

from samplesoft import check_loss, exact_bias
from samplesoft.checking.estimators import ESTIMATORS
from samplesoft.checking.faults import FAULTS
from samplesoft.data import Embeddings

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? ([^\n]+)\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
SNIPPET = re.compile(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = [name for name, text in SECTIONS.items() if "```py\n" in text]


def test_committed_numbers():
    rows = read_rows(ROOT / "figures" / "audit.csv")
    assert [row["name"] for row in rows] == list(LOSSES)
    assert len({row["package"] for row in rows}) >= 8
    for row in rows:
        one = LOSSES[row["name"]]
        assert [row["package"], row["judgement"]] == [one.package, one.judgement]
        assert any(
            f"{one.package}=={row['version']}" in re.sub(r"\[\w+\]|-cpu", "", requirement)
            for requirement in ENVIRONMENTS[one.environment]
        )
        assert row["scheme"] in ("", *ESTIMATORS)
        assert set(filter(None, row["mistake"].split(" + "))) <= set(FAULTS)
        assert (row["l1_bias"] == "") == (not one.law and one.scheme != "full")
    picture = (ROOT / "figures" / "audit.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and len(picture) < 300_000


def test_document_has_the_numbers():
    rows = read_rows(ROOT / "figures" / "audit.csv")
    _, _, rest = DOCUMENT.partition("\n| package |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    assert len(table) == len(rows)
    for row, line in zip(rows, table, strict=True):
        assert line == audit.line(row)


@pytest.mark.parametrize("name", SHOWN)
def test_snippets_print_what_is_shown(name):
    namespace = {}
    for code, output in SNIPPET.findall(SECTIONS[name]):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
        except ModuleNotFoundError as error:
            pytest.skip(f"needs the package {error.name}")
        assert printed.getvalue() == output


def test_all_snippets_are_shown_with_output():
    assert len(SNIPPET.findall(DOCUMENT)) == DOCUMENT.count("```py\n") >= 10


@pytest.mark.parametrize("name", LOSSES)
def test_adapters_return_losses_and_gradients(name):
    one = LOSSES[name]
    try:
        version(one.package)
    except PackageNotFoundError:
        pytest.skip(f"needs the package {one.package}")
    rng = np.random.default_rng(0)
    W, labels = rng.standard_normal((12, 4)), np.arange(64) % 11 + 1
    h = 0.5 * rng.standard_normal((64, 4))
    memory = () if one.memory is None else (rng.standard_normal(64),)
    losses, slopes = one.loss(W, h, labels, one.num_sampled, 0, *memory)
    assert losses.shape in ((64,), (63,)) and slopes.shape == (64, 4)


class TestLogistic:
    LOGITS = log_softmax(np.random.default_rng(0).standard_normal((1, 4)), axis=1)
    Q = np.array([0.1, 0.2, 0.3, 0.4])
    LABEL, M = 2, 2

    def loss(self, logits, ids, kept, corrected):
        x = logits - np.log(self.M * self.Q) if corrected else logits
        drawn = [x[i] for i in ids if kept or i != self.LABEL]
        return np.logaddexp(0.0, -x[self.LABEL]) + np.logaddexp(0.0, drawn).sum()

    def mean(self, logits, *way):
        every = itertools.product(range(4), repeat=self.M)
        return sum(self.Q[[*ids]].prod() * self.loss(logits, ids, *way) for ids in every)

    @pytest.mark.parametrize("kept", [True, False])
    @pytest.mark.parametrize("corrected", [True, False])
    def test_against_enumeration(self, kept, corrected):
        scheme = "negative_sampling_" + ("kept" if kept else "masked")
        one = Published("", "", "", "", None, "", "", scheme, corrected)
        of_gradient, of_loss = audit.logistic(self.LOGITS, [self.LABEL], self.Q, self.M, one)
        o, step = self.LOGITS[0], 1e-6
        full = -o[self.LABEL]
        assert of_loss == pytest.approx(self.mean(o, kept, corrected) - full, rel=1e-12)
        slopes = [
            (self.mean(o + d, kept, corrected) - self.mean(o - d, kept, corrected)) / (2 * step)
            for d in step * np.eye(4)
        ]
        exact = np.exp(o) - (np.arange(4) == self.LABEL)
        np.testing.assert_allclose(of_gradient[0], slopes - exact, atol=1e-9)


def test_bias_of_a_plain_sum():
    """InfoNCE with the labels of a batch: draws by counts, without correction."""
    rng = np.random.default_rng(0)
    counts, labels = np.arange(1.0, 21.0), np.array([3, 7])
    text = Embeddings(rng.standard_normal((2, 3)), rng.standard_normal((20, 3)) / 5, labels, counts)
    found = audit.bias(LOSSES["info-nce"], text)
    q, m, trials = counts / counts.sum(), audit.NEGATIVES, 4000
    logits = audit.TAU * text.h @ text.class_embeddings.T
    mean = np.zeros_like(logits)
    for row, (o, label) in enumerate(zip(logits, labels, strict=True)):
        ids = np.column_stack([np.full(trials, label), rng.choice(20, (trials, m), p=q)])
        shares = np.exp(log_softmax(o[ids], axis=1))
        mean[row] = np.bincount(ids.ravel(), shares.ravel(), 20) / trials
    size = np.abs(mean - np.exp(log_softmax(logits, axis=1))).sum(axis=1).mean()
    assert found["l1_bias"] == pytest.approx(size, abs=0.02)
    right = exact_bias(logits, labels, q, m, scheme="candidate").bias
    assert found["l1_bias"] > 2 * np.abs(right).sum(axis=1).mean()  # it is no other one


def test_laws():
    counts = np.array([5.0, 100.0, 20.0])
    for name in ("uniform", "counts", "counts^0.75", "log-uniform"):
        assert audit.law(name, counts).sum() == pytest.approx(1.0)
    assert audit.law("log-uniform", counts).tolist() == log_uniform(3)[[2, 0, 1]].tolist()


class TestLossesOfRecommenders:
    """What ``docs/audit.md`` says of the losses that recommenders compare."""

    P = np.array([0.35, 0.25, 0.2, 0.12, 0.08])

    def mean(self, loss, s):
        """Return the mean of ``loss(gaps)`` over labels drawn from P."""
        return sum(p * loss(np.delete(s, t) - s[t]) for t, p in enumerate(self.P))

    @pytest.mark.parametrize(
        ("loss", "shares"),
        [
            (lambda d: np.logaddexp(0.0, logsumexp(d)), [0.35, 0.25, 0.2, 0.12, 0.08]),
            (logsumexp, [0.45, 0.23, 0.17, 0.09, 0.06]),  # SL
        ],
    )
    def test_minimum(self, loss, shares):
        found = minimize(partial(self.mean, loss), np.zeros(5))
        np.testing.assert_allclose(np.exp(log_softmax(found.x)), shares, atol=0.005)

    def test_psl_has_no_minimum(self):
        def psl(d):
            return logsumexp(np.log(2.0) + log_expit(2.0 * d))

        values = [self.mean(psl, scale * np.arange(5.0, 0.0, -1.0)) for scale in (1, 2, 4, 8)]
        assert np.diff(values).max() < -0.1
        gaps = np.array([-0.3, 0.2, 1.0])
        assert psl(gaps) == pytest.approx(np.log((np.tanh(gaps) + 1.0).sum()))

    def test_bsl_is_sl(self):
        c, a, b = np.array([0.2, -0.5, 0.9]), 0.3, 0.2
        of_bsl = b / a * logsumexp(c[1:] / b) - c[0] / a
        assert of_bsl == pytest.approx(b / a * logsumexp((c[1:] - c[0]) / b))

    def test_weight_of_sl_at_k_lowers_the_label(self):
        cosines, step = np.random.default_rng(0).uniform(-0.1, 0.1, 1000), 1e-4

        def loss(c):
            return expit((c - 0.1) / 0.5) * logsumexp((cosines - c) / 0.2)

        slope = (loss(step) - loss(-step)) / (2.0 * step)
        assert slope == pytest.approx(1.2, abs=0.05)

    def test_gbce_with_the_full_beta(self):
        n, m = 5, 2
        beta = m / (n - 1)
        s = np.log(self.P / (1.0 - self.P))
        slopes = -self.P * beta * expit(-s) + (1.0 - self.P) * m / (n - 1) * expit(s)
        np.testing.assert_allclose(slopes, 0.0, atol=1e-12)

    @pytest.mark.slow
    def test_verdicts(self):
        def sl(scores, ids, log_q, labels):
            gaps = np.take_along_axis(scores, ids, 1) - scores[np.arange(len(labels)), labels, None]
            return logsumexp(gaps, axis=1)

        def adversarial(scores, ids, log_q, labels):
            k = (scores.shape[1] - 1) / ids.shape[1]
            return np.logaddexp(0.0, np.log(k) + sl(scores, ids, log_q, labels))

        found = [
            check_loss(loss, "uniform", 8, draws="given-negatives") for loss in (sl, adversarial)
        ]
        assert [report.scheme for report in found] == ["negatives", "negatives"]
        assert [report.fault for report in found] == ["uncorrected + label_left_out", None]


def test_divisors():
    q = np.array([0.5, 0.3, 0.2])
    assert audit.divisors(LOSSES["tfrs-q"], q, 4) is None
    assert audit.divisors(LOSSES["tfrs"], q, 4).tolist() == [0.25] * 3
    assert audit.divisors(LOSSES["merlin-in-batch-q-temperature"], q, 4) == pytest.approx(q**2)
    tries = audit.divisors(LOSSES["merlin-popularity-q"], log_uniform(1000), 4)
    assert tries == pytest.approx(1.0 - (1.0 - log_uniform(1001)[:1000]) ** 4)


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_losses_with_memory(name):
    pytest.importorskip("libauc")
    rng = np.random.default_rng(0)
    W, labels = rng.standard_normal((12, 4)), np.arange(64) % 11 + 1
    h, log_sums = 0.5 * rng.standard_normal((64, 4)), rng.standard_normal(64)
    losses, slopes = WITH_MEMORY[name](W, h, labels, 5, 0, log_sums)
    assert losses.shape == (64,) and slopes.shape == (64, 4)
    assert np.isfinite(slopes).all()


def test_mean_of_a_loss_with_memory():
    """SOX: the estimate of one draw over the new average."""
    pytest.importorskip("libauc")
    rng = np.random.default_rng(0)
    W, labels = rng.standard_normal((12, 4)), np.arange(64) % 11 + 1
    h, log_sums = 0.5 * rng.standard_normal((64, 4)), rng.standard_normal((64, 1))
    loss = LOSSES["libauc-sox"].loss
    mean = np.mean([loss(W, h, labels, 1, seed, log_sums[:, 0])[0] for seed in range(1000)], axis=0)
    o = h @ W.T
    ratios = np.exp(o - o[np.arange(64), labels][:, None])
    fractions = ratios / (0.1 * np.exp(log_sums) / 11.0 + 0.9 * ratios)
    fractions[np.arange(64), labels] = 0.0  # the label is not drawn
    exact = fractions.sum(axis=1) / 11.0
    np.testing.assert_allclose(mean, exact, atol=0.03)
