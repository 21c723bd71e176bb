"""A sampled softmax step, forward, backward and sparse update, against NumPy, TensorFlow and torch.

The work: n classes, d = 64, a batch of 128, m shared negatives, uniform or of Zipf's law, plain SGD
on the rows that have a gradient. NumPy does it in 25 lines, which check nothing. Peers that are not
installed are left out. Calls are those that cProfile counts, of Python's and of C's functions::

    python tests/benchmarks/bench_sampled_step.py
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import LogUniformSampler, Sampler, UniformSampler

DIM, BATCH, RATE = 64, 128, 0.1
ROUNDS, STEPS = 9, 100

Step = Callable[[], object]


def ours(n: int, m: int, h: np.ndarray, labels: np.ndarray, make: Callable[[int], Sampler]) -> Step:
    """The softmax layer of this library."""
    rows = np.random.default_rng(1).standard_normal((n, DIM), np.float32) / 8
    loss = SampledSoftmaxLoss(scheme="masked")
    layer = SoftmaxLayer(rows, loss, make(n), m, shared=True)
    optimizer = make_optimizer("sgd", RATE)
    seed = iter(range(10**9))

    def step() -> object:
        _, cache = layer.forward(h, labels, rng=next(seed))
        dh, gradients = layer.backward(cache)
        optimizer.step(layer.parameters, gradients)
        layer.update(gradients["class_embeddings"].ids)
        return dh

    return step


def numpy_step(n: int, m: int, h: np.ndarray, labels: np.ndarray) -> Step:
    """The same in plain NumPy: duplicate classes are added up, before the rows change."""
    rows = np.random.default_rng(1).standard_normal((n, DIM), np.float32) / 8
    rng, correction = np.random.default_rng(0), np.float32(np.log(m / n))

    def step() -> object:
        drawn = rng.integers(0, n, m)
        own_rows, drawn_rows = rows[labels], rows[drawn]
        logits = np.empty((BATCH, 1 + m), np.float32)
        np.einsum("bd,bd->b", h, own_rows, out=logits[:, 0])
        logits[:, 1:] = h @ drawn_rows.T - correction
        logits[:, 1:][labels[:, None] == drawn] = -np.inf
        logits -= logits.max(axis=1, keepdims=True)
        own = logits[:, 0].copy()
        np.exp(logits, out=logits)
        sums = logits.sum(axis=1, keepdims=True)
        loss = float(np.mean(np.log(sums[:, 0]) - own))
        logits /= sums
        logits[:, 0] -= 1
        logits /= BATCH
        dh = logits[:, :1] * own_rows + logits[:, 1:] @ drawn_rows
        classes, places = np.unique(np.concatenate([labels, drawn]), return_inverse=True)
        gradient = np.zeros((len(classes), DIM), np.float32)
        np.add.at(gradient, places[:BATCH], logits[:, :1] * h)
        np.add.at(gradient, places[BATCH:], logits[:, 1:].T @ h)
        rows[classes] -= np.float32(RATE) * gradient
        return loss, dh

    return step


def torch_step(n: int, m: int, h: np.ndarray, labels: np.ndarray) -> Step:
    """The same in torch, with sparse gradients of an embedding."""
    import torch

    rows = torch.nn.Embedding(n, DIM, sparse=True)
    torch.nn.init.normal_(rows.weight, std=1 / 8)
    optimizer = torch.optim.SGD(rows.parameters(), lr=RATE)
    contexts = torch.tensor(h, requires_grad=True)
    targets = torch.tensor(labels)
    correction = float(np.log(m / n))

    def step() -> object:
        drawn = torch.randint(n, (m,))
        own = (contexts * rows(targets)).sum(1, keepdim=True)
        scores = contexts @ rows(drawn).T - correction
        scores = scores.masked_fill(targets[:, None] == drawn, -torch.inf)
        logits = torch.cat([own, scores], 1)
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long))
        optimizer.zero_grad()
        contexts.grad = None
        loss.backward()
        optimizer.step()
        return contexts.grad

    return step


def tensorflow_step(n: int, m: int, h: np.ndarray, labels: np.ndarray) -> Step:
    """``tf.nn.sampled_softmax_loss`` in a ``tf.function``, the rows updated by scatter."""
    import tensorflow as tf

    rows = tf.Variable(tf.random.normal((n, DIM), stddev=1 / 8))
    biases = tf.zeros(n)
    contexts, targets = tf.constant(h), tf.constant(labels[:, None])

    @tf.function
    def step() -> object:
        drawn = tf.random.uniform_candidate_sampler(targets, 1, m, False, n)
        with tf.GradientTape() as tape:
            tape.watch(contexts)
            losses = tf.nn.sampled_softmax_loss(
                rows, biases, targets, contexts, m, n, sampled_values=drawn
            )
            loss = tf.reduce_mean(losses)
        d_rows, dh = tape.gradient(loss, [rows, contexts])
        rows.scatter_sub(tf.IndexedSlices(RATE * d_rows.values, d_rows.indices))
        return dh

    return step


def microseconds(step: Step) -> float:
    """Return the time of a step in a run of many."""
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return 1e6 * (time.perf_counter() - start) / STEPS


def num_calls(step: Step) -> int:
    """Return how many functions of Python and of C a step calls."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    step()
    sys.setprofile(None)
    return counted - 2  # the step itself, and the end of counting


def main() -> None:
    """Print a table of medians over rounds in which the contestants take turns."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rng = np.random.default_rng(0)
    print(f"{'n':>8} {'m':>5}  contestant   us a step  times ours   calls")
    for n, m in ((100_000, 100), (500_000, 1000)):
        h = rng.standard_normal((BATCH, DIM), np.float32)
        labels = rng.integers(0, n, BATCH)
        steps = {}
        for name, make in (
            ("samplesoft", partial(ours, make=UniformSampler)),
            ("log-uniform", partial(ours, make=LogUniformSampler)),
            ("numpy", numpy_step),
            ("torch", torch_step),
            ("tensorflow", tensorflow_step),
        ):
            try:
                steps[name] = make(n, m, h, labels)
            except ImportError:
                print(f"{name} is not installed")
        times: dict[str, list[float]] = {name: [] for name in steps}
        for round_ in range(ROUNDS + 1):
            for name, step in steps.items():
                took = microseconds(step)
                if round_:  # the first warms up
                    times[name].append(took)
        medians = {name: float(np.median(values)) for name, values in times.items()}
        for name, took in medians.items():
            ratio, calls = took / medians["samplesoft"], num_calls(steps[name])
            print(f"{n:8d} {m:5d}  {name:11s} {took:10.0f} {ratio:11.2f} {calls:7d}")


if __name__ == "__main__":
    main()
