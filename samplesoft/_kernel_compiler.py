"""A faster Numba compiler for kernels that are only called by other kernels.

Numba generates machine code and a Python wrapper for every function that it compiles. But most
kernels are called only by other kernels, into which LLVM links their bitcode. This compiler
translates such a kernel to bitcode only. If Python calls the kernel too, it is also compiled to
machine code, and other kernels still use the bitcode. So the results of a kernel do not depend on
which function was called first.
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

# Arguments of Numba's method that creates LLVM's function passes. They include `llvm_module` since
# Numba 0.62, where creating passes takes longer than running them; the classes below then run
# Numba's standard passes.
_PASS_MANAGER_ARGUMENTS = signature(codegen.CPUCodegen._function_pass_manager).parameters
VERSION = 2  # cached code of other versions of this compiler is not loaded
_WRAPPER_PREFIX = "_ZN7cpython"  # names of wrappers, which unpack Python arguments, begin with this
# Largest number of basic blocks at which a wrapper is optimised. A wrapper of a kernel with over
# five array arguments has more blocks, and is not optimised.
_MAX_OPTIMISED_WRAPPER_BLOCKS = 48
_thread_state = threading.local()
# for each temporary change of global state the id of its thread, and the function that undoes it
_undo_stack: list[tuple[int, Callable[[], None]]] = []


@contextmanager
def _undo_after_body_or_fork(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` after the body of ``with``.

    If another thread forks the process during the body, `undo` is called in the child at once.
    """
    _undo_stack.append((threading.get_ident(), undo))
    try:
        yield
    finally:
        _undo_stack.pop()
        undo()


def _undo_changes_of_other_threads() -> None:
    """In a forked child, undo changes of threads that exist only in the parent."""
    while _undo_stack and _undo_stack[-1][0] != threading.get_ident():
        _undo_stack.pop()[1]()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_undo_changes_of_other_threads)


def is_compiling_for_kernel() -> bool:
    """Return whether this thread is compiling a kernel that another kernel calls."""
    return getattr(_thread_state, "for_caller", False)


class _KernelCode(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The LLVM code of a kernel that Python calls."""

    # Whether the kernel reorders the additions of a sum. If so, Numba's standard passes compile it,
    # because the passes determine the last bits of the sum.
    is_sum = False

    def add_ir_module(self, module: Any) -> None:
        """Add a generated LLVM module; mark large wrappers in it as not to be optimised.

        A wrapper unpacks the Python arguments of a kernel. For the fused training steps, optimising
        the wrapper was a quarter of LLVM's work. It saved only a microsecond per call, and a call
        runs many training steps.
        """
        for function in module.functions:
            is_wrapper = function.name.startswith(_WRAPPER_PREFIX)
            if is_wrapper and len(function.blocks) > _MAX_OPTIMISED_WRAPPER_BLOCKS:
                function.attributes.add("noinline")
                function.attributes.add("optnone")
        super().add_ir_module(module)

    def _optimize_functions(self, module: Any) -> None:
        """Skip the function passes, except for sums: module passes optimise all functions again."""
        if "llvm_module" in _PASS_MANAGER_ARGUMENTS:
            super()._optimize_functions(module)
            return
        module.data_layout = self._codegen._data_layout
        if self.is_sum:
            self._run_function_passes(module)

    def _run_function_passes(self, module: Any) -> None:
        """Run Numba's function passes on the functions with a body; most are only declared."""
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        """Run only the second of Numba's two module passes; the first serves reference counting."""
        if self.is_sum or "llvm_module" in _PASS_MANAGER_ARGUMENTS:
            super()._optimize_final_module()
            return
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for variable in self._final_module.global_variables:
            # Set the pointer to the constants of a linked kernel, because Numba sets it only for
            # kernels with machine code.
            env = environment.lookup_environment(variable.name)
            if env is not None:
                self._codegen.set_env(variable.name, env)


class LinkedCode(_KernelCode):
    """Bitcode of a kernel for linking into other kernels, without machine code.

    LLVM only simplifies the bitcode, because it optimises the code again as part of each caller.
    But sums with reordered additions are optimised completely before linking, so that the order of
    additions is the same in all callers.
    """

    def _optimize_functions(self, module: Any) -> None:
        super()._optimize_functions(module)
        if not self.is_sum and "llvm_module" not in _PASS_MANAGER_ARGUMENTS:
            self._run_function_passes(module)

    def _optimize_final_module(self) -> None:
        if self.is_sum or "llvm_module" in _PASS_MANAGER_ARGUMENTS:
            super()._optimize_final_module()
            return

        # run only the first of Numba's two module passes
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


def rebuild_linked_result(context: Any, name: str, bitcode: bytes, **fields: Any) -> Any:
    """Return the compilation result that `_serialise_linked_result` has saved.

    `context` is Numba's target context, `name` the name of the code library, `bitcode` its LLVM
    bitcode, and `fields` are the other fields of the result.
    """
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
        **fields,
    )


class _Flags(compiler.Flags):  # type: ignore[misc]
    """Compiler options that compare faster; a compilation compares them about a hundred times."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Flags):
            return self._changed_options() == other._changed_options()
        return bool(super().__eq__(other))

    def __hash__(self) -> int:
        # equal for all objects, as in Numba, which hashes only the names of the options
        return _FLAGS_HASH

    def copy(self) -> _Flags:
        """Return the options that functions inherit when the compiled function calls them."""
        copy = _Flags(self)
        copy.discard("no_compile")  # with it, Numba would compile functions of its own again
        copy.discard("no_cpython_wrapper")
        return copy

    def _changed_options(self) -> dict[str, Any]:
        default = self.options
        return {key: value for key, value in self._values.items() if value != default[key].default}


_FLAGS_HASH = hash(compiler.Flags())


def _registry_size(context: Any) -> int:
    """Return the number of functions, attributes and types in a context's registries."""
    return sum(
        len(getattr(registry, name))
        for registry, loader in context._registries.items()
        for name in loader.registry_items
    )


_last_registry_sizes: dict[int, int] = {}  # `_registry_size` at the last refresh, by id of context
_resolved_signatures: dict[Any, Any] = {}  # signatures of operators, by operator and argument types


@contextmanager
def _cached_lookups() -> Iterator[None]:
    """Cache Numba's registry scans and signature lookups in the body of ``with``.

    Without this, Numba scans all registries for new functions whenever it compiles a function. For
    each operation it searches all overloads of the operator, even the overloads for strings.
    """
    typing = registry.cpu_target.typing_context
    target = registry.cpu_target.target_context
    if "refresh" in vars(target):  # an outer ``with`` compiles the kernel that calls this one
        yield
        return
    resolve_uncached = typing.resolve_function_type

    def refresh_if_changed(context: Any, refresh_all: Any) -> None:
        size = _registry_size(context)
        if _last_registry_sizes.get(id(context)) != size:
            # set before the scan, because `refresh_all` calls `refresh` again
            _last_registry_sizes[id(context)] = size
            _resolved_signatures.clear()
            refresh_all()

    def resolve_cached(function: Any, arguments: Any, keywords: Any) -> Any:
        key = function, tuple(arguments)
        is_plain = not keywords and all(isinstance(kind, types.Type) for kind in arguments)
        signature = _resolved_signatures.get(key) if is_plain else None
        if signature is None:
            signature = resolve_uncached(function, arguments, keywords)
            if is_plain and _is_generated_by_numba(typing, function, signature):
                _resolved_signatures[key] = signature
        return signature

    def remove_caches() -> None:
        for context in (typing, target):
            vars(context).pop("refresh", None)
        vars(typing).pop("resolve_function_type", None)

    with _undo_after_body_or_fork(remove_caches):
        typing.refresh = partial(refresh_if_changed, typing, typing.refresh)
        target.refresh = partial(refresh_if_changed, target, target.refresh)
        typing.resolve_function_type = resolve_cached
        yield


def _is_generated_by_numba(typing: Any, function: Any, signature: Any) -> bool:
    """Return whether Numba itself generates the code of `function` for `signature`.

    Otherwise the code is a compiled function, whose signature must not be cached.
    """
    kind = function if isinstance(function, types.Type) else typing._lookup_global(function)
    if signature is None or not isinstance(kind, types.Function):
        return False
    return bool(kind._impl_keys.get(signature.args) == kind.typing_key)


class _Compiler(compiler.Compiler):  # type: ignore[misc]
    """Numba's compiler with the classes of code and options defined in this module."""

    def compile_extra(self, function: Any) -> Any:
        """Compile a Python function, and return the compilation result."""
        state = self.state
        linked = is_compiling_for_kernel()

        code_class = LinkedCode if linked else _KernelCode
        state.library = code_class(state.targetctx.codegen(), function.__qualname__)
        state.library.enable_object_caching()
        state.flags = _Flags(state.flags)
        state.library.is_sum = bool(state.flags.fastmath)
        if linked:
            state.flags.no_cpython_wrapper = True
            state.flags.no_compile = True

        # Turn the garbage collector off. It would scan the many objects that a compiler makes, few
        # of which are cyclic garbage.
        restored: Any = _undo_after_body_or_fork(gc.enable) if gc.isenabled() else nullcontext()
        with restored:
            gc.disable()
            return super().compile_extra(function)


class Kernel(registry.CPUDispatcher):  # type: ignore[misc]
    """A function made by `samplesoft._jit.njit`, with its compiled code for each signature."""

    overloads: dict[Any, Any]  # compilation results for calls from Python, by argument types

    def __init__(self, py_func: Any, locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals or {}, targetoptions or {}, pipeline_class=_Compiler)
        # compilation results for calls from other kernels, by argument types
        self._linked_overloads: dict[Any, Any] = {}

    def compile(self, sig: Any) -> Any:
        """Compile the function for a signature, or load it from disk; return its entry point."""
        with global_compiler_lock, _cached_lookups():
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return Numba's template for calls of this kernel from a kernel that is being compiled."""
        with global_compiler_lock:
            was_for_caller = is_compiling_for_kernel()
            with _undo_after_body_or_fork(partial(setattr, self, "overloads", self.overloads)):
                _thread_state.for_caller = True
                self.overloads = self._linked_overloads
                try:
                    return super().get_call_template(args, kws)
                finally:
                    _thread_state.for_caller = was_for_caller

    def get_overload(self, sig: Any) -> Any:
        """Return the key under which callers find the code for a signature."""
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        result = self._linked_overloads.get(arguments)
        return super().get_overload(sig) if result is None else result.entry_point

    def add_overload(self, result: Any) -> None:
        """Add a compilation result, for calls from kernels if it was compiled for a kernel.

        Otherwise it is added for calls from Python.
        """
        if not is_compiling_for_kernel():
            super().add_overload(result)
            return
        if result.entry_point is None:  # callers need a unique key to find the code
            result = result._replace(entry_point=object())
            self.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
        self._linked_overloads[tuple(result.signature.args)] = result
