"""Checks of the arguments that the bias functions share.

Also merges always-included classes into the label, and checks Jacobians of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import to_host
from samplesoft._jit import chunks
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_class_set,
    as_count,
    as_labels,
    as_probabilities,
    as_proposal,
    as_real_array,
    short_repr,
)
from samplesoft.schemes import SCHEMES, Scheme, as_scheme, certain_schemes

MIN_Q = float(np.finfo(np.float64).tiny)  # smallest normal float64: smaller values lack digits
_MIN_TASKS = 16  # smallest number of tasks of a call, so that up to 16 workers are busy
_MAX_CHUNK_EXAMPLES = 32
_MAX_CHUNK_LOGITS = 1 << 17

Example = tuple[FloatArray, int, FloatArray]  # logits (n,), the label, and q (n,)


@dataclass(frozen=True)
class Inputs:
    """Checked arguments of a bias function, for a batch of B examples.

    Public functions that `verify` calls have variants ending in ``_of`` for checked `Inputs`, so
    that `verify` checks its arguments only once.
    """

    logits: FloatArray  # (B, n)
    labels: IntArray  # (B,)
    q: FloatArray  # (B, n), or (1, n) if it is the same for all examples
    num_sampled: int
    scheme: Scheme
    is_batch: bool  # False if the caller passed one example without a batch axis
    certain: IntArray  # (k,) always-included classes

    def rows(self) -> Iterator[Example]:
        """Yield (logits (n,), label, q (n,)) for each example."""
        for i, (logits, label) in enumerate(zip(self.logits, self.labels, strict=True)):
            yield logits, int(label), self.q[i if len(self.q) > 1 else 0]

    def parts(self, sweeps: int = 1) -> list[slice]:
        """Return slices that divide the examples into tasks for workers.

        There are enough tasks to keep the workers busy, each of about 10 ms or more. `sweeps` is
        how many times the caller runs all tasks; with more sweeps, fewer tasks are enough.
        """
        batch, n = self.logits.shape
        num_tasks = -(-_MIN_TASKS // sweeps)
        size = min(_MAX_CHUNK_EXAMPLES, _MAX_CHUNK_LOGITS // n, -(-batch // num_tasks))
        return chunks(batch, max(size, 1))

    def of(self, examples: slice) -> Inputs:
        """Return the inputs of a slice of the examples."""
        q = self.q[examples] if len(self.q) > 1 else self.q
        return replace(self, logits=self.logits[examples], labels=self.labels[examples], q=q)

    def at(self, num_sampled: int) -> Inputs:
        """Return a copy with `num_sampled` draws; the number is not checked."""
        return replace(self, num_sampled=num_sampled)

    def columns(self, rows: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Stack the results of the examples, given one tuple of results for each example.

        Returns one array (B, ...) for each entry of the tuples; or the only tuple itself, if the
        caller passed one example without a batch axis. None stays None.
        """
        results = list(rows)
        if not self.is_batch:
            return results[0]

        columns = zip(*results, strict=True)
        return tuple(None if column[0] is None else np.array(column) for column in columns)


def check_inputs(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: Any,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
    certain: Any = None,
    allows_always_included: bool = False,
    takes_missing: bool = False,
    takes_distinct: bool = False,
    require: Callable[[Scheme], None] | None = None,
) -> Inputs:
    """Check the common arguments of the bias functions, and copy them from a GPU.

    The arguments are those of `samplesoft.exact_bias`; the result contains float64 and int64 arrays
    of a batch. The flags say what the caller supports: always-included classes, which a sampler may
    have (`allows_always_included`), classes that are never drawn (`takes_missing`), and draws
    without replacement (`takes_distinct`). `require` is a function that raises for unsupported
    schemes, and replaces `takes_distinct`.

    Raises TypeError or ValueError if an argument is malformed, or the proposal misses a class that
    the scheme needs.
    """
    known_scheme = _find_scheme(scheme, takes_distinct, require)
    if not allows_always_included:
        require_none_certain("q", q)

    logits = to_host(logits)
    labels = to_host(labels)
    m = as_count("num_sampled", num_sampled, known_scheme.min_draws)
    o = as_real_array("logits", logits, (1, 2))
    n = o.shape[-1]
    checked_labels = as_labels("labels", labels, n, o.shape[:-1])
    proposal = _check_proposal(q, h, o, np.atleast_1d(checked_labels), known_scheme)

    inputs = Inputs(
        np.atleast_2d(o),
        np.atleast_1d(checked_labels),
        np.atleast_2d(proposal),
        m,
        known_scheme,
        is_batch=o.ndim == 2,
        certain=check_certain(certain, q, n, known_scheme),
    )

    check_support(inputs, takes_missing)
    if known_scheme.distinct:
        _check_num_distinct(inputs)

    return inputs


def _find_scheme(
    name: Any, takes_distinct: bool, require: Callable[[Scheme], None] | None
) -> Scheme:
    """Return the scheme of this `name`, as `as_scheme` does; faster if the name is valid."""
    known_scheme = SCHEMES.get(name) if require is None and isinstance(name, str) else None
    if (
        known_scheme is not None
        and known_scheme.has_exact_bias
        and (takes_distinct or not known_scheme.distinct)
    ):
        return known_scheme
    return as_scheme(name, takes_distinct, require)


def _check_num_distinct(inputs: Inputs) -> None:
    """Raise ValueError if an example has fewer classes that can be drawn than draws."""
    for row, (_, label, q) in enumerate(inputs.rows()):
        available = int((q > 0.0).sum()) - (inputs.scheme.excludes_label and bool(q[label] > 0.0))
        if inputs.num_sampled > available:
            raise ValueError(
                f"`num_sampled` must be at most {available}, the number of classes that can be "
                f"drawn without replacement (example {row}), got {inputs.num_sampled}; draw fewer, "
                f"or take a scheme with replacement."
            )


def check_correction(value: ArrayLike, inputs: Inputs) -> FloatArray:
    """Check `value`, the divisors of the draws; return them as an array (1, n) or (B, n).

    A divisor must be above 0 for every class that can be drawn, and for a label that is corrected.
    """
    array = as_real_array("correction", to_host(value), (1, 2) if inputs.is_batch else (1,))
    batch, n = inputs.logits.shape
    rows = np.atleast_2d(array)
    if rows.shape not in ((1, n), (batch, n)):
        raise ValueError(
            f"`correction` of shape {array.shape} does not match `logits` of {batch} x {n}; give "
            "one row for all examples, or one row for each."
        )

    # the label is in S even if it is never drawn
    is_divisor = np.broadcast_to(inputs.q > 0.0, (batch, n)).copy()
    if inputs.scheme.corrects_label:
        is_divisor[np.arange(batch), inputs.labels] = True
    if rows.min() < 0.0 or ((rows < MIN_Q) & is_divisor).any():
        raise ValueError(
            f"`correction` must be greater than 0, and at least {MIN_Q:.2g}, on every class that "
            f"`q` can draw or whose logit is corrected, got {rows.min()}; it divides weights."
        )

    return rows


def probs_of(
    q: Any, h: ArrayLike | None, labels: IntArray, n: int, scheme: Scheme, name: str = "q"
) -> Any:
    """Return the proposal `q` as an array of all n classes in host memory, (1, n) or (B, n).

    A sampler is replaced by its probabilities; any other `q` is returned as it is. If the scheme
    excludes the `labels` (B,), the probabilities are ``q.probs(h, exclude=labels)``: the exact
    distribution of the sampler's draws, which may differ from its probabilities given "not the
    label". An object without a method ``sample`` makes no draws, and gets no `exclude`. `name` is
    the argument's name in error messages.

    Raises TypeError if a sampler needs context vectors `h` and there are none, and ValueError if it
    draws without replacement.
    """
    if not hasattr(q, "probs"):
        return to_host(q)
    if isinstance(q, type) or not callable(q.probs):
        got = f"a {type(q).__name__} whose probs is of type {type(q.probs).__name__}; pass those"
        if isinstance(q, type):
            got = f"the class {q.__name__}; make one, as in {q.__name__}(...)"
        raise TypeError(f"`{name}` must hold probabilities or be a sampler, got {got}.")

    if h is None and getattr(q, "dim", None) is not None:
        raise TypeError(
            f"`h` must hold context vectors of shape (B, {q.dim}) where `{name}` is a sampler "
            "that looks at them, got None; give h, or probabilities as an array."
        )

    if not getattr(q, "replace", True) and not scheme.distinct:
        raise ValueError(
            f"`{name}` must draw with replacement, got a {type(q).__name__} with replace=False; "
            "give one with replace=True, or take scheme='distinct' of exact_bias or "
            "exact_gradient_moments."
        )

    excludes_label = scheme.excludes_label and not scheme.independent and hasattr(q, "sample")
    if not excludes_label or n == 1 or getattr(q, "num_classes", n) != n:
        return to_host(q.probs(h))

    # a single context is used for all examples; the caller raises if their number is wrong
    if h is not None:
        h = np.atleast_2d(to_host(h))
        if len(h) not in (1, len(labels)):
            return to_host(q.probs(h))
        h = np.repeat(h, len(labels) // len(h), axis=0)

    return to_host(q.probs(h, exclude=labels))


def _check_proposal(
    q: Any, h: ArrayLike | None, logits: FloatArray, labels: IntArray, scheme: Scheme
) -> FloatArray:
    """Check the proposal `q`; return it as an array (n,), (1, n) or (B, n), for checked logits."""
    if isinstance(q, str):
        raise TypeError(
            f"`q` must hold probabilities or be a sampler, got the text {q!r}; make a sampler with "
            "samplesoft.samplers.make_sampler."
        )

    if hasattr(q, "probs"):
        if scheme.independent:
            raise ValueError(
                f"`q` must hold inclusion probabilities for scheme {scheme.name!r}, got a "
                f"{type(q).__name__}; write for example -numpy.expm1(m * numpy.log1p(-q.probs(h)))."
            )

        n = logits.shape[-1]
        proposal = as_proposal("q", probs_of(q, h, labels, n, scheme), n)
        if logits.ndim == 1 and len(proposal) == 1:
            proposal = proposal[0]
    else:
        if h is not None:
            raise ValueError(
                "`h` must be None where `q` holds probabilities, got context vectors; leave h "
                "out, or give a sampler as q."
            )

        as_q = as_probabilities if scheme.independent else as_proposal
        proposal = as_q("q", to_host(q), logits.shape[-1])

    if proposal.ndim == 2 and (logits.ndim == 1 or len(proposal) not in (1, len(logits))):
        raise ValueError(
            f"`q` of shape {proposal.shape} does not match `logits` of shape {logits.shape}; "
            "give one row for all examples, or one row for each."
        )

    return proposal


def check_support(inputs: Inputs, takes_missing: bool = False) -> None:
    """Raise ValueError if a class that the scheme needs has q = 0, or no negative has q > 0.

    With `takes_missing`, classes with q = 0 are valid, as long as a negative has q > 0.
    """
    if inputs.q.min() > 0.0 and inputs.logits.shape[1] > 1:
        return

    zeros = inputs.q == 0.0
    scheme = inputs.scheme

    for row, (_, label, q) in enumerate(inputs.rows()):
        missing = zeros[row if len(zeros) > 1 else 0].copy()
        if not (scheme.draws_label or scheme.corrects_label):
            excluded = np.append(inputs.certain, label)
            negatives = np.delete(q, excluded)
            if not negatives.any():
                if scheme.divides_by_accepted or (len(inputs.certain) and not len(negatives)):
                    continue
                suffix = ", or a certain one" if len(inputs.certain) else ""
                raise ValueError(
                    f"`q` must leave mass on a class other than the label {label}{suffix} "
                    f"(example {row}), got none: there is no negative to draw; "
                    'use scheme="reject", whose loss takes no draw there.'
                )

            missing[excluded] = False

        if takes_missing:
            continue
        if missing.any():
            raise ValueError(
                f"`q` must be greater than 0 on every class that scheme "
                f"{scheme.name!r} can draw, got 0 at class {int(np.argmax(missing))} "
                f"(example {row}); mix the proposal with a little of the uniform distribution."
            )


def require_digits(inputs: Inputs) -> None:
    """Raise ValueError if a probability q is subnormal, because 1 / q may overflow."""
    if inputs.q.min() >= MIN_Q or not ((inputs.q > 0.0) & (inputs.q < MIN_Q)).any():
        return

    scheme = inputs.scheme
    for row, (_, label, q) in enumerate(inputs.rows()):
        is_tiny = (q > 0.0) & (q < MIN_Q)
        is_tiny[label] &= scheme.draws_label or scheme.corrects_label
        if is_tiny.any():
            raise ValueError(
                f"`q` must be 0 or at least {MIN_Q:.2g}, for smaller numbers lack digits, got "
                f"{q[is_tiny][0]:.2g} at class {int(np.argmax(is_tiny))} (example {row}); mix the "
                "proposal with a little of the uniform distribution."
            )


def is_dask(value: Any) -> bool:
    """Return whether `value` is a Dask array, without importing Dask."""
    return hasattr(value, "dask") and hasattr(value, "to_delayed")


def require_none_with_dask(**arguments: Any) -> None:
    """Raise ValueError if any argument is not None, because Dask arrays support none of them."""
    unsupported = [f"`{name}`" for name, value in arguments.items() if value is not None]
    if unsupported:
        raise ValueError(
            f"{', '.join(unsupported)} must be left out where `logits` or `q` is a Dask array; "
            "compute the arrays first if they fit into memory."
        )


# --- always-included classes -------------------------------------------------------------------


def check_certain(value: Any, q: Any, num_classes: int, scheme: Scheme) -> IntArray:
    """Check the always-included classes; return their indices (k,), sorted.

    The classes are the argument `value`, or the attribute ``certain`` of a sampler `q`.
    """
    sampler_classes = getattr(q, "certain", None)
    if sampler_classes is not None and value is not None:
        raise ValueError(
            "`certain` must be left out where `q` is a sampler that has certain classes, got "
            f"{short_repr(value)} in addition to those of the {type(q).__name__}."
        )

    chosen = sampler_classes if value is None else value
    if chosen is None:
        return np.empty(0, np.int64)

    classes = as_class_set("certain", chosen, num_classes)
    if len(classes) and not scheme.allows_always_included:
        remedy = f"take one of {', '.join(certain_schemes())}"
        if scheme.independent:
            remedy = "set their inclusion probabilities in `q` to 1"
        raise ValueError(
            f"`certain` must be empty with scheme={scheme.name!r}, got {len(classes)} classes; "
            f"{remedy}."
        )

    return classes


def require_none_certain(name: str, q: Any) -> None:
    """Raise ValueError if `q` is a sampler with always-included classes."""
    if getattr(q, "certain", None) is not None:
        raise ValueError(
            f"`{name}` must have no certain classes here, got a {type(q).__name__}; "
            "samplesoft.exact_bias, exact_gradient_moments and monte_carlo_bias take it."
        )


class MergedExample(NamedTuple):
    """One example in which the label and the always-included classes are merged into class 0.

    The merged classes contribute a constant mass to S, and drawing one of them adds nothing. Each
    p' of a merged class is therefore a fixed fraction of one joint p', eq. (B33), so that the
    merged classes can be treated as a single class. The remaining classes become classes 1, 2, ...
    """

    logits: FloatArray  # of the merged class, followed by the remaining classes
    label: int  # always 0
    q: FloatArray  # of the merged class, followed by the remaining classes
    members: IntArray  # original indices of the merged classes, the label last
    remaining: IntArray  # original indices of the remaining classes
    fractions: FloatArray  # share of each merged class in the mass of all merged classes

    def unmerged_values(self, values: FloatArray) -> FloatArray:
        """Return values (n,) of all classes, given `values` with one entry for the merged class.

        The entry of the merged class is divided among its members by their fractions.
        """
        out = np.empty(len(self.members) + len(self.remaining))
        out[self.remaining] = values[1:]
        out[self.members] = values[0] * self.fractions
        return out

    def mean_rows(self, vectors: FloatArray) -> FloatArray:
        """Return the class vectors after the merge, given `vectors` (n, d) of all classes.

        Row 0 is the mean of the rows of the merged classes, weighted by mass. The rows of the
        remaining classes follow.
        """
        members = vectors[self.members]

        # average differences from the label's vector; they are exact if the caller has made it 0
        mean = members[-1] + self.fractions @ (members - members[-1])
        return np.concatenate([mean[None], vectors[self.remaining]])

    @property
    def rounding(self) -> float:
        """Relative error of the mass of the merged class, from the rounding of its logit."""
        return float(np.spacing(abs(self.logits[0])))


def merge_certain_into_label(
    logits: FloatArray, label: int, q: FloatArray, certain: IntArray
) -> MergedExample:
    """Merge the label and the `certain` classes of one example into a single class."""
    members = np.append(certain[certain != label], label)
    remaining = np.delete(np.arange(len(logits)), members)
    max_logit = logits[members].max()
    with np.errstate(over="ignore"):
        masses = np.exp(logits[members] - max_logit)
    total = masses.sum()

    o = np.append(max_logit + np.log(total), logits[remaining])
    return MergedExample(
        o, 0, np.append(q[members].sum(), q[remaining]), members, remaining, masses / total
    )


# --- derivatives of the logits -----------------------------------------------------------------


def check_jacobian(jacobian: ArrayLike, logits_shape: tuple[int, ...]) -> FloatArray:
    """Check a Jacobian of the logits; return it in float64, as (n, P) or (B, n, P)."""
    array = as_real_array("jacobian", jacobian, (2, 3) if len(logits_shape) == 2 else (2,))

    expected_shape = logits_shape if array.ndim == 3 else logits_shape[-1:]
    if array.shape[:-1] != expected_shape:
        expected_shapes = "(n, P)" if len(logits_shape) == 1 else "(n, P) or (B, n, P)"
        raise ValueError(
            f"`jacobian` of shape {array.shape} does not match `logits` of shape {logits_shape}; "
            f"give the derivatives of all logits, {expected_shapes}, one column for each parameter."
        )
    return array


def scaled_to_avoid_overflow(jacobian: FloatArray) -> tuple[FloatArray, int]:
    """Return ``jacobian / 2**k`` and k, chosen such that sums over the classes do not overflow.

    The weights in these sums must be at most 1. k is 0, and the Jacobian is returned unchanged,
    unless it has entries near the largest float64.
    """
    largest = int(np.frexp(np.abs(jacobian).max())[1])
    excess = max(largest + jacobian.shape[-2].bit_length() + 2 - 1023, 0)
    return (np.ldexp(jacobian, -excess) if excess else jacobian), excess


def ldexp_or_inf(values: FloatArray, exponent: int) -> FloatArray:
    """Return ``values * 2**exponent``, infinite where that overflows."""
    with np.errstate(over="ignore"):
        # if 2**exponent is a normal float64, the product is the same, but faster
        if abs(exponent) < 1023:
            return values * 2.0**exponent
        product: FloatArray = np.ldexp(values, exponent)
    return product


def weighted_row_sum(weights: FloatArray, jacobian: FloatArray) -> FloatArray:
    """Return ``sum_i weights_i * jacobian_i``: (P,) for weights (n,), (B, P) for (B, n)."""
    if jacobian.ndim == 2:
        product: FloatArray = weights @ jacobian
    else:
        product = np.matmul(weights[:, None, :], jacobian)[:, 0, :]
    return product
