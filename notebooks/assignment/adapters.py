"""Your functions, as the tests call them. Write them here, or import them from your own files."""

import numpy as np


def softmax_loss(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Task 1. Take scores (B, n) and labels (B,).

    Return the losses -log p_t (B,), and the gradient (B, n) of each loss in its own scores.
    """
    raise NotImplementedError("task 1: write softmax_loss in adapters.py")


def sampled_loss(
    W: np.ndarray, h: np.ndarray, labels: np.ndarray, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Task 2. Take class vectors W (n, d), h (B, d), labels (B,) and draws ids (B, m).

    Return the losses (B,), and the gradients of their sum in h (B, d) and in W (n, d).
    """
    raise NotImplementedError("task 2: write sampled_loss in adapters.py")


def corrected_loss(
    W: np.ndarray,
    h: np.ndarray,
    labels: np.ndarray,
    q: np.ndarray,
    m: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Task 3. Take the same, and a proposal q (n,), m, and a source of random numbers.

    Draw m classes for each example. Return the losses (B,), and the gradients of their sum in h
    (B, d) and in W (n, d). `rng.choice` with `p=q` will do.
    """
    raise NotImplementedError("task 3: write corrected_loss in adapters.py")


def alias_table(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Task 4. Take a distribution q (n,), in which some classes may have probability 0.

    Return threshold (n,), floats from 0 to 1, and alias (n,), integers: class i has the part below
    threshold[i] of column i, and class alias[i] has the rest.
    """
    raise NotImplementedError("task 4: write alias_table in adapters.py")


def alias_draw(threshold: np.ndarray, alias: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Task 4. Take a table, and uniform numbers u (k,) from [0, 1).

    Return k draws, each from one of the numbers.
    """
    raise NotImplementedError("task 4: write alias_draw in adapters.py")


def exact_bias(scores: np.ndarray, label: int, q: np.ndarray, m: int) -> tuple[float, np.ndarray]:
    """Task 5. Take the scores (n,) of one example, its label, a proposal q (n,), and m.

    Return the exact bias of the loss of task 5, and the bias (n,) of its gradient in the scores.
    """
    raise NotImplementedError("task 5: write exact_bias in adapters.py")


def better_proposal(scores: np.ndarray) -> np.ndarray:
    """Task 6. Take the scores (B, n) of some examples.

    Return a distribution q (n,), from which other examples of the same kind will draw.
    """
    raise NotImplementedError("task 6: write better_proposal in adapters.py")
