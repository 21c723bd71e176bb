"""The one file: short, of NumPy alone, and its numbers are those of the package."""

import ast
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from samplesoft import exact_bias
from samplesoft.losses import make_loss
from samplesoft.samplers import Draw

FILE = Path(__file__).parents[1] / "notebooks" / "sampled_softmax.py"


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-file")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("MPLBACKEND", "agg")
        found = runpy.run_path(str(FILE))
    assert (folder / "sampled_softmax.png").stat().st_size > 5000
    return found


def test_it_is_short_and_needs_numpy_alone():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    tree = ast.parse(text)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    imported = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in imported}
    others = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names)
    assert others == {"numpy", "matplotlib"}
    optional = [node for node in tree.body if isinstance(node, ast.Try)]
    assert "matplotlib" in ast.unparse(optional[0]) and len(optional) == 1


@pytest.mark.slow
def test_training_learns_and_the_full_loss_is_ours(names):
    assert names["before"] == pytest.approx(np.log(names["n"]), rel=1e-12)
    assert names["after"] < names["before"] - 2.0
    some, rows = names["test"][:50], names["class_vectors"]
    h, labels = names["context_vectors"][names["contexts"][some]], names["labels"][some]
    ours, _ = make_loss("full").forward(h, rows, labels)
    theirs = np.mean([names["full_loss"](*pair) for pair in zip(h, labels, strict=True)])
    assert theirs == pytest.approx(ours, rel=1e-12)


@pytest.mark.slow
def test_the_sampled_loss_and_its_gradient_are_ours(names):
    some, rows, q = names["test"][:50], names["class_vectors"], names["by_counts"]
    h, labels = names["context_vectors"][names["contexts"][some]], names["labels"][some]
    ids = np.append(np.random.default_rng(1).choice(len(q), 30, p=q), labels[:5])  # hits too
    losses, d_h, touched, d_rows = names["sampled_loss"](h, labels, ids, q)
    loss = make_loss("sampled-masked")
    value, cache = loss.forward(h, rows, labels, Draw(ids[None], np.log(q[ids])[None]))
    gradients = loss.backward(cache)
    assert np.mean(losses) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(d_h / len(h), gradients.dh, atol=1e-14)
    dense = np.zeros_like(rows)
    np.add.at(dense, touched, d_rows / len(h))
    ours = np.zeros_like(rows)
    ours[gradients.dW.ids] = gradients.dW.rows
    np.testing.assert_allclose(dense, ours, atol=1e-14)


@pytest.mark.slow
def test_the_bias_is_the_exact_one_and_what_was_simulated(names):
    some = names["test"][:8]
    labels = names["labels"][some]
    logits = names["context_vectors"][names["contexts"][some]] @ names["class_vectors"].T
    assert len(names["table"]) == 6
    for name, m, loss, gradient, simulated, error in names["table"]:
        q = names["by_counts"]
        if name == "uniform":
            q = np.full(len(q), 1.0 / len(q))
        ours = exact_bias(logits, labels, q, m, scheme="masked")
        assert loss == pytest.approx(ours.loss_bias.mean(), rel=1e-9)
        assert gradient == pytest.approx(np.abs(ours.bias).sum(axis=1).mean(), rel=1e-9)
        assert abs(simulated - loss) < 4 * error
        wrong = exact_bias(logits, labels, q, m + 1, scheme="masked")  # WRONG: one draw more
        assert loss != pytest.approx(wrong.loss_bias.mean(), rel=1e-4)
