"""How much memory is left, as far as the system tells."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")


def available_bytes() -> int | None:
    """Return the bytes that new arrays may take, or None where the system does not say.

    The less of what the machine has left and what its container may hold in all.
    """
    known = []
    if _MEMINFO.exists():
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        if "MemAvailable" in fields:
            known.append(int(fields["MemAvailable"].split()[0]) * 1024)
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
