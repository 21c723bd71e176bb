r"""How a kernel tree draws, one context and one number at a time: to be read, not to be used.

A kernel K(h, c) = phi(h) . phi(c) stands for exp(tau h . c), where phi are random features. Classes
are to be drawn in proportion to it. Of five classes, two in a leaf, the tree is

                 0 1 2 3 4                  a node: the sum of phi(c) over its classes
                /         \
           0 1 2 3         4                go left with K(h, 0 1 2 3) / K(h, 0 1 2 3 4)
          /       \
        0 1       2 3                       then with K(h, 0 1) / K(h, 0 1 2 3)
                                            and in the leaf with K(h, 0) / K(h, 0 1)

where K(h, 0 1) = K(h, 0) + K(h, 1). The kernel is an inner product, so that a sum of kernels is one
product with a sum of features: phi(h) . (phi(0) + phi(1)). A tree that has added the features once
draws with a product or two on each of log2(leaves) levels, and one for each class of a leaf. (This
file adds up kernels instead, to be plain.) Each numerator is the next denominator and cancels: the
shares on the way to c multiply to K(h, c) / sum of K(h, .). See section 3.2 of Blanc and Rendle
(2018), "Adaptive sampled softmax with kernel based sampling", and Rawat et al. (2019), "Sampled
softmax with random Fourier features".

Random features may make a kernel negative, and a probability is not. So the mass of a half, its sum
of kernels, is raised to at least a floor > 0 for each of its classes, and a share is the mass of a
half over that of both. Then shares are no longer those of K. Still they add up to 1 at every node,
so that their product is the exact probability of the draw, by which a loss corrects.

`samplesoft.samplers.tree` computes the same for many contexts at a time, on all cores or a GPU. Of
L leaves it keeps L rows, where two halves for each node are 2 (L - 1). Row 0 is the sum of all. Any
other leaf is the first of one right half: its row keeps left less right of that node. Leaves 0, 1
and 2 above have the classes 0 1, 2 3 and 4:

    here                          there
                                  row 0:  phi(0) + phi(1) + phi(2) + phi(3) + phi(4)
    0 1 2 3     and     4         row 2:  phi(0) + phi(1) + phi(2) + phi(3) - phi(4)
    0 1         and     2 3       row 1:  phi(0) + phi(1) - phi(2) - phi(3)

so that a half is (the sum of its node + or - that row) / 2: + for the left, - for the right. This
holds after a product with phi(h) too, so that a level takes one product.
"""

from collections.abc import Iterator, Sequence
from typing import Any

Number = Any  # a float, or a fraction as in the tests, or anything else that computes
Node = tuple[int, int, int]  # its first leaf, the first of its right half, and one past its last


def inner(x: Sequence[Number], y: Sequence[Number]) -> Number:
    """Return the inner product of two vectors."""
    return sum(a * b for a, b in zip(x, y, strict=True))


# the shape of the tree ---------------------------------------------------------------------------


def num_leaves(num_classes: int, leaf_size: int) -> int:
    """Return into how many leaves classes are put, of which the last may have fewer classes."""
    return (num_classes + leaf_size - 1) // leaf_size


def leaves_on_the_left(leaves: int) -> int:
    """Return how many leaves the left half of a node has: the largest power of 2 below `leaves`."""
    left = 1
    while 2 * left < leaves:
        left *= 2
    return left


def nodes(leaves: int, first: int = 0) -> Iterator[Node]:
    """Yield all nodes with two halves, each before those below it."""
    if leaves == 1:
        return
    left = leaves_on_the_left(leaves)
    yield first, first + left, first + leaves
    yield from nodes(left, first)
    yield from nodes(leaves - left, first + left)


def classes_of(first: int, last: int, num_classes: int, leaf_size: int) -> range:
    """Return the classes of the leaves from `first` up to, and without, `last`."""
    return range(first * leaf_size, min(last * leaf_size, num_classes))


def node_sums(features: Sequence[Sequence[Number]], leaf_size: int) -> dict[tuple[int, int], Any]:
    """Return the sum of the features (n, D) of the classes of each half of each node.

    A plain tree keeps them, here by the first leaf and the one past the last of each half.
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
    """Return the mass of a half: its sum of kernels, or the floor for each of its classes."""
    return max(kernel_sum, floor * num_classes)


def class_probabilities(
    kernel: Sequence[Number], weights: Sequence[Number], leaf_size: int, floor: Number
) -> list[Number]:
    """Return the probabilities (n,) of all classes, for one context.

    `kernel` (n,) are the K(h, c) of which the mass of a half is made. In a leaf classes weigh by
    `weights` (n,): the kernel again, not below the floor, or any other positive numbers that are
    cheap for so few classes, such as exp(tau h . c). Then q is no longer in proportion to K.
    """
    n = len(kernel)
    q = [kernel[0]] * n  # of the type of the numbers; each is replaced

    def descend(first: int, leaves: int, reached: Number) -> None:
        if leaves == 1:
            here = classes_of(first, first + 1, n, leaf_size)
            total = sum(weights[c] for c in here)
            for c in here:
                q[c] = reached * weights[c] / total
            return
        left = leaves_on_the_left(leaves)
        halves = (first, left), (first + left, leaves - left)
        masses = []
        for start, size in halves:
            below = classes_of(start, start + size, n, leaf_size)
            masses.append(mass(sum(kernel[c] for c in below), len(below), floor))
        for (start, size), of_half in zip(halves, masses, strict=True):
            descend(start, size, reached * of_half / sum(masses))

    descend(0, num_leaves(n, leaf_size), 1)
    return q


def leaf_weights(kind, kernel, logits, scale, floor, exp):
    """Return what classes weigh in their leaf, from their kernels or their `logits` h . c (n,).

    `scale` is alpha of the quadratic kernel, and tau of the softmax.
    """
    if kind == "kernel":
        return [mass(value, 1, floor) for value in kernel]
    if kind == "quadratic":  # alpha x^2 + 1: Blanc and Rendle (2018), section 3.3
        return [scale * x * x + 1 for x in logits]
    return [exp(scale * x) for x in logits]  # "softmax": exp(tau x)


def without(q: Sequence[Number], label: int) -> list[Number]:
    """Return the probabilities given that `label` is not drawn: q_j / (1 - q_t).

    Leaving it out takes no other tree. On the way to the label t let a node have the probability
    `both` and its left half `left`: the share of the left half, left / both, becomes
    (left - q_t) / (both - q_t) if t is on the left, and left / (both - q_t) if not. In its leaf the
    label weighs 0. No other share changes.
    """
    others = [0 * x if c == label else x for c, x in enumerate(q)]  # a 0 of the type of q
    rest = sum(others)  # 1 - q_t loses digits where q_t is near 1
    return [x / rest for x in others]


# a draw ------------------------------------------------------------------------------------------


def left_shares(q: Sequence[Number], leaf_size: int) -> list[Number]:
    """Return the probability of going left at each of `nodes`, if q (n,) are those of classes."""
    shares = []
    for first, middle, last in nodes(num_leaves(len(q), leaf_size)):
        left = sum(q[c] for c in classes_of(first, middle, len(q), leaf_size))
        both = sum(q[c] for c in classes_of(first, last, len(q), leaf_size))
        shares.append(left / both)
    return shares


def draw(u: Number, q: Sequence[Number], leaf_size: int) -> int:
    """Return the class to which one uniform number `u` in [0, 1) leads.

    If u is below the share of the left half, it goes there, and u / share is uniform again. If not,
    it goes to the right, and (u - share) / (1 - share) is uniform. So one number serves all levels.
    A larger u never leads to a smaller class: it is the first c with q_0 + ... + q_c > u, whatever
    the tree. (Shares are computed from `q` (n,) here, which has the same as the masses.)
    """
    n = len(q)
    first = 0
    leaves = num_leaves(n, leaf_size)
    while leaves > 1:
        left = leaves_on_the_left(leaves)
        of_left = sum(q[c] for c in classes_of(first, first + left, n, leaf_size))
        of_both = sum(q[c] for c in classes_of(first, first + leaves, n, leaf_size))
        share = of_left / of_both
        if u < share or share == 1:
            u /= share
            leaves = left
        else:
            u = (u - share) / (1 - share)
            first += left
            leaves -= left
    here = classes_of(first, first + 1, n, leaf_size)
    target = u * sum(q[c] for c in here)
    passed = 0
    for c in here:
        passed += q[c]
        if target < passed:
            return c
    return max(c for c in here if q[c] > 0)  # rounding has made u reach 1
