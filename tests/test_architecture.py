"""The shape of the package: imports point one way, docstrings name the real parameters."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import samplesoft

ROOT = Path(samplesoft.__file__).parent
LAYERS = [
    {
        "_cuda",
        "_files",
        "_jit",
        "_limits",
        "_memory",
        "_names",
        "_progress",
        "_random",
        "_temperature",
        "_validation",
    },
    {"schemes"},
    {"kernels"},
    {"_device"},
    {"bias"},
    {"feature_maps", "data"},
    {"samplers"},
    {"losses"},
    {"metrics"},
    {"models"},
    {"training"},
    {"proposals", "sklearn"},
    {"verification"},
    {"commands"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def imports(path):
    tree = ast.parse((ROOT / path).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("samplesoft."):
            yield node.module.split(".")[1]


def test_there_are_modules():
    assert len(MODULES) > 20


@pytest.mark.parametrize("path", [p for p in MODULES if str(p) != "__init__.py"], ids=str)
def test_imports_never_point_up(path):
    layer = path.parts[0].removesuffix(".py")
    assert layer in RANK, f"give {layer} its place in LAYERS"
    above = [name for name in imports(path) if RANK[name] > RANK[layer]]
    assert not above, f"{path} imports {above} from a layer above it"


@pytest.mark.parametrize("name", samplesoft.__all__)
def test_docstrings_name_the_parameters_of_the_signature(name):
    thing = getattr(samplesoft, name)
    assert thing.__doc__, f"{name} has no docstring"
    if not inspect.isfunction(thing):
        return
    section = thing.__doc__.split("Parameters\n", 1)[1].split("Returns\n", 1)[0]
    margin = len(section.splitlines()[0]) - len(section.splitlines()[0].lstrip())
    documented = []
    for line in section.splitlines()[1:]:
        if " : " in line and len(line) - len(line.lstrip()) == margin:
            documented += [part.strip() for part in line.split(" : ")[0].split(",")]
    assert documented == list(inspect.signature(thing).parameters)


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, samplesoft; "
        "print([m for m in ('matplotlib', 'scipy.sparse', 'tqdm', 'lzma') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['lzma']")
