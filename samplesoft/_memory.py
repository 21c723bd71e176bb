"""How much memory is left, as far as the system tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_SMALL_BYTES = 1 << 28  # bytes that are there, without a look


class _Group(NamedTuple):
    """The files of a version of control groups in which limit and usage stand, in bytes."""

    kind: str  # of file system
    limit: str
    usage: str
    cache: str  # in memory.stat: what the system gives up before it says that memory is short
    mounted: str  # where it is, if /proc does not say


_GROUPS = (
    _Group("cgroup2", "memory.max", "memory.current", "inactive_file", "sys/fs/cgroup"),
    _Group(
        "cgroup",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
        "sys/fs/cgroup/memory",
    ),
)


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes that new arrays may take, or None where the system does not say.

    The least of what is left to the machine, and to each of the control groups of Linux that this
    process is in: a container, a job of a cluster, and the groups around it. `root` is where the
    file system begins.
    """
    fields = dict(_pairs(_read(root / "proc/meminfo")))
    known = [fields["MemAvailable"] * 1024] if "MemAvailable" in fields else []
    for group in _GROUPS:
        for folder in _folders(root, group):
            known += _left(folder, group)
    return min(known, default=None)


def _left(folder: Path, group: _Group) -> list[int]:
    """Return what is left to a control group, or nothing where it has no limit."""
    limit = _read(folder / group.limit).strip()
    usage = _read(folder / group.usage).strip()
    if not limit.isdigit():  # such as max, or that of the root, which has no file
        return []
    cache = dict(_pairs(_read(folder / "memory.stat"))).get(group.cache, 0)
    used = max(0, int(usage) - cache) if usage.isdigit() else 0
    return [max(0, int(limit) - used)]


def _folders(root: Path, group: _Group) -> Iterator[Path]:
    """Yield where the group of this process and those around it have their files."""
    own = None
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(",") if group.kind == "cgroup" else not controllers:
            own = path
    if own is None:
        return
    top = "/"
    mounted = root / group.mounted
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        of_system = after.split()
        if len(fields) < 5 or of_system[:1] != [group.kind]:
            continue
        if group.kind == "cgroup" and "memory" not in of_system[-1].split(","):
            continue
        top, place = (re.sub(r"\\([0-7]{3})", _character, field) for field in fields[3:5])
        mounted = root / place.lstrip("/")
        break
    # a container may see its own group alone, as the root of what is mounted
    inside = [*Path(own).parts[1:]]
    around = [*Path(top).parts[1:]]
    below = inside[len(around) :] if inside[: len(around)] == around else []
    if ".." in below:  # the group of a process that has come from outside
        below = []
    for depth in range(len(below), -1, -1):
        yield Path(mounted, *below[:depth])


def _character(match: re.Match[str]) -> str:
    """Return the character that stands in octal digits, such as a space."""
    return chr(int(match[1], 8))


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    """Yield names and whole numbers of lines such as ``MemAvailable: 10 kB``."""
    for line in text.splitlines():
        name, number, *_ = [*line.split(), "", ""]
        if number.isdigit():
            yield name.rstrip(":"), int(number)


def _read(path: Path) -> str:
    """Return a text, empty where there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def human_bytes(size: float) -> str:
    """Return a size for people, such as ``1.5 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000.0:
            return f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.4g} TB"


def require_fitting_option(
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


def require_memory(name: str, value: int, size: float) -> None:
    """Raise MemoryError where an argument asks for `size` bytes, and there are not so many."""
    # below, a look into /proc costs more than it saves
    if size >= _SMALL_BYTES:
        what = f"`{name}` must leave room in the memory, got {value}: its arrays"
        require_bytes(what, size, "lower it")
