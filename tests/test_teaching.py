"""Exercises that check themselves: right answers, each usual mistake, and everything else."""

import re
from pathlib import Path

import numpy as np
import pytest

from samplesoft import exact_bias
from samplesoft.teaching.exercises import EXERCISES, check

each_exercise = pytest.mark.parametrize("name", EXERCISES)


def said(capsys, name, answer):
    check(name, answer)
    return capsys.readouterr().out.strip()


def with_three_digits(value):
    return [float(f"{x:.3g}") for x in value] if np.ndim(value) else float(f"{value:.3g}")


@each_exercise
def test_a_right_answer_is_accepted(capsys, name):
    right = EXERCISES[name]().answer
    assert said(capsys, name, right) == "Right."
    assert said(capsys, name, with_three_digits(right)) == "Right."


def test_integers_will_do(capsys):
    assert said(capsys, "0.3", 8) == said(capsys, "2.3", [50, -81, 32]) == "Right."


def test_a_rounded_answer_is_no_mistake(capsys):
    answers = ("0.1", 3.2), ("0.1", np.longdouble("3.2")), ("0.2", 0.066), ("1.1", -0.48)
    for name, answer in answers:
        rounded = said(capsys, name, answer)
        assert rounded in ("Right so far. Give one more digit.", "Right.")
    wrong = ("0.1", 3), ("0.1", 3.0), ("0.1", 3.3), ("0.2", 0.07), ("1.7", 200), ("1.7", 250.0)
    for name, answer in wrong:  # one digit, or rounded wrongly, or too exact to be rounded
        assert not said(capsys, name, answer).startswith("Right")


def test_a_usual_mistake_that_rounds_to_the_answer_is_one(capsys):
    """247.5 has the two digits of 250, which is what you get without the label's score."""
    for answer in (250, 250.0, 249.9, 251):
        assert said(capsys, "1.7", answer).startswith("The label's score is computed too")
    assert said(capsys, "1.7", 248) == said(capsys, "1.7", 247.5) == "Right."


def test_mistakes_in_exercise_2_2_are_told_from_the_answer(capsys):
    """With three digits too: notebook 2's table and its formulas, written once more."""
    rng = np.random.default_rng(2)
    classes, h = rng.normal(size=(100, 16)), rng.normal(size=16)
    classes /= np.linalg.norm(classes, axis=1)[:, None]
    e = np.exp(8 * classes @ h / np.linalg.norm(h))
    near = e * np.exp(0.3 * rng.normal(size=100))
    near /= near.sum()
    t = np.argmax(e)
    assert e[t] / e.sum() > 0.1
    e_others, q = np.delete(e, t), np.delete(near, t)
    answers = []
    for probs, z in ((q / q.sum(), e), (q / q.sum(), e_others), (q, e)):
        variance = probs @ (e_others / probs - e_others.sum()) ** 2
        answers.append(with_three_digits(-variance / (2 * z.sum() ** 2)))
    right, without_label, unconditioned = (said(capsys, "2.2", answer) for answer in answers)
    assert right == "Right."
    assert without_label.startswith("Z is the sum over all classes")
    assert unconditioned.startswith("The label is not drawn")


def test_a_usual_mistake_may_be_rounded(capsys):
    assert said(capsys, "0.2", 0.0016).startswith("That is the sum of squares")


def test_uniform_draws_in_exercise_1_1_have_their_hint(capsys):
    o = [0.3, 0.9, 0.6, 3.0, 1.2, 2.4, 0.2, 3.4, 0.4, 2.2]
    spike = exact_bias(o, 7, [0.1] * 10, 3).expected_probs[7] - 1
    for answer in (spike, with_three_digits(spike)):
        assert "or for uniform ones" in said(capsys, "1.1", answer)


@each_exercise  # and no case for each hint: exercises compute theirs, which compiles kernels
def test_each_usual_mistake_has_its_hint(capsys, name):
    for hint, answer in EXERCISES[name]().mistakes.items():
        assert said(capsys, name, answer) == hint


@each_exercise
def test_any_other_answer_has_a_general_hint(capsys, name):
    exercise = EXERCISES[name]()
    other = np.full(np.shape(exercise.answer), 1234.5)
    assert said(capsys, name, other) == exercise.general_hint


@each_exercise
def test_no_hint_holds_the_solution(name):
    exercise = EXERCISES[name]()
    text = " ".join([*exercise.mistakes, exercise.general_hint])
    assert not [x for x in np.atleast_1d(exercise.answer) if abs(x) > 10 and f"{x:.4g}" in text]


def test_answers_agree_with_what_is_known_otherwise():
    """Three answers by enumeration or by hand, which share nothing with how they are computed."""
    e = np.exp([2.0, 1.0, 0.0])
    expected = np.zeros(3)
    for j in (1, 2):  # drawn with probability 1/2, and weighing twice
        total = e[0] + 2 * e[j]
        expected += 0.5 * np.array([e[0], *(2 * e[k] * (k == j) for k in (1, 2))]) / total
    assert EXERCISES["0.2"]().answer == pytest.approx(np.abs(expected - e / e.sum()).sum())
    assert EXERCISES["0.1"]().answer == pytest.approx(np.log(25))
    a, b, c = EXERCISES["2.3"]().answer
    assert a + b + c == 1
    for power in (1, 2):
        assert a / 10**power + b / 9**power + c / 8**power == pytest.approx(0, abs=1e-12)


def test_the_page_for_instructors_says_which_exercises_have_a_check():
    page = Path(__file__).parents[1] / "docs" / "learn" / "instructors.md"
    rows = re.findall(r"^\| ([\d., ]+) \|.*\| yes \|$", page.read_text(encoding="utf-8"), re.M)
    assert [name for row in rows for name in row.split(", ")] == list(EXERCISES)


def test_dots_ask_for_an_answer(capsys):
    assert said(capsys, "0.1", ...) == "Put a number in place of the dots."
    assert said(capsys, "2.3", ...) == "Put a list of 3 numbers in place of the dots."


@pytest.mark.parametrize(
    "name, answer, error, message",
    [
        ("9.9", 1.0, ValueError, "`exercise` must be one of 0.1, .* got '9.9'; it is"),
        ("0.1", "two", TypeError, "`answer` must hold real numbers"),
        ("0.1", True, TypeError, "`answer` must hold real numbers, got True; give"),
        ("0.1", np.bool_(True), TypeError, "`answer` must hold real numbers, got True; give"),
        ("2.3", [True, False, True], TypeError, "`answer` must hold real numbers, got .True,"),
        ("0.1", [1.0, 2.0], ValueError, "`answer` must be a number, got shape"),
        ("2.3", 1.0, ValueError, "`answer` must be a list of 3 numbers, got shape"),
        ("0.1", np.nan, ValueError, "`answer`"),
    ],
)
def test_bad_input_is_named(name, answer, error, message):
    with pytest.raises(error, match=message):
        check(name, answer)
