"""Progress on stderr: a bar on a terminal, otherwise lines.

The first line comes after one second, then one every few seconds for two minutes, then at
increasing intervals. A thread writes the lines, so they also come during a long step, while a file
is read or a kernel is compiled.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_FIRST_LINE_SECONDS = 1.0  # before the first line
_PAUSE_SECONDS = 2.0  # between the first lines
_NUM_STEADY_LINES = 60  # lines at that interval; then each interval is twice the previous one
_MAX_PAUSE_SECONDS = 60.0


def progress_bar(show: bool, *, each: bool = False, **options: Any) -> Any:
    """Return a tqdm bar that disappears when closed, or on other streams an object writing lines.

    `options` are those of ``tqdm``. With `each`, every update writes a line at once. Use the result
    in a ``with`` statement, because both kinds must be closed.
    """
    if show and _writes_lines():
        return _ProgressLines(each, **options)
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        """A bar without tqdm's monitor thread; `_tick` replaces it."""

        monitor_interval = 0

    tqdm.get_lock()  # type: ignore[no-untyped-call]  # creates the lock shared by all bars
    # stderr is None if it was closed at the start; tqdm would fail at the first write
    enabled = show and sys.stderr is not None
    bar = Bar(leave=False, disable=not enabled, **options)
    if enabled:
        _start_thread(_tick, bar)
    return bar


def _start_thread(function: Callable[..., object], *arguments: Any) -> None:
    """Run a function that writes progress on a thread; do nothing if none can be started."""
    # a daemon, so that it does not keep a failed program alive
    with suppress(RuntimeError):
        threading.Thread(target=function, args=arguments, daemon=True).start()


def _renew_lock() -> None:
    """Give the bars of a forked child a new lock; a thread of the parent may hold the old one."""
    module: Any = sys.modules.get("tqdm.std")
    lock: Any = None if module is None else getattr(module.tqdm, "_lock", None)
    if type(lock) is getattr(module, "TqdmDefaultWriteLock", None):
        type(lock).th_lock = threading.RLock()
        module.tqdm.set_lock(type(lock)())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _tick(bar: Any) -> None:
    """Refresh the clock of a bar every second, also during a long step."""
    while not bar.disable:
        time.sleep(_FIRST_LINE_SECONDS)
        with bar.get_lock():  # a bar closed in the meantime must not reappear
            if not bar.disable:
                bar.refresh(nolock=True)


def progress_phase(show: bool, what: str) -> Any:
    """Show the name of a phase without a count during the body of ``with``."""
    return progress_bar(show, desc=what, bar_format="{desc}...")


def progress_line(show: bool, line: str) -> None:
    """Write a line to stderr at once, unless stderr is a terminal, which has a bar instead."""
    # a broken pipe, a closed stream or an unencodable letter must not stop the work
    with suppress(OSError, ValueError):
        if show and _writes_lines():
            print(line, file=sys.stderr, flush=True)


def report_line(show: bool, line: str) -> None:
    """Write a line to stderr at once; on a terminal it appears above the bars."""
    if show and not _writes_lines() and sys.stderr is not None:
        from tqdm import tqdm

        with suppress(OSError, ValueError):
            tqdm.write(line, file=sys.stderr)
    progress_line(show, line)


class TimeEstimate:
    """Elapsed time of some work, and an estimate of the remaining time at the current pace."""

    def __init__(self, total: int | None = None, done: int = 0) -> None:
        self._start = time.perf_counter()
        self._total = total
        self._before = done

    def describe(self, done: int) -> str:
        """Return elapsed and remaining time in words, when `done` of the total are done."""
        seconds = time.perf_counter() - self._start
        if self._total is None or not self._before < done < self._total:
            return _format_seconds(seconds)
        # the pace of this run; work restored from a checkpoint took no time
        left = seconds * (self._total - done) / (done - self._before)
        return f"{_format_seconds(seconds)}, about {_format_seconds(left)} left"


class _ProgressLines:
    """A replacement for a tqdm bar that writes lines, with the methods used in this package."""

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
        self._estimate = TimeEstimate(total, initial)
        self._closed = threading.Event()

    def __enter__(self) -> _ProgressLines:
        _start_thread(self._write_lines)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def update(self, number: int = 1) -> None:
        """Add to the count."""
        self._done += number
        if self._each:
            progress_line(True, self._line())

    def set_postfix(self, refresh: bool = True, **figures: Any) -> None:
        """Show these figures in the lines from now on."""
        self._postfix = ", ".join(f"{name} {value}" for name, value in figures.items())

    def _line(self) -> str:
        done = self._done
        total_text = "" if self._total is None else f" of {self._total:,}"
        count_text = f"{self._unit} {done:,}{total_text}" if self._unit else ""
        parts = (count_text, self._postfix, self._estimate.describe(done))
        return f"{self._desc}: {', '.join(filter(None, parts))}"

    def _write_lines(self) -> None:
        pause = _FIRST_LINE_SECONDS
        written = 0
        while not self._closed.wait(pause):
            progress_line(True, self._line())
            written += 1
            # at increasing intervals, so that the log of a long run stays short
            if written < _NUM_STEADY_LINES:
                pause = _PAUSE_SECONDS
            else:
                pause = min(2.0 * pause, _MAX_PAUSE_SECONDS)


def _writes_lines() -> bool:
    return sys.stderr is not None and not sys.stderr.isatty()


def _format_seconds(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
