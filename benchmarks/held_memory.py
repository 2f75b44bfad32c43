"""What tensors hold of the memory.

Not a benchmark itself.
"""

from __future__ import annotations

import gc

import torch


def tensor_bytes() -> int:
    """Return the bytes behind all tensors of this process; memory that several share, once."""
    gc.collect()
    storages = {
        (storage.device, storage.data_ptr()): storage.nbytes()
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.Tensor)  # isinstance would ask every object
        for storage in [thing.untyped_storage()]
    }
    return sum(storages.values())
