import re

import numpy as np
import pytest

from samplesoft import _progress
from samplesoft.samplers.tree import kernel_tree as module
from samplesoft.samplers.tree.kernel_tree import KernelTree

ROWS = np.arange(1.0, 11.0).reshape(5, 2)


def small(**settings):
    return KernelTree(ROWS, **settings)


# call, error, what the message must name: the argument and what came
MALFORMED = {
    "no classes": (lambda: KernelTree(np.empty((0, 2))), ValueError, "class_embeddings.*(0, 2)"),
    "no columns": (lambda: KernelTree(np.empty((3, 0))), ValueError, "class_embeddings.*(3, 0)"),
    "no classes, float32": (
        lambda: KernelTree(np.empty((0, 2), np.float32)),
        ValueError,
        "class_embeddings.*(0, 2)",
    ),
    "three axes": (lambda: KernelTree(np.ones((2, 2, 2))), ValueError, "class_embeddings.*2, 2, 2"),
    "NaN": (lambda: KernelTree([[1.0], [np.nan]]), ValueError, "class_embeddings.*nan.*[1, 0]"),
    "infinity, float32": (
        lambda: KernelTree(np.array([[1.0], [np.inf]], np.float32)),
        ValueError,
        "class_embeddings.*inf.*[1, 0]",
    ),
    "complex": (lambda: KernelTree([[1j]]), TypeError, "class_embeddings.*complex"),
    "ragged": (lambda: KernelTree([[1.0], [1.0, 2.0]]), ValueError, "class_embeddings"),
    "leaf_size 0": (lambda: small(leaf_size=0), ValueError, "leaf_size.*0"),
    "leaf_size 2.0": (lambda: small(leaf_size=2.0), TypeError, "leaf_size.*2.0"),
    "leaf": (lambda: small(leaf="cosine"), ValueError, "leaf.*kernel, softmax, quadratic.*cosine"),
    "leaf None": (lambda: small(leaf=None), ValueError, "leaf.*None"),
    "scale 0": (lambda: small(scale=0.0), ValueError, "scale.*0.0"),
    "scale inf": (lambda: small(scale=np.inf), ValueError, "scale.*inf"),
    "floor 0": (lambda: small(floor=0.0), ValueError, "floor.*0.0"),
    "floor -1": (lambda: small(floor=-1.0), ValueError, "floor.*-1.0"),
    "floor NaN": (lambda: small(floor=np.nan), ValueError, "floor.*nan"),
    "floor text": (lambda: small(floor="1e-9"), TypeError, "floor.*1e-9"),
    "h columns": (lambda: small().probs(np.ones((2, 3))), ValueError, "`h`.*2 columns.*(2, 3)"),
    "h NaN": (lambda: small().sample([np.nan, 0.0], 1), ValueError, "`h`.*nan"),
    "h empty": (lambda: small().sample(np.empty((0, 2)), 1), ValueError, "`h`.*(0, 2)"),
    "h None": (lambda: small().probs(None), TypeError, "`h`.*None"),
    "h beyond float32": (
        lambda: KernelTree(ROWS.astype(np.float32)).probs([1e39, 0.0]),
        ValueError,
        "`h`.*inf",
    ),
    "no draws": (lambda: small().sample(ROWS, 0), ValueError, "num_sampled.*0"),
    "rng": (lambda: small().sample(ROWS, 1, rng="seed"), TypeError, "rng.*str"),
    "ids too large": (lambda: small().log_prob(ROWS, [5]), ValueError, "ids.*0..4.*5"),
    "ids negative": (lambda: small().log_prob(ROWS, [-1]), ValueError, "ids.*0..4.*-1"),
    "ids rows": (
        lambda: small().log_prob(ROWS, np.zeros((3, 1), int)),
        ValueError,
        "ids.*(5, k).*(3, 1)",
    ),
    "ids fractions": (lambda: small().log_prob(ROWS, [0.5]), TypeError, "ids.*float64"),
    "exclude too large": (lambda: small().probs(ROWS, exclude=5), ValueError, "exclude.*0..4.*5"),
    "exclude negative": (lambda: small().probs(ROWS, exclude=-1), ValueError, "exclude.*0..4.*-1"),
    "exclude rows": (
        lambda: small().sample(ROWS, 1, exclude=[0, 1]),
        ValueError,
        "exclude.*(5,).*(2,)",
    ),
    "exclude fraction": (lambda: small().probs(ROWS, exclude=0.5), TypeError, "exclude.*float64"),
    "exclude the only class": (
        lambda: KernelTree([[1.0]]).sample([1.0], 1, exclude=0),
        ValueError,
        "exclude.*1 class",
    ),
    "exclude and shared": (
        lambda: small().sample(ROWS, 1, exclude=0, shared=True),
        ValueError,
        "exclude.*shared",
    ),
    "class_embeddings ids": (lambda: small().class_embeddings([5]), ValueError, "ids.*0..4.*5"),
    "class_embeddings last": (lambda: small().class_embeddings([-1]), ValueError, "ids.*0..4.*-1"),
    "one feature vector": (
        lambda: small(transform=lambda rows: rows[0]),
        ValueError,
        "transform.*(2,)",
    ),
    "too many features": (
        lambda: small(transform=lambda rows: np.ones((9, 3))),
        ValueError,
        "transform.*(9, 3)",
    ),
    "no features": (lambda: small(transform=lambda rows: rows[:, :0]), ValueError, "transform"),
    "NaN features": (lambda: small(transform=lambda rows: rows * np.nan), ValueError, "transform"),
    "complex features": (
        lambda: small(transform=lambda rows: rows * 1j),
        (TypeError, ValueError),
        "transform.*complex",
    ),
    "features beyond float32": (
        lambda: KernelTree(ROWS.astype(np.float32), lambda rows: rows.astype(float) * 1e300),
        ValueError,
        "transform",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_the_message_names_the_argument_and_what_came(name):
    call, error, words = MALFORMED[name]
    pattern = ".*".join(re.escape(word) for word in words.split(".*"))
    with pytest.raises(error) as caught:
        call()
    assert re.search(pattern, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize("width", [2, 4])
def test_a_transform_that_changes_its_width_is_refused(width):
    features = 3
    kernel_tree = KernelTree(ROWS, lambda rows: np.ones((len(rows), features)), leaf_size=2)
    features = width
    for call in (
        lambda: kernel_tree.probs(ROWS),
        lambda: kernel_tree.sample(ROWS, 2, rng=0),
        lambda: kernel_tree.log_prob(ROWS, [0, 1]),
        lambda: kernel_tree.update([0], ROWS[:1]),
        lambda: kernel_tree.rebuild(),
    ):
        with pytest.raises(ValueError, match="transform"):
            call()


@pytest.mark.parametrize("leaf", ["kernel", "softmax"])
def test_no_ids_have_no_probabilities(leaf):
    for transform in (None, np.abs):
        kernel_tree = KernelTree(ROWS, transform, leaf_size=2, leaf=leaf)
        assert kernel_tree.log_prob(ROWS, np.empty((5, 0), np.int64)).shape == (5, 0)


# --- memory -----------------------------------------------------------------------------------


def hundred_features(rows):
    return np.repeat(rows, 50, axis=1)


def as_bytes(text):
    """The numbers of bytes that a message gives, such as 1.5 GB."""
    units = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    return [
        float(number) * units[unit]
        for number, unit in re.findall(r"([\d.]+(?:e[+-]?\d+)?) ([kMGT]?B)\b", text)
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("available", [120_000, 200_000, 300_000])
def test_a_tree_that_would_not_fit_names_a_leaf_size_that_does(monkeypatch, available, dtype):
    rows = np.ones((1000, 2), dtype)
    monkeypatch.setattr(module, "_CHUNK_VALUES", 500)
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: available)
    with pytest.raises(MemoryError) as caught:
        KernelTree(rows, hundred_features, leaf_size=1)
    message = str(caught.value)
    needed, left = as_bytes(message)
    assert needed == pytest.approx(1000 * 100 * rows.itemsize, rel=0.1)
    assert left == pytest.approx(available, rel=0.01)
    assert "1,000 classes" in message
    fitting = int(re.search(r"leaf_size=(\d+)", message)[1])
    kernel_tree = KernelTree(rows, hundred_features, leaf_size=fitting)
    assert kernel_tree.nbytes <= available
    with pytest.raises(MemoryError):
        KernelTree(rows, hundred_features, leaf_size=fitting // 2)


def test_a_tree_that_never_fits_says_so(monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match="1 kB.*no leaf_size would fit") as caught:
        KernelTree(np.ones((1000, 2)), hundred_features)
    assert not re.search(r"leaf_size=\d", str(caught.value))


def test_a_small_tree_needs_little(monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 10**6)
    assert KernelTree(np.ones((10, 2)), hundred_features).nbytes < 10**4


def test_unknown_memory_is_no_obstacle(monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: None)
    assert KernelTree(np.ones((10, 2))).nbytes > 0


@pytest.mark.parametrize(("dim", "num_features"), [(50, 1), (1, 50)])
def test_predicted_memory_is_that_of_the_tree_and_of_two_blocks_of_features(dim, num_features):
    kernel_tree = KernelTree(np.ones((1000, dim)), lambda x: np.ones((len(x), num_features)))
    predicted = module.peak_build_bytes(1000, dim, num_features, 8, kernel_tree.leaf_size)
    leaves = -(-1000 // kernel_tree.leaf_size)
    held = 8 * (leaves * num_features + 1000 * dim)
    assert predicted == held + 2 * 8 * 1000 * num_features
    assert 0.9 * held < kernel_tree.nbytes <= 1.1 * held + 16 * num_features


def test_nbytes_counts_the_sums_and_the_vectors():
    for leaf_size, leaves in ((1, 37), (3, 13), (64, 1)):
        kernel_tree = KernelTree(
            np.ones((37, 2), np.float32), hundred_features, leaf_size=leaf_size
        )
        assert kernel_tree.feature_dim == 100
        assert kernel_tree.nbytes >= 4 * (leaves * 100 + 37 * 2)
        assert kernel_tree.nbytes <= 1.2 * 4 * (leaves * 100 + 64 * 2)


def test_progress_is_shown_only_where_it_is_asked_for(monkeypatch):
    asked = []

    def bar(on, **settings):
        asked.append(on)
        return _progress.progress_bar(False, **settings)

    monkeypatch.setattr(module, "progress_bar", bar)
    KernelTree(ROWS).rebuild()
    KernelTree(ROWS, progress=True).rebuild(progress=True)
    assert asked == [False, False, True, True]


def test_progress_of_quick_work_is_not_shown_where_there_is_no_terminal(capfd):
    kernel_tree = KernelTree(ROWS, leaf_size=2, progress=True)
    kernel_tree.rebuild(progress=True)
    assert capfd.readouterr().err == ""
