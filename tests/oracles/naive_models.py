"""Slow layers in plain Python, and derivatives by differences: oracles that share no code."""

import math

import numpy as np


def sigmoid(x):
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x)) if x > -700.0 else 0.0


def lstm_step(x, h, c, weights, recurrent, bias):
    """One step of one sequence, number by number; columns in the order i, f, o, g."""
    size = len(h)
    new_h, new_c = [], []
    for j in range(size):
        pre = []
        for gate in range(4):
            column = gate * size + j
            total = bias[column]
            total += sum(x[k] * weights[k][column] for k in range(len(x)))
            total += sum(h[k] * recurrent[k][column] for k in range(size))
            pre.append(total)
        i, f, o, g = sigmoid(pre[0]), sigmoid(pre[1]), sigmoid(pre[2]), math.tanh(pre[3])
        new_c.append(f * c[j] + i * g)
        new_h.append(o * math.tanh(new_c[j]))
    return new_h, new_c


def lstm(x, hidden, cells, layers, factors=None):
    """Outputs (T, B, H) and last states; `layers` holds (weights, recurrent, bias) of each.

    `factors[l]` (T, B, H), where given, multiplies the inputs of layer l.
    """
    steps, batch = len(x), len(x[0])
    below = [[list(map(float, x[t][b])) for b in range(batch)] for t in range(steps)]
    last_h, last_c = [], []
    for layer, (weights, recurrent, bias) in enumerate(layers):
        h = [list(map(float, hidden[layer][b])) for b in range(batch)]
        c = [list(map(float, cells[layer][b])) for b in range(batch)]
        above = []
        for t in range(steps):
            row = []
            for b in range(batch):
                inputs = below[t][b]
                if layer and factors is not None:
                    inputs = [v * f for v, f in zip(inputs, factors[layer][t][b], strict=True)]
                h[b], c[b] = lstm_step(inputs, h[b], c[b], weights, recurrent, bias)
                row.append(h[b])
            above.append(row)
        below = above
        last_h.append(h)
        last_c.append(c)
    return np.array(below), np.array(last_h), np.array(last_c)


def sparse_linear(dense, weights):
    """Product of two matrices, number by number."""
    rows = [
        [
            sum(dense[b][j] * weights[j][k] for j in range(len(weights)))
            for k in range(len(weights[0]))
        ]
        for b in range(len(dense))
    ]
    return np.array(rows)


def dense_rows(ids, rows, size):
    """A gradient of rows as a whole array; fails where ids do not rise."""
    assert all(a < b for a, b in zip(ids[:-1], ids[1:], strict=True))
    dense = np.zeros((size, *np.shape(rows)[1:]))
    for i, row in zip(ids, rows, strict=True):
        dense[i] = row
    return dense


def differences(function, array, step=1e-5):
    """Central differences of a number in every entry of `array`, which is changed and restored."""
    slopes = np.zeros(array.shape)
    for place in np.ndindex(array.shape):
        kept = array[place]
        array[place] = kept + step
        above = function()
        array[place] = kept - step
        below = function()
        array[place] = kept
        slopes[place] = (above - below) / (2.0 * step)
    return slopes


def norm(numbers):
    """Euclidean norm, without overflow and underflow."""
    largest = max((abs(float(x)) for x in numbers), default=0.0)
    return largest and largest * math.sqrt(sum((float(x) / largest) ** 2 for x in numbers))
