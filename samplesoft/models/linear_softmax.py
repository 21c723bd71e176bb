"""Linear softmax models: a linear embedding of sparse inputs, and a softmax layer over classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse

from samplesoft._files import with_prefixes, without_prefix
from samplesoft._jit import chunks
from samplesoft._limits import ignore_overflow
from samplesoft._memory import require_bytes
from samplesoft._moving_average import as_moving_average
from samplesoft._random import mix64, stream_key, uniform_block, uniform_slice
from samplesoft._temperature import times_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array_dict,
    as_count,
    as_nonnegative,
    as_positive,
    as_real_array,
    make_arrays_writable,
    require_instance,
    short_repr,
)
from samplesoft.losses.base import Batch
from samplesoft.losses.bilateral import BilateralSoftmaxLoss
from samplesoft.losses.hierarchical import two_level_tree
from samplesoft.losses.log_sums import MovingAverageLoss
from samplesoft.losses.logistic import FullLogisticLoss
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.feature_layer import FeatureLayer, with_intercept
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.linear import (
    Gradient,
    Linear,
    as_float_dtype,
    checked_inputs,
    checked_rows,
    select_rows,
    uniform_weights,
)
from samplesoft.models.pair_weights import PairWeights
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.models.softmax_settings import SoftmaxSettings
from samplesoft.samplers.base import Rows
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.search import checked_k, checked_leave_out, top_k_classes

_CHUNK_ENTRIES = 1 << 17  # input entries that are processed at a time
_CHUNK_SCORES = 1 << 24  # scores that are computed at a time
# random streams, one for each purpose
_EMBEDDING, _CLASSES, _SAMPLER, _DROPOUT, _DRAWS = map(np.uint64, range(5))
_RATES = ("gamma", "scent_alpha")  # fields for a `MovingAverageLoss`
_DEFAULT_TOTAL_PENALTY = 0.003  # default `alpha` times the number of classes


def normalizes_by_default(embedding_dim: int | None, loss: str) -> bool:
    """Return the default of the setting `normalize`: whether vectors are divided by their norms."""
    spec = LOSSES[loss]
    return embedding_dim is not None and not spec.on_tree and spec.make is not FullLogisticLoss


@dataclass(frozen=True)
class LinearSoftmaxSettings(SoftmaxSettings):
    """Settings of a linear softmax model: a linear embedding and a softmax layer.

    The default sampler is `samplesoft.samplers.ClusterSampler`. With it a model of 40,981 items was
    nearly as accurate as with the full softmax, in a third of the time. For a few hundred classes,
    ``"unigram"`` was nearly as accurate as clusters in half of the time. See docs/benchmarks.md,
    section "Defaults of softmax layers".

    Parameters
    ----------
    embedding_dim : int or None
        Length d of embedded inputs and of class vectors. None for a model without an embedding,
        whose class vectors have a weight for each input feature. Such a model does not normalise
        vectors, and needs a sampler that is independent of inputs.
    alpha : float, optional
        Factor of an L2 penalty, for an `embedding_dim` of None only: ``alpha / 2`` times the sum of
        squares of all class vectors is added to the mean loss. By default 0.003 divided by the
        number of classes, because with more classes each has a smaller effect on the loss.
    dropout : float
        Probability with which a training step drops an entry of an input.
    label_reduction : {"pal-n", "pal", "ova"}
        Reduction of the losses of several labels of an example: their mean (pal-n), their sum
        (pal), or one versus all (ova), which is for the losses ``"nce"``,
        ``"negative-sampling-masked"`` and ``"gbce"``. See `samplesoft.losses.base.Loss`.
    negative_weight : float, optional
        Weight of the log-sum-exp of the draws in ``loss="bilateral"``, by default as in
        `samplesoft.losses.BilateralSoftmaxLoss`; not used by other losses.
    gamma, scent_alpha : float, optional
        Arguments `gamma` and `alpha` of `samplesoft.losses.MovingAverageLoss`, for
        ``loss="moving-average"`` only: how fast running estimates move. At most one may be given;
        by default `gamma` is that of the loss.
    mask_other_labels : bool
        Whether the negatives of a label exclude the other labels of the example.
    loss, tau, normalize, sampler, num_sampled, num_certain, nu, num_features, shared, update_every
        Settings of the softmax layer, as in `SoftmaxSettings`.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed, or the loss and the sampler are incompatible.
    """

    loss: str = "sampled-masked"
    embedding_dim: int | None = 64
    alpha: float | None = None
    dropout: float = 0.0
    label_reduction: str = "pal-n"
    mask_other_labels: bool = True
    negative_weight: float | None = None
    gamma: float | None = None
    scent_alpha: float | None = None

    _loss_fields = (*SoftmaxSettings._loss_fields, "label_reduction", "mask_other_labels")

    def __post_init__(self) -> None:
        # check this first, because the default sampler would cause a less clear error
        if self.embedding_dim is None:
            self._check_without_embedding()
        super().__post_init__()

        if self._resolved_normalize() and LOSSES[self.loss].make is FullLogisticLoss:
            raise ValueError(
                f"`normalize` must be False with loss={self.loss!r}, got True: scores of vectors "
                "of norm 1 cannot fall to the -log n of classes that are rare; leave it out."
            )

        self._check_rates()
        tree = {"tree": two_level_tree([1.0])} if LOSSES[self.loss].on_tree else {}
        # make a loss only to validate its options
        make_loss(self.loss, **tree, **self._loss_options())

        if self.alpha is not None:
            as_nonnegative("alpha", self.alpha)
        if self.negative_weight is not None:
            as_positive("negative_weight", self.negative_weight)
        as_nonnegative("dropout", self.dropout, below=1.0)
        if self.embedding_dim is not None:
            as_count("embedding_dim", self.embedding_dim)

    def _default_normalize(self) -> bool:
        """Return the default of `normalize` for these settings."""
        return normalizes_by_default(self.embedding_dim, self.loss)

    def _loss_options(self) -> dict[str, Any]:
        """Return the keyword arguments of the loss that its name does not fix."""
        options = super()._loss_options()
        if self.negative_weight is not None and LOSSES[self.loss].make is BilateralSoftmaxLoss:
            options["negative_weight"] = self.negative_weight
        if LOSSES[self.loss].make is MovingAverageLoss:
            options |= {"gamma": self.gamma, "alpha": self.scent_alpha}
        return options

    def _check_rates(self) -> None:
        """Raise unless the loss takes `gamma` and `scent_alpha`, or both are None."""
        for name in _RATES:
            value = getattr(self, name)
            if value is not None and LOSSES[self.loss].make is not MovingAverageLoss:
                raise ValueError(
                    f"`{name}` must be None with loss={self.loss!r}, got {short_repr(value)}; it "
                    "is for loss='moving-average'."
                )
        as_moving_average(self.gamma, self.scent_alpha, alpha_name="scent_alpha")

    def config(self) -> dict[str, Any]:
        """Return the fields by name, without newer ones that are None."""
        config = asdict(self)
        for name in ("negative_weight", *_RATES):  # older files do not have these keys
            if config[name] is None:
                del config[name]
        return config

    def _check_without_embedding(self) -> None:
        """Raise ValueError if a model without an embedding does not support these settings."""
        if self.loss in LOSSES and LOSSES[self.loss].on_tree:
            raise ValueError(
                f"`embedding_dim` must be a number with loss={self.loss!r}, whose nodes have "
                "vectors of that length, got None."
            )

        if self.normalize:
            raise ValueError(
                "`normalize` must be False with embedding_dim=None, got True; divide the inputs by "
                "their norms, with sklearn.preprocessing.normalize."
            )

        # a sampler from a function is validated by the layer
        is_object = self.sampler is None or callable(self.sampler)
        if not is_object and self._sampler_follows_contexts():
            samplers = ", ".join(
                name for name, spec in SAMPLERS.items() if not spec.follows_vectors
            )
            raise ValueError(
                f"`sampler` must not look at inputs with embedding_dim=None, got {self.sampler!r}; "
                f"take one of {samplers}."
            )

    def require_memory(self, num_inputs: int, num_classes: int, dtype: np.dtype[Any]) -> None:
        """Raise MemoryError if the parameters of a model would not fit.

        Parameters
        ----------
        num_inputs, num_classes : int
            Number of columns v of an input, and of classes n.
        dtype : dtype
            Dtype of the parameters.

        Raises
        ------
        MemoryError
            If the parameters would not fit.
        TypeError, ValueError
            If a size is malformed.
        """
        inputs = as_count("num_inputs", num_inputs)
        classes = as_count("num_classes", num_classes)
        dim = self.embedding_dim

        # A tree has at most 2 n nodes. The intercept of a model without an embedding counts as one
        # more input.
        nodes = 2 * classes if LOSSES[self.loss].on_tree else classes
        num_values = (inputs + 1) * classes if dim is None else (inputs + nodes) * dim

        remedy = "lower `embedding_dim`, or number inputs and classes from 0 without gaps"
        if dim is None:
            remedy = "take an `embedding_dim`"
        require_bytes(
            f"vectors for `num_inputs` = {num_inputs:,} and `num_classes` = {num_classes:,}",
            num_values * dtype.itemsize,
            remedy,
        )


class LinearSoftmax:
    """A linear softmax model: a linear embedding of inputs, and a softmax layer over classes.

    The score of class j for an input x is ``tau * (x @ U + u) . c_j``, optionally with both vectors
    divided by their norms. For an `embedding_dim` of None it is ``tau * (x . c_j + b_j)``.

    Parameters
    ----------
    num_inputs, num_classes : int
        Number of columns v of an input, and of classes n.
    settings : LinearSoftmaxSettings
        Settings of the embedding, the loss and the sampler. The attribute `settings` has them with
        all defaults filled in.
    counts : array_like, shape (n,), optional
        Count of each class, for samplers that use frequencies.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Seed of the parameters and of random features.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``embedding.weights`` (v, d), ``embedding.intercept`` (d,) and
        ``softmax.class_embeddings`` (n, d). A model without an embedding has only
        ``softmax.weights``: a row of n weights for each feature, and a last row of n intercepts,
        initially zeros.
    embedding : Linear
        Layer that maps inputs to contexts; only in a model with an `embedding_dim`.
    softmax : SoftmaxLayer
        Layer with the class vectors, the loss and the sampler.
    sampler_seed : int
        Seed of the sampler; only in a model with an `embedding_dim`.
    pair_weights : PairWeights or None
        Weights of pairs of a feature and a class. `scores` and `top_k` add them to the scores;
        `step` neither uses nor changes them.

    Raises
    ------
    MemoryError
        If the parameters would not fit.
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> from samplesoft.optimizers import make_optimizer
    >>> settings = LinearSoftmaxSettings(loss="full", sampler=None, num_sampled=None)
    >>> model, optimizer = LinearSoftmax(4, 4, settings, rng=0), make_optimizer("adagrad", 0.1)
    >>> x, labels = sparse.csr_array(np.eye(4, dtype=np.float32)), np.array([1, 2, 3, 0])
    >>> for step in range(50):
    ...     loss, gradients = model.step(x, labels, rng=step)
    ...     optimizer.step(model.parameters, gradients)
    ...     model.after_step(gradients)
    >>> ids, scores = model.top_k(x, 1)
    >>> ids.ravel()
    array([1, 2, 3, 0])
    """

    embedding: Linear
    softmax: SoftmaxLayer
    pair_weights: PairWeights | None = None

    def __init__(
        self,
        num_inputs: int,
        num_classes: int,
        settings: LinearSoftmaxSettings,
        *,
        counts: ArrayLike | None = None,
        dtype: DTypeLike = np.float32,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        require_instance("settings", settings, LinearSoftmaxSettings)
        self.settings = settings.resolved()
        self.dtype = as_float_dtype(dtype)
        settings.require_memory(num_inputs, num_classes, self.dtype)
        self.num_inputs = int(num_inputs)
        self.num_classes = int(num_classes)
        settings = self.settings
        key = stream_key(rng)
        dim = settings.embedding_dim

        # Number of inputs at a time in prediction. Without an embedding the cost of a chunk grows
        # with the number of features that occur in it, so that chunks are small.
        self._chunk_rows = 64 if dim is None else 1024

        if dim is None:
            self.softmax = self._make_feature_layer(counts, int(key))
            return
        streams = [np.uint64(mix64(key, k)) for k in (_EMBEDDING, _CLASSES, _SAMPLER)]
        self.sampler_seed = int(streams[2])
        self.embedding = Linear(num_inputs, dim, dtype=self.dtype, rng=int(streams[0]))

        # weights are uniform in +-1 / sqrt(d), so that vectors have norms of about 0.58 for any d
        rows = uniform_weights((num_classes, dim), dim**-0.5, self.dtype, streams[1])
        self.softmax = settings.make_layer(rows, counts, self.sampler_seed, reduction="sum")

    def _make_feature_layer(self, counts: ArrayLike | None, seed: int) -> FeatureLayer:
        """Return the layer of a model without an embedding."""
        settings = self.settings
        n = self.num_classes
        sampler = None
        if settings.sampler is not None:
            # the sampler does not use class vectors, so pass placeholders of length 1
            sampler = settings.make_sampler(np.zeros((n, 1)), counts, seed)

        # with more classes, each has a smaller effect on the loss
        alpha = _DEFAULT_TOTAL_PENALTY / n if settings.alpha is None else settings.alpha
        return FeatureLayer(
            self.num_inputs,
            n,
            settings.make_loss(n, self.num_inputs, "sum"),
            sampler,
            settings.num_sampled,
            shared=settings.shared,
            alpha=alpha,
            dtype=self.dtype,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters by name; an optimizer updates these arrays in place."""
        groups = {"softmax": self.softmax.parameters}
        if self.settings.embedding_dim is not None:
            groups = {"embedding": self.embedding.parameters, **groups}
        return with_prefixes(groups)

    def set_tau(self, tau: float) -> None:
        """Change the inverse temperature of the scores; the sampler must not depend on it."""
        self.settings = replace(self.settings, tau=tau)
        self.softmax.loss.tau = tau

    def copy_read_only_parameters(self) -> None:
        """Replace read-only parameters, such as memory-mapped arrays, by writable copies.

        References to the old arrays no longer refer to parameters of the model.
        """
        make_arrays_writable(self.softmax.parameters)
        if self.settings.embedding_dim is not None:
            make_arrays_writable(self.embedding.parameters)

    def step(
        self,
        x: Any,
        labels: Any,
        *,
        log_sums: FloatArray | None = None,
        weights: ArrayLike | None = None,
        rng: int | np.random.Generator | None = None,
        draws: int | np.random.Generator | None = None,
    ) -> tuple[float, dict[str, Gradient]]:
        """Compute the mean loss of a batch and its gradients, without changing parameters.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels, as in `samplesoft.losses.base.Loss.forward`.
        log_sums : ndarray of float64, shape (B,), optional
            For ``loss="moving-average"``: the number of each example, which is overwritten by the
            new one. By default all examples are new.
        weights : array_like, shape (B,), optional
            Weights of the losses of the examples; by default 1.
        rng : int or numpy.random.Generator or None
            Seed of dropout and draws.
        draws : int or numpy.random.Generator or None
            Seed of the draws; by default it is derived from `rng`.

        Returns
        -------
        loss : float
            Sum of the weighted losses divided by B, in nats.
        gradients : dict of str to ndarray or SparseRows
            Gradients under the names of `parameters`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        key = stream_key(rng)
        x = self.check_inputs(x)
        if log_sums is not None:
            _require_overwritable(log_sums)
        batch_size = x.shape[0]
        example_weights = np.ones(batch_size)
        if weights is not None:
            example_weights = as_real_array("weights", weights, (1,))

        # dropout and draws have separate random streams, so that they are independent
        dropped_inputs = self.with_dropout(x, np.uint64(mix64(key, _DROPOUT)))
        draws = int(np.uint64(mix64(key, _DRAWS))) if draws is None else draws

        # the loss is a sum over examples: weights divided by the batch size give the mean
        loss_arguments = {
            "log_sums": log_sums,
            "weights": example_weights / batch_size,
            "rng": draws,
        }

        if self.settings.embedding_dim is None:
            loss, saved = self.softmax.forward(dropped_inputs, labels, **loss_arguments)
            _keep_log_sums(getattr(saved, "loss_cache", saved).batch, log_sums)
            return float(loss), with_prefixes({"softmax": self.softmax.backward(saved)[1]})

        h, cache = self.embedding.forward(dropped_inputs)
        loss, saved = self.softmax.forward(h, labels, **loss_arguments)
        _keep_log_sums(saved.batch, log_sums)
        dh, softmax_gradients = self.softmax.backward(saved)

        # ignore the derivatives in the inputs: inputs are data, and are not trained
        _, embedding_gradients = self.embedding.backward(cache, dh)

        groups: dict[str, Mapping[str, Gradient]]
        groups = {"embedding": embedding_gradients, "softmax": softmax_gradients}
        return float(loss), with_prefixes(groups)

    def check_inputs(self, x: Any) -> Any:
        """Return validated inputs (B, v) in the dtype of the model."""
        return checked_inputs(x, self.num_inputs, self.dtype)

    def _checked_rows(self, x: Any) -> Any:
        """Return validated inputs (B, v) without a copy; `select_rows` converts chunks of them."""
        return checked_rows(x, self.num_inputs, self.dtype)

    def after_step(self, gradients: Mapping[str, Gradient]) -> None:
        """Update the sampler for the class vectors that a step with these gradients has changed."""
        # without an embedding the parameter has another name, so that ids is None; the sampler is
        # then independent of class vectors, and ignores the update
        self.softmax.update(getattr(gradients.get("softmax.class_embeddings"), "ids", None))

    def embed(self, x: Any) -> Rows:
        """Return contexts (B, d) of inputs (B, v), of norm 1 if the model normalises.

        Contexts of a model without an embedding are the dense inputs and a column of ones,
        (B, v + 1).
        """
        if self.settings.embedding_dim is None:
            x = self.check_inputs(x)
            dense = x if isinstance(x, np.ndarray) else x.toarray()
            return with_intercept(dense, self.num_inputs)[0]
        h, _ = self.embedding.forward(x)
        return unit_rows("x", h)[0] if self.settings.normalize else h

    def class_vectors(self) -> Rows:
        """Return class vectors (n, d), of norm 1 if the model normalises."""
        rows = self.softmax.class_embeddings
        if isinstance(self.softmax, HierarchicalSoftmax):
            raise ValueError("a model over a tree has vectors of nodes, and none of classes.")
        if not self.settings.normalize:
            return rows
        return unit_rows("class_embeddings", rows.copy())[0]

    def top_k(self, x: Any, k: int, *, leave_out: Any = None) -> tuple[IntArray, Rows]:
        """Find the k classes with the largest scores for each input.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs. Other dtypes and memory orders are converted in chunks.
        k : int
            Number of classes, at most n.
        leave_out : scipy.sparse CSR matrix, shape (B, n), optional
            Classes to exclude for each input, such as known items of a user.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes by descending score; of equal scores, the class with the smallest index first.
        scores : ndarray, shape (B, k)
            Scores of these classes. If fewer than k classes are not excluded, excluded ones follow
            with score -inf.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or a score among the best is not finite.
        """
        layer = self.softmax
        x = self._checked_rows(x)
        k = checked_k(k, self.num_classes)
        excluded = checked_leave_out(leave_out, (x.shape[0], self.num_classes))

        if self.pair_weights is not None:
            return self._top_k_of_all_scores(x, k, excluded)

        best = []
        for chunk in chunks(x.shape[0], self._chunk_rows):
            excluded_chunk = None if excluded is None else excluded[chunk]
            inputs = select_rows(x, chunk, self.dtype)
            if isinstance(layer, HierarchicalSoftmax):
                best.append(layer.top_k(self.embed(inputs), k, leave_out=excluded_chunk))
                continue

            h, vectors = self._contexts_and_vectors(inputs, layer.class_embeddings)
            best.append(
                top_k_classes(
                    h,
                    vectors,
                    k,
                    tau=layer.loss.tau,
                    normalize=layer.loss.normalize,
                    leave_out=excluded_chunk,
                )
            )

        ids, scores = (np.concatenate(arrays) for arrays in zip(*best, strict=True))
        return ids, scores

    def _top_k_of_all_scores(self, x: Any, k: int, leave_out: Any) -> tuple[IntArray, Rows]:
        """Return the result of `top_k`, found in the matrix of all scores of a chunk of inputs."""
        ids = np.empty((x.shape[0], k), np.int64)
        best = np.empty((x.shape[0], k), self.dtype)
        for chunk, scores in self.scores(x, leave_out=leave_out):
            _raise_unless_finite(scores, chunk.start, leave_out is not None)
            # the k-th largest score of each input; others with the same score may come before it
            bounds = np.partition(scores, -k, axis=1)[:, -k]
            for b, row in enumerate(scores):
                candidates = np.flatnonzero(row >= bounds[b])
                order = np.argsort(-row[candidates], kind="stable")[:k]
                ids[chunk.start + b] = candidates[order]
                best[chunk.start + b] = row[candidates[order]]
        return ids, best

    def scores(self, x: Any, *, leave_out: Any = None) -> Iterator[tuple[slice, Rows]]:
        """Yield the scores of all classes, for one chunk of the inputs at a time.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs.
        leave_out : scipy.sparse CSR matrix, shape (B, n), optional
            Classes to exclude for each input; their scores are -inf.

        Yields
        ------
        chunk : slice
            Slice of b inputs.
        scores : ndarray, shape (b, n)
            Scores of all classes for these inputs.
        """
        layer = self.softmax
        x = self._checked_rows(x)
        n = self.num_classes
        tree = layer if isinstance(layer, HierarchicalSoftmax) else None
        if tree is None:  # normalise once, not for each chunk of inputs
            rows = self.class_vectors()
        excluded = checked_leave_out(leave_out, (x.shape[0], n))

        for chunk in chunks(x.shape[0], max(1, min(self._chunk_rows, _CHUNK_SCORES // n))):
            inputs = select_rows(x, chunk, self.dtype)
            if tree is not None:
                scores = tree.log_probs(self.embed(inputs)).astype(self.dtype)
            else:
                h, vectors = self._contexts_and_vectors(inputs, rows)
                # multiply the contexts by tau, because they have fewer values than the scores
                scores = times_tau(h, layer.loss.tau) @ vectors.T
            if self.pair_weights is not None:
                self.pair_weights.add_to(scores, inputs)

            if excluded is not None:
                # with score -inf, excluded classes are last in a ranking, and have probability 0
                scores[excluded[chunk].nonzero()] = -np.inf
            yield chunk, scores

    def _contexts_and_vectors(self, x: Any, rows: Rows) -> tuple[Rows, Rows]:
        """Return contexts (B, d) of inputs, and the class vectors `rows` (n, d).

        For a model without an embedding, both are restricted to the features that occur in the
        inputs.
        """
        if self.settings.embedding_dim is not None:
            return self.embed(x), rows
        # features that do not occur in these inputs do not contribute to the products
        contexts, features = with_intercept(x, self.num_inputs)
        return contexts, np.ascontiguousarray(np.take(rows.T, features, axis=0).T)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the sampler, without state that is computed from class vectors."""
        return with_prefixes({"sampler": self.softmax.state()})

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the sampler, given the result of `state`."""
        self.softmax.load_state(without_prefix("sampler", as_array_dict("state", state)))

    def with_dropout(self, x: Any, key: np.uint64, first: int = 0) -> Any:
        """Return inputs (B, v) with dropped entries removed, and the others divided by 1 - dropout.

        `first` is the number of entries of earlier inputs that have used the same random stream.
        """
        rate = self.settings.dropout
        if rate == 0.0:
            return x

        if isinstance(x, np.ndarray):
            is_kept = uniform_block(stream_key(int(key)), *x.shape) >= rate
            with ignore_overflow():  # the layer rejects infinity
                return x * (is_kept * x.dtype.type(1.0 / (1.0 - rate)))

        kept_inputs = select_entries(x, uniform_slice(key, first, x.nnz) >= rate)
        with ignore_overflow():
            kept_inputs.data /= x.dtype.type(1.0 - rate)
        return kept_inputs


def _require_overwritable(log_sums: FloatArray) -> None:
    """Raise TypeError unless `log_sums` is an array that can take new numbers."""
    require_instance("log_sums", log_sums, np.ndarray)
    if log_sums.dtype != np.float64 or not log_sums.flags.writeable:
        raise TypeError(
            f"`log_sums` must be a writable array of float64, got {log_sums.dtype}, writable: "
            f"{log_sums.flags.writeable}; make one with numpy.array(log_sums, float)."
        )


def _keep_log_sums(batch: Batch, log_sums: FloatArray | None) -> None:
    """Overwrite `log_sums` (B,) by the new ones of a batch; do nothing if it is None."""
    if log_sums is not None:
        assert batch.log_sums is not None
        log_sums[:] = batch.log_sums


def _raise_unless_finite(scores: Rows, first_row: int, has_excluded: bool) -> None:
    """Raise ValueError unless scores (B, n) are finite; excluded ones may be -inf."""
    is_finite = scores < np.inf if has_excluded else np.isfinite(scores)
    if not is_finite.all():
        row = int(np.argmin(is_finite.all(axis=1)))
        raise ValueError(
            f"the best scores must be finite, got {scores[row].max()} for row {first_row + row} of "
            "`x`; bring inputs to the scale of those that the model was trained on."
        )


def select_entries(matrix: Any, kept: NDArray[np.bool_]) -> sparse.csr_array:
    """Return a copy of a CSR matrix with only those entries for which `kept` is true."""
    # row offsets need the dtype of the column indices; otherwise SciPy converts the indices
    starts = np.zeros_like(matrix.indptr)

    for rows in chunks(len(starts) - 1, max(1, _CHUNK_ENTRIES * len(starts) // max(1, len(kept)))):
        ends = matrix.indptr[rows.start : rows.stop + 1]
        num_kept_before = np.concatenate([[0], np.cumsum(kept[ends[0] : ends[-1]])])
        starts[rows.start + 1 : rows.stop + 1] = (
            starts[rows.start] + num_kept_before[ends[1:] - ends[0]]
        )

    return sparse.csr_array((matrix.data[kept], matrix.indices[kept], starts), matrix.shape)
