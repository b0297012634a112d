"""How much memory this process may still take: the machine's, or its container's if that is less.

MemAvailable counts what the kernel can give back at once, such as file caches.
"""

import os
from pathlib import Path

_UNKNOWN = 1 << 62


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated without swapping; a very large number where nobody tells."""
    return min(_machine(proc), _control_group(cgroup))


def _machine(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # no /proc: all memory there is, which the operating system will page for us
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _UNKNOWN


def _control_group(cgroup: Path) -> int:
    """What is left of the container's limit: control groups of version 2, then of version 1."""
    pairs = (
        ("memory.max", "memory.current", "memory.stat"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
        ),
    )
    for limit_name, used_name, stat_name in pairs:
        try:
            limit = int((cgroup / limit_name).read_text(encoding="ascii"))
            used = int((cgroup / used_name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return max(0, limit - used + _reclaimable(cgroup / stat_name))
    return _UNKNOWN


def _reclaimable(stat: Path) -> int:
    """File caches that count as used but are dropped when memory is needed."""
    try:
        rows = [line.split() for line in stat.read_text(encoding="ascii").splitlines()]
        return sum(
            int(row[1]) for row in rows if row[0] in ("inactive_file", "total_inactive_file")
        )
    except (OSError, ValueError, IndexError):
        return 0
