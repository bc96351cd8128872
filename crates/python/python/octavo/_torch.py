"""Torch where it is there, and NumPy where it is not. Nothing here imports torch unless somebody asked for it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np

from ._octavo import CacheTensor


def is_torch_dtype(dtype: object) -> bool:
    """Whether this is a `torch.dtype`. One that exists has torch imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def is_torch_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def name_of(dtype: object) -> str:
    """The name of a precision given as a name, a NumPy dtype or a torch dtype."""
    if isinstance(dtype, str):
        return dtype
    if is_torch_dtype(dtype):
        return str(dtype)
    try:
        return np.dtype(dtype).name  # type: ignore[call-overload, no-any-return]
    except TypeError:
        raise TypeError(f"{dtype!r} is no dtype: give its name, a NumPy dtype or a torch.dtype") from None


def shared(tensor: CacheTensor, dtype: object) -> Any:
    """The same memory as whoever named the precision wants to see it: torch for a `torch.dtype`, otherwise NumPy, or
    the tensor itself where NumPy has no such dtype."""
    if is_torch_dtype(dtype):
        import torch

        if tensor.dtype == "float8_e4m3fn":
            # Torch has had the dtype for longer than it can read it from DLPack.
            return torch.from_dlpack(tensor.bytes()).view(dtype)
        return torch.from_dlpack(tensor)
    if tensor.dtype in ("bfloat16", "float8_e4m3fn"):
        return tensor
    return np.asarray(tensor)


def like(array: Any, dtype: object) -> Any:
    """An array in the library that `dtype` is of."""
    if is_torch_dtype(dtype):
        import torch

        return torch.from_numpy(array)
    return array


def tensor(numbers: list[int], device: str) -> Any:
    """int32, on a device: torch's where torch is installed."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        return torch.tensor(numbers, dtype=torch.int32, device=device)
    if device != "cpu":
        raise RuntimeError(f"there is no torch here to put a tensor on {device}: ask for device='cpu'")
    return np.array(numbers, dtype=np.int32)


def to_float32(name: str, value: Any, axes: int) -> Any:
    """A contiguous float32 array of so many axes, from an array or tensor of floating point."""
    if is_torch_tensor(value):
        value = value.detach().cpu().float().numpy()
    array = np.asarray(value)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} has dtype {array.dtype}: give floating point")
    if array.ndim != axes:
        raise ValueError(f"{name} has shape {array.shape}: it must have {axes} axes")
    return np.ascontiguousarray(array, dtype=np.float32)
