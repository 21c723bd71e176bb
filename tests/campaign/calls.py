"""Every public callable with hostile arguments: it takes them, or refuses them in words.

Calls run in processes of their own with little memory, so that one that kills or hangs Python costs
one call. What `fault` finds is not documented.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import multiprocessing
import re
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import numba
import numpy as np

from tests.campaign.hostile import changed, pick

FIELDS = ("callable", "calls", "accepted", "refused", "undocumented", "example")
CALLS = 100_000
WORKERS = 2
MEMORY = 4 << 30
SECONDS = 20  # after which a call hangs

# where the documentation says so: minus infinity for a class without probability, and infinity
# beyond the range of float64
MAY_BE_INFINITE = (
    "predict_topk",
    "log_prob",
    "log_expected_count",
    "kernel",
    "evaluate",
)
MAY_BE_INFINITE += (
    "predict_topk",
    "backward",
    "gradient_bias",
    "gradient",
    "theorem1_bounds",
    "theorem1_corrected",
    "theorem2_ratio",
    "theorem2_corrected",
    "monte_carlo_bias",
    "check_loss",  # whose hypotheses hold the logarithms of chances
    "CertainSampler.sample",
)
TAKES_ANYTHING = ("to_host",)
OTHERS_WORDS = (
    "SampledSoftmaxClassifier",
    "predict_topk",
)  # in the words of scikit-learn


def run(seconds: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each class and function, over at most `CALLS` calls."""
    counts: dict[str, Counter[str]] = {}
    examples: dict[str, str] = {}
    for name, outcome, what in _outcomes(seconds, seed):
        owner = name.split(".")[0]
        counts.setdefault(owner, Counter())[outcome] += 1
        if outcome == "undocumented":
            examples.setdefault(owner, what)
            print(what, flush=True)
    for owner, count in sorted(counts.items()):
        yield {
            "callable": owner,
            "calls": count.total(),
            **{outcome: count[outcome] for outcome in ("accepted", "refused", "undocumented")},
            "example": examples.get(owner, ""),
        }


def _outcomes(seconds: float, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield name, outcome and description of each call, from as many processes as `WORKERS`."""
    end, workers = time.monotonic() + seconds, {}
    for first in range(WORKERS):
        pipe, process = _start(seed, first)
        workers[pipe] = process, first, ("", "")
    while workers and time.monotonic() < end:
        for pipe in wait(list(workers), timeout=1.0):
            process, number, (name, what) = workers[pipe]
            try:
                message = pipe.recv()
            except EOFError:
                process.join()
                del workers[pipe]
                why = "hangs" if process.exitcode == -signal.SIGALRM else "kills Python"
                yield name, "undocumented", f"{what} {why} ({process.exitcode})"
                pipe, process = _start(seed, number + WORKERS)
                workers[pipe] = process, number + WORKERS, ("", "")
                continue
            if message is None:
                del workers[pipe]
            elif len(message) == 3:  # a call begins
                workers[pipe] = process, message[0], message[1:]
            else:
                outcome, fault = message
                yield name, outcome, f"{what} {fault}"
    for process, _, _ in workers.values():
        process.kill()


def _start(seed: int, first: int) -> tuple[Connection, Any]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=(theirs, seed, first), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def work(pipe: Connection, seed: int, first: int) -> None:
    """Make the calls `first`, `first` + `WORKERS` and so on, and send what came of each."""
    from tests.campaign import examples

    numba.set_num_threads(2)
    assert not examples.missing(), f"without an example: {examples.missing()}"
    names = list(examples.names())
    for name in names:  # valid calls are taken, and compile what they need
        made, arguments = examples.make(name)
        made(**arguments)
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in range(first, CALLS, WORKERS):
        rng = np.random.default_rng((seed, number))
        name = names[number // WORKERS % len(names)]
        made, arguments = examples.make(name)
        told = []
        for key in rng.permutation(list(arguments))[: rng.integers(1, 3)]:
            arguments[key] = _feasible(name, key, changed(arguments[key], rng))
            told.append(f"{key}={_shown(arguments[key])}")
        pipe.send((number, name, f"{name}({', '.join(told)}) [{number}]"))
        signal.alarm(SECONDS)
        pipe.send(_outcome(name, made, arguments, rng))
        signal.alarm(0)
    pipe.send(None)


def _feasible(name: str, key: str, value: Any) -> Any:
    """Return a value that is not an honest request for years of work."""
    repeats = key in ("max_iter", "num_trials", "num_draws") or name in (
        "monte_carlo_bias",
        "verify",
    )
    if repeats and isinstance(value, int) and 300 < value <= 10**15:
        return 300
    return value


def _outcome(
    name: str, made: Callable[..., Any], arguments: dict[str, Any], rng: np.random.Generator
) -> tuple[str, str]:
    from tests.campaign import examples

    try:
        result = made(**arguments)
        forward = name.endswith(".forward")
        found = _not_a_number(result[0] if forward else result, name)
        if not found and forward:
            found = _not_a_number(_backward(made.__self__, result), "backward")
        if not found and (methods := examples.methods_of(result)):
            made = getattr(result, pick(list(methods), rng))
            name = f"{type(result).__name__}.{made.__name__}"
            found = _not_a_number(made(**methods[made.__name__]), name)
    except Exception as error:  # noqa: BLE001
        fault = _fault(name, made, arguments, error)
        return ("undocumented", fault) if fault else ("refused", "")
    if found and not any(name.endswith(end) for end in TAKES_ANYTHING):
        return "undocumented", f"gives {found}"
    return "accepted", ""


def _backward(thing: Any, result: tuple[Any, ...]) -> Any:
    """Go back from what `forward` returned; of a layer that is no loss, by ones."""
    if "dy" not in inspect.signature(thing.backward).parameters:
        return thing.backward(result[-1])
    return thing.backward(result[-1], np.ones_like(result[0]))


def _fault(name: str, made: Callable[..., Any], arguments: dict[str, Any], error: Exception) -> str:
    """Return what is wrong with an exception, if anything."""
    text = f"{type(error).__name__}: {error}"[:200]
    if not isinstance(error, documented(made)):
        return f"raises {text}"
    words = set(re.findall(r"\w+", str(error)))
    if not words & _words(made, arguments) and not name.startswith(OTHERS_WORDS):
        return f"names no argument: {text}"
    return ""


def documented(made: Callable[..., Any]) -> tuple[type[Exception], ...]:
    """Return the exceptions and warnings that a docstring, or the class, names; bad input: two."""
    owner = getattr(made, "__self__", None)
    for thing in (made, type(owner)):
        doc = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
        if found := re.findall(
            r"^(?:Raises|Warns)\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", doc, re.DOTALL | re.MULTILINE
        ):
            names = re.findall(r"^\w[\w, ]*$", "\n".join(found), re.MULTILINE)
            named = (getattr(builtins, name, None) for name in ", ".join(names).split(", "))
            return TypeError, ValueError, *filter(None, named)
    return TypeError, ValueError


def _words(made: Callable[..., Any], arguments: dict[str, Any]) -> set[str]:
    """Return the names of arguments, and of the fields of those that are settings."""
    words = {*arguments, *inspect.signature(made).parameters}
    if owner := getattr(made, "__self__", None):
        words |= set(inspect.signature(type(owner)).parameters)
    for value in arguments.values():
        if dataclasses.is_dataclass(value):
            words |= {field.name for field in dataclasses.fields(value)}
    return words


def _not_a_number(result: Any, name: str) -> str:
    """Return the first number in a result that is not finite, if there is one."""
    if isinstance(result, dict):
        result = tuple(result.values())
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = tuple(vars(result).values())
    if isinstance(result, (tuple, list)):
        return next(filter(None, (_not_a_number(part, name) for part in result)), "")
    if isinstance(result, (float, np.floating, np.ndarray)):
        values = np.asarray(result)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = values[~np.isfinite(values)][0]
            if np.isnan(bad) or not name.endswith(MAY_BE_INFINITE):
                return str(bad)
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        text = f"{type(value).__name__}({value.tolist()}, {value.dtype})"
    elif hasattr(value, "tocsr"):
        text = (
            f"{type(value).__name__}({value.data}, {value.indices}, {value.indptr}, {value.shape})"
            if hasattr(value, "indptr")
            else f"{type(value).__name__}"
        )
    else:
        try:
            text = repr(value)
        except ValueError:
            text = "an integer of many digits"
    text = " ".join(text.split())
    return text if len(text) <= 90 else f"{text[:87]}..."
