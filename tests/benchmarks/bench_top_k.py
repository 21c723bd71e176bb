"""Time of the best 5 of 10**6 classes for sparse texts, against the matrix product alone.

``python tests/benchmarks/bench_top_k.py`` prints a line for each batch: milliseconds an example of
`predict_topk` and of the product (B, 64) x (64, 10**6) in blocks of classes, into an array that
stays in the cache; of each the least of some interleaved runs. Processor time, of all threads, says
what other work on the machine does to it. Memory is the peak of NumPy's arrays.

On two cores of an AMD EPYC that other work shared (NUMBA_NUM_THREADS=2, OPENBLAS_NUM_THREADS=2),
milliseconds on the clock, and of the processor:

=====================  =====  ==========  ==========  ==========
vectors                batch  lists       product     memory, MB
=====================  =====  ==========  ==========  ==========
divided by norms           1  57 (52)     23 (15)     0.2
divided by norms         256  1.9 (2.2)   1.9 (2.6)   0.4
divided by norms        1024  1.6 (2.1)   2.1 (2.5)   1.4
as they are                1  17 (17)     13 (13)     0.2
as they are              256  2.0 (2.1)   2.8 (2.7)   0.3
as they are             1024  1.9 (1.9)   2.2 (2.2)   1.0
=====================  =====  ==========  ==========  ==========
"""

import argparse
import time
import tracemalloc

import numpy as np
from scipy import sparse

from samplesoft.sklearn import SampledSoftmaxClassifier

CLASSES, FEATURES, WORDS = 1_000_000, 100_000, 50
BLOCK = 4096  # classes of a product


def texts(batch, rng):
    """Return inputs (B, v) of some words each."""
    columns = rng.integers(0, FEATURES, (batch, WORDS))
    values = rng.random(columns.size, dtype=np.float32)
    starts = np.arange(batch + 1) * WORDS
    return sparse.csr_array((values, columns.ravel(), starts), (batch, FEATURES))


def model(normalize):
    """Return a classifier with the parameters that it begins with."""
    classifier = SampledSoftmaxClassifier(normalize=normalize, sampler="uniform", random_state=0)
    one = texts(1, np.random.default_rng(0))
    return classifier.partial_fit(one, [0], classes=np.arange(CLASSES))


def seconds(work):
    """Return time on the clock and of the processor."""
    start = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - start[0], time.process_time() - start[1]])


def measure(classifier, batch, runs):
    """Return the least times (2,) of lists and of products, and the peak memory of lists."""
    rng = np.random.default_rng(1)
    X = texts(batch, rng)
    rows = classifier.model_.parameters["softmax.class_embeddings"]
    h = classifier.model_.embed(X)
    scores = np.empty((BLOCK, batch), np.float32)

    def product():
        for first in range(0, CLASSES, BLOCK):
            part = rows[first : first + BLOCK]
            np.matmul(part, h.T, out=scores[: len(part)])

    def lists():
        classifier.predict_topk(X, k=5)

    lists()
    times = np.array([[seconds(lists), seconds(product)] for _ in range(runs)])
    tracemalloc.start()
    lists()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return *times.min(axis=0), peak


def main():
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    rows = np.ones((CLASSES, 64), np.float32)
    read = np.array([seconds(rows.max) for _ in range(options.runs)]).min(axis=0)
    print(f"to read the vectors once takes {1e3 * read[0]:.2f} ms on the clock of one thread")
    print(
        "vectors        batch  ms an example (processor)  product (processor)  ratio  of reading  "
        "memory, MB"
    )
    for normalize in (True, False):
        classifier = model(normalize)
        for batch in (1, 2, 4, 8, 256, 1024):
            ours, products, peak = measure(classifier, batch, options.runs)
            (clock, cpu), (least, least_cpu) = (1e3 / batch * t for t in (ours, products))
            print(
                f"{'of norm 1' if normalize else 'as they are':13} {batch:6} {clock:14.2f} "
                f"({cpu:9.2f}) {least:11.2f} ({least_cpu:7.2f}) {clock / least:6.2f} "
                f"{clock * batch / read[0] / 1e3:10.2f} {peak / 1e6:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
