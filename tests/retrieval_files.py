"""Small files for ``samplesoft train xc`` and ``train items``."""

import numpy as np


def write_files(folder):
    """Write examples whose labels follow from their features, and interactions; return `folder`.

    One example of ``xc-train.txt`` has no label; those of ``single-train.txt`` have one each.
    """
    rng = np.random.default_rng(0)
    for part, num, most in (("xc-train", 300, 3), ("xc-test", 80, 3), ("single-train", 100, 2)):
        lines = [f"{num} 20 10"]
        for row in range(num):
            labels = rng.choice(10, rng.integers(1, most), replace=False)
            entries = {2 * c + bit for c in labels for bit in range(2)}
            names = "" if row == 7 and most == 3 else ",".join(map(str, labels))
            lines.append(names + " " + " ".join(f"{f}:1" for f in sorted(entries)))
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    lists = {"train": [], "test": []}
    for user in range(200):
        own = 6 * (user % 5) + rng.permutation(6)
        lists["train"].append(f"{user} " + " ".join(map(str, own[:4])))
        lists["test"].append(f"{user} " + " ".join(map(str, own[4:])))
    for part, lines in lists.items():
        (folder / f"items-{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def small_run(folder, *options):
    """Write examples; return arguments of ``train xc`` for ten steps in an epoch, without --out."""
    path = write_files(folder) / "single-train.txt"
    model = "--batch 10 --embedding-dim 4 --sampler unigram --num-sampled 3 --validation 0".split()
    return ["train", "xc", "--train", str(path), *model, *options]
