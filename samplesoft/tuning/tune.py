"""`tune`: which sampler, and how many draws."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._executors import as_executor
from samplesoft._progress import progress_bar
from samplesoft._random import as_key
from samplesoft._temperature import as_tau, have_unit_norm
from samplesoft._validation import (
    as_choice,
    as_count,
    as_flag,
    as_float_rows,
    as_labels,
    as_positive,
)
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs, SamplerSpec, make_sampler
from samplesoft.tuning.measure import (
    LEAST,
    MOST,
    NUMBERS,
    Setting,
    Workload,
    crossover,
    full_setting,
    measured,
)
from samplesoft.tuning.report import TuneReport

DEFAULT_SAMPLERS = ("uniform", "unigram", "clusters", "rff", "softmax")
DEFAULT_DRAWS = (10, 30, 100, 300, 1000)


def tune(
    class_embeddings: ArrayLike,
    h: ArrayLike,
    labels: Any,
    *,
    counts: ArrayLike | None = None,
    tau: float | None = None,
    samplers: Iterable[str] = DEFAULT_SAMPLERS,
    num_sampled: Iterable[int] = DEFAULT_DRAWS,
    shared: bool | None = None,
    masked: bool = False,
    nu: float = SamplerInputs.nu,
    num_features: int = SamplerInputs.num_features,
    batch: int | None = None,
    thorough: bool = True,
    largest_bias: float = 0.05,
    seconds: float | None = None,
    progress: bool = False,
    rng: int | np.random.Generator | None = 0,
    executor: Executor | None = None,
) -> TuneReport:
    """Find the sampler and the number of draws to take, by measurement on this machine.

    Each sampler is measured with each number of draws, for each example and shared by the batch:
    the exact bias of its gradients, their error, and the time of a step.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        Class vectors of a model that has learned something: of random ones the bias says little.
        float32 or float64, as in training.
    h : array_like, shape (N, d)
        Contexts of typical examples.
    labels : array_like of int, shape (N,)
        Their labels.
    counts : array_like, shape (n,), optional
        How often each class occurs, which ``"unigram"`` needs.
    tau : float, optional
        Inverse temperature of the logits ``tau h . c``; by default 10 where all vectors have norm
        1, else 1.
    samplers : iterable of str
        Keys of `samplesoft.samplers.SAMPLERS`. Those that the input has no data for are left out,
        and named with the reason.
    num_sampled : iterable of int
        Numbers of draws m. One set for a batch is measured with these too.
    shared : bool, optional
        Measure one set of draws for a batch only, or draws for each example only.
    masked : bool
        Let draws for each example contain its label, which has no weight then, as in
        ``"sampled-masked"``; else they exclude it. The masked form is that of several labels.
    nu, num_features : float, int
        Of samplers; see `samplesoft.samplers.SamplerInputs`.
    batch : int, optional
        Examples in a step; by default as many as there are contexts, which are taken again where
        they are fewer.
    thorough : bool
        Measure every number of draws, and from how many classes on sampling pays. If False, draws
        are tried in ascending order, and those that cannot be the quickest within `largest_bias`
        are left out.
    largest_bias : float
        L1 norm of the bias of the gradient in the logits, of at most 2, that is allowed in the
        mean over contexts. A setting is taken where two standard errors above its mean are too.
    seconds : float, optional
        Time of a step that is allowed. If given, the setting with the least error within it is
        taken, and `largest_bias` has no effect.
    progress : bool
        Show progress on stderr: a bar if that is a terminal, else lines.
    rng : int, numpy.random.Generator or None
        Seed of samplers and draws. Times differ from run to run, and with them the choice may.
    executor : concurrent.futures.Executor, optional
        Whose workers share the examples out, each on one thread: pools of threads or processes, or
        ``client.get_executor(pure=False)`` of Dask. Biases have the same bits as without;
        times are of this process, while the workers wait.

    Returns
    -------
    TuneReport
        All settings, the front of bias against time, and the best one, with the reason; and from
        how many classes on sampling pays.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    The bias is that of `samplesoft.exact_bias`, for scheme ``"negatives"`` with draws for each
    example, and ``"masked"`` with one set or where `masked`.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft import tune
    >>> C = np.random.default_rng(0).normal(size=(50, 4))
    >>> report = tune(C, C[:8], np.arange(8), samplers=["uniform", "softmax"], num_sampled=[5])
    >>> len(report.settings), report.best.bias <= 0.05
    (5, True)
    """
    rows = as_float_rows("class_embeddings", class_embeddings)
    contexts = as_float_rows("h", h, rows.shape[1], rows.dtype)
    ids = as_labels("labels", labels, len(rows), (len(contexts),))
    unit = have_unit_norm(rows, contexts)
    tau = as_tau(tau, unit)
    names = [as_choice("samplers", name, SAMPLERS) for name in _several("samplers", samplers)]
    sizes = [as_count("num_sampled", m) for m in _several("num_sampled", num_sampled)]
    if len(rows) < 2:
        raise ValueError("`class_embeddings` must hold at least 2 classes, got 1.")
    size = len(contexts) if batch is None else as_count("batch", batch)
    limit = None if seconds is None else as_positive("seconds", seconds)
    largest_bias = as_positive("largest_bias", largest_bias)
    ways = (False, True) if shared is None else (as_flag("shared", shared),)
    if not as_flag("thorough", thorough):
        if limit is not None:
            raise ValueError(
                "`thorough` must be True with `seconds`, within which more draws may have the "
                "least error, got False; leave one of them out."
            )
        sizes.sort()  # few draws are quick: what follows need not be measured if it is slower
        ways = ways[::-1]  # what is quick comes first, and spares what is slow
    key = as_key(rng)
    workers = as_executor(executor)
    # a sample of contexts for the bias; others, with repetition, make the batch that is timed
    order = np.random.default_rng(int(key)).permutation(len(contexts))
    most = min(max(NUMBERS // len(rows), LEAST), MOST)
    some = order[:most]
    chosen = np.resize(order, size)
    examples = contexts[some], ids[some]
    logits = tau * contexts[some].astype(np.float64) @ rows.T.astype(np.float64)
    bias = largest_bias if limit is None else None
    masked = as_flag("masked", masked)
    work = Workload(
        rows=rows,
        h=contexts[chosen],
        labels=ids[chosen],
        tau=tau,
        unit=unit,
        masked=masked,
        logits=logits,
        examples=examples,
        largest_bias=bias,
        executor=workers,
    )
    features: dict[str, Any] = {"nu": nu, "num_features": num_features}
    inputs = SamplerInputs(rows, counts, tau=tau, **features, rng=int(key), h=contexts)
    full, gradient = full_setting(work)
    settings: list[Setting] = [full]
    reasons = {name: _why_not(SAMPLERS[name], inputs, unit) for name in names}
    left_out = {name: why for name, why in reasons.items() if why}
    todo = [name for name in names if name not in left_out]
    total = len(ways) * len(todo) * len(sizes)
    shown = as_flag("progress", progress)
    with progress_bar(shown, total=total, unit="setting", desc="tune") as bar:
        for name in todo:  # one sampler serves all its settings: making one may take longest
            sampler = make_sampler(name, inputs)
            for way in ways:
                for setting in measured(name, sampler, way, sizes, work, gradient):
                    bar.set_postfix(sampler=name, m=setting.num_sampled)
                    bar.update()
                    settings.append(setting)
                    if not thorough and _is_last(setting, settings, largest_bias):
                        break
    settings.sort(key=lambda one: one.step_seconds)
    best = take(settings, largest_bias, limit)
    found = TuneReport(tuple(settings), best, bias, limit, len(rows), rows.shape[1], size, left_out)
    if not thorough or found.contender is None:
        return found
    return replace(found, crossover=crossover(found.contender, full, work, inputs))


def _is_last(setting: Setting, settings: list[Setting], largest_bias: float) -> bool:
    """Return whether more draws of a sampler cannot be the quickest with a bias that is allowed."""
    return setting.step_seconds >= min(
        one.step_seconds for one in settings if one.most_bias <= largest_bias
    )


def take(settings: list[Setting], largest_bias: float, seconds: float | None) -> Setting:
    """Return the setting to take, of those sorted by their time."""
    if seconds is None:
        return next(one for one in settings if one.most_bias <= largest_bias)
    within = [one for one in settings if one.step_seconds <= seconds]
    if not within:
        raise ValueError(
            f"`seconds` must allow a setting, got {seconds:g}: the quickest, {settings[0].title}, "
            f"takes {settings[0].step_seconds:.3g} s a step; allow more, or take a smaller `batch`."
        )
    return min(within, key=lambda one: one.error)


def _several(name: str, values: Any) -> list[Any]:
    """Return values of an argument that takes several, each once."""
    try:
        found = None if isinstance(values, str) else list(dict.fromkeys(values))
    except TypeError:
        found = None
    if not found:
        raise ValueError(f"`{name}` must be a list of at least one, got {values!r}; write [...].")
    return found


def _why_not(spec: SamplerSpec, inputs: SamplerInputs, unit: bool) -> str:
    """Return why a sampler cannot be measured; empty if it can."""
    if not spec.every_class:
        return "draws among candidates that are others in each step"
    return spec.lacks(inputs, unit)
