"""`check_loss`: what an implementation of a sampled loss estimates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from samplesoft._progress import progress_bar
from samplesoft._random import as_key
from samplesoft._validation import FloatArray, as_choice, as_count, as_flag, as_positive
from samplesoft.checking.batch import in_batch_hypotheses, mixed_hypotheses
from samplesoft.checking.distinct import distinct_hypotheses
from samplesoft.checking.expectation import expectation
from samplesoft.checking.hypotheses import Hypothesis, all_hypotheses, fitted, of_other_proposals
from samplesoft.checking.observe import DRAWS, Observer, drawing
from samplesoft.checking.problem import make_problem
from samplesoft.checking.recipe import full_of
from samplesoft.checking.report import LossReport
from samplesoft.checking.spread import Squares, squares
from samplesoft.checking.verdict import (
    LOOKS,
    Score,
    losses_alone,
    of_means_alone,
    ranked,
    score,
    with_squares,
    z_limit,
)

_FIRST = 64  # calls before the first look; twice as many before each next one
_AT_LEAST = {True: 2048, False: 8192}  # before a verdict, with a gradient and without


def check_loss(
    loss: Callable[..., Any],
    proposal: Any,
    num_sampled: int,
    *,
    draws: str = "own",
    tau: float = 1.0,
    biases: bool = False,
    seconds: float = 30.0,
    progress: bool = False,
    rng: int | np.random.Generator | None = 0,
) -> LossReport:
    r"""Find out what an implementation of a sampled loss estimates.

    The loss is called on small problems, again and again, and the means of what it returns are
    held against exact means: those of every scheme that samplesoft knows, as it should be and with
    each of the usual mistakes.

    Parameters
    ----------
    loss : callable
        ``loss(class_embeddings, h, labels, num_sampled, seed)`` with float64 arrays (n, d), (B, d)
        and int64 (B,), which draws by itself and returns the losses (B,), or ``(losses, dh)`` with
        the gradient (B, d) of their sum in `h`. Logits are to be ``tau h . c``. It may share draws
        among the batch.
    proposal : array_like of shape (n,), callable, str or sampler
        What it draws from (for negatives of the batch, the chances of labels): probabilities,
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
    seconds : float
        Time after which no more calls are made, though hypotheses are left that the means allow.
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
    A right implementation is called wrong with a chance below 1e-4: the limit of \|z\| is that of
    Student's t, divided among all means of four examples and all looks at them, and wider for
    means of skewed numbers. Calls go on until one hypothesis is left, or `seconds` are over;
    hypotheses that are left are all named. Some have the same means whatever is done, and are named
    together.

    A scheme whose means fit must fit in the spread of single losses too: the mean of their squares,
    less a number near their mean, has an exact value as well (one integral over the powers of the
    logarithm), and a standard error from squares of squares. That tells ``masked`` from ``reject``
    with few calls, and finds draws that are not independent, which leave the mean of a logistic
    loss as it is: `dependent_draws`. Where squares are too skewed to be tested, or have no closed
    form (jackknife, draws without replacement), means decide alone; a mistake is named by means.

    A loss that is the same for every seed is compared with the full softmax, and with losses whose
    negatives are the labels of the batch (in-batch negatives), on batches of random labels.

    Mixed negatives, the labels of the batch and `num_sampled` draws beside, are known with draws by
    the same proposal as the labels', uniform and log-uniform ones; for their bias see
    `samplesoft.mixed_bias`.

    Random losses whose means are those of the full softmax, and of no scheme above, are
    ``unbiased``, such as `samplesoft.losses.MultilevelLoss`.

    Independent inclusion (``poisson``) is taken to have the chances ``1 - (1 - q)^m``.

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
    m, limit = as_count("num_sampled", num_sampled), as_positive("seconds", seconds)
    key = as_key(rng)
    # 1. four examples on which schemes differ, 2. what each hypothesis has there, exactly
    problem = make_problem(proposal, as_positive("tau", tau), as_flag("biases", biases), key)
    if as_choice("draws", draws, DRAWS) != "own":
        loss = drawing(loss, problem, exclude=draws == "given-negatives")
    observer = Observer(loss, problem, m, key)
    hypotheses = all_hypotheses(problem, m, observer.batch, observer.with_gradient)
    start = time.perf_counter()
    if observer.is_random:  # 3. the means of many calls
        with progress_bar(as_flag("progress", progress), unit="call", desc="check") as bar:
            scores = _look(observer, hypotheses, start + limit, bar)
    else:
        observer.more(2)
        scores = _of_no_draws(observer, hypotheses)
    scores = ranked(scores)  # 4. the verdict
    best, observed = scores[0], observer.means()
    biases_of_best: tuple[float | None, float | None] = None, None
    if best.hypothesis.recipe is not None and best.hypothesis.recipe.certain is None:
        full, found = (
            expectation(recipe, problem.logits)
            for recipe in (full_of(problem), best.hypothesis.recipe)
        )
        biases_of_best = (
            float((found.losses - full.losses).mean()),
            float(np.abs(found.slopes - full.slopes).sum(axis=1).mean()),
        )
    # hypotheses with the same means are named together
    allowed = [one for s in scores if s.allowed for one in (s.hypothesis, *s.hypothesis.same)]
    of_losses: list[str] = []
    if observer.with_gradient and not best.allowed:
        alone = losses_alone(observed, len(problem.labels))
        of_losses = [
            one.scheme
            for one in hypotheses
            if one.fault is None and score(one.of_first(len(alone.means)), alone).allowed
        ]
    return LossReport(
        scheme=best.hypothesis.scheme if best.allowed else None,
        fault=best.hypothesis.fault if best.allowed else None,
        consistent=tuple(dict.fromkeys((one.scheme, one.fault) for one in allowed)),
        scores=tuple(scores),
        limit=z_limit(observed),
        loss_bias=biases_of_best[0],
        gradient_bias=biases_of_best[1],
        of_losses=tuple(of_losses),
        with_gradient=observer.with_gradient,
        follows_seed=observer.follows_seed,
        num_sampled=m,
        num_classes=problem.num_classes,
        calls=observed.calls,
        num_results=observer.num_results,
        num_sets=observer.num_sets,
        autocorrelation=observer.autocorrelation,
        seconds=time.perf_counter() - start,
    )


def _look(observer: Observer, hypotheses: list[Hypothesis], end: float, bar: Any) -> list[Score]:
    """Call the loss until one hypothesis is left, or time is over, and return the scores of all."""
    scores: list[Score] = []
    enough = _AT_LEAST[observer.with_gradient]
    simulated: list[tuple[Hypothesis, FloatArray]] = []

    @cache
    def expected(one: Hypothesis) -> Squares | None:
        if one.fault is not None or one.recipe is None:
            return None
        return squares(one.recipe, observer.centre)

    problem, m = observer.problem, observer.num_sampled
    mixed = list(mixed_hypotheses(problem, m, observer.batch, observer.with_gradient))
    for look in range(LOOKS):
        wanted = _FIRST << max(look - 1, 0)
        for _ in range(wanted):
            observer.more(1)
            bar.update()
            if time.perf_counter() > end and observer.calls >= _FIRST:
                break
        observed, over = observer.means(), time.perf_counter() > end
        found = [score(one, observed) for one in hypotheses if one.scheme != "full"]
        found += [score(one, observed, words) for one, words in mixed]
        scores = [
            with_squares(s, expected(s.hypothesis), observed, observer.centre) if s.allowed else s
            for s in found
        ]
        # what takes longer is tried once there are enough calls to exclude what is quick
        if over or observed.calls >= enough:
            simulated = simulated or distinct_hypotheses(observer)
            scores += [
                score(one, observed, "means are simulated", errors) for one, errors in simulated
            ]
            # nothing fits: first the right means with another spread, then no bias at all, then
            # mistakes with a number or a proposal that nobody gave
            if not any(s.allowed for s in scores):
                scores += [of_means_alone(s, observed) for s in scores if s.sd_ratio]
            if not any(s.allowed for s in scores):
                scores.append(score(replace(_full(hypotheses), scheme="unbiased"), observed))
            if not any(s.allowed for s in scores):
                others = chain(of_other_proposals(observer, observed), fitted(observer, observed))
                scores += [score(*one) for one in others]
            if over or sum(s.allowed for s in scores) <= 1:
                break
    return scores


def _of_no_draws(observer: Observer, hypotheses: list[Hypothesis]) -> list[Score]:
    """Return the scores of a loss that is the same for all seeds; ValueError if it should not be.

    It can be the full softmax, or have the labels of the batch as its negatives.
    """
    full = _full(hypotheses)
    scores = _same_for_all_seeds(observer, hypotheses, observer.with_gradient)
    if any(s.allowed for s in scores):
        return scores
    # the losses may be right, and the gradient wrong
    for alone in _same_for_all_seeds(observer, [full], False):
        if alone.allowed:
            raise ValueError(
                "`loss` must return the gradient of its losses, got the losses of "
                f"`{alone.hypothesis.scheme}` with a gradient that is not theirs; see how dh is "
                "computed."
            )
    means = losses_alone(observer.means(), len(observer.problem.labels)).means
    raise ValueError(
        "`loss` must draw classes, have the labels of the batch as its negatives, or be the full "
        f"softmax, got the same losses for every seed, {means.round(4).tolist()}, where the full "
        f"softmax has {full.means[: len(means)].round(4).tolist()}; make draws from `seed`."
    )


def _full(hypotheses: list[Hypothesis]) -> Hypothesis:
    """Return the full softmax as it should be."""
    return next(one for one in hypotheses if one.scheme == "full" and one.fault is None)


def _same_for_all_seeds(
    observer: Observer, hypotheses: list[Hypothesis], with_gradient: bool
) -> list[Score]:
    """Return the scores of the full softmax and of in-batch negatives."""
    observed = observer.means()
    if not with_gradient:
        observed = losses_alone(observed, len(observer.problem.labels))
    size = len(observed.means)
    scores = [score(one.of_first(size), observed) for one in hypotheses if one.scheme == "full"]
    if any(s.allowed for s in scores):
        return scores
    of_batches, ways = in_batch_hypotheses(observer, with_gradient)
    return scores + [score(one, of_batches, number) for one, number in ways]
