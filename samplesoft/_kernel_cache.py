"""Compiled kernels on disk, found again only while all that went into them is as it was.

Numba's own cache looks at the file of a kernel alone: a function of another file that the kernel
calls, a constant that it imports, or an option of either may change, and the old machine code goes
on. Here a kernel has a stamp of all that: of the bytecode of the kernel and of each function that
it calls, of their constants, of the fields of their tuples, and of how they are compiled. It is
taken from memory, where the compiler looks too, and not from files, which may have been replaced
since they were imported.

Files have the places, the names and the format of Numba's. Each ends in a checksum, and the one
with machine code says for which stamp and which arguments: what is damaged, cut off, or written by
another version or process is compiled again, and overwritten. Whatever cannot be read or written
costs the cache, and never the call.
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

caching: Any = import_module("numba.core.caching")  # whose types are not those of all versions
types: Any = import_module("numba.core.types")

# Versions of Numba on whose inner parts `_kernel_compiler` has been tried. With others kernels
# are compiled as Numba compiles them, which takes longer and computes the same.
_TRIED = ((0, 61), (0, 68))
Kernel: Any = import_module("numba.core.registry").CPUDispatcher
_own: Any = None
if _TRIED[0] <= numba.version_info.short <= _TRIED[1]:
    _own = import_module("samplesoft._kernel_compiler")
    Kernel = _own.Kernel

_CHECKSUM_BYTES = 32  # bytes at the end of each file
_FORGOTTEN_SECONDS = 3600.0  # seconds after which a draft has nobody who goes on with it
# whose functions have no more to say than their names: Numba has code of its own for them
_KNOWN = {*sys.stdlib_module_names, "llvmlite", "numba", "numpy", "scipy"}
# settings of Numba on which machine code depends, beside the processor
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
    """The cache of one kernel, for Numba's dispatcher; its folder is looked for when needed."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._py_func = kernel.py_func
        self._name = repr(kernel.py_func)
        self._found = False
        self._impl: Any = None
        self.enable()

    @property
    def cache_path(self) -> str | None:
        """The folder of the files; None where none can be written."""
        found = self._implementation()
        return None if found is None else str(found.locator.get_cache_path())

    def flush(self) -> None:
        """Forget what is on disk."""
        if self._implementation() is not None:
            with suppress(OSError):
                self._files("").flush()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for `sig`; None if it is not there, or not as it should be."""
        target_context.refresh()
        if not self._enabled or self._implementation() is None:
            return None
        # a file may hold whatever it likes, and so raise whatever it likes
        try:
            stamp = kernel_stamp(self._kernel)
            classes = stamp_of(_classes_of(sig))
            files = self._files(stamp)
            linked = _own is not None and _own.is_for_caller()
            key = self._index_key(sig, target_context.codegen(), linked)
            data = files.load((key, classes))
            if data is None:
                return None
            if linked:
                return _own.linked_result(target_context, **data)
            return self._impl.rebuild(target_context, data)
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save what was compiled for `sig`, if it can be saved."""
        usable = self._enabled and self._implementation() is not None
        if not usable or not self._impl.check_cachable(data):
            return
        # the disk is full or read-only, the folder is gone, or there is no stamp
        with suppress(Exception):
            stamp = kernel_stamp(self._kernel)
            linked = _own is not None and isinstance(data.library, _own.LinkedCode)
            key = self._index_key(sig, data.codegen, linked)
            self._impl.locator.ensure_cache_path()
            files = self._files(stamp)
            saved = _parts_of(data) if linked else self._impl.reduce(data)
            files.save((key, stamp_of(_classes_of(sig))), saved)
            files.remove_old(self._py_func.__qualname__)

    def _implementation(self) -> Any:
        """Return what knows the place of the files, None where there is none."""
        if not self._found:
            with suppress(RuntimeError, OSError):
                self._impl = caching.CompileResultCacheImpl(self._py_func)
            self._found = True
        return self._impl

    def _files(self, stamp: str) -> _Files:
        place = self._impl.locator.get_cache_path(), self._impl.filename_base
        return _Files(*place, ("samplesoft", stamp))

    def _index_key(self, sig: Any, codegen: Any, linked: bool = False) -> Any:
        settings = tuple(f"{name} {getattr(config, name, None)}" for name in _SETTINGS)
        versions = numba.__version__, llvmlite.__version__, getattr(_own, "VERSION", None)
        key = sig, codegen.magic_tuple(), versions, settings
        return (*key, "linked") if linked else key


def _parts_of(result: Any) -> dict[str, Any]:
    """Return what `linked_result` takes."""
    name, _, bitcode = result.library.serialize_using_bitcode()
    # as Numba does: those of some functions have no pickle
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
    """The index of a kernel, and a file for each kind of arguments, as Numba has them."""

    def load(self, key: Any) -> Any:
        """Return what was saved for `key`, with this stamp."""
        name = self._load_index().get(key[0])
        if name is None:
            return None
        # another process may have written this file for itself since, or be about to
        *said, data = self._load_data(name)
        return data if said == [self._source_stamp, key] else None

    def save(self, key: Any, data: Any) -> None:
        """Save `data` for `key`: first what the index then says is there."""
        overloads = self._readable_index()
        name = overloads.get(key[0])
        if name is None:
            taken = set(overloads.values())
            name = next(n for n in map(self._data_name, count(1)) if n not in taken)
        self._save_data(name, (self._source_stamp, key, data))
        # what another process has added meanwhile stays
        self._save_index({**self._readable_index(), key[0]: name})

    def remove_old(self, name: str) -> None:
        """Remove files of a function of this name that stood on another line, and old drafts."""
        if "<locals>" in name:  # there may be several of the name
            return
        named = re.fullmatch(r"(.+-)\d+(\.py\d+\w*)\.nbi", self._index_name)
        if named is None:  # of a notebook's cell
            return
        start, tag = map(re.escape, named.groups())
        theirs = re.compile(rf"{start}\d+{tag}(\.\d+)?\.nb[ic](\.tmp\.\w+)?")
        own = self._index_name.removesuffix("nbi")
        for path in Path(self._cache_path).iterdir():
            if not theirs.fullmatch(path.name):
                continue
            # another process may be reading: it has the file open, or goes without
            with suppress(OSError):
                if ".tmp." in path.name:
                    is_old = time.time() - path.stat().st_mtime > _FORGOTTEN_SECONDS
                else:
                    is_old = not path.name.startswith(own)
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
                stamp, overloads = _loads(file.read())
        except FileNotFoundError:
            return {}
        return overloads if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        return _loads(Path(self._data_path(name)).read_bytes())

    def _dump(self, thing: Any) -> bytes:
        body: bytes = super()._dump(thing)
        return body + sha256(body).digest()  # which Numba would not read


def _loads(data: bytes) -> Any:
    """Return what was pickled, when it is as it was written."""
    body = data[:-_CHECKSUM_BYTES]
    checksum = data[-_CHECKSUM_BYTES:]
    if sha256(body).digest() != checksum:
        raise ValueError("a file of the cache is damaged")
    return pickle.loads(body)


# stamps -------------------------------------------------------------------------------------------


class _NoStampError(Exception):
    """Something of which nobody can say whether another process has the same."""


def kernel_stamp(kernel: Any) -> str:
    """Return the stamp of a kernel: another one if its machine code may be another one."""
    return stamp_of([kernel])


def stamp_of(things: Iterable[Any]) -> str:
    """Return the stamp of constants, functions and types, with all that they refer to."""
    stamp = _Stamp()
    for thing in things:
        stamp.add(thing)
    return stamp.digest()


def _classes_of(sig: Any) -> list[Any]:
    """Return the named tuples among types of arguments, for a field is read by its number."""
    found: list[Any] = []
    for kind in sig if isinstance(sig, tuple) else sig.args:
        if isinstance(kind, types.Callable):  # each process would add one of its own
            raise _NoStampError(kind)
        if isinstance(kind, (types.NamedTuple, types.NamedUniTuple)):
            found.append(kind.instance_class)
        if isinstance(kind, types.BaseTuple):
            found += _classes_of(tuple(kind))
        elif isinstance(getattr(kind, "dtype", None), types.Type):
            found += _classes_of((kind.dtype,))
    return found


class _Stamp:
    """A checksum of things that refer to each other."""

    def __init__(self) -> None:
        self._sum = sha256()
        # what has been met, each with its number; kept, for an id is of a living thing
        self._met: dict[int, tuple[int, Any]] = {}

    def digest(self) -> str:
        """Return the checksum of what was added."""
        return self._sum.hexdigest()

    def add(self, thing: Any) -> None:
        """Add one thing, and what it refers to."""
        kind = type(thing)
        if thing is None or kind in (bool, int, float, complex, str, bytes, type(...)):
            self._say(kind.__name__, repr(thing))
        elif isinstance(thing, (np.ndarray, np.generic)) and not thing.dtype.hasobject:
            # a dtype compares the names and places of its fields too
            self._say("numbers", repr(thing.dtype), str(np.shape(thing)))
            self._sum.update(np.asarray(thing).tobytes())
        elif isinstance(thing, types.ExternalFunction):
            self._say("external", thing.symbol, str(thing.sig))
        elif isinstance(thing, (np.dtype, np.ufunc, types.Type)):
            self._say(kind.__name__, str(thing))
        elif kind in (set, frozenset):
            self._say("set", *sorted(stamp_of([one]) for one in thing))
        elif kind is dict:
            self._say("dict", *sorted(stamp_of(pair) for pair in thing.items()))
        elif self._is_new(thing):
            self._add_parts(thing, kind)

    def _say(self, *words: str) -> None:
        self._sum.update(repr(words).encode("utf-8", "surrogatepass"))

    def _is_new(self, thing: Any) -> bool:
        """Return whether something is met for the first time; else say which it is."""
        before = self._met.get(id(thing))
        if before is not None:
            self._say("met", str(before[0]))
            return False
        self._met[id(thing)] = len(self._met), thing
        return True

    def _add_parts(self, thing: Any, kind: type) -> None:
        if isinstance(thing, (tuple, list)):
            self._say(kind.__name__, str(len(thing)))
            if kind not in (tuple, list):
                self.add(kind)
            for part in thing:
                self.add(part)
        elif isinstance(thing, slice):
            self._say("slice", repr(thing))
        elif isinstance(thing, Dispatcher):
            self._say("kernel")
            self.add(thing.targetoptions)
            self.add(thing.locals)
            self.add(thing.py_func)
        elif isinstance(thing, FunctionType):
            self._add_function(thing)
        elif isinstance(thing, CodeType):
            self._add_code(thing)
        elif isinstance(thing, partial):
            self._say("partial")
            for part in (thing.func, thing.args, thing.keywords):
                self.add(part)
        elif isinstance(thing, _Intrinsic):
            self._say("intrinsic")
            self.add(thing._defn)
        elif isinstance(thing, (BuiltinFunctionType, ModuleType)):
            self._say(kind.__name__, str(getattr(thing, "__module__", "")), thing.__name__)
        elif isinstance(thing, type):
            self._add_class(thing)
        else:
            self._add_pickled(thing)

    def _add_function(self, function: FunctionType) -> None:
        self._say("function", function.__module__, function.__qualname__)
        if _is_known(function.__module__):
            return
        self.add(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents)
        names = sorted(_names_in(function.__code__))
        scopes = [function.__globals__]
        for scope in scopes:  # which grows
            for name in names:
                if name not in scope:  # a builtin, or the name of an attribute
                    continue
                thing = scope[name]
                self._say("name", name)
                self.add(thing)
                # of a module, what may be read there
                if isinstance(thing, ModuleType) and not _is_known(thing.__name__):
                    inside = vars(thing)
                    scopes += [inside] if all(inside is not one for one in scopes) else []

    def _add_code(self, code: CodeType) -> None:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        self._say("code", code.co_name, *map(str, counts))
        self._sum.update(sha256(code.co_code).digest())
        # of 3.11 and later: where an error is caught
        self._sum.update(sha256(code.co_exceptiontable).digest())
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self._say(*names)
        for constant in code.co_consts:
            self.add(constant)

    def _add_class(self, thing: type) -> None:
        self._say("class", thing.__module__, thing.__qualname__)
        if not _is_known(thing.__module__):
            for name in ("_fields", "_field_defaults"):
                self.add(getattr(thing, name, None))
            if isinstance(thing, EnumMeta):
                members: dict[str, Any] = dict(thing.__members__)
                self.add([(name, one.value) for name, one in members.items()])

    def _add_pickled(self, thing: Any) -> None:
        """Add something else: what stands in its pickle, if it is the same in each process."""
        self.add(type(thing))
        try:
            self._sum.update(sha256(pickle.dumps(thing, 4)).digest())
        except Exception as error:
            raise _NoStampError(thing) from error


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _KNOWN


def _names_in(code: CodeType) -> set[str]:
    """Return the names that a function and those inside it look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names_in(constant)
    return found
