"""Features of one vector at given frequencies, in plain Python: to be read, not to be used.

A feature map phi turns a kernel into an inner product: K(x, y) = phi(x) . phi(y), exactly or on
average over random frequencies w. In two dimensions, with three frequencies,

    x = (1, 0)      w_1 = (0.3, 1.1)     w_1 . x =  0.3
                    w_2 = (-0.8, 0.2)    w_2 . x = -0.8
                    w_3 = (1.5, -0.4)    w_3 . x =  1.5

    phi(x) = (cos 0.3, cos -0.8, cos 1.5, sin 0.3, sin -0.8, sin 1.5) / sqrt(3)

and phi(x) . phi(y) is the mean of cos(w . x) cos(w . y) + sin(w . x) sin(w . y), which is
cos(w . (x - y)): it depends on x - y only. If w is normal with variance nu, the expectation of this
cosine is exp(-nu |x - y|^2 / 2). For unit vectors |x - y|^2 is 2 - 2 x . y, and the kernel is
exp(nu x . y) times a constant: the softmax as an inner product.

`samplesoft.feature_maps` computes the same for many rows at a time. It measures angles in turns (1
turn is 2 pi), and products with D structured frequencies take D log d steps.
"""

import math

import numpy as np


def fourier(x, frequencies):
    """Return random Fourier features (2 D,): cosines and sines at the frequencies (D, d).

    Rahimi and Recht (2007); eqs. 17 and 18 of Rawat et al. (2019), who print the variance 1 / nu
    for w, which should be nu.
    """
    angles = [np.dot(w, x) for w in frequencies]
    cosines = [math.cos(angle) for angle in angles]
    sines = [math.sin(angle) for angle in angles]
    return np.array(cosines + sines) / math.sqrt(len(frequencies))


def positive(x, frequencies, tau):
    """Return positive random features (D,) for the kernel exp(tau x . y).

    `frequencies` (D, d) are draws of w ~ N(0, I). Choromanski et al. (2021), lemma 1: the mean of
    exp(sqrt(tau) w . (x + y)) is exp(tau |x + y|^2 / 2). Multiplied by exp(-tau |x|^2 / 2) and
    exp(-tau |y|^2 / 2) this is exp(tau x . y).
    """
    scaled = [math.sqrt(tau) * np.dot(w, x) for w in frequencies]
    half_square = tau * np.dot(x, x) / 2
    return np.array([math.exp(s - half_square) for s in scaled]) / math.sqrt(len(frequencies))


def maclaurin(x, signs, tau):
    """Return random Maclaurin features (F,) for the kernel exp(tau x . y).

    Kar and Karnick (2012), algorithm 1 with p = 2. Feature j is a product of N projections on the
    rows w of `signs[j]` (N, d), with random entries +1 and -1. Its degree N is random, with
    probability 2^-(N + 1). The expectation of (w . x)(w . y) is x . y, and the expectation of a
    product of N such factors is (x . y)^N. The coefficient of (x . y)^N in the series of
    exp(tau x . y) is tau^N / N!.
    """
    features = []
    for rows in signs:
        degree = len(rows)
        coefficient = tau**degree / math.factorial(degree)
        scale = math.sqrt(coefficient * 2 ** (degree + 1) / len(signs))
        features.append(scale * math.prod(np.dot(w, x) for w in rows))
    return np.array(features)


def quadratic(x, alpha):
    """Return quadratic features (d (d + 1) / 2 + 1,), exact for the kernel alpha (x . y)^2 + 1.

    Blanc and Rendle (2018), section 3.3. (x . y)^2 is the sum of x_i x_j y_i y_j over all pairs
    (i, j). The pairs (i, j) and (j, i) are merged into one feature, times the square root of 2.
    """
    features = []
    for i in range(len(x)):
        for j in range(i, len(x)):
            symmetry = 1 if i == j else math.sqrt(2)
            features.append(math.sqrt(alpha) * symmetry * x[i] * x[j])
    return np.array([*features, 1.0])


# frequencies --------------------------------------------------------------------------------------


def orthogonal(vectors):
    """Return orthogonal unit vectors (d, d), made from Gaussian vectors (d, d) by Gram-Schmidt.

    Yu et al. (2016), section 3. Each direction is uniform on the sphere. Together the directions
    span the space, so that estimates vary less. As frequencies, they are multiplied by norms of
    Gaussian vectors: square roots of chi-square variates with d degrees of freedom.
    """
    directions = []
    for vector in vectors:
        remainder = np.array(vector, dtype=float)
        for direction in directions:
            remainder = remainder - np.dot(direction, remainder) * direction
        directions.append(remainder / math.sqrt(np.dot(remainder, remainder)))
    return np.array(directions)


def hadamard(x):
    """Return H x for the Hadamard matrix of p = len(x) rows, a power of 2, in p log2 p steps.

    H_1 = [1], and H_2p = [[H_p, H_p], [H_p, -H_p]]; H / sqrt(p) is orthogonal.
    """
    if len(x) == 1:
        return np.array(x, dtype=float)
    half = len(x) // 2
    top = hadamard(x[:half])
    bottom = hadamard(x[half:])
    return np.concatenate([top + bottom, top - bottom])


def structured_products(x, signs):
    """Return the products (p,) of p structured frequencies with x (d,), padded with zeros to (p,).

    Yu et al. (2016), section 4: the frequencies are the rows of sqrt(p) H S_3 H S_2 H S_1. H is the
    Hadamard matrix divided by sqrt(p), and `signs` (3, p) are the diagonals of the diagonal
    matrices S_1, S_2 and S_3. The frequencies themselves are never computed.
    """
    p = len(signs[0])
    y = np.concatenate([x, np.zeros(p - len(x))])
    for diagonal in signs:
        y = hadamard(diagonal * y) / math.sqrt(p)
    return math.sqrt(p) * y
