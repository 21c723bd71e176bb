"""The function `tune`, which chooses a sampler and a number of draws by measurement."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._executors import as_executor
from samplesoft._progress import progress_bar
from samplesoft._random import stream_key
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
    MAX_BIAS_EXAMPLES,
    MAX_BIAS_LOGITS,
    MIN_BIAS_EXAMPLES,
    Setting,
    Workload,
    find_crossover,
    measure_full_softmax,
    measure_sampler,
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
    """Find the best sampler and number of draws, by measurement on this machine.

    Each sampler is measured with each number of draws, both with separate draws for each example
    and with draws that a batch shares. The measurements are the exact bias of the gradients, their
    error, and the time of a step.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        Class vectors of a trained model, float32 or float64 as in training. The bias for random
        vectors says little about training.
    h : array_like, shape (N, d)
        Contexts of typical examples.
    labels : array_like of int, shape (N,)
        Label of each example.
    counts : array_like, shape (n,), optional
        Number of occurrences of each class, for ``"unigram"``.
    tau : float, optional
        Inverse temperature of the logits ``tau h . c``. The default is 10 if all vectors have norm
        1, else 1.
    samplers : iterable of str
        Keys of `samplesoft.samplers.SAMPLERS`. Samplers that need data which are not given are left
        out; the report names them with the reason.
    num_sampled : iterable of int
        Numbers of draws m, for an example, or for a batch that shares its draws.
    shared : bool, optional
        True for only draws that a batch shares, False for only separate draws; by default both.
    masked : bool
        Whether separate draws for an example may contain its label, with weight 0, as in
        ``"sampled-masked"``; otherwise they exclude it. Examples with several labels need True.
    nu, num_features : float, int
        Parameters of samplers; see `samplesoft.samplers.SamplerInputs`.
    batch : int, optional
        Number of examples in a step. The default is the number of contexts; if there are fewer
        contexts, they are repeated.
    thorough : bool
        Measure every number of draws, and the number of classes above which sampling pays. If
        False, numbers of draws are tried in increasing order, and numbers that cannot be the
        fastest with an allowed bias are skipped.
    largest_bias : float
        Largest allowed L1 norm of the bias of the gradient in the logits (at most 2), averaged over
        the contexts. The average plus two standard errors must not exceed this value.
    seconds : float, optional
        Time limit of a step. If given, the setting with the smallest error within this limit is
        chosen, and `largest_bias` has no effect.
    progress : bool
        Show progress on stderr: a bar if stderr is a terminal, otherwise lines.
    rng : int, numpy.random.Generator or None
        Seed of samplers and draws. The choice may still vary from run to run, because times do.
    executor : concurrent.futures.Executor, optional
        Computes biases on its workers, with one thread per example: a pool of threads or processes,
        or ``client.get_executor(pure=False)`` of Dask. Biases are equal to the last bit with and
        without an executor. Times are measured in this process, while the workers are idle.

    Returns
    -------
    TuneReport
        All settings, the Pareto front of bias and time, the best setting with the reason, and the
        number of classes above which sampling pays.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    The bias is computed by `samplesoft.exact_bias`, with scheme ``"masked"`` for shared draws or if
    `masked`, otherwise with scheme ``"negatives"``.

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
    unit_vectors = have_unit_norm(rows, contexts)
    tau = as_tau(tau, unit_vectors)

    sampler_names = [
        as_choice("samplers", name, SAMPLERS) for name in _as_nonempty_list("samplers", samplers)
    ]
    draw_counts = [
        as_count("num_sampled", m) for m in _as_nonempty_list("num_sampled", num_sampled)
    ]
    if len(rows) < 2:
        raise ValueError("`class_embeddings` must hold at least 2 classes, got 1.")

    batch_size = len(contexts) if batch is None else as_count("batch", batch)
    max_seconds = None if seconds is None else as_positive("seconds", seconds)
    largest_bias = as_positive("largest_bias", largest_bias)
    sharing_modes = (False, True) if shared is None else (as_flag("shared", shared),)

    if not as_flag("thorough", thorough):
        if max_seconds is not None:
            raise ValueError(
                "`thorough` must be True with `seconds`, because more draws may have a smaller "
                "error, got False; set only one of the two."
            )
        # more draws are slower: if a number of draws is too slow, larger numbers are skipped
        draw_counts.sort()
        sharing_modes = sharing_modes[::-1]  # shared draws first, which are faster

    key = stream_key(rng)
    workers = as_executor(executor)

    # choose the contexts whose bias is computed, and the contexts of the timed batch, which are
    # repeated if there are too few
    order = np.random.default_rng(int(key)).permutation(len(contexts))
    num_bias_examples = min(max(MAX_BIAS_LOGITS // len(rows), MIN_BIAS_EXAMPLES), MAX_BIAS_EXAMPLES)
    bias_examples = order[:num_bias_examples]
    batch_examples = np.resize(order, batch_size)
    bias_contexts = contexts[bias_examples]
    bias_logits = tau * bias_contexts.astype(np.float64) @ rows.T.astype(np.float64)
    max_bias = largest_bias if max_seconds is None else None
    masked = as_flag("masked", masked)

    workload = Workload(
        rows=rows,
        h=contexts[batch_examples],
        labels=ids[batch_examples],
        tau=tau,
        unit_vectors=unit_vectors,
        masked=masked,
        bias_logits=bias_logits,
        bias_examples=(bias_contexts, ids[bias_examples]),
        largest_bias=max_bias,
        executor=workers,
    )
    feature_options: dict[str, Any] = {"nu": nu, "num_features": num_features}
    inputs = SamplerInputs(rows, counts, tau=tau, **feature_options, rng=int(key), h=contexts)
    full, full_gradient = measure_full_softmax(workload)

    settings: list[Setting] = [full]
    reasons = {
        name: _reason_to_leave_out(SAMPLERS[name], inputs, unit_vectors) for name in sampler_names
    }
    left_out = {name: reason for name, reason in reasons.items() if reason}
    remaining = [name for name in sampler_names if name not in left_out]

    total = len(sharing_modes) * len(remaining) * len(draw_counts)
    show_progress = as_flag("progress", progress)
    with progress_bar(show_progress, total=total, unit="setting", desc="tune") as bar:
        # each sampler is made once for all its settings, because construction may be expensive
        for name in remaining:
            sampler = make_sampler(name, inputs)
            for is_shared in sharing_modes:
                for setting in measure_sampler(
                    name, sampler, is_shared, draw_counts, workload, full_gradient
                ):
                    bar.set_postfix(sampler=name, m=setting.num_sampled)
                    bar.update()
                    settings.append(setting)
                    if not thorough and _more_draws_are_useless(setting, settings, largest_bias):
                        break

    settings.sort(key=lambda setting: setting.step_seconds)
    best = best_setting(settings, largest_bias, max_seconds)
    report = TuneReport(
        tuple(settings), best, max_bias, max_seconds, len(rows), rows.shape[1], batch_size, left_out
    )
    if not thorough or report.contender is None:
        return report

    return replace(report, crossover=find_crossover(report.contender, full, workload, inputs))


def _more_draws_are_useless(setting: Setting, settings: list[Setting], largest_bias: float) -> bool:
    """Return whether more draws than in `setting` cannot be the fastest with an allowed bias.

    More draws take longer. So they cannot be the fastest if `setting` is not faster than the
    fastest of `settings` with an allowed bias.
    """
    return setting.step_seconds >= min(
        other.step_seconds for other in settings if other.bias_plus_two_stderrs <= largest_bias
    )


def best_setting(settings: list[Setting], largest_bias: float, seconds: float | None) -> Setting:
    """Return the best of `settings`, which must be sorted by time.

    Without `seconds`, this is the fastest setting whose bias is allowed. With `seconds`, it is the
    setting with the smallest error whose step takes at most this time.
    """
    if seconds is None:
        return next(
            setting for setting in settings if setting.bias_plus_two_stderrs <= largest_bias
        )
    fast_settings = [setting for setting in settings if setting.step_seconds <= seconds]
    if not fast_settings:
        raise ValueError(
            f"`seconds` must allow a setting, got {seconds:g}: the fastest, {settings[0].title}, "
            f"takes {settings[0].step_seconds:.3g} s a step; allow more, or take a smaller `batch`."
        )
    return min(fast_settings, key=lambda setting: setting.error)


def _as_nonempty_list(name: str, values: Any) -> list[Any]:
    """Return the distinct values of the argument `name`, which must be iterable and not empty."""
    try:
        distinct = None if isinstance(values, str) else list(dict.fromkeys(values))
    except TypeError:
        distinct = None
    if not distinct:
        raise ValueError(f"`{name}` must be a list of at least one, got {values!r}; write [...].")
    return distinct


def _reason_to_leave_out(spec: SamplerSpec, inputs: SamplerInputs, unit_vectors: bool) -> str:
    """Return the reason why a sampler cannot be measured, or "" if it can be."""
    if not spec.every_class:
        return "draws among candidates that are others in each step"
    return spec.reason_if_inputs_lack(inputs, unit_vectors)
