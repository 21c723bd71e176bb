"""`check_loss`: identify what an implementation of a sampled loss estimates."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import stdtrit

from samplesoft._progress import progress_bar
from samplesoft._random import as_key
from samplesoft._validation import FloatArray, as_choice, as_count, as_flag, as_positive
from samplesoft.checking.batches import InBatchCandidates
from samplesoft.checking.calls import DRAWS, make_drawing_loss
from samplesoft.checking.candidates import Candidate
from samplesoft.checking.estimators import ESTIMATORS, full_sum
from samplesoft.checking.exact import expectation
from samplesoft.checking.families import FAMILIES, CheckState
from samplesoft.checking.faults import FAULTS
from samplesoft.checking.fitted import (
    candidates_with_fitted_constants,
    candidates_with_gradient_faults,
    candidates_with_other_proposals,
    candidates_with_scaled_gradients,
)
from samplesoft.checking.known import (
    candidates_by_name,
    full_candidate,
    known_candidates,
    tested_kinds_of_draws,
)
from samplesoft.checking.observe import ROUNDINGS, Observed, Observer
from samplesoft.checking.problems import REPLICAS, Problem, extreme_problems, make_problem
from samplesoft.checking.report import LossReport
from samplesoft.checking.spread import Spread, moments_of_squared_losses, with_exact_loss_spread

CandidateName = tuple[str, str | None]  # of a scheme and a mistake
ALPHA = 1e-4  # probability that the right candidate is excluded, over all looks
_MIN_CALLS = {True: 2048, False: 8192}  # before a verdict, with a gradient and without
_MAX_SKEWNESS = 0.3  # of a tested mean: about eleven of the rare draws that cause it
_TIE_STDERRS = 2.0  # candidates whose distances differ by less are equally good
_MIN_STDERR_RATIO = 0.5  # observed over predicted; it is lower if rare draws did not occur


def check_loss(
    loss: Callable[..., Any],
    proposal: Any,
    num_sampled: int,
    *,
    draws: str = "own",
    tau: float = 1.0,
    biases: bool = False,
    weights: bool = False,
    calls: int = 1 << 15,
    rounding: str | None = None,
    progress: bool = False,
    rng: int | np.random.Generator | None = 0,
) -> LossReport:
    r"""Identify what an implementation of a sampled loss estimates.

    The loss is called many times on small problems, and its average results are compared with exact
    means: of every known scheme, without a mistake and with each of the usual mistakes. This mostly
    takes from 3 to 30 seconds.

    Parameters
    ----------
    loss : callable
        ``loss(class_embeddings, h, labels, num_sampled, seed)`` with float64 arrays (n, d), (B, d)
        and int64 (B,), which draws by itself and returns the losses (B,), or ``(losses, dh)`` with
        the gradient (B, d) of their sum in `h`, or that and the gradients ``dW`` (n, d) in the
        class vectors and ``db`` (n,) in the biases. Logits are to be ``tau h . c``. It may share
        draws among the batch.
    proposal : array_like of shape (n,), callable, str or sampler
        What it draws from (for negatives of the batch, the probabilities of labels): probabilities,
        which fix n; a function of n that returns them;
        ``"uniform"`` or ``"log-uniform"``; or an object with ``num_classes`` and ``probs(h)``.
    num_sampled : int
        Number of draws m that the loss is asked for. A loss whose negatives are the labels of its
        batch is called on batches of B = 64, and its m is B - 1 = 63, whatever is given here.
    draws : {"own", "given", "given-negatives"}
        ``"own"``: as above. Else the loss does not draw, and is called as ``loss(scores, ids,
        log_q, labels)`` with the logits (B, n), draws (B, m), and the log-probabilities (B, n) that
        one draw has; it returns the losses (B,), or ``(losses, dscores)`` with the gradient (B, n).
        ``"given-negatives"`` are draws that are not the label, whose ``log_q`` is -inf.
    tau : float
        Inverse temperature that the loss puts before ``h . c``.
    biases : bool
        Whether the loss takes class biases (n,) as a sixth argument.
    weights : bool
        Whether the loss takes weights (B,) of the examples as its last argument; its losses are
        then multiplied by them, and so are gradients.
    calls : int
        Calls after which no more are made, though hypotheses are left that the means allow; a
        power of two. With few, wrong hypotheses are left too: the report says how many.
    rounding : {"float16", "bfloat16"}, optional
        A type in which part of the loss is computed, whatever type its results have, such as
        products under autocast. It is measured where draws follow `seed` and do not change with
        the inputs a little; otherwise say it here.
    progress : bool
        Show on stderr how many calls were made.
    rng : int, numpy.random.Generator or None
        Seed of the problems, and of the seeds that the loss is given.

    Returns
    -------
    LossReport
        The scheme and the mistake, with a table, JSON, a page and a plot.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the loss does not take the arguments that it is called
        with, or returns what it should not: other shapes, numbers that are not finite, the same
        for every seed though it is not the full softmax.

    Notes
    -----
    A right implementation is called wrong with a probability below 1e-4: the limit of \|z\| is that
    of Student's t, divided among all means of four examples and all looks at them, and wider for
    means of skewed numbers. Calls go on until one hypothesis is left, or `calls` were made; how
    long they take does not matter. Hypotheses that are left are all named, the simplest first: that
    with the fewest mistakes, and then that which is nearest. Some have the same means whatever is
    done, and are named together.

    A hypothesis whose means fit must fit in the spread of single losses too: the mean of their
    squares, less a number near their mean, has an exact value as well (one integral over the powers
    of the logarithm), and a standard error from squares of squares. That tells ``masked`` from
    ``reject`` with few calls, and finds draws that are not independent, which leave the mean of a
    logistic loss as it is: `dependent_draws`. Where squares are too skewed to be tested, or have no
    closed form (jackknife), means decide alone.

    What is less simple is tried where nothing simpler fits: draws without replacement, corrected by
    inclusion probabilities or by the number of tries they took as in TensorFlow; a mistake in them;
    another proposal, and mistakes with a number that nobody gave; two mistakes at once. A loss that
    is right is called again on extreme problems: logits that are all low and labels far ahead of
    the others, for masks that leak; single classes far above all others, at both ends and a few
    beside, for ranges that are off by one; and where `proposal` is for any n 10,000 classes, for q
    that are clipped or have a number added. Without a fixed n it is otherwise above m, so that
    draws without replacement are possible.

    Rounding is told apart from mistakes: on lines of inputs an exact loss is smooth, and sixth
    differences are those of rounding, of float16 and bfloat16 too, wherever in the loss it is.

    Classes of which q is 0, such as padding, are never drawn and never the label. The full softmax
    is that of the others, or of all. A first or last class that is never drawn though its q is
    above 0 is a mistake, `class_never_drawn`.

    A loss that stays the same for longer vectors divides them by their norms, and is called with
    vectors of norm 1 (cosines), without extreme problems. Where `proposal` looks at contexts, that
    is asked of class vectors alone. A margin of the label, as in CosFace and ArcFace, is found:
    `label_margin`.

    A gradient that is a constant times that of the losses is named with the constant,
    `gradient_scaled`. One that is 1 / B times it in a batch of B is `divided_by_batch`, where in
    batches of half the size it is twice as large.

    Two-way losses of a batch, the mean of the cross entropies of rows and of columns, are
    `in_batch_symmetric`: one half is over contexts, so that they estimate no full softmax.

    A loss that is the same for every seed is compared with the full softmax, and with losses whose
    negatives are the labels of the batch (in-batch negatives), on batches of random labels.

    Mixed negatives, the labels of the batch and `num_sampled` draws beside, are known with draws by
    the same proposal as the labels', uniform and log-uniform ones; for their bias see
    ``figures/mixed_bias.py``.

    Random losses whose means are those of the full softmax, and of no scheme above, are
    ``unbiased``, such as `samplesoft.losses.MultilevelLoss`.

    Independent inclusion (``poisson``) is taken to have the probabilities ``1 - (1 - q)^m``.

    References
    ----------
    Rawat et al., "Sampled softmax with random Fourier features", NeurIPS 2019, eqs. 5 to 8, for
    the loss; the exact means are those of `samplesoft.exact_bias`.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft import check_loss
    >>> def loss(class_embeddings, h, labels, num_sampled, seed):
    ...     n = len(class_embeddings)
    ...     ids = np.random.default_rng(seed).integers(0, n, (len(h), num_sampled))
    ...     o = h @ class_embeddings.T
    ...     own, drawn = (np.take_along_axis(o, i, 1) for i in (labels[:, None], ids))
    ...     drawn += np.log(num_sampled / n)  # it should be less
    ...     drawn[ids == labels[:, None]] = -np.inf
    ...     return np.logaddexp(own[:, 0], np.logaddexp.reduce(drawn, axis=1)) - own[:, 0]
    >>> report = check_loss(loss, "uniform", num_sampled=10)
    >>> report.scheme, report.fault
    ('masked', 'log_q_added')
    """
    if not callable(loss):
        raise TypeError(
            f"`loss` must be callable as loss(class_embeddings, h, labels, num_sampled, seed), got "
            f"{type(loss).__name__}."
        )
    m, most, key = as_count("num_sampled", num_sampled), as_count("calls", calls), as_key(rng)
    # 1. four examples on which schemes differ, 2. what the loss returns there
    tau, biases = as_positive("tau", tau), as_flag("biases", biases)
    make = partial(
        make_problem, proposal, m, tau, biases, key, with_weights=as_flag("weights", weights)
    )
    problem = make()
    draws, start = as_choice("draws", draws, DRAWS), time.perf_counter()
    unit = 0.0 if rounding is None else ROUNDINGS[as_choice("rounding", rounding, ROUNDINGS)]

    def observe(problem: Problem, most: int) -> Observer:
        drawn = loss
        if draws != "own":
            exclude = draws == "given-negatives"
            drawn = make_drawing_loss(loss, problem.q, problem.labels, problem.tau, exclude)
        return Observer(drawn, problem, m, key, most, unit)

    observer = observe(problem, most)
    if observer.divides_by_norms:
        problem = make(has_unit_vectors=True)
        observer = observe(problem, most)
    with progress_bar(as_flag("progress", progress), has_unit_vectors="call", desc="check") as bar:
        if observer.is_random:  # 3. the means of many calls
            scores = test_until_decided(observer, bar)
        else:
            observer.run_calls(2)
            scores = classify_deterministic(observer)
        # 4. the verdict: what is allowed first, and of that what has fewest mistakes
        scores = _sort_scores(scores)
        ordinary: tuple[str, ...] = ()
        # 5. what is right is tried where mistakes show that are too small otherwise
        for extreme, calls_of_extreme in extreme_problems(proposal, problem, m, key):
            left = surviving_names(scores, extreme)
            right = _faultless_schemes(left)
            if not left or not (right or ordinary):
                break
            other = observe(extreme, min(most, calls_of_extreme))
            other.num_looks = observer.num_looks
            found = test_on_extreme(other, left, right or ordinary)
            if right and found and not _any_allowed(found, right=True) and observer.is_random:
                # what is less simple was not tried, for something simpler seemed to fit
                again = _sort_scores(test_until_decided(observer, bar, left))
                left_again = surviving_names(again, extreme)
                there = test_on_extreme(other, left_again, _faultless_schemes(left_again))
                if _any_allowed(there, right=True):
                    scores, found = again, there
            if _any_allowed(
                found, right=bool(_faultless_schemes(surviving_names(scores, extreme)))
            ):
                scores = _sort_scores(exclude_refuted(scores, found))
            elif found:
                ordinary = ordinary or right
                observer, scores = other, found
    scores[0] = resolve_gradient_factor(observer, scores[0])
    best, observed, problem = scores[0], observer.means(), observer.problem
    loss_bias = gradient_bias = None
    if best.expected is not None:
        full = expectation([full_sum(problem)])
        loss_bias = float((best.expected.losses - full.losses).mean())
        away = best.expected.d_logits - full.d_logits
        gradient_bias = float(np.abs(away).sum(axis=1).mean())
    # candidates with the same means are named together
    allowed = [one.name for s in scores if s.allowed for one in (s, *s.equivalents)]
    of_losses: list[str] = []
    if observer.num_gradients and not best.allowed:
        alone = observed.values_in(slice(len(problem.labels)))
        # those of negatives of the batch are about other batches
        ours = [one for one in scores if len(one.means) == len(observed.means)]
        of_losses = [
            one.scheme for one in ours if one.fault is None and score_candidate(one, alone).allowed
        ]
    return LossReport(
        scheme=best.scheme if best.allowed else None,
        fault=best.fault if best.allowed else None,
        consistent=tuple(dict.fromkeys(allowed)),
        scores=tuple(scores),
        limit=z_limit(observed) if observer.is_random else 0.0,
        loss_bias=loss_bias,
        gradient_bias=gradient_bias,
        of_ordinary=() if best.allowed else ordinary,
        of_losses=tuple(of_losses),
        with_gradient=observer.num_gradients > 0,
        divides_by_norms=problem.has_unit_vectors,
        in_half_precision=observer.in_half_precision,
        is_random=observer.is_random,
        follows_seed=observer.follows_seed,
        num_sampled=m,
        num_classes=problem.num_classes,
        calls=observed.num_calls,
        num_results=observer.num_results,
        num_sets=observer.num_sets,
        autocorrelation=observer.autocorrelation,
        seconds=time.perf_counter() - start,
    )


def _any_allowed(scores: list[Candidate], right: bool) -> bool:
    """Whether any candidate is allowed; with `right`, any without a fault."""
    return any(s.allowed and (s.fault is None or not right) for s in scores)


def surviving_names(scores: list[Candidate], problem: Problem) -> set[CandidateName]:
    """Return the names of the allowed candidates that can be tested on `problem`."""
    names = {one.name for s in scores if s.allowed for one in (s, *s.equivalents)}
    draws = tested_kinds_of_draws(problem)
    return {name for name in names if ESTIMATORS[name[0]].draws in draws}


def test_until_decided(
    observer: Observer, bar: Any, excluded: AbstractSet[CandidateName] = frozenset()
) -> list[Candidate]:
    """Call the loss until one candidate is left, or `calls` were made; return all scores.

    Candidates whose names are in `excluded` are not allowed.
    """
    scores: list[Candidate] = []

    @cache
    def of_squares(one: Candidate) -> tuple[FloatArray, Spread] | None:
        return moments_of_squared_losses(one.sums, observer.centre) if one.sums else None

    for _ in range(observer.num_looks):
        for _ in range(observer.calls_before_next_look):
            observer.run_calls(1)
            bar.update()
        observed, scores = observer.means(), []
        is_enough = observed.num_calls >= min(
            _MIN_CALLS[observer.num_gradients > 0], observer.max_calls
        )
        for family in FAMILIES if is_enough else FAMILIES[:1]:
            simpler = {
                "never": False,
                "right": _any_allowed(scores, True),
                "any": _any_allowed(scores, False),
            }
            if simpler[family.unless]:
                continue
            for one in family.make_candidates(CheckState(observer, observed, scores)):
                tested = score_candidate(one, observed)
                if excluded >= {each.name for each in (one, *one.equivalents)}:
                    tested = replace(tested, allowed=False)
                if tested.allowed:
                    tested = score_squared_losses(
                        tested, of_squares(one), observed, observer.centre
                    )
                scores.append(tested)
        if is_enough and (
            sum(s.allowed for s in scores) <= 1 or not observer.calls_before_next_look
        ):
            break
    return scores


def _faultless_schemes(names: set[CandidateName]) -> tuple[str, ...]:
    """Return the schemes that are among `names` without a fault."""
    return tuple(scheme for scheme in ESTIMATORS if (scheme, None) in names)


def test_on_extreme(
    observer: Observer, left: set[CandidateName], schemes: tuple[str, ...]
) -> list[Candidate]:
    """Return the scores of the remaining candidates on an extreme problem; empty if none can be.

    If the loss fits none of them there, other proposals, and mistakes with a fitted number, are
    tried for `schemes`.
    """
    candidates = candidates_by_name(observer, left)
    if not (candidates and schemes):
        return []
    observer.run_calls(observer.max_calls - observer.num_calls if observer.is_random else 2)
    observed = observer.means()
    test = score_candidate if observer.is_random else score_deterministic
    if observer.is_random:
        candidates = [
            replace(one, spread=with_exact_loss_spread(one.spread, one.sums, observer.centre))
            for one in candidates
        ]
    scores = [test(one, observed) for one in candidates]
    if not any(s.allowed for s in scores):
        others = chain(
            candidates_with_other_proposals(observer, schemes),
            candidates_with_fitted_constants(observer, observed, schemes),
        )
        scores += [test(one, observed) for one in others]
    return _sort_scores(scores)


def exclude_refuted(scores: list[Candidate], found: list[Candidate]) -> list[Candidate]:
    """Return the scores, with candidates excluded whose names were all refuted in `found`."""
    less = []
    for s in scores:
        names = {one.name for one in (s, *s.equivalents)}
        there = [f for f in found if any(one.name in names for one in (f, *f.equivalents))]
        if s.allowed and there and not any(f.allowed for f in there):
            s = replace(s, allowed=False, z=max(s.z, *(f.z for f in there)))
        less.append(s)
    return less


def resolve_gradient_factor(observer: Observer, best: Candidate) -> Candidate:
    """Return the candidate with its gradient factor resolved: a constant, or 1 / B.

    A batch of half the size decides: there 1 / B is twice as large.
    """
    if not (best.allowed and best.sums and observer.num_gradients):
        return best  # that is known of negatives of the batch: see `Batches.scaled`
    of_batch = best.fault == "divided_by_batch" and best.sums[0].loss_factor == 1.0
    of_constant = (
        best.fault == "gradient_scaled" and best.gradient_factor == 1.0 / observer.batch_size
    )
    if not (of_batch or of_constant):
        return best
    examples, d = observer.problem.h.shape
    dh = slice(examples, examples * (1 + d))
    direction = best.means[dh]
    there = observer.mean_gradient_of_batch(REPLICAS // 2)
    ratio = float(direction @ there.ravel()) / float(direction @ observer.means().means[dh])
    if ratio > np.sqrt(2.0):
        return replace(best, fault="divided_by_batch")
    detail = f"the gradient is 1/{observer.batch_size} of theirs, in smaller batches too"
    return replace(best, fault="gradient_scaled", detail=detail)


def _sort_scores(scores: list[Candidate]) -> list[Candidate]:
    """Return the candidates sorted: allowed first, then by number of faults, then by distance.

    Among the best that are about equally near, the order of `ESTIMATORS` and `FAULTS` decides.
    """

    def by_fit(one: Candidate) -> tuple[bool, int, float]:
        mistakes = len(one.faults)
        return not one.allowed, mistakes if one.allowed else max(mistakes, 1), one.z

    def by_use(one: Candidate) -> list[int]:
        return [*(faults.index(name) for name in one.faults), schemes.index(one.scheme)]

    faults, schemes, rest = list(FAULTS), list(ESTIMATORS), sorted(scores, key=by_fit)
    if not rest or not rest[0].allowed:
        return rest
    *simplest, z = by_fit(rest[0])
    first = [s for s in rest if [*by_fit(s)[:2]] == simplest and s.z < z + _TIE_STDERRS]
    return sorted(first, key=by_use) + rest[len(first) :]


def classify_deterministic(observer: Observer) -> list[Candidate]:
    """Return the scores of a loss that is the same for all seeds; ValueError if it should not be.

    It can be the full softmax, or have the labels of the batch as its negatives.
    """
    observed, known = observer.means(), known_candidates(observer)
    full = full_candidate(known)
    of_losses = observed.values_in(slice(len(observer.problem.labels)))
    for part, candidates in ((observed, known), (of_losses, [full])):
        scores = [score_deterministic(one, part) for one in candidates]
        if not any(s.allowed for s in scores) and part is observed:
            scores += [
                score_deterministic(one, part)
                for one in candidates_with_gradient_faults(observer, [full])
            ]
        if not any(s.allowed for s in scores) and part is observed:
            scaled = candidates_with_scaled_gradients(observer, part, [full])
            of_full = chain(scaled, candidates_with_fitted_constants(observer, part))
            scores += [score_deterministic(one, part) for one in of_full]
        if not any(s.allowed for s in scores):
            num_gradients = observer.num_gradients if part is observed else 0
            batches = InBatchCandidates(observer, num_gradients)
            for ways in (
                batches.known_candidates,
                batches.two_way_candidates,
                batches.candidates_with_scaled_gradients,
                batches.fitted_candidates,
            ):
                if not any(s.allowed for s in scores):
                    scores += [score_deterministic(one, batches.observed) for one in ways()]
        allowed = [s.scheme for s in scores if s.allowed]
        if allowed and part is observed:
            return scores
        if allowed:  # the losses are right, and the gradient is wrong
            names = "dh"
            if allowed[0] == "full":
                wrong = (
                    np.abs(observed.means - full.means)
                    > observed.rounding_bounds + full.relative_error
                )
                names = " and ".join(observer.names_of_results(wrong))
            raise ValueError(
                "`loss` must return the gradient of its losses, got the losses of "
                f"`{allowed[0]}` with a gradient that is not theirs; see how {names} is computed."
            )
    if observer.has_negatives_of_batch:  # in a way that nobody knows
        return scores[1:]
    means = of_losses.means
    raise ValueError(
        "`loss` must draw classes, have the labels of the batch as its negatives, or be the full "
        f"softmax, got the same losses for every seed and all labels of other examples, "
        f"{means.round(4).tolist()}, where the full softmax has "
        f"{full.means[: len(means)].round(4).tolist()}; make draws from `seed`, or see that `tau` "
        "is that of the loss."
    )


# the test ----------------------------------------------------------------------------------------


def z_limit(observed: Observed) -> float:
    """Return the limit that any ``|z|`` of all looks exceeds with probability `ALPHA`."""
    tests = len(observed.means)
    if observed.squared_losses is not None:
        tests += len(observed.squared_losses.means)
    return float(-stdtrit(observed.num_calls - 1, ALPHA / (2.0 * observed.num_looks * tests)))


def score_candidate(one: Candidate, observed: Observed) -> Candidate:
    """Return a candidate with its distance from the observed means, of all or of the losses."""
    size, limit = len(observed.means), z_limit(observed)
    width = one.spread if size == len(one.means) else None
    z, allowed = _max_z_and_allowed(one.means[:size], one.relative_error, width, observed, limit)
    return replace(one, z=z, allowed=allowed)


def score_deterministic(one: Candidate, observed: Observed) -> Candidate:
    """Return the score of a deterministic loss; its `z` is the root mean square error."""
    found = score_candidate(one, observed)
    off = np.sqrt(((one.means[: len(observed.means)] - observed.means) ** 2).mean())
    return replace(found, z=0.0 if found.allowed else float(off))


def score_squared_losses(
    one: Candidate,
    expected: tuple[FloatArray, Spread] | None,
    observed: Observed,
    centre: FloatArray,
) -> Candidate:
    """Return a candidate with allowed means, excluded if the variance of single losses differs.

    `expected` are the means of squared losses minus `centre` (E,), and their spread.
    """
    if expected is None or observed.squared_losses is None:
        return one
    means, width = expected
    z, allowed = _max_z_and_allowed(
        means, one.relative_error, width, observed.squared_losses, z_limit(observed)
    )
    # variances of single losses: as observed, and as the candidate has them
    seen = observed.squared_losses.means - (observed.means[: len(centre)] - centre) ** 2
    due = means - (one.means[: len(centre)] - centre) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):  # where all draws are left out: none
        ratio = float(np.sqrt((seen / due).mean()))
    return replace(one, z=max(z, one.z), allowed=allowed, sd_ratio=ratio)


def _max_z_and_allowed(
    means: FloatArray,
    relative_error: float,
    spread: Spread | None,
    observed: Observed,
    limit: float,
) -> tuple[float, bool]:
    """Return the largest ``|z|``, and whether all are within their limits."""
    stderrs, skewness = observed.stderrs, np.abs(observed.skewness)
    if spread is not None:
        least = (
            _MIN_STDERR_RATIO * spread.deviations / np.sqrt(observed.num_sets * observed.num_calls)
        )
        stderrs = np.maximum(stderrs, least)
        skewness = np.maximum(skewness, spread.skewness / np.sqrt(observed.num_sets))
    skewness = skewness / np.sqrt(observed.num_calls)  # of a mean
    # differences beyond rounding, in units of standard errors
    rounding = observed.rounding_bounds + relative_error * (observed.magnitudes + np.abs(means))
    apart = np.maximum(np.abs(observed.means - means) - rounding, 0.0)
    z = np.where(apart > 0.0, np.inf, 0.0)
    np.divide(apart, stderrs, out=z, where=stderrs > rounding * 1e-3)
    z[skewness > _MAX_SKEWNESS] = 0.0  # no limit is known for such a mean
    # limits for slightly skewed means, by the Cornish-Fisher expansion for Student's t
    limits = limit + skewness * (2.0 * limit**2 + 1.0) / 6.0
    return float(z.max()), bool((z <= limits).all())
