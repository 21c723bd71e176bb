"""What git tracks: text and small pictures, nothing downloaded, no paths of one machine."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_BYTES = 1_000_000
LARGER: set[str] = set()  # files that may have more, by name
ARCHIVES = re.compile(r"\.(whl|egg|tar|t?gz|t?bz2|t?xz|zst|zip|7z|rar|jar|npz|npy|pkl|so|dll|pyc)$")
FOLDERS = "|".join(("home", "Users", "root", "tmp", "work", "opt", "mnt", "srv"))
MACHINE_PATH = re.compile(rf"(?<![\w.~}}\])])/({FOLDERS})/\w|\b[A-Z]:\\+(Users|Temp)")
PICTURES = {".png"}


def tracked():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    assert "pyproject.toml" in names
    return [name for name in names if (ROOT / name).exists()]  # else it is being removed


def too_large(name, size):
    return size > MAX_BYTES and name not in LARGER


def test_files_are_small_or_listed():
    sizes = {name: (ROOT / name).stat().st_size for name in tracked()}
    assert not [name for name, size in sizes.items() if too_large(name, size)]
    assert sizes.keys() >= LARGER
    assert too_large("data.csv", MAX_BYTES + 1)


def test_nothing_is_packed_or_compiled():
    assert not [name for name in tracked() if ARCHIVES.search(name.lower())]
    for name in ("numpy-2.4.whl", "a/b.tar.gz", "data.ZIP", "x.tgz"):
        assert ARCHIVES.search(name.lower())


def test_no_paths_of_a_machine():
    found = []
    for name in tracked():
        if Path(name).suffix not in PICTURES:
            text = (ROOT / name).read_text(encoding="utf-8")
            found += [(name, match[0]) for match in MACHINE_PATH.finditer(text)]
    assert not found
    for folder, user in (("/home/", "ada"), ("/tmp/", "x"), ("C:\\", "Users")):
        assert MACHINE_PATH.search(f"see {folder}{user}")
    assert not MACHINE_PATH.search("of the home/work ratio, https://host.example/work/page")
