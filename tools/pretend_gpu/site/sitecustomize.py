"""Imported by every interpreter that finds it: torch's kernels run on the CPU there."""

import os

if "PRETEND_GPU" in os.environ:
    from tools.pretend_gpu import kernels

    kernels.install()
