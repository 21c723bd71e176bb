"""The hypotheses: every scheme with every mistake, and what a loss has then, exactly or simulated.

Each family is a generator: schemes whose draws are independent (`all_hypotheses`, with mixed
negatives), negatives of the batch, draws without replacement, and where nothing else fits draws by
another proposal, and mistakes with a number that nobody gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import minimize_scalar

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.exact import Means, Spread, expectation, smoothing_of, spread
from samplesoft.checking.faults import FAULTS, METHODS, RIGHT, Counts, Fault, Method, Variant
from samplesoft.checking.observe import NAMED, Observed, Observer, Problem
from samplesoft.checking.recipe import Recipe, corrected, make_recipe, without_draws
from samplesoft.schemes import SCHEMES

_MOST_CLASSES_TWICE = 64  # for which the mistakes that take longest are tried
_SAME = 1e-9  # relative distance of means that no experiment can tell apart
_MOST_KEPT = 8  # problems whose hypotheses are kept, for the next loss
_KEPT: dict[tuple[object, ...], list[Hypothesis]] = {}


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A scheme, the mistake in it or None, what a loss has then, and how far it is from that.

    Attributes
    ----------
    scheme, fault : str, str or None
        Names in `METHODS` and `FAULTS`.
    means : ndarray, shape (K,)
        Means over the draws of what an `Observer` looks at.
    expected : Means or None
        Exact means of losses and slopes in the logits, where they are known, and do not depend on
        the batch at hand.
    recipe : Recipe or None
        What they follow from; None without a closed form.
    spread : Spread or None
        How widely single calls spread, where that is known.
    number : str
        What was fitted or is not given, in words.
    errors : ndarray, shape (K,), or None
        Standard errors of means that are simulated.
    same : tuple of Hypothesis
        Others with the same means.
    z : float
        The greatest distance of a mean from what was observed, in standard errors.
    allowed : bool
        Whether all are within the limit.
    sd_ratio : float or None
        Standard deviation of single losses, as a multiple of what the hypothesis has; None where
        that is not tested.
    """

    scheme: str
    fault: str | None
    means: FloatArray
    expected: Means | None = None
    recipe: Recipe | None = None
    spread: Spread | None = None
    number: str = ""
    errors: FloatArray | None = None
    same: tuple[Hypothesis, ...] = ()
    z: float = np.inf
    allowed: bool = False
    sd_ratio: float | None = None

    @property
    def name(self) -> tuple[str, str | None]:
        """The scheme and the mistake."""
        return self.scheme, self.fault

    @property
    def title(self) -> str:
        """The scheme and the mistake, in words."""
        if self.fault is None:
            return f"`{self.scheme}`"
        return f"`{self.scheme}`, but {FAULTS[self.fault].words}"


def _of_recipe(
    observer: Observer,
    scheme: str,
    fault: str | None,
    recipe: Recipe,
    number: str = "",
    spreads: bool = False,
) -> Hypothesis:
    """Return the hypothesis that a loss follows a recipe, with its spread if that is asked for."""
    expected, sizes = expectation(recipe), (observer.problem, observer.with_gradient)
    width = spread(recipe, expected.losses, *sizes) if spreads else None
    return Hypothesis(scheme, fault, expected.in_h(*sizes), expected, recipe, width, number)


# independent draws -------------------------------------------------------------------------------


def all_hypotheses(observer: Observer) -> list[Hypothesis]:
    """Return hypotheses of independent draws with different means, without a mistake first.

    Those of the last problems are kept.
    """
    problem = observer.problem
    arrays = problem.class_embeddings, problem.logits, problem.labels, problem.q
    sizes = problem.tau, observer.num_sampled, observer.batch, observer.with_gradient
    key = (*(array.tobytes() for array in arrays), *sizes)
    if key not in _KEPT:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = _merged(_of_independent_draws(observer))
        _KEPT[key] += _mixed(observer)
    return _KEPT[key]


def _of_independent_draws(observer: Observer) -> Iterator[Hypothesis]:
    """Yield every scheme as it should be, then each mistake in all schemes and ways."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch)
    faults = [(None, Fault("", "", (RIGHT,))), *FAULTS.items()]
    for (name, fault), method in product(faults, METHODS.values()):
        for variant in fault.variants if method.closed and fault.applies(method) else ():
            if variant.kind == "twice" and problem.num_classes > _MOST_CLASSES_TWICE:
                continue
            recipe = make_recipe(problem, method, variant, *sizes)
            if recipe is not None:
                yield _of_recipe(observer, method.name, name, recipe, spreads=True)


def _right_recipes(observer: Observer, problem: Problem) -> Iterator[tuple[Method, Recipe]]:
    """Yield the methods that draw, as they should be, with what follows from a problem's draws."""
    for method in METHODS.values():
        if method.closed and method.scheme is not None:
            sizes = observer.num_sampled, observer.batch
            recipe = make_recipe(problem, method, RIGHT, *sizes)
            if recipe is not None:
                yield method, recipe


def _merged(hypotheses: Iterator[Hypothesis]) -> list[Hypothesis]:
    """Return one hypothesis for all that have the same means, and the others with it."""
    groups: list[list[Hypothesis]] = []  # the first of a group stands for it
    for one in hypotheses:
        size = 1.0 + np.abs(one.means).max()
        for group in groups:
            if np.abs(one.means - group[0].means).max() <= _SAME * size:
                if all(one.name != other.name for other in group):
                    group.append(one)
                break
        else:
            groups.append([one])
    return [replace(first, same=tuple(rest)) for first, *rest in groups]


# negatives of the batch, alone or with draws beside (mixed) --------------------------------------


_BATCHES = 12
_ADDED, _UNCORRECTED = FAULTS["log_q_added"].variants[0], FAULTS["uncorrected"].variants[0]
_ALL_HITS = FAULTS["hits_kept"].variants[0]
_IN_BATCH = {"masked": "in_batch", "candidate_masked": "in_batch_candidate"}
# scheme, mistake, how it is made, and the m of the correction: None for the B - 1 other labels
_OF_BATCHES: tuple[tuple[str, str | None, Variant, str | int | None], ...] = (
    ("masked", None, RIGHT, None),
    ("candidate_masked", None, RIGHT, None),
    ("masked", "uncorrected", _UNCORRECTED, None),
    ("masked", "log_q_added", _ADDED, None),
    ("candidate_masked", "log_q_added", _ADDED, None),
    ("masked", "log_q_added", _ADDED, 1),
    ("masked", "log_m_left_out", RIGHT, 1),
    ("masked", "in_batch_count", RIGHT, "B"),
    ("masked", "in_batch_count", RIGHT, "m"),
    ("masked", "hits_kept", _ALL_HITS, None),
    ("candidate_masked", "hits_kept", _ALL_HITS, None),
    ("masked", "uncorrected", replace(_UNCORRECTED, hits="kept"), None),
    ("candidate_masked", "log_q_added", replace(_ADDED, hits="kept"), None),
)


def in_batch_hypotheses(
    observer: Observer, with_gradient: bool
) -> tuple[Observed, list[Hypothesis]]:
    """Return the losses of some batches of random labels, and what each way makes of them.

    Nothing is random then, so single values are compared. Gradients come with them, if asked for.
    """
    rng, problem, batch = np.random.default_rng(0), observer.problem, observer.batch
    observed: list[FloatArray] = []
    batches: list[tuple[Problem, FloatArray]] = []
    for _ in range(_BATCHES):
        # labels of all classes, so that batches hold hits; losses are compared one by one
        rows = rng.integers(0, len(problem.labels), batch)
        labels = rng.integers(0, problem.num_classes, batch)  # each of them often
        parts = observer.results_of(problem.h[rows], labels, 0)
        observed += [part.ravel() for part in parts[: 2 if with_gradient else 1]]
        times = np.bincount(labels, minlength=problem.num_classes) - np.eye(problem.num_classes)
        with np.errstate(divide="ignore"):
            log_times = np.log(times[labels])  # of the others in the batch
        batches.append((problem.of_rows(rows, labels), log_times))
    results = np.concatenate(observed)
    rounding = observer.rounding * (np.abs(problem.logits).max() + np.abs(results).max())
    nothing = np.zeros_like(results)  # values, not means: no errors but those of rounding
    numbers = {None: batch - 1, "B": batch, "m": observer.num_sampled, 1: 1}
    hypotheses: dict[tuple[str, Variant, int], Hypothesis] = {}
    for scheme, fault, variant, count in _OF_BATCHES:
        m, expected, number, means = numbers[count], None, "", []
        if (scheme, variant, m) in hypotheses:  # each once, if m is one of the other counts
            continue
        for here, log_times in batches:
            counts = Counts(np.log(here.q), np.log(here.q), np.log(m))
            own, base, x = corrected(SCHEMES[scheme], variant, here.logits, here.labels, counts)
            exact = expectation(without_draws(here.labels, own, base, x + log_times))
            means.append(exact.in_h(here, with_gradient))
        if fault is None:
            recipe = make_recipe(problem, METHODS[scheme], RIGHT, batch - 1, batch)
            expected = None if recipe is None else expectation(recipe)  # the mean over batches
            number = f"m is B - 1 = {m} in a batch of {batch}, whatever `num_sampled` says"
        elif fault == "in_batch_count":
            number = f"corrected for m = {m}, where B - 1 = {batch - 1} others are in the batch"
        hypotheses[scheme, variant, m] = Hypothesis(
            _IN_BATCH[scheme], fault, np.concatenate(means), expected, number=number
        )
    whole = Observed(results, nothing, nothing + rounding, _BATCHES, nothing)
    return whole, list(hypotheses.values())


def _mixed(observer: Observer) -> Iterator[Hypothesis]:
    """Yield mixed negatives with m draws by each proposal.

    The batch is always the same, and its labels are classes that are certain; `proposal` is theirs,
    and draws are uniform, log-uniform or by the same.
    """
    problem, m, batch = observer.problem, observer.num_sampled, observer.batch
    labels, o = problem.labels, problem.logits
    # how often each label is in the batch, in which every example stands as often
    times = np.bincount(labels, minlength=problem.num_classes) * (batch // len(labels))
    with np.errstate(divide="ignore"):
        log_times = np.log(times)
    laws = {"`proposal` too": problem.q}
    for name, named in NAMED.items():
        q = np.broadcast_to(named(problem.num_classes), problem.q.shape)
        if all(not np.allclose(q, other) for other in laws.values()):
            laws[f"{name!r}"] = q
    ways = (("mixed", "masked"), ("mixed_candidate", "candidate_masked"))
    faults = (None, "uncorrected", "corrected_apart")
    for (words, law), (name, scheme), fault in product(laws.items(), ways, faults):
        of_labels, of_draws = np.log((batch - 1) * problem.q), np.log(m * law)
        if fault != "corrected_apart":  # log((B - 1) q + m u): a class may come either way
            of_labels = of_draws = np.logaddexp(of_labels, of_draws)
        variant = _UNCORRECTED if fault == "uncorrected" else RIGHT
        (own, base, certain), (_, _, draws) = (
            corrected(SCHEMES[scheme], variant, o, labels, Counts(log_counts, log_counts, 0.0))
            for log_counts in (of_labels, of_draws)
        )
        recipe = Recipe("sum", labels, law, draws, base, own, m, certain=certain + log_times)
        one = _of_recipe(observer, name, fault, recipe, f"draws are by {words}", spreads=True)
        yield replace(one, expected=None)  # its bias is that of this one batch


# draws without replacement, whose means are simulated --------------------------------------------


_NUMBERS = 1 << 22  # of classes in all trials
_MOST_TRIALS = 1 << 16
_MOST_LOGIT = 700.0
# mistake, how it is made, and what draws are corrected by: see `_trials`
_DISTINCT: tuple[tuple[str | None, Variant, str], ...] = (
    (None, RIGHT, "tries"),
    (None, RIGHT, "inclusion"),
    ("log_q_added", _ADDED, "tries"),
    ("log_q_added", _ADDED, "inclusion"),
    ("uncorrected", _UNCORRECTED, "m q"),
    ("log_m_left_out", RIGHT, "q"),
    ("distinct_as_repeated", RIGHT, "m q"),
)


def distinct_hypotheses(observer: Observer) -> Iterator[Hypothesis]:
    """Yield hypotheses of draws without replacement.

    Classes are drawn until m different ones have come, as TensorFlow's samplers do by default.
    """
    problem, m = observer.problem, observer.num_sampled
    examples = range(len(problem.labels))
    if m >= problem.num_classes - 1:
        return
    trials = {exclude: [_trials(problem, e, exclude, m) for e in examples] for exclude in (0, 1)}
    for name, (fault, variant, counts) in product(
        ("negatives", "masked", "candidate", "candidate_masked"), _DISTINCT
    ):
        scheme = SCHEMES[name]
        if fault == "log_m_left_out" and scheme.corrects_label:  # as `distinct_as_repeated`
            continue
        of_losses, of_gradients = [], []
        for e, (places, log_counts) in zip(examples, trials[scheme.excludes_label], strict=True):
            # each trial is an example with as many classes as it has drawn, and its label before
            label, log_count = np.zeros(len(places), int), log_counts[counts]
            known = Counts(log_count, log_count, 0.0)
            own, base, x = corrected(scheme, variant, problem.logits[e][places], label, known)
            x[:, 0] = -np.inf
            if scheme.hits == "masked":
                x[places == problem.labels[e]] = -np.inf
            # logits of classes that are hardly ever drawn are cut off
            own, base, x = (np.minimum(part, _MOST_LOGIT) for part in (own, base, x))
            losses, slopes = expectation(without_draws(label, own, base, x))
            of_losses.append(losses[:, None])
            if observer.with_gradient:
                c = problem.class_embeddings[places]
                of_gradients.append(problem.tau * np.einsum("tk,tkd->td", slopes, c))
        parts = of_losses + of_gradients
        means = np.concatenate([part.mean(axis=0) for part in parts])
        errors = np.concatenate([part.std(axis=0) / np.sqrt(len(part)) for part in parts])
        words = "means are simulated"
        yield Hypothesis(f"{name}_distinct", fault, means, number=words, errors=errors)


def _trials(
    problem: Problem, e: int, exclude: int, m: int
) -> tuple[IntArray, dict[str, FloatArray]]:
    """Return the label and the draws (N, 1 + m) of some trials, and how often each is expected.

    A class comes first at an exponential time with rate q, so m classes are those of the m earliest
    times (Plackett and Luce). What is expected comes as logarithms, in several ways.
    """
    q, rng = problem.q[e].copy(), np.random.default_rng(e)
    if exclude:
        q[problem.labels[e]] = 0.0
    q /= q.sum()
    size = min(_MOST_TRIALS, _NUMBERS // len(q))
    with np.errstate(divide="ignore"):
        times = rng.standard_exponential((size, len(q))) / q
        ids = np.argsort(times, axis=1)[:, :m]
        # until the next new class comes, classes already seen come again: a Poisson number
        seen = np.cumsum(q[ids], axis=1)[:, :-1]
        waits = np.diff(np.take_along_axis(times, ids, axis=1), axis=1)
        tries = m + rng.poisson((seen * waits).sum(axis=1))
        present = np.bincount(ids.ravel(), minlength=len(q)) / size
        places = np.insert(ids, 0, problem.labels[e], axis=1)
        return places, {
            # TensorFlow's expected count: the chance of a class within the number of tries
            "tries": np.log(-np.expm1(tries[:, None] * np.log1p(-q[places]))),
            # one that no trial has drawn is taken for a tenth of a draw
            "inclusion": np.log(np.maximum(present, 0.1 / size))[places],
            "q": np.log(q)[places],
            "m q": np.log(m * q)[places],
        }


# what is tried where nothing fits ----------------------------------------------------------------


def of_other_proposals(observer: Observer) -> Iterator[Hypothesis]:
    """Yield all schemes with draws by a proposal that was not given."""
    problem, fault = observer.problem, "other_proposal"
    for name, law in NAMED.items():
        q = np.broadcast_to(law(problem.num_classes), problem.q.shape)
        if np.allclose(q, problem.q):
            continue
        of_both = (_right_recipes(observer, one) for one in (replace(problem, q=q), problem))
        for (method, drawn), (_, meant) in zip(*of_both, strict=True):
            # the sampler differs, or loss and sampler both do
            words = f"draws and correction by {name!r}"
            yield _of_recipe(observer, method.name, fault, drawn, words)
            words = f"draws by {name!r}, corrected by what was given"
            yield _of_recipe(observer, method.name, fault, replace(meant, law=drawn.law), words)


_LESS = np.exp(np.linspace(np.log(0.02), np.log(40.0), 9))  # off the logits of hits
_LOGITS = np.linspace(-30.0, 6.0, 19)  # of hits
_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)  # logits of masked hits
_MOST_SMOOTHING = 0.9


def fitted(observer: Observer, observed: Observed) -> Iterator[Hypothesis]:
    """Yield the best of each family of hypotheses, for what was observed."""
    for method, recipe in _right_recipes(observer, observer.problem):
        if "is a sum" in method.facts:
            if "masks hits" in method.facts:
                yield from _masked(observer, observed, method.name, recipe)
            yield from _smoothed(observer, observed, method.name, recipe)


def _masked(
    observer: Observer, observed: Observed, scheme: str, recipe: Recipe
) -> Iterator[Hypothesis]:
    """Yield masking of hits by a finite number: taken off their logits, or in the place of them."""
    problem, rows = observer.problem, np.arange(len(recipe.labels))
    # what draws of the label have without a mask: they count like any other
    log_counts = np.log(recipe.num_draws) + np.log(problem.q[rows, recipe.labels])
    hits = problem.logits[rows, recipe.labels] - log_counts
    fixed = replace(recipe, hits_fixed=True)  # logits that have no slope

    def less(number: float) -> Hypothesis:
        masked, words = recipe.with_hits(hits - number), f"their logits less {number:.2g}"
        return _of_recipe(observer, scheme, "finite_mask", masked, words)

    def constant(number: float) -> Hypothesis:
        masked, words = fixed.with_hits(np.full_like(hits, number)), f"the logit {number:.2g}"
        return _of_recipe(observer, scheme, "finite_mask", masked, words)

    yield _nearest(less, _LESS, observed)
    yield _nearest(constant, _LOGITS, observed)


def _nearest(
    of_number: Callable[[float], Hypothesis], grid: FloatArray, observed: Observed
) -> Hypothesis:
    """Return the hypothesis nearest to what was observed: on a grid, then beside the best there."""

    def distance(number: float) -> float:
        away = of_number(number).means - observed.means
        return float(((away / _unit(observed)) ** 2).sum())

    at = int(np.argmin([distance(number) for number in grid]))
    ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    return of_number(float(minimize_scalar(distance, bounds=ends, method="bounded").x))


def _smoothed(
    observer: Observer, observed: Observed, scheme: str, recipe: Recipe
) -> Iterator[Hypothesis]:
    """Yield label smoothing, in which masked hits have one logit or another."""
    rows = np.arange(len(recipe.labels))
    hits, chances = (array[rows, recipe.labels] for array in (recipe.draws, recipe.law))
    masked = bool(((hits == -np.inf) & (chances > 0.0)).any())
    plain, unit = expectation(recipe), _unit(observed)
    away = (observed.means - plain.in_h(observer.problem, observer.with_gradient)) / unit
    for mask, follow in product(_MASKS, (False, True)) if masked else [(0.0, True)]:
        logits = np.full_like(hits, mask) if masked else np.where(chances > 0.0, hits, 0.0)
        whole = smoothing_of(recipe, logits, follow)
        slope = whole.in_h(observer.problem, observer.with_gradient) / unit
        # smoothing is linear: least squares for the share, in units of the standard errors
        share = float((away * slope).sum() / (slope**2).sum())
        share = min(max(share, 0.0), _MOST_SMOOTHING)
        expected = Means(*(a + share * b for a, b in zip(plain, whole, strict=True)))
        means = expected.in_h(observer.problem, observer.with_gradient)
        fault = "smoothed_hits" if masked else "label_smoothing"
        words = f"smoothing {share:.3g}" + (f", hits at {mask:.3g}" if masked else "")
        yield Hypothesis(scheme, fault, means, expected, number=words)


def _unit(observed: Observed) -> FloatArray:
    """Return what differences are measured in."""
    return observed.stderrs + observed.rounding + np.finfo(np.float64).tiny
