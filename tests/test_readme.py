"""The documents keep their promises: Python runs in order, commands parse, links lead somewhere."""

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from documents import blocks, run

from samplesoft.cli import build_parser
from samplesoft.feature_maps import FEATURE_MAPS
from samplesoft.losses import LOSSES
from samplesoft.samplers import SAMPLERS
from samplesoft.schemes import SCHEMES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
DOCUMENTS = [
    README,
    *DOCS,
    ROOT / "CHANGELOG.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    ROOT / "notebooks" / "README.md",
]
MOST_LINES = 150  # of the README: what is longer stands in docs/


def name_of(path):
    return str(path.relative_to(ROOT))


each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)


def read(path):
    return path.read_text(encoding="utf-8")


def on_a_gpu(block):
    return 'device="cuda"' in block.text


def on_other_data(block):
    """Whether a block reads data that readers have to fetch; a stand-in shows that it runs."""
    return "bibtex_train.txt" in block.text


def needs_flint(block):
    """Whether a block computes with balls."""
    return "from flint import" in block.text


def python_blocks(path):
    return [block for block in blocks(read(path)) if block.language == "python"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in an empty folder, and take what is registered out of the registries again."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        examples = "".join(f"{k % 7} {k % 7}:1\n" for k in range(20))
        (tmp_path / f"bibtex_{part}.txt").write_text(f"20 7 7\n{examples}")
    registries = FEATURE_MAPS, LOSSES, SAMPLERS, SCHEMES
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


with_python = pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if python_blocks(path)], ids=name_of
)


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
@with_python
def test_python_runs_as_printed(path):
    namespace = {"__name__": "readme"}
    for block in python_blocks(path):
        if needs_flint(block) and find_spec("flint") is None:
            continue
        if not on_a_gpu(block):
            printed = run(block, namespace, str(path))
            if on_other_data(block):
                assert printed.count("\n") == block.output.count("\n")
            elif block.output is not None:
                assert printed == block.output, f"output of the block at line {block.line}"


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.usefixtures("elsewhere")
@with_python
def test_python_for_a_gpu_runs_as_printed(path):
    from numba import config

    if config.ENABLE_CUDASIM:
        pytest.skip("100,000 classes would take the simulator hours; it needs an NVIDIA GPU")
    if not any(map(on_a_gpu, python_blocks(path))):
        pytest.skip("has no block for a GPU")
    namespace = {"__name__": "readme"}
    for block in python_blocks(path):
        run(block, namespace, str(path))


def test_python_blocks_show_their_output():
    """A block that prints numbers which do not depend on the machine shows them."""
    for path in (README, *DOCS):
        shown = [block.output is not None for block in python_blocks(path)]
        assert sum(shown) >= 0.75 * len(shown) - 1, path


def test_the_readme_is_short():
    assert read(README).count("\n") <= MOST_LINES


def test_wrong_output_is_noticed():
    (block,) = blocks("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert run(block, {}, "test") != block.output == "3\n"


def shell_lines():
    for path in DOCUMENTS:
        for block in blocks(read(path)):
            if block.language == "sh":
                for line in block.text.splitlines():
                    for command in line.split("&&"):
                        words = shlex.split(command, comments=True)
                        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                            words = words[1:]  # a variable of the environment
                        if words:
                            yield pytest.param(words, id=f"{name_of(path)}: {command.strip()[:60]}")


@pytest.mark.parametrize("words", [*shell_lines()])
def test_shell_command_exists(words, capsys):
    name, *arguments = [re.sub(r"^\.venv/bin/", "", word) for word in words]
    if name == "samplesoft":
        if "-h" in arguments:
            with pytest.raises(SystemExit) as done:
                build_parser(arguments).parse_args(arguments)
            assert done.value.code == 0
        else:
            build_parser(arguments).parse_args(arguments)
    elif name in ("python", "python3") and arguments[0] == "-m":
        assert arguments[1] in ("build", "venv", "pip", "pytest", "samplesoft.teaching")
    elif name == "python":
        assert (ROOT / arguments[0]).is_file()
    elif name not in ("cd", "find", "git"):
        tools = (
            "cffconvert",
            "hatch",
            "jupyter",
            "mypy",
            "pip",
            "pytest",
            "ruff",
            "sp-repo-review",
        )
        assert name in (".ci/run", *tools)
    extras = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for extra in re.findall(r"\.\[([\w,]+)\]", " ".join(arguments)):
        assert set(extra.split(",")) <= set(extras)
    for place in arguments:
        if place.split("/")[0] in ("tests", "samplesoft", "figures", "notebooks"):
            assert (ROOT / place.split("::")[0]).exists(), place


@each_document
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", read(path), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", read(file), flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, target


@pytest.mark.parametrize("folder", ["howto", "theory"])
def test_the_first_page_names_every_page(folder):
    index = ROOT / "docs" / folder / "index.md"
    named = set(re.findall(r"\]\(([\w-]+\.md)[)#]", read(index)))
    pages = {path.name for path in index.parent.glob("*.md")}
    assert pages - named <= {"index.md", "derivation.md"}  # the last is README.md of bias/


def test_names_in_the_glossary_exist():
    """Names in code of the glossary are words of the package."""
    table = read(ROOT / "docs" / "glossary.md")
    source = "".join(read(path) for path in (ROOT / "samplesoft").rglob("*.py"))
    names = re.findall(r"`([A-Za-z_]+)=?`", table)
    assert len(names) > 15
    assert not [name for name in names if not re.search(rf"\b{name}\b", source)]


def test_continuous_integration_finds_its_command():
    commands = re.findall(r"^.*-m pytest$", read(README), flags=re.MULTILINE)
    assert len(commands) == 1 and ".[test]" in commands[0]
