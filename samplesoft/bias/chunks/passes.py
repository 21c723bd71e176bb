"""The exact bias of an example with classes in chunks: sums over the classes, in several passes.

In each pass over all classes, a `BiasSums` adds up chunks. Copies of it, which have added different
chunks, are merged. Its method `finish` then returns the next pass, or after the last one a
`ChunkBias`, which evaluates the bias of any class. The loop over the chunks is separate:
`exact_bias_of_chunks` has it for one machine, and ``dask.py`` runs the same passes with Dask.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Self, cast

import numpy as np

from samplesoft._progress import progress_bar
from samplesoft._validation import FloatArray, as_count, as_real_array, short_repr
from samplesoft.bias.inputs import MIN_Q
from samplesoft.bias.numerics.quadrature import ExampleBias, combine_better
from samplesoft.bias.with_replacement.atoms import PanelMoments
from samplesoft.bias.with_replacement.draws import Draws, Totals, draws_of_chunk
from samplesoft.bias.with_replacement.integral import (
    Flows,
    Integral,
    Pairs,
    bias_of_classes,
    loses_digits,
    pair_with_label,
    trivial_bias,
    unscale_pairs,
)
from samplesoft.bias.with_replacement.node_weights import assemble
from samplesoft.bias.with_replacement.ratios import Ratios, RatioStatistics, ratios_of_chunk
from samplesoft.schemes import Scheme, as_scheme

Chunks = Callable[[], Iterable[tuple[Any, Any]]]  # returns pairs (logits, q) of all chunks
_NO_CLASSES = np.empty(0)  # logits and q of a chunk without classes


class Pass(ABC):
    """One pass over the classes of one example, as sums that can be merged.

    Each worker starts with a copy from `empty`, and adds its chunks. The copies of a pass can be
    merged in any order. `finish` returns the next `Pass`, or the final result, an object of another
    type.
    """

    stage: str  # name of the pass, such as "moments", for progress bars
    takes_vectors = False  # whether `add` also takes the class vectors of a chunk

    @abstractmethod
    def empty(self) -> Self:
        """Return a copy of this pass without any classes."""

    @abstractmethod
    def add(self, *args: Any, **kwargs: Any) -> Self:
        """Add a chunk of classes, and return self.

        Arguments are `start` (the index of the first class), the logits and q (k,) of the classes,
        and vectors (k, d) if `takes_vectors`.
        """

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Add the sums of `other`, a copy of the same pass, and return self."""

    @abstractmethod
    def finish(self) -> Any:
        """Return the next pass, or the final result."""


class BiasSums(Pass):
    """One pass of sums over the classes of one example, for its exact bias.

    Chunks may have any sizes, and any number of copies of a pass may add them in any order. The
    copies are then merged, and ``finish`` returns the next pass, or the result. Sums are
    compensated, so that the order of chunks affects at most the last digits of the bias. The same
    order of adding and merging gives the same bits.

    Parameters
    ----------
    num_sampled : int
        Number m of draws, at least 1; at least 2 for the jackknives.
    label : int
        Index of the true class, counted over all chunks.
    scheme : str
        A scheme of `samplesoft.exact_bias` that draws with replacement.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed. Later, if a chunk, or the proposal as a whole, is.

    See Also
    --------
    exact_bias_of_chunks : the loop of passes, on one machine.
    samplesoft.exact_bias : takes Dask arrays, and merges the sums with Dask.

    Examples
    --------
    Two workers and three passes, with four chunks:

    >>> import numpy as np
    >>> from samplesoft.bias import BiasSums, ChunkBias
    >>> logits, q = np.linspace(-3.0, 3.0, 1000), np.full(1000, 0.001)
    >>> sums = BiasSums(num_sampled=20, label=7)
    >>> while not isinstance(sums, ChunkBias):
    ...     one, other = sums.empty(), sums.empty()
    ...     for start in 0, 250:
    ...         _ = one.add(start, logits[start : start + 250], q[start : start + 250])
    ...     for start in 500, 750:
    ...         _ = other.add(start, logits[start : start + 250], q[start : start + 250])
    ...     sums = one.merge(other).finish()
    >>> f"{sums.bias(0, logits[:250], q[:250])[7]:.2e}"
    '1.91e-06'
    >>> round(sums.loss_bias, 4)
    -0.0541
    """

    def __init__(self, num_sampled: int, label: int, scheme: str = "negatives") -> None:
        known_scheme = _find_scheme(scheme)
        m = as_count("num_sampled", num_sampled, known_scheme.min_draws)
        label = as_count("label", label, 0)
        self._results = PassResults(Totals(known_scheme, m, label))
        self._sums: _PassSums = _TotalSums(self._results)
        self._make_result = cast(Callable[[PassResults], Any], ChunkBias.with_warning)

    def then(self, result: Callable[[PassResults], Any]) -> BiasSums:
        """Make `finish` of the last pass return the value of `result`; return self.

        `result` is called with the `PassResults` of all passes. By default it makes a `ChunkBias`.
        """
        self._make_result = result
        return self

    @property
    def scheme(self) -> Scheme:
        """The sampling scheme."""
        return self._results.totals.scheme

    @property
    def stage(self) -> str:  # type: ignore[override]
        """Name of the pass, such as ``"moments"``, for messages and progress bars."""
        return self._sums.stage

    def empty(self) -> BiasSums:
        """Return a copy of this pass without any classes, for another worker."""
        return self._new_pass(type(self._sums), self._results)

    def _new_pass(self, sums: type[_PassSums], results: PassResults) -> BiasSums:
        """Return a pass with empty `sums`, given the `results` of all earlier passes."""
        new = BiasSums.__new__(BiasSums)
        new._results = results
        new._sums = sums(results)
        new._make_result = self._make_result
        return new

    def add(self, start: int, logits: Any, q: Any) -> BiasSums:
        """Add a chunk of classes.

        Parameters
        ----------
        start : int
            Index of the first class of the chunk, over all chunks.
        logits, q : array_like, shape (k,)
            Finite logits, and proposal probabilities.

        Returns
        -------
        BiasSums
            Self.

        Raises
        ------
        ValueError
            If the chunk is malformed.
        """
        if not np.size(logits) and not np.size(q):  # engines may produce empty chunks
            return self
        o, proposal = check_chunk(start, logits, q, self._results.totals)
        self._sums.add(start, o, proposal)
        return self

    def merge(self, other: BiasSums) -> BiasSums:
        """Add the sums of `other`, a copy of the same pass, and return self."""
        if self.stage != other.stage:
            raise ValueError(
                f"`other` must be of the same pass, {self.stage!r}, got {other.stage!r}."
            )
        self._sums.merge(other._sums)
        return self

    def finish(self) -> Any:
        """Return the next pass, or a `ChunkBias` after the last one.

        Raises
        ------
        ValueError
            If the label was in no chunk, or the proposal does not sum to 1 or misses classes.
        """
        results, next_sums = self._sums.finish()
        if next_sums is None:
            return self._make_result(results)
        return self._new_pass(next_sums, results)


class PassResults(NamedTuple):
    """Results of the finished passes: totals of the first, ratios of the second, atoms last.

    If the label is itself a draw of S, each class is also paired with the label, eq. (B12).
    """

    totals: Totals
    ratios: Any = None  # `Ratios` with empty arrays: only the centres of the ratios matter
    atoms: Any = ()  # `Atoms` of the classes, and if there are pairs, `Atoms` of the pairs

    @property
    def draws(self) -> Draws:
        """The distribution of a draw: the scalars of the example; arrays over classes are empty."""
        return draws_of_chunk(self.totals, 0, _NO_CLASSES, _NO_CLASSES)

    @property
    def all_ratios(self) -> list[Ratios]:
        """Centres of the ratios of the classes and, if there are pairs, of the ratios of the pairs.

        They are `Ratios`, in which the arrays over classes are empty.
        """
        if not self.totals.scheme.label_is_a_draw:
            return [self.ratios]
        empty_ratios = ratios_of_chunk(self.draws, self.ratios)
        return [self.ratios, pair_with_label(self.draws, empty_ratios)[1]]


class _PassSums(ABC):
    """The sums of one pass over checked chunks; `BiasSums` holds them, and checks the chunks."""

    stage: str

    @abstractmethod
    def __init__(self, results: PassResults) -> None: ...

    @abstractmethod
    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        """Add a chunk of classes, the first of which has the index `start`."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add the sums of `other`, which has added other chunks."""

    @abstractmethod
    def finish(self) -> tuple[PassResults, type[_PassSums] | None]:
        """Return the results of all passes so far, and the type of the next sums, None if none."""


class _TotalSums(_PassSums):
    """The first pass: `Totals`, such as the sums of exp(logit) and of q."""

    stage = "extremes"

    def __init__(self, results: PassResults) -> None:
        self.totals = results.totals.empty()

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        self.totals.add(start, logits, q)

    def merge(self, other: _TotalSums) -> None:
        self.totals.merge(other.totals)

    def finish(self) -> tuple[PassResults, type[_PassSums] | None]:
        results = PassResults(_checked_totals(self.totals))
        return results, None if trivial_bias(results.draws) else _RatioSums


class _RatioSums(_PassSums):
    """The second pass: `RatioStatistics`, the centres of the ratios and deviations from them."""

    stage = "deviations"

    def __init__(self, results: PassResults) -> None:
        self.results = results
        self.statistics = RatioStatistics(results.draws)

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        self.statistics.add(draws_of_chunk(self.results.totals, start, logits, q))

    def merge(self, other: _RatioSums) -> None:
        self.statistics.merge(other.statistics)

    def finish(self) -> tuple[PassResults, type[_PassSums] | None]:
        return self.results._replace(ratios=self.statistics.finish()), _PanelMomentSums


class _PanelMomentSums(_PassSums):
    """The third pass: `PanelMoments`, from which the atoms are made.

    There are moments of the classes and, if the label is itself a draw of S, also moments of the
    pairs of a class and the label, eq. (B12).
    """

    stage = "moments"

    def __init__(self, results: PassResults) -> None:
        self.results = results
        self.moments = [PanelMoments(ratios) for ratios in results.all_ratios]

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        draws = draws_of_chunk(self.results.totals, start, logits, q)
        ratios = ratios_of_chunk(draws, self.results.ratios)
        self.moments[0].add(draws, ratios)
        if len(self.moments) > 1:
            pair_draws, pair_ratios = pair_with_label(draws, ratios)
            self.moments[1].add(pair_draws, pair_ratios)

    def merge(self, other: _PanelMomentSums) -> None:
        for moments, other_moments in zip(self.moments, other.moments, strict=True):
            moments.merge(other_moments)

    def finish(self) -> tuple[PassResults, type[_PassSums] | None]:
        draws = self.results.draws
        atoms = [
            moments.finish(draws, ratios)
            for moments, ratios in zip(self.moments, self.results.all_ratios, strict=True)
        ]
        if len(atoms) > 1:
            atoms[1] = unscale_pairs(draws, atoms[1])
        return self.results._replace(atoms=atoms), None


class ChunkBias:
    """The exact bias of an example whose classes come in chunks.

    Attributes
    ----------
    loss_bias : float
        E[L'] - L, in nats.
    error : float
        Estimated numerical error of the bias of all classes, in the L1 norm.
    loss_error : float
        Estimated numerical error of `loss_bias`, in nats.
    size : float
        A lower bound on the L1 norm of the bias: the norm of its sums over classes of nearly equal
        ratios.
    """

    SCALARS = "loss_bias", "error", "loss_error"

    def __init__(self, results: PassResults) -> None:
        self._results = results
        self.size = 0.0
        self._flows: Flows | None = None  # None if `trivial_bias` returns the bias
        self._other_bias = 0.0  # sum of the bias of all classes but the label

        row = trivial_bias(results.draws)
        if row is None:
            row = self._integrate(results.draws)
        self.loss_bias = row.loss_bias
        self.error = row.error
        self.loss_error = row.loss_error

    def _integrate(self, draws: Draws) -> ExampleBias:
        """Integrate with smaller and smaller steps, and store the flows with the smallest error.

        The bias of each class is later computed from these flows, eq. (B6). Returns the loss bias
        and the errors. The field `bias` of the result is not a bias: it contains the stored values.
        """
        atoms = self._results.atoms
        pairs = None
        if len(atoms) > 1:
            pairs = Pairs(draws=draws, ratios=self._results.all_ratios[1], atoms=atoms[1])
        integral = Integral(draws, self._results.ratios, atoms[0], pairs)

        # a later attempt with a bias that is not finite never replaces the best one
        best = None
        with np.errstate(all="ignore"):
            for flows in integral.attempts():
                bias = _bias_of_panels(flows, draws)
                norm = float(np.abs(bias).sum())

                candidate = flows, float(bias[:-1].sum()), norm
                row, is_enough = integral.result_with_errors(flows, candidate, norm)
                best = combine_better(best, row)
                if is_enough:
                    break

        assert best is not None
        self._flows, self._other_bias, self.size = best.bias
        return best

    @classmethod
    def with_warning(cls, results: PassResults) -> ChunkBias:
        """Return the bias, given the `results` of all passes; warn if it has few correct digits."""
        result = cls(results)
        if loses_digits(result.error, result.size):
            warnings.warn(
                f"the bias of scheme={results.totals.scheme.name!r} may be off by "
                f"{result.error:.1e} in the L1 norm, where its own is about {result.size:.1e}; "
                "see `error`.",
                RuntimeWarning,
                stacklevel=3,
            )
        return result

    def bias(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return the bias (k,) of the k classes from index `start` on."""
        return self.bias_of_draws(self._draws(start, logits, q))

    def bias_of_draws(self, draws: Draws) -> FloatArray:
        """Return the bias (k,) of the classes of a chunk, given their `draws`."""
        row = trivial_bias(draws)
        if row is not None:
            return row.bias

        assert self._flows is not None
        ratios = ratios_of_chunk(draws, self._results.ratios)
        if len(self._results.atoms) > 1:
            draws, ratios = pair_with_label(draws, ratios)
        return bias_of_classes(self._flows, draws, ratios, self._other_bias)

    def both(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return the bias and the softmax, (2, k), of the k classes from index `start` on."""
        draws = self._draws(start, logits, q)
        return np.stack([self.bias_of_draws(draws), draws.probs])

    def probs(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return the softmax (k,) of the k classes from index `start` on."""
        return self._draws(start, logits, q).probs

    def _draws(self, start: int, logits: Any, q: Any) -> Draws:
        """Return the distribution of a draw, with arrays over the classes of one checked chunk."""
        o, proposal = check_chunk(start, logits, q, self._results.totals)
        return draws_of_chunk(self._results.totals, start, o, proposal)


def _bias_of_panels(integrals: Flows, draws: Draws) -> FloatArray:
    """Return the sum of the bias over the classes of each panel, followed by the label's bias.

    A panel is an interval of log ratios. The last entry is 0 if the label has no fixed term in S.
    """
    atoms = integrals.atoms
    points = integrals.atoms.points
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        masses = np.sign(points.q) * np.exp(np.log(np.abs(points.q)) + points.log_r)

    flows = atoms.by_panel(points.q_kappa * integrals.values).sum(axis=1)
    probs = atoms.by_panel(masses).sum(axis=1)
    label_prob = math.exp(draws.log_label) if draws.scheme.label_in_sum else 0.0
    label = len(flows) if draws.scheme.label_in_sum else None

    panel_draws = replace(draws, probs=np.append(probs, label_prob), label=label)
    return assemble(panel_draws, np.append(flows, 0.0), integrals.total, integrals.label_flow, None)


def _find_scheme(scheme: str) -> Scheme:
    """Return the scheme of this name, which must draw with replacement."""
    return as_scheme(scheme, require=_require_replacement)


def _require_replacement(scheme: Scheme) -> None:
    """Raise ValueError for a scheme that does not draw with replacement."""
    if scheme.independent or scheme.distinct:
        raise ValueError(
            f"`scheme` must be one that draws with replacement for classes in chunks, got "
            f"{scheme.name!r}; take samplesoft.exact_bias of arrays in memory."
        )


def check_chunk(start: int, logits: Any, q: Any, totals: Totals) -> tuple[FloatArray, FloatArray]:
    """Check a chunk that starts at class `start`; return its logits and q, both (k,), in float64.

    The scheme and the label are those of `totals`.
    """
    o = as_real_array("logits", logits, (1,))
    proposal = as_real_array("q", q, (1,))
    if o.shape != proposal.shape:
        raise ValueError(
            f"`q` of {len(proposal)} classes does not match `logits` of {len(o)} in the chunk that "
            f"starts at class {start}; cut both at the same classes."
        )

    is_wrong = proposal < MIN_Q
    label_index = totals.label - start
    scheme = totals.scheme
    if 0 <= label_index < len(o) and not (scheme.draws_label or scheme.corrects_label):
        is_wrong[label_index] = proposal[label_index] < 0.0

    if is_wrong.any():
        index = int(is_wrong.argmax())
        raise ValueError(
            f"`q` must be greater than 0, and at least {MIN_Q:.2g}, on every class that scheme "
            f"{scheme.name!r} can draw, got {proposal[index]} at class {start + index}; mix the "
            "proposal with a little of the uniform distribution."
        )

    return o, proposal


def _checked_totals(totals: Totals) -> Totals:
    """Return `totals` over all chunks.

    Raises ValueError if no chunk contains the label, or if q does not sum to 1.
    """
    if math.isnan(totals.label_logit):
        raise ValueError(
            f"`label` must be one of the {totals.num} classes of all chunks, got {totals.label}."
        )
    mass = float(totals.q_others.value) + totals.label_q
    if not abs(mass - 1.0) < 1e-6:
        raise ValueError(
            f"`q` must sum to 1 over all classes, got {mass:.9g}; divide it by its sum."
        )

    return totals


def exact_bias_of_chunks(
    chunks: Chunks,
    label: int,
    num_sampled: int,
    *,
    scheme: str = "negatives",
    progress: bool = False,
) -> ChunkBias:
    """Compute the exact bias of an example whose classes do not fit into memory.

    Parameters
    ----------
    chunks : callable
        Function without arguments that returns an iterable of pairs (logits, proposal), both (k,)
        with any k, over all classes in order. It is called three times.
    label : int
        The true class, counted over all chunks.
    num_sampled, scheme
        As for `samplesoft.exact_bias`, with replacement.
    progress : bool
        Whether to show a progress bar for each pass.

    Returns
    -------
    ChunkBias
        The loss bias and the errors; its method ``bias`` evaluates the bias of a chunk.

    Raises
    ------
    TypeError, ValueError
        If an argument or a chunk is malformed.

    Notes
    -----
    The passes are those of `BiasSums`. Each of them generates all chunks again; the arithmetic
    costs about as much as `samplesoft.exact_bias` in memory.

    Examples
    --------
    Logits in a file, and a proposal that is generated:

    >>> import numpy as np, tempfile, pathlib
    >>> from samplesoft.bias import exact_bias_of_chunks
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "logits.npy"
    >>> np.save(path, np.linspace(-2.0, 2.0, 10_000))
    >>> logits = np.load(path, mmap_mode="r")
    >>> def chunks():
    ...     for start in range(0, 10_000, 4_096):
    ...         part = logits[start : start + 4_096]
    ...         yield part, np.full(len(part), 1e-4)
    >>> result = exact_bias_of_chunks(chunks, label=3, num_sampled=50)
    >>> norms = [abs(result.bias(i * 4_096, *chunk)).sum() for i, chunk in enumerate(chunks())]
    >>> f"{sum(norms):.5f}"
    '0.02043'
    """
    if not callable(chunks):
        raise TypeError(
            "`chunks` must be a function that returns the chunks each time it is called, got "
            f"{short_repr(chunks)}; write `lambda: ...` before it."
        )

    result: ChunkBias = run_passes(BiasSums(num_sampled, label, scheme), chunks, progress)
    return result


def run_passes(sums: Any, chunks: Chunks, progress: bool = False) -> Any:
    """Run the pass `sums` and all passes after it; return the final result.

    `chunks` is a function that returns an iterable of pairs (logits, q).
    """
    num_classes: int | None = None
    while isinstance(sums, Pass):
        start = 0
        with progress_bar(progress, desc=sums.stage, unit=" classes", unit_scale=True) as bar:
            for logits, q in chunks():
                sums.add(start, logits, q)
                start += len(logits)
                bar.update(len(logits))

        num_classes = start if num_classes is None else num_classes

        if start != num_classes:
            raise ValueError(
                f"`chunks` must return all classes each time it is called, got {num_classes:,} at "
                f"first and then {start:,}; make the iterable in it."
            )

        sums = sums.finish()

    return sums
