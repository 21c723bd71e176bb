"""The hypotheses: every scheme with every mistake, and what a loss has then, exactly.

They come in families, from what is simple to what is not: schemes with repeated draws and one
mistake, and mixed negatives (`all_hypotheses`); draws without replacement; and where nothing else
fits draws by another proposal, mistakes with a number that nobody gave, and two mistakes at once.
Negatives of the batch are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations, product
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

from samplesoft._validation import FloatArray
from samplesoft.checking.exact import Means, Spread, Weighting, expectation, smoothing_of, spread
from samplesoft.checking.faults import FAULTS, METHODS, RIGHT, Counts, Method, Variant
from samplesoft.checking.observe import NAMED, REPLICAS, Observed, Observer, Problem
from samplesoft.checking.recipe import Recipe, corrected, make_recipes, without_draws
from samplesoft.schemes import SCHEMES

_MOST_CLASSES_TWICE = 64  # for which the mistakes that take longest are tried
_MOST_CLASSES_DISTINCT = 512  # of sets
_SAME = 1e-7  # relative distance of means that no experiment can tell apart
AND = " + "  # between names of two mistakes
_MOST_KEPT = 32  # families of problems whose hypotheses are kept, for the next loss
_KEPT: dict[tuple[object, ...], list[Hypothesis]] = {}


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A scheme, the mistake in it or None, what a loss has then, and how far it is from that.

    Attributes
    ----------
    scheme, fault : str, str or None
        A name in `METHODS`, and one in `FAULTS`, or two of these with `AND` between them.
    means : ndarray, shape (K,)
        Means over the draws of what an `Observer` looks at.
    expected : Means or None
        Exact means of losses and slopes in the logits, where they are known, and do not depend on
        the batch at hand.
    recipes : tuple of Recipe
        What they follow from; empty without a closed form.
    spread : Spread or None
        How widely single calls spread, where that is known.
    number : str
        What was fitted or is not given, in words.
    same : tuple of Hypothesis
        Others with the same means.
    z : float
        The greatest distance of a mean from what was observed, in standard errors; of a loss that
        is the same for every seed the root mean square of what single values are off by.
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
    recipes: tuple[Recipe, ...] = ()
    spread: Spread | None = None
    number: str = ""
    same: tuple[Hypothesis, ...] = ()
    z: float = np.inf
    allowed: bool = False
    sd_ratio: float | None = None

    @property
    def name(self) -> tuple[str, str | None]:
        """The scheme and the mistake."""
        return self.scheme, self.fault

    @property
    def digits(self) -> float:
        """How far the means may be off, relative to the numbers that they are made of."""
        if all(one.sets is None for one in self.recipes):
            return 1e-11
        return 1e-7 if len(self.recipes) == 1 else 1e-5

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the mistakes."""
        return () if self.fault is None else tuple(self.fault.split(AND))

    @property
    def title(self) -> str:
        """The scheme and the mistakes, in words."""
        words = [FAULTS[name].words for name in self.faults]
        return f"`{self.scheme}`" + (", but " + "; and ".join(words) if words else "")


def _of_recipes(
    observer: Observer,
    scheme: str,
    fault: str | None,
    recipes: Sequence[Recipe],
    number: str = "",
    spreads: bool = False,
) -> Hypothesis:
    """Return the hypothesis that a loss follows recipes, with its spread if that is asked for."""
    expected, sizes = expectation(recipes), (observer.problem, observer.gradients)
    width = spread(recipes, expected.losses, *sizes) if spreads else None
    means = expected.observed(*sizes)
    return Hypothesis(scheme, fault, means, expected, tuple(recipes), width, number)


# schemes with no mistake, with one and with two --------------------------------------------------

# without replacement those are tried that are made most often, for their means take a while
_COMMON = ("log_q_added", "uncorrected", "distinct_as_repeated", "hits_kept", "label_uncorrected")
_SINGLE = [(), *((name,) for name in FAULTS)]
_BY_TRIES = "corrected by the number of tries, as in TensorFlow"


def all_hypotheses(observer: Observer) -> list[Hypothesis]:
    """Return schemes of repeated draws with different means, as they should be first, and mixed.

    Of a loss that draws nothing only the full softmax is asked for.
    """
    if not observer.is_random:
        return _merged(_family(observer, _SINGLE, [METHODS["full"]]))
    methods = _methods("repeated", "independent")
    return _kept(
        observer, "all", lambda: [*_merged(_family(observer, _SINGLE, methods)), *_mixed(observer)]
    )


def distinct_hypotheses(observer: Observer) -> list[Hypothesis]:
    """Return schemes of draws without replacement, or of which each class counts once."""
    methods = _methods("distinct", "once")
    return _kept(observer, "distinct", lambda: _merged(_family(observer, [()], methods)))


def distinct_mistakes(observer: Observer) -> list[Hypothesis]:
    """Return the same with a mistake."""
    methods = _methods("distinct", "once")
    return _kept(observer, "mistakes", lambda: _merged(_family(observer, _SINGLE[1:], methods)))


def draws_that_are_tried(problem: Problem) -> tuple[str, ...]:
    """Return the kinds of draws whose means do not take too long."""
    few = problem.num_classes <= _MOST_CLASSES_DISTINCT
    return "repeated", "independent", "once", *(("distinct",) if few else ())


def named_hypotheses(
    observer: Observer, names: Iterable[tuple[str, str | None]]
) -> list[Hypothesis]:
    """Return schemes that draw, with and without mistakes.

    Those without stand for what has the same means; mistakes with a number are left out.
    """
    right_first = sorted(names, key=lambda name: (name[1] is not None, str(name)))
    return _merged(
        chain.from_iterable(
            _family(observer, [tuple(fault.split(AND)) if fault else ()], [METHODS[scheme]])
            for scheme, fault in right_first
        )
    )


def pairs(observer: Observer) -> list[Hypothesis]:
    """Return schemes with two mistakes."""
    two, common = combinations(FAULTS, 2), combinations(_COMMON, 2)
    families = (two, _methods("repeated", "independent")), (common, _methods("distinct"))
    return _kept(
        observer,
        "pairs",
        lambda: _merged(chain(*(_family(observer, *family) for family in families))),
    )


def _kept(
    observer: Observer, family: str, make: Callable[[], list[Hypothesis]]
) -> list[Hypothesis]:
    """Return what `make` does for a problem; that of the last ones is kept."""
    problem = observer.problem
    arrays = problem.class_embeddings, problem.logits, problem.labels, problem.q, problem.weights
    sizes = problem.tau, observer.num_sampled, observer.batch, observer.gradients
    key = (family, *(array.tobytes() for array in arrays), *sizes)
    if key not in _KEPT:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = make()
    return _KEPT[key]


def _methods(*draws: str) -> list[Method]:
    """Return methods with some kinds of draws."""
    return [method for method in METHODS.values() if method.draws in draws]


def _family(
    observer: Observer, mistakes: Iterable[tuple[str, ...]], methods: Iterable[Method]
) -> Iterator[Hypothesis]:
    """Yield methods with each of some sets of mistakes, in all ways."""
    problem, sizes = observer.problem, (observer.num_sampled, observer.batch)
    known: dict[tuple[object, ...], Hypothesis] = {}
    for names, method in product(mistakes, methods):
        if not all(FAULTS[name].applies(method) for name in names):
            continue
        for ways in product(*(FAULTS[name].variants for name in names)):
            variant = ways[0] if len(ways) == 1 else ways[0].beside(ways[1]) if ways else RIGHT
            if variant is None or (
                variant.kind == "twice" and problem.num_classes > _MOST_CLASSES_TWICE
            ):
                continue
            for number, options in _options(problem, method, names):
                recipes = make_recipes(problem, method, variant, *sizes, **options)
                # one that does not ask for the number of tries was there before
                asks = number != _BY_TRIES or len({one.draws.tobytes() for one in recipes}) > 1
                if not recipes or not asks:
                    continue
                key = tuple(one.key for one in recipes)
                name = method.name, AND.join(names) or None
                if key not in known:
                    known[key] = _of_recipes(observer, *name, recipes, number, spreads=True)
                yield replace(known[key], scheme=name[0], fault=name[1], number=number)


def _options(
    problem: Problem, method: Method, names: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield what a method may do in more ways than one, in words and as options of its recipes."""
    yield "", {}
    if "corrects distinct draws" in method.facts and {*names} <= {*_COMMON}:
        yield _BY_TRIES, {"tries": True}
    if method.name == "full" and (problem.q <= 0.0).any():
        yield "over classes that are never drawn too", {"of_all": True}


def _right_recipes(observer: Observer, problem: Problem) -> Iterator[tuple[Method, Recipe]]:
    """Yield the methods that draw, as they should be, with what follows from a problem's draws."""
    for method in _methods("repeated", "independent"):
        if method.scheme is not None:
            sizes = observer.num_sampled, observer.batch
            for recipe in make_recipes(problem, method, RIGHT, *sizes):
                yield method, recipe


def _merged(hypotheses: Iterator[Hypothesis]) -> list[Hypothesis]:
    """Return one hypothesis for all that have the same means, and the others with it."""
    groups: list[list[Hypothesis]] = []  # the first of a group stands for it
    means = np.empty((0, 0))
    for one in hypotheses:
        if len(groups) == len(means):
            means = np.resize(means, (2 * len(means) + 64, len(one.means)))
        apart = np.abs(means[: len(groups)] - one.means).max(axis=1)
        same = np.flatnonzero(apart <= _SAME * (1.0 + np.abs(one.means).max()))
        if not len(same):
            means[len(groups)] = one.means
            groups.append([one])
        elif all(one.name != other.name for other in groups[same[0]]):
            groups[same[0]].append(one)
    return [replace(first, same=tuple(rest)) for first, *rest in groups]


# negatives of the batch, alone or with draws beside (mixed) --------------------------------------


_BATCHES = 12
_ADDED, _UNCORRECTED = FAULTS["log_q_added"].variants[0], FAULTS["uncorrected"].variants[0]
_ALL_HITS = FAULTS["hits_kept"].variants[0]
_IN_BATCH = {
    "masked": "in_batch",
    "candidate_masked": "in_batch_candidate",
    "candidate": "in_batch_candidate_kept",
}
# scheme, mistake, how it is made, and the m of the correction: None for the B - 1 other labels
_OF_BATCHES: tuple[tuple[str, str | None, Variant, str | int | None], ...] = (
    ("masked", None, RIGHT, None),
    ("candidate_masked", None, RIGHT, None),
    ("candidate", None, RIGHT, None),
    ("masked", "uncorrected", _UNCORRECTED, None),
    ("masked", "log_q_added", _ADDED, None),
    ("candidate_masked", "log_q_added", _ADDED, None),
    ("masked", "log_q_added", _ADDED, 1),
    *(("masked", "hits_of_other_rows", way, None) for way in FAULTS["hits_of_other_rows"].variants),
    ("masked", "log_m_left_out", RIGHT, 1),
    ("masked", "in_batch_count", RIGHT, "B"),
    ("masked", "in_batch_count", RIGHT, "m"),
    ("masked", "hits_kept", _ALL_HITS, None),
    ("masked", f"uncorrected{AND}hits_kept", replace(_UNCORRECTED, hits="kept"), None),
    ("masked", f"log_q_added{AND}hits_kept", replace(_ADDED, hits="kept"), None),
    ("masked", f"log_m_left_out{AND}hits_kept", _ALL_HITS, 1),
    ("masked", f"log_q_added{AND}hits_kept", replace(_ADDED, hits="kept"), 1),
    ("candidate", "log_q_added", _ADDED, None),
)


class _Part(NamedTuple):
    """What a scheme has in a problem, and what label smoothing adds with all of the target."""

    plain: Means
    added: Means
    problem: Problem


class Batches:
    """The losses of some batches of random labels, and what each way makes of them.

    Nothing is random then, so single values are compared. Gradients come with them, if asked for.
    """

    def __init__(self, observer: Observer, gradients: int) -> None:
        rng, problem, self._observer = np.random.default_rng(0), observer.problem, observer
        drawn = np.sort(problem.by_frequency)
        self._gradients, self._size = gradients, observer.batch
        observed: list[FloatArray] = []
        noise: list[FloatArray] = []
        self._batches: list[tuple[Problem, FloatArray]] = []
        for _ in range(_BATCHES):
            # labels of as many classes as examples, so that batches hold hits; losses are compared
            # one by one
            rows = rng.integers(0, len(problem.labels), self._size)
            labels = rng.choice(rng.choice(drawn, self._size), self._size)
            here = problem.of_rows(rows, labels)
            parts = observer.results_of(here, 0)
            observed += [part.ravel() for part in parts[: 1 + gradients]]
            moved = observer.rounding_of_parts(here)
            noise += [
                np.full(part.size, of_part)
                for part, of_part in zip(parts[: 1 + gradients], moved, strict=False)
            ]
            counts = np.bincount(labels, minlength=problem.num_classes)
            times = np.tile(counts.astype(float), (self._size, 1))  # of the others in the batch
            times[np.arange(self._size), labels] -= 1.0
            self._batches.append((here, times))
        results = np.concatenate(observed)
        rounding = observer.rounding * (np.abs(problem.logits).max() + np.abs(results).max())
        nothing = np.zeros_like(results)  # values, not means: no errors but those of rounding
        rounding = np.maximum(rounding, np.concatenate(noise))
        self.observed = Observed(
            results, nothing, nothing + rounding, nothing + 1.0, _BATCHES, nothing
        )

    def known(self) -> Iterator[Hypothesis]:
        """Yield ways that have no number which nobody gave."""
        m, problem = self._size - 1, self._observer.problem
        numbers = {None: m, "B": self._size, "m": self._observer.num_sampled, 1: 1}
        seen = set()
        for scheme, fault, variant, of_correction in _OF_BATCHES:
            count, expected, number = numbers[of_correction], None, ""
            if (scheme, variant, count) in seen:  # each once, if it is one of the other counts
                continue
            seen.add((scheme, variant, count))
            if fault is None:  # the mean over batches
                recipes = make_recipes(problem, METHODS[scheme], RIGHT, m, self._size)
                expected = expectation(recipes)
            if fault is None or of_correction == 1:
                number = f"m is B - 1 = {m} in a batch of {self._size}, whatever `num_sampled` says"
            elif fault == "in_batch_count":
                number = f"corrected for m = {count}, where B - 1 = {m} others are in the batch"
            means = self._means(scheme, variant, count)
            yield Hypothesis(_IN_BATCH[scheme], fault, means, expected, number=number)

    def fitted(self) -> Iterator[Hypothesis]:
        """Yield the best of ways that have a number: another temperature, and label smoothing."""
        tau = self._observer.problem.tau
        for scheme, name in _IN_BATCH.items():
            yield _nearest(partial(self._at_tau, scheme), np.log(tau) + _LOG_FACTORS, self.observed)
            # hits are no candidates, or have a constant logit; where they are kept, their own
            masks = [None] if scheme == "candidate" else [None, self._logit_of_hits(scheme)]
            for mask in masks:
                parts = self._smoothed(scheme, mask)
                yield _with_share(parts, self._gradients, self.observed, name, mask)

    def _logit_of_hits(self, scheme: str) -> float:
        """Return the best one for label smoothing, which is linear in it and in its share."""
        of_masks = (self._smoothed(scheme, mask) for mask in (0.0, 1.0))
        (plain, less), (_, more) = (_observed(parts, self._gradients) for parts in of_masks)
        # the share times what smoothing adds with hits at 0, and the share times their logit
        columns = np.column_stack([less, more - less])
        share, times_logit = np.linalg.lstsq(columns, self.observed.means - plain)[0]
        return float(times_logit / share) if share else 0.0

    def _smoothed(self, scheme: str, mask: float | None) -> list[_Part]:
        """Return for each batch what a scheme has there, and what label smoothing adds."""
        parts, follow = [], scheme == "candidate"
        tau = self._observer.problem.tau
        for here, times, recipe in self._recipes(scheme, RIGHT, self._size - 1, tau):
            x, of_others = np.where(times > 0.0, recipe.draws, 0.0), times.copy()
            if not follow:
                hits = np.arange(len(x)), here.labels
                x[hits], of_others[hits] = mask or 0.0, times[hits] * (mask is not None)
            added = smoothing_of(recipe, of_others, x, follow)
            parts.append(_Part(expectation([recipe]), added, here))
        return parts

    def _at_tau(self, scheme: str, log_tau: float) -> Hypothesis:
        tau = float(np.exp(log_tau))
        means = self._means(scheme, RIGHT, self._size - 1, tau)
        number = f"tau is {tau:.6g}"
        return Hypothesis(_IN_BATCH[scheme], "other_temperature", means, number=number)

    def _means(self, scheme: str, variant: Variant, m: int, tau: float | None = None) -> FloatArray:
        found = self._recipes(scheme, variant, m, tau or self._observer.problem.tau)
        return np.concatenate(
            [expectation([one]).observed(here, self._gradients) for here, _, one in found]
        )

    def _recipes(
        self, scheme: str, variant: Variant, m: int, tau: float
    ) -> Iterator[tuple[Problem, FloatArray, Recipe]]:
        """Yield for each batch its problem, how often each class is beside a label, the recipe."""
        for given, times in self._batches:
            here = given.at_tau(tau)
            with np.errstate(divide="ignore"):
                counts = _counts(here, np.log(here.q), np.log(m))
            own, base, x = corrected(SCHEMES[scheme], variant, here, counts)
            with np.errstate(divide="ignore"):
                certain = x + np.log(times)
            yield here, times, replace(without_draws(here.labels, own, base, certain), draws=x)


def _mixed(observer: Observer) -> Iterator[Hypothesis]:
    """Yield mixed negatives with m draws by each proposal.

    The batch is always the same, and its labels are classes that are certain; `proposal` is theirs,
    and draws are uniform, log-uniform or by the same.
    """
    problem, m, batch = observer.problem, observer.num_sampled, observer.batch
    labels = problem.labels
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
        with np.errstate(divide="ignore"):
            of_labels, of_draws = np.log((batch - 1) * problem.q), np.log(m * law)
        if fault != "corrected_apart":  # log((B - 1) q + m u): a class may come either way
            of_labels = of_draws = np.logaddexp(of_labels, of_draws)
        variant = _UNCORRECTED if fault == "uncorrected" else RIGHT
        (own, base, certain), (_, _, draws) = (
            corrected(SCHEMES[scheme], variant, problem, _counts(problem, log_counts, 0.0))
            for log_counts in (of_labels, of_draws)
        )
        recipe = Recipe("sum", labels, law, draws, base, own, m, certain=certain + log_times)
        one = _of_recipes(observer, name, fault, [recipe], f"draws are by {words}", spreads=True)
        yield replace(one, expected=None)  # its bias is that of this one batch


def _counts(problem: Problem, logs: FloatArray, draws: float) -> Counts:
    """Return counts of classes that are all of one kind."""
    return Counts(logs, logs, logs, draws, problem.labels)


# gradients of others than the sum of weighted losses --------------------------------------------

_OF_GRADIENTS = (
    ("weights_of_first", Weighting("own", "first", "first")),
    ("weights_of_first", Weighting("own", "own", "first")),
    ("weights_ignored", Weighting("none", "none", "none")),
    ("weights_ignored", Weighting("own", "none", "none")),
    ("weights_ignored", Weighting("own", "own", "none")),
    ("labels_counted_once", Weighting(share_of_labels=1.0 / REPLICAS)),
)


def of_gradients(observer: Observer, hypotheses: Iterable[Hypothesis]) -> Iterator[Hypothesis]:
    """Yield hypotheses without a mistake, with one in how the gradients of examples are added."""
    sizes = observer.problem, observer.gradients
    for one, (fault, way) in product(hypotheses, _OF_GRADIENTS):
        if one.fault is None and one.expected is not None:
            means = one.expected.observed(*sizes, way)
            if not np.array_equal(means, one.means):
                recipes = one.recipes if way.losses == "own" else ()  # else squares are others
                yield replace(one, fault=fault, means=means, spread=None, recipes=recipes, same=())


# what is tried where nothing fits ----------------------------------------------------------------


def of_other_proposals(
    observer: Observer, schemes: Container[str] = METHODS
) -> Iterator[Hypothesis]:
    """Yield schemes with draws by a proposal that was not given."""
    problem, fault = observer.problem, "other_proposal"
    for words, q in _other_proposals(problem):
        of_both = (_right_recipes(observer, one) for one in (replace(problem, q=q), problem))
        for (method, drawn), (_, meant) in zip(*of_both, strict=True):
            if method.name not in schemes:
                continue
            # the sampler differs, or loss and sampler both do
            number = f"draws and correction by {words}"
            yield _of_recipes(observer, method.name, fault, [drawn], number)
            number = f"draws by {words}, corrected by what was given"
            other = replace(meant, law=drawn.law, sets=drawn.sets)
            yield _of_recipes(observer, method.name, fault, [other], number)


def _other_proposals(problem: Problem) -> Iterator[tuple[str, FloatArray]]:
    """Yield proposals in words, and their probabilities (E, n), that are not the problem's."""
    for name, law in NAMED.items():
        q = np.broadcast_to(law(problem.num_classes), problem.q.shape)
        if not np.allclose(q, problem.q):
            yield repr(name), q
    drawn = np.sort(problem.by_frequency)
    for words, left_out in (("last", drawn[-1]), ("first", drawn[0])):
        if left_out not in problem.labels and len(drawn) > 2:
            q = problem.q.copy()
            q[:, left_out] = 0.0
            q /= q.sum(axis=1, keepdims=True)
            yield f"what was given without the {words} class", q


def of_other_temperatures(observer: Observer, observed: Observed) -> Iterator[Hypothesis]:
    """Yield all schemes with the best inverse temperature in place of the one that was given."""
    sizes = observer.num_sampled, observer.batch

    def at_tau(method: Method, log_tau: float) -> Hypothesis:
        here = observer.problem.at_tau(float(np.exp(log_tau)))
        recipes = make_recipes(here, method, RIGHT, *sizes)
        expected, number = expectation(recipes), f"tau is {here.tau:.3g}"
        means = expected.observed(here, observer.gradients)
        fault = "other_temperature"
        return Hypothesis(method.name, fault, means, expected, tuple(recipes), None, number)

    grid = np.log(observer.problem.tau) + _LOG_FACTORS
    for method in _methods("repeated", "independent"):
        if method.scheme is not None and make_recipes(observer.problem, method, RIGHT, *sizes):
            yield _nearest(partial(at_tau, method), grid, observed)


_LESS = np.exp(np.linspace(np.log(0.02), np.log(40.0), 9))  # off the logits of hits
_LOGITS = np.linspace(-30.0, 6.0, 19)  # of hits
_MASKS = (-1e4, -65504.0, -1e9, -1e10, -3.4028234663852886e38)  # logits of masked hits
_LOG_FACTORS = np.linspace(-4.0, 4.0, 17)  # of other temperatures
_POLISHES, _NUDGE = 3, 1e-6
_FAR_BEHIND = 30.0  # nats
_LOG_LEAST = np.log(10.0) * np.linspace(-9.0, -0.5, 18)
_LEAST_SMOOTHING, _MOST_SMOOTHING = 1e-3, 0.9


def fitted(
    observer: Observer, observed: Observed, schemes: Container[str] = METHODS
) -> Iterator[Hypothesis]:
    """Yield the best of each family of hypotheses, for what was observed."""
    for method, recipe in _right_recipes(observer, observer.problem):
        if method.name in schemes and "is a sum" in method.facts:
            yield from _capped(observer, observed, method.name, recipe)
            if "masks hits" in method.facts:
                yield from _masked(observer, observed, method.name, recipe)
            if "corrects draws" in method.facts:
                yield from _floored(observer, observed, method)


def smoothed(observer: Observer, observed: Observed) -> Iterator[Hypothesis]:
    """Yield label smoothing, of all schemes that are sums."""
    for method, recipe in _right_recipes(observer, observer.problem):
        if "is a sum" in method.facts:
            yield from _smoothed(observer, observed, method.name, recipe)


def _floored(observer: Observer, observed: Observed, method: Method) -> Iterator[Hypothesis]:
    """Yield corrections by a q that is kept away from 0: clipped, or with a number added."""
    sizes = observer.num_sampled, observer.batch

    def kept_away(fault: str, words: str, way: Any, log_least: float) -> Hypothesis:
        variant = Variant(lambda counts: (way(counts.law, log_least), counts.draws))
        recipes = make_recipes(observer.problem, method, variant, *sizes)
        number = words.format(np.exp(log_least))
        return _of_recipes(observer, method.name, fault, recipes, number, spreads=True)

    for way in (
        ("q_clipped", "q is at least {:.2g}", np.maximum),
        ("epsilon_in_log", "log(q + {:.2g})", np.logaddexp),
    ):
        yield _nearest(partial(kept_away, *way), _LOG_LEAST, observed)


def _capped(
    observer: Observer, observed: Observed, scheme: str, recipe: Recipe
) -> Iterator[Hypothesis]:
    """Yield losses -log(p + a number), where a label is so far behind that only the number is left.

    What p is elsewhere hardly matters, and is taken as if the sum of the draws had its mean.
    """
    plain = expectation([recipe])
    last = int(plain.losses.argmax())
    if plain.losses[last] > _FAR_BEHIND:
        log_number = -float(observed.means[last])
        shares = expit(-plain.losses - log_number)  # of p in the sum of both
        capped = Means(-np.logaddexp(-plain.losses, log_number), plain.slopes * shares[:, None])
        means, number = capped.observed(observer.problem, observer.gradients), np.exp(log_number)
        words = f"the number is {number:.2g}"
        yield Hypothesis(scheme, "probability_capped", means, capped, number=words)


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
        return _of_recipes(observer, scheme, "finite_mask", [masked], words, spreads=True)

    def constant(number: float) -> Hypothesis:
        masked, words = fixed.with_hits(np.full_like(hits, number)), f"the logit {number:.2g}"
        return _of_recipes(observer, scheme, "finite_mask", [masked], words, spreads=True)

    yield _nearest(less, _LESS, observed)
    yield _nearest(constant, _LOGITS, observed)


def _nearest(
    of_number: Callable[[float], Hypothesis], grid: FloatArray, observed: Observed
) -> Hypothesis:
    """Return the hypothesis nearest to what was observed: on a grid, then beside the best there."""
    unit = _unit(observed)

    def distance(number: float) -> float:
        away: FloatArray = (of_number(number).means - observed.means) / unit
        return float((away**2).sum())

    at = int(np.argmin([distance(number) for number in grid]))
    ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    found = minimize_scalar(distance, bounds=ends, method="bounded", options={"xatol": 1e-9})
    number = float(found.x)
    # where nothing is random values must be equal but for rounding, and the minimum of squares is
    # flat: known to half of the digits. Gauss and Newton's steps have all
    if not observed.stderrs.any():
        for _ in range(_POLISHES):
            away, more = (of_number(x).means - observed.means for x in (number, number + _NUDGE))
            slope = (more - away) / _NUDGE
            number -= float(away @ slope) / max(float(slope @ slope), _NUDGE)
    return of_number(number)


def _smoothed(
    observer: Observer, observed: Observed, scheme: str, recipe: Recipe
) -> Iterator[Hypothesis]:
    """Yield label smoothing, in which masked hits have one logit or another."""
    rows = np.arange(len(recipe.labels))
    hits, chances = (array[rows, recipe.labels] for array in (recipe.draws, recipe.law))
    masked = bool(((hits == -np.inf) & (chances > 0.0)).any())
    plain = expectation([recipe])
    for mask, follow in product(_MASKS, (False, True)) if masked else [(None, True)]:
        logits = np.where(chances > 0.0, hits, 0.0) if mask is None else np.full_like(hits, mask)
        x = recipe.with_hits(logits).draws
        added = smoothing_of(recipe, recipe.num_draws * recipe.law, x, follow)
        parts = [_Part(plain, added, observer.problem)]
        yield _with_share(parts, observer.gradients, observed, scheme, mask)


def _observed(parts: list[_Part], gradients: int) -> tuple[FloatArray, FloatArray]:
    """Return what is seen of a scheme, and of what label smoothing adds."""
    both = (
        (part.plain.observed(part.problem, gradients), part.added.observed(part.problem, gradients))
        for part in parts
    )
    plain, added = zip(*both, strict=True)
    return np.concatenate(plain), np.concatenate(added)


def _with_share(
    parts: list[_Part],
    gradients: int,
    observed: Observed,
    scheme: str,
    mask: float | None,
) -> Hypothesis:
    """Return label smoothing with the best share of what it adds to what is there without."""
    plain, added = _observed(parts, gradients)
    # it is linear: least squares for the share, in units of the standard errors
    unit: FloatArray = _unit(observed)
    slope: FloatArray = added / unit
    share = float(((observed.means - plain) / unit * slope).sum() / (slope**2).sum())
    share = min(max(share, 0.0), _MOST_SMOOTHING)
    expected = None
    if len(parts) == 1:
        expected = Means(*(a + share * b for a, b in zip(*parts[0][:2], strict=True)))
    fault, words = "label_smoothing", f"smoothing {share:.3g}"
    if mask is not None:
        fault, words = "smoothed_hits", f"{words}, hits at {mask:.3g}"
        if share < _LEAST_SMOOTHING:  # beside that of hits it has no effect
            words = f"smoothing times the logit of hits is {share * mask:.3g}"
    return Hypothesis(scheme, fault, plain + share * added, expected, number=words)


def _unit(observed: Observed) -> FloatArray:
    """Return what differences are measured in: infinity for means of what has hardly come."""
    if not observed.stderrs.any():  # nothing is random
        return observed.rounding
    unit = observed.stderrs + observed.rounding
    few = (observed.stderrs == 0.0) | (np.abs(observed.skewness) > np.sqrt(observed.calls) / 10.0)
    return np.where(few, np.inf, unit)
