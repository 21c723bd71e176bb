"""How much memory is left, as far as the system tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SMALL = 1 << 28  # bytes that are there, without a look


def available_bytes() -> int | None:
    """Return the bytes that new arrays may take, or None where the system does not say.

    The less of what the machine has left and what its container may hold in all.
    """
    known = []
    if _MEMINFO.exists():
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        if "MemAvailable" in fields:
            known.append(int(fields["MemAvailable"].split()[0]) * 1024)
    # a container's own limit (cgroup v2) may be far below what the machine has
    if _LIMIT.exists() and _LIMIT.read_text().strip() != "max":
        known.append(int(_LIMIT.read_text()))
    return min(known, default=None)


def human_bytes(size: float) -> str:
    """Return a size for people, such as ``1.5 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000.0:
            return f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.4g} TB"


def require_memory(
    what: str,
    option: str,
    value: int,
    largest: int,
    predicted: Callable[[int], int],
    available: float | None,
) -> None:
    """Raise MemoryError where a size would not fit, and say which value of an option would.

    `what` is to be made with `option` = `value`, which may grow to `largest`; `predicted` returns
    the bytes that a value needs, less for larger ones. `available` is None where it is not known.
    """
    if available is None or predicted(value) <= available:
        return
    fitting = value
    # by doubling, as a value that is named should be round
    while fitting < largest and predicted(fitting) > available:
        fitting *= 2
    remedy = f"{option}={fitting} would fit"
    if predicted(fitting) > available:
        remedy = f"no {option} would fit; use float32 or fewer classes"
    raise MemoryError(
        f"{what} needs {human_bytes(predicted(value))}, but {human_bytes(available)} are "
        f"available; {remedy}."
    )


def require_bytes(what: str, needed: float, remedy: str, available: float | None = None) -> None:
    """Raise MemoryError, with a remedy, if `what` needs more bytes than are `available`.

    Those are the processor's if they are left out.
    """
    available = available_bytes() if available is None else available
    if available is not None and needed > available:
        raise MemoryError(
            f"{what} need {human_bytes(needed)}, and {human_bytes(available)} are available; "
            f"{remedy}."
        )


def require_room(name: str, value: int, size: float) -> None:
    """Raise MemoryError where an argument asks for `size` bytes, and there are not so many."""
    # below, a look into /proc costs more than it saves
    if size >= _SMALL:
        what = f"`{name}` must leave room in the memory, got {value}: its arrays"
        require_bytes(what, size, "lower it")
