"""The assignment: its solution passes, nothing else does, and usual mistakes are named."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from samplesoft import exact_bias

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks" / "assignment"
RARE = "a label 20 below the others, and mostly drawn"
SOLUTION = Path(__file__).with_name("solution.py")


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def graders(adapters, monkeypatch):
    """Return the tests that students run, by their names, as they judge these adapters."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = load("assignment_tests", FOLDER / "test_assignment.py")
    module.adapters = adapters
    return {name: thing for name, thing in vars(module).items() if name.startswith("test_")}


def cases():
    with pytest.MonkeyPatch.context() as patch:
        tests = graders(load("adapters", FOLDER / "adapters.py"), patch)
    for name, test in tests.items():
        marks = getattr(test, "pytestmark", [])
        for value in marks[0].args[1] if marks else [None]:
            yield pytest.param(name, [] if value is None else [value], id=f"{name}-{value}")


each_case = pytest.mark.parametrize(("name", "arguments"), [*cases()])


@each_case
def test_the_solution_passes(name, arguments, monkeypatch):
    graders(load("adapters", SOLUTION), monkeypatch)[name](*arguments)


@each_case
def test_nothing_passes_at_first_and_the_message_names_the_task(name, arguments, monkeypatch):
    task = name.split("_")[2]
    with pytest.raises(NotImplementedError, match=f"task {task}: write [a-z_]+ in adapters.py"):
        graders(load("adapters", FOLDER / "adapters.py"), monkeypatch)[name](*arguments)


def divided(losses, *gradients):
    return losses, *(gradient / len(losses) for gradient in gradients)


class Mistakes:
    """What students write, each with the test that finds it and a part of what that says."""

    def __init__(self, right):
        self.right = right

    def log_z(self, scores, labels):
        losses, gradient = self.right.softmax_loss(scores, labels)
        return losses + scores[np.arange(len(labels)), labels], gradient

    def overflowing(self, scores, labels):
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        chosen = p[np.arange(len(labels)), labels]
        return -np.log(chosen), p - np.eye(scores.shape[1])[labels]

    def gradient_without_label(self, scores, labels):
        losses, gradient = self.right.softmax_loss(scores, labels)
        return losses, gradient + np.eye(scores.shape[1])[labels]

    def gradient_of_the_mean(self, scores, labels):
        losses, gradient = self.right.softmax_loss(scores, labels)
        return divided(losses, gradient)

    def hits_counted(self, W, h, labels, ids):
        own = np.sum(h * W[labels], axis=1)
        drawn = np.einsum("bd,bmd->bm", h, W[ids])
        total = np.exp(own) + np.exp(drawn).sum(axis=1)
        return np.log(total) - own, np.zeros(h.shape), np.zeros(W.shape)

    def repeats_lost(self, W, h, labels, ids):
        losses, dh, dW = self.right.sampled_loss(W, h, labels, ids)
        single = np.zeros(W.shape)
        own = np.sum(h * W[labels], axis=1)
        drawn = np.einsum("bd,bmd->bm", h, W[ids])
        drawn[labels[:, None] == ids] = -np.inf
        total = np.exp(own) + np.exp(drawn).sum(axis=1)
        single[labels] += (np.exp(own) / total - 1.0)[:, None] * h
        single[ids] += (np.exp(drawn) / total[:, None])[:, :, None] * h[:, None]
        assert not np.allclose(single, dW)
        return losses, dh, single

    def label_term_lost(self, W, h, labels, ids):
        losses, dh, dW = self.right.sampled_loss(W, h, labels, ids)
        np.add.at(dW, labels, h)
        return losses, dh, dW

    def all_labels_left_out(self, W, h, labels, ids):
        own = np.sum(h * W[labels], axis=1)
        drawn = np.einsum("bd,bmd->bm", h, W[ids])
        drawn[np.isin(ids, labels)] = -np.inf
        total = np.exp(own) + np.exp(drawn).sum(axis=1)
        return np.log(total) - own, np.zeros(h.shape), np.zeros(W.shape)

    def largest_draw_subtracted(self, W, h, labels, ids):
        losses, dh, dW = self.right.sampled_loss(W, h, labels, ids)
        own = np.sum(h * W[labels], axis=1)
        drawn = np.einsum("bd,bmd->bm", h, W[ids])
        drawn[labels[:, None] == ids] = -np.inf
        top = drawn.max(axis=1)
        total = np.exp(own - top) + np.exp(drawn - top[:, None]).sum(axis=1)
        return top + np.log(total) - own, dh, dW

    def mean_in_h(self, W, h, labels, ids):
        losses, dh, dW = self.right.sampled_loss(W, h, labels, ids)
        return losses, dh / len(h), dW

    def log_q_without_m(self, W, h, labels, q, m, rng):
        ids = rng.choice(len(q), (len(h), m), p=q)
        return self.right.loss_over(W, h, labels, ids, np.log(q[ids]))

    def batch_for_m(self, W, h, labels, q, m, rng):
        ids = rng.choice(len(q), (len(h), m), p=q)
        return self.right.loss_over(W, h, labels, ids, np.log(len(h) * q[ids]))

    def another_source(self, W, h, labels, q, m, rng):
        return self.right.corrected_loss(W, h, labels, q, m, np.random.default_rng())

    def no_source(self, W, h, labels, q, m, rng):
        return self.right.corrected_loss(W, h, labels, q, m, np.random.default_rng(0))

    def six_draws(self, W, h, labels, q, m, rng):
        return self.right.corrected_loss(W, h, labels, q, 6, rng)

    def one_set(self, W, h, labels, q, m, rng):
        ids = np.repeat(rng.choice(len(q), (1, m), p=q), len(h), axis=0)
        return self.right.loss_over(W, h, labels, ids, np.log(m * q[ids]))

    def uncorrected(self, W, h, labels, q, m, rng):
        ids = rng.choice(len(q), (len(h), m), p=q)
        return self.right.loss_over(W, h, labels, ids, np.zeros(ids.shape))

    def columns_not_filled(self, q):
        threshold, alias = self.right.alias_table(q)
        return threshold, np.where(threshold < 1.0, alias[0], alias)

    def thresholds_of_q(self, q):
        threshold, alias = self.right.alias_table(q)
        return threshold / len(q), alias

    def searched(self, q):
        time.sleep(8e-11 * len(q) ** 2)
        return self.right.alias_table(q)

    def class_in_place_of_column(self, threshold, alias, u):
        column = (len(threshold) * u).astype(int)
        return np.where(u < threshold[column], column, alias[column])

    def mean_of_the_loss(self, scores, label, q, m):
        loss, gradient = self.right.exact_bias(scores, label, q, m)
        return loss + np.log(np.exp(scores).sum()) - scores[label], gradient

    def with_hits(self, scores, label, q, m):
        found = exact_bias(scores, label, q, m, scheme="candidate")
        return found.loss_bias, found.bias

    def of_task_3(self, scores, label, q, m):
        found = exact_bias(scores, label, q, m, scheme="masked")
        return found.loss_bias, found.bias

    def on_fixed_nodes(self, scores, label, q, m):
        e = np.exp(scores - scores.max())
        e = e / e.sum()
        u = np.exp(np.arange(-40.0, 12.0, 0.05))
        r = np.where(np.arange(len(q)) == label, 0.0, e / q)
        transform = np.exp(-u[:, None] * r / m) @ q
        lost = np.exp(-u) - np.exp(-u * e[label] / (m * q[label])) * transform**m
        right = self.right.exact_bias(scores, label, q, m)[1]
        return 0.05 * lost.sum() + np.log(m * q[label]), right

    def of_p_and_not_p_less_one(self, scores, label, q, m):
        loss, gradient = self.right.exact_bias(scores, label, q, m)
        p = np.exp(scores - scores.max())
        return loss, gradient + p / p.sum()

    def uniform(self, scores):
        return np.full(scores.shape[1], 1.0 / scores.shape[1])

    def mean_softmax(self, scores):
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (p / p.sum(axis=1, keepdims=True)).mean(axis=0)

    def root_of_mean_squares(self, scores):
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        root = np.sqrt(np.mean((p / p.sum(axis=1, keepdims=True)) ** 2, axis=0))
        return root / root.sum()

    def not_a_distribution(self, scores):
        return 2.0 * self.uniform(scores)


@pytest.mark.parametrize(
    ("test", "function", "mistake", "words", "arguments"),
    [
        ("1_losses", "softmax_loss", "log_z", "you return log Z", []),
        ("1_large_scores", "softmax_loss", "overflowing", "overflow exp", []),
        ("1_gradient", "softmax_loss", "gradient_without_label", "-o_t has a derivative", []),
        ("1_gradient", "softmax_loss", "gradient_of_the_mean", "Each example has its own", []),
        ("2_losses", "sampled_loss", "hits_counted", "an accidental hit is counted", []),
        ("2_losses", "sampled_loss", "all_labels_left_out", "Only its own is a hit", []),
        ("2_gradient_in_W", "sampled_loss", "repeats_lost", "see numpy.add.at", []),
        ("2_gradient_in_W", "sampled_loss", "label_term_lost", "-o_t has a derivative", []),
        ("2_gradient_in_h", "sampled_loss", "mean_in_h", "gradient of the sum", []),
        ("2_large_scores", "sampled_loss", "largest_draw_subtracted", "none larger than", []),
        ("3_if_one_class_is_always_drawn", "corrected_loss", "log_q_without_m", "m is miss", []),
        ("3_if_one_class_is_always_drawn", "corrected_loss", "batch_for_m", "of examples st", []),
        ("3_the_draws", "corrected_loss", "another_source", "take no other source", []),
        ("3_the_draws", "corrected_loss", "no_source", "must give other draws", []),
        ("3_the_draws", "corrected_loss", "six_draws", "yours has [67]", []),
        ("3_the_draws", "corrected_loss", "one_set", "have the same draws", []),
        ("3_what_the_loss_estimates", "corrected_loss", "log_q_without_m", "log m is left out", []),
        ("3_what_the_loss_estimates", "corrected_loss", "uncorrected", "not corrected", []),
        ("4_the_columns_add_up", "alias_table", "columns_not_filled", "class 2", ["four classes"]),
        ("4_the_columns_add_up", "alias_table", "thresholds_of_q", "by n", ["four classes"]),
        ("4_the_time", "alias_table", "searched", "times as long", []),
        ("4_draws_of_given_numbers", "alias_draw", "class_in_place_of_column", "column 2", []),
        ("4_the_draws", "alias_draw", "class_in_place_of_column", "was drawn [0-9,]+ times", []),
        ("5_the_bias_is_exact", "exact_bias", "mean_of_the_loss", "Subtract the full", ["m = 1"]),
        ("5_the_bias_is_exact", "exact_bias", "with_hits", "are counted", ["m = 1"]),
        ("5_the_bias_is_exact", "exact_bias", "of_task_3", "corrected too", ["m = 1"]),
        ("5_the_bias_is_exact", "exact_bias", "of_p_and_not_p_less_one", "Subtract p", ["m = 1"]),
        ("5_the_bias_is_exact", "exact_bias", "on_fixed_nodes", "is right, yours", [RARE]),
        ("6_better_than_frequencies", "better_proposal", "uniform", "[0-9]+% of that by", []),
        ("6_better_than_frequencies", "better_proposal", "not_a_distribution", "adds up to 2", []),
        ("6_as_good_as_ours", "better_proposal", "mean_softmax", "the graders' 62.2%", []),
        ("6_as_good_as_ours", "better_proposal", "root_of_mean_squares", "question 6 first", []),
    ],
)
def test_mistakes_are_named(test, function, mistake, words, arguments, monkeypatch):
    adapters = load("adapters", SOLUTION)
    setattr(adapters, function, getattr(Mistakes(load("right", SOLUTION)), mistake))
    judge = graders(adapters, monkeypatch)[f"test_task_{test}"]
    with pytest.raises(pytest.fail.Exception, match=words):
        judge(*arguments)


def test_points_add_up_and_functions_are_named():
    text = (FOLDER / "handout.md").read_text(encoding="utf-8")
    assert sum(int(points) for points in re.findall(r"\((\d+) points\)", text)) == 100
    adapters = load("adapters", FOLDER / "adapters.py")
    functions = [name for name in vars(adapters) if re.match("[a-z].*_", name)]
    assert len(functions) == 7
    assert not [name for name in functions if f"`{name}`" not in text]


@pytest.mark.slow
def test_as_students_run_it(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "assignment")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    for expected, said in ((1, "task 1: write softmax_loss"), (0, "3 passed")):
        done = subprocess.run(
            [*command, "-k", "task_1"], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert (done.returncode, said in done.stdout) == (expected, True), done.stdout + done.stderr
        shutil.copy(SOLUTION, folder / "adapters.py")
