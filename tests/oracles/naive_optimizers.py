"""Slow, independent oracles for the optimizers; nothing here comes from samplesoft.

Each follows one number of a parameter through its `history`: a learning rate and a gradient for
each step, or None for a gradient where the step had none for it.
"""

from __future__ import annotations

from math import sqrt


def sgd(w, history):
    """Robbins and Monro."""
    for rate, g in history:
        if g is not None:
            w = w - rate * g
    return w


def momentum(w, history, momentum=0.9, nesterov=False):
    """Polyak; Sutskever et al. for Nesterov's, with the rate outside of the sum."""
    gradients = []
    for rate, g in history:
        if g is None:
            continue
        gradients.append(g)
        velocity = sum(momentum**age * x for age, x in enumerate(reversed(gradients)))
        # Nesterov: this gradient, and what the next step would be if its own were 0
        w = w - rate * (g + momentum * velocity if nesterov else velocity)
    return w


def adagrad(w, history, epsilon=1e-10, initial_accumulator=0.0):
    """Duchi, Hazan and Singer."""
    gradients = []
    for rate, g in history:
        if g is not None:
            gradients.append(g)
            w = w - rate * g / (sqrt(initial_accumulator + sum(x * x for x in gradients)) + epsilon)
    return w


def adam(w, history, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Kingma and Ba, algorithm 1; t also counts steps without a gradient."""
    m = v = 0.0
    for t, (rate, g) in enumerate(history, 1):
        if g is None:
            continue
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat = m / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        w = w - rate * m_hat / (sqrt(v_hat) + epsilon)
    return w


OPTIMIZERS = {"sgd": sgd, "momentum": momentum, "adagrad": adagrad, "adam": adam}


def norm(numbers):
    """Euclidean norm, without overflow and underflow."""
    largest = max((abs(float(x)) for x in numbers), default=0.0)
    return largest and largest * sqrt(sum((float(x) / largest) ** 2 for x in numbers))
