"""Available memory, and checks that large arrays fit into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_MIN_CHECKED_BYTES = 1 << 28  # `require_memory` does not check arrays of fewer bytes


class _ControlGroupFiles(NamedTuple):
    """Names of the files that hold the memory limit and usage, in one version of control groups.

    Linux control groups limit the memory of containers and cluster jobs. The files hold bytes.
    """

    file_system: str  # type of the file system, as in /proc/self/mountinfo
    limit: str  # name of the file with the memory limit
    usage: str  # name of the file with the memory in use
    # name of the entry of memory.stat for the cache, which the system frees if memory runs short
    cache: str
    default_mount: str  # folder where the files are if /proc names no mount point


_CONTROL_GROUP_VERSIONS = (
    _ControlGroupFiles("cgroup2", "memory.max", "memory.current", "inactive_file", "sys/fs/cgroup"),
    _ControlGroupFiles(
        "cgroup",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
        "sys/fs/cgroup/memory",
    ),
)


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the number of bytes available for new arrays, or None if it is unknown.

    This is the minimum of the machine's available memory and the memory left in each Linux control
    group of this process, such as a container or a cluster job. `root` is the root of the file
    system, which tests replace.
    """
    fields = dict(_names_and_integers(_read_text_or_empty(root / "proc/meminfo")))
    limits = [fields["MemAvailable"] * 1024] if "MemAvailable" in fields else []

    for group in _CONTROL_GROUP_VERSIONS:
        for folder in _control_group_folders(root, group):
            limits += _available_bytes_of_group(folder, group)
    return min(limits, default=None)


def _available_bytes_of_group(folder: Path, group: _ControlGroupFiles) -> list[int]:
    """Return the bytes left in a control group as a list of one; empty if it has no limit."""
    limit = _read_text_or_empty(folder / group.limit).strip()
    usage = _read_text_or_empty(folder / group.usage).strip()
    if not limit.isdigit():  # "max", or "" because the root group has no such file
        return []

    statistics = dict(_names_and_integers(_read_text_or_empty(folder / "memory.stat")))
    cache = statistics.get(group.cache, 0)
    used = max(0, int(usage) - cache) if usage.isdigit() else 0
    return [max(0, int(limit) - used)]


def _control_group_folders(root: Path, group: _ControlGroupFiles) -> Iterator[Path]:
    """Yield the folders of the control group of this process and of all enclosing groups."""
    group_path = None
    for line in _read_text_or_empty(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if group.file_system == "cgroup":
            is_memory_group = "memory" in controllers.split(",")
        else:
            is_memory_group = not controllers
        if is_memory_group:
            group_path = path

    if group_path is None:
        return

    mount_root = "/"
    mounted = root / group.default_mount
    for line in _read_text_or_empty(root / "proc/self/mountinfo").splitlines():
        mount_text, _, system_text = line.partition(" - ")
        fields = mount_text.split()
        system_fields = system_text.split()

        if len(fields) < 5 or system_fields[:1] != [group.file_system]:
            continue
        if group.file_system == "cgroup" and "memory" not in system_fields[-1].split(","):
            continue

        mount_root, mount_point = (
            re.sub(r"\\([0-7]{3})", _decode_octal, field) for field in fields[3:5]
        )
        mounted = root / mount_point.lstrip("/")
        break

    # a container may see only the files of its own group, mounted as the root
    own_parts = [*Path(group_path).parts[1:]]
    mount_parts = [*Path(mount_root).parts[1:]]
    relative = own_parts[len(mount_parts) :] if own_parts[: len(mount_parts)] == mount_parts else []
    if ".." in relative:  # the process was moved in from another namespace
        relative = []

    for depth in range(len(relative), -1, -1):
        yield Path(mounted, *relative[:depth])


def _decode_octal(match: re.Match[str]) -> str:
    r"""Return the character for a matched octal escape: a space for ``\040``."""
    return chr(int(match[1], 8))


def _names_and_integers(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the integer in each line such as ``MemAvailable: 10 kB``."""
    for line in text.splitlines():
        name, number, *_ = [*line.split(), "", ""]
        if number.isdigit():
            yield name.rstrip(":"), int(number)


def _read_text_or_empty(path: Path) -> str:
    """Return the text of a file, or an empty text if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def human_bytes(size: float) -> str:
    """Return a number of bytes as text with a unit, such as ``1.5 GB``."""
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
    """Raise MemoryError if an object does not fit in memory when an option has the value `value`.

    ``predicted(value)`` returns the bytes that the object needs, fewer for a larger value. The
    error suggests a larger value, below ``2 * largest``, for which the object fits. `available` is
    the number of available bytes; if it is None, nothing is checked. Errors call the object
    `subject`, and the option `option`.
    """
    if available is None or predicted(value) <= available:
        return

    fitting = value
    # double until it fits: the exact minimum would be an odd value, such as 1,387
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
    """Raise MemoryError if `needed` bytes are more than the `available` bytes.

    The message begins with `subject` and ends with `remedy`. `available` defaults to the memory of
    the host.
    """
    available = available_bytes() if available is None else available
    if available is not None and needed > available:
        raise MemoryError(
            f"{subject} need {human_bytes(needed)}, and {human_bytes(available)} are available; "
            f"{remedy}."
        )


def require_memory(name: str, value: int, size: float) -> None:
    """Raise MemoryError if `size` bytes do not fit in memory.

    The error says that the argument `name`, with the value `value`, needs them.
    """
    # do not check smaller arrays, because reading /proc would take longer than making them
    if size >= _MIN_CHECKED_BYTES:
        subject = f"`{name}` must leave room in the memory, got {value}: its arrays"
        require_bytes(subject, size, "lower it")
