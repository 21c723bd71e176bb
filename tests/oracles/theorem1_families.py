"""Examples in which Theorem 1 as printed breaks, and how far the corrected one is from the bias.

In tests/ ``python -m oracles.theorem1_families`` prints the table of section 17 of
samplesoft/bias/README.md.
"""

from __future__ import annotations

import math

import numpy as np

import samplesoft

DRAWS = (1, 100, 1_000_000)
TITLES = ("family", "m", "outside printed", "corrected", "least", "median", "worst", "worst, L1")


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def vectors(rng):
    """Return unit vectors with a uniform proposal; the gradient in h."""
    n, d, tau = int(rng.integers(10, 200)), int(rng.choice([8, 32])), rng.choice([5, 11.1, 20, 30])
    classes = unit(rng.normal(size=(n, d)))
    logits = tau * classes @ unit(rng.normal(size=d))
    return logits, int(rng.integers(n)), np.full(n, 1.0 / n), tau * classes


def signs(rng):
    """Return a random proposal, and derivatives of 1 and -1."""
    n = int(rng.integers(3, 100))
    q = rng.dirichlet(np.ones(n)) + 1e-6
    jacobian = rng.choice([-1.0, 1.0], size=(n, 8))
    return 2.0 * rng.normal(size=n), int(rng.integers(n)), q / q.sum(), jacobian


def heavy(rng):
    """Return the label and one negative far above the others; the gradient in the logits."""
    n = int(rng.integers(10, 1000))
    logits = np.zeros(n)
    logits[:2] = math.log(10.0) * rng.uniform(0.0, 4.0, size=2)
    return logits, 0, np.full(n, 1.0 / n), np.eye(n)


def rare(rng):
    """Return three classes, one of them seldom drawn, as in both counterexamples."""
    q = 10.0 ** rng.uniform(-4.0, -0.5)
    logits = np.array([rng.uniform(0.0, 4.0), 0.0, 0.0])
    return logits, 0, np.array([0.0, 1.0 - q, q]), np.array([[1.0, -1], [1, -1], [0, 1]])


FAMILIES = {"vectors": vectors, "signs": signs, "heavy": heavy, "rare": rare}


def row(name, m, count=60):
    """Return the cells of one line: counts, and ratios of bound to exact bias.

    The ratios are those of the largest coordinate of each example that is outside the printed
    bounds, and of the worst gradient with |d o| <= 1, whose bias is the L1 norm.
    """
    rng = np.random.default_rng(0)
    coordinates = outside = violated = 0
    ratios, norms = [], []
    for _ in range(count):
        logits, label, q, jacobian = FAMILIES[name](rng)
        exact = samplesoft.exact_bias(logits, label, q, m)
        bias = exact.gradient_bias(jacobian)
        room = (1e-10 * np.abs(exact.bias).sum() + exact.error) * np.abs(jacobian).max()
        printed = samplesoft.bias.theorems.theorem1_bounds(logits, label, q, m, jacobian)
        true = samplesoft.bias.theorems.theorem1_corrected(logits, label, q, m, jacobian)
        out = (bias < printed.lower - room) | (bias > printed.upper + room)
        coordinates, outside = coordinates + bias.size, outside + int(out.sum())
        violated += int(((bias < true.lower - room) | (bias > true.upper + room)).sum())
        if out.any():
            top = int(np.argmax(np.where(out, np.abs(bias), -1.0)))
            end = true.upper if bias[top] > 0.0 else true.lower
            ratios.append(end[top] / bias[top])
            worst = np.sign(exact.bias)[:, None]
            reach = samplesoft.bias.theorems.theorem1_corrected(logits, label, q, m, worst).upper[0]
            norms.append(reach / np.abs(exact.bias).sum())
    counts = f"{outside:,} of {coordinates:,}"
    if not ratios:
        return name, m, counts, violated
    return name, m, counts, violated, min(ratios), np.median(ratios), max(ratios), max(norms)


def table():
    """Yield every line."""
    for name in FAMILIES:
        for m in DRAWS:
            yield row(name, m)


if __name__ == "__main__":
    print("| " + " | ".join(TITLES) + " |\n" + "|---" * len(TITLES) + "|")
    for name, m, counts, violated, *ratios in table():
        ratios = [f"{x:.3g}" for x in ratios] or 4 * ["–"]
        cells = (name, f"{m:,}", counts, str(violated), *ratios)
        print("| " + " | ".join(cells) + " |")
