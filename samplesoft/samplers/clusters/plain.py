"""The cluster sampler for one context at a time: to be read, not to be used.

Classes with similar vectors share a cell, and similar cells share a larger one. A draw goes from
the top to a cell, perhaps to a cell inside it, and then to a class. For five classes:

    cells at the top       {0, 1, 4}         {2, 3}        in proportion to the mass of the cell
    inside the first       0    1    4                     in proportion to exp(tau h . c)

The mass of a cell is the sum of exp(tau h . c) over its classes. It is estimated, because the exact
value takes all classes. Over the k classes of a cell the logits x = tau h . c have a mean and a
variance, and the cumulant series of log mean exp(x) begins with mean + variance / 2. (For normal
logits it ends there.) With the mean vector mu of the cell, and the variance s_i^2 of each entry of
the class vectors,

    mass = k exp(tau h . mu + tau^2 sum_i h_i^2 s_i^2 / 2)

which is one product with a vector of 2 d entries, whatever k is. The formula treats the entries of
the class vectors as uncorrelated. With the n classes in sqrt(n) cells, a draw takes 2 sqrt(n)
products; with more levels it takes fewer.

The estimate may be wrong, but the probability of a draw is known exactly: it is the product of the
probabilities on its path, and the loss corrects for it. Given its leaf, a class is drawn with its
softmax probability. So only the probabilities of cells differ from the softmax.

`samplesoft.samplers.clusters` computes the same for batches, and updates cells when class vectors
change. Functions compute with floats if `lib` is `math`, or with the number type of another module
that has the same functions.
"""

import math


def estimated_mass(h, vectors, cell, tau, lib=math):
    """Return the estimated mass of a cell of k classes: k exp(tau h . mu + tau^2 h^2 . s^2 / 2)."""
    k = len(cell)
    log_mass = 0

    for i in range(len(h)):
        column = [vectors[c][i] for c in cell]
        mean = lib.fsum(column) / k
        variance = lib.fsum((x - mean) ** 2 for x in column) / k
        log_mass += tau * h[i] * mean + (tau * h[i]) ** 2 * variance / 2

    return k * lib.exp(log_mass)


def class_mass(h, vectors, c, tau, lib=math):
    """Return the exact mass exp(tau h . c) of the class `c`."""
    return lib.exp(tau * lib.fsum(a * b for a, b in zip(h, vectors[c], strict=True)))


def cells_inside(cell, level):
    """Return the cells in the list `level` that lie inside `cell`."""
    return [other for other in level if set(other) <= set(cell)]


def class_probabilities(h, vectors, levels, tau, label=None, lib=math):
    """Return the probabilities (n,) of all classes; 0 for an excluded `label`.

    `levels` are lists of cells, from the top; a cell is a list of classes.
    """
    q = [0] * len(vectors)

    def remaining_fraction(cell, lower_levels):
        """Return the fraction of the estimated mass of `cell` that remains without the label.

        `lower_levels` are the levels below the cell.
        """
        if label not in cell:
            return 1

        if not lower_levels:
            masses = {c: class_mass(h, vectors, c, tau, lib) for c in cell}
            total = lib.fsum(masses.values())
            return lib.fsum(x for c, x in masses.items() if c != label) / total

        children = cells_inside(cell, lower_levels[0])
        masses = [estimated_mass(h, vectors, child, tau, lib) for child in children]
        remaining = [
            x * remaining_fraction(child, lower_levels[1:])
            for x, child in zip(masses, children, strict=True)
        ]
        return lib.fsum(remaining) / lib.fsum(masses)

    def descend(cell, lower_levels, reach_prob):
        """Distribute `reach_prob`, the probability of reaching `cell`, over its classes, in `q`."""
        if not lower_levels:
            masses = {c: class_mass(h, vectors, c, tau, lib) for c in cell if c != label}
            total = lib.fsum(masses.values())
            for c, x in masses.items():
                q[c] = reach_prob * x / total
            return

        children = cells_inside(cell, lower_levels[0])
        masses = []
        for child in children:
            estimate = estimated_mass(h, vectors, child, tau, lib)
            masses.append(estimate * remaining_fraction(child, lower_levels[1:]))

        total = lib.fsum(masses)
        for child, x in zip(children, masses, strict=True):
            # x is 0 if the label is the only class of the child
            if x:
                descend(child, lower_levels[1:], reach_prob * x / total)

    descend(list(range(len(vectors))), levels, 1)
    return q


def draw(u, h, vectors, levels, tau, lib=math):
    """Return the class that the uniform variate `u` in [0, 1) selects, by inversion.

    Given the chosen cell, `u` is uniform in the cell's interval. Rescaled to [0, 1), it selects
    among the children on the next level.
    """
    cell = list(range(len(vectors)))
    lower_levels = list(levels)
    while True:
        children = cells_inside(cell, lower_levels.pop(0)) if lower_levels else cell
        if isinstance(children[0], int):
            masses = [class_mass(h, vectors, c, tau, lib) for c in children]
        else:
            masses = [estimated_mass(h, vectors, child, tau, lib) for child in children]

        total = lib.fsum(masses)
        cumulative = 0
        for child, x in zip(children, masses, strict=True):
            probability = x / total
            if u < cumulative + probability or child is children[-1]:
                u = (u - cumulative) / probability
                cell = child
                break
            cumulative += probability

        if isinstance(cell, int):
            return cell
