"""What is left of the memory: of the machine, and of the control groups that a process is in."""

import pytest

from samplesoft._memory import available_bytes

MACHINE = "MemTotal: 64000000 kB\nMemFree: 100 kB\nMemAvailable: 32000000 kB\nHugePages_Free: 0\n"
NONE = 9223372036854771712  # of version 1
V2_MOUNT = "30 23 0:26 {top} {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:28 {top} {at} rw - cgroup cgroup rw,memory\n"
)


def system(root, files):
    for name, text in {"proc/meminfo": MACHINE, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_bytes(root)


def v2(folder, limit, usage=0, cache=0):
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\nfile {cache + 9}\ninactive_file {cache}\n",
    }


def v1(folder, limit, usage=0, cache=0):
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cache}\n",
    }


def place_v2(path, top="/", at="/sys/fs/cgroup"):
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": V2_MOUNT.format(top=top, at=at),
    }


def place_v1(path, top="/", at="/sys/fs/cgroup/memory"):
    return {
        "proc/self/cgroup": f"5:cpu,cpuacct:/other\n4:memory:{path}\n1:name=systemd:/x\n",
        "proc/self/mountinfo": V1_MOUNTS.format(top=top, at=at),
    }


def test_the_machine_alone(tmp_path):
    assert system(tmp_path, {}) == 32000000 * 1024


def test_a_system_that_does_not_say(tmp_path):
    assert available_bytes(tmp_path) is None


@pytest.mark.parametrize("usage", [0, 3 << 30])
def test_the_group_of_the_process_and_not_the_root(tmp_path, usage):
    """Of a job under Slurm or systemd: the root has no limit."""
    files = place_v2("/system.slice/job.scope")
    files |= v2("sys/fs/cgroup/system.slice/job.scope", 8 << 30, usage)
    assert system(tmp_path, files) == (8 << 30) - usage


@pytest.mark.parametrize("inner", ["max", 16 << 30])
def test_the_group_around_may_have_less(tmp_path, inner):
    files = place_v2("/pod/container")
    files |= v2("sys/fs/cgroup/pod/container", inner, 1 << 30)
    files |= v2("sys/fs/cgroup/pod", 6 << 30, 2 << 30)
    assert system(tmp_path, files) == 4 << 30


@pytest.mark.parametrize(
    ("place", "group", "folder"),
    [(place_v2, v2, "sys/fs/cgroup/a"), (place_v1, v1, "sys/fs/cgroup/memory/a")],
)
def test_files_that_the_system_keeps_are_not_in_the_way(tmp_path, place, group, folder):
    files = place("/a") | group(folder, 4 << 30, 3 << 30, cache=1 << 30)
    assert system(tmp_path, files) == 2 << 30


@pytest.mark.parametrize(
    ("place", "group", "folder"),
    [(place_v2, v2, "sys/fs/cgroup/a"), (place_v1, v1, "sys/fs/cgroup/memory/a")],
)
def test_a_group_that_is_full_has_nothing_left(tmp_path, place, group, folder):
    assert system(tmp_path, place("/a") | group(folder, 1 << 30, 2 << 30)) == 0


def test_version_1(tmp_path):
    files = place_v1("/docker/abc")
    files |= v1("sys/fs/cgroup/memory/docker/abc", NONE, 1 << 30)
    files |= v1("sys/fs/cgroup/memory/docker", 5 << 30, 2 << 30)
    files |= v1("sys/fs/cgroup/memory", NONE, 9 << 30)
    assert system(tmp_path, files) == 3 << 30


def test_no_limit_of_version_1(tmp_path):
    files = place_v1("/") | v1("sys/fs/cgroup/memory", NONE, 9 << 30)
    assert system(tmp_path, files) == 32000000 * 1024


@pytest.mark.parametrize(
    ("place", "group", "at"),
    [(place_v2, v2, "sys/fs/cgroup"), (place_v1, v1, "sys/fs/cgroup/memory")],
)
def test_a_container_that_sees_its_own_group_alone(tmp_path, place, group, at):
    """Be its name that of the host or not, with a space or not."""
    for path, top in (("/docker/abc", "/docker/abc"), ("/", "/"), ("/../x", "/"), ("/gone", "/")):
        files = place(path, top) | group(at, 3 << 30, 1 << 30)
        assert system(tmp_path, files) == 2 << 30
    files = place("/a b/c", "/a\\040b", "/run/my\\040groups") | group("run/my groups/c", 7)
    assert system(tmp_path, files) == 7


def test_both_versions_at_once(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/old\n0::/new\n",
        "proc/self/mountinfo": V1_MOUNTS.format(top="/", at="/sys/fs/cgroup/memory")
        + V2_MOUNT.format(top="/", at="/sys/fs/cgroup/unified"),
    }
    files |= v1("sys/fs/cgroup/memory/old", 6 << 30)
    assert system(tmp_path, files) == 6 << 30
    assert system(tmp_path, v2("sys/fs/cgroup/unified/new", 5 << 30)) == 5 << 30


def test_without_a_list_of_what_is_mounted(tmp_path):
    files = {"proc/self/cgroup": "0::/a\n"} | v2("sys/fs/cgroup/a", 1000)
    assert system(tmp_path, files) == 1000


@pytest.mark.parametrize("damaged", ["", "x", "0::", "4:memory", "\n\n", "-5"])
def test_what_cannot_be_read_is_passed_over(tmp_path, damaged):
    names = ("proc/self/cgroup", "proc/self/mountinfo", "sys/fs/cgroup/memory.max")
    assert system(tmp_path, dict.fromkeys(names, damaged)) == 32000000 * 1024
