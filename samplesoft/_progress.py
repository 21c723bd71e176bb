"""Progress on stderr: a bar on a terminal, lines of text on a file or a pipe.

The first line is written after one second. Further lines follow every two seconds for two minutes,
and then at increasing intervals of up to a minute. A separate thread writes the lines, so they also
appear during a long step, such as reading a file or compiling a kernel.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_FIRST_LINE_SECONDS = 1.0  # pause before the first line of progress
_PAUSE_SECONDS = 2.0  # pause between two of the first `_NUM_STEADY_LINES` lines
_NUM_STEADY_LINES = 60  # after this number of lines, each pause is twice the previous one
_MAX_PAUSE_SECONDS = 60.0  # longest pause between two lines


def progress_bar(show: bool, *, each: bool = False, **options: Any) -> Any:
    """Return a tqdm bar if stderr is a terminal, otherwise an object that writes lines.

    Use the result in a ``with`` statement, at whose end the bar is removed, or no more lines are
    written. If `show` is False, nothing is shown. If `each` is True, and lines are written, every
    update also writes a line at once. `options` are keyword arguments of ``tqdm``.
    """
    if show and _writes_lines():
        return _ProgressLines(each, **options)
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        """A bar without tqdm's monitor thread, which `_refresh_every_second` replaces."""

        monitor_interval = 0

    tqdm.get_lock()  # type: ignore[no-untyped-call]  # creates the lock that all bars share
    # stderr is None if it was closed when Python started; tqdm would fail at the first write
    enabled = show and sys.stderr is not None
    bar = Bar(leave=False, disable=not enabled, **options)
    if enabled:
        _start_thread(_refresh_every_second, bar)

    return bar


def _start_thread(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function on a new thread; do nothing if the system refuses to start a thread."""
    # a daemon thread, so that it does not keep a failed program alive
    with suppress(RuntimeError):
        threading.Thread(target=function, args=arguments, daemon=True).start()


def _replace_tqdm_lock_after_fork() -> None:
    """Give tqdm a new lock in a forked child; a thread of the parent may hold the old lock."""
    module: Any = sys.modules.get("tqdm.std")
    lock: Any = None if module is None else getattr(module.tqdm, "_lock", None)
    if type(lock) is getattr(module, "TqdmDefaultWriteLock", None):
        type(lock).th_lock = threading.RLock()
        module.tqdm.set_lock(type(lock)())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_tqdm_lock_after_fork)


def _refresh_every_second(bar: Any) -> None:
    """Redraw a tqdm bar every second until it is closed, so that its elapsed time is current."""
    while not bar.disable:
        time.sleep(_FIRST_LINE_SECONDS)
        # hold the lock, so that a bar that was just closed does not reappear
        with bar.get_lock():
            if not bar.disable:
                bar.refresh(nolock=True)


def progress_phase(show: bool, name: str) -> Any:
    """Return a context manager that shows the name of a phase during the phase, without a count."""
    return progress_bar(show, desc=name, bar_format="{desc}...")


def progress_line_without_terminal(show: bool, line: str) -> None:
    """Write a line to stderr at once, if `show` is True and stderr is not a terminal.

    A terminal shows a `progress_bar` instead.
    """
    # a broken pipe, a closed stream or an unencodable letter must not stop the program
    with suppress(OSError, ValueError):
        if show and _writes_lines():
            print(line, file=sys.stderr, flush=True)


def report_line(show: bool, line: str) -> None:
    """Write a line to stderr at once; on a terminal, above the progress bars."""
    if show and not _writes_lines() and sys.stderr is not None:
        from tqdm import tqdm

        with suppress(OSError, ValueError):
            tqdm.write(line, file=sys.stderr)
    progress_line_without_terminal(show, line)


class TimeEstimate:
    """A clock that starts when it is made, and estimates the time for the remaining steps.

    `total` is the number of steps, or None if it is unknown. `done` of them were done before the
    clock started, for example by an earlier run.
    """

    def __init__(self, total: int | None = None, done: int = 0) -> None:
        self._start = time.perf_counter()
        self._total = total
        self._initial = done

    def describe(self, done: int) -> str:
        """Return the elapsed time, and an estimate of the remaining time, as text.

        `done` is the number of steps done so far. The estimate is left out if `total` is unknown,
        no step was done since the start, or none remains.
        """
        seconds = time.perf_counter() - self._start
        if self._total is None or not self._initial < done < self._total:
            return _format_seconds(seconds)
        # the time per step excludes the steps that were done before the start
        left = seconds * (self._total - done) / (done - self._initial)
        return f"{_format_seconds(seconds)}, about {_format_seconds(left)} left"


class _ProgressLines:
    """A writer of progress lines, with the methods of a tqdm bar that this package calls."""

    def __init__(
        self,
        writes_each_update: bool,
        *,
        desc: str,
        total: int | None = None,
        initial: int = 0,
        unit: str = "",
        **_: Any,
    ) -> None:
        self._writes_each_update = writes_each_update
        self._desc = desc
        self._unit = unit
        self._done = initial
        self._total = total
        self._postfix = ""
        self._estimate = TimeEstimate(total, initial)
        self._closed = threading.Event()
        self._is_shown = False  # whether an update was written since the last pause

    def __enter__(self) -> _ProgressLines:
        _start_thread(self._write_lines)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def update(self, steps: int = 1) -> None:
        """Add `steps` to the number of steps done."""
        self._done += steps
        if self._writes_each_update:
            progress_line_without_terminal(True, self._format_line())
            self._is_shown = True

    def set_postfix(self, refresh: bool = True, **figures: Any) -> None:
        """Show `figures`, such as the current loss, in all lines from now on."""
        self._postfix = ", ".join(f"{name} {value}" for name, value in figures.items())

    def _format_line(self) -> str:
        """Return the line for the current count: description, count, figures and times."""
        done = self._done
        total_text = "" if self._total is None else f" of {self._total:,}"
        count_text = f"{self._unit} {done:,}{total_text}" if self._unit else ""
        parts = (count_text, self._postfix, self._estimate.describe(done))
        return f"{self._desc}: {', '.join(filter(None, parts))}"

    def _write_lines(self) -> None:
        """Write a line of progress after each pause, until the ``with`` statement ends."""
        pause = _FIRST_LINE_SECONDS
        num_written = 0
        while not self._closed.wait(pause):
            # a line that was just written shows that the program is alive
            if not self._is_shown:
                progress_line_without_terminal(True, self._format_line())
            self._is_shown = False
            num_written += 1

            # later pauses are longer, so that the log of a long run stays short
            if num_written < _NUM_STEADY_LINES:
                pause = _PAUSE_SECONDS
            else:
                pause = min(2.0 * pause, _MAX_PAUSE_SECONDS)


def _writes_lines() -> bool:
    """Return whether progress is written as lines: stderr is open, and not a terminal."""
    return sys.stderr is not None and not sys.stderr.isatty()


def _format_seconds(seconds: float) -> str:
    """Return a duration as text, such as ``12 s``, ``3 min`` or ``2.5 h``."""
    if seconds < 120.0:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
