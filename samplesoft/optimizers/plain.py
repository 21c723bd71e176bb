"""The optimizers as their sources write them, of one number: to be read, not to be used.

A parameter is an array of numbers, and each of them goes its own way. Let a number w begin at 1 and
have three gradients g, the derivatives of the loss in w where it then is; the learning rate is 0.1:

    step                   1      2      3
    gradient g             4      none   -1
    sgd       step 0.1 g   0.4    -      -0.1     w = 1 - 0.4 + 0.1 = 0.7
    momentum  sum v        4      -      2.6      2.6 = 0.9 * 4 - 1; w = 1 - 0.4 - 0.26 = 0.34
    adagrad   sum of g^2   16     -      17       w = 1 - 0.4 / 16^0.5 + 0.1 / 17^0.5 = 0.924
    adam      mean of g    4      -      0.96     w = 1 - 0.4 / 16^0.5 - 0.096 / 5.67^0.5 = 0.860
              mean of g^2  16     -      5.67

In step 2 the number has no gradient: its class was not drawn. It stays where it is, and what is
kept of it does not decay. Only Adam counts that step too, in its corrections.

Functions take the number at the start and its `history`: for each step a learning rate and a
gradient, or None for a gradient where there is none. They return the number at the end. All that an
optimizer keeps is written as the sum that it stands for, over all gradients so far.

`samplesoft.optimizers` computes the same for arrays, or for some of their rows, and keeps the sums.
"""

from math import sqrt


def sgd(w, history):
    """Step against the gradient. Robbins and Monro (1951).

    >>> round(sgd(1.0, [(0.1, 4.0), (0.1, None), (0.1, -1.0)]), 3)
    0.7
    """
    for rate, g in history:
        if g is not None:
            w = w - rate * g
    return w


def momentum(w, history, momentum=0.9, nesterov=False):
    """Step against a sum of gradients, in which older ones weigh less. Polyak (1964).

    The rate is outside of the sum, as in PyTorch. Nesterov's step, as Sutskever et al. (2013) write
    it, is by this gradient and by what the next step would be if its own were 0.

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
    """Step by the gradient over the root of all squares so far. Duchi, Hazan and Singer (2011).

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
    """Step by a mean of gradients over the root of one of squares. Kingma and Ba (2015), alg. 1.

    Both means begin at 0. After t steps they are divided by what their weights then add up to; t
    also counts steps without a gradient.

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
