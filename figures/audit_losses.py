"""Published sampled losses, as functions that `check_loss` takes; ``audit.py`` runs them.

Each adapter calls what a package ships, with its defaults, and adds what its user has to write: the
logits, and the draws where the package leaves them to the user. A package is imported where it is
used, for each has an environment of its own. Three devices make `check_loss` take more of them:

- where a loss comes only as a mean over the batch, that last mean is left out (`undivided`);
- where vectors are brought to norm 1, they get two more dimensions (`on_sphere`), so that their
  cosines over the temperature are the logits;
- where a network is part of it, vectors stand in its place.

In the environment of a package, ``python audit_losses.py NAME`` checks one and prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import version
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

Loss = Callable[..., Any]


def log_uniform(n: int) -> Any:
    """Return the probabilities of TensorFlow's log-uniform sampler."""
    q = np.log1p(1.0 / np.arange(1.0, n + 1.0))
    return q / q.sum()


# torch -------------------------------------------------------------------------------------------


def of_torch(function: Callable[..., Any]) -> Loss:
    """Return the loss that calls ``function(W, h, labels, m)`` with tensors, with its gradient."""

    def loss(class_embeddings: Any, h: Any, labels: Any, num_sampled: int, seed: int) -> Any:
        import torch

        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002, packages draw from it
        contexts = torch.tensor(h, requires_grad=True)
        given = torch.tensor(class_embeddings), contexts, torch.tensor(labels), num_sampled
        losses = function(*given)
        (dh,) = torch.autograd.grad(losses.sum(), contexts)
        # a gradient that went through float32 is no better than that
        return losses.detach().numpy(), dh.to(losses.dtype).numpy()

    return loss


def remembered(loss: Loss) -> Loss:
    """Return a loss without draws that is computed once for the same arrays, whatever the seed."""
    known: dict[tuple[bytes, ...], Any] = {}

    def called(*args: Any) -> Any:
        key = tuple(array.tobytes() for array in args[:3])
        if key not in known:
            known[key] = loss(*args)
        return known[key]

    return called


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Leave out means over the batch: ``Tensor.mean`` and that of ``cross_entropy``."""
    import torch

    whole = torch.nn.functional.cross_entropy

    def each(*args: Any, reduction: str = "none", **options: Any) -> Any:
        return whole(*args, reduction="none", **options)

    with (
        mock.patch.object(torch.nn.functional, "cross_entropy", each),
        mock.patch.object(torch.Tensor, "mean", lambda self, *_, **__: self),
    ):
        yield


def on_sphere(c: Any, h: Any, scale: float) -> tuple[Any, Any]:
    """Return vectors of one norm each, whose cosines times `scale` are ``h @ c.T``."""
    import torch

    # |c| = a and |h| = scale / a after each has got a dimension of its own
    a = 1.01 * c.norm(dim=1).max()
    b = scale / a
    if (h.norm(dim=1) >= b).any():
        raise ValueError("`scale` must be above the product of the norms")
    of_c, of_h = (torch.sqrt(s**2 - (x**2).sum(1, keepdim=True)) for s, x in ((a, c), (b, h)))
    none_c, none_h = torch.zeros_like(of_c), torch.zeros_like(of_h)
    return torch.cat([c, of_c, none_c], 1), torch.cat([h, none_h, of_h], 1)


@of_torch
def sentence_transformers_mnrl(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of the multiple-negatives ranking loss, for given embeddings."""
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from torch.nn import Identity

    loss = MultipleNegativesRankingLoss(Identity())
    documents, queries = on_sphere(W[labels], h, loss.scale)
    with undivided():
        return loss.compute_loss_from_embeddings([queries, documents], labels)


@of_torch
def metric_learning_ntxent(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of NT-Xent: contexts are anchors, vectors of labels are references."""
    from pytorch_metric_learning.losses import NTXentLoss
    from pytorch_metric_learning.reducers import DoNothingReducer

    loss = NTXentLoss(reducer=DoNothingReducer())
    references, queries = on_sphere(W[labels], h, 1.0 / loss.temperature)
    found = loss(queries, labels, ref_emb=references, ref_labels=labels.clone())["loss"]
    return first_of_each(found["losses"], found["indices"][0], len(h))


@of_torch
def metric_learning_supcon(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of SupCon: contexts are anchors, vectors of labels are references."""
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.reducers import DoNothingReducer

    loss = SupConLoss(reducer=DoNothingReducer())
    references, queries = on_sphere(W[labels], h, 1.0 / loss.temperature)
    return loss(queries, labels, ref_emb=references, ref_labels=labels.clone())["loss"]["losses"]


def first_of_each(losses: Any, anchors: Any, size: int) -> Any:
    """Return the loss of the first pair of each anchor: those of one anchor are the same."""
    import torch

    first = torch.full((size,), len(anchors)).scatter_reduce(
        0, anchors, torch.arange(len(anchors)), "amin"
    )
    return losses[first]


@of_torch
def info_nce(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of InfoNCE with implicit negatives."""
    from info_nce import InfoNCE

    loss = InfoNCE(reduction="none")
    keys, queries = on_sphere(W[labels], h, 1.0 / loss.temperature)
    return loss(queries, keys)


@of_torch
def rechub_trainer(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of the in-batch negatives of torch-rechub's trainer."""
    import torch
    from torch_rechub.utils.match import gather_inbatch_logits, inbatch_negative_sampling

    # the lines of MatchTrainer(in_batch_neg=True) that call the package's functions
    scores = h @ W[labels].T
    logits = gather_inbatch_logits(scores, inbatch_negative_sampling(scores))
    return torch.nn.CrossEntropyLoss(reduction="none")(logits, torch.zeros_like(labels))


@of_torch
def rechub_nce(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of torch-rechub's NCE, given all logits."""
    from torch_rechub.basic.loss_func import NCELoss

    return NCELoss(reduction="none")(h @ W.T, labels)


@of_torch
def rechub_in_batch_nce(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of torch-rechub's in-batch NCE, given the items of the batch."""
    import torch
    from torch_rechub.basic.loss_func import InBatchNCELoss

    loss = InBatchNCELoss(reduction="none")
    return loss(loss.temperature * h, W[labels], torch.arange(len(labels)))


@of_torch
def cut_cross_entropy(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of the cut cross-entropy that runs on a processor."""
    from cut_cross_entropy import linear_cross_entropy

    given = h.float(), W.float(), labels
    return linear_cross_entropy(*given, reduction="none", impl="torch_compile")


@of_torch
def liger(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of Liger's fused linear cross-entropy."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss(reduction="none")(W.float(), h.float(), labels)


def liger_weighted(class_embeddings: Any, h: Any, labels: Any, num_sampled: int, seed: int) -> Any:
    """Return what Liger has for a weighted sum of losses, each less its weight."""
    import torch

    weights = torch.linspace(0.5, 1.5, len(h))
    W, contexts, y = (torch.tensor(x) for x in (class_embeddings, h, labels))
    W, contexts = W.float(), contexts.float().requires_grad_()
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    losses = LigerFusedLinearCrossEntropyLoss(reduction="none")(W, contexts, y)
    (dh,) = torch.autograd.grad((weights * losses).sum(), contexts)
    return losses.detach().numpy(), (dh / weights[:, None]).numpy()


# recommenders ------------------------------------------------------------------------------------


@of_torch
def rectools_sampled_softmax(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of RecTools' sampled softmax."""
    return rectools(W, h, labels, m, "_calc_sampled_softmax_loss", 1)


@of_torch
def rectools_bce(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of RecTools' binary cross-entropy, as a sum over its terms."""
    return rectools(W, h, labels, m, "_calc_bce_loss", 1 + m)


def rectools(W: Any, h: Any, labels: Any, m: int, name: str, terms: int) -> Any:
    """Return losses as the Lightning module of RecTools makes them, of sessions of one item."""
    import torch
    from rectools.models.nn.transformers.lightning import TransformerLightningModule
    from rectools.models.nn.transformers.negative_sampler import CatalogUniformSampler

    # item 0 is padding
    y = labels[:, None] + 1
    sampler = CatalogUniformSampler(n_negatives=m)
    negatives = sampler.get_negatives({"x": y}, lowest_id=1, highest_id=len(W) + 1)
    ids = torch.cat([y[..., None], negatives], dim=-1) - 1
    logits, weights = torch.einsum("bd,bskd->bsk", h, W[ids]), torch.ones_like(h[:, :1])
    weights.requires_grad_()
    # a mean over the batch, which is linear in the weights of the examples
    module = TransformerLightningModule.__new__(TransformerLightningModule)
    whole = getattr(module, name)(logits, y, weights)
    (each,) = torch.autograd.grad(whole, weights, create_graph=True)
    return len(h) * terms * each[:, 0]


@of_torch
def replay_ce_sampled(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of RePlay's sampled cross-entropy."""
    from replay.nn.loss import CESampled

    return replay(W, h, labels, m, CESampled(reduction="none"))


@of_torch
def replay_login_ce_sampled(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of RePlay's sampled LogInCE."""
    from replay.nn.loss import LogInCESampled

    with undivided():
        return replay(W, h, labels, m, LogInCESampled())


def replay(W: Any, h: Any, labels: Any, m: int, loss: Any) -> Any:
    """Return losses of RePlay with its uniform draws, one set for the batch."""
    import torch
    from replay.nn.transform import UniformNegativeSamplingTransform

    sampler = UniformNegativeSamplingTransform(cardinality=len(W), num_negative_samples=m)
    negatives = sampler({})["negative_labels"]
    loss.logits_callback = lambda x, ids: (
        x @ W[ids].T if ids.dim() == 1 else torch.einsum("bd,bkd->bk", x, W[ids])
    )
    positives = labels[:, None, None]
    padding = torch.ones_like(positives, dtype=torch.bool)
    return loss(h[:, None], {}, positives, negatives, padding[..., 0], padding)


@of_torch
def replay_sasrec(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return sampled cross-entropies of RePlay's SasRec, draws for each example."""
    return replay_module(W, h, labels, m)


@of_torch
def replay_sasrec_sharing(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return sampled cross-entropies of RePlay's SasRec, one set of draws for all."""
    return replay_module(W, h, labels, m, negatives_sharing=True)


def replay_module(W: Any, h: Any, labels: Any, m: int, **options: Any) -> Any:
    """Return losses of the SasRec module of RePlay, its network replaced by the vectors."""
    import torch

    model = sasrec(len(W), m, **options)
    model._loss = torch.nn.CrossEntropyLoss(reduction="none")
    network = mock.Mock()
    network.forward_step = lambda *_: h[:, None]
    network.get_logits = lambda x, ids: (
        x @ W[ids].T if ids.dim() == 1 else torch.einsum("bd,bkd->bk", x, W[ids])
    )
    padding = torch.ones(len(h), 1, dtype=torch.bool)
    with (
        mock.patch.dict(model._modules, {"_model": None}),
        mock.patch.object(type(model), "_model", network, create=True),
    ):
        return model._compute_loss_ce_sampled({}, labels[:, None], padding, padding)


@cache
def sasrec(n: int, m: int, **options: Any) -> Any:
    """Return the module of a catalogue of n items."""
    from replay.data import FeatureHint, FeatureSource, FeatureType
    from replay.data.nn import TensorFeatureInfo, TensorFeatureSource, TensorSchema
    from replay.models.nn.sequential import SasRec

    source = TensorFeatureSource(FeatureSource.INTERACTIONS, "item_id")
    item = TensorFeatureInfo(
        "item_id",
        FeatureType.CATEGORICAL,
        is_seq=True,
        feature_hint=FeatureHint.ITEM_ID,
        feature_sources=[source],
        cardinality=n,
        embedding_dim=8,
    )
    return SasRec(TensorSchema(item), hidden_size=8, loss_sample_count=m, **options)


@of_torch
def recbole_bpr(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of RecBole's BPR, with a negative by its sequence sampler."""
    from recbole.model.loss import BPRLoss
    from recbole.sampler.sampler import SeqSampler

    # item 0 is padding
    dataset = mock.Mock(iid_field="item_id", user_num=1, item_num=len(W) + 1)
    sampler = SeqSampler(dataset)
    negatives = sampler.sample_neg_sequence(labels.numpy() + 1) - 1
    with undivided():
        return BPRLoss()((h * W[labels]).sum(1), (h * W[negatives]).sum(1))


@of_torch
def pykeen_cross_entropy(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of PyKEEN's cross-entropy of a positive and its negatives."""
    from pykeen.losses import CrossEntropyLoss

    with undivided():
        return pykeen(W, h, labels, m, CrossEntropyLoss())


@of_torch
def pykeen_bce(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of PyKEEN's binary cross-entropy, as a sum over its terms."""
    import torch
    from pykeen.losses import BCEWithLogitsLoss

    loss = BCEWithLogitsLoss()
    terms = pykeen(W, h, labels, m, lambda *scores: scores)
    each = [loss.process_slcwa_scores(*(s[i : i + 1] for s in terms)) for i in range(len(h))]
    return (1 + m) * torch.stack(each)


def pykeen(W: Any, h: Any, labels: Any, m: int, loss: Any) -> Any:
    """Return losses of PyKEEN with tails by its basic sampler."""
    import torch
    from pykeen.sampling import BasicNegativeSampler

    triples = torch.stack([torch.zeros_like(labels), torch.zeros_like(labels), labels], dim=1)
    sampler = BasicNegativeSampler(
        mapped_triples=triples,
        num_entities=len(W),
        num_relations=1,
        num_negs_per_pos=m,
        corruption_scheme=("tail",),
    )
    tails = sampler.corrupt_batch(triples)[..., 2]
    scores = (h * W[labels]).sum(1, keepdim=True), torch.einsum("bd,bkd->bk", h, W[tails])
    process = getattr(loss, "process_slcwa_scores", loss)
    return process(*scores)


# Merlin ------------------------------------------------------------------------------------------


@of_torch
def transformers4rec(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of Transformers4Rec's sampled softmax, its network replaced by the vectors."""
    import torch
    from transformers4rec.torch.model.prediction_task import NextItemPredictionPrepareBlock

    # item 0 is padding
    n, dim = W.shape
    block = NextItemPredictionPrepareBlock(n + 1, sampled_softmax=True, max_n_samples=m, min_id=1)
    head = block.build((None, None, dim))
    for module in head.modules():
        if hasattr(module, "output_layer"):
            module.output_layer.data = torch.cat([torch.zeros_like(W[:1]), W])
    logits, targets = head(h, targets=labels + 1, training=True)
    return torch.nn.CrossEntropyLoss(reduction="none")(logits, targets)


@of_torch
def merlin_torch_in_batch(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of the contrastive output of merlin-models in torch, in-batch negatives."""
    return merlin_torch(W, h, labels, "in-batch")


@of_torch
def merlin_torch_popularity(W: Any, h: Any, labels: Any, m: int) -> Any:
    """Return losses of the contrastive output of merlin-models in torch, with drawn negatives."""
    from merlin.models.torch.outputs.sampling.popularity import PopularityBasedSampler

    return merlin_torch(W, h, labels, PopularityBasedSampler(max_num_samples=m))


def merlin_torch(W: Any, h: Any, labels: Any, sampler: Any) -> Any:
    """Return losses of the contrastive output of merlin-models in torch, given its sampler."""
    import torch
    from merlin.models.torch.batch import Batch
    from merlin.models.torch.outputs.classification import CategoricalTarget
    from merlin.models.torch.outputs.contrastive import ContrastiveOutput
    from merlin.schema import ColumnSchema, Tags

    item = ColumnSchema(
        "item",
        dtype=np.int64,
        tags=[Tags.ITEM_ID, Tags.CATEGORICAL],
        properties={"domain": {"min": 0, "max": len(W) - 1}},
    )
    output = ContrastiveOutput(negative_sampling=[sampler])
    output.initialize_from_schema(item)
    table = W.float()
    with mock.patch.object(CategoricalTarget, "embedding_lookup", lambda _, ids: table[ids]):
        logits = output(h.float(), batch=Batch({}, targets={"default": labels}))
    return torch.nn.functional.cross_entropy(logits, output.target, reduction="none")


# losses with memory -------------------------------------------------------------------------------


def of_libauc(function: Callable[..., Any]) -> Loss:
    """Return a loss of six arguments, of which the last is where its memory starts.

    It is ``loss(class_embeddings, h, labels, num_sampled, seed, log_sums)``. `log_sums` (B,) are
    the logs of the running estimates of the sums of ``exp(o_j - o_t)``, with the label t, before
    the call. `function` is called with tensors, and returns the losses, in which the new estimates
    are constants.
    """

    def loss(
        class_embeddings: Any, h: Any, labels: Any, num_sampled: int, seed: int, log_sums: Any
    ) -> Any:
        import torch

        with mock.patch.object(torch, "mean", lambda x, *_: x), undivided():
            called = of_torch(partial(function, log_sums=torch.tensor(log_sums)[:, None]))
            return called(class_embeddings, h, labels, num_sampled, seed)

    return loss


def libauc_classification(
    W: Any, h: Any, labels: Any, m: int, log_sums: Any, **options: Any
) -> Any:
    """Return losses of LibAUC's extreme classification, with uniform draws of other classes.

    The package keeps the log of a mean over the n - 1 other classes, and 0 for a new example.
    """
    import torch
    from libauc.losses import EntLossClassification

    loss = EntLossClassification(len(h), **options)
    log_means = log_sums - np.log(len(W) - 1)
    loss.nu = torch.where(torch.isneginf(log_sums), 0.0, log_means)
    # the column of the label is masked, as its authors do, and not counted
    draws = (labels[:, None] + torch.randint(1, len(W), (len(h), m))) % len(W)
    gaps = torch.einsum("bd,bkd->bk", h, W[draws]) - (h * W[labels]).sum(1, keepdim=True)
    logits = torch.cat([torch.full_like(gaps[:, :1], -torch.inf), gaps], dim=1)
    return loss(logits, torch.arange(len(h)))["loss"][:, 0]


def libauc_global_contrastive(W: Any, h: Any, labels: Any, m: int, log_sums: Any) -> Any:
    """Return losses of LibAUC's SogCLR for two modalities: contexts, and vectors of labels.

    The losses are means of those of rows and of columns, which start from the same u.
    """
    import torch
    from libauc.losses.contrastive import GCLoss_v2

    with contextlib.redirect_stdout(None):
        loss = GCLoss_v2(N=len(h), tau=1.0)
    loss.b1, loss.b2 = log_sums.clone(), log_sums.clone()  # u is stored as u exp(-b)
    loss.u1, loss.u2 = torch.ones_like(log_sums), torch.ones_like(log_sums)
    return loss(h, W[labels], torch.arange(len(h)))[0][:, 0]


# gensim ------------------------------------------------------------------------------------------


_RATE = 1e-3  # of learning; by it the change of a vector is its gradient


def gensim_skip_gram(
    class_embeddings: Any, h: Any, labels: Any, num_sampled: int, seed: int
) -> Any:
    """Return losses and gradients of gensim's skip-gram, of which it keeps sums and changes."""
    from gensim.models.word2vec_inner import train_batch_sg

    n, size = len(class_embeddings), len(h)
    model = skip_gram(n, size, h.shape[1], num_sampled)
    model.random = np.random.RandomState(seed)  # noqa: NPY002, gensim draws from it
    vectors, work = model.wv.vectors, np.zeros(h.shape[1], np.float32)
    losses, slopes = np.zeros(size, np.float32), np.zeros(h.shape, np.float32)
    for i in range(size):
        model.syn1neg[:n] = class_embeddings
        vectors[n + i] = h[i]
        before, model.running_training_loss = vectors[n + i].copy(), 0.0
        train_batch_sg(model, [[f"h{i}", f"c{labels[i]}"]], _RATE, work, True)
        # two words make two pairs: the other has a vector of zeros, and the loss of 1 + m of them
        losses[i] = model.running_training_loss - (1 + num_sampled) * model.loss_at_zero
        slopes[i] = (before - vectors[n + i]) / _RATE
    return losses, slopes


@cache
def skip_gram(n: int, size: int, dim: int, m: int) -> Any:
    """Return a model of n words that are predicted and `size` contexts; draws by count^0.75."""
    from gensim.models import Word2Vec
    from gensim.models.word2vec_inner import train_batch_sg

    counts = counts_of_words(n)
    words = {f"c{j}": int(count) for j, count in enumerate(counts)}
    model = Word2Vec(
        vector_size=dim, window=1, sg=1, negative=m, sample=0, min_count=0, sorted_vocab=0
    )
    model.build_vocab_from_freq(words | {f"h{i}": 1 for i in range(size)})
    for i in range(size):  # contexts are never drawn
        model.wv.set_vecattr(f"h{i}", "count", 0)
    model.make_cum_table()
    model.wv.vectors[:] = 0.0
    model.wv.vectors_lockf = np.repeat(np.float32([0.0, 1.0]), [n, size])
    # its table of the sigmoid has not quite log 2 there; hits, of which there may be some, have 0
    pairs, work = [], np.zeros(dim, np.float32)
    for _ in range(64):
        model.running_training_loss = 0.0
        train_batch_sg(model, [["h0", f"c{n - 1}"]], 0.0, work, True)
        pairs.append(model.running_training_loss)
    model.loss_at_zero = max(pairs) / (2 + 2 * m)
    return model


def counts_of_words(n: int) -> Any:
    """Return counts by Zipf's law."""
    return np.round(1e6 / np.arange(1.0, n + 1.0))


def smoothed_counts(n: int) -> Any:
    """Return gensim's probabilities of draws: counts to the power 0.75."""
    q = counts_of_words(n) ** 0.75
    return q / q.sum()


# TensorFlow --------------------------------------------------------------------------------------


def of_tensorflow(function: Callable[..., Any]) -> Loss:
    """Return the loss that calls ``function(W, h, labels, m)`` with tensors, with its gradient."""
    compiled = None

    def loss(class_embeddings: Any, h: Any, labels: Any, num_sampled: int, seed: int) -> Any:
        nonlocal compiled
        import tensorflow as tf

        def both(W: Any, h: Any, labels: Any, m: int) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(h)
                losses = function(W, h, labels, m)
            return losses, tape.gradient(losses, h)

        if compiled is None:
            tf.random.set_seed(seed)
            compiled = tf.function(both)
        floats = (tf.constant(x, tf.float32) for x in (class_embeddings, h))
        losses, dh = compiled(*floats, tf.constant(labels), num_sampled)
        return losses.numpy(), dh.numpy()

    return loss


def sampled_by_tensorflow(W: Any, h: Any, labels: Any, m: int, name: str, **options: Any) -> Any:
    """Return losses of ``tf.nn.sampled_softmax_loss`` or ``nce_loss``."""
    import tensorflow as tf

    n = W.shape[0]
    return getattr(tf.nn, name)(W, tf.zeros(n), labels[:, None], h, m, n, **options)


def tfrs_retrieval(W: Any, h: Any, labels: Any, m: int, corrected: bool, **options: Any) -> Any:
    """Return losses of the retrieval task, its sum over the batch taken out."""
    import tensorflow as tf
    from tensorflow_recommenders.tasks import Retrieval

    losses = tf.keras.losses
    each = losses.CategoricalCrossentropy(from_logits=True, reduction=losses.Reduction.NONE)
    task, given = Retrieval(loss=each, **options), {}
    if corrected:
        given["candidate_sampling_probability"] = chances(W, labels)
    if options:
        given["candidate_ids"] = labels
    return task(h, tf.gather(W, labels), compute_metrics=False, **given)


def keras_rs_in_batch(W: Any, h: Any, labels: Any, m: int, corrected: bool, removed: bool) -> Any:
    """Return losses with the labels of the batch as candidates, and the layers of keras-rs."""
    import keras
    import keras_rs
    import tensorflow as tf

    layers = keras_rs.layers
    logits, targets = h @ tf.transpose(tf.gather(W, labels)), tf.eye(labels.shape[0])
    if corrected:
        q = tf.broadcast_to(chances(W, labels), logits.shape)
        logits = layers.SamplingProbabilityCorrection()(logits, q)
    if removed:
        logits = layers.RemoveAccidentalHits()(logits, targets, labels)
    return keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)(targets, logits)


def keras_rs_rows(W: Any, h: Any, labels: Any, m: int, mask: float | None = None) -> Any:
    """Return losses with uniform draws for each example, whose hits keras-rs is to remove.

    With `mask` the layer adds that number to hits.
    """
    import keras
    import keras_rs
    import tensorflow as tf
    from keras_rs.src.layers.retrieval import remove_accidental_hits as module

    n, size = W.shape[0], labels.shape[0]
    draws = tf.random.uniform((size, m), maxval=n, dtype=labels.dtype)
    ids = tf.concat([labels[:, None], draws], axis=1)
    logits = tf.einsum("bd,bkd->bk", h, tf.gather(W, ids))
    q = tf.fill(logits.shape, 1.0 / n)
    logits = keras_rs.layers.SamplingProbabilityCorrection()(logits, q)
    targets = tf.one_hot(tf.zeros_like(labels), 1 + m)
    with mock.patch.object(module, "SMALLEST_FLOAT", mask or module.SMALLEST_FLOAT):
        logits = keras_rs.layers.RemoveAccidentalHits()(logits, targets, ids)
    return keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)(targets, logits)


def merlin_contrastive(W: Any, h: Any, labels: Any, m: int, output: Any) -> Any:
    """Return losses of the contrastive output of merlin-models, with given vectors of items."""
    import tensorflow as tf

    with mock.patch.object(
        type(output), "embedding_lookup", lambda _, ids: tf.gather(W, tf.squeeze(ids, axis=-1))
    ):
        ids = labels[:, None]
        found = output(h, features={"item": ids}, targets=ids, training=True)
    loss = tf.keras.losses.CategoricalCrossentropy(from_logits=True, reduction="none")
    return loss(found.targets, found.outputs)


@cache
def merlin_of_size(n: int, dim: int, m: int, **options: Any) -> Loss:
    """Return the loss of a catalogue of n items; TensorFlow compiles one for each."""
    return of_tensorflow(partial(merlin_contrastive, output=merlin_output(n, dim, m, **options)))


def merlin_output(
    n: int, dim: int, m: int, sampler: str, unique: bool = True, **options: Any
) -> Any:
    """Return the output layer of a catalogue of n items, whose table is not used."""
    import merlin.models.tf as mm
    import tensorflow as tf
    from merlin.models.tf.outputs.sampling.popularity import PopularityBasedSamplerV2
    from merlin.models.tf.transforms.bias import PopularityLogitsCorrection
    from merlin.schema import ColumnSchema, Schema, Tags

    item = ColumnSchema(
        "item",
        dtype=np.int64,
        tags=[Tags.ITEM_ID, Tags.CATEGORICAL],
        properties={"domain": {"min": 0, "max": n - 1}},
    )
    negatives: Any = sampler
    if sampler == "popularity":
        negatives = PopularityBasedSamplerV2(max_id=n, max_num_samples=m, unique=unique)
    if options.pop("popularity", False):
        q = tf.constant(log_uniform(n), tf.float32)
        correction = PopularityLogitsCorrection(q, is_prob_distribution=True, schema=Schema([item]))
        options |= {"post": correction, "store_negative_ids": True}
    output = mm.ContrastiveOutput(mm.EmbeddingTable(dim, item), negatives, **options)
    ids = tf.zeros((2, 1), tf.int64)  # the first call makes its variables
    output(tf.zeros((2, dim)), features={"item": ids}, targets=ids, training=True)
    return output


def for_as_many_tries(q: Any, m: int) -> Any:
    """Return the expected counts of the sampler of merlin-models, as if m tries gave m classes."""
    n = len(q)  # its own q are those of n + 1 classes
    return -np.expm1(m * np.log1p(-q * np.log(n + 1.0) / np.log(n + 2.0)))


def chances(W: Any, labels: Any) -> Any:
    """Return the log-uniform probabilities of labels."""
    import tensorflow as tf

    return tf.gather(tf.constant(log_uniform(W.shape[0]), tf.float32), labels)


# the table ---------------------------------------------------------------------------------------


class Published(NamedTuple):
    """A loss: where it comes from, its adapter, and what its source says that it does.

    `proposal` and `num_sampled` are what `check_loss` is given; `law`, `scheme` and `corrected` say
    which exact bias it has on a text (``audit.py``), with negatives by that law; `law` is empty
    where that is none. `corrected` may also be a function of q and m that returns what a loss
    divides by instead of m q.
    """

    package: str
    function: str
    settings: str
    environment: str
    loss: Loss
    judgement: str
    law: str
    scheme: str
    corrected: Any = True
    proposal: Any = "log-uniform"
    num_sampled: int = 5
    tau: float = 1.0
    memory: dict[str, float] | None = None  # rate of the running estimates, for `check_loss`


RIGHT, LOGISTIC, CONTRASTIVE, WRONG = "right", "right, logistic", "not corrected", "wrong"
TF, TORCH, RECOMMENDERS, WORDS = "tensorflow", "torch", "recommenders", "words"
MERLIN, MERLIN_TORCH, MEMORY = "merlin", "merlin-torch", "memory"
# pip alone takes versions that need pandas 2 and NumPy 2
_OF_MERLIN = (
    "dask-cuda==23.8.0",
    "dask==2023.7.1",
    "distributed==2023.7.1",
    "pyarrow==14.0.2",
    "setuptools<81",
)
# what an environment has beside samplesoft's own requirements
_TWELVE = np.full(12, 1.0 / 12.0)  # a proposal over as many classes

ENVIRONMENTS = {
    TF: (
        "tensorflow-cpu==2.21.0",
        "tf_keras==2.21.0",
        "tensorflow-recommenders==0.7.7",
        "keras-rs==0.4.0",
    ),
    TORCH: (
        "torch==2.13.0",
        "numpy==2.3.5",  # Triton's interpreter fails with later ones
        "sentence-transformers==6.2.0",
        "pytorch-metric-learning==2.9.0",
        "info-nce-pytorch==0.1.4",
        "torch-rechub==0.9.0",
        "liger-kernel==0.8.5",
        "cut-cross-entropy==25.1.1",
    ),
    RECOMMENDERS: (
        "torch==2.13.0",
        "rectools[torch]==0.19.0",
        "replay-rec==0.22.0",
        "lightning==2.5.2",
        "recbole==1.2.1",
        "pykeen==1.11.1",
    ),
    WORDS: ("gensim==4.4.0",),
    MERLIN: ("merlin-models==23.12.0", "tensorflow-cpu==2.12.1", *_OF_MERLIN),
    MERLIN_TORCH: (
        "torch==2.13.0",
        "transformers4rec==23.12.0",
        "merlin-models==23.12.0",
        "pytorch-lightning==2.6.6",
        "numpy==1.26.4",
        *_OF_MERLIN,
    ),
    MEMORY: ("torch==2.13.0", "libauc==2.0.1"),
}


def _tensorflow(name: str, **options: Any) -> Loss:
    return of_tensorflow(partial(sampled_by_tensorflow, name=name, **options))


def _in_batch(function: Callable[..., Any], **options: Any) -> Loss:
    return of_tensorflow(partial(function, **options))


def _merlin(**options: Any) -> Loss:
    def loss(class_embeddings: Any, h: Any, labels: Any, num_sampled: int, seed: int) -> Any:
        of_size = merlin_of_size(*class_embeddings.shape, num_sampled, **options)
        return of_size(class_embeddings, h, labels, num_sampled, seed)

    return loss


_HITS = {"remove_accidental_hits": True}
LOSSES: dict[str, Published] = {
    "tf-sampled-softmax": Published(
        "tensorflow",
        "tf.nn.sampled_softmax_loss",
        "defaults",
        TF,
        _tensorflow("sampled_softmax_loss"),
        RIGHT,
        "log-uniform",
        "distinct_candidate_masked",
    ),
    "tf-sampled-softmax-hits": Published(
        "tensorflow",
        "tf.nn.sampled_softmax_loss",
        "remove_accidental_hits=False",
        TF,
        _tensorflow("sampled_softmax_loss", remove_accidental_hits=False),
        RIGHT,
        "log-uniform",
        "distinct_candidate",
    ),
    "tf-nce": Published(
        "tensorflow",
        "tf.nn.nce_loss",
        "defaults",
        TF,
        _tensorflow("nce_loss"),
        LOGISTIC,
        "log-uniform",
        "nce_distinct",
    ),
    "tfrs": Published(
        "tensorflow-recommenders",
        "tasks.Retrieval",
        "defaults",
        TF,
        _in_batch(tfrs_retrieval, corrected=False),
        CONTRASTIVE,
        "counts",
        "candidate",
        False,
    ),
    "tfrs-hits": Published(
        "tensorflow-recommenders",
        "tasks.Retrieval",
        "remove_accidental_hits=True",
        TF,
        _in_batch(tfrs_retrieval, corrected=False, **_HITS),
        CONTRASTIVE,
        "counts",
        "candidate_masked",
        False,
    ),
    "tfrs-q": Published(
        "tensorflow-recommenders",
        "tasks.Retrieval",
        "candidate_sampling_probability",
        TF,
        _in_batch(tfrs_retrieval, corrected=True),
        RIGHT,
        "counts",
        "candidate",
    ),
    "tfrs-q-hits": Published(
        "tensorflow-recommenders",
        "tasks.Retrieval",
        "candidate_sampling_probability, remove_accidental_hits=True",
        TF,
        _in_batch(tfrs_retrieval, corrected=True, **_HITS),
        RIGHT,
        "counts",
        "candidate_masked",
    ),
    "keras-rs-q": Published(
        "keras-rs",
        "layers.SamplingProbabilityCorrection",
        "in-batch",
        TF,
        _in_batch(keras_rs_in_batch, corrected=True, removed=False),
        RIGHT,
        "counts",
        "candidate",
    ),
    "keras-rs-hits": Published(
        "keras-rs",
        "layers.RemoveAccidentalHits",
        "in-batch",
        TF,
        _in_batch(keras_rs_in_batch, corrected=False, removed=True),
        WRONG,
        "counts",
        "candidate",
        False,
    ),
    "keras-rs-rows": Published(
        "keras-rs",
        "layers.RemoveAccidentalHits",
        "a row of ids for each example",
        TF,
        _in_batch(keras_rs_rows),
        WRONG,
        "uniform",
        "candidate",
        proposal="uniform",
    ),
    "keras-rs-rows-masked": Published(
        "keras-rs",
        "layers.RemoveAccidentalHits",
        "a row of ids for each example, -1e37 in place of 1e-40",
        TF,
        _in_batch(keras_rs_rows, mask=-1e37),
        WRONG,
        "",
        "",
        proposal="uniform",
    ),
    "sentence-transformers": Published(
        "sentence-transformers",
        "MultipleNegativesRankingLoss",
        "defaults",
        TORCH,
        remembered(sentence_transformers_mnrl),
        CONTRASTIVE,
        "counts",
        "candidate",
        False,
    ),
    "metric-learning-ntxent": Published(
        "pytorch-metric-learning",
        "NTXentLoss",
        "defaults, with ref_emb",
        TORCH,
        remembered(metric_learning_ntxent),
        CONTRASTIVE,
        "counts",
        "candidate_masked",
        False,
    ),
    "metric-learning-supcon": Published(
        "pytorch-metric-learning",
        "SupConLoss",
        "defaults, with ref_emb",
        TORCH,
        remembered(metric_learning_supcon),
        CONTRASTIVE,
        "counts",
        "candidate",
        False,
    ),
    "info-nce": Published(
        "info-nce-pytorch",
        "InfoNCE",
        "defaults",
        TORCH,
        remembered(info_nce),
        CONTRASTIVE,
        "counts",
        "candidate",
        False,
    ),
    "torch-rechub-trainer": Published(
        "torch-rechub",
        "MatchTrainer",
        "in_batch_neg=True",
        TORCH,
        rechub_trainer,
        CONTRASTIVE,
        "counts",
        "candidate",
        False,
    ),
    "torch-rechub-in-batch": Published(
        "torch-rechub",
        "InBatchNCELoss",
        "defaults",
        TORCH,
        remembered(rechub_in_batch_nce),
        WRONG,
        "",
        "",
    ),
    "torch-rechub-nce": Published(
        "torch-rechub",
        "NCELoss",
        "defaults",
        TORCH,
        remembered(rechub_nce),
        WRONG,
        "",
        "",
    ),
    "liger": Published(
        "liger-kernel",
        "LigerFusedLinearCrossEntropyLoss",
        'reduction="none", on the processor',
        TORCH,
        remembered(liger),
        RIGHT,
        "",
        "full",
    ),
    "liger-weighted": Published(
        "liger-kernel",
        "LigerFusedLinearCrossEntropyLoss",
        'reduction="none", weighted examples',
        TORCH,
        remembered(liger_weighted),
        RIGHT,
        "",
        "full",
    ),
    "cut-cross-entropy": Published(
        "cut-cross-entropy",
        "linear_cross_entropy",
        'impl="torch_compile"',
        TORCH,
        remembered(cut_cross_entropy),
        RIGHT,
        "",
        "full",
    ),
    "rectools-sampled-softmax": Published(
        "rectools",
        "SASRecModel",
        'loss="sampled_softmax"',
        RECOMMENDERS,
        rectools_sampled_softmax,
        CONTRASTIVE,
        "uniform",
        "candidate",
        proposal="uniform",
    ),
    "rectools-bce": Published(
        "rectools",
        "SASRecModel",
        'loss="BCE"',
        RECOMMENDERS,
        rectools_bce,
        LOGISTIC,
        "uniform",
        "negative_sampling_kept",
        False,
        proposal="uniform",
    ),
    "replay-ce-sampled": Published(
        "replay-rec",
        "nn.loss.CESampled",
        "defaults, its uniform sampler",
        RECOMMENDERS,
        replay_ce_sampled,
        CONTRASTIVE,
        "uniform",
        "distinct_candidate_masked",
        proposal="uniform",
    ),
    "replay-login-ce-sampled": Published(
        "replay-rec",
        "nn.loss.LogInCESampled",
        "defaults, its uniform sampler",
        RECOMMENDERS,
        replay_login_ce_sampled,
        CONTRASTIVE,
        "uniform",
        "distinct_candidate_masked",
        proposal="uniform",
    ),
    "replay-sasrec": Published(
        "replay-rec",
        "sequential.SasRec",
        "loss_sample_count=m",
        RECOMMENDERS,
        replay_sasrec,
        WRONG,
        "uniform",
        "reject",
        proposal="uniform",
    ),
    "replay-sasrec-sharing": Published(
        "replay-rec",
        "sequential.SasRec",
        "loss_sample_count=m, negatives_sharing=True",
        RECOMMENDERS,
        replay_sasrec_sharing,
        RIGHT,
        "",
        "",
        proposal="uniform",
    ),
    "recbole-bpr": Published(
        "recbole",
        "BPRLoss",
        "SeqSampler, one negative",
        RECOMMENDERS,
        recbole_bpr,
        CONTRASTIVE,
        "uniform",
        "negatives",
        False,
        "uniform",
        1,
    ),
    "pykeen-cross-entropy": Published(
        "pykeen",
        "CrossEntropyLoss",
        "BasicNegativeSampler, tails",
        RECOMMENDERS,
        pykeen_cross_entropy,
        CONTRASTIVE,
        "uniform",
        "negatives",
        False,
        "uniform",
    ),
    "pykeen-bce": Published(
        "pykeen",
        "BCEWithLogitsLoss",
        "BasicNegativeSampler, tails",
        RECOMMENDERS,
        pykeen_bce,
        LOGISTIC,
        "uniform",
        "negative_sampling",
        False,
        proposal="uniform",
    ),
    "gensim": Published(
        "gensim",
        "Word2Vec",
        "sg=1, negative=m",
        WORDS,
        gensim_skip_gram,
        LOGISTIC,
        "counts^0.75",
        "negative_sampling_masked",
        False,
        proposal=smoothed_counts,
    ),
    "merlin-in-batch": Published(
        "merlin-models",
        "models.tf.ContrastiveOutput",
        "in-batch",
        MERLIN,
        _merlin(sampler="in-batch"),
        CONTRASTIVE,
        "counts",
        "candidate_masked",
        False,
    ),
    "merlin-in-batch-q": Published(
        "merlin-models",
        "models.tf.ContrastiveOutput",
        "in-batch, PopularityLogitsCorrection",
        MERLIN,
        _merlin(sampler="in-batch", popularity=True),
        RIGHT,
        "counts",
        "candidate_masked",
    ),
    "merlin-in-batch-q-temperature": Published(
        "merlin-models",
        "models.tf.ContrastiveOutput",
        "in-batch, PopularityLogitsCorrection, logits_temperature=0.5",
        MERLIN,
        _merlin(sampler="in-batch", popularity=True, logits_temperature=0.5),
        WRONG,
        "counts",
        "candidate_masked",
        lambda q, m: q**2,
        tau=2.0,
    ),
    "merlin-popularity": Published(
        "merlin-models",
        "models.tf.ContrastiveOutput",
        "PopularityBasedSamplerV2",
        MERLIN,
        _merlin(sampler="popularity"),
        CONTRASTIVE,
        "log-uniform",
        "distinct_candidate_masked",
        False,
    ),
    "merlin-popularity-q": Published(
        "merlin-models",
        "models.tf.ContrastiveOutput",
        "PopularityBasedSamplerV2, logq_sampling_correction=True",
        MERLIN,
        _merlin(sampler="popularity", logq_sampling_correction=True),
        WRONG,
        "log-uniform",
        "distinct_candidate_masked",
        for_as_many_tries,
    ),
    "merlin-popularity-q-repeated": Published(
        "merlin-models",
        "models.tf.ContrastiveOutput",
        "PopularityBasedSamplerV2, unique=False, logq_sampling_correction=True",
        MERLIN,
        _merlin(sampler="popularity", unique=False, logq_sampling_correction=True),
        RIGHT,
        "log-uniform",
        "candidate_masked",
    ),
    "merlin-popularity-q-temperature": Published(
        "merlin-models",
        "models.tf.ContrastiveOutput",
        "the same, logits_temperature=0.5",
        MERLIN,
        _merlin(
            sampler="popularity",
            unique=False,
            logq_sampling_correction=True,
            logits_temperature=0.5,
        ),
        WRONG,
        "log-uniform",
        "candidate_masked",
        lambda q, m: q**2,
        tau=2.0,
    ),
    "merlin-torch-in-batch": Published(
        "merlin-models",
        "models.torch.ContrastiveOutput",
        "in-batch",
        MERLIN_TORCH,
        remembered(merlin_torch_in_batch),
        CONTRASTIVE,
        "counts",
        "candidate_masked",
        False,
    ),
    "merlin-torch-popularity": Published(
        "merlin-models",
        "models.torch.ContrastiveOutput",
        "PopularityBasedSampler",
        MERLIN_TORCH,
        merlin_torch_popularity,
        WRONG,
        "",
        "",
    ),
    "transformers4rec": Published(
        "transformers4rec",
        "NextItemPredictionTask",
        "sampled_softmax=True",
        MERLIN_TORCH,
        transformers4rec,
        WRONG,
        "",
        "",
    ),
    "libauc-sox": Published(
        "libauc",
        "EntLossClassification",
        "is_scent=False, uniform draws",
        MEMORY,
        of_libauc(partial(libauc_classification, is_scent=False)),
        RIGHT,
        "",
        "",
        proposal=_TWELVE,
        memory={"gamma": 0.9},
    ),
    "libauc-scent": Published(
        "libauc",
        "EntLossClassification",
        "alpha=1, uniform draws",
        MEMORY,
        of_libauc(partial(libauc_classification, alpha=1.0)),
        RIGHT,
        "",
        "",
        proposal=_TWELVE,
        memory={"alpha": np.e / 11.0},  # of a sum: exp(1) is that of a mean over 11 classes
    ),
}

# called on single batches alone: it has no proposal, because its classes are the batch
WITH_MEMORY: dict[str, Loss] = {"libauc-sogclr": of_libauc(libauc_global_contrastive)}


def main(name: str) -> None:
    """Check one loss and print what was found."""
    from samplesoft import check_loss

    one = LOSSES[name]
    found: dict[str, Any] = {"version": version(one.package)}
    try:
        memory = {} if one.memory is None else {"log_sums": True, **one.memory}
        report = check_loss(one.loss, one.proposal, one.num_sampled, tau=one.tau, **memory)
    except (TypeError, ValueError) as error:
        found |= {"verdict": str(error)}
    else:
        found |= {"scheme": report.scheme, "mistake": report.fault, "calls": report.calls}
        found |= {"verdict": report.verdict, "seconds": report.seconds}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
