"""Settings of a softmax layer, which make its loss, its sampler and the layer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._temperature import as_tau
from samplesoft._validation import as_choice, as_count, as_flag, as_positive
from samplesoft.losses.base import Loss
from samplesoft.losses.hierarchical import two_level_tree
from samplesoft.losses.logistic import LogisticLoss
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.softmax_layer import SoftmaxLayer, as_shared
from samplesoft.samplers.base import Rows, Sampler, as_sampler
from samplesoft.samplers.registry import (
    SAMPLERS,
    SamplerInputs,
    make_certain_sampler,
    make_sampler,
    warn_of_wrong_ranks,
)


@dataclass(frozen=True)
class SoftmaxSettings:
    """Settings of a softmax layer, by default with vectors of norm 1.

    None in the fields `tau`, `normalize` and `shared` stands for their default, which `resolved`
    fills in. All fields are strings, numbers or None, except for a custom sampler.

    Parameters
    ----------
    loss : str
        A key of `samplesoft.losses.LOSSES`. The losses ``"nce"``, ``"negative-sampling"`` and
        ``"gbce"`` get an `offset` with which the estimated probabilities of random vectors sum to
        1; without an offset, training may fail.
    tau : float, optional
        Inverse temperature; by default 10 if `normalize`, else 1.
    normalize : bool, optional
        Divide contexts and class vectors by their norms; by default True, except for a tree.
    sampler : str, sampler, callable or None
        A key of `samplesoft.samplers.SAMPLERS`; a sampler, which is any object with the methods of
        `samplesoft.samplers.Sampler`, and is copied; or a function that makes a sampler from a
        `SamplerInputs`. None for a loss over all classes. With the default sampler, a small
        language model reached the loss of the full softmax in half of the time, and a lower loss
        than with ``"rff"``, the sampler of [1]_.
    num_sampled : int or None
        Number of draws for each example, or for the batch if `shared`; None without a sampler.
    num_certain : int
        Number of always-included classes, in addition to the draws: the most frequent classes are
        used in each step. See `samplesoft.samplers.CertainSampler`. For losses such as
        ``"sampled-masked"`` and ``"sampled"``.
    nu, num_features : float, int
        Settings of the sampler; see `SamplerInputs`.
    shared : bool, optional
        Draw one set of classes for all examples of a batch, from the mean of their proposals. This
        is faster, but does not adapt the draws to each example. The default is True if the sampler
        is independent of contexts, such as ``"unigram"``, and draws of the loss may contain the
        label, as for ``"sampled-masked"``; otherwise False.
    update_every : int
        Steps between updates of the sampler.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed, or the loss and the sampler are incompatible.

    Notes
    -----
    The measurements behind the defaults are in docs/benchmarks.md, section "Defaults of softmax
    layers".

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       section 4.
    """

    loss: str = "sampled"
    tau: float | None = None
    normalize: bool | None = None
    sampler: Any = "clusters"
    num_sampled: int | None = 100
    num_certain: int = 0
    nu: float = 4.0
    num_features: int = 1024
    shared: bool | None = None
    update_every: int = 1

    # names of the fields that are passed to the loss
    _loss_fields: ClassVar[tuple[str, ...]] = (
        "tau",
        "normalize",
    )

    def __post_init__(self) -> None:
        for name in ("num_features", "update_every"):
            as_count(name, getattr(self, name))
        as_positive("nu", self.nu)

        loss = LOSSES[as_choice("loss", self.loss, LOSSES)]
        normalize = self._resolved_normalize()
        if normalize and loss.on_tree:
            raise ValueError(
                f"`normalize` must be False with loss={self.loss!r}, got {normalize!r}; leave it "
                "out."
            )
        as_tau(self.tau, unit_vectors=normalize)

        if as_count("num_certain", self.num_certain, 0) and not loss.allows_always_included:
            losses = ", ".join(name for name, spec in LOSSES.items() if spec.allows_always_included)
            raise ValueError(
                f"`num_certain` must be 0 with loss={self.loss!r}, got {self.num_certain}; take "
                f"one of {losses}."
            )

        shared = self._shares_draws()
        if not loss.draws:
            if self.sampler is not None or self.num_sampled is not None:
                raise ValueError(
                    f"`sampler` and `num_sampled` must be None for loss={self.loss!r}, which draws "
                    f"nothing, got {self.sampler!r} and {self.num_sampled}."
                )
            return

        as_count("num_sampled", self.num_sampled, loss.min_draws)
        # a custom sampler is validated by the layer, which knows the class vectors
        is_object = not isinstance(self.sampler, str)
        if is_object and self.num_certain:
            raise ValueError(
                "`num_certain` must be 0 with a sampler of your own, got "
                f"{self.num_certain}; make it a samplesoft.samplers.CertainSampler."
            )

        if not is_object and not normalize and SAMPLERS[str(self.sampler)].unit_vectors:
            raise ValueError(
                f"`normalize` must be True with sampler={self.sampler!r}, whose kernel needs "
                "vectors of norm 1, got False; or take a sampler such as 'softmax', 'quadratic' or "
                "'unigram'."
            )
        if not is_object and loss.needs_label_count and not SAMPLERS[str(self.sampler)].every_class:
            raise ValueError(
                f"`sampler` must draw every class with loss={self.loss!r}, got {self.sampler!r}, "
                "which never draws labels that are not among its candidates; use a loss such as "
                "'sampled' or 'sampled-masked'."
            )

        if shared and not loss.shares_draws:
            losses = repr(loss.masked or "sampled-masked")
            raise ValueError(
                f"`shared` must be False with loss={self.loss!r}, because one set of draws cannot "
                f"exclude the label of each example; use loss={losses}."
            )

    def resolved(self) -> Self:
        """Return settings with the defaults of `tau`, `normalize` and `shared` filled in.

        If `sampler` is a function, `shared` may remain None, and the layer determines it from the
        sampler that the function makes.

        Examples
        --------
        >>> SoftmaxSettings().tau, SoftmaxSettings().resolved().tau
        (None, 10.0)
        """
        unit_vectors = self._resolved_normalize()
        return replace(
            self,
            tau=as_tau(self.tau, unit_vectors=unit_vectors),
            normalize=unit_vectors,
            shared=self._shares_draws(),
        )

    def _resolved_normalize(self) -> bool:
        """Return `normalize`, or its default if it is None."""
        if self.normalize is None:
            return self._default_normalize()
        return as_flag("normalize", self.normalize)

    def _default_normalize(self) -> bool:
        """Return the default of `normalize`, which depends on the loss."""
        return not LOSSES[self.loss].on_tree

    def _shares_draws(self) -> bool | None:
        """Return whether the examples of a batch share their draws, from `shared` or its default.

        Returns None if only the layer can determine it, because `sampler` is a function.
        """
        loss = LOSSES[self.loss]
        if not loss.draws:
            return as_shared(self.shared, False)
        if callable(self.sampler):
            return self.shared
        follows_contexts = self._sampler_follows_contexts()  # also validates the sampler
        return as_shared(self.shared, loss.shares_draws and not follows_contexts)

    def _sampler_follows_contexts(self) -> bool:
        """Return whether the draws of the sampler depend on contexts and class vectors."""
        if self.sampler is None or isinstance(self.sampler, str):
            return SAMPLERS[as_choice("sampler", self.sampler, SAMPLERS)].follows_vectors
        return as_sampler("sampler", self.sampler).dim is not None

    def _loss_options(self) -> dict[str, Any]:
        """Return the keyword arguments of the loss that its name does not fix."""
        implied = LOSSES[self.loss].fixed
        unit_vectors = self._resolved_normalize()
        values = {
            **vars(self),
            "tau": as_tau(self.tau, unit_vectors=unit_vectors),
            "normalize": unit_vectors,
        }
        return {name: values[name] for name in self._loss_fields if name not in implied}

    def _offset_option(self, n: int, d: int) -> dict[str, float]:
        """Return a dict with the argument `offset`; it is empty for a loss without an offset.

        With this offset the estimated probabilities of random vectors sum to 1 over all classes.
        The exponential of a score estimates p(j) in noise-contrastive estimation, and
        p(j) / (m q(j)) in negative sampling. The dot product of two random unit vectors has the
        variance 1/d.
        """
        spec = LOSSES[self.loss]
        if not issubclass(spec.make, LogisticLoss):
            return {}

        assert spec.scheme is not None and self.num_sampled is not None
        unit_vectors = self._resolved_normalize()
        tau = as_tau(self.tau, unit_vectors=unit_vectors)

        # The estimate of p(j) is exp(score), or m q(j) exp(score) for negative sampling. For random
        # dot products x the estimates sum to mass * exp(offset) * E exp(tau x).
        mass = n if spec.scheme.corrects_draws else self.num_sampled

        # log E exp(tau x) is tau**2 / (2 d) for a normal x of variance 1/d. It is at most tau,
        # because x <= 1 for unit vectors.
        log_mean_exp = min(tau, tau * tau / (2.0 * d)) if unit_vectors else 0.0
        return {"offset": -log(mass) - log_mean_exp}

    def make_layer(
        self, rows: Rows, counts: ArrayLike | None, seed: int, *, reduction: str = "mean"
    ) -> SoftmaxLayer:
        """Make a softmax layer with its loss and its sampler.

        Parameters
        ----------
        rows : ndarray, shape (n, d)
            Initial class vectors. In a layer over a tree, inner nodes have zeros initially.
        counts : array_like, shape (n,), or None
            Count of each class, for samplers that draw by frequency and for always-included
            classes.
        seed : int
            Seed of the sampler.
        reduction : {"mean", "sum", "none"}
            Reduction of the loss.

        Returns
        -------
        SoftmaxLayer
            The layer.

        Raises
        ------
        TypeError, ValueError
            If the sampler rejects the vectors or the counts.

        Examples
        --------
        >>> import numpy as np
        >>> layer = SoftmaxSettings(num_features=8).make_layer(np.eye(3), None, 0)
        >>> layer.num_sampled, layer.loss.scheme
        (100, 'negatives')
        """
        if LOSSES[self.loss].on_tree:
            tree = two_level_tree(np.ones(len(rows)) if counts is None else counts)
            nodes = np.zeros((tree.num_nodes, rows.shape[1]), rows.dtype)
            nodes[tree.places] = rows
            return HierarchicalSoftmax(nodes, tree, reduction=reduction, **self._loss_options())

        loss = self.make_loss(rows.shape[0], rows.shape[1], reduction)

        sampler = None
        if self.sampler is not None:
            # the sampler gets normalised copies, because the trained vectors are not normalised
            unit_vectors = self._resolved_normalize()
            sampler_rows = unit_rows("class_embeddings", rows.copy())[0] if unit_vectors else rows
            sampler = self.make_sampler(sampler_rows, counts, seed)

        layer = SoftmaxLayer(
            rows,
            loss,
            sampler,
            self.num_sampled,
            shared=self._shares_draws(),
            update_every=self.update_every,
        )

        if not isinstance(self.sampler, str):
            # a custom sampler may have been made from other class vectors
            layer.refresh()
        return layer

    def make_loss(self, n: int, d: int, reduction: str) -> Loss:
        """Return the loss for n classes and vectors of length d."""
        options = {**self._loss_options(), **self._offset_option(n, d)}
        return make_loss(self.loss, reduction=reduction, **options)

    def make_sampler(self, rows: Rows, counts: ArrayLike | None, seed: int) -> Sampler:
        """Return the sampler for class vectors `rows` (n, d) and class counts (n,).

        If the loss normalises vectors, `rows` must be of norm 1.
        """
        inputs = SamplerInputs(
            rows,
            counts,
            tau=as_tau(self.tau, unit_vectors=self._resolved_normalize()),
            nu=self.nu,
            num_features=self.num_features,
            rng=seed,
        )

        if not isinstance(self.sampler, str):
            # copy a given sampler, because models with the same settings must not share its state
            sampler: Sampler
            if callable(self.sampler):
                sampler = self.sampler(inputs)
            else:
                sampler = deepcopy(as_sampler("sampler", self.sampler))
            if inputs.counts is not None:
                warn_of_wrong_ranks(sampler, inputs.counts)
            return sampler

        # the most frequent classes are always included, and the named sampler draws the others
        if self.num_certain:
            return make_certain_sampler(self.sampler, inputs, self.num_certain)
        return make_sampler(self.sampler, inputs)
