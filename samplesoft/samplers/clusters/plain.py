"""How a cluster sampler draws, one context at a time: to be read, not to be used.

Classes whose vectors are near each other share a cell, and cells that are near share a larger one.
A draw goes from the top to a cell, perhaps to a cell inside, and there to a class. Five classes:

    cells at the top       {0, 1, 4}         {2, 3}        by how much mass exp(tau h . c) each has
    in the first           0    1    4                     by exp(tau h . c) itself

The mass of a cell is not known without all its classes, so it is estimated. Over the k classes of a
cell the logits x = tau h . c have a mean and a variance, and the cumulant series of log mean exp(x)
begins with mean + variance / 2. (It ends there if logits are normal.) With the mean vector mu of
the cell, and the variance s_i^2 of each entry of the class vectors,

    mass = k exp(tau h . mu + tau^2 sum_i h_i^2 s_i^2 / 2)

which is one product with a vector of 2 d numbers, whatever k. Entries are taken as uncorrelated.
With classes in sqrt(n) cells a draw takes 2 sqrt(n) products; with more levels, fewer.

The estimate may be wrong: a draw has the probability that the shares on its way multiply to, and
that is what it is corrected by. Within a cell shares are those of the softmax. Only the cells are
chosen too often or too rarely.

`samplesoft.samplers.clusters` computes the same for batches, and keeps cells up to date when class
vectors change. Numbers may be floats, with `lib=math`, or those of a module with the same names.
"""

import math


def estimated_mass(h, vectors, cell, tau, lib=math):
    """Return k exp(tau h . mu + tau^2 h^2 . s^2 / 2) for the k classes of a cell."""
    k = len(cell)
    log_mass = 0
    for i in range(len(h)):
        column = [vectors[c][i] for c in cell]
        mean = lib.fsum(column) / k
        variance = lib.fsum((x - mean) ** 2 for x in column) / k
        log_mass += tau * h[i] * mean + (tau * h[i]) ** 2 * variance / 2
    return k * lib.exp(log_mass)


def class_mass(h, vectors, c, tau, lib=math):
    """Return exp(tau h . c) of a class."""
    return lib.exp(tau * lib.fsum(a * b for a, b in zip(h, vectors[c], strict=True)))


def inside(cell, level):
    """Return the cells of a level that are parts of a cell."""
    return [other for other in level if set(other) <= set(cell)]


def class_probabilities(h, vectors, levels, tau, label=None, lib=math):
    """Return the probabilities (n,) of all classes; 0 of the `label`, if one is left out.

    `levels` are lists of cells, from the top, and a cell is a list of classes.
    """
    q = [0] * len(vectors)

    def kept(cell, below):
        """Return what part of the mass of a cell is left without the label, as estimated."""
        if label not in cell:
            return 1
        if not below:
            masses = {c: class_mass(h, vectors, c, tau, lib) for c in cell}
            whole = lib.fsum(masses.values())
            return lib.fsum(x for c, x in masses.items() if c != label) / whole
        parts = inside(cell, below[0])
        masses = [estimated_mass(h, vectors, part, tau, lib) for part in parts]
        left = [x * kept(part, below[1:]) for x, part in zip(masses, parts, strict=True)]
        return lib.fsum(left) / lib.fsum(masses)

    def descend(cell, below, reached):
        """Share out the probability with which a cell is reached."""
        if not below:
            masses = {c: class_mass(h, vectors, c, tau, lib) for c in cell if c != label}
            total = lib.fsum(masses.values())
            for c, x in masses.items():
                q[c] = reached * x / total
            return
        parts = inside(cell, below[0])
        masses = []
        for part in parts:
            estimate = estimated_mass(h, vectors, part, tau, lib)
            masses.append(estimate * kept(part, below[1:]))
        total = lib.fsum(masses)
        for part, x in zip(parts, masses, strict=True):
            if x:  # a cell of the label alone has nothing left
                descend(part, below[1:], reached * x / total)

    descend(list(range(len(vectors))), levels, 1)
    return q


def draw(u, h, vectors, levels, tau, lib=math):
    """Return the class to which one uniform number `u` in [0, 1) leads, through the cells.

    What is left of u in the share that it falls into is uniform again, and serves the next level.
    """
    cell = list(range(len(vectors)))
    below = list(levels)
    while True:
        parts = inside(cell, below.pop(0)) if below else cell
        if isinstance(parts[0], int):
            masses = [class_mass(h, vectors, c, tau, lib) for c in parts]
        else:
            masses = [estimated_mass(h, vectors, part, tau, lib) for part in parts]
        total = lib.fsum(masses)
        passed = 0
        for part, x in zip(parts, masses, strict=True):
            share = x / total
            if u < passed + share or part is parts[-1]:
                u = (u - passed) / share
                cell = part
                break
            passed += share
        if isinstance(cell, int):
            return cell
