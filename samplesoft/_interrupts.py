"""Handling of Ctrl-C and SIGTERM: the program prints a line of advice and exits with status 130.

The process ends at once, even during an import or inside a kernel. No exception is raised, so no
code can suppress it. This is safe because files are replaced atomically or written line by line.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_STATUS = 130  # 128 + SIGINT, the convention of shells
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_advice: Callable[[], str] | None = None


def set_interrupt_advice(advice: Callable[[], str]) -> None:
    """Set the function that returns the advice to print; it is called at an interrupt."""
    global _advice
    _advice = advice


def end_at_interrupts() -> None:
    """End the process at the next Ctrl-C or SIGTERM, unless it was started to ignore the signal."""
    _set_signal_handlers(_print_advice_and_exit)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C and SIGTERM from now on, so that they cannot change the exit status."""
    _set_signal_handlers(signal.SIG_IGN)


def _set_signal_handlers(handler: Callable[..., object] | signal.Handlers) -> None:
    """Set the handler of both signals, except a signal that the process was started to ignore."""
    for number in _SIGNALS:
        # for example, a shell script starts background jobs with SIGINT ignored
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _print_advice_and_exit(*_: object) -> None:
    """Print the advice on stderr, and end the process at once; the signal handler."""
    try:
        # a second interrupt exits at once, even if writing the advice below takes long
        _set_signal_handlers(lambda *_: os._exit(EXIT_STATUS))
        if sys.stderr is not None:  # None if closed; another file may then have its descriptor
            new_line = "\n" if sys.stderr.isatty() else ""  # do not overwrite a progress bar
            advice = "interrupted" if _advice is None else _advice()
            text = f"{new_line}samplesoft: {advice}\n"
            os.write(sys.stderr.fileno(), text.encode(sys.stderr.encoding, "backslashreplace"))

        if sys.stdout is not None:
            sys.stdout.flush()
    finally:
        os._exit(EXIT_STATUS)
