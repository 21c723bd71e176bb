"""End the program at Ctrl-C or SIGTERM with a line of advice and exit status 130.

The process ends at once, even inside an import or a kernel. No exception is raised, so no code can
swallow it. This is safe because files are written as drafts or line by line.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STATUS = 130  # 128 + SIGINT, as shells count
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_advice: Callable[[], str] | None = None


def set_interrupt_advice(advice: Callable[[], str]) -> None:
    """Set the advice that an interrupt prints; `advice` is called when the interrupt comes."""
    global _advice
    _advice = advice


def end_at_interrupts() -> None:
    """End the process at the next interrupt, unless it was started with interrupts ignored."""
    _handle(_end)


def ignore_interrupts() -> None:
    """Ignore interrupts from now on: the work is done, and its exit status stands."""
    _handle(signal.SIG_IGN)


def _handle(handler: Callable[..., object] | signal.Handlers) -> None:
    for number in _SIGNALS:
        # a shell script starts background jobs with interrupts ignored
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _end(*_: object) -> None:
    try:
        _handle(lambda *_: os._exit(STATUS))  # a second interrupt does not wait for a slow reader
        if sys.stderr is not None:  # if it is closed, its descriptor may belong to another file
            bar = "\n" if sys.stderr.isatty() else ""  # keep the line of a progress bar
            advice = "interrupted" if _advice is None else _advice()
            text = f"{bar}samplesoft: {advice}\n"
            os.write(sys.stderr.fileno(), text.encode(sys.stderr.encoding, "backslashreplace"))
        if sys.stdout is not None:
            sys.stdout.flush()
    finally:
        os._exit(STATUS)
