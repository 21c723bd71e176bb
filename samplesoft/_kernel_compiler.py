"""A faster Numba compiler for kernels that are only called by other kernels.

Numba generates machine code and a Python wrapper for every function that it compiles. But most
kernels are called only by other kernels, into which LLVM links their bitcode. Here such a kernel is
compiled to bitcode only. If Python calls it, it is compiled completely, and other kernels still use
the bitcode. So the results of a kernel do not depend on which function was called first.
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

# imported as Any, because type hints differ between versions of Numba
codegen: Any = import_module("numba.core.codegen")
compiler: Any = import_module("numba.core.compiler")
environment: Any = import_module("numba.core.environment")
registry: Any = import_module("numba.core.registry")
types: Any = import_module("numba.core.types")
sigutils: Any = import_module("numba.core.sigutils")
global_compiler_lock: Any = import_module("numba.core.compiler_lock").global_compiler_lock
parse_bitcode: Any = import_module("llvmlite.binding").parse_bitcode

# Since Numba 0.62 this method takes `llvm_module`; creating its passes takes longer than running
# them.
_PASSES = signature(codegen.CPUCodegen._function_pass_manager).parameters
VERSION = 2  # version of this compiler; cached code of other versions is not loaded
_WRAPPER_PREFIX = "_ZN7cpython"  # prefix of the names of functions that unpack Python arguments
_LARGE_WRAPPER_BLOCKS = 48  # basic blocks of such a function, reached with more than five arrays
_thread = threading.local()
# temporary changes of global state: the thread that made them, and the function that undoes them
_changes: list[tuple[int, Callable[[], None]]] = []


@contextmanager
def _undone_by(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` after the body, and in a child that is forked during the body."""
    _changes.append((threading.get_ident(), undo))
    try:
        yield
    finally:
        _changes.pop()
        undo()


def _after_fork_in_child() -> None:
    """Undo the changes of threads that do not exist in the child."""
    while _changes and _changes[-1][0] != threading.get_ident():
        _changes.pop()[1]()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def is_for_caller() -> bool:
    """Return whether this thread is compiling a kernel for another kernel, not for Python."""
    return getattr(_thread, "for_caller", False)


class _Code(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The LLVM code of a kernel that Python calls."""

    # Sums with reordered additions use Numba's standard passes, which determine their last bits.
    is_sum = False

    def add_ir_module(self, module: Any) -> None:
        """Add generated code; exclude large wrappers for Python arguments from optimisation.

        For the fused training steps the wrapper was a quarter of LLVM's work. Optimising it would
        save only a microsecond per call, and each call takes many training steps.
        """
        for function in module.functions:
            if (
                function.name.startswith(_WRAPPER_PREFIX)
                and len(function.blocks) > _LARGE_WRAPPER_BLOCKS
            ):
                function.attributes.add("noinline")
                function.attributes.add("optnone")
        super().add_ir_module(module)

    def _optimize_functions(self, module: Any) -> None:
        """Skip the passes over single functions; the module passes optimise all of them again."""
        if "llvm_module" in _PASSES:
            super()._optimize_functions(module)
            return
        module.data_layout = self._codegen._data_layout
        if self.is_sum:
            self._run_function_passes(module)

    def _run_function_passes(self, module: Any) -> None:
        """Run Numba's function passes, skipping declarations, the majority of the functions."""
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        """Run the second of Numba's two passes; the first one is for reference counting."""
        if self.is_sum or "llvm_module" in _PASSES:
            super()._optimize_final_module()
            return
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for variable in self._final_module.global_variables:
            # constants of a linked kernel, which has no machine code of its own to set them
            env = environment.lookup_environment(variable.name)
            if env is not None:
                self._codegen.set_env(variable.name, env)


class LinkedCode(_Code):
    """Bitcode of a kernel for linking into other kernels, without machine code.

    LLVM only simplifies it; it is optimised again as a part of its callers. Sums with reordered
    additions are optimised completely here, so that their order is the same in all callers.
    """

    def _optimize_functions(self, module: Any) -> None:
        super()._optimize_functions(module)
        if not self.is_sum and "llvm_module" not in _PASSES:
            self._run_function_passes(module)

    def _optimize_final_module(self) -> None:
        if self.is_sum or "llvm_module" in _PASSES:
            super()._optimize_final_module()
            return
        # the first of Numba's two passes
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
    """Rebuild the saved result of a compilation for other kernels."""
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
    """Compiler options with a faster comparison, which happens a hundred times per compilation."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Flags):
            return self._changed_options() == other._changed_options()
        return bool(super().__eq__(other))

    def __hash__(self) -> int:
        return _HASH  # as in Numba, where it depends on the names only

    def copy(self) -> _Flags:
        """Return the options that functions compiled for this one inherit."""
        copy = _Flags(self)
        copy.discard("no_compile")  # otherwise Numba would compile its own functions again
        copy.discard("no_cpython_wrapper")
        return copy

    def _changed_options(self) -> dict[str, Any]:
        default = self.options
        return {key: value for key, value in self._values.items() if value != default[key].default}


_HASH = hash(compiler.Flags())


def _num_registered(context: Any) -> int:
    """Return the number of functions, attributes and types in the registries of a context."""
    return sum(
        len(getattr(registry, name))
        for registry, loader in context._registries.items()
        for name in loader.registry_items
    )


_last_num_registered: dict[int, int] = {}  # registry size at the last refresh, by id of the context
_signatures: dict[Any, Any] = {}  # resolved signatures of Numba's operators, by argument types


@contextmanager
def _cached_lookups() -> Iterator[None]:
    """Cache Numba's registry scans and signature lookups in the body of ``with``.

    Numba scans all registries for new functions with each function that it compiles. For each
    operation it searches all overloads of the operator, including those of strings and sets.
    """
    typing, target = registry.cpu_target.typing_context, registry.cpu_target.target_context
    if "refresh" in vars(target):  # nested: a kernel that another kernel calls
        yield
        return
    resolve_uncached = typing.resolve_function_type

    def refresh(context: Any, refresh_all: Any) -> None:
        num = _num_registered(context)
        if _last_num_registered.get(id(context)) != num:
            # set first, because `refresh_all` calls `refresh` again
            _last_num_registered[id(context)] = num
            _signatures.clear()
            refresh_all()

    def resolve(function: Any, arguments: Any, keywords: Any) -> Any:
        key = function, tuple(arguments)
        is_plain = not keywords and all(isinstance(one, types.Type) for one in arguments)
        signature = _signatures.get(key) if is_plain else None
        if signature is None:
            signature = resolve_uncached(function, arguments, keywords)
            if is_plain and _is_generated(typing, function, signature):
                _signatures[key] = signature
        return signature

    def undo() -> None:
        for context in (typing, target):
            vars(context).pop("refresh", None)
        vars(typing).pop("resolve_function_type", None)

    with _undone_by(undo):
        typing.refresh = partial(refresh, typing, typing.refresh)
        target.refresh = partial(refresh, target, target.refresh)
        typing.resolve_function_type = resolve
        yield


def _is_generated(typing: Any, function: Any, signature: Any) -> bool:
    """Return whether a signature is of code that Numba generates, not of a compiled function."""
    kind = function if isinstance(function, types.Type) else typing._lookup_global(function)
    if signature is None or not isinstance(kind, types.Function):
        return False
    return bool(kind._impl_keys.get(signature.args) == kind.typing_key)


class _Compiler(compiler.Compiler):  # type: ignore[misc]
    """Numba's compiler with the code libraries and options above."""

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
        # the garbage collector is off: a compiler makes many objects, few of them cyclic garbage
        with _undone_by(gc.enable) if gc.isenabled() else nullcontext():
            gc.disable()
            return super().compile_extra(function)


class Kernel(registry.CPUDispatcher):  # type: ignore[misc]
    """A function with its compiled code for each signature."""

    overloads: dict[Any, Any]  # results for calls from Python, by argument types

    def __init__(self, py_func: Any, locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals or {}, targetoptions or {}, pipeline_class=_Compiler)
        self._linked: dict[Any, Any] = {}  # results for calls from other kernels

    def compile(self, sig: Any) -> Any:
        """Compile the function for a signature, or load it from disk."""
        with global_compiler_lock, _cached_lookups():
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the call template for a kernel that is being compiled and calls this one."""
        with global_compiler_lock:
            was_for_caller = is_for_caller()
            with _undone_by(partial(setattr, self, "overloads", self.overloads)):
                _thread.for_caller = True
                self.overloads = self._linked
                try:
                    return super().get_call_template(args, kws)
                finally:
                    _thread.for_caller = was_for_caller

    def get_overload(self, sig: Any) -> Any:
        """Return the key by which a caller finds the code for a signature."""
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        result = self._linked.get(arguments)
        return super().get_overload(sig) if result is None else result.entry_point

    def add_overload(self, result: Any) -> None:
        """Add a compilation result, for Python or, if compiled for a caller, for other kernels."""
        if not is_for_caller():
            super().add_overload(result)
            return
        if result.entry_point is None:  # a unique key, by which callers find it
            result = result._replace(entry_point=object())
            self.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
        self._linked[tuple(result.signature.args)] = result
