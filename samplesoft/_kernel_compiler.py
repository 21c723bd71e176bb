"""Kernels compiled by Numba, without what nobody asks of them.

Numba makes machine code of each function that it compiles, and a wrapper for calls from Python.
Most kernels are called by other kernels alone, into which LLVM links their bitcode: of such a
kernel there is no more than that here. When Python calls it, it is compiled as a whole, and other
kernels go on with the bitcode: what they compute does not depend on who was called first.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

# whose types are not those of all versions of Numba
codegen: Any = import_module("numba.core.codegen")
compiler: Any = import_module("numba.core.compiler")
environment: Any = import_module("numba.core.environment")
registry: Any = import_module("numba.core.registry")
types: Any = import_module("numba.core.types")
sigutils: Any = import_module("numba.core.sigutils")
global_compiler_lock: Any = import_module("numba.core.compiler_lock").global_compiler_lock
parse_bitcode: Any = import_module("llvmlite.binding").parse_bitcode

# as of Numba 0.62, where those of one function take longer to make than to run
_PASSES = signature(codegen.CPUCodegen._function_pass_manager).parameters
VERSION = 2  # of how kernels are compiled here: machine code of another one is not taken from disk
_WRAPPER = "_ZN7cpython"  # the start of the name of a function that unpacks arguments from Python
_MANY = 48  # blocks of such a function, as for more than five arrays
_thread = threading.local()
# threads that have changed what all threads see, until they have compiled, and how that is undone
_changes: list[tuple[int, Callable[[], None]]] = []


@contextmanager
def _undone_by(undo: Callable[[], None]) -> Iterator[None]:
    """Undo a change of the body after it, and in a child forked while another thread is in it."""
    _changes.append((threading.get_ident(), undo))
    try:
        yield
    finally:
        _changes.pop()
        undo()


def _after_fork_in_child() -> None:
    """Undo what threads have changed that are not here to do so."""
    while _changes and _changes[-1][0] != threading.get_ident():
        _changes.pop()[1]()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def is_for_caller() -> bool:
    """Tell whether what this thread compiles now is called by another kernel, and not by Python."""
    return getattr(_thread, "for_caller", False)


class _Code(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The code of a kernel."""

    # Sums in any order are compiled by Numba's own passes, whose order decides on their last bits.
    is_sum = False

    def add_ir_module(self, module: Any) -> None:
        """Add generated code, of which what unpacks many arguments from Python stays as it is.

        Of the runner of training steps that was a quarter of what LLVM had to optimise, for a
        microsecond in each call, which takes many steps.
        """
        for function in module.functions:
            if function.name.startswith(_WRAPPER) and len(function.blocks) > _MANY:
                function.attributes.add("noinline")
                function.attributes.add("optnone")
        super().add_ir_module(module)

    def _optimize_functions(self, module: Any) -> None:
        """Leave functions to the passes over the whole, which go through all of them again."""
        if "llvm_module" in _PASSES:
            super()._optimize_functions(module)
            return
        module.data_layout = self._codegen._data_layout
        if self.is_sum:
            self._run_function_passes(module)

    def _run_function_passes(self, module: Any) -> None:
        """Do as Numba does, but for declarations, which are most functions of a module."""
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        """Do the second half of what Numba does; the first is for code that counts references."""
        if self.is_sum or "llvm_module" in _PASSES:
            super()._optimize_final_module()
            return
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for variable in self._final_module.global_variables:
            # constants of a kernel that was linked in, and has no machine code that would set them
            found = environment.lookup_environment(variable.name)
            if found is not None:
                self._codegen.set_env(variable.name, found)


class LinkedCode(_Code):
    """Bitcode to be linked into that of other kernels, without machine code.

    LLVM simplifies it, and leaves the rest to when it is part of a whole: it would go through all
    again there. Sums in any order are done with here, so that no caller has an order of its own.
    """

    def _optimize_functions(self, module: Any) -> None:
        super()._optimize_functions(module)
        if not self.is_sum and "llvm_module" not in _PASSES:
            self._run_function_passes(module)

    def _optimize_final_module(self) -> None:
        if self.is_sum or "llvm_module" in _PASSES:
            super()._optimize_final_module()
            return
        # the first half of what Numba does
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=self._codegen._loopvect,
            slp_vectorize=False,
            opt=self._codegen._opt_level,
            cost="cheap",
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


def linked_result(context: Any, name: str, bitcode: bytes, **parts: Any) -> Any:
    """Return the result of a compilation for other kernels, as it was saved."""
    code = LinkedCode(context.codegen(), name)
    code._final_module = parse_bitcode(bitcode)
    code._finalize_final_module()
    return compiler.compile_result(
        typing_context=context.typing_context,
        target_context=context,
        library=code,
        entry_point=object(),
        objectmode=False,
        lifted=(),
        **parts,
    )


class _Flags(compiler.Flags):  # type: ignore[misc]
    """Options of a compilation, compared in less time: that happens some hundred times in each."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Flags):
            return self._given() == other._given()
        return bool(super().__eq__(other))

    def __hash__(self) -> int:
        return _HASH  # as Numba's, which is of the names alone

    def copy(self) -> _Flags:
        """Return what functions inherit that are compiled for this one."""
        copy = _Flags(self)
        copy.discard("no_compile")  # or Numba would have its own functions once more
        copy.discard("no_cpython_wrapper")
        return copy

    def _given(self) -> dict[str, Any]:
        default = self.options
        return {key: value for key, value in self._values.items() if value != default[key].default}


_HASH = hash(compiler.Flags())


def _num_registered(context: Any) -> int:
    """Return how many functions, attributes and types a context finds in registries."""
    return sum(
        len(getattr(registry, name))
        for registry, loader in context._registries.items()
        for name in loader.registry_items
    )


_num_known: dict[int, int] = {}  # of the two contexts of Numba, when they looked last
_signatures: dict[Any, Any] = {}  # of Numba's own operators, by the types of their arguments


@contextmanager
def _quicker() -> Iterator[None]:
    """Spare Numba, in the body of ``with``, questions to which it has had an answer before.

    With each function that it compiles it looks through all registries for new functions, and for
    each operation through all overloads of an operator, as those of strings and of sets.
    """
    typing, target = registry.cpu_target.typing_context, registry.cpu_target.target_context
    if "refresh" in vars(target):  # around a kernel that another kernel calls
        yield
        return
    find = typing.resolve_function_type

    def refresh(context: Any, whole: Any) -> None:
        num = _num_registered(context)
        if _num_known.get(id(context)) != num:
            _num_known[id(context)] = num  # before, for this comes back here
            _signatures.clear()
            whole()

    def resolve(function: Any, arguments: Any, keywords: Any) -> Any:
        key = function, tuple(arguments)
        is_plain = not keywords and all(isinstance(one, types.Type) for one in arguments)
        found = _signatures.get(key) if is_plain else None
        if found is None:
            found = find(function, arguments, keywords)
            if is_plain and _is_own(typing, function, found):
                _signatures[key] = found
        return found

    def undo() -> None:
        for context in (typing, target):
            vars(context).pop("refresh", None)
        vars(typing).pop("resolve_function_type", None)

    with _undone_by(undo):
        typing.refresh = partial(refresh, typing, typing.refresh)
        target.refresh = partial(refresh, target, target.refresh)
        typing.resolve_function_type = resolve
        yield


def _is_own(typing: Any, function: Any, found: Any) -> bool:
    """Tell whether a signature is of code that Numba generates, and not of a compiled function."""
    kind = function if isinstance(function, types.Type) else typing._lookup_global(function)
    if found is None or not isinstance(kind, types.Function):
        return False
    return bool(kind._impl_keys.get(found.args) == kind.typing_key)


class _Compiler(compiler.Compiler):  # type: ignore[misc]
    """Numba's compiler, for the code above."""

    def compile_extra(self, function: Any) -> Any:
        """Compile a function."""
        state = self.state
        linked = is_for_caller()
        kind = LinkedCode if linked else _Code
        state.library = kind(state.targetctx.codegen(), function.__qualname__)
        state.library.enable_object_caching()
        state.flags = _Flags(state.flags)
        state.library.is_sum = bool(state.flags.fastmath)
        if linked:
            state.flags.no_cpython_wrapper = state.flags.no_compile = True
        # of the many objects of a compiler few are garbage that has to be looked for
        with _undone_by(gc.enable) if gc.isenabled() else nullcontext():
            gc.disable()
            return super().compile_extra(function)


class Kernel(registry.CPUDispatcher):  # type: ignore[misc]
    """A function and what was compiled of it, for kinds of arguments."""

    overloads: dict[Any, Any]  # results for Python, by the types of arguments

    def __init__(self, py_func: Any, locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals or {}, targetoptions or {}, pipeline_class=_Compiler)
        self._linked: dict[Any, Any] = {}  # results for other kernels

    def compile(self, sig: Any) -> Any:
        """Compile the function for a signature, or find it on disk."""
        with global_compiler_lock, _quicker():
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return what a caller that is being compiled has to know."""
        with global_compiler_lock:
            before = is_for_caller()
            with _undone_by(partial(setattr, self, "overloads", self.overloads)):
                _thread.for_caller = True
                self.overloads = self._linked
                try:
                    return super().get_call_template(args, kws)
                finally:
                    _thread.for_caller = before

    def get_overload(self, sig: Any) -> Any:
        """Return by what a caller finds the code for a signature."""
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        found = self._linked.get(arguments)
        return super().get_overload(sig) if found is None else found.entry_point

    def add_overload(self, result: Any) -> None:
        """Add a result: to those that Python may call, unless it is for other kernels."""
        if not is_for_caller():
            super().add_overload(result)
            return
        if result.entry_point is None:  # by which callers find it
            result = result._replace(entry_point=object())
            self.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
        self._linked[tuple(result.signature.args)] = result
