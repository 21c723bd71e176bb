"""Speed of an optimizer's step as ratios against torch.optim in the same run.

``python tests/benchmarks/bench_optimizers.py`` prints one line each; medians of interleaved runs
after a warm-up. pytest does not collect this file.
"""

import warnings
from itertools import cycle

import numpy as np
import torch
from bench_bias import pair

from samplesoft._jit import num_threads
from samplesoft.losses.base import SparseRows
from samplesoft.optimizers.registry import make_optimizer

PEERS = {
    "sgd": ("SGD", "SGD", {}),
    "momentum": ("SGD", None, {"momentum": 0.9}),
    "adagrad": ("Adagrad", "Adagrad", {}),
    "adam": ("Adam", "SparseAdam", {}),
}


def peer(kind, shape, options):
    theirs = torch.nn.Parameter(torch.zeros(shape))
    return theirs, getattr(torch.optim, kind)([theirs], lr=0.1, **options)


def bench_sparse(n=100_000, d=64, k=228, repeats=999):
    """Other rows in every step, as in training; gradients are ready before the clock starts."""
    rng = np.random.default_rng(0)
    gradients = [
        SparseRows(np.sort(rng.choice(n, k, replace=False)), rng.normal(size=(k, d)))
        for _ in range(50)
    ]
    gradients = [SparseRows(ids, rows.astype(np.float32)) for ids, rows in gradients]
    tensors = [
        torch.sparse_coo_tensor(
            torch.tensor(ids)[None],
            torch.tensor(rows),
            (n, d),
            is_coalesced=True,
            check_invariants=False,
        )
        for ids, rows in gradients
    ]
    for name, (_, kind, options) in PEERS.items():
        if kind is None:
            continue
        ours, parameters = make_optimizer(name, 0.1), {"w": np.zeros((n, d), np.float32)}
        theirs, optimizer = peer(kind, (n, d), options)
        own, others = cycle(gradients), cycle(tensors)

        def step(optimizer=optimizer, theirs=theirs, others=others):
            theirs.grad = next(others)
            optimizer.step()

        us, them = pair(
            lambda ours=ours, parameters=parameters, own=own: ours.step(
                parameters, {"w": next(own)}
            ),
            step,
            repeats,
        )
        print(
            f"{name}, {k} rows of {d} in ({n:,}, {d}): {1e6 * us:.0f} us, {them / us:.1f} times "
            f"faster than torch.optim.{kind} with sparse gradients"
        )


def bench_dense(n=10_000, d=200, repeats=49):
    gradient = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    for name, (kind, _, options) in PEERS.items():
        ours, parameters = make_optimizer(name, 0.1), {"w": np.zeros((n, d), np.float32)}
        theirs, optimizer = peer(kind, (n, d), options)
        theirs.grad = torch.tensor(gradient)
        us, them = pair(
            lambda ours=ours, parameters=parameters: ours.step(parameters, {"w": gradient}),
            optimizer.step,
            repeats,
        )
        print(
            f"{name}, dense ({n:,}, {d}): {1e3 * us:.2f} ms, {them / us:.1f} times faster than "
            f"torch.optim.{kind}, which does not look for NaN"
        )


def bench_call(repeats=1999):
    """One row of one number: what a step costs beside its rows."""
    gradient = SparseRows(np.array([3]), np.ones(1, np.float32))
    tensor = torch.sparse_coo_tensor(
        [[3]], [1.0], (100,), is_coalesced=True, check_invariants=False
    )
    for name, (_, kind, options) in PEERS.items():
        ours, parameters = make_optimizer(name, 0.1), {"w": np.zeros(100, np.float32)}
        theirs, optimizer = peer(kind or "SGD", (100,), options if kind else {})
        theirs.grad = tensor
        us, them = pair(
            lambda ours=ours, parameters=parameters: ours.step(parameters, {"w": gradient}),
            optimizer.step,
            repeats,
        )
        print(
            f"{name}, one number: {1e6 * us:.1f} us, of torch.optim.{kind or 'SGD'}: "
            f"{1e6 * them:.0f} us"
        )


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Sparse invariant checks")  # in what torch makes itself
    torch.set_num_threads(num_threads())
    bench_call()
    bench_sparse()
    bench_dense()
