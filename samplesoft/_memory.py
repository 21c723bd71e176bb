"""Available memory, and checks that large arrays fit into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_SMALL_BYTES = 1 << 28  # bytes; smaller requests are not checked


class _ControlGroup(NamedTuple):
    """Files of one version of Linux control groups that hold memory limit and usage in bytes."""

    file_system: str
    limit: str
    usage: str
    cache: str  # entry of memory.stat: cache that the system frees before memory runs short
    default_mount: str  # mount point if /proc does not name one


_GROUPS = (
    _ControlGroup("cgroup2", "memory.max", "memory.current", "inactive_file", "sys/fs/cgroup"),
    _ControlGroup(
        "cgroup",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
        "sys/fs/cgroup/memory",
    ),
)


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the number of bytes available for new arrays, or None if the system does not say.

    The minimum over the machine and the Linux control groups of this process: a container, a
    cluster job, and all enclosing groups. `root` is the root of the file system, for tests.
    """
    fields = dict(_parse_lines(_read(root / "proc/meminfo")))
    limits = [fields["MemAvailable"] * 1024] if "MemAvailable" in fields else []
    for group in _GROUPS:
        for folder in _group_folders(root, group):
            limits += _bytes_left(folder, group)
    return min(limits, default=None)


def _bytes_left(folder: Path, group: _ControlGroup) -> list[int]:
    """Return the bytes left to a control group, as a list of one; an empty list without a limit."""
    limit = _read(folder / group.limit).strip()
    usage = _read(folder / group.usage).strip()
    if not limit.isdigit():  # "max", or empty for the root group, which has no such file
        return []
    cache = dict(_parse_lines(_read(folder / "memory.stat"))).get(group.cache, 0)
    used = max(0, int(usage) - cache) if usage.isdigit() else 0
    return [max(0, int(limit) - used)]


def _group_folders(root: Path, group: _ControlGroup) -> Iterator[Path]:
    """Yield the folders of the control group of this process and of all enclosing groups."""
    group_path = None
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(",") if group.file_system == "cgroup" else not controllers:
            group_path = path
    if group_path is None:
        return
    mount_root = "/"
    mounted = root / group.default_mount
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        system_fields = after.split()
        if len(fields) < 5 or system_fields[:1] != [group.file_system]:
            continue
        if group.file_system == "cgroup" and "memory" not in system_fields[-1].split(","):
            continue
        mount_root, mount_point = (
            re.sub(r"\\([0-7]{3})", _decode_octal, field) for field in fields[3:5]
        )
        mounted = root / mount_point.lstrip("/")
        break
    # a container may see only its own group, mounted as the root
    own_parts = [*Path(group_path).parts[1:]]
    mount_parts = [*Path(mount_root).parts[1:]]
    relative = own_parts[len(mount_parts) :] if own_parts[: len(mount_parts)] == mount_parts else []
    if ".." in relative:  # the process was moved in from another namespace
        relative = []
    for depth in range(len(relative), -1, -1):
        yield Path(mounted, *relative[:depth])


def _decode_octal(match: re.Match[str]) -> str:
    """Return the character of an octal escape, such as a space for ``040``."""
    return chr(int(match[1], 8))


def _parse_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the integer of lines such as ``MemAvailable: 10 kB``."""
    for line in text.splitlines():
        name, number, *_ = [*line.split(), "", ""]
        if number.isdigit():
            yield name.rstrip(":"), int(number)


def _read(path: Path) -> str:
    """Return the text of a file; an empty text if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def human_bytes(size: float) -> str:
    """Format a number of bytes with a unit, such as ``1.5 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000.0:
            return f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.4g} TB"


def require_fitting_option(
    subject: str,
    option: str,
    value: int,
    largest: int,
    predicted: Callable[[int], int],
    available: float | None,
) -> None:
    """Raise MemoryError if an object does not fit, and name a value of an option that would.

    The object `subject` is made with `option` = `value`; the option may grow to `largest`.
    ``predicted(value)`` returns the bytes needed, decreasing in the value. `available` is None if
    unknown.
    """
    if available is None or predicted(value) <= available:
        return
    fitting = value
    # by doubling, so that the suggested value is round
    while fitting < largest and predicted(fitting) > available:
        fitting *= 2
    remedy = f"{option}={fitting} would fit"
    if predicted(fitting) > available:
        remedy = f"no {option} would fit; use float32 or fewer classes"
    raise MemoryError(
        f"{subject} needs {human_bytes(predicted(value))}, but {human_bytes(available)} are "
        f"available; {remedy}."
    )


def require_bytes(subject: str, needed: float, remedy: str, available: float | None = None) -> None:
    """Raise MemoryError, with a remedy, if `subject` needs more bytes than are `available`.

    `available` defaults to the host's memory.
    """
    available = available_bytes() if available is None else available
    if available is not None and needed > available:
        raise MemoryError(
            f"{subject} need {human_bytes(needed)}, and {human_bytes(available)} are available; "
            f"{remedy}."
        )


def require_memory(name: str, value: int, size: float) -> None:
    """Raise MemoryError if the argument `name` = `value` needs more than the available bytes."""
    # for smaller sizes, reading /proc costs more than it saves
    if size >= _SMALL_BYTES:
        subject = f"`{name}` must leave room in the memory, got {value}: its arrays"
        require_bytes(subject, size, "lower it")
