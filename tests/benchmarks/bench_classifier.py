"""Steps of the classifier: in compiled calls, and with 10,000 classes and with a million.

``python tests/benchmarks/bench_classifier.py`` prints the time of a step of `fit` with one set of
draws for a batch, many steps in a call, as a ratio to its three products of matrices alone and to
the same steps one by one; then the median time of ``partial_fit`` on 64 sparse examples with draws
by clusters, as a ratio of 10,000 classes and a million, and the memory of the model with its cells
against that of the class vectors. pytest does not collect this file.
"""

from time import perf_counter

import numpy as np
from scipy import sparse

from samplesoft._memory import human_bytes
from samplesoft.models import LinearSoftmaxSettings
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers import make_optimizer
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training.fused import take_steps

BATCH, INPUTS = 64, 100_000


def step_time(num_classes, repeats=60):
    """Return the median seconds of a step, and the fitted classifier."""
    rng = np.random.default_rng(0)
    options = {"density": 50 / INPUTS, "format": "csr", "dtype": np.float32, "random_state": rng}
    batches = [
        (sparse.random_array((BATCH, INPUTS), **options), rng.integers(0, num_classes, BATCH))
        for _ in range(repeats)
    ]
    clf = SampledSoftmaxClassifier(sampler="clusters", random_state=0)
    clf.partial_fit(*batches[0], classes=np.arange(num_classes))
    times = []
    for X, y in batches[1:]:
        start = perf_counter()
        clf.partial_fit(X, y)
        times.append(perf_counter() - start)
    return np.median(times), clf


def least(work, repeats=5):
    """Return the least seconds of some calls."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def compiled_steps(dim, num_sampled, batch, steps=50, num_classes=30_000, words=8):
    """Print the time of a step of a compiled call, beside what it is made of."""
    rng = np.random.default_rng(0)
    size = batch * steps
    example_ids = np.arange(0, size * words + 1, words)
    columns = np.minimum(rng.zipf(1.2, size * words) - 1, INPUTS - 1)
    x = sparse.csr_array((np.ones(size * words, np.float32), columns, example_ids), (size, INPUTS))
    x.sum_duplicates()
    y = np.minimum(rng.zipf(1.2, size) - 1, num_classes - 1)
    settings = LinearSoftmaxSettings(sampler="unigram", num_sampled=num_sampled, embedding_dim=dim)
    counts = np.bincount(y, minlength=num_classes) + 1.0
    model = LinearSoftmax(INPUTS, num_classes, settings, counts=counts, rng=0)
    optimizer, weights = make_optimizer("adagrad", 0.1), np.ones(size)
    call = least(lambda: take_steps(model, optimizer, x, y, weights, batch, (0, 0))) / steps
    h, c = rng.random((batch, dim), np.float32), rng.random((num_sampled, dim), np.float32)
    d = h @ c.T
    products = least(lambda: (h @ c.T, d @ c, d.T @ h), 50)

    def one_by_one():
        for first in range(0, size, batch):
            part = slice(first, first + batch)
            _, gradients = model.step(x[part], y[part], rng=first)
            optimizer.step(model.parameters, gradients)
            model.after_step(gradients)

    alone = least(one_by_one, 3) / steps
    print(
        f"d = {dim}, {num_sampled:,} draws, batch {batch}: {1e6 * call:6.0f} us a step in a call, "
        f"{call / products:.2f} times its products, {alone / call:.2f} times as quick as one by one"
    )


def main():
    for shape in ((64, 100, 64), (128, 100, 128), (128, 1000, 128), (256, 1000, 256)):
        compiled_steps(*shape)
    times = []
    for n in (10**4, 10**5, 10**6):
        seconds, clf = step_time(n)
        times.append(seconds)
        vectors = clf.model_.parameters["softmax.class_embeddings"].nbytes
        cells = clf.model_.softmax.sampler.nbytes
        state = sum(a.nbytes for k, a in clf._learner.optimizer.state().items() if "class_emb" in k)
        print(
            f"n = {n:>9,}: {1e3 * seconds:6.2f} ms a step, {seconds / times[0]:.2f} times 10,000 "
            f"classes; vectors {human_bytes(vectors)}, with cells "
            f"{(vectors + cells) / vectors:.2f} times that, with the optimizer's state "
            f"{(vectors + cells + state) / vectors:.2f}"
        )


if __name__ == "__main__":
    main()
