"""The exact bias for classes in chunks: mergeable sums, and the loop over passes.

A pass over the classes is a `BiasSums`, independent of any engine. It adds chunks, merges with
others, and its `finish` returns the next pass. After the last pass `finish` returns a `ChunkBias`,
which evaluates the bias of any class. `exact_bias_of_chunks` is the loop for one machine;
``dask.py`` runs the same passes with Dask.
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
from samplesoft.bias.numerics.quadrature import ExampleBias, better_of
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

Chunks = Callable[[], Iterable[tuple[Any, Any]]]
_NO_CLASSES = np.empty(0)


class Pass(ABC):
    """One pass over the classes of one example: mergeable sums.

    Each worker starts with an `empty` copy and `add`s its chunks. The copies of one pass `merge` in
    any order. `finish` returns the next pass, or a result, which is no `Pass`.
    """

    stage: str  # name of the sums, for progress bars
    takes_vectors = False  # whether `add` also takes the class vectors of a chunk

    @abstractmethod
    def empty(self) -> Self:
        """Return the same pass without any classes."""

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
        """Return the next pass, or a result."""


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
        known_scheme = _scheme_with_sums(scheme)
        m = as_count("num_sampled", num_sampled, known_scheme.least_draws)
        label = as_count("label", label, 0)
        self._results = PassResults(Totals(known_scheme, m, label))
        self._sums: _Sums = _Extremes(self._results)
        self._then = cast(Callable[[PassResults], Any], ChunkBias.with_warning)

    def then(self, result: Callable[[PassResults], Any]) -> BiasSums:
        """Set the function that the last `finish` returns ``result(results)`` of; return self."""
        self._then = result
        return self

    @property
    def scheme(self) -> Scheme:
        """The scheme."""
        return self._results.totals.scheme

    @property
    def stage(self) -> str:  # type: ignore[override]
        """Name of the sums of this pass."""
        return self._sums.stage

    def empty(self) -> BiasSums:
        """Return a copy of this pass without any classes, for another worker."""
        return self._pass_with(type(self._sums), self._results)

    def _pass_with(self, sums: type[_Sums], results: PassResults) -> BiasSums:
        """Return a pass with new sums, given the results of earlier passes."""
        new = BiasSums.__new__(BiasSums)
        new._results, new._sums, new._then = results, sums(results), self._then
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
        return self._then(results) if next_sums is None else self._pass_with(next_sums, results)


class PassResults(NamedTuple):
    """What the finished passes have computed: the totals, then the ratios, then the atoms."""

    totals: Totals
    ratios: Any = None  # Ratios without classes: their centres
    atoms: Any = ()  # Atoms of the classes, and of the pairs if there are any

    @property
    def draws(self) -> Draws:
        """The distribution of a draw, with empty class arrays."""
        return draws_of_chunk(self.totals, 0, _NO_CLASSES, _NO_CLASSES)

    @property
    def both_ratios(self) -> list[Ratios]:
        """The centres of the classes, and of the pairs if there are any."""
        if not self.totals.scheme.label_is_a_draw:
            return [self.ratios]
        none = ratios_of_chunk(self.draws, self.ratios)
        return [self.ratios, pair_with_label(self.draws, none)[1]]


class _Sums(ABC):
    """The sums of one pass of `BiasSums`, which checks the chunks."""

    stage: str

    @abstractmethod
    def __init__(self, results: PassResults) -> None: ...

    @abstractmethod
    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        """Add the k classes from index `start` on."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add the sums of `other`."""

    @abstractmethod
    def finish(self) -> tuple[PassResults, type[_Sums] | None]:
        """Return the results so far, and the sums of the next pass; None after the last one."""


class _Extremes(_Sums):
    """The first pass: `Totals`."""

    stage = "extremes"

    def __init__(self, results: PassResults) -> None:
        self.totals = results.totals.empty()

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        self.totals.add(start, logits, q)

    def merge(self, other: _Extremes) -> None:
        self.totals.merge(other.totals)

    def finish(self) -> tuple[PassResults, type[_Sums] | None]:
        results = PassResults(_check_totals(self.totals))
        return results, None if trivial_bias(results.draws) else _Deviations


class _Deviations(_Sums):
    """The second pass: `RatioStatistics`."""

    stage = "deviations"

    def __init__(self, results: PassResults) -> None:
        self.results, self.statistics = results, RatioStatistics(results.draws)

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        self.statistics.add(draws_of_chunk(self.results.totals, start, logits, q))

    def merge(self, other: _Deviations) -> None:
        self.statistics.merge(other.statistics)

    def finish(self) -> tuple[PassResults, type[_Sums] | None]:
        return self.results._replace(ratios=self.statistics.finish()), _Moments


class _Moments(_Sums):
    """The third pass: `PanelMoments` of the classes, and of pairs with the label, eq. (B12)."""

    stage = "moments"

    def __init__(self, results: PassResults) -> None:
        self.results = results
        self.moments = [PanelMoments(ratios) for ratios in results.both_ratios]

    def add(self, start: int, logits: FloatArray, q: FloatArray) -> None:
        draws = draws_of_chunk(self.results.totals, start, logits, q)
        ratios = ratios_of_chunk(draws, self.results.ratios)
        self.moments[0].add(draws, ratios)
        if len(self.moments) > 1:
            of_pairs, ratios_of_pairs = pair_with_label(draws, ratios)
            self.moments[1].add(of_pairs, ratios_of_pairs)

    def merge(self, other: _Moments) -> None:
        for own, more in zip(self.moments, other.moments, strict=True):
            own.merge(more)

    def finish(self) -> tuple[PassResults, type[_Sums] | None]:
        draws = self.results.draws
        atoms = [
            moments.finish(draws, ratios)
            for moments, ratios in zip(self.moments, self.results.both_ratios, strict=True)
        ]
        if len(atoms) > 1:
            atoms[1] = unscale_pairs(draws, atoms[1])
        return self.results._replace(atoms=atoms), None


class ChunkBias:
    """The exact bias of an example with classes in chunks.

    Attributes
    ----------
    loss_bias : float
        E[L'] - L, in nats.
    error : float
        Estimated numerical error of the bias of all classes, in the L1 norm.
    loss_error : float
        Estimated numerical error of `loss_bias`, in nats.
    size : float
        A lower bound on the L1 norm of the bias: classes of nearly equal ratios are summed first.
    """

    SCALARS = "loss_bias", "error", "loss_error"

    def __init__(self, results: PassResults) -> None:
        self._results, self.size = results, 0.0
        self._flows: Flows | None = None  # None: the bias is trivial
        self._other_bias = 0.0  # sum of the bias of all classes but the label
        row = trivial_bias(results.draws)
        if row is None:
            row = self._integrate(results.draws)
        self.loss_bias, self.error, self.loss_error = row.loss_bias, row.error, row.loss_error

    def _integrate(self, draws: Draws) -> ExampleBias:
        """Store the flows with the smallest error, and return the loss bias and the errors."""
        atoms, pairs = self._results.atoms, None
        if len(atoms) > 1:
            pairs = Pairs(draws=draws, ratios=self._results.both_ratios[1], atoms=atoms[1])
        integral, best = Integral(draws, self._results.ratios, atoms[0], pairs), None
        with np.errstate(all="ignore"):  # a result that is not finite is dropped, with its error
            for flows in integral.attempts():
                bias = _bias_of_panels(flows, draws)
                size = float(np.abs(bias).sum())
                candidate = flows, float(bias[:-1].sum()), size
                row, is_enough = integral.estimate(flows, candidate, size)
                best = better_of(best, row)
                if is_enough:
                    break
        assert best is not None
        self._flows, self._other_bias, self.size = best.bias
        return best

    @classmethod
    def with_warning(cls, results: PassResults) -> ChunkBias:
        """Return the bias, and warn if its digits are uncertain."""
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
        """Return the bias (k,) of the classes of a chunk."""
        row = trivial_bias(draws)
        if row is not None:
            return row.bias
        assert self._flows is not None
        ratios = ratios_of_chunk(draws, self._results.ratios)
        if len(self._results.atoms) > 1:
            draws, ratios = pair_with_label(draws, ratios)
        return bias_of_classes(self._flows, draws, ratios, self._other_bias)

    def both(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return the bias and the softmax, (2, k), of the same classes."""
        draws = self._draws(start, logits, q)
        return np.stack([self.bias_of_draws(draws), draws.probs])

    def probs(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return the softmax (k,) of the same classes."""
        return self._draws(start, logits, q).probs

    def _draws(self, start: int, logits: Any, q: Any) -> Draws:
        o, proposal = check_chunk(start, logits, q, self._results.totals)
        return draws_of_chunk(self._results.totals, start, o, proposal)


def _bias_of_panels(integrals: Flows, draws: Draws) -> FloatArray:
    """Return the sum of the bias over the classes of each panel, and last the bias of the label."""
    atoms, points = integrals.atoms, integrals.atoms.points
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        masses = np.sign(points.q) * np.exp(np.log(np.abs(points.q)) + points.log_r)
    flows = atoms.by_panel(points.q_kappa * integrals.values).sum(axis=1)
    probs = atoms.by_panel(masses).sum(axis=1)
    of_label = math.exp(draws.log_label) if draws.scheme.label_in_sum else 0.0
    index = len(flows) if draws.scheme.label_in_sum else None
    as_classes = replace(draws, probs=np.append(probs, of_label), label=index)
    return assemble(as_classes, np.append(flows, 0.0), integrals.total, integrals.label_flow, None)


def _scheme_with_sums(scheme: str) -> Scheme:
    return as_scheme(scheme, require=_require_replacement)


def _require_replacement(scheme: Scheme) -> None:
    if scheme.independent or scheme.distinct:
        raise ValueError(
            f"`scheme` must be one that draws with replacement for classes in chunks, got "
            f"{scheme.name!r}; take samplesoft.exact_bias of arrays in memory."
        )


def check_chunk(start: int, logits: Any, q: Any, totals: Totals) -> tuple[FloatArray, FloatArray]:
    """Return the checked logits and q (k,) of a chunk in float64; it starts at class `start`."""
    o, proposal = as_real_array("logits", logits, (1,)), as_real_array("q", q, (1,))
    if o.shape != proposal.shape:
        raise ValueError(
            f"`q` of {len(proposal)} classes does not match `logits` of {len(o)} in the chunk that "
            f"starts at class {start}; cut both at the same classes."
        )
    wrong, label_index = proposal < MIN_Q, totals.label - start
    scheme = totals.scheme
    if 0 <= label_index < len(o) and not (scheme.draws_label or scheme.corrects_label):
        wrong[label_index] = proposal[label_index] < 0.0
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(
            f"`q` must be greater than 0, and at least {MIN_Q:.2g}, on every class that scheme "
            f"{scheme.name!r} can draw, got {proposal[index]} at class {start + index}; mix the "
            "proposal with a little of the uniform distribution."
        )
    return o, proposal


def _check_totals(totals: Totals) -> Totals:
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
    result: ChunkBias = run(BiasSums(num_sampled, label, scheme), chunks, progress)
    return result


def run(sums: Any, chunks: Chunks, progress: bool = False) -> Any:
    """Run the pass `sums` and all passes after it over `chunks`; return the result."""
    num: int | None = None
    while isinstance(sums, Pass):
        start = 0
        with progress_bar(progress, desc=sums.stage, unit=" classes", unit_scale=True) as bar:
            for logits, q in chunks():
                sums.add(start, logits, q)
                start += len(logits)
                bar.update(len(logits))
        num = start if num is None else num
        if start != num:
            raise ValueError(
                f"`chunks` must return all classes each time it is called, got {num:,} at first "
                f"and then {start:,}; make the iterable in it."
            )
        sums = sums.finish()
    return sums
