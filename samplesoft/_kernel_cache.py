"""Disk cache of compiled kernels, invalidated by any change of a kernel's dependencies.

Numba's own cache checks only the source file of a kernel. If a function in another file, an
imported constant or a compiler option changes, Numba keeps using the old machine code. Therefore
the key of this cache includes a fingerprint of the kernel: a checksum of the bytecode of the kernel
and of all functions that it calls, of their constants, of the fields of their named tuples, and of
the compiler options. The fingerprint is computed from the objects in memory, which the compiler
uses too, and not from source files, which may have changed since they were imported.

Cache files have the same paths, names and format as Numba's. Each file ends with a checksum of its
content, and a file with machine code records the kernel's fingerprint and argument types. A file
that is damaged, truncated, or from another version is ignored, and overwritten after compilation.
If the cache cannot be read or written, the kernel is compiled as without a cache.
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

# imported as Any, because type hints differ between versions of Numba
caching: Any = import_module("numba.core.caching")
types: Any = import_module("numba.core.types")

# Oldest and newest version of Numba with whose internals `_kernel_compiler` has been tested. With
# other versions, kernels are compiled by Numba's standard compiler: slower, with equal results.
_TESTED_VERSIONS = ((0, 61), (0, 68))
Kernel: Any = import_module("numba.core.registry").CPUDispatcher
_compiler: Any = None
if _TESTED_VERSIONS[0] <= numba.version_info.short <= _TESTED_VERSIONS[1]:
    _compiler = import_module("samplesoft._kernel_compiler")
    Kernel = _compiler.Kernel

_CHECKSUM_BYTES = 32  # length of the checksum at the end of each file
# age from which a temporary file is deleted, because the process that wrote it was killed
_ABANDONED_SECONDS = 3600.0
# The fingerprint of a function of these packages is its name, because Numba implements them itself.
_PACKAGES_IDENTIFIED_BY_NAME = {*sys.stdlib_module_names, "llvmlite", "numba", "numpy", "scipy"}
# settings of Numba on which machine code depends, in addition to the processor
_NUMBA_SETTINGS = (
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
    """The disk cache of one kernel, with the interface that Numba's dispatcher uses.

    The cache folder is determined at first use.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._py_func = kernel.py_func
        self._name = repr(kernel.py_func)
        self._is_located = False
        self._impl: Any = None
        self.enable()

    @property
    def cache_path(self) -> str | None:
        """The folder of the cache files, or None if no folder is writable."""
        implementation = self._numba_cache_implementation()
        return None if implementation is None else str(implementation.locator.get_cache_path())

    def flush(self) -> None:
        """Delete the kernel's code from the cache."""
        if self._numba_cache_implementation() is not None:
            with suppress(OSError):
                self._cache_files("").flush()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached code for the signature `sig`, or None if it is missing or invalid."""
        target_context.refresh()
        if not self._enabled or self._numba_cache_implementation() is None:
            return None

        # a damaged file may raise any exception
        try:
            fingerprint = kernel_fingerprint(self._kernel)
            classes = fingerprint_of(_named_tuple_classes_in(sig))
            files = self._cache_files(fingerprint)
            linked = _compiler is not None and _compiler.is_compiling_for_kernel()
            key = self._index_key(sig, target_context.codegen(), linked)

            data = files.load((key, classes))
            if data is None:
                return None
            if linked:
                return _compiler.rebuild_linked_result(target_context, **data)
            return self._impl.rebuild(target_context, data)
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compilation result `data` for the signature `sig`; do nothing if this fails."""
        is_usable = self._enabled and self._numba_cache_implementation() is not None
        if not is_usable or not self._impl.check_cachable(data):
            return

        # The disk may be full or read-only, the folder may be deleted, or the kernel may have no
        # stable fingerprint.
        with suppress(Exception):
            fingerprint = kernel_fingerprint(self._kernel)
            linked = _compiler is not None and isinstance(data.library, _compiler.LinkedCode)
            key = self._index_key(sig, data.codegen, linked)

            self._impl.locator.ensure_cache_path()
            files = self._cache_files(fingerprint)
            content = _serialise_linked_result(data) if linked else self._impl.reduce(data)
            files.save((key, fingerprint_of(_named_tuple_classes_in(sig))), content)
            files.remove_obsolete_files(self._py_func.__qualname__)

    def _numba_cache_implementation(self) -> Any:
        """Return Numba's object that finds the cache files of the kernel and serialises its code.

        Returns None if no folder is writable.
        """
        if not self._is_located:
            with suppress(RuntimeError, OSError):
                self._impl = caching.CompileResultCacheImpl(self._py_func)
            self._is_located = True
        return self._impl

    def _cache_files(self, fingerprint: str) -> _CacheFiles:
        """Return the cache files of the kernel, for code with this fingerprint."""
        location = self._impl.locator.get_cache_path(), self._impl.filename_base
        return _CacheFiles(*location, ("samplesoft", fingerprint))

    def _index_key(self, sig: Any, codegen: Any, linked: bool = False) -> Any:
        """Return the key of a signature in the index: all that its machine code depends on.

        The key contains the signature, the processor, the versions of the compilers, and Numba's
        settings. `linked` says whether the code is linked into other kernels; its key then differs
        from the key of code that Python calls.
        """
        settings = tuple(f"{name} {getattr(config, name, None)}" for name in _NUMBA_SETTINGS)
        versions = numba.__version__, llvmlite.__version__, getattr(_compiler, "VERSION", None)
        key = sig, codegen.magic_tuple(), versions, settings
        return (*key, "linked") if linked else key


def _serialise_linked_result(result: Any) -> dict[str, Any]:
    """Return a compilation result as the keyword arguments of `rebuild_linked_result`.

    The types of variables and calls are removed from the result, which is changed in place.
    """
    name, _, bitcode = result.library.serialize_using_bitcode()
    # remove the types, as Numba does, because the types of some functions cannot be pickled
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


class _CacheFiles(caching.IndexDataCacheFile):  # type: ignore[misc]
    """The cache files of a kernel, in Numba's format: an index, and one file for each signature."""

    def load(self, key: Any) -> Any:
        """Return the data saved for `key` and this kernel's fingerprint, or None if there is none.

        The key is a pair: the key of the signature in the index, and the fingerprint of the named
        tuples in the signature.
        """
        name = self._load_index().get(key[0])
        if name is None:
            return None
        # another process may have overwritten this file since the index was read
        *header, data = self._load_data(name)
        return data if header == [self._source_stamp, key] else None

    def save(self, key: Any, data: Any) -> None:
        """Save `data` for `key`, as in `load`: first the data file, then the index."""
        overloads = self._load_index_or_empty()
        name = overloads.get(key[0])
        if name is None:
            used_names = set(overloads.values())
            name = next(n for n in map(self._data_name, count(1)) if n not in used_names)

        self._save_data(name, (self._source_stamp, key, data))
        # read the index again, to keep entries that other processes have added in the meantime
        self._save_index({**self._load_index_or_empty(), key[0]: name})

    def remove_obsolete_files(self, name: str) -> None:
        """Delete files of earlier versions of the function `name`, and abandoned temporary files.

        The name of a cache file includes the line at which the function begins in its source file.
        A file for another line was written before the function moved, and is not used again.
        """
        if "<locals>" in name:  # a nested function, whose name other functions may have too
            return
        match = re.fullmatch(r"(.+-)\d+(\.py\d+\w*)\.nbi", self._index_name)
        if match is None:  # a function of a notebook cell, whose files have other names
            return

        start, tag = map(re.escape, match.groups())
        pattern = re.compile(rf"{start}\d+{tag}(\.\d+)?\.nb[ic](\.tmp\.\w+)?")
        current = self._index_name.removesuffix("nbi")
        for path in Path(self._cache_path).iterdir():
            if not pattern.fullmatch(path.name):
                continue

            # This is safe while another process loads the kernel: it has opened the file already,
            # or misses it and compiles the kernel.
            with suppress(OSError):
                if ".tmp." in path.name:
                    is_old = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
                else:
                    is_old = not path.name.startswith(current)
                if is_old:
                    path.unlink()

    def _load_index_or_empty(self) -> dict[Any, str]:
        """Return the names of data files by signature key; an empty dict if there is no index."""
        try:
            return dict(self._load_index())
        except Exception:
            return {}

    def _load_index(self) -> Any:
        try:
            with open(self._index_path, "rb") as file:
                if pickle.load(file) != self._version:
                    return {}
                fingerprint, overloads = _unpickle_verified(file.read())
        except FileNotFoundError:
            return {}
        return overloads if fingerprint == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        return _unpickle_verified(Path(self._data_path(name)).read_bytes())

    def _dump(self, thing: Any) -> bytes:
        body: bytes = super()._dump(thing)
        return body + sha256(body).digest()  # Numba's own cache cannot read files with a checksum


def _unpickle_verified(data: bytes) -> Any:
    """Return the object pickled in `data`; raise ValueError if its checksum does not match."""
    body = data[:-_CHECKSUM_BYTES]
    checksum = data[-_CHECKSUM_BYTES:]
    if sha256(body).digest() != checksum:
        raise ValueError("a file of the cache is damaged")
    return pickle.loads(body)


# fingerprints -------------------------------------------------------------------------------------


class _NoStableFingerprintError(Exception):
    """Raised for an object whose fingerprint would differ in another process.

    A kernel that uses such an object is not cached.
    """


def kernel_fingerprint(kernel: Any) -> str:
    """Return the fingerprint of a kernel, a checksum that changes if its code may change."""
    return fingerprint_of([kernel])


def fingerprint_of(things: Iterable[Any]) -> str:
    """Return a checksum of objects, such as functions, and of all objects that they refer to."""
    fingerprint = _Fingerprint()
    for thing in things:
        fingerprint.add(thing)
    return fingerprint.digest()


def _named_tuple_classes_in(sig: Any) -> list[Any]:
    """Return the classes of the named tuples among the argument types `sig`.

    They are part of the cache key, because machine code reads fields of named tuples by position.
    """
    classes: list[Any] = []
    for kind in sig if isinstance(sig, tuple) else sig.args:
        if isinstance(kind, types.Callable):  # the type of a function differs between processes
            raise _NoStableFingerprintError(kind)

        if isinstance(kind, (types.NamedTuple, types.NamedUniTuple)):
            classes.append(kind.instance_class)

        if isinstance(kind, types.BaseTuple):
            classes += _named_tuple_classes_in(tuple(kind))
        elif isinstance(getattr(kind, "dtype", None), types.Type):
            classes += _named_tuple_classes_in((kind.dtype,))
    return classes


class _Fingerprint:
    """A checksum of Python objects and of all objects that they refer to, even in cycles."""

    def __init__(self) -> None:
        self._checksum = sha256()
        # Visited objects by id, each with the number of objects visited before it. The references
        # keep the objects alive, so that no other object gets the same id.
        self._visited: dict[int, tuple[int, Any]] = {}

    def digest(self) -> str:
        """Return the checksum of all added objects."""
        return self._checksum.hexdigest()

    def add(self, thing: Any) -> None:
        """Add an object, and all objects that it refers to, to the checksum."""
        kind = type(thing)
        if thing is None or kind in (bool, int, float, complex, str, bytes, type(...)):
            self._add_strings(kind.__name__, repr(thing))
        elif isinstance(thing, (np.ndarray, np.generic)) and not thing.dtype.hasobject:
            # repr of a dtype includes the names and offsets of its fields
            self._add_strings("numbers", repr(thing.dtype), str(np.shape(thing)))
            self._checksum.update(np.asarray(thing).tobytes())
        elif isinstance(thing, types.ExternalFunction):
            self._add_strings("external", thing.symbol, str(thing.sig))
        elif isinstance(thing, (np.dtype, np.ufunc, types.Type)):
            self._add_strings(kind.__name__, str(thing))
        elif kind in (set, frozenset):
            self._add_strings("set", *sorted(fingerprint_of([item]) for item in thing))
        elif kind is dict:
            self._add_strings("dict", *sorted(fingerprint_of(pair) for pair in thing.items()))
        elif self._record_visit(thing):
            self._add_contents(thing, kind)

    def _add_strings(self, *words: str) -> None:
        """Add a sequence of strings to the checksum."""
        self._checksum.update(repr(words).encode("utf-8", "surrogatepass"))

    def _record_visit(self, thing: Any) -> bool:
        """Return whether this is the first visit of an object, and record the visit.

        If the object was visited before, its number in the order of first visits is added to the
        checksum.
        """
        visited = self._visited.get(id(thing))
        if visited is not None:
            self._add_strings("met", str(visited[0]))
            return False
        self._visited[id(thing)] = len(self._visited), thing
        return True

    def _add_contents(self, thing: Any, kind: type) -> None:
        """Add the contents of an object of the class `kind` to the checksum."""
        if isinstance(thing, (tuple, list)):
            self._add_strings(kind.__name__, str(len(thing)))
            if kind not in (tuple, list):
                self.add(kind)
            for item in thing:
                self.add(item)
        elif isinstance(thing, slice):
            self._add_strings("slice", repr(thing))
        elif isinstance(thing, Dispatcher):
            self._add_strings("kernel")
            self.add(thing.targetoptions)
            self.add(thing.locals)
            self.add(thing.py_func)
        elif isinstance(thing, FunctionType):
            self._add_function(thing)
        elif isinstance(thing, CodeType):
            self._add_code(thing)
        elif isinstance(thing, partial):
            self._add_strings("partial")
            for item in (thing.func, thing.args, thing.keywords):
                self.add(item)
        elif isinstance(thing, _Intrinsic):
            self._add_strings("intrinsic")
            self.add(thing._defn)
        elif isinstance(thing, (BuiltinFunctionType, ModuleType)):
            self._add_strings(kind.__name__, str(getattr(thing, "__module__", "")), thing.__name__)
        elif isinstance(thing, type):
            self._add_class(thing)
        else:
            self._add_pickled(thing)

    def _add_function(self, function: FunctionType) -> None:
        """Add a function: its code, its defaults, and the variables and globals that it uses."""
        self._add_strings("function", function.__module__, function.__qualname__)
        if _is_identified_by_name(function.__module__):
            return
        self.add(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents)

        names = sorted(_names_used_by(function.__code__))
        scopes = [function.__globals__]
        for used_scope in scopes:  # the body appends to `scopes`
            for name in names:
                if name not in used_scope:  # the name of a builtin or of an attribute
                    continue
                thing = used_scope[name]
                self._add_strings("name", name)
                self.add(thing)

                # `thing` is a module: the function may read any of `names` as its attribute
                if isinstance(thing, ModuleType) and not _is_identified_by_name(thing.__name__):
                    module_scope = vars(thing)
                    if all(module_scope is not scope for scope in scopes):
                        scopes.append(module_scope)

    def _add_code(self, code: CodeType) -> None:
        """Add a code object: its bytecode, names and constants."""
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        self._add_strings("code", code.co_name, *map(str, counts))
        self._checksum.update(sha256(code.co_code).digest())
        # since Python 3.11, `try` statements are in this table and not in the bytecode
        self._checksum.update(sha256(code.co_exceptiontable).digest())

        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self._add_strings(*names)
        for constant in code.co_consts:
            self.add(constant)

    def _add_class(self, thing: type) -> None:
        """Add a class: its name, and the fields of a named tuple or the members of an enum."""
        self._add_strings("class", thing.__module__, thing.__qualname__)
        if not _is_identified_by_name(thing.__module__):
            for name in ("_fields", "_field_defaults"):
                self.add(getattr(thing, name, None))
            if isinstance(thing, EnumMeta):
                members: dict[str, Any] = dict(thing.__members__)
                self.add([(name, member.value) for name, member in members.items()])

    def _add_pickled(self, thing: Any) -> None:
        """Add an object's class and its pickle, which must be equal in all processes."""
        self.add(type(thing))
        try:
            self._checksum.update(sha256(pickle.dumps(thing, 4)).digest())
        except Exception as error:
            raise _NoStableFingerprintError(thing) from error


def _is_identified_by_name(module: str | None) -> bool:
    """Return whether a module belongs to one of the `_PACKAGES_IDENTIFIED_BY_NAME`."""
    return (module or "").partition(".")[0] in _PACKAGES_IDENTIFIED_BY_NAME


def _names_used_by(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that a function or its nested functions use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_used_by(constant)
    return names
