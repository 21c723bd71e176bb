"""A step of losses on draws with 27 labels an example against one: processor time.

``python tests/benchmarks/bench_several_labels.py`` prints a line each: 40,981 classes, d = 64, 64
examples, uniform draws. The least of many steps is taken, for other work makes a step slower only.
"""

import time

import numpy as np
from scipy import sparse

from samplesoft.losses import LOSSES, make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import UniformSampler

CLASSES, DIM, BATCH, LABELS = 40_981, 64, 64, 27


def labels_of(each, rng):
    ids = np.concatenate([rng.choice(CLASSES, each, replace=False) for _ in range(BATCH)])
    places = np.repeat(np.arange(BATCH), each), ids
    return sparse.csr_array((np.ones(len(ids)), places), shape=(BATCH, CLASSES))


def milliseconds(layer, h, labels, repeats):
    """Return the processor time of a step, forward and backward."""
    least = np.inf
    for seed in range(repeats):
        start = time.process_time()
        _, cache = layer.forward(h, labels, rng=seed)
        layer.backward(cache)
        if seed:  # the first may compile
            least = min(least, time.process_time() - start)
    return 1e3 * least


def main():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((CLASSES, DIM), np.float32)
    h = rng.standard_normal((BATCH, DIM), np.float32)
    several, one = labels_of(LABELS, rng), labels_of(1, rng)
    print(f"{'loss':26} {'draws':>14}  {LABELS} labels   one label   ratio")
    for name, spec in LOSSES.items():
        if not spec.several_labels or spec.on_tree:
            continue
        for m, shared in (
            ((1000, True), (100, False), (1000, False)) if spec.draws else ((0, True),)
        ):
            drawing = (UniformSampler(CLASSES), m) if spec.draws else ()
            options = {"shared": shared} if spec.draws else {}
            layer = SoftmaxLayer(rows, make_loss(name, normalize=True), *drawing, **options)
            took = [milliseconds(layer, h, y, 30 if spec.draws else 6) for y in (several, one)]
            draws = f"{m} {'for all' if shared else 'each'}" if m else "none"
            several_ms, one_ms = took
            times = f"{several_ms:7.2f} ms  {one_ms:7.2f} ms   {several_ms / one_ms:.2f}"
            print(f"{name:26} {draws:>14} {times}")


if __name__ == "__main__":
    main()
