"""A step of the classifier with 10,000 classes and with a million: time and memory.

``python tests/benchmarks/bench_classifier.py`` prints the median time of ``partial_fit`` on 64
sparse examples with draws by clusters, as a ratio of both, and the memory of the model with
its cells against that of the class vectors. pytest does not collect this file.
"""

from time import perf_counter

import numpy as np
from scipy import sparse

from samplesoft._memory import human_bytes
from samplesoft.sklearn import SampledSoftmaxClassifier

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


def main():
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
