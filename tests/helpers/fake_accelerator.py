"""A device that is not the CPU but computes on it: as on a GPU, tensors of two devices do not mix,
and what waits for the device is counted. A process registers it once, before its first backward.

A tensor of the device shares its memory with a tensor of the CPU (both made by DLPack from one
another); every operation that torch dispatches to the device runs on the latter."""

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

from mrlm.learn.fast import prefix_tree

NAME = "fake"
CPU, EXTENSION = 1, 12
"""Types of devices in DLPack."""
WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "bincount"}
"""Operations whose result the host reads, or whose size depends on values."""
ALLOCATES = {"empty", "empty_strided", "empty_like", "new_empty"}
COPIES = {"copy_", "_copy_from"}


@dataclass(slots=True)
class Counted:
    """What the device did, by operation and by the line of the project that asked for it."""

    kernels: Counter[str] = field(default_factory=Counter)
    """Operations, without views and allocations."""
    waits: Counter[str] = field(default_factory=Counter)
    """Times that the host waited for the device, by `operation file:line`."""
    largest: int = 0
    """Bytes of the largest new tensor."""
    made: int = 0
    """Bytes of all new tensors."""
    moved: int = 0
    """Bytes that were copied from the host or to it."""


_counted: list[Counted] = []
_library: list[torch.library.Library] = []
_without_float64: list[bool] = []


class _Module(backend_registration._DummyBackendModule):
    """`torch.fake`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """Nothing: it draws from the generator of the CPU."""


class _Exported(ctypes.Structure):
    """The start of DLPack's managed tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def register(float64: bool = True) -> torch.device:
    """Make the device known to torch, once in a process.

    Args:
        float64: whether the device has it; the GPU of a Mac does not.
    """
    if not float64:
        _without_float64.append(True)
    if not _library:
        torch.__future__.set_swap_module_params_on_conversion(True)  # ties stay ties
        backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
        _library.append(torch.library.Library("_", "IMPL"))
        _library[0].fallback(_run, "PrivateUse1")
        _library[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        Tensor.__deepcopy__ = _deep_copy  # pyright: ignore[reportAttributeAccessIssue]
        Tensor.pin_memory = _pinned  # pyright: ignore[reportAttributeAccessIssue]
        prefix_tree.PINNED.add(NAME)
    return torch.device(NAME, 0)


@contextmanager
def counted() -> Iterator[Counted]:
    """Count what the device does, in all threads."""
    found = Counted()
    _counted.append(found)
    try:
        yield found
    finally:
        _counted.remove(found)


def _moved(tensor: Tensor, kind: int) -> Tensor:
    """The same memory as a tensor of another device."""
    capsule = torch._C._to_dlpack(tensor)
    _Exported.from_address(_pointer(capsule, b"dltensor")).device_type = kind
    return torch._C._from_dlpack(capsule)


_deep_copy_of_others = Tensor.__deepcopy__


def _deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Torch would allocate a storage without an operation."""
    if tensor.device.type != NAME:
        return _deep_copy_of_others(tensor, memo)
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    """A copy that is known as page-locked."""
    copy = tensor.clone()
    copy.pinned = True  # pyright: ignore[reportAttributeAccessIssue]
    return copy


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation of the device, on the CPU."""
    name = _name(op)
    flat = not any(map(_nested, args)) and not any(map(_nested, kwargs.values()))
    leaves, form = [*args, *kwargs.values()], None
    if not flat:  # a tree of torch takes longer than most operations
        leaves, form = pytree.tree_flatten((args, kwargs))
    _check(op, name, leaves, args)
    _count(op, name, leaves, args, kwargs)
    written = _written(op)
    grown: list[tuple[Tensor, Tensor]] = []
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.device.type == NAME:
            leaves[at] = _moved(leaf, CPU)
            if (leaf.numel() == 0 and leaf is kwargs.get("out")) or name == "resize_":
                leaves[at] = leaves[at].clone()  # memory of the device cannot be resized
                grown.append((leaf, leaves[at]))
        elif isinstance(leaf, torch.device) and leaf.type == NAME:
            leaves[at] = torch.device("cpu")
    own_args: Any = leaves[: len(args)]
    own_kwargs: Any = dict(zip(kwargs, leaves[len(args) :], strict=True)) if flat else {}
    if form is not None:
        own_args, own_kwargs = pytree.tree_unflatten(leaves, form)
    if name == "_copy_from":
        own_args[1].copy_(own_args[0])
        return args[1]
    found = op(*own_args, **own_kwargs)
    for leaf, host in grown:
        leaf.data = _moved(host, EXTENSION)
    results = found if isinstance(found, tuple) else (found,)
    ours = []
    for result, source in zip(results, written, strict=False):
        if source is not None:
            ours.append(kwargs[source] if source in kwargs else args[_place(op, source)])
        else:
            with _kind_of(op, args):
                _measure(op, result)
                _narrow(op, result)
                ours.append(pytree.tree_map_only(Tensor, lambda x: _moved(x, EXTENSION), result))
    if not isinstance(found, tuple):
        return ours[0] if ours else None
    return tuple(ours)


def _nested(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(
        isinstance(part, Tensor | list | tuple) for part in value
    )


@cache
def _name(op: Any) -> str:
    return op._schema.name.removeprefix("aten::")


def _kind_of(op: Any, args: tuple[Any, ...]) -> Any:
    """The mode in which a result is made: a view is an inference tensor if its base is one."""
    if not _views(op):
        return nullcontext()
    base = next(each for each in args if isinstance(each, Tensor))
    return torch.inference_mode(base.is_inference())


@cache
def _views(op: Any) -> bool:
    return any(each.alias_info and not each.alias_info.is_write for each in op._schema.returns)


@cache
def _written(op: Any) -> list[str | None]:
    """For each result, the argument that it is, for operations that write to one."""
    targets: list[str | None] = []
    for result in op._schema.returns:
        alias = result.alias_info
        same = [
            each.name
            for each in op._schema.arguments
            if alias
            and alias.is_write
            and each.alias_info
            and each.alias_info.before_set == alias.before_set
        ]
        targets.append(same[0] if same else None)
    return targets


def _place(op: Any, name: str) -> int:
    return [each.name for each in op._schema.arguments].index(name)


def _check(op: Any, name: str, leaves: list[Any], args: tuple[Any, ...]) -> None:
    """Fail where a GPU would: a tensor of the CPU that is more than a number is in the call."""
    if name in COPIES:
        return
    if name.startswith(("index", "_index")) and args[0].device.type == NAME:
        leaves = [each for each in leaves if each is not None]
        # indices may be on the CPU: they are copied, and waited for
        if all(
            each is args[0] or each.dtype in (torch.int64, torch.bool)
            for each in leaves
            if isinstance(each, Tensor) and each.device.type != NAME
        ):
            return
    wrong = [
        each
        for each in leaves
        if isinstance(each, Tensor) and each.device.type != NAME and each.ndim > 0
    ]
    if wrong:
        shapes = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in wrong)
        raise RuntimeError(
            f"{op}: expected all tensors to be on the same device, but found {NAME} and {shapes}"
        )


def _count(op: Any, name: str, leaves: list[Any], args: tuple[Any, ...], kwargs: Any) -> None:
    if not _counted:
        return
    tensors = [each for each in leaves if isinstance(each, Tensor)]
    mixed = len({each.device.type for each in tensors if each.ndim or name in COPIES}) > 1
    asynchronous = name in COPIES and True in (kwargs.get("non_blocking"), *args[2:3])
    source: Any = args[name == "copy_"] if asynchronous else None
    if source is not None and source.device.type != NAME:
        asynchronous = hasattr(source, "pinned")  # CUDA waits before it reads pageable memory
    indices = args[1] if name.startswith("index") and isinstance(args[1], list | tuple) else ()
    masks = any(each is not None and each.dtype == torch.bool for each in indices)
    waits = name in WAITS or masks or (mixed and not asynchronous)
    where = f"{name} {_line()}" if waits else ""
    hosts = [each.nbytes for each in tensors if each.device.type != NAME]
    for found in _counted:
        found.moved += sum(hosts) if mixed else 0
        if not _views(op) and name not in ALLOCATES:
            found.kernels[name] += 1
        if waits:
            found.waits[where] += 1


def _measure(op: Any, result: Any) -> None:
    """Record the size of a new tensor."""
    if _counted and not _views(op) and isinstance(result, Tensor):
        for found in _counted:
            found.largest = max(found.largest, result.nbytes)
            found.made += result.nbytes


def _narrow(op: Any, result: Any) -> None:
    """Fail where a device without float64 would."""
    if _without_float64 and isinstance(result, Tensor) and result.dtype == torch.float64:
        raise TypeError(f"{op}: the device has no float64: {_line()}")


def _line() -> str:
    """The innermost line of the project."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/mrlm/" in path:
            return f"{path.rpartition('/mrlm/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"
