"""Arrays as they come: read-only, mapped, strided, of another byte order. The results are alike."""

import gc

import numpy as np
import pytest
from same_bits import require_same
from scipy import sparse

from samplesoft.bias.exact import exact_bias
from samplesoft.losses import LOSSES, make_loss
from samplesoft.losses.base import SparseRows
from samplesoft.metrics import evaluate, target_ranks
from samplesoft.models import Linear, SoftmaxLayer
from samplesoft.optimizers import OPTIMIZERS, make_optimizer
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.samplers import SAMPLERS, Draw, SamplerInputs, gumbel_top_k, make_sampler
from samplesoft.search import top_k_classes

N, D, B, M = 30, 4, 6, 8
RNG = np.random.default_rng(0)


def unit(*shape):
    rows = RNG.normal(size=shape)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


ROWS, H, MOVED = unit(N, D), unit(B, D), unit(3, D)
LABELS = RNG.integers(0, N, B)
COUNTS = np.arange(1.0, N + 1)


def locked(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def strided(array):
    wide = np.repeat(array, 2, axis=-1)
    return wide[..., ::2]


def foreign(array):
    return array.astype(array.dtype.newbyteorder())


def unaligned(array):
    room = np.empty(array.nbytes + 1, np.uint8)[1:]
    view = room.view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def reversed_rows(array):
    return array[::-1].copy()[::-1]


FORMS = {
    "read-only": locked,
    "strided": strided,
    "foreign": foreign,
    "unaligned": unaligned,
    "reversed": reversed_rows,
    "Fortran": np.asfortranarray,
}


@pytest.fixture(params=[*FORMS, "mapped"])
def form(request, tmp_path):
    """Return a function that brings an array into a form."""
    number = iter(range(1000))

    def mapped(array):
        path = tmp_path / f"{next(number)}.npy"
        np.save(path, array)
        return np.load(path, mmap_mode="r")

    yield FORMS.get(request.param, mapped)
    gc.collect()  # an open map keeps its file on Windows


def in_form(matrix, form):
    """Return a CSR matrix whose three arrays have a form."""
    found = sparse.csr_array(matrix, copy=True)
    if form is foreign:  # which SciPy does not have
        return found
    for name in ("data", "indices", "indptr"):
        setattr(found, name, form(getattr(found, name)))
    return found


def some(names):
    """Every third of some names, and the others marked thorough."""
    rest = pytest.mark.thorough
    return [pytest.param(name, marks=rest if place % 3 else ()) for place, name in enumerate(names)]


def require_alike(act, form):
    require_same(act(np.array), act(form))


@pytest.mark.parametrize("name", some(SAMPLERS))
def test_samplers(name, form):
    def act(form):
        given = {"counts": form(COUNTS), "tau": 3.0, "num_features": 64, "rng": 0}
        sampler = make_sampler(name, SamplerInputs(form(ROWS), **given))
        found = []
        for k in range(2):
            draw = sampler.sample(form(H), M, exclude=form(LABELS), rng=k)
            found += [draw.ids, draw.log_q]
            sampler.observe(form(LABELS))
            if sampler.dim is not None:
                sampler.update(form(np.array([1, 5, 7])), form(MOVED))
            sampler.refresh(4)
            found.append(sampler.log_prob(form(H), form(np.arange(N)[None])))
            sampler.load_state({key: form(array) for key, array in sampler.state().items()})
            found.append(sampler.probs(form(H)))
        return found

    require_alike(act, form)


@pytest.mark.parametrize(
    "name",
    some(name for name in LOSSES if not LOSSES[name].on_tree and "multilevel" not in name),
)
def test_losses(name, form):
    ids = RNG.integers(0, N, (B, M))
    ids = np.where(ids == LABELS[:, None], (ids + 1) % N, ids)
    log_q = np.full((B, M), -np.log(N - 1.0))
    inclusion = np.log(M) + log_q

    def act(form):
        loss, given = make_loss(name), {}
        if LOSSES[name].draws:
            given["draw"] = Draw(form(ids), form(log_q))
            if getattr(loss, "needs_label_count", False):
                given["label_log_count"] = form(inclusion[:, 0])
        value, cache = loss.forward(
            form(H.astype(np.float32)),
            form(ROWS.astype(np.float32)),
            form(LABELS),
            biases=form(np.linspace(0.0, 1.0, N)),
            weights=form(np.arange(1.0, B + 1)),
            **given,
        )
        found = loss.backward(cache)
        return [value, found.dh, *found.dW, *found.db]

    require_alike(act, form)


@pytest.mark.parametrize("name", ["full", "sampled-masked", "multilevel-masked"])
def test_layers(name, form):
    def act(form):
        sampler = make_sampler("unigram", SamplerInputs(counts=form(COUNTS), rng=0))
        draws = (sampler, M) if LOSSES[name].draws else ()
        layer = SoftmaxLayer(form(ROWS), make_loss(name), *draws, biases=form(COUNTS))
        several = in_form(np.eye(N)[LABELS] + np.eye(N)[(LABELS + 1) % N], form)
        found = []
        for labels in (form(LABELS), several):
            value, cache = layer.forward(form(H), labels, weights=form(COUNTS[:B]), rng=0)
            dh, gradients = layer.backward(cache)
            layer.update(form(np.arange(3)))
            found += [value, dh, *gradients["class_embeddings"]]
        return [*found, layer.evaluate(form(H), form(LABELS), k=(3,)).loss]

    require_alike(act, form)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, form):
    def act(form):
        optimizer, given = make_optimizer(name, 0.1), {"w": np.ones((5, 3)), "b": np.ones(4)}
        for _ in range(2):
            of_rows = SparseRows(form(np.array([1, 3])), form(np.full((2, 3), 0.5)))
            optimizer.step(given, {"w": of_rows, "b": form(np.full(4, 0.1))})
            optimizer.load_state(
                {
                    key: form(array) if array.ndim else array
                    for key, array in optimizer.state().items()
                }
            )
        return [given, optimizer.state()]

    require_alike(act, form)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_metrics(dtype, form):
    def act(form):
        rows, h = form(ROWS.astype(dtype)), form(H.astype(dtype))
        taken = in_form(np.eye(N)[LABELS], form)
        ranks = target_ranks(form((H @ ROWS.T).astype(dtype)), taken)
        best = top_k_classes(h, rows, 3, leave_out=taken)
        return [evaluate(h, rows, form(LABELS), k=(3,)).loss, *best, ranks.ranks]

    require_alike(act, form)


def test_bias_and_gumbel(form):
    def act(form):
        logits, q = form(ROWS[:, 0].copy()), form(COUNTS / COUNTS.sum())
        found = exact_bias(logits, 3, q, 5, scheme="masked")
        return [found.bias if hasattr(found, "bias") else found, gumbel_top_k(logits, 3, rng=0).ids]

    require_alike(act, form)


@pytest.mark.parametrize("dense", [True, False])
def test_linear_layers(dense, form):
    x = (RNG.random((B, 7)) * (RNG.random((B, 7)) < 0.5)).astype(np.float32)

    def act(form):
        layer = Linear(7, 3, rng=0)
        y, cache = layer.forward(form(x) if dense else in_form(x, form))
        return [y, layer.backward(cache, np.ones((B, 3), np.float32))[1]["intercept"]]

    require_alike(act, form)


X = (np.eye(6)[np.arange(60) % 6] + 0.1 * RNG.normal(size=(60, 6))).astype(np.float32)


@pytest.mark.parametrize("kind", ["dense", "sparse", "float64"])
@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("dim", [4, None])
def test_classifiers(kind, several, dim, form):
    pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
    from samplesoft.sklearn import SampledSoftmaxClassifier

    labels = np.arange(60) % 6
    Y = np.eye(6, dtype=int)[labels] if several else labels

    def act(form):
        x = X.astype(np.float64) if kind == "float64" else X
        x = in_form(x * (x > 0.0), form) if kind == "sparse" else form(x)
        y, weights = form(Y), form(np.linspace(0.0, 1.0, 60))
        # the default rate follows norms, which are added up by column of a Fortran array
        options = {"num_sampled": 3, "max_iter": 2, "random_state": 0, "learning_rate": 0.1}
        clf = SampledSoftmaxClassifier(dim, **options).fit(x, y, weights, eval_set=(x, y))
        clf.partial_fit(x, y, sample_weight=weights)
        unwanted = in_form(np.eye(6)[labels], form)
        found = [clf.predict_topk(x, 2, exclude=unwanted), clf.predict_proba(x), clf.embed(x)]
        return [*found, clf.predict(x), clf.score(x, y, weights), clf.model_.parameters]

    require_alike(act, form)


def test_recommenders(form):
    taken = (RNG.random((40, 30)) < 0.3).astype(np.float32)

    def act(form):
        given = in_form(taken, form)
        options = {"num_sampled": 5, "max_iter": 2, "random_state": 0}
        model = SampledSoftmaxRecommender(8, **options).fit(given)
        some = in_form(taken[:2], form)
        found = model.recommend(form(np.arange(2)), some, filter_items=form(np.arange(3)))
        model.partial_fit_users(form(np.arange(2)), some)
        return [model.item_factors, model.user_factors, found]

    require_alike(act, form)
