r"""The kernel tree for one context at a time: to be read, not to be used.

The kernel K(h, c) = phi(h) . phi(c), with random features phi, approximates exp(tau h . c). Classes
are to be drawn in proportion to it. For five classes, two in a leaf, the tree is

                 0 1 2 3 4                  a node: the sum of phi(c) over its classes
                /         \
           0 1 2 3         4                go left with K(h, 0 1 2 3) / K(h, 0 1 2 3 4)
          /       \
        0 1       2 3                       then with K(h, 0 1) / K(h, 0 1 2 3)
                                            and in the leaf with K(h, 0) / K(h, 0 1)

where K(h, 0 1) = K(h, 0) + K(h, 1). The kernel is an inner product, so that a sum of kernels is one
inner product with a sum of features: phi(h) . (phi(0) + phi(1)). A tree stores these sums. A draw
then takes one or two products on each of log2(leaves) levels, and one for each class of a leaf.
(For clarity, this file adds up kernels instead.) Each numerator is the denominator of the next
level and cancels: the branch probabilities on the path to c multiply to K(h, c) / sum of K(h, .).
See section 3.2 of Blanc and Rendle (2018), "Adaptive sampled softmax with kernel based sampling",
and Rawat et al. (2019), "Sampled softmax with random Fourier features".

Random features can make a kernel negative, but a probability cannot be. The mass of a half is
therefore its sum of kernels, or a floor > 0 for each of its classes if that is larger. A branch
probability is the mass of one half over the masses of both. After clipping, branch probabilities
differ from those of K. They still add up to 1 at every node, so that their product is the exact
probability of the draw, which is what a loss corrects for.

`samplesoft.samplers.tree` computes the same for many contexts at a time, on all cores or a GPU. For
L leaves it stores L rows, and not the sums of both halves of each node, which are 2 (L - 1) rows.
Row 0 holds the total. Every other leaf is the first leaf of exactly one right half; its row holds
the sum of the left half of that node minus the sum of the right half. Above, leaves 0, 1 and 2 hold
the classes 0 1, 2 3 and 4:

    two sums for each node        one row for each leaf
                                  row 0:  phi(0) + phi(1) + phi(2) + phi(3) + phi(4)
    0 1 2 3     and     4         row 2:  phi(0) + phi(1) + phi(2) + phi(3) - phi(4)
    0 1         and     2 3       row 1:  phi(0) + phi(1) - phi(2) - phi(3)

The sum of a half is (sum of its node ± its row) / 2, with + for the left half and - for the right.
This also holds for the products with phi(h), so that a level takes one product.
"""

from collections.abc import Iterator, Sequence
from typing import Any

Number = Any  # a float, or a Fraction as in the tests
Node = tuple[int, int, int]  # first leaf, first leaf of the right half, last leaf + 1


def inner(x: Sequence[Number], y: Sequence[Number]) -> Number:
    """Return the inner product of two vectors."""
    return sum(a * b for a, b in zip(x, y, strict=True))


# the shape of the tree ---------------------------------------------------------------------------


def num_leaves(num_classes: int, leaf_size: int) -> int:
    """Return the number of leaves; the last leaf may hold fewer classes."""
    return (num_classes + leaf_size - 1) // leaf_size


def num_left_leaves(leaves: int) -> int:
    """Return the number of leaves in the left half, the largest power of 2 below `leaves`."""
    left = 1
    while 2 * left < leaves:
        left *= 2
    return left


def nodes(leaves: int, first: int = 0) -> Iterator[Node]:
    """Yield all nodes with two halves, parents before children."""
    if leaves == 1:
        return
    left = num_left_leaves(leaves)
    yield first, first + left, first + leaves
    yield from nodes(left, first)
    yield from nodes(leaves - left, first + left)


def classes_of(first: int, last: int, num_classes: int, leaf_size: int) -> range:
    """Return the classes of the leaves [first, last)."""
    return range(first * leaf_size, min(last * leaf_size, num_classes))


def node_sums(features: Sequence[Sequence[Number]], leaf_size: int) -> dict[tuple[int, int], Any]:
    """Return the sums of the features (n, D) over the classes of each half of each node.

    The key of a half is its range of leaves, (first, last + 1).
    """
    n = len(features)
    sums = {}
    for first, middle, last in nodes(num_leaves(n, leaf_size)):
        for start, stop in ((first, middle), (middle, last)):
            below = [features[c] for c in classes_of(start, stop, n, leaf_size)]
            sums[start, stop] = [sum(column) for column in zip(*below, strict=True)]
    return sums


# probabilities -----------------------------------------------------------------------------------


def mass(kernel_sum: Number, num_classes: int, floor: Number) -> Number:
    """Return the mass of a half: its sum of kernels, at least the floor for each of its classes."""
    return max(kernel_sum, floor * num_classes)


def class_probabilities(
    kernel: Sequence[Number], weights: Sequence[Number], leaf_size: int, floor: Number
) -> list[Number]:
    """Return the probabilities (n,) of all classes for one context.

    The masses of halves are sums of `kernel` (n,), the K(h, c). In a leaf, classes are drawn in
    proportion to `weights` (n,): the clipped kernel, or other positive weights that are cheap for
    so few classes, such as exp(tau h . c). q is then not proportional to K.
    """
    n = len(kernel)
    q = [kernel[0]] * n  # placeholders of the right type

    def descend(first: int, leaves: int, reach_prob: Number) -> None:
        if leaves == 1:
            classes = classes_of(first, first + 1, n, leaf_size)
            total = sum(weights[c] for c in classes)
            for c in classes:
                q[c] = reach_prob * weights[c] / total
            return
        left = num_left_leaves(leaves)
        halves = (first, left), (first + left, leaves - left)
        masses = []
        for start, size in halves:
            below = classes_of(start, start + size, n, leaf_size)
            masses.append(mass(sum(kernel[c] for c in below), len(below), floor))
        for (start, size), half_mass in zip(halves, masses, strict=True):
            descend(start, size, reach_prob * half_mass / sum(masses))

    descend(0, num_leaves(n, leaf_size), 1)
    return q


def leaf_weights(kind, kernel, logits, scale, floor, exp):
    """Return the weights of classes in their leaf, from kernels (n,) or `logits` h . c (n,).

    `scale` is alpha for the quadratic kernel and tau for the softmax.
    """
    if kind == "kernel":
        return [mass(value, 1, floor) for value in kernel]
    if kind == "quadratic":  # alpha x^2 + 1: Blanc and Rendle (2018), section 3.3
        return [scale * x * x + 1 for x in logits]
    return [exp(scale * x) for x in logits]  # "softmax": exp(tau x)


def without(q: Sequence[Number], label: int) -> list[Number]:
    """Return the probabilities (n,) given that `label` is not drawn: q_j / (1 - q_label).

    The tree need not be rebuilt. On the path to the label, let a node have probability `both` and
    its left half `left`. The branch probability left / both becomes
    (left - q_label) / (both - q_label) if the label is on the left, and left / (both - q_label) if
    not. In its leaf the label has weight 0. All other branch probabilities stay the same.
    """
    others = [0 * x if c == label else x for c, x in enumerate(q)]  # a 0 of the same type
    rest = sum(others)  # 1 - q_label would lose digits where q_label is near 1
    return [x / rest for x in others]


# a draw ------------------------------------------------------------------------------------------


def left_probabilities(q: Sequence[Number], leaf_size: int) -> list[Number]:
    """Return the probability of the left branch at each of `nodes`, for class probabilities q."""
    probabilities = []
    for first, middle, last in nodes(num_leaves(len(q), leaf_size)):
        left = sum(q[c] for c in classes_of(first, middle, len(q), leaf_size))
        both = sum(q[c] for c in classes_of(first, last, len(q), leaf_size))
        probabilities.append(left / both)
    return probabilities


def draw(u: Number, q: Sequence[Number], leaf_size: int) -> int:
    """Return the class that the uniform number `u` in [0, 1) draws.

    The draw goes left if u is below the probability of the left branch, p, and u / p is then
    uniform again. Otherwise it goes right, and (u - p) / (1 - p) is uniform. One number so serves
    all levels. The result is the first class c with q_0 + ... + q_c > u, whatever the tree.
    (Branch probabilities are computed from `q` (n,) here; the masses give the same.)
    """
    n = len(q)
    first = 0
    leaves = num_leaves(n, leaf_size)
    while leaves > 1:
        left_size = num_left_leaves(leaves)
        left = sum(q[c] for c in classes_of(first, first + left_size, n, leaf_size))
        both = sum(q[c] for c in classes_of(first, first + leaves, n, leaf_size))
        left_probability = left / both
        if u < left_probability or left_probability == 1:
            u /= left_probability
            leaves = left_size
        else:
            u = (u - left_probability) / (1 - left_probability)
            first += left_size
            leaves -= left_size
    classes = classes_of(first, first + 1, n, leaf_size)
    target = u * sum(q[c] for c in classes)
    cumulative = 0
    for c in classes:
        cumulative += q[c]
        if target < cumulative:
            return c
    return max(c for c in classes if q[c] > 0)  # u has been rounded up to 1
