"""How the program ends at Ctrl-C or SIGTERM: a line of advice, and exit status 130.

The process ends where it is, in the middle of an import or of a kernel, and no exception runs
through code that may swallow it. That is safe, for files are written as drafts or line by line.
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
_words: Callable[[], str] | None = None


def advise(words: Callable[[], str]) -> None:
    """Take the advice for an interrupt from `words`, which is asked when it comes."""
    global _words
    _words = words


def end_at_interrupts() -> None:
    """End the process at an interrupt from now on, unless it was started to ignore them."""
    _handle(_end)


def ignore_interrupts() -> None:
    """Let the exit status stand: the work is done."""
    _handle(signal.SIG_IGN)


def _handle(handler: Callable[..., object] | signal.Handlers) -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as in the background of a shell script
            signal.signal(number, handler)


def _end(*_: object) -> None:
    try:
        _handle(lambda *_: os._exit(STATUS))  # at a second one, nobody waits for a slow reader
        if sys.stderr is not None:  # else its number may be that of another file
            bar = "\n" if sys.stderr.isatty() else ""  # leave the line of a progress bar
            words = "interrupted" if _words is None else _words()
            text = f"{bar}samplesoft: {words}\n"
            os.write(sys.stderr.fileno(), text.encode(sys.stderr.encoding, "backslashreplace"))
        if sys.stdout is not None:
            sys.stdout.flush()
    finally:
        os._exit(STATUS)
