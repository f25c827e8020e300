"""Products of many shapes: the memory that stays does not grow with their number."""

import platform
import subprocess
import sys

import pytest
import torch

from mrlm.learn.fast.cpu_backends import onednn_serves

PROGRAM = """
import ctypes, torch
from mrlm.learn.fast.cpu_backends import limit_kept_kernels, onednn_serves, quick_products
limit_kept_kernels()
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
wide = torch.ones(256, 256, dtype=torch.float32 if onednn_serves() else torch.bfloat16)
with quick_products(wide.device, 1 << 40):
    for count in range(800):
        torch.ones(64 + count, 256, dtype=wide.dtype) @ wide
        if count % 200 == 199:
            print(library.mallinfo2().uordblks)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is counted by glibc")
def test_kernels_of_many_shapes_do_not_stay() -> None:
    """Without the limit each holds half a MiB here: 100 MiB more after every 200. The first 200
    do not fill the cache on every processor."""
    if not onednn_serves() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN computes none of our products on this processor")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *later = map(int, done.stdout.split())
    assert max(later) < first + (32 << 20)
