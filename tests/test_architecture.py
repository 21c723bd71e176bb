"""The shape of the package: imports point one way, docstrings name the real parameters."""

import ast
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import samplesoft

ROOT = Path(samplesoft.__file__).parent
LAYERS = [
    {
        "_cuda",
        "_cuda_simulator",
        "_files",
        "_jit",
        "_limits",
        "_memory",
        "_names",
        "_progress",
        "_random",
        "_tables",
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


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_else():
    """A bare import takes milliseconds: even NumPy and Numba come with the first name."""
    code = "import sys, samplesoft; print([m for m in sys.modules if m.startswith('samplesoft.')])"
    assert run_python(code) == "[]"
    heavy = "('numpy', 'numba', 'scipy', 'matplotlib', 'tqdm')"
    code = f"import sys, samplesoft; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_the_bias_and_the_samplers_load_nothing_heavy():
    code = (
        "import sys, samplesoft; samplesoft.verify, samplesoft.exact_bias, samplesoft.KernelTree; "
        "print([m for m in ('matplotlib', 'scipy.sparse', 'tqdm') if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_every_public_name_comes_first_after_a_bare_import():
    """Each name is the first that a new process asks for: no import waits for another one."""
    code = """
import sys
import samplesoft
for name in samplesoft.__all__:
    for module in [m for m in sys.modules if m.split(".")[0] == "samplesoft"]:
        del sys.modules[module]
    import samplesoft
    assert getattr(samplesoft, name) is not None and name in dir(samplesoft), name
"""
    assert run_python(code) == ""


def test_public_modules_are_reached_from_the_package():
    found = {path.parts[0].removesuffix(".py") for path in MODULES}
    public = {name for name in found if not name.startswith("_")}
    assert public - {"cli", "commands", "kernels"} <= set(samplesoft.__all__)


def test_type_checkers_and_python_see_the_same_names():
    """The imports for type checkers in ``__init__.py`` name what ``__getattr__`` loads."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: "" if node.module == "samplesoft" else node.module.removeprefix("samplesoft.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name: home for name, home in seen.items() if home} == samplesoft._HOMES
    assert {*seen, "__version__"} == set(samplesoft.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'exact_bais'"):
        samplesoft.exact_bais  # noqa: B018


def test_the_version_is_that_of_the_project_file():
    path = ROOT.parent / "pyproject.toml"
    version = tomllib.loads(path.read_text())["project"]["version"]
    assert samplesoft.__version__ == version
