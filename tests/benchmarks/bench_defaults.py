"""Time, accuracy and log loss of the classifier by loss, sampler and number of draws, on code.

``python tests/benchmarks/bench_defaults.py`` trains `SampledSoftmaxClassifier` on the Python files
of the installed packages, or of a folder that it is given:

- lines, by the module of the standard library that they are of (some 550 classes);
- the tokens around an identifier, by the identifier (of the 10,000 and the 100,000 most frequent);

and prints the processor's seconds and the accuracy on held-out examples, for each choice; and on
some of them the log loss of `predict_proba`, and the least that any temperature would give. The
defaults of the classifier and of ``samplesoft train`` are chosen by this table.
"""

import re
import sys
import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from sklearn.feature_extraction.text import HashingVectorizer

from samplesoft.sklearn import SampledSoftmaxClassifier

TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[^\sA-Za-z_0-9]")
CHOICES = [
    ("full", None, None),
    ("sampled-masked", "rff+softmax-leaf", 100),
    ("sampled-masked", "uniform", 100),
    ("sampled-masked", "uniform", 1000),
    ("sampled-masked", "unigram", 100),
    ("sampled-masked", "unigram", 1000),
    ("sampled-masked", "clusters", 100),
    ("nce", "unigram", 100),
    ("negative-sampling-masked", "unigram", 100),
    ("negative-sampling-masked", "uniform", 100),
]
FULL = 20_000  # classes, beyond which the full softmax takes too long here
TREE = 50_000  # and the kernel tree
SCORED = 2000  # examples of a log loss


def texts(folder, most=400):
    for path in sorted(Path(folder).rglob("*.py"))[: 50 * most]:
        yield path.stem, path.read_text(encoding="utf-8", errors="replace")


def lines():
    """Return lines of the standard library, and the module of each."""
    found, modules = [], []
    for path in sorted(Path(re.__file__).parents[1].glob("*.py")) + sorted(
        Path(re.__file__).parents[1].glob("*/*.py")
    ):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if len(line.strip()) > 20:
                found.append(line)
                modules.append(path.parent.name + "." + path.stem)
    return found, np.array(modules)


def identifiers(folder, num_classes, examples):
    """Return the tokens around identifiers, and the identifiers, the most frequent ones."""
    tokens = []
    for _, text in texts(folder):
        tokens += TOKEN.findall(text)
        if len(tokens) > 8_000_000:
            break
    tokens = np.array(tokens)
    names, labels, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    letters = np.array([name[0].isalpha() or name[0] == "_" for name in names])
    kept = np.argsort(-counts * letters, kind="stable")[:num_classes]
    wanted = np.flatnonzero(np.isin(labels, kept))
    wanted = wanted[(wanted > 6) & (wanted < len(tokens) - 6)]
    wanted = np.random.default_rng(0).permutation(wanted)[:examples]
    around = [
        " ".join(
            [f"l{k}{tokens[i - k]}" for k in (1, 2, 3)]
            + [f"r{k}{tokens[i + k]}" for k in (1, 2)]
            + list(tokens[i - 6 : i])
        )
        for i in wanted
    ]
    return around, tokens[wanted]


def bench(name, documents, labels, epochs):
    vectorizer = HashingVectorizer(
        n_features=2**17, alternate_sign=False, token_pattern=r"\S+", dtype=np.float32
    )
    X = vectorizer.transform(documents)
    order = np.random.default_rng(1).permutation(X.shape[0])
    cut = int(0.9 * len(order))
    train, test = order[:cut], order[cut:][:10_000]
    classes = np.unique(labels)
    print(f"\n{name}: {len(classes):,} classes, {cut:,} examples, {epochs} epochs", flush=True)
    print(f"{'loss':24} sampler             m    seconds  accuracy  log loss  least", flush=True)
    for loss, sampler, m in CHOICES:
        if (loss == "full" and len(classes) > FULL) or (
            str(sampler).startswith("rff") and len(classes) > TREE
        ):
            continue
        options = {} if sampler is None else {"sampler": sampler, "num_sampled": m}
        clf = SampledSoftmaxClassifier(loss=loss, max_iter=epochs, random_state=0, **options)
        start = time.process_time()
        clf.partial_fit(X[train[:64]], labels[train[:64]], classes=classes)  # compiles
        start = time.process_time()
        clf.fit(X[train], labels[train])
        took = time.process_time() - start
        accuracy = np.mean(clf.predict(X[test]) == labels[test])
        known = test[np.isin(labels[test], clf.classes_)][:SCORED]
        lost, least = log_losses(clf, X[known], labels[known])
        print(
            f"{loss:24} {sampler or '':17} {m or '':>4} {took:10.1f} {accuracy:9.3f} {lost:9.3f} "
            f"{least:6.3f}",
            flush=True,
        )


def log_losses(clf, X, labels):
    """Return the log loss, and the least over temperatures."""
    scores = clf.decision_function(X).astype(np.float32)
    own = scores[np.arange(len(scores)), np.searchsorted(clf.classes_, labels)]

    def at(temperature):
        return float(np.mean(logsumexp(scores / temperature, axis=1) - own / temperature))

    best = minimize_scalar(lambda log: at(np.exp(log)), bounds=(-2.0, 2.0), method="bounded")
    return at(clf.calibration_.temperature), float(best.fun)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else Path(np.__file__).parents[1]
    bench("lines of the standard library", *lines(), epochs=3)
    for num_classes, examples in ((10_000, 200_000), (100_000, 300_000)):
        bench("identifiers", *identifiers(folder, num_classes, examples), epochs=2)
