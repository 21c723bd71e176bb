"""Sampled softmax from nothing but NumPy: the whole idea in one file, to be read from the top.

A model has to say which of n words comes next. It gives each word j a score o_j, and the softmax
makes probabilities of them: p_j = exp(o_j) / Z, where Z is the sum of exp(o) over all n words. The
word that came is the label t, and the loss is -log p_t. Every step of training needs Z. Sampled
softmax draws a few words instead, and lets them stand for all. How wrong is the loss then? One
integral says so without simulation, and the end of this file computes it.

Run it with `python sampled_softmax.py`. It takes less than a minute.
"""

import re
import sysconfig
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)

# 1. Data: which name follows which in the standard library of Python. -----------------------------

library = Path(sysconfig.get_paths()["stdlib"])
files = sorted(library.glob("*.py"))
text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
names = re.findall(r"[A-Za-z_]\w+", text)

every, places, how_often = np.unique(names, return_inverse=True, return_counts=True)
order = np.argsort(-how_often, kind="stable")  # the most frequent word is number 0
rank = np.argsort(order)  # the number of each word
n = min(4000, len(every))
words = np.minimum(rank[places], n - 1)  # all rare words are one, the last

contexts, labels = words[:-1], words[1:]
held_out = rng.random(len(labels)) < 0.02
train = np.flatnonzero(~held_out)[:400_000]
test = rng.permutation(np.flatnonzero(held_out))[:2000]
print(f"{len(train):,} pairs of {n:,} words")

# 2. The proposal: how draws are made. -------------------------------------------------------------
# Any distribution q will do that gives every word a chance, and the nearer it is to p, the less the
# draws leave to luck. Frequencies cost nothing. A power below 1 draws rare words more often.

counts = np.bincount(labels[train], minlength=n) + 1.0  # no count is 0
by_counts = counts**0.75 / np.sum(counts**0.75)

# 3. The model: a word has a vector h as a context, and one as a class; a score is their product. --

dim = 32
context_vectors = 0.1 * rng.standard_normal((n, dim))
class_vectors = np.zeros((n, dim))


def full_loss(h, label):
    """Return the softmax loss: -log p_t = log(sum of exp(o_j)) - o_t, over all n words."""
    o = class_vectors @ h
    top = o.max()  # exp(o - top) cannot overflow
    return top + np.log(np.exp(o - top).sum()) - o[label]


# 4. The sampled loss and its gradient, by hand. ---------------------------------------------------
#
# Draw m words from q, independently. A word j is among them m q_j times on average, so the sum of
# exp(o_j) / (m q_j) over the draws is Z on average. As exp(o) / (m q) is exp(o - log(m q)), that is
# a correction of the score:
#
#     loss = log(exp(o_t) + sum over draws of exp(o_j - log(m q_j))) - o_t
#
# The label's own term was added by hand. A draw of it (an accidental hit) would count it twice, and
# is left out: then the draws sum to Z - exp(o_t) on average, and all together to Z. The derivative
# of the loss with respect to a score is the share of its term in the sum, minus 1 for the label. A
# step computes m + 1 scores of an example and not n: the first saving. B examples share m draws.


def sampled_loss(h, label, ids, q):
    """Return losses (B,), gradients in h (B, d), the rows touched (B + m,) and their gradients."""
    own = np.sum(h * class_vectors[label], axis=1)
    drawn = h @ class_vectors[ids].T - np.log(len(ids) * q[ids])
    drawn[label[:, None] == ids] = -np.inf
    top = np.maximum(own, drawn.max(axis=1))
    masses = np.exp(drawn - top[:, None])
    own_mass = np.exp(own - top)
    total = own_mass + masses.sum(axis=1)
    losses = top + np.log(total) - own
    d_own = own_mass / total - 1.0
    d_drawn = masses / total[:, None]
    d_h = d_own[:, None] * class_vectors[label] + d_drawn @ class_vectors[ids]
    rows = np.concatenate([label, ids])
    d_rows = np.concatenate([d_own[:, None] * h, d_drawn.T @ h])
    return losses, d_h, rows, d_rows


# 5. AdaGrad, on the rows that a step has touched and on no others: the second saving. -------------
# It divides the step of each entry by the root of the sum of its squared gradients so far.

rate = 0.2
squares = {"context": np.full((n, dim), 1e-6), "class": np.full((n, dim), 1e-6)}


def step(vectors, kind, rows, gradients):
    """Move the rows against their gradients, each entry by its own rate."""
    rows, inverse = np.unique(rows, return_inverse=True)
    total = np.zeros((len(rows), dim))
    np.add.at(total, inverse, gradients)  # a row that came twice has both gradients
    squares[kind][rows] += total**2
    vectors[rows] -= rate * total / np.sqrt(squares[kind][rows])


# 6. Training. -------------------------------------------------------------------------------------

batch, m = 128, 64
before = np.mean([full_loss(context_vectors[contexts[i]], labels[i]) for i in test])
for _ in range(0, len(train), batch):  # as many examples as there are, drawn with replacement
    chosen = rng.choice(train, batch)
    ids = rng.choice(n, m, p=by_counts)  # looks at all n; an alias table would not
    h = context_vectors[contexts[chosen]]
    losses, d_h, rows, d_rows = sampled_loss(h, labels[chosen], ids, by_counts)
    step(class_vectors, "class", rows, d_rows / batch)
    step(context_vectors, "context", contexts[chosen], d_h / batch)
after = np.mean([full_loss(context_vectors[contexts[i]], labels[i]) for i in test])
frequency = -np.log(counts / counts.sum())[labels[test]].mean()
print(f"full softmax loss of held-out words: {before:.3f} nats before, {after:.3f} after training;")
print(f"{frequency:.3f} by the frequencies of words alone")

# 7. What the draws cost: the exact bias. ----------------------------------------------------------
#
# Let S be the sum in the logarithm above. Its mean is Z, but that of log S is less than log Z, for
# the logarithm is concave. How much less? For every s > 0 (both sides are 0 at s = 1, and have the
# derivative 1 / s)
#
#     log s = integral over u > 0 of (exp(-u) - exp(-u s)) / u,
#
# so the mean of exp(-u S) is all we need. With r_j = exp(o_j) / q_j, and r_t = 0 for a hit, S is
# exp(o_t) + the sum of r_j / m over m independent draws, and the means of factors multiply:
#
#     mean of exp(-u S) = exp(-u exp(o_t)) T(u)^m,    T(u) = sum over j of q_j exp(-u r_j / m)
#
# The gradient is p'_j, the share of word j in S (minus 1 for the label); 1 / S is the integral of
# exp(-u S). Any of m draws may be j: m q_j r_j / m = exp(o_j), and its factor is exp(-u r_j / m):
#
#     mean of p'_j = integral of exp(o_j) exp(-u exp(o_t)) exp(-u r_j / m) T(u)^(m - 1),    j not t
#     mean of p'_t = integral of exp(o_t) exp(-u exp(o_t)) T(u)^m


def exact_bias(o, label, q, m):
    """Return the mean of the loss minus the full loss, and the mean of p' minus p (n,)."""
    e = np.exp(o - o.max())
    e = e / e.sum()  # Z is 1, log Z is 0, and o_t cancels in the bias
    r = np.where(np.arange(n) == label, 0.0, e / q)
    width = 0.05  # in log u, from u S below 2 exp(-40) to u exp(o_t) above exp(5)
    log_u = np.arange(-40.0 - np.log(max(1.0, r.max())), 5.0 - np.log(e[label]), width)
    loss, of_base, of_draws = 0.0, 0.0, np.zeros(n)
    for u in np.exp(log_u):  # du = u d(log u)
        decay = np.exp(-u * r / m)
        transform = q @ decay
        rest = np.exp(-u * e[label]) * transform ** (m - 1)
        loss += width * (np.exp(-u) - rest * transform)
        of_base += width * u * rest * transform
        of_draws += width * u * rest * decay
    mean_p = e * of_draws
    mean_p[label] = e[label] * of_base
    return loss, mean_p - e


def by_simulation(o, label, q, m, times=4000):
    """Return the mean of the loss minus the full loss over draws, and its standard error."""
    ids = rng.choice(n, (times, m), p=q)
    drawn = np.where(ids == label, 0.0, np.exp(o[ids]) / q[ids])
    losses = np.log(np.exp(o[label]) + drawn.mean(axis=1)) - np.log(np.exp(o).sum())
    return losses.mean(), losses.std() / np.sqrt(times)


table = []
print("\nbias of the loss, and of the gradient (sum of |mean p' - p|), over 8 held-out words")
print(f"{'draws by':>9} {'m':>4} {'exact':>9} {'simulated':>20} {'exact x m':>10} {'gradient':>9}")
for name, q in (("uniform", np.full(n, 1.0 / n)), ("counts", by_counts)):  # to the power 0.75
    for m in (5, 50, 500):
        found = []
        for i in test[:8]:
            o = class_vectors @ context_vectors[contexts[i]]
            loss, gradient = exact_bias(o, labels[i], q, m)
            found.append([loss, np.abs(gradient).sum(), *by_simulation(o, labels[i], q, m)])
        loss, gradient, simulated, _ = np.mean(found, axis=0)
        error = np.linalg.norm([one[3] for one in found]) / len(found)
        table.append((name, m, loss, gradient, simulated, error))
        print(f"{name:>9} {m:>4} {loss:>9.4f} {simulated:>10.4f} +- {error:.4f}", end="")
        print(f" {loss * m:>10.3f} {gradient:>9.4f}")
print("At m far above these the bias falls as 1 / m; here bias x m still grows in size.")

try:
    import matplotlib.pyplot as plt
except ImportError:
    raise SystemExit from None
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for name, colour in (("uniform", "C1"), ("counts", "C0")):
    _, m, loss, _, simulated, error = zip(*(row for row in table if row[0] == name), strict=True)
    axes.loglog(m, np.negative(loss), color=colour, label=f"draws by {name}, exact")
    axes.errorbar(m, np.negative(simulated), 2 * np.array(error), fmt="o", color=colour)
axes.set(xlabel="draws m", ylabel="loss is too low by (nats)", title="Points are simulations")
axes.legend()
figure.savefig("sampled_softmax.png", dpi=150)
