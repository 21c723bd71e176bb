"""The installed package: found from any folder, typed, and tested with what `test` installs."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import numba
import pytest

import samplesoft
from samplesoft._jit import njit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# names of modules that are not those of their packages
MODULES = {"scikit-learn": "sklearn", "pytest-xdist": "xdist", "python-flint": "flint"}
BROUGHT = {"joblib", "llvmlite", "samplesoft"}  # by scikit-learn, by Numba, and this very package
OPTIONAL = {"torch", "nvidia"}  # where they are missing, tests are skipped


def installed_from_here():
    texts = [found.read_text("direct_url.json") for found in distributions(name="samplesoft")]
    origins = [json.loads(text) for text in texts if text]
    return any(
        origin["url"] == ROOT.as_uri() and origin.get("dir_info", {}).get("editable", False)
        for origin in origins
    )


from_here = pytest.mark.skipif(
    not installed_from_here(), reason="needs pip install -e of this very folder"
)


@from_here
def test_the_version_is_that_of_the_project_file():
    assert samplesoft.__version__ == PROJECT["version"], "pip install -e . once more"


@from_here
@pytest.mark.parametrize("script", [False, True])
def test_found_from_the_folder_that_contains_the_clone(script, tmp_path):
    """There `samplesoft` is also a folder without ``__init__.py``, which must not win."""
    (tmp_path / "samplesoft").symlink_to(ROOT)
    code = "import samplesoft; print(samplesoft.exact_bias.__name__, samplesoft.__version__)"
    (tmp_path / "script.py").write_text(code)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [sys.executable, *(["script.py"] if script else ["-c", code])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["exact_bias", PROJECT["version"]], done.stderr


def test_types_are_part_of_the_package():
    assert (Path(samplesoft.__file__).parent / "py.typed").exists()


def test_kernels_compile_where_no_folder_can_hold_a_cache(monkeypatch):
    """As in a container whose files cannot be written: each process compiles for itself."""
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])

    def double(x):
        return 2 * x

    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(double)
    assert njit(double)(4) == 8


def test_other_files_say_what_the_project_file_says():
    """The version, and in the recipe for conda what is needed at least."""
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    recipe = (ROOT / ".github" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    bibtex = (ROOT / "docs" / "cite.md").read_text(encoding="utf-8")
    version = PROJECT["version"]
    assert f"{{Version {version}}}" in bibtex
    assert f"\nversion: {version}\n" in citation and f'version: "{version}"\n' in recipe
    assert f"\n## [{version}]" in changelog
    names = {
        "matplotlib": "matplotlib-base",
        "dask[array]": "dask-core",
        "numba-cuda[cu12]": "numba-cuda",
    }
    extras = PROJECT["optional-dependencies"]
    for need in PROJECT["dependencies"] + extras["sklearn"] + extras["dask"] + extras["cuda12"]:
        name, least = need.split(">=")
        assert f"- {names.get(name, name)} >={least}\n" in recipe
    assert f'python_min: "{PROJECT["requires-python"].removeprefix(">=")}"' in recipe


def test_advice_names_packages_that_can_be_had():
    """Not ``samplesoft[extra]``, which no index has before a release, but what the extra brings."""
    extras = PROJECT["optional-dependencies"]
    named = ("sklearn", "dask", "certified", "cuda12", "cuda13")
    brought = {need.split(">")[0] for extra in named for need in extras[extra]}
    advised = set()
    for path in (ROOT / "samplesoft").rglob("*.py"):
        for line in re.findall(r"pip install ([^.;\"]*)", path.read_text(encoding="utf-8")):
            advised |= {word.strip("'") for word in line.split() if word.strip("'") != "or"}
    assert advised <= brought and len(advised) >= 4


def test_the_program_ends_well_at_interrupts():
    """It starts where they are heard before NumPy and Numba are imported."""
    assert PROJECT["scripts"] == {"samplesoft": "samplesoft.__main__:main"}


def needed(*extras):
    """Return the modules that an install with `extras` brings, without what those bring."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras)]
    names = [entry.split(">")[0].split("[")[0] for entries in lists for entry in entries]
    return {MODULES.get(name, name) for name in names}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("folder", ["samplesoft", "tests"])
def test_what_is_imported_is_declared(folder):
    """The tests run with the extra `test` alone, though developers have more."""
    known = needed("sklearn", "certified") | BROUGHT | OPTIONAL | set(sys.stdlib_module_names)
    if folder == "tests":
        known |= needed("test", "dask")
        known |= {
            path.stem
            for place in ("tests", "figures", "docs/howto")
            for path in (ROOT / place).iterdir()
        }
    apart = {"benchmarks", "campaign", "mutation"}  # run by hand, with what their first lines name
    paths = [path for path in (ROOT / folder).rglob("*.py") if not apart & set(path.parts)]
    assert len(paths) > 50
    assert {name for path in paths for name in imported(path)} <= known
