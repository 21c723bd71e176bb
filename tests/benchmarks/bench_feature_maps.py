"""Speed of the feature maps as ratios against a peer in the same run.

``python tests/benchmarks/bench_feature_maps.py`` prints one line each; medians of interleaved runs
after a warm-up. pytest does not collect this file.
"""

import numpy as np
from bench_bias import pair

from samplesoft._jit import num_threads
from samplesoft.feature_maps import (
    PositiveRandomFeatures,
    QuadraticFeatures,
    RandomFourierFeatures,
)
from samplesoft.kernels.sincos import TERMS, cos_sin_rows

try:
    from sklearn.kernel_approximation import RBFSampler
except ImportError:
    RBFSampler = None


def unit_rows(num, dim, seed=0):
    rows = np.random.default_rng(seed).standard_normal((num, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def fourier_numpy(X, frequencies):
    """Write the same features with NumPy alone."""
    angles = X @ frequencies
    out = np.empty((len(X), 2 * angles.shape[1]), X.dtype)
    np.cos(angles, out=out[:, : angles.shape[1]])
    np.sin(angles, out=out[:, angles.shape[1] :])
    out *= angles.shape[1] ** -0.5
    return out


def bench_dense(num=100_000, dim=64, width=1024, nu=4.0):
    X = unit_rows(num, dim)
    phi = RandomFourierFeatures(dim, width // 2, nu, rng=0)
    setting = f"{num} x {dim} -> {width}, float32"
    frequencies = np.random.default_rng(0).standard_normal((dim, width // 2), np.float32)
    ours, numpy = pair(lambda: phi.transform(X), lambda: fourier_numpy(X, frequencies))
    print(f"rff, {setting}: {1e3 * ours:.0f} ms, {numpy / ours:.1f} times NumPy")
    if RBFSampler is None:
        print("rff against RBFSampler: left out, scikit-learn is not installed")
        return
    peer = RBFSampler(gamma=nu / 2.0, n_components=width, random_state=0).fit(X)
    ours, theirs = pair(lambda: phi.transform(X), lambda: peer.transform(X))
    print(f"rff, {setting}: {1e3 * ours:.0f} ms, {theirs / ours:.1f} times RBFSampler")
    x = unit_rows(200, dim, 1)
    kernel = phi.kernel(x, x)
    errors = np.zeros(2)
    for seed in range(20):
        mine = RandomFourierFeatures(dim, width // 2, nu, rng=seed).transform(x)
        other = RBFSampler(gamma=nu / 2.0, n_components=width, random_state=seed).fit(x)
        errors += [np.mean((z @ z.T - kernel) ** 2) / 20 for z in (mine, other.transform(x))]
    print(f"mean squared error at equal width: {errors[0]:.2e}, RBFSampler {errors[1]:.2e}")


def bench_structured(num=10_000, dim=512, num_features=4096):
    X = unit_rows(num, dim)
    dense = RandomFourierFeatures(dim, num_features, 4.0, rng=0)
    phi = RandomFourierFeatures(dim, num_features, 4.0, frequencies="structured", rng=0)
    for rows in (X, X[:1]):
        ours, theirs = pair(lambda x=rows: phi.transform(x), lambda x=rows: dense.transform(x), 15)
        print(
            f"rff:structured, {len(rows)} x {dim}, D = {num_features}: {1e3 * ours:.3g} ms, "
            f"{theirs / ours:.1f} times the dense map"
        )


def bench_small(num=10, dim=64, num_features=1000):
    X = unit_rows(num, dim)
    for kind in ("iid", "structured"):
        phi = RandomFourierFeatures(dim, num_features, 4.0, frequencies=kind, rng=0)
        frequencies = np.ones((dim, num_features), np.float32)
        ours, numpy = pair(
            lambda phi=phi: phi.transform(X), lambda f=frequencies: fourier_numpy(X, f), 501
        )
        print(
            f"rff ({kind}), {num} x {dim}, D = {num_features}: {1e6 * ours:.0f} us, "
            f"{numpy / ours:.1f} times NumPy"
        )


def bench_cos_sin(num=2048):
    for dtype in (np.float32, np.float64):
        out = np.full((64, 2 * num), 0.3, dtype)
        angles, buffer = out[:, :num].copy(), np.empty((2, 64, num), dtype)

        def numpy(angles=angles, buffer=buffer):
            np.cos(angles, out=buffer[0])
            np.sin(angles, out=buffer[1])

        ours, theirs = pair(lambda out=out: cos_sin_rows(out, 1.0, *TERMS[out.dtype]), numpy, 301)
        print(
            f"cos and sin, {np.dtype(dtype)}, one thread: {1e9 * ours / out.size:.2f} ns a value, "
            f"{theirs / ours:.1f} times NumPy"
        )


def bench_others(num=20_000, dim=64):
    X = unit_rows(num, dim)
    first, second = np.triu_indices(dim)
    weights = np.where(first == second, 10.0, 10.0 * 2**0.5).astype(np.float32)
    phi = QuadraticFeatures(dim)
    ours, numpy = pair(
        lambda: phi.transform(X), lambda: X[:, first] * X[:, second] * weights, repeats=7
    )
    print(f"quadratic, {num} x {dim}: {1e3 * ours:.1f} ms, {numpy / ours:.1f} times NumPy")
    positive = PositiveRandomFeatures(dim, 1024, rng=0)
    projections = np.random.default_rng(0).standard_normal((dim, 1024), np.float32)

    def by_numpy():
        return np.exp(X @ projections - 0.5 * np.sum(X**2, axis=1, keepdims=True)) * 1024**-0.5

    ours, numpy = pair(lambda: positive.transform(X), by_numpy, repeats=7)
    print(f"positive, {num} x {dim} -> 1024: {1e3 * ours:.1f} ms, {numpy / ours:.1f} times NumPy")


if __name__ == "__main__":
    print(f"{num_threads()} threads, numpy {np.__version__}")
    bench_dense()
    bench_structured()
    bench_small()
    bench_cos_sin()
    bench_others()
