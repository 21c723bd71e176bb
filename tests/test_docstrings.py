"""Docstrings name the parameters that the signature has: all of them, and no others."""

import dataclasses
import importlib
import inspect
import re
from functools import cached_property
from pathlib import Path

import samplesoft

ROOT = Path(samplesoft.__file__).parent
NAMES = sorted(
    ".".join(("samplesoft", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if path.stem not in ("__init__", "__main__")
)
PACKAGES = sorted(
    ".".join(("samplesoft", *path.parent.relative_to(ROOT).parts))
    for path in ROOT.rglob("__init__.py")
)


def documented(thing, title):
    """Return the names in a section of a numpydoc docstring, or None where there is no such."""
    doc = inspect.cleandoc(thing.__doc__)
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", doc, re.DOTALL | re.MULTILINE)
    if found is None:
        return None
    heads = [line for line in found[1].splitlines() if line and not line[0].isspace()]
    return [name.strip() for head in heads for name in head.split(" : ")[0].split(",")]


def parameters(thing):
    if inspect.isclass(thing) and "__init__" not in vars(thing) and issubclass(thing, Exception):
        return ["*args"]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = [stars.get(p.kind, "") + p.name for p in inspect.signature(thing).parameters.values()]
    return [name for name in found if name not in ("self", "cls")]


def read(thing):
    """Return documented names, and those of the signature."""
    names = documented(thing, "Parameters")
    if names is None and dataclasses.is_dataclass(thing):
        names = documented(thing, "Attributes")
    return names, parameters(thing)


def of_module(module):
    """Yield name and object of the public functions, classes and methods that a module defines."""
    for name, value in vars(module).items():
        thing = getattr(value, "py_func", value)  # of a compiled function
        if name.startswith("_") or getattr(thing, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield name, thing
        if inspect.isclass(thing):
            for method in vars(thing):
                bound = getattr(thing, method)
                if isinstance(bound, cached_property):  # takes no arguments
                    continue
                if inspect.isbuiltin(bound):  # of NumPy, some of which tell no signature
                    continue
                if not method.startswith("_") and inspect.isroutine(bound) and bound.__doc__:
                    yield f"{name}.{method}", bound


def test_sections_name_the_parameters_of_the_signature():
    for module in NAMES:
        for name, thing in of_module(importlib.import_module(module)):
            assert thing.__doc__, f"{module}.{name} has no docstring"
            names, wanted = read(thing)
            if names is not None:
                assert sorted(names) == sorted(wanted), f"{module}.{name}: {names} for {wanted}"


def test_what_a_package_shows_has_all_its_parameters_documented():
    for package in map(importlib.import_module, PACKAGES):
        for name in getattr(package, "__all__", []):
            thing = getattr(package, name)
            if not (inspect.isfunction(thing) or inspect.isclass(thing)):
                continue  # a registry, or a type alias
            if inspect.isabstract(thing) or getattr(thing, "_is_protocol", False):
                continue  # nobody makes one
            names, wanted = read(thing)
            assert sorted(names or []) == sorted(wanted), f"{name}: {names} for {wanted}"


def test_the_reader_of_docstrings_sees_what_is_there():
    def example(a, b, *rest, c=1, **options):
        """Do nothing.

        Parameters
        ----------
        a, b : int
            Two numbers : with a colon.
        *rest
            More.
        c : int, optional
            One.
        **options
            Others.

        Returns
        -------
        d : int
            Not a parameter.
        """

    assert read(example) == (["a", "b", "*rest", "c", "**options"],) * 2
    assert len(NAMES) > 100 and "samplesoft.losses" in PACKAGES
