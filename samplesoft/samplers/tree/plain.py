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
(For clarity, this file sums kernels instead of features.) The numerator on each level is the
denominator on the next level and cancels, so that the product of the branch probabilities on the
path to c is K(h, c) / sum of K(h, .). See Blanc and Rendle (2018), "Adaptive sampled softmax with
kernel based sampling", section 3.2, and Rawat et al. (2019), "Sampled softmax with random Fourier
features".

With random features a kernel may be negative, but a probability may not. The mass of a half is
therefore its sum of kernels, or a floor > 0 times its number of classes if that is larger. The
probability of a branch is the mass of its half divided by the sum of the masses of both halves.
Probabilities are then not exactly proportional to K. They still add up to 1 at every node, so that
their product is the exact probability of the draw, which a loss corrects for.

`samplesoft.samplers.tree` computes the same for many contexts at a time, on all cores or a GPU. The
sums of both halves of each node would take 2 (L - 1) rows for L leaves. It stores only L rows. Row
0 holds the total. Every leaf but the first is the first leaf of the right half of exactly one node;
the row of the leaf holds the sum of the left half of this node minus the sum of the right half. In
the tree above, leaves 0, 1 and 2 hold the classes 0 1, 2 3 and 4:

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
Node = tuple[int, int, int]  # the halves have leaves [start, middle) and [middle, stop)


def inner_product(x: Sequence[Number], y: Sequence[Number]) -> Number:
    """Return the inner product of two vectors."""
    return sum(a * b for a, b in zip(x, y, strict=True))


# the shape of the tree ---------------------------------------------------------------------------


def num_leaves(num_classes: int, leaf_size: int) -> int:
    """Return the number of leaves; the last leaf may hold fewer classes."""
    return (num_classes + leaf_size - 1) // leaf_size


def num_left_leaves(leaves: int) -> int:
    """Return the number of leaves in the left half of a node: the largest power of 2 < `leaves`."""
    left = 1
    while 2 * left < leaves:
        left *= 2
    return left


def nodes(leaves: int, first: int = 0) -> Iterator[Node]:
    """Yield the nodes with two halves above leaves [first, first + leaves), parents first."""
    if leaves == 1:
        return
    left = num_left_leaves(leaves)
    yield first, first + left, first + leaves
    yield from nodes(left, first)
    yield from nodes(leaves - left, first + left)


def classes_in_leaves(start: int, stop: int, num_classes: int, leaf_size: int) -> range:
    """Return the classes of the leaves [start, stop)."""
    return range(start * leaf_size, min(stop * leaf_size, num_classes))


def node_sums(features: Sequence[Sequence[Number]], leaf_size: int) -> dict[tuple[int, int], Any]:
    """Return the sums of the features (n, D) over the classes of each half of each node.

    The key (start, stop) of a half says that it has the leaves [start, stop).
    """
    n = len(features)
    sums = {}
    for start, middle, stop in nodes(num_leaves(n, leaf_size)):
        for half in ((start, middle), (middle, stop)):
            rows = [features[c] for c in classes_in_leaves(*half, n, leaf_size)]
            sums[half] = [sum(column) for column in zip(*rows, strict=True)]
    return sums


# probabilities -----------------------------------------------------------------------------------


def clipped_mass(kernel_sum: Number, num_classes: int, floor: Number) -> Number:
    """Return the mass of a half: its sum of kernels, clipped from below at floor * num_classes."""
    return max(kernel_sum, floor * num_classes)


def class_probabilities(
    kernel: Sequence[Number], weights: Sequence[Number], leaf_size: int, floor: Number
) -> list[Number]:
    """Return the probabilities (n,) of all classes for one context.

    `kernel` (n,) holds K(h, c) for each class c. In a leaf, classes are drawn in proportion to
    `weights` (n,): the clipped kernel, or other positive weights that are cheap for the few classes
    of a leaf, such as exp(tau h . c). Probabilities are then not proportional to K.
    """
    n = len(kernel)
    q = [kernel[0]] * n  # placeholders of the number type in use

    def descend(first: int, leaves: int, reach_prob: Number) -> None:
        if leaves == 1:
            classes = classes_in_leaves(first, first + 1, n, leaf_size)
            total = sum(weights[c] for c in classes)
            for c in classes:
                q[c] = reach_prob * weights[c] / total
            return

        left = num_left_leaves(leaves)
        halves = (first, left), (first + left, leaves - left)
        masses = []
        for start, size in halves:
            classes = classes_in_leaves(start, start + size, n, leaf_size)
            masses.append(clipped_mass(sum(kernel[c] for c in classes), len(classes), floor))
        for (start, size), half_mass in zip(halves, masses, strict=True):
            descend(start, size, reach_prob * half_mass / sum(masses))

    descend(0, num_leaves(n, leaf_size), 1)
    return q


def leaf_weights(kind, kernel, logits, scale, floor, exp):
    """Return the weights (n,) of all classes in their leaves.

    They are computed from `kernel` (n,) if `kind` is "kernel", otherwise from `logits` (n,), the
    inner products h . c. `scale` is alpha for "quadratic" and tau for "softmax".
    """
    if kind == "kernel":
        return [clipped_mass(value, 1, floor) for value in kernel]
    if kind == "quadratic":  # alpha x^2 + 1: Blanc and Rendle (2018), section 3.3
        return [scale * x * x + 1 for x in logits]
    return [exp(scale * x) for x in logits]  # "softmax": exp(tau x)


def probabilities_without(q: Sequence[Number], label: int) -> list[Number]:
    """Return the probabilities (n,) given that `label` is not drawn: q_j / (1 - q_label).

    A tree need not be rebuilt for this. Let `both` be the probability of a node that contains the
    label, and `left` the probability of its left half. The branch probability left / both becomes
    (left - q_label) / (both - q_label) if the label is in the left half, and
    left / (both - q_label) if it is in the right half. In its leaf the label has weight 0. All
    other branch probabilities stay the same.
    """
    others = [0 * x if c == label else x for c, x in enumerate(q)]  # a 0 of the same type
    remaining = sum(others)  # not 1 - q_label, which loses digits near 0
    return [x / remaining for x in others]


def left_probabilities(q: Sequence[Number], leaf_size: int) -> list[Number]:
    """Return the probability of the left branch at each of `nodes`, for class probabilities q."""
    probabilities = []
    for start, middle, stop in nodes(num_leaves(len(q), leaf_size)):
        left = sum(q[c] for c in classes_in_leaves(start, middle, len(q), leaf_size))
        both = sum(q[c] for c in classes_in_leaves(start, stop, len(q), leaf_size))
        probabilities.append(left / both)
    return probabilities


def draw(u: Number, q: Sequence[Number], leaf_size: int) -> int:
    """Return the class that the uniform variate `u` in [0, 1) selects.

    Let p be the probability of the left branch. If u < p, the draw goes left, and u / p is again
    uniform on [0, 1). Otherwise it goes right, and (u - p) / (1 - p) is uniform. So one variate
    is enough for all levels. The result is the first class c with q_0 + ... + q_c > u, for any
    tree. (Branch probabilities from the masses of the tree are equal to these from `q` (n,).)
    """
    n = len(q)
    first = 0
    leaves = num_leaves(n, leaf_size)

    while leaves > 1:
        left_size = num_left_leaves(leaves)
        left = sum(q[c] for c in classes_in_leaves(first, first + left_size, n, leaf_size))
        both = sum(q[c] for c in classes_in_leaves(first, first + leaves, n, leaf_size))
        left_probability = left / both
        if u < left_probability or left_probability == 1:
            u /= left_probability
            leaves = left_size
        else:
            u = (u - left_probability) / (1 - left_probability)
            first += left_size
            leaves -= left_size

    classes = classes_in_leaves(first, first + 1, n, leaf_size)
    target = u * sum(q[c] for c in classes)
    cumulative = 0
    for c in classes:
        cumulative += q[c]
        if target < cumulative:
            return c
    return max(c for c in classes if q[c] > 0)  # reached only if rounding has raised u to 1
