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

from samplesoft._moving_average import as_moving_average
from samplesoft._progress import progress_bar
from samplesoft._random import stream_key
from samplesoft._validation import FloatArray, as_choice, as_count, as_flag, as_positive
from samplesoft.checking.batches import InBatchCandidates
from samplesoft.checking.calls import DRAWS, make_drawing_loss
from samplesoft.checking.candidates import Candidate
from samplesoft.checking.estimators import ESTIMATORS, full_sum
from samplesoft.checking.exact import expectation
from samplesoft.checking.families import FAMILIES, MEMORY_FAMILIES, CheckState
from samplesoft.checking.faults import ALL_FAULTS
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
from samplesoft.checking.memory import with_memory
from samplesoft.checking.observe import HALF_PRECISION_UNITS, Observed, Observer
from samplesoft.checking.problems import REPLICAS, Problem, extreme_problems, make_problem
from samplesoft.checking.report import LossReport
from samplesoft.checking.spread import (
    Spread,
    moments_of_squared_losses,
    with_at_least_exact_loss_spread,
)

CandidateName = tuple[str, str | None]  # scheme and fault
# probability that the tests of one `check_loss` together exclude the right candidate
ALPHA = 1e-4
# smallest number of calls before a verdict: for losses with a gradient (True), and without
_MIN_CALLS = {True: 2048, False: 8192}
# Means with a larger skewness are not tested. A mean that depends on about eleven draws of a rare
# class has a skewness of 0.3.
_MAX_SKEWNESS = 0.3
# candidates whose ``|z|`` differ by less than this count as equally near
_TIE_STDERRS = 2.0
# The standard error in a test is at least this fraction of the predicted one: the observed one is
# too small if rare draws did not occur.
_MIN_STDERR_RATIO = 0.5


def check_loss(
    loss: Callable[..., Any],
    proposal: Any,
    num_sampled: int,
    *,
    draws: str = "own",
    tau: float = 1.0,
    biases: bool = False,
    weights: bool = False,
    log_sums: bool = False,
    gamma: float | None = None,
    alpha: float | None = None,
    calls: int = 1 << 15,
    rounding: str | None = None,
    progress: bool = False,
    rng: int | np.random.Generator | None = 0,
) -> LossReport:
    r"""Identify what an implementation of a sampled loss estimates.

    The loss is called many times on small problems. Its average results are compared with the exact
    means of every known scheme, without a mistake and with each of the usual mistakes. This usually
    takes 3 to 30 seconds.

    Parameters
    ----------
    loss : callable
        ``loss(class_embeddings, h, labels, num_sampled, seed)`` with float64 arrays (n, d), (B, d)
        and int64 (B,). It draws classes by itself, and returns the losses (B,); or ``(losses, dh)``
        with the gradient (B, d) of their sum in `h`; or also the gradients ``dW`` (n, d) in the
        class vectors and ``db`` (n,) in the biases. Logits must be ``tau h . c``. The examples of a
        batch may share draws.
    proposal : array_like of shape (n,), callable, str or sampler
        The distribution from which the loss draws; for in-batch negatives, the probabilities of the
        labels. It is an array, which fixes n; a function of n that returns an array; ``"uniform"``
        or ``"log-uniform"``; or an object with ``num_classes`` and ``probs(h)``.
    num_sampled : int
        Number of draws m that is passed to the loss. A loss whose negatives are the labels of its
        batch is called on batches of B = 64; its m is B - 1 = 63, whatever `num_sampled` is.
    draws : {"own", "given", "given-negatives"}
        ``"own"``: the loss draws by itself, as above. With ``"given"`` it does not draw, but is
        called as ``loss(scores, ids, log_q, labels)`` with the logits (B, n), the draws (B, m), and
        the log-probabilities (B, n) of one draw. It then returns the losses (B,), or
        ``(losses, dscores)`` with the gradient (B, n). With ``"given-negatives"`` the label is
        never drawn, and its ``log_q`` is -inf.
    tau : float
        Inverse temperature of the loss, whose logits are ``tau h . c``.
    biases : bool
        Whether the loss takes class biases (n,) as a sixth argument.
    weights : bool
        Whether the loss takes weights (B,) of the examples as its last argument, and multiplies
        losses and gradients by them.
    log_sums : bool
        Whether the loss has a memory, and starts at each call from the log-sums u (B,) of its
        examples, which it takes after all other arguments except `weights`. The log-sum of an
        example is the log of its running estimate of ``sum_j exp(o_j - o_t)``, where t is the
        label, and -inf for a new example.
    gamma, alpha : float, optional
        Rate at which the running estimates of a loss with `log_sums` move, as in
        `samplesoft.losses.MovingAverageLoss`. Without it they do not move, as in
        `samplesoft.losses.DoubleSumLoss`, and no example is new.
    calls : int
        Maximum number of calls. With few calls, some wrong hypotheses may not be excluded; the
        report says how many.
    rounding : {"float16", "bfloat16"}, optional
        Type in which some terms of the loss are computed, such as products under autocast, if it is
        not the type of the results. Rounding is measured if draws depend on `seed` alone and stay
        the same if inputs change slightly; otherwise pass the type.
    progress : bool
        Show the number of calls on stderr.
    rng : int, numpy.random.Generator or None
        Seed of the problems, and of the seeds that are passed to the loss.

    Returns
    -------
    LossReport
        The scheme and the mistake, as text, JSON, HTML and a plot.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; if the loss does not accept the arguments that it is called
        with; if its results have wrong shapes or are not finite; if they drift while the same call
        is repeated, as those of a loss with a memory; or if they are the same for every seed, but
        are neither the full softmax nor a loss with in-batch negatives.

    Notes
    -----
    A right implementation is called wrong with a probability below 1e-4. The limit of \|z\| is a
    quantile of Student's t distribution, with Bonferroni's correction for all means of the four
    examples and for every time that they are tested. It is wider for means of skewed values. Calls
    continue until one hypothesis is left, or `calls` calls were made; the time of a call has no
    effect on the verdict. All hypotheses that are left are named, first the ones with the fewest
    mistakes, then the nearest ones. Hypotheses whose means are always equal are named together.

    A hypothesis whose means fit must also fit the spread of single losses. This is tested by the
    mean square of the losses minus a constant near their mean, which has an exact value too. This
    test distinguishes ``masked`` from ``reject`` with few calls. It also finds draws that are not
    independent, which do not change the mean of a logistic loss: `dependent_draws`. If squares are
    too skewed to be tested, or have no closed form (jackknife), only the means decide.

    Less simple hypotheses are tried only if no simpler one fits: draws without replacement,
    corrected by inclusion probabilities or, as in TensorFlow, by the number of tries; a mistake in
    such a loss; another proposal; mistakes with an unknown constant; and two mistakes at once. A
    loss that seems right is called again on extreme problems. Low logits, and labels whose logits
    are far above all others, reveal accidental hits that are not fully masked. Single classes far
    above all others, at both ends of the range and elsewhere, reveal ranges that are off by one. If
    `proposal` works for any n, a problem with 10,000 classes reveals q that are clipped or have a
    constant added; the other problems then have n > m, so that draws without replacement are
    possible.

    Rounding is measured, so that it is not mistaken for a mistake. Along a line of inputs an exact
    loss is smooth, so that its sixth differences are due to rounding, including float16 and
    bfloat16 rounding of intermediate values.

    Classes with q = 0, such as padding, are never drawn and are never labels. The full softmax may
    be over the other classes, or over all classes. If the first or last class is never drawn
    although its q is positive, the mistake is `class_never_drawn`.

    A loss that does not change with the lengths of the vectors divides them by their norms. Such a
    loss is called with unit vectors, so that logits are cosines times `tau`, and not on extreme
    problems. If `proposal` depends on contexts, only the lengths of class vectors are varied. A
    margin of the label, as in CosFace and ArcFace, is recognised: `label_margin`.

    A gradient that is a constant times the gradient of the losses is reported with the constant:
    `gradient_scaled`. If the constant is 1 / B in a batch of B, and twice as large in a batch of
    half the size, the mistake is `divided_by_batch`.

    A two-way loss of a batch, the mean of the cross entropies of rows and of columns, is
    `in_batch_symmetric`. One half of such a loss is over contexts, so that it does not estimate a
    full softmax.

    A loss that is the same for every seed is compared, on batches of random labels, with the full
    softmax, and with losses whose negatives are the labels of the batch (in-batch negatives).

    Mixed negatives, the labels of the batch plus `num_sampled` draws, are recognised if the draws
    are uniform, log-uniform, or follow the same distribution as the labels. For the bias of such a
    loss see ``figures/mixed_bias.py``.

    A random loss with the same means as the full softmax, such as
    `samplesoft.losses.MultilevelLoss`, is ``unbiased`` if no other scheme fits.

    A loss with a memory, such as SogCLR, SOX or SCENT, divides its gradient by a running estimate
    of the sum for each example. Pass ``log_sums=True``, and set the state from the log-sums in a
    wrapper, so that calls do not depend on each other. The scheme is then ``moving_average``;
    ``moving_average_negatives`` if the label is not in the sum, as in SogCLR; or ``double_sum`` if
    the divisor is the estimate before the visit. The loss may report u + S/U - 1, S/U or log U,
    where S is the sum of the draws and U the new estimate, or the score differences with their
    weights in the gradient; the report says which. Draws are with replacement, and no extreme
    problems are tried. Rates within a fifth of each other may not be told apart.

    For independent inclusion (``poisson``), inclusion probabilities are ``1 - (1 - q)^m``.

    References
    ----------
    Rawat et al., "Sampled softmax with random Fourier features", NeurIPS 2019, eqs. 5 to 8, define
    the loss. The exact means agree with `samplesoft.exact_bias`.

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

    m = as_count("num_sampled", num_sampled)
    max_calls = as_count("calls", calls)
    key = stream_key(rng)

    # 1. make a problem of four examples on which the means of different schemes differ
    tau = as_positive("tau", tau)
    biases = as_flag("biases", biases)
    make_test_problem = partial(
        make_problem, proposal, m, tau, biases, key, with_weights=as_flag("weights", weights)
    )
    problem = make_test_problem()

    log_sums = as_flag("log_sums", log_sums)
    if gamma is not None or alpha is not None:
        if not log_sums:
            name = "alpha" if gamma is None else "gamma"
            raise ValueError(
                f"`{name}` must be left out without `log_sums`, got "
                f"{alpha if gamma is None else gamma!r}; pass log_sums=True for a loss with a "
                "memory."
            )
        gamma, alpha = as_moving_average(gamma, alpha)

    draws = as_choice("draws", draws, DRAWS)
    start_time = time.perf_counter()

    relative_rounding = 0.0
    if rounding is not None:
        name = as_choice("rounding", rounding, HALF_PRECISION_UNITS)
        relative_rounding = HALF_PRECISION_UNITS[name]

    given_last = {"log_sums": log_sums, "weights": weights}

    def make_observer(problem: Problem, max_calls: int) -> Observer:
        drawing_loss = loss
        if log_sums:
            problem = with_memory(problem, gamma, alpha)
        if draws != "own":
            exclude = draws == "given-negatives"
            more = [name for name, given in given_last.items() if given]
            drawing_loss = make_drawing_loss(
                loss, problem.q, problem.labels, problem.tau, exclude, int(biases), more
            )
        return Observer(drawing_loss, problem, m, key, max_calls, relative_rounding)

    # 2. call the loss on this problem, and observe its results
    observer = make_observer(problem, max_calls)
    if observer.divides_by_norms:
        problem = make_test_problem(has_unit_vectors=True)
        observer = make_observer(problem, max_calls)

    drift = observer.drift
    if drift:
        remedy = (
            "set its state from the `log_sums` of each call."
            if log_sums
            else "let it start from the log-sums that each call passes, and pass log_sums=True."
        )
        raise ValueError(
            "`loss` must give the same losses whenever it is called with the same arguments, got "
            f"losses that drift by {drift:.2g} while a call is repeated, each time less and in one "
            f"direction, like a moving average: it has a memory; {remedy}"
        )

    with progress_bar(as_flag("progress", progress), unit="call", desc="check") as bar:
        if observer.is_random:  # 3. test candidates on the means of many calls
            scores = test_until_decided(observer, bar)
        else:
            observer.run_calls(2)
            scores = classify_deterministic(observer)

        # 4. sort: allowed candidates first, among these the ones with the fewest mistakes
        scores = _sort_scores(scores)
        ordinary: tuple[str, ...] = ()

        # 5. test the allowed candidates on extreme problems, which magnify small mistakes
        for extreme, calls_of_extreme in extreme_problems(proposal, problem, m, key):
            names_left = surviving_names(scores, extreme)
            faultless = _faultless_schemes(names_left)
            if not names_left or not (faultless or ordinary):
                break

            extreme_observer = make_observer(extreme, min(max_calls, calls_of_extreme))
            extreme_observer.num_looks = observer.num_looks
            extreme_scores = test_on_extreme(extreme_observer, names_left, faultless or ordinary)
            if (
                faultless
                and extreme_scores
                and not _any_allowed(extreme_scores, faultless=True)
                and observer.is_random
            ):
                # no simple candidate fits on the extreme problem: try the less simple ones too
                new_scores = _sort_scores(test_until_decided(observer, bar, names_left))
                new_names_left = surviving_names(new_scores, extreme)
                new_extreme_scores = test_on_extreme(
                    extreme_observer, new_names_left, _faultless_schemes(new_names_left)
                )
                if _any_allowed(new_extreme_scores, faultless=True):
                    scores = new_scores
                    extreme_scores = new_extreme_scores

            some_faultless = bool(_faultless_schemes(surviving_names(scores, extreme)))
            if _any_allowed(extreme_scores, faultless=some_faultless):
                scores = _sort_scores(exclude_refuted(scores, extreme_scores))
            elif extreme_scores:
                ordinary = ordinary or faultless
                observer = extreme_observer
                scores = extreme_scores

    scores[0] = resolve_gradient_factor(observer, scores[0])
    best = scores[0]
    observed = observer.means()
    problem = observer.problem

    loss_bias = gradient_bias = None
    if best.expected is not None and not log_sums:
        full_means = expectation([full_sum(problem)])
        loss_bias = float((best.expected.losses - full_means.losses).mean())
        gradient_biases = best.expected.d_logits - full_means.d_logits
        gradient_bias = float(np.abs(gradient_biases).sum(axis=1).mean())

    # names of all allowed candidates, including those whose means are equal
    allowed = [
        candidate.name
        for score in scores
        if score.allowed
        for candidate in (score, *score.equivalents)
    ]

    schemes_of_losses: list[str] = []
    if observer.num_gradients and not best.allowed:
        observed_losses = observed.select_values(slice(len(problem.labels)))

        # leave out candidates with in-batch negatives, whose means are for other batches
        comparable = [
            candidate for candidate in scores if len(candidate.means) == len(observed.means)
        ]
        schemes_of_losses = [
            candidate.scheme
            for candidate in comparable
            if candidate.fault is None and score_candidate(candidate, observed_losses).allowed
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
        of_losses=tuple(schemes_of_losses),
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
        seconds=time.perf_counter() - start_time,
    )


def _any_allowed(scores: list[Candidate], faultless: bool) -> bool:
    """Return whether a candidate is allowed; with `faultless`, one that has no fault."""
    return any(score.allowed and (score.fault is None or not faultless) for score in scores)


def surviving_names(scores: list[Candidate], problem: Problem) -> set[CandidateName]:
    """Return the names (scheme, fault) of allowed candidates that can be tested on `problem`."""
    names = {
        candidate.name
        for score in scores
        if score.allowed
        for candidate in (score, *score.equivalents)
    }
    draws = tested_kinds_of_draws(problem)
    return {name for name in names if ESTIMATORS[name[0]].draws in draws}


def test_until_decided(
    observer: Observer, bar: Any, excluded: AbstractSet[CandidateName] = frozenset()
) -> list[Candidate]:
    """Call the loss until at most one candidate is left, and return all tested candidates.

    The calls also end if `observer.max_calls` were made. A candidate is not allowed if its name and
    the names of all its equivalents are in `excluded`. The progress bar `bar` counts the calls.
    """
    scores: list[Candidate] = []

    @cache
    def expected_squares(candidate: Candidate) -> tuple[FloatArray, Spread] | None:
        if not candidate.sums:
            return None
        return moments_of_squared_losses(candidate.sums, observer.centre)

    for _ in range(observer.num_looks):
        for _ in range(observer.calls_before_next_look):
            observer.run_calls(1)
            bar.update()

        observed = observer.means()
        scores = []
        families = FAMILIES if observer.problem.memory is None else MEMORY_FAMILIES
        is_enough = observed.num_calls >= min(
            _MIN_CALLS[observer.num_gradients > 0], observer.max_calls
        )
        for family in families if is_enough else families[:1]:
            is_skipped = {
                "never": False,
                "right": _any_allowed(scores, True),
                "any": _any_allowed(scores, False),
            }
            if is_skipped[family.skip_if_allowed]:
                continue

            for candidate in family.make_candidates(CheckState(observer, observed, scores)):
                tested = score_candidate(candidate, observed)
                if excluded >= {each.name for each in (candidate, *candidate.equivalents)}:
                    tested = replace(tested, allowed=False)
                if tested.allowed:
                    tested = score_squared_losses(
                        tested, expected_squares(candidate), observed, observer.centre
                    )
                scores.append(tested)

        if is_enough and (
            sum(score.allowed for score in scores) <= 1 or not observer.calls_before_next_look
        ):
            break

    return scores


def _faultless_schemes(names: set[CandidateName]) -> tuple[str, ...]:
    """Return the schemes that are in `names` (pairs of scheme and fault) without a fault."""
    return tuple(scheme for scheme in ESTIMATORS if (scheme, None) in names)


def test_on_extreme(
    observer: Observer, names_left: set[CandidateName], schemes: tuple[str, ...]
) -> list[Candidate]:
    """Test the candidates in `names_left` on the observer's extreme problem; return them sorted.

    If no candidate fits, candidates for `schemes` that have another proposal or a fitted constant
    are tested too. The list is empty if no candidate can be tested on the problem, or if `schemes`
    is empty.
    """
    candidates = candidates_by_name(observer, names_left)
    if not (candidates and schemes):
        return []

    observer.run_calls(observer.max_calls - observer.num_calls if observer.is_random else 2)
    observed = observer.means()
    score_one = score_candidate if observer.is_random else score_deterministic
    if observer.is_random:
        candidates = [
            replace(
                candidate,
                spread=with_at_least_exact_loss_spread(
                    candidate.spread, candidate.sums, observer.centre
                ),
            )
            for candidate in candidates
        ]

    scores = [score_one(candidate, observed) for candidate in candidates]
    if not any(score.allowed for score in scores):
        others = chain(
            candidates_with_other_proposals(observer, schemes),
            candidates_with_fitted_constants(observer, observed, schemes),
        )
        scores += [score_one(candidate, observed) for candidate in others]

    return _sort_scores(scores)


def exclude_refuted(scores: list[Candidate], other_scores: list[Candidate]) -> list[Candidate]:
    """Return `scores`, with `allowed` set to False for candidates that fail on another problem.

    `other_scores` are the candidates tested on the other problem. A candidate fails there if its
    name, or the name of one of its equivalents, was tested there and was never allowed.
    """
    updated = []
    for score in scores:
        names = {candidate.name for candidate in (score, *score.equivalents)}
        related = [
            other
            for other in other_scores
            if any(candidate.name in names for candidate in (other, *other.equivalents))
        ]
        if score.allowed and related and not any(other.allowed for other in related):
            score = replace(score, allowed=False, z=max(score.z, *(other.z for other in related)))

        updated.append(score)

    return updated


def resolve_gradient_factor(observer: Observer, best: Candidate) -> Candidate:
    """Decide whether a gradient factor of 1 / B is a constant or depends on the batch size B.

    The loss is called on batches of half the size, in which a factor of 1 / B doubles. Returns
    `best` with the fault ``"divided_by_batch"`` or ``"gradient_scaled"``, or unchanged if its
    gradient has no factor of 1 / B.
    """
    if not (best.allowed and best.sums and observer.num_gradients):
        # nothing to decide; for in-batch negatives, `InBatchCandidates` has decided already
        return best

    may_depend_on_size = best.fault == "divided_by_batch" and best.sums[0].loss_factor == 1.0
    may_be_constant = (
        best.fault == "gradient_scaled" and best.gradient_factor == 1.0 / observer.batch_size
    )
    if not (may_depend_on_size or may_be_constant):
        return best

    num_examples, d = observer.problem.h.shape
    gradient_entries = slice(num_examples, num_examples * (1 + d))
    direction = best.means[gradient_entries]
    small_batch_gradient = observer.mean_gradient_with_copies(REPLICAS // 2)
    ratio = float(direction @ small_batch_gradient.ravel()) / float(
        direction @ observer.means().means[gradient_entries]
    )
    if ratio > np.sqrt(2.0):
        return replace(best, fault="divided_by_batch")

    detail = (
        f"the gradient is 1/{observer.batch_size} of the gradient of these losses, in smaller "
        "batches too"
    )
    return replace(best, fault="gradient_scaled", detail=detail)


def _sort_scores(scores: list[Candidate]) -> list[Candidate]:
    """Return the candidates sorted: allowed first, then by number of faults, then by ``|z|``.

    If several of the best candidates have about the same ``|z|``, they are in the order of `FAULTS`
    and `ESTIMATORS`.
    """

    def fit_key(candidate: Candidate) -> tuple[bool, int, float]:
        num_faults = len(candidate.faults)
        return (
            not candidate.allowed,
            num_faults if candidate.allowed else max(num_faults, 1),
            candidate.z,
        )

    def order_key(candidate: Candidate) -> list[int]:
        return [*(faults.index(name) for name in candidate.faults), schemes.index(candidate.scheme)]

    faults = list(ALL_FAULTS)
    schemes = list(ESTIMATORS)
    ranked = sorted(scores, key=fit_key)
    if not ranked or not ranked[0].allowed:
        return ranked

    *simplest, z = fit_key(ranked[0])
    tied = [
        score
        for score in ranked
        if [*fit_key(score)[:2]] == simplest and score.z < z + _TIE_STDERRS
    ]

    return sorted(tied, key=order_key) + ranked[len(tied) :]


def classify_deterministic(observer: Observer) -> list[Candidate]:
    """Return the tested candidates for a loss that is the same for all seeds.

    Such a loss can be the full softmax, or have in-batch negatives, with or without a mistake. If
    it is neither, or if its losses are right and its gradient is not, ValueError is raised.
    """
    observed = observer.means()
    known = known_candidates(observer)
    full = full_candidate(known)
    observed_losses = observed.select_values(slice(len(observer.problem.labels)))

    for values, candidates in ((observed, known), (observed_losses, [full])):
        scores = [score_deterministic(candidate, values) for candidate in candidates]
        if not any(score.allowed for score in scores) and values is observed:
            scores += [
                score_deterministic(candidate, values)
                for candidate in candidates_with_gradient_faults(observer, [full])
            ]

        if not any(score.allowed for score in scores) and values is observed:
            scaled_gradients = candidates_with_scaled_gradients(observer, values, [full])
            variants_of_full = chain(
                scaled_gradients, candidates_with_fitted_constants(observer, values)
            )
            scores += [score_deterministic(candidate, values) for candidate in variants_of_full]

        if not any(score.allowed for score in scores):
            num_gradients = observer.num_gradients if values is observed else 0
            batches = InBatchCandidates(observer, num_gradients)
            for make_candidates in (
                batches.known_candidates,
                batches.two_way_candidates,
                batches.candidates_with_scaled_gradients,
                batches.fitted_candidates,
            ):
                if not any(score.allowed for score in scores):
                    scores += [
                        score_deterministic(candidate, batches.observed)
                        for candidate in make_candidates()
                    ]

        allowed = [score.scheme for score in scores if score.allowed]
        if allowed and values is observed:
            return scores

        # the losses are right, and the gradient is wrong
        if allowed:
            names = "dh"
            if allowed[0] == "full":
                is_wrong = (
                    np.abs(observed.means - full.means)
                    > observed.rounding_bounds + full.relative_error
                )
                names = " and ".join(observer.names_of_marked_results(is_wrong))

            raise ValueError(
                "`loss` must return the gradient of its losses, got the losses of "
                f"`{allowed[0]}` with a gradient that is not the gradient of these losses; "
                f"see how {names} is computed."
            )

    # the loss has in-batch negatives, but no candidate fits it
    if observer.has_negatives_of_batch:
        return scores[1:]

    means = observed_losses.means
    raise ValueError(
        "`loss` must draw classes, have the labels of the batch as its negatives, or be the full "
        f"softmax, got the same losses for every seed and all labels of other examples, "
        f"{means.round(4).tolist()}, where the full softmax has "
        f"{full.means[: len(means)].round(4).tolist()}; make draws from `seed`, or see that `tau` "
        "is that of the loss."
    )


# the test ----------------------------------------------------------------------------------------


def z_limit(observed: Observed) -> float:
    """Return the limit that a right candidate's largest ``|z|`` exceeds with probability `ALPHA`.

    Bonferroni's correction is for the number of means, times the number of tests of each mean.
    """
    num_tests = len(observed.means)
    if observed.squared_losses is not None:
        num_tests += len(observed.squared_losses.means)
    return float(-stdtrit(observed.num_calls - 1, ALPHA / (2.0 * observed.num_looks * num_tests)))


def score_candidate(candidate: Candidate, observed: Observed) -> Candidate:
    """Test a candidate on observed means; return it with `z` and `allowed` set.

    `observed` contains all K means, or only the means of the E losses, which are the first.
    """
    num_values = len(observed.means)
    limit = z_limit(observed)
    spread = candidate.spread if num_values == len(candidate.means) else None
    z, allowed = _max_z_and_allowed(
        candidate.means[:num_values], candidate.relative_error, spread, observed, limit
    )
    return replace(candidate, z=z, allowed=allowed)


def score_deterministic(candidate: Candidate, observed: Observed) -> Candidate:
    """Test a candidate on the values of a deterministic loss; return it with `z` and `allowed` set.

    `z` is the root mean square of the differences, or 0 if all of them are within rounding.
    """
    tested = score_candidate(candidate, observed)
    rms_distance = np.sqrt(((candidate.means[: len(observed.means)] - observed.means) ** 2).mean())
    return replace(tested, z=0.0 if tested.allowed else float(rms_distance))


def score_squared_losses(
    candidate: Candidate,
    expected: tuple[FloatArray, Spread] | None,
    observed: Observed,
    centre: FloatArray,
) -> Candidate:
    """Test the mean squares of single losses for a candidate whose means are allowed.

    `expected` holds the predicted means (E,) of ``(loss - centre)**2``, and the spread of these
    squares. Returns the candidate with `z`, `allowed` and `sd_ratio` set. If `expected` or the
    observed squares are None, the candidate is returned unchanged.
    """
    if expected is None or observed.squared_losses is None:
        return candidate

    means, spread = expected
    z, allowed = _max_z_and_allowed(
        means, candidate.relative_error, spread, observed.squared_losses, z_limit(observed)
    )

    # observed and predicted variances of single losses
    observed_variances = (
        observed.squared_losses.means - (observed.means[: len(centre)] - centre) ** 2
    )
    predicted_variances = means - (candidate.means[: len(centre)] - centre) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 if the loss ignores all draws
        ratio = float(np.sqrt((observed_variances / predicted_variances).mean()))

    return replace(candidate, z=max(z, candidate.z), allowed=allowed, sd_ratio=ratio)


def _max_z_and_allowed(
    means: FloatArray,
    relative_error: float,
    spread: Spread | None,
    observed: Observed,
    limit: float,
) -> tuple[float, bool]:
    """Return the largest ``|z|`` of the predicted means, and whether each is within its limit.

    A standard error is taken to be at least half the one that `spread` predicts. Means that are too
    skewed to be tested get z = 0.
    """
    stderrs = observed.stderrs
    skewness = np.abs(observed.skewness)
    if spread is not None:
        min_stderrs = (
            _MIN_STDERR_RATIO * spread.deviations / np.sqrt(observed.num_sets * observed.num_calls)
        )
        stderrs = np.maximum(stderrs, min_stderrs)
        skewness = np.maximum(skewness, spread.skewness / np.sqrt(observed.num_sets))

    # skewness of the mean over the calls
    skewness = skewness / np.sqrt(observed.num_calls)

    # z is the difference minus the rounding bound, in standard errors
    rounding = observed.rounding_bounds + relative_error * (observed.magnitudes + np.abs(means))
    excess = np.maximum(np.abs(observed.means - means) - rounding, 0.0)
    z = np.where(excess > 0.0, np.inf, 0.0)
    np.divide(excess, stderrs, out=z, where=stderrs > rounding * 1e-3)
    z[skewness > _MAX_SKEWNESS] = 0.0  # too skewed for the limits below

    # limits for slightly skewed means, by the Cornish-Fisher expansion for Student's t
    limits = limit + skewness * (2.0 * limit**2 + 1.0) / 6.0

    return float(z.max()), bool((z <= limits).all())
