"""The optimizers as in their papers, for one scalar parameter: to be read, not to be used.

Each entry of a parameter array is updated independently. Let an entry w start at 1, with gradients
g in two of three steps and a learning rate of 0.1:

    step                   1      2      3
    gradient g             4      none   -1
    sgd       step 0.1 g   0.4    -      -0.1     w = 1 - 0.4 + 0.1 = 0.7
    momentum  sum v        4      -      2.6      2.6 = 0.9 * 4 - 1; w = 1 - 0.4 - 0.26 = 0.34
    adagrad   sum of g^2   16     -      17       w = 1 - 0.4 / 16^0.5 + 0.1 / 17^0.5 = 0.924
    adam      mean of g    4      -      0.96     w = 1 - 0.4 / 16^0.5 - 0.096 / 5.67^0.5 = 0.860
              mean of g^2  16     -      5.67

In step 2 the entry has no gradient, because its class was not drawn. The entry does not change, and
its state does not decay. Only Adam also counts that step, in its bias corrections.

Functions take the initial value w and its `history`, a list of (learning rate, gradient) for each
step; the gradient is None in steps without one. They return the final value. The state of an
optimizer is written out as a sum over all past gradients.

`samplesoft.optimizers` computes the same for arrays or some of their rows, and stores the sums.
"""

from math import sqrt


def sgd(w, history):
    """Return w after steps against the gradient. Robbins and Monro (1951).

    >>> round(sgd(1.0, [(0.1, 4.0), (0.1, None), (0.1, -1.0)]), 3)
    0.7
    """
    for rate, g in history:
        if g is not None:
            w = w - rate * g
    return w


def momentum(w, history, momentum=0.9, nesterov=False):
    """Return w after steps along minus a sum of gradients with decaying weights. Polyak (1964).

    The rate multiplies the sum, as in PyTorch. Nesterov's step, as in Sutskever et al. (2013), is
    the gradient plus `momentum` times the sum.

    >>> round(momentum(1.0, [(0.1, 4.0), (0.1, None), (0.1, -1.0)]), 3)
    0.34
    """
    gradients = []
    for rate, g in history:
        if g is None:
            continue
        gradients.append(g)
        velocity = sum(momentum**age * x for age, x in enumerate(reversed(gradients)))
        w = w - rate * (g + momentum * velocity if nesterov else velocity)
    return w


def adagrad(w, history, epsilon=1e-10, initial_accumulator=0.0):
    """Return w after steps of the gradient, divided by the root of the sum of all squares so far.

    Duchi, Hazan and Singer (2011).

    >>> round(adagrad(1.0, [(0.1, 4.0), (0.1, None), (0.1, -1.0)]), 3)
    0.924
    """
    gradients = []
    for rate, g in history:
        if g is not None:
            gradients.append(g)
            w = w - rate * g / (sqrt(initial_accumulator + sum(x * x for x in gradients)) + epsilon)
    return w


def adam(w, history, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Return w after steps of the mean gradient, divided by the root of the mean squared gradient.

    Kingma and Ba (2015), algorithm 1. Both means are moving averages that start at 0. After t steps
    they are divided by the sum of their weights, 1 - beta^t. t also counts steps without a
    gradient.

    >>> round(adam(1.0, [(0.1, 4.0), (0.1, None), (0.1, -1.0)]), 3)
    0.86
    """
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
