"""The exercises of the notebooks with their answers and hints, and the style of the plots.

`check` recognises common wrong answers and prints a hint. The right answers are computed when an
exercise is checked, so that they cannot be read in this file.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from decimal import Decimal
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_real_array
from samplesoft.bias.exact import exact_bias

# five colours of the palette of Okabe and Ito, which is safe for colour-blind readers
BLACK = "#000000"
ORANGE = "#E69F00"
BLUE = "#0072B2"
GREEN = "#009E73"
RED = "#D55E00"

# largest relative error of a right answer, so that two or three digits are enough
_RELATIVE_TOLERANCE = 5e-3
# An answer that differs from a common wrong answer by at most this (relative) is wrong, even if it
# is close to the right answer too.
_MISTAKE_TOLERANCE = 1e-6
_SIGN_HINT = "The size is right. Look at the sign again."


class Exercise(NamedTuple):
    """The right answer of an exercise, and hints for wrong ones.

    Attributes
    ----------
    answer : float or sequence of float
        The right answer.
    mistakes : dict of str to float or sequence of float
        Common wrong answers by their hints. The first hint whose answer matches is printed.
    general_hint : str
        The hint for all other wrong answers.
    """

    answer: Any
    mistakes: dict[str, Any]
    general_hint: str


def check(exercise: str, answer: ArrayLike | types.EllipsisType) -> None:
    """Print whether an answer is right, or a hint if it is not; never the solution.

    Parameters
    ----------
    exercise : str
        Notebook and number of the exercise, such as ``"0.1"``.
    answer : float or array_like, shape (k,)
        Your answer, with at least three digits. With ``...``, the placeholder in the notebooks, the
        expected form of the answer is printed.

    Raises
    ------
    TypeError
        If the answer is not made of real numbers.
    ValueError
        If there is no such exercise, or the answer has another shape.

    Examples
    --------
    >>> from samplesoft.teaching import check
    >>> check("0.1", ...)
    Put a number in place of the dots.
    >>> check("0.1", 0.0)
    Without a correction the draws do not stand for all classes.
    """
    if exercise not in EXERCISES:
        raise ValueError(
            f"`exercise` must be one of {', '.join(EXERCISES)}, got {exercise!r}; it is the "
            "notebook and the number of the exercise, with a dot between them."
        )

    right, hinted_mistakes, general_hint = EXERCISES[exercise]()
    right = np.asarray(right, dtype=float)

    expected = "a number" if right.ndim == 0 else f"a list of {right.size} numbers"
    if answer is ...:
        print(f"Put {expected} in place of the dots.")
        return

    values = as_real_array("answer", answer, (0, 1))
    if np.asarray(answer).dtype == bool:
        raise TypeError(f"`answer` must hold real numbers, got {answer}; give what you computed.")
    if np.shape(answer) != right.shape:
        raise ValueError(f"`answer` must be {expected}, got shape {np.shape(answer)}.")

    mistakes = {hint: np.asarray(mistake, dtype=float) for hint, mistake in hinted_mistakes.items()}
    same_hints = [
        hint for hint, mistake in mistakes.items() if _is_close(values, mistake, _MISTAKE_TOLERANCE)
    ]
    near_hints = [
        hint
        for hint, mistake in mistakes.items()
        if _is_close(values, mistake) or _rounds_to(answer, mistake)
    ]

    if not same_hints and _is_close(values, right):
        print("Right.")
    # Test for a rounded right answer before the common mistakes, because it may be close to one.
    elif not same_hints and _rounds_to(answer, right):
        print("Right so far. Give one more digit.")
    else:
        print([*same_hints, *near_hints, general_hint][0])


def set_up_plots(width: float = 7.0, height: float = 3.6, dpi: int = 72) -> None:
    """Set the style of notebook plots: sharp on a projector, with a light grid.

    Parameters
    ----------
    width, height : float
        Size of a figure in inches.
    dpi : int
        Dots per inch on the page; the image has twice as many pixels per inch.

    Examples
    --------
    >>> from samplesoft.teaching import set_up_plots
    >>> set_up_plots(height=3.0)  # doctest: +SKIP
    """
    from matplotlib import rcParams

    import_module("matplotlib_inline.backend_inline").set_matplotlib_formats(
        "retina", pil_kwargs={"optimize": True}
    )
    rcParams.update({"figure.dpi": dpi, "figure.figsize": (width, height), "axes.grid": True})
    rcParams.update({"grid.color": "0.9", "axes.axisbelow": True, "figure.autolayout": True})


def _is_close(
    answer: FloatArray, target: FloatArray, tolerance: float = _RELATIVE_TOLERANCE
) -> bool:
    """Return whether no entry differs from `target` by more than `tolerance` * max |target|."""
    return bool((np.abs(answer - target) <= tolerance * np.abs(target).max() + 1e-12).all())


def _rounds_to(answer: ArrayLike, right: FloatArray) -> bool:
    """Return whether each number of an answer is the right number, rounded to two or more digits.

    Trailing zeros of an integer do not count as digits.
    """
    for number, target in zip(np.ravel(answer).tolist(), np.ravel(right).tolist(), strict=True):
        typed = Decimal(str(number))  # the digits that were typed
        if isinstance(number, int):
            typed = typed.normalize()  # 250 may be 247 rounded to two digits
        _, digits, exponent = typed.as_tuple()
        # half a unit of the last digit
        half_unit = Decimal(5).scaleb(int(exponent) - 1)
        if len(digits) < 2 or abs(typed - Decimal(target)) > half_unit:
            return False
    return True


def _log_correction() -> Exercise:
    m = 20
    q = 1 / 500

    return Exercise(
        -np.log(m * q),
        {
            "Without a correction the draws do not stand for all classes.": 0.0,
            _SIGN_HINT: np.log(m * q),
            "You left out log m: a class is drawn m q times on average, not q times.": -np.log(q),
            "You left out log q: a class is drawn m q times on average, not m times.": -np.log(m),
            "That is a factor of exp(score); for the score take its logarithm.": 1 / m / q,
        },
        "How often is the class drawn on average? Divide exp(score) by it, and take the logarithm.",
    )


def _total_bias() -> Exercise:
    b = exact_bias([2.0, 1.0, 0.0], 0, [1 / 3] * 3, 1).bias
    signed = "The biases of all classes sum to 0. Take their absolute values first."
    return Exercise(
        np.abs(b).sum(),
        {
            signed: b.sum(),
            "That is the two negatives. The label has a bias, too.": np.abs(b[1:]).sum(),
            "That is the largest entry. The L1 norm is the sum over all three.": np.abs(b).max(),
            "That is the sum of squares. The L1 norm is that of absolute values.": b @ b,
            "That is the mean over the classes. The L1 norm is their sum.": np.abs(b).mean(),
            "That is one class, the label. Sum over all three.": np.abs(b[0]),
            "That is the L2 norm. The L1 norm is the sum of absolute values.": np.sqrt(b @ b),
        },
        "Each of the two negatives is drawn with probability 1/2, and then counts twice.",
    )


def _popularity_ratio() -> Exercise:
    ratio = 8.0
    return Exercise(
        ratio,
        {
            "That is so with a correction, and InfoNCE has none.": 1.0,
            "Upside down: the score is log(p / q), so that p is q times exp(score).": 1 / ratio,
            "That is the logarithm of the ratio.": np.log(ratio),
        },
        "InfoNCE learns the score log(p / q). Solve it for p.",
    )


# logits and sampling weights of the 10 classes in the example of notebook 1, section 1
_EXAMPLE_LOGITS = np.array([0.3, 0.9, 0.6, 3.0, 1.2, 2.4, 0.2, 3.4, 0.4, 2.2])
_EXAMPLE_WEIGHTS = np.array([5.0, 1.0, 3.0, 1.0, 2.0, 1.0, 4.0, 3.0, 2.0, 1.0])


def _label_gradient() -> Exercise:
    o = _EXAMPLE_LOGITS
    q = _EXAMPLE_WEIGHTS / _EXAMPLE_WEIGHTS.sum()
    t = 7
    others = np.arange(len(o)) != t

    def spike(m: int, added: int = 0) -> float:
        """Return the mean gradient at the label with m draws.

        Before the correction, log(m q) is added `added` times to the logits of the draws: once to
        undo the correction, twice to give it the wrong sign.
        """
        logits = o + added * np.log(np.where(others, m * q / q[others].sum(), 1.0))
        return float(exact_bias(logits, t, q, m).expected_probs[t]) - 1

    p = spike(3) + 1
    full = np.exp(o[t]) / np.exp(o).sum()

    return Exercise(
        p - 1,
        {
            "That is E[p'] at the label. The gradient there is E[p'] - 1.": p,
            "That is the spike of the full softmax.": full - 1,
            "That is the bias of the spike. The spike is the gradient itself.": p - full,
            _SIGN_HINT: 1 - p,
            "That is without a correction.": spike(3, 1),
            "That is with the wrong sign of the correction.": spike(3, 2),
            "That is for one draw. Here three are drawn.": spike(1),
            # for ten draws by the weights and three uniform draws the answers agree to three digits
            "That is for ten draws, or for uniform ones. Take three, by the weights.": spike(10),
        },
        "Section 2 averages over all draws. Which entry of the mean is the label's?",
    )


def _scores_saved() -> Exercise:
    n = 50_000
    m = 100
    step_ratio = 2  # steps of sampled training, over steps of full training

    return Exercise(
        n / (m + 1) / step_ratio,
        {
            "The label's score is computed too: a step takes m + 1.": n / m / step_ratio,
            "The label's score is computed at each step, not once.": n / (step_ratio * m + 1),
            "That is for equally many steps. Here sampling takes more.": n / (m + 1),
            "You left out the steps, and the label's score.": n / m,
            "Twice the steps make it dearer, not cheaper.": n / (m + 1) * step_ratio,
        },
        "Count the scores of a step, and multiply by the number of steps.",
    )


def _unit_rows(x: FloatArray) -> FloatArray:
    """Return `x` with the vectors along its last axis divided by their norms."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _notebook_2_data() -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Return exp(logits), softmax, proposal and most likely class of notebook 2, section 3."""
    rng = np.random.default_rng(2)
    classes = _unit_rows(rng.normal(size=(100, 16)))
    h = _unit_rows(rng.normal(size=16))
    e = np.exp(8.0 * classes @ h)
    proposal = e * np.exp(0.3 * rng.normal(size=100))
    return e, e / e.sum(), proposal / proposal.sum(), int(e.argmax())


def _masked_bias() -> Exercise:
    _, probs, _, label = _notebook_2_data()
    p = probs[label]

    return Exercise(
        2 * p,
        {
            "That is what the label loses. The other classes gain as much together.": p,
            "That holds for `candidate`. With masks S tends to the sum without the label.": 0.0,
            "The label loses p, not 1 - p: E[p'] tends to 0 there.": 2 * (1 - p),
            "That is with Z_t in place of Z: a softmax is over all classes.": 2 * p / (1 - p),
        },
        "Where does E[p'] tend at the label, and where at the others? Sum the differences.",
    )


def _loss_limit() -> Exercise:
    e, p, proposal, label = _notebook_2_data()
    others = np.arange(len(e)) != label
    ratios = e[others] / proposal[others]
    sum_of_others = e[others].sum()
    full_sum = e.sum()
    m = 10**9
    limit = m * float(exact_bias(np.log(e), label, proposal, m).loss_bias)
    unconditioned = proposal[others] @ (ratios - sum_of_others) ** 2

    return Exercise(
        limit,
        {
            "Look at the sign: the mean of a logarithm is below the logarithm of the mean.": -limit,
            "You left out the 1/2 of the second term of the logarithm.": 2 * limit,
            "You left out the 1/2 of the second term, and the sign.": -2 * limit,
            "Divide by Z**2: the series is one in (S - Z) / Z.": limit * full_sum**2,
            "Z is the sum over all classes, the label's too; Z_t leaves it out.": limit
            / (1 - p[label]) ** 2,
            "The label is not drawn: divide q by its sum over the others.": -unconditioned
            / (2 * full_sum**2),
        },
        "Only the term with (S - Z)**2 is left on average, and the variance of S is V / m.",
    )


def _second_jackknife() -> Exercise:
    m = 10
    right = np.array([m**2 / 2, -((m - 1) ** 2), (m - 2) ** 2 / 2])

    return Exercise(
        right,
        {
            "These are the weights of the jackknife. They leave a bias of order 1/m**2.": [
                m,
                -(m - 1),
                0,
            ],
            "They must sum to 1: a constant has to stay as it is.": 2 * right,
            "Look at the signs: the sum of the three must be 1.": -right,
            "The order is that of m, m - 1, m - 2.": right[::-1],
        },
        "Three conditions for three weights: they sum to 1, and 1/m and 1/m**2 cancel.",
    )


def _child_masses() -> Exercise:
    mass = 5.0
    difference = 1.0

    return Exercise(
        [(mass + difference) / 2, (mass - difference) / 2],
        {
            "That is right and left. The difference is left less right.": [2.0, 3.0],
            "Divide by 2: the sum of both equations contains the left child twice.": [
                mass + difference,
                mass - difference,
            ],
        },
        "Two equations: the children sum to the node's mass, and differ by Delta.",
    )


def _bucket_size() -> Exercise:
    d = 64
    features = 256
    best = 2 * features / (d * np.log(2))

    return Exercise(
        best,
        {
            "You left out log 2: levels are a logarithm to the base 2.": 2 * features / d,
            "A step down takes two products, one for each child.": best / 2,
            "The other way round: the derivative is zero at 2 D / (b log 2) = d.": 1 / best,
        },
        "Differentiate 2 D log2(n / b) + d b in b. The number n falls out.",
    )


def _largest_ratio() -> Exercise:
    n = 500
    weight = 0.25
    e = 2.0

    return Exercise(
        n * e / weight,
        {
            "You left out the weight: uniform draws have only a quarter of the mixture.": n * e,
            "The weight divides: the less of q is uniform, the larger a ratio may be.": n
            * e
            * weight,
            "That is the least q. Divide exp(o) by it.": weight / n,
            "That is 1 / q. Multiply it by exp(o).": n / weight,
        },
        "What is the least that q can be, whatever the tree says?",
    )


EXERCISES: dict[str, Callable[[], Exercise]] = {
    "0.1": _log_correction,
    "0.2": _total_bias,
    "0.3": _popularity_ratio,
    "1.1": _label_gradient,
    "1.7": _scores_saved,
    "2.1": _masked_bias,
    "2.2": _loss_limit,
    "2.3": _second_jackknife,
    "3.2": _child_masses,
    "3.3": _bucket_size,
    "3.4": _largest_ratio,
}
