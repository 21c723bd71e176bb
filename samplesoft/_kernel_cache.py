"""Disk cache of compiled kernels, invalidated by any change of a kernel's dependencies.

Numba's own cache checks only the source file of a kernel. If a function in another file, an
imported constant or a compiler option changes, Numba keeps using the old machine code. Here the
cache key includes a stamp of the kernel: a checksum of the bytecode of the kernel and of all
functions that it calls, of their constants, of the fields of their named tuples, and of the
compiler options. The stamp is taken from the objects in memory, which the compiler uses too, and
not from source files, which may have changed since they were imported.

Cache files have the paths, names and format of Numba's. Each file ends in a checksum, and a file
with machine code records its stamp and argument types. A file that is damaged, truncated, or
written by another version or process is ignored, and overwritten after compilation. If the cache
cannot be read or written, the kernel is compiled as without a cache.
"""

from __future__ import annotations

import pickle
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import EnumMeta
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import count
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import config
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

caching: Any = import_module("numba.core.caching")  # as Any: type hints differ between versions
types: Any = import_module("numba.core.types")

# Oldest and newest version of Numba with whose internals `_kernel_compiler` has been tested. With
# other versions, kernels are compiled by Numba's standard compiler: slower, with equal results.
_TESTED_VERSIONS = ((0, 61), (0, 68))
Kernel: Any = import_module("numba.core.registry").CPUDispatcher
_compiler: Any = None
if _TESTED_VERSIONS[0] <= numba.version_info.short <= _TESTED_VERSIONS[1]:
    _compiler = import_module("samplesoft._kernel_compiler")
    Kernel = _compiler.Kernel

_CHECKSUM_BYTES = 32  # bytes at the end of each file
_ABANDONED_SECONDS = 3600.0  # seconds after which a draft counts as abandoned
# packages whose functions are stamped by name only, because Numba implements them itself
_KNOWN_PACKAGES = {*sys.stdlib_module_names, "llvmlite", "numba", "numpy", "scipy"}
# settings of Numba on which machine code depends, in addition to the processor
_SETTINGS = (
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "DEBUG_NRT",
    "ENABLE_PROFILING",
    "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_FLAGS",
    "LLVM_REFPRUNE_PASS",
    "LOOP_VECTORIZE",
    "NRT_STATS",
    "OPT",
    "SLP_VECTORIZE",
    "USING_SVML",
)


class KernelCache(caching.FunctionCache):  # type: ignore[misc]
    """The disk cache of one kernel, for Numba's dispatcher; its folder is determined lazily."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._py_func = kernel.py_func
        self._name = repr(kernel.py_func)
        self._is_located = False
        self._impl: Any = None
        self.enable()

    @property
    def cache_path(self) -> str | None:
        """The folder of the cache files; None if no folder is writable."""
        numba_cache = self._numba_cache()
        return None if numba_cache is None else str(numba_cache.locator.get_cache_path())

    def flush(self) -> None:
        """Delete the cached code of the kernel."""
        if self._numba_cache() is not None:
            with suppress(OSError):
                self._files("").flush()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached code for the signature `sig`; None if it is missing or invalid."""
        target_context.refresh()
        if not self._enabled or self._numba_cache() is None:
            return None
        # a damaged file may raise any exception
        try:
            stamp = kernel_stamp(self._kernel)
            classes = stamp_of(_named_tuple_classes(sig))
            files = self._files(stamp)
            linked = _compiler is not None and _compiler.is_for_caller()
            key = self._index_key(sig, target_context.codegen(), linked)
            data = files.load((key, classes))
            if data is None:
                return None
            if linked:
                return _compiler.linked_result(target_context, **data)
            return self._impl.rebuild(target_context, data)
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compiled code for the signature `sig`, if possible."""
        usable = self._enabled and self._numba_cache() is not None
        if not usable or not self._impl.check_cachable(data):
            return
        # the disk may be full or read-only, the folder gone, or the kernel without a stamp
        with suppress(Exception):
            stamp = kernel_stamp(self._kernel)
            linked = _compiler is not None and isinstance(data.library, _compiler.LinkedCode)
            key = self._index_key(sig, data.codegen, linked)
            self._impl.locator.ensure_cache_path()
            files = self._files(stamp)
            parts = _linked_parts(data) if linked else self._impl.reduce(data)
            files.save((key, stamp_of(_named_tuple_classes(sig))), parts)
            files.remove_old(self._py_func.__qualname__)

    def _numba_cache(self) -> Any:
        """Return Numba's locator of the cache files; None if no folder is writable."""
        if not self._is_located:
            with suppress(RuntimeError, OSError):
                self._impl = caching.CompileResultCacheImpl(self._py_func)
            self._is_located = True
        return self._impl

    def _files(self, stamp: str) -> _Files:
        location = self._impl.locator.get_cache_path(), self._impl.filename_base
        return _Files(*location, ("samplesoft", stamp))

    def _index_key(self, sig: Any, codegen: Any, linked: bool = False) -> Any:
        settings = tuple(f"{name} {getattr(config, name, None)}" for name in _SETTINGS)
        versions = numba.__version__, llvmlite.__version__, getattr(_compiler, "VERSION", None)
        key = sig, codegen.magic_tuple(), versions, settings
        return (*key, "linked") if linked else key


def _linked_parts(result: Any) -> dict[str, Any]:
    """Return the parts of a compilation result from which `linked_result` rebuilds it."""
    name, _, bitcode = result.library.serialize_using_bitcode()
    # as in Numba: these cannot be pickled for some functions
    result.fndesc.typemap = None
    result.fndesc.calltypes = None
    return {
        "name": name,
        "bitcode": bitcode,
        "fndesc": result.fndesc,
        "environment": result.environment,
        "signature": result.signature,
        "reload_init": result.reload_init,
    }


class _Files(caching.IndexDataCacheFile):  # type: ignore[misc]
    """The index file of a kernel and one file per signature, in Numba's format."""

    def load(self, key: Any) -> Any:
        """Return the data saved for `key` under the stamp of this kernel, or None."""
        name = self._load_index().get(key[0])
        if name is None:
            return None
        # another process may have overwritten this file since the index was read
        *header, data = self._load_data(name)
        return data if header == [self._source_stamp, key] else None

    def save(self, key: Any, data: Any) -> None:
        """Save `data` for `key`: first the data file, then the index that refers to it."""
        overloads = self._readable_index()
        name = overloads.get(key[0])
        if name is None:
            taken = set(overloads.values())
            name = next(n for n in map(self._data_name, count(1)) if n not in taken)
        self._save_data(name, (self._source_stamp, key, data))
        # read the index again, to keep entries that other processes have added
        self._save_index({**self._readable_index(), key[0]: name})

    def remove_old(self, name: str) -> None:
        """Remove files of a function of this name on another source line, and abandoned drafts."""
        if "<locals>" in name:  # several functions may have this name
            return
        match = re.fullmatch(r"(.+-)\d+(\.py\d+\w*)\.nbi", self._index_name)
        if match is None:  # a function in a notebook cell
            return
        start, tag = map(re.escape, match.groups())
        pattern = re.compile(rf"{start}\d+{tag}(\.\d+)?\.nb[ic](\.tmp\.\w+)?")
        current = self._index_name.removesuffix("nbi")
        for path in Path(self._cache_path).iterdir():
            if not pattern.fullmatch(path.name):
                continue
            # a process that reads the file has it open, or compiles the kernel itself
            with suppress(OSError):
                if ".tmp." in path.name:
                    is_old = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
                else:
                    is_old = not path.name.startswith(current)
                if is_old:
                    path.unlink()

    def _readable_index(self) -> dict[Any, str]:
        try:
            return dict(self._load_index())
        except Exception:
            return {}

    def _load_index(self) -> Any:
        try:
            with open(self._index_path, "rb") as file:
                if pickle.load(file) != self._version:
                    return {}
                stamp, overloads = _load_checked(file.read())
        except FileNotFoundError:
            return {}
        return overloads if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        return _load_checked(Path(self._data_path(name)).read_bytes())

    def _dump(self, thing: Any) -> bytes:
        body: bytes = super()._dump(thing)
        return body + sha256(body).digest()  # Numba itself could not read this


def _load_checked(data: bytes) -> Any:
    """Unpickle data after verifying its checksum."""
    body = data[:-_CHECKSUM_BYTES]
    checksum = data[-_CHECKSUM_BYTES:]
    if sha256(body).digest() != checksum:
        raise ValueError("a file of the cache is damaged")
    return pickle.loads(body)


# stamps -------------------------------------------------------------------------------------------


class _NoStableStampError(Exception):
    """Raised for an object whose stamp would differ in another process: it is not cached."""


def kernel_stamp(kernel: Any) -> str:
    """Return the stamp of a kernel, which differs whenever its machine code may differ."""
    return stamp_of([kernel])


def stamp_of(things: Iterable[Any]) -> str:
    """Return the stamp of constants, functions and types, including everything they refer to."""
    stamp = _Stamp()
    for thing in things:
        stamp.add(thing)
    return stamp.digest()


def _named_tuple_classes(sig: Any) -> list[Any]:
    """Return the named-tuple classes in a signature; machine code reads their fields by index."""
    classes: list[Any] = []
    for kind in sig if isinstance(sig, tuple) else sig.args:
        if isinstance(kind, types.Callable):  # a function type differs between processes
            raise _NoStableStampError(kind)
        if isinstance(kind, (types.NamedTuple, types.NamedUniTuple)):
            classes.append(kind.instance_class)
        if isinstance(kind, types.BaseTuple):
            classes += _named_tuple_classes(tuple(kind))
        elif isinstance(getattr(kind, "dtype", None), types.Type):
            classes += _named_tuple_classes((kind.dtype,))
    return classes


class _Stamp:
    """A checksum of Python objects and everything they refer to; references may be cyclic."""

    def __init__(self) -> None:
        self._checksum = sha256()
        # visited objects by id, with their number; keeping them alive keeps the ids valid
        self._visited: dict[int, tuple[int, Any]] = {}

    def digest(self) -> str:
        """Return the checksum of all added objects."""
        return self._checksum.hexdigest()

    def add(self, thing: Any) -> None:
        """Add an object and everything it refers to."""
        kind = type(thing)
        if thing is None or kind in (bool, int, float, complex, str, bytes, type(...)):
            self._add_text(kind.__name__, repr(thing))
        elif isinstance(thing, (np.ndarray, np.generic)) and not thing.dtype.hasobject:
            # repr of a dtype includes the names and offsets of its fields
            self._add_text("numbers", repr(thing.dtype), str(np.shape(thing)))
            self._checksum.update(np.asarray(thing).tobytes())
        elif isinstance(thing, types.ExternalFunction):
            self._add_text("external", thing.symbol, str(thing.sig))
        elif isinstance(thing, (np.dtype, np.ufunc, types.Type)):
            self._add_text(kind.__name__, str(thing))
        elif kind in (set, frozenset):
            self._add_text("set", *sorted(stamp_of([one]) for one in thing))
        elif kind is dict:
            self._add_text("dict", *sorted(stamp_of(pair) for pair in thing.items()))
        elif self._is_new(thing):
            self._add_parts(thing, kind)

    def _add_text(self, *words: str) -> None:
        self._checksum.update(repr(words).encode("utf-8", "surrogatepass"))

    def _is_new(self, thing: Any) -> bool:
        """Return whether an object is new; if it is not, add its number to the checksum."""
        visited = self._visited.get(id(thing))
        if visited is not None:
            self._add_text("met", str(visited[0]))
            return False
        self._visited[id(thing)] = len(self._visited), thing
        return True

    def _add_parts(self, thing: Any, kind: type) -> None:
        if isinstance(thing, (tuple, list)):
            self._add_text(kind.__name__, str(len(thing)))
            if kind not in (tuple, list):
                self.add(kind)
            for part in thing:
                self.add(part)
        elif isinstance(thing, slice):
            self._add_text("slice", repr(thing))
        elif isinstance(thing, Dispatcher):
            self._add_text("kernel")
            self.add(thing.targetoptions)
            self.add(thing.locals)
            self.add(thing.py_func)
        elif isinstance(thing, FunctionType):
            self._add_function(thing)
        elif isinstance(thing, CodeType):
            self._add_code(thing)
        elif isinstance(thing, partial):
            self._add_text("partial")
            for part in (thing.func, thing.args, thing.keywords):
                self.add(part)
        elif isinstance(thing, _Intrinsic):
            self._add_text("intrinsic")
            self.add(thing._defn)
        elif isinstance(thing, (BuiltinFunctionType, ModuleType)):
            self._add_text(kind.__name__, str(getattr(thing, "__module__", "")), thing.__name__)
        elif isinstance(thing, type):
            self._add_class(thing)
        else:
            self._add_pickled(thing)

    def _add_function(self, function: FunctionType) -> None:
        self._add_text("function", function.__module__, function.__qualname__)
        if _is_known_package(function.__module__):
            return
        self.add(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents)
        names = sorted(_names_in(function.__code__))
        scopes = [function.__globals__]
        for scope in scopes:  # grows in the loop
            for name in names:
                if name not in scope:  # a builtin or an attribute name
                    continue
                thing = scope[name]
                self._add_text("name", name)
                self.add(thing)
                # a module: also the names that the function may read from it
                if isinstance(thing, ModuleType) and not _is_known_package(thing.__name__):
                    module_scope = vars(thing)
                    scopes += (
                        [module_scope] if all(module_scope is not one for one in scopes) else []
                    )

    def _add_code(self, code: CodeType) -> None:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        self._add_text("code", code.co_name, *map(str, counts))
        self._checksum.update(sha256(code.co_code).digest())
        # since Python 3.11: ranges of `try` statements
        self._checksum.update(sha256(code.co_exceptiontable).digest())
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self._add_text(*names)
        for constant in code.co_consts:
            self.add(constant)

    def _add_class(self, thing: type) -> None:
        self._add_text("class", thing.__module__, thing.__qualname__)
        if not _is_known_package(thing.__module__):
            for name in ("_fields", "_field_defaults"):
                self.add(getattr(thing, name, None))
            if isinstance(thing, EnumMeta):
                members: dict[str, Any] = dict(thing.__members__)
                self.add([(name, one.value) for name, one in members.items()])

    def _add_pickled(self, thing: Any) -> None:
        """Add any other object by its pickle, which must be the same in each process."""
        self.add(type(thing))
        try:
            self._checksum.update(sha256(pickle.dumps(thing, 4)).digest())
        except Exception as error:
            raise _NoStableStampError(thing) from error


def _is_known_package(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _KNOWN_PACKAGES


def _names_in(code: CodeType) -> set[str]:
    """Return the global and attribute names used in a function and its nested functions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names
