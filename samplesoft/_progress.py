"""Progress on stderr: a bar where that is a terminal, else lines.

Work that takes more than a second gets a line then, one every few seconds for some minutes, and
then more of them ever more seldom. A thread writes them, so that there are some in the middle of a
step, while a file is read or a kernel compiled.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# seconds to the first line; from one to the next, as many times over; and at most after those
_FIRST = 1.0
_PAUSE = 2.0
_STEADY = 60
_LONGEST = 60.0


def progress_bar(wanted: bool, *, each: bool = False, **options: Any) -> Any:
    """Return a tqdm bar, which disappears when it is closed, or what writes lines in its place.

    `options` are those of ``tqdm``. With `each` there is a line for each update, at once. Both
    kinds must be closed, as ``with`` does.
    """
    if wanted and _has_lines():
        return _Lines(each, **options)
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        """A bar without the thread of tqdm that watches slow ones, in place of which `_tick` is."""

        monitor_interval = 0

    tqdm.get_lock()  # type: ignore[no-untyped-call]  # one for all bars, of other libraries too
    # tqdm would fail at the first write
    possible = wanted and sys.stderr is not None  # None if it was closed at the start
    bar = Bar(leave=False, disable=not possible, **options)
    if possible:
        _start(_tick, bar)
    return bar


def _start(function: Callable[..., object], *arguments: Any) -> None:
    """Let a thread write what there is to see; where no thread can be started, nobody does."""
    # a daemon: it must not keep a program alive that has failed
    with suppress(RuntimeError):
        threading.Thread(target=function, args=arguments, daemon=True).start()


def _renew_lock() -> None:
    """Give bars in a forked child a lock that no thread of the parent holds for ever."""
    module: Any = sys.modules.get("tqdm.std")
    lock: Any = None if module is None else getattr(module.tqdm, "_lock", None)
    if type(lock) is getattr(module, "TqdmDefaultWriteLock", None):
        type(lock).th_lock = threading.RLock()
        module.tqdm.set_lock(type(lock)())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _tick(bar: Any) -> None:
    """Let the clock of a bar go on in the middle of a step."""
    while not bar.disable:
        time.sleep(_FIRST)
        with bar.get_lock():  # a bar that is closed meanwhile must not come back
            if not bar.disable:
                bar.refresh(nolock=True)


def progress_phase(wanted: bool, what: str) -> Any:
    """Show `what` is being done in the body of ``with``, where there is nothing to count."""
    return progress_bar(wanted, desc=what, bar_format="{desc}...")


def progress_line(wanted: bool, line: str) -> None:
    """Write a line to stderr at once, where that is no terminal and so has no bar."""
    # nobody reads it, the stream is closed, or has no code for a letter: the work goes on
    with suppress(OSError, ValueError):
        if wanted and _has_lines():
            print(line, file=sys.stderr, flush=True)


def report_line(wanted: bool, line: str) -> None:
    """Write a line to stderr at once, on a terminal above the bars."""
    if wanted and not _has_lines() and sys.stderr is not None:
        from tqdm import tqdm

        with suppress(OSError, ValueError):
            tqdm.write(line, file=sys.stderr)
    progress_line(wanted, line)


class Pace:
    """The time since some work began, and how long the rest takes if it goes on so."""

    def __init__(self, total: int | None = None, done: int = 0) -> None:
        self._start = time.perf_counter()
        self._total = total
        self._before = done

    def times(self, done: int) -> str:
        """Return both in words, when `done` of the total are done."""
        seconds = time.perf_counter() - self._start
        if self._total is None or not self._before < done < self._total:
            return _in_words(seconds)
        # of what this run did itself; what a checkpoint brought took no time
        left = seconds * (self._total - done) / (done - self._before)
        return f"{_in_words(seconds)}, about {_in_words(left)} left"


class _Lines:
    """The part of a tqdm bar that this package uses, as lines."""

    def __init__(
        self,
        each: bool,
        *,
        desc: str,
        total: int | None = None,
        initial: int = 0,
        unit: str = "",
        **_: Any,
    ) -> None:
        self._each = each
        self._desc = desc
        self._unit = unit
        self._done = initial
        self._total = total
        self._postfix = ""
        self._pace = Pace(total, initial)
        self._closed = threading.Event()

    def __enter__(self) -> _Lines:
        _start(self._write_sometimes)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def update(self, number: int = 1) -> None:
        """Count."""
        self._done += number
        if self._each:
            progress_line(True, self._line())

    def set_postfix(self, refresh: bool = True, **figures: Any) -> None:
        """Show some figures from now on."""
        self._postfix = ", ".join(f"{name} {value}" for name, value in figures.items())

    def _line(self) -> str:
        done = self._done
        of_total = "" if self._total is None else f" of {self._total:,}"
        counted = f"{self._unit} {done:,}{of_total}" if self._unit else ""
        parts = (counted, self._postfix, self._pace.times(done))
        return f"{self._desc}: {', '.join(filter(None, parts))}"

    def _write_sometimes(self) -> None:
        pause = _FIRST
        written = 0
        while not self._closed.wait(pause):
            progress_line(True, self._line())
            written += 1
            # more seldom, so that a log of hours stays short
            pause = _PAUSE if written < _STEADY else min(2.0 * pause, _LONGEST)


def _has_lines() -> bool:
    return sys.stderr is not None and not sys.stderr.isatty()


def _in_words(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
