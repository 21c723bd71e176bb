"""The shape of the package: imports point one way, and nothing is loaded before it is used."""

import ast
import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import samplesoft

ROOT = Path(samplesoft.__file__).parent
LAYERS = [
    {
        "_cached",
        "_cuda",
        "_executors",
        "_files",
        "_interrupts",
        "_jit",
        "_kernel_cache",
        "_kernel_compiler",
        "_limits",
        "_memory",
        "_progress",
        "_random",
        "_moving_average",
        "_temperature",
        "_validation",
    },
    {"schemes", "reports"},
    {"kernels"},
    {"_device"},
    {"feature_maps", "data"},
    {"samplers"},
    {"losses"},
    {"search"},
    {"metrics"},
    {"optimizers"},
    {"models"},
    {"distributed"},
    {"training"},
    {"bias"},
    {"verification"},
    {"checking", "teaching", "tuning"},
    {"recommend", "sklearn"},
    {"commands"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
MOST_WITH_ONE_IMPORTER = 47  # modules
MOST_EXPORTED_NAMES = 12  # functions and classes of `samplesoft` itself; more stand in its rooms


# what a layer may import beside itself, where that is less than all the layers under it
ONLY = {
    "bias": {
        *LAYERS[0],
        "schemes",
        "kernels",
        "_device",
        "samplers.base",
        "samplers.without_replacement",
    }
}


def file(name):
    return Path(name.replace(".", "/") + ".py")


def imports(source):
    """Yield the modules of the package that a source text imports, anywhere and in any form."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "samplesoft":  # a module, or a name that the package shows
                homes = samplesoft._MODULE_OF
                yield from (homes.get(alias.name, alias.name) for alias in node.names)
            elif node.module.startswith("samplesoft."):
                package = node.module.removeprefix("samplesoft.")
                for name in (f"{package}.{alias.name}" for alias in node.names):
                    yield name if file(name) in MODULES else package
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("samplesoft"):
                    yield alias.name.removeprefix("samplesoft").removeprefix(".") or "cli"
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            name = getattr(node.args[0], "value", None)
            if isinstance(name, str) and name.startswith("samplesoft."):
                yield name.removeprefix("samplesoft.")


def wrong_imports(layer, source):
    assert layer in RANK, f"give {layer} its place in LAYERS"
    wrong = []
    for name in imports(source):
        first = name.split(".")[0]
        only = ONLY.get(layer)
        if first == layer or first.startswith("__"):  # the version
            continue
        if RANK[first] > RANK[layer] or only and not {first, name} & only:
            wrong.append(name)
    return wrong


def files_imported(source):
    """Yield the files that a source text imports, for annotations too, as in `MODULES`."""
    for name in imports(source):
        yield from {file(name), file(f"{name}.__init__")} & set(MODULES)


def loops(graph):
    """Return the nodes of a graph that can be reached from themselves."""
    reached = {node: set(after) - {node} for node, after in graph.items()}
    for through in graph:
        for after in reached.values():
            if through in after:
                after |= reached[through]
    return sorted(str(node) for node, after in reached.items() if node in after)


def test_no_module_imports_itself_through_others():
    """Not even inside functions: what two modules both need is a module below them."""
    graph = {path: set(files_imported((ROOT / path).read_text())) for path in MODULES}
    for path, after in graph.items():  # a file and its part for a GPU, which loads it, are one
        after.discard(path.with_stem(f"{path.stem}_cuda"))
    del graph[Path("__init__.py")]  # which finds every public name, when it is asked for
    assert sum(map(len, graph.values())) > 500
    assert not loops(graph)


def test_a_loop_is_found():
    late = "def f():\n    from samplesoft._device import cpu"
    found = set(files_imported(late)) | set(files_imported("from samplesoft.bias import inputs"))
    assert {str(path) for path in found} == {"_device/cpu.py", "bias/inputs.py"}
    assert loops({1: {2}, 2: {3}, 3: {1}, 4: {1}}) == ["1", "2", "3"]


def with_one_importer(graph):
    """Return the modules that one other module imports: paragraphs of that module.

    The ``__init__.py`` of a folder is none: it says what the folder shows.
    """
    importers = Counter(str(module) for after in graph.values() for module in after)
    alone = {module for module, number in importers.items() if number == 1}
    return sorted(module for module in alone if not module.endswith("__init__.py"))


def test_few_modules_have_one_importer():
    """A reader who follows one idea should not have to open a file for each of its paragraphs."""
    graph = {path: {*files_imported((ROOT / path).read_text())} - {path} for path in MODULES}
    assert len(with_one_importer(graph)) <= MOST_WITH_ONE_IMPORTER
    graph = {"a": {"c"}, "b": {"c", "d"}, "c": {"d"}, "d": {"e", "f/__init__.py"}}
    assert with_one_importer(graph) == ["e"]


def test_the_package_itself_exports_few_names():
    exported = [name for name in samplesoft.__all__ if callable(getattr(samplesoft, name))]
    assert len(exported) <= MOST_EXPORTED_NAMES


def test_there_are_modules():
    assert len(MODULES) > 20


def test_imports_never_point_up():
    wrong = {
        str(path): wrong_imports(path.parts[0].removesuffix(".py"), (ROOT / path).read_text())
        for path in MODULES
        if str(path) != "__init__.py"
    }
    assert not {path: names for path, names in wrong.items() if names}, "from above, see LAYERS"


@pytest.mark.parametrize(
    "source",
    [
        "from samplesoft import training",
        "from samplesoft import exact_bias",
        "import samplesoft.training.run_folder as run",
        "def f():\n    from samplesoft.training.run_folder import Run",
        "from importlib import import_module\nimport_module('samplesoft.training')",
    ],
)
def test_an_import_that_points_up_is_found_in_every_form(source):
    assert wrong_imports("losses", source)
    assert not wrong_imports("commands", source)


def test_bias_imports_foundations_only():
    assert wrong_imports("bias", "from samplesoft.samplers.tree import walk")
    assert not wrong_imports("bias", "from samplesoft.samplers.base import Sampler")


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_back_ends_have_the_same_functions():
    """Those that `Backend` names; where both write one, its arguments have the same names."""
    tree = ast.parse((ROOT / "_device/__init__.py").read_text())
    wanted = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    names = {getattr(node, "name", None) or node.target.id for node in wanted[1:]}
    cpu, cuda = (defined((ROOT / f"_device/{name}.py").read_text()) for name in ("cpu", "cuda"))
    assert names <= set(cpu) & set(cuda) and len(names) > 20
    both = [name for name in names if cpu[name] and cuda[name]]
    assert {name: cpu[name] for name in both} == {name: cuda[name] for name in both}
    assert len(both) > 10
    assert defined("def f(a, b): pass\ng = f\nimport x as y") == {"f": ["a", "b"], "g": [], "y": []}


def defined(source):
    """Return the names that a source text defines, with the arguments of functions."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = [argument.arg for argument in node.args.args]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname: [] for alias in node.names if alias.asname}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: [] for target in targets}
    return found


def test_there_is_one_way_onto_a_gpu():
    """Modules with kernels for one are imported by each other, and by what chooses a back end."""
    ways = {
        str(path)
        for path in MODULES
        if "cuda" not in path.name
        and any(name.endswith("cuda") for name in imports((ROOT / path).read_text()))
    }
    # the last hands a whole pass of a loss over; `select` copies from a GPU
    assert ways == {"_device/__init__.py", "_device/select.py", "losses/sampled.py"}


def test_importing_the_package_loads_nothing_else():
    """A bare import takes milliseconds: even NumPy and Numba come with the first name."""
    code = "import sys, samplesoft; print([m for m in sys.modules if m.startswith('samplesoft.')])"
    assert run_python(code) == "[]"
    heavy = "('numpy', 'numba', 'scipy', 'matplotlib', 'tqdm')"
    code = f"import sys, samplesoft; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_the_bias_and_the_samplers_load_nothing_heavy():
    code = (
        # scipy.special of SciPy 1.13 loads scipy.sparse itself
        "import sys, scipy.special; before = set(sys.modules); "
        "import samplesoft; samplesoft.verify, samplesoft.samplers.KernelTree; loaded = "
        "set(sys.modules) - before; "
        "print([m for m in ('matplotlib', 'scipy.sparse', 'tqdm', 'numba.cuda') if m in loaded])"
    )
    assert run_python(code) == "[]"


@pytest.mark.slow
def test_eager_import_loads_every_public_name():
    """``EAGER_IMPORT`` of SPEC 1: a test wants to know at once what cannot be loaded."""
    code = """
import os
os.environ["EAGER_IMPORT"] = "1"
import samplesoft
print([name for name in samplesoft.__all__ if name not in vars(samplesoft)])
"""
    assert run_python(code) == "[]"


@pytest.mark.slow
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


def test_random_numbers_have_one_name():
    """It is ``rng`` (SPEC 7), but for the recommender, which has implicit's interface."""
    others = {"seed", "random_state", "random_seed", "generator", "prng"}
    found, named = set(), 0
    for room in map(samplesoft.__getattr__, samplesoft._MODULES):
        for name in getattr(room, "__all__", dir(room)):
            thing = getattr(room, name)
            if inspect.isfunction(thing) or (inspect.isclass(thing) and not name.startswith("_")):
                arguments = inspect.signature(thing).parameters
                named += "rng" in arguments
                found |= {name} if others & set(arguments) else set()
    # settings of a run are kept as JSON, which holds no generator
    assert found == {"SampledSoftmaxRecommender", "RetrievalSettings"} and named >= 15


def test_public_modules_are_reached_from_the_package():
    found = {path.parts[0].removesuffix(".py") for path in MODULES}
    public = {name for name in found if not name.startswith("_")}
    assert public - {"cli", "commands", "kernels", "reports", "search", "sklearn"} <= set(
        samplesoft.__all__
    )


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
    assert {name: home for name, home in seen.items() if home} == samplesoft._MODULE_OF
    assert {*seen, "__version__"} == {*samplesoft.__all__, "sklearn"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'exact_bais'"):
        samplesoft.exact_bais  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("absent", [False, True])
def test_the_classifier_waits_until_it_is_named(absent):
    """A star import keeps the name ``sklearn``, and nothing else fails without scikit-learn."""
    code = f"""
import inspect, pydoc, sys
if {absent}:
    sys.modules["sklearn"] = None
sklearn = "mine"
from samplesoft import *
import samplesoft
assert sklearn == "mine"
inspect.getmembers(samplesoft)
pydoc.render_doc(samplesoft)
assert hasattr(samplesoft, "sklearn") is not {absent}
for sentence in ("samplesoft.sklearn", "from samplesoft import sklearn"):
    try:
        exec(sentence)
    except (AttributeError, ImportError) as error:
        print(type(error).__name__, "pip install scikit-learn" in str(error))
"""
    assert run_python(code) == ("AttributeError True\nImportError True" if absent else "")
