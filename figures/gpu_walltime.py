"""Table 2 of Rawat et al. (2019) on a GPU, compared with torch and the bandwidth of the memory.

Writes ``gpu_walltime.csv`` and ``gpu_walltime.png`` beside this script, with the name of the
device: the time to draw m = 10 negatives for each context of a batch (d = 64, unit vectors,
float32) and to evaluate the sampled loss, by cells of similar classes and by random Fourier
features with softmax leaves; the exact softmax (EXP) in torch on the same GPU, if torch is
installed; the throughput of feature maps compared with a copy in the device's memory; and a step of
training, on the GPU and on the processor. The committed files were made with ``--num-classes
1e4,1e5,1e6``. Run it on the machine with the GPU::

    python figures/gpu_walltime.py

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Table 2.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import write_csv
from tqdm import tqdm

from samplesoft._cuda import SIMULATED, cuda, to_device
from samplesoft._device.select import as_device
from samplesoft._files import atomic_write
from samplesoft.feature_maps import PositiveRandomFeatures, RandomFourierFeatures
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import ClusterSampler, RFSoftmaxSampler, Sampler

DIM, NUM_SAMPLED, TAU, NU = 64, 10, 11.1, 4.0
STEP_BATCH, STEP_SAMPLED = 128, 100
FIELDS = ("work", "num_classes", "batch", "method", "milliseconds", "ratio", "ratio_to")
PEER = "EXP in torch"
STYLES = {PEER: ("#000000", "o", "--")}
STYLES |= {"clusters": ("#009E73", "^", "-")}
STYLES |= {"RFF D = 1000": ("#0072B2", "D", "-"), "RFF D = 200": ("#56B4E9", "X", "-")}
Row = dict[str, Any]


def main() -> None:
    """Time everything, print the table, and write it and the figure."""
    parser = argparse.ArgumentParser(
        description="Time samplesoft on a GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    lists = {
        "num-classes": ([10**k for k in (4, 5, 6, 7)], "classes n, the largest for the rest too"),
        "batches": ([10, 1024], "contexts in a batch"),
        "num-frequencies": ([200, 1000], "random frequencies D"),
    }
    for name, (default, text) in lists.items():
        parser.add_argument(f"--{name}", type=numbers, default=default, help=f"{text}: a,b,c")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the feature maps")
    parser.add_argument("--repeats", type=int, default=10, help="calls, of which the median counts")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="a folder")
    args = parser.parse_args()
    as_device("cuda")
    device = device_name()
    rows: list[Row] = []
    for n in args.num_classes:
        rows += sampled_losses(n, args.batches, args.num_frequencies, args.repeats)
        gc.collect()
    most = args.num_frequencies[-1]
    rows += feature_maps(args.rows, most, args.repeats)
    rows += training_step(min(args.num_classes[-1], 100_000), most, args.repeats)
    for row in rows:
        print(as_text(row))
    print(device)
    settings = f"{device}; d = {DIM}, m = {NUM_SAMPLED}, float32, medians of {args.repeats} calls"
    args.output.mkdir(parents=True, exist_ok=True)
    write_csv(args.output / "gpu_walltime.csv", rows, FIELDS, settings, digits=4)
    with atomic_write(args.output / "gpu_walltime.png") as draft:
        draw(rows, settings).savefig(draft, dpi=130)


def device_name() -> str:
    """Return the name of the GPU."""
    if SIMULATED:
        return "the simulator"
    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)


def numbers(text: str) -> list[int]:
    """Return the numbers of an option, parted by commas."""
    return [int(float(part)) for part in text.split(",")]


def seconds(work: Callable[[int], Any], repeats: int) -> float:
    """Return the median time of a call, after two that compile and warm up."""
    times = []
    for k in range(repeats + 2):
        cuda.synchronize()
        start = perf_counter()
        work(k)
        cuda.synchronize()
        times.append(perf_counter() - start)
    return float(np.median(times[2:]))


def unit_rows(num: int, seed: int) -> Any:
    """Return vectors of norm 1."""
    rows = np.random.default_rng(seed).standard_normal((num, DIM), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def result(work: str, n: int, batch: int, method: str, time: float, **ratio: Any) -> Row:
    """Return a line of the table."""
    row = {"work": work, "num_classes": n, "batch": batch, "method": method}
    return row | {"milliseconds": 1e3 * time, "ratio": "", "ratio_to": ""} | ratio


def sampled_losses(n: int, batches: list[int], frequencies: list[int], repeats: int) -> list[Row]:
    """Time the sampled loss by every sampler, for one set of class vectors."""
    W = unit_rows(n, 0)
    on_device = to_device(W)
    loss = SampledSoftmaxLoss(tau=TAU, scheme="negatives", device="cuda")
    peers = {batch: torch_exp(W, batch, repeats) for batch in batches}
    rows = [result("sampled loss", n, batch, PEER, time) for batch, time in peers.items() if time]
    for method, sampler in tqdm(samplers(W, frequencies), f"n = {n:,}", leave=False):
        for batch in batches:
            h, labels = to_device(unit_rows(batch, 1)), to_device(np.arange(batch) % n)

            def step(k: int, s: Sampler = sampler, h: Any = h, labels: Any = labels) -> None:
                draw = s.sample(h, NUM_SAMPLED, exclude=labels, rng=k)
                loss.forward(h, on_device, labels, draw)

            time, peer = seconds(step, repeats), peers[batch]
            ratio = {"ratio": peer / time, "ratio_to": PEER} if peer else {}
            rows.append(result("sampled loss", n, batch, method, time, **ratio))
    return rows


def samplers(W: Any, frequencies: list[int]) -> Iterator[tuple[str, Sampler]]:
    """Make one sampler after another."""
    yield "clusters", ClusterSampler(W, tau=TAU, rng=0, device="cuda")
    for num in frequencies:
        yield (
            f"RFF D = {num}",
            RFSoftmaxSampler(W, nu=NU, num_features=num, tau=TAU, rng=0, device="cuda"),
        )


def torch_exp(W: Any, batch: int, repeats: int) -> float | None:
    """Return the time of the same work by the exact softmax in torch; None where there is none."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    classes, h = torch.from_numpy(W).cuda(), torch.from_numpy(unit_rows(batch, 1)).cuda()
    labels = torch.arange(batch, device="cuda") % len(W)
    at_once = max(1, min(batch, (1 << 32) // len(W)))  # rows whose scores fit in memory thrice

    @torch.no_grad()
    def work(k: int) -> None:
        for part in torch.arange(batch, device="cuda").split(at_once):
            o = TAU * h[part] @ classes.T
            cumulative = torch.softmax(o, 1).cumsum(1)
            uniforms = torch.rand(len(part), NUM_SAMPLED, device="cuda") * cumulative[:, -1:]
            ids = torch.searchsorted(cumulative, uniforms).clamp_(max=len(W) - 1)
            label = o.gather(1, labels[part, None])
            log_q = o.gather(1, ids) - torch.logsumexp(o, 1, keepdim=True)
            drawn = o.gather(1, ids) - log_q - np.log(NUM_SAMPLED)
            torch.logsumexp(torch.cat([label, drawn], 1), 1) - label[:, 0]

    def synchronised(k: int) -> None:
        work(k)
        torch.cuda.synchronize()

    time = seconds(synchronised, repeats)
    torch.cuda.empty_cache()  # torch keeps what it has freed, and samplers need the memory
    return time


def feature_maps(num: int, width: int, repeats: int) -> list[Row]:
    """Time the feature maps against a copy of as many numbers as they write."""
    X = to_device(unit_rows(num, 2))
    source, target = (cuda.device_array((num, 2 * width), np.float32) for _ in range(2))
    copy = seconds(lambda k: target.copy_to_device(source), repeats) / 2  # it reads as well
    maps = {
        "rff": RandomFourierFeatures(DIM, width, rng=0, device="cuda"),
        "rff:structured": RandomFourierFeatures(
            DIM, width, frequencies="structured", rng=0, device="cuda"
        ),
        "positive": PositiveRandomFeatures(DIM, 2 * width, rng=0, device="cuda"),
    }
    rows = []
    for name, phi in maps.items():
        time = seconds(lambda k, phi=phi: phi.transform(X), repeats)
        ratio = {"ratio": copy / time, "ratio_to": "writing at the speed of a copy"}
        rows.append(result("features", 0, num, f"{name}, F = {2 * width}", time, **ratio))
    return rows


def training_step(n: int, width: int, repeats: int) -> list[Row]:
    """Time a step of training: draws, loss, gradients, Adagrad and the update of the tree."""
    W, h, labels = unit_rows(n, 0), unit_rows(STEP_BATCH, 1), np.arange(STEP_BATCH) % n
    times = []
    for device in ("cpu", "cuda"):
        sampler = RFSoftmaxSampler(W, nu=NU, num_features=width, tau=TAU, rng=0, device=device)
        loss = SampledSoftmaxLoss(tau=TAU, normalize=True, device=device)
        layer = SoftmaxLayer(W, loss, sampler, STEP_SAMPLED)
        optimizer = make_optimizer("adagrad", 0.01)
        there = (to_device(h), to_device(labels)) if device == "cuda" else (h, labels)

        def step(
            k: int, layer: Any = layer, optimizer: Any = optimizer, there: Any = there
        ) -> None:
            _, cache = layer.forward(*there, rng=k)
            _, gradients = layer.backward(cache)
            optimizer.step(layer.parameters, gradients)
            layer.update(gradients["class_embeddings"].ids)

        times.append(seconds(step, repeats))
    ratio = {"ratio": times[0] / times[1], "ratio_to": "the processor"}
    method = f"RFF D = {width}, m = {STEP_SAMPLED}"
    return [result("training step", n, STEP_BATCH, method, times[1], **ratio)]


def as_text(row: Row) -> str:
    """Return a line for people."""
    ratio = f"{row['ratio']:8.2f} times {row['ratio_to']}" if row["ratio"] else ""
    what = f"{row['work']:14s} n = {row['num_classes']:<11,} batch {row['batch']:<7,}"
    return f"{what} {row['method']:24s} {row['milliseconds']:10.3f} ms {ratio}"


def draw(rows: list[Row], settings: str) -> Figure:
    """Plot the time of the sampled loss against n, a panel for each batch."""
    losses = [row for row in rows if row["work"] == "sampled loss"]
    batches = list(dict.fromkeys(row["batch"] for row in losses))
    figure = Figure(figsize=(5 * len(batches), 4.4), layout="constrained")
    for axes, batch in zip(
        figure.subplots(1, len(batches), squeeze=False)[0], batches, strict=True
    ):
        for method, (colour, marker, line) in STYLES.items():
            own = [r for r in losses if r["batch"] == batch and r["method"] == method]
            x, y = [r["num_classes"] for r in own], [r["milliseconds"] for r in own]
            if own:
                axes.plot(x, y, line, color=colour, marker=marker, label=method)
        axes.set(xscale="log", yscale="log", xlabel="classes n", title=f"batch {batch:,}")
        axes.set_ylabel("milliseconds a sampled loss")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(settings, fontsize=9)
    return figure


if __name__ == "__main__":
    main()
