"""A linear embedding under a softmax layer: inputs and classes may be very many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse

from samplesoft._files import prefixed
from samplesoft._files import unprefixed as part_of
from samplesoft._jit import chunks
from samplesoft._limits import ignore_overflow
from samplesoft._memory import require_bytes
from samplesoft._random import as_key, mix64, uniform_block, uniform_run
from samplesoft._temperature import times_tau
from samplesoft._validation import (
    IntArray,
    as_count,
    as_named_arrays,
    as_nonnegative,
    as_positive,
    as_real_array,
    copy_read_only_arrays,
    require_instance,
)
from samplesoft.losses.bilateral import BilateralSoftmaxLoss
from samplesoft.losses.hierarchical import two_level_tree
from samplesoft.losses.logistic import FullLogisticLoss
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.feature_layer import FeatureLayer, with_intercept
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.linear import (
    Gradient,
    Linear,
    as_float_dtype,
    check_inputs,
    check_rows,
    some_rows,
    uniform_weights,
)
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.models.softmax_settings import SoftmaxSettings
from samplesoft.samplers.base import Rows
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.search import check_k, check_leave_out, top_k_classes

_CHUNK_ENTRIES = 1 << 17  # counted at a time
_SCORES = 1 << 24  # scores at a time, where all classes are scored
_EMBEDDING, _CLASSES, _SAMPLER, _DROPOUT, _DRAWS = map(np.uint64, range(5))
_PENALTY = 0.003  # of all classes together, by default


def normalizes(embedding_dim: int | None, loss: str) -> bool:
    """Return whether vectors are divided by their norms by default."""
    spec = LOSSES[loss]
    return embedding_dim is not None and not spec.on_tree and spec.make is not FullLogisticLoss


@dataclass(frozen=True)
class LinearSoftmaxSettings(SoftmaxSettings):
    """A linear embedding under a softmax layer.

    The default sampler is `samplesoft.samplers.ClusterSampler`, nearly as good as the full softmax
    in a third of its time for 40,981 items; for a few hundred classes ``"unigram"`` is nearly as
    good as clusters in half of their time. Measured in docs/benchmarks.md, section "Defaults of
    softmax layers".

    Parameters
    ----------
    embedding_dim : int or None
        Length d of embedded inputs and of class vectors. None for class vectors on the inputs
        themselves, a linear model without a bottleneck. It is not normalised, and takes samplers
        that do not look at inputs.
    alpha : float, optional
        Of an L2 penalty, for an `embedding_dim` of None: half of it times the sum of the squares of
        the numbers of class vectors is added to the mean loss. By default 0.003 divided by the
        number of classes, for the more of them, the less each has to do with the loss.
    dropout : float
        Share of the entries of an input that a step of training leaves out.
    label_reduction : {"pal-n", "pal", "ova"}
        What the loss of an example with several labels is: the mean of their losses, or their
        sum; ``"ova"``, one versus all, is for ``"nce"``, ``"negative-sampling-masked"`` and
        ``"gbce"``. `samplesoft.losses.base.Loss` says which is for what.
    negative_weight : float, optional
        What the log-sum-exp of the draws weighs in ``loss="bilateral"``, by default as in
        `samplesoft.losses.BilateralSoftmaxLoss`; other losses have none.
    mask_other_labels : bool
        Leave the other labels of an example out of the negatives of a label; measured there, too.
    loss, tau, normalize, sampler, num_sampled, num_certain, nu, num_features, shared, update_every
        Of the softmax layer, as in `SoftmaxSettings`.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed, or the loss and the sampler do not go together.
    """

    loss: str = "sampled-masked"
    embedding_dim: int | None = 64
    alpha: float | None = None
    dropout: float = 0.0
    label_reduction: str = "pal-n"
    mask_other_labels: bool = True
    negative_weight: float | None = None

    _of_loss = (*SoftmaxSettings._of_loss, "label_reduction", "mask_other_labels")

    def __post_init__(self) -> None:
        # first, for it explains more than what the default sampler says of its vectors
        if self.embedding_dim is None:
            self._check_direct()
        super().__post_init__()
        if self._unit_vectors() and LOSSES[self.loss].make is FullLogisticLoss:
            raise ValueError(
                f"`normalize` must be False with loss={self.loss!r}, got True: scores of vectors "
                "of norm 1 cannot fall to the -log n of classes that are rare; leave it out."
            )
        tree = {"tree": two_level_tree([1.0])} if LOSSES[self.loss].on_tree else {}
        make_loss(self.loss, **tree, **self._loss_options())  # which checks those of labels
        if self.alpha is not None:
            as_nonnegative("alpha", self.alpha)
        if self.negative_weight is not None:
            as_positive("negative_weight", self.negative_weight)
        as_nonnegative("dropout", self.dropout, below=1.0)
        if self.embedding_dim is not None:
            as_count("embedding_dim", self.embedding_dim)

    def _normalizes(self) -> bool:
        return normalizes(self.embedding_dim, self.loss)

    def _loss_options(self) -> dict[str, Any]:
        options = super()._loss_options()
        if self.negative_weight is not None and LOSSES[self.loss].make is BilateralSoftmaxLoss:
            options["negative_weight"] = self.negative_weight
        return options

    def config(self) -> dict[str, Any]:
        """Return the fields for a file, which has a key for `negative_weight` if that is given."""
        config = asdict(self)
        if self.negative_weight is None:  # files of before do not name it
            del config["negative_weight"]
        return config

    def _check_direct(self) -> None:
        """Raise ValueError unless a model on the inputs themselves can be so."""
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
        unknown = self.sampler is None or callable(self.sampler)  # which the layer looks at
        if not unknown and self._sampler_follows():
            able = ", ".join(name for name, spec in SAMPLERS.items() if not spec.follows_vectors)
            raise ValueError(
                f"`sampler` must not look at inputs with embedding_dim=None, got {self.sampler!r}; "
                f"take one of {able}."
            )

    def require_memory(self, num_inputs: int, num_classes: int, dtype: np.dtype[Any]) -> None:
        """Raise MemoryError if the parameters of a model would not fit.

        Parameters
        ----------
        num_inputs, num_classes : int
            Columns v of an input, and classes n.
        dtype : dtype
            Of the parameters.

        Raises
        ------
        MemoryError
            If they would not fit.
        TypeError, ValueError
            If a number is malformed.
        """
        inputs, classes = as_count("num_inputs", num_inputs), as_count("num_classes", num_classes)
        dim = self.embedding_dim
        # one more input is the intercept
        nodes = 2 * classes if LOSSES[self.loss].on_tree else classes
        size = (inputs + 1) * classes if dim is None else (inputs + nodes) * dim
        require_bytes(
            f"vectors for `num_inputs` = {num_inputs:,} and `num_classes` = {num_classes:,}",
            size * dtype.itemsize,
            "take an `embedding_dim`"
            if dim is None
            else "lower `embedding_dim`, or number inputs and classes from 0 without gaps",
        )


class LinearSoftmax:
    """Class scores ``tau * (x @ U + u).c``, of vectors of norm 1 if the settings say so.

    With an `embedding_dim` of None, scores are ``tau * (x . c_j + b_j)``, of inputs themselves.

    Parameters
    ----------
    num_inputs, num_classes : int
        Columns v of an input, and classes n.
    settings : LinearSoftmaxSettings
        Sizes, loss and sampler; the model keeps them as `LinearSoftmaxSettings.resolved`.
    counts : array_like, shape (n,), optional
        How often each class occurs, for samplers that draw by that.
    dtype : dtype
        float32 or float64.
    rng : int or numpy.random.Generator or None
        Source of the parameters and of random features.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``embedding.weights`` (v, d), ``embedding.intercept`` (d,) and
        ``softmax.class_embeddings`` (n, d). Without an embedding ``softmax.weights``, zeros at
        first: of each feature, a number for each class, and last the intercepts.
    embedding : Linear
        What makes contexts of inputs, in a model with an `embedding_dim`.
    softmax : SoftmaxLayer
        Loss, sampler and class vectors.
    sampler_seed : int
        Seed of the sampler, in a model with an `embedding_dim`.

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
        self.settings, self.dtype = settings.resolved(), as_float_dtype(dtype)
        settings.require_memory(num_inputs, num_classes, self.dtype)
        self.num_inputs, self.num_classes = int(num_inputs), int(num_classes)
        settings = self.settings
        key, dim = as_key(rng), settings.embedding_dim
        # inputs at a time, where no gradient is wanted; with few features that occur, without d
        self._rows_at_a_time = 64 if dim is None else 1024
        if dim is None:
            self.softmax = self._layer_on_inputs(counts, int(key))
            return
        streams = [np.uint64(mix64(key, k)) for k in (_EMBEDDING, _CLASSES, _SAMPLER)]
        self.sampler_seed = int(streams[2])
        self.embedding = Linear(num_inputs, dim, dtype=self.dtype, rng=int(streams[0]))
        # in +-1 / sqrt(d) a vector has a norm of about 0.58, whatever d
        rows = uniform_weights((num_classes, dim), dim**-0.5, self.dtype, streams[1])
        self.softmax = settings.make_layer(rows, counts, self.sampler_seed, reduction="sum")

    def _layer_on_inputs(self, counts: ArrayLike | None, seed: int) -> FeatureLayer:
        """Return the layer of a model without an embedding."""
        settings, n = self.settings, self.num_classes
        sampler = None
        if settings.sampler is not None:
            # it does not look at vectors: one number for each class stands for them
            sampler = settings.make_sampler(np.zeros((n, 1)), counts, seed)
        return FeatureLayer(
            self.num_inputs,
            n,
            settings.make_loss(n, self.num_inputs, "sum"),
            sampler,
            settings.num_sampled,
            shared=settings.shared,
            # the more classes there are, the less each has to do with the loss
            alpha=_PENALTY / n if settings.alpha is None else settings.alpha,
            dtype=self.dtype,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """What an optimizer changes, by name."""
        parts = {"softmax": self.softmax.parameters}
        if self.settings.embedding_dim is not None:
            parts = {"embedding": self.embedding.parameters, **parts}
        return prefixed(parts)

    def own_parameters(self) -> None:
        """Copy parameters that only can be read, such as those mapped from a file, to train them.

        Arrays of `parameters` that somebody holds from before are then no longer the model's.
        """
        copy_read_only_arrays(self.softmax.parameters)
        if self.settings.embedding_dim is not None:
            copy_read_only_arrays(self.embedding.parameters)

    def step(
        self,
        x: Any,
        labels: Any,
        *,
        weights: ArrayLike | None = None,
        rng: int | np.random.Generator | None = None,
        draws: int | np.random.Generator | None = None,
    ) -> tuple[float, dict[str, Gradient]]:
        """Go forward and back over a batch.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels, as in `samplesoft.losses.base.Loss.forward`.
        weights : array_like, shape (B,), optional
            Weights of the examples, by which their losses are multiplied.
        rng : int or numpy.random.Generator or None
            Seed of dropout and draws.
        draws : int or numpy.random.Generator or None
            Seed of the draws, if they have another.

        Returns
        -------
        loss : float
            Mean over the examples, in nats.
        gradients : dict of str to ndarray or SparseRows
            By the names of `parameters`.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        # dropout and draws have streams of their own, so that one does not change with the other
        key = as_key(rng)
        x = self.check_inputs(x)
        size = x.shape[0]
        of_examples = np.ones(size) if weights is None else as_real_array("weights", weights, (1,))
        thin = self.with_dropout(x, np.uint64(mix64(key, _DROPOUT)))
        draws = int(np.uint64(mix64(key, _DRAWS))) if draws is None else draws
        # the loss adds examples up, so that weights divided by the batch make its mean
        of_loss = {"weights": of_examples / size, "rng": draws}
        if self.settings.embedding_dim is None:
            loss, saved = self.softmax.forward(thin, labels, **of_loss)
            return float(loss), prefixed({"softmax": self.softmax.backward(saved)[1]})
        h, cache = self.embedding.forward(thin)
        loss, saved = self.softmax.forward(h, labels, **of_loss)
        dh, of_softmax = self.softmax.backward(saved)
        # inputs are data: nothing asks for the derivative in them
        _, of_embedding = self.embedding.backward(cache, dh)
        parts: dict[str, Mapping[str, Gradient]]
        parts = {"embedding": of_embedding, "softmax": of_softmax}
        return float(loss), prefixed(parts)

    def check_inputs(self, x: Any) -> Any:
        """Return inputs (B, v) whose rows can be taken, for callers that look at them first."""
        return check_inputs(x, self.num_inputs, self.dtype)

    def _check_rows(self, x: Any) -> Any:
        """Return inputs (B, v) of which some rows at a time are brought to the model's type."""
        return check_rows(x, self.num_inputs, self.dtype)

    def after_step(self, gradients: Mapping[str, Gradient]) -> None:
        """Let the sampler follow the class vectors that an optimizer has changed."""
        # a model on inputs themselves has no such vectors, and a sampler that follows none
        self.softmax.update(getattr(gradients.get("softmax.class_embeddings"), "ids", None))

    def embed(self, x: Any) -> Rows:
        """Return contexts (B, d) of inputs (B, v), of norm 1 if the model normalises.

        Without an embedding these are the inputs, dense, with a one for the intercept (B, v + 1).
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
        """Find the classes of the largest scores, some inputs at a time.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs; those of another type or order are converted some at a time.
        k : int
            How many classes, at most n.
        leave_out : scipy.sparse CSR matrix, shape (B, n), optional
            Classes that are not wanted for an input, such as those it was made from.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes of each input, the best first, and of classes of equal score the first one.
        scores : ndarray, shape (B, k)
            Their scores; -inf for classes left out, where fewer than k are left.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or a score among the best is not finite.
        """
        layer, x, k = self.softmax, self._check_rows(x), check_k(k, self.num_classes)
        absent = check_leave_out(leave_out, (x.shape[0], self.num_classes))
        best = []
        for part in chunks(x.shape[0], self._rows_at_a_time):
            without = None if absent is None else absent[part]
            some = some_rows(x, part, self.dtype)
            if isinstance(layer, HierarchicalSoftmax):
                best.append(layer.top_k(self.embed(some), k, leave_out=without))
                continue
            tau, normalize = layer.loss.tau, layer.loss.normalize
            scored = self._scored(some, layer.class_embeddings)
            best.append(top_k_classes(*scored, k, tau=tau, normalize=normalize, leave_out=without))
        ids, scores = (np.concatenate(parts) for parts in zip(*best, strict=True))
        return ids, scores

    def scores(self, x: Any, *, leave_out: Any = None) -> Iterator[tuple[slice, Rows]]:
        """Yield scores (b, n) of all classes, for some inputs at a time.

        Parameters
        ----------
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs.
        leave_out : scipy.sparse CSR matrix, shape (B, n), optional
            Classes that are not wanted for an input, whose scores are -inf.

        Yields
        ------
        part : slice
            Which inputs.
        scores : ndarray, shape (b, n)
            Their scores.
        """
        layer, x, n = self.softmax, self._check_rows(x), self.num_classes
        tree = layer if isinstance(layer, HierarchicalSoftmax) else None
        if tree is None:  # divided by their norms once, not for each part of the inputs
            rows = self.class_vectors()
        absent = check_leave_out(leave_out, (x.shape[0], n))
        for part in chunks(x.shape[0], max(1, min(self._rows_at_a_time, _SCORES // n))):
            some = some_rows(x, part, self.dtype)
            if tree is not None:
                scores = tree.log_probs(self.embed(some)).astype(self.dtype)
            else:
                h, vectors = self._scored(some, rows)
                # tau goes into the contexts, of which there are fewer than scores
                scores = times_tau(h, layer.loss.tau) @ vectors.T
            if absent is not None:
                # so that they are last in any order, and have a probability of 0
                scores[absent[part].nonzero()] = -np.inf
            yield part, scores

    def _scored(self, x: Any, rows: Rows) -> tuple[Rows, Rows]:
        """Return contexts of inputs, and class vectors, whose products are those with `rows`."""
        if self.settings.embedding_dim is not None:
            return self.embed(x), rows
        # products over the features that occur in these inputs, often few of all
        contexts, features = with_intercept(x, self.num_inputs)
        return contexts, np.ascontiguousarray(np.take(rows.T, features, axis=0).T)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what the sampler has learned besides the class vectors."""
        return prefixed({"sampler": self.softmax.state()})

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state`."""
        self.softmax.load_state(part_of("sampler", as_named_arrays("state", state)))

    def with_dropout(self, x: Any, key: np.uint64, first: int = 0) -> Any:
        """Return inputs without the entries that dropout leaves out, the others scaled up.

        Sparse inputs may be a part of some whose entries, `first` of them, stand before theirs.
        """
        rate = self.settings.dropout
        if rate == 0.0:
            return x
        if isinstance(x, np.ndarray):
            kept = uniform_block(as_key(int(key)), *x.shape) >= rate
            with ignore_overflow():  # the embedding refuses infinity
                return x * (kept * x.dtype.type(1.0 / (1.0 - rate)))
        thin = select_entries(x, uniform_run(key, first, x.nnz) >= rate)
        with ignore_overflow():
            thin.data /= x.dtype.type(1.0 - rate)
        return thin


def select_entries(matrix: Any, kept: NDArray[np.bool_]) -> sparse.csr_array:
    """Return a copy of a CSR matrix with some of its entries, those where `kept` is true."""
    # how many entries are kept before each row begins; in the type of the indices, or SciPy would
    # make all of them wider
    starts = np.zeros_like(matrix.indptr)
    for part in chunks(len(starts) - 1, max(1, _CHUNK_ENTRIES * len(starts) // max(1, len(kept)))):
        ends = matrix.indptr[part.start : part.stop + 1]
        before = np.concatenate([[0], np.cumsum(kept[ends[0] : ends[-1]])])
        starts[part.start + 1 : part.stop + 1] = starts[part.start] + before[ends[1:] - ends[0]]
    return sparse.csr_array((matrix.data[kept], matrix.indices[kept], starts), matrix.shape)
