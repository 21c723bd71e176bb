"""The audit of published losses: its numbers, its document, and its adapters where packages are."""

import contextlib
import io
import itertools
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import audit
import numpy as np
import pytest
from audit_losses import ENVIRONMENTS, LOSSES, Published, log_uniform
from scipy.special import log_softmax
from scripts import read_rows

from samplesoft import exact_bias
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
    losses, slopes = one.loss(W, h, labels, one.num_sampled, 0)
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
