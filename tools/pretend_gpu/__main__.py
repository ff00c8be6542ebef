"""Start a module of Python with the pretended GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

_HERE = Path(__file__).parent
_BUILT = Path("build/pretend_gpu")


def main() -> None:
    """Build the runtime, and run the module named on the command line in place of this one."""
    if len(sys.argv) < 2:
        sys.exit(
            f"usage: python -m tools.pretend_gpu MODULE [ARGUMENT ...]\n\n{__package__.__doc__}"
        )
    if torch.version.cuda is None:
        sys.exit(f"pretend_gpu: torch {torch.__version__} is built without CUDA; install another")
    library = build()
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ |= {
        "LD_PRELOAD": str(library),
        # Of all processes that are started: `sitecustomize` is imported by each interpreter.
        "PYTHONPATH": os.pathsep.join([str(_HERE / "site"), str(Path.cwd()), *filter(None, found)]),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
        "PRETEND_GPU": str(library),
    }
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])


def build() -> Path:
    """Compile the runtime against the headers that came with torch; return the library."""
    compiler = shutil.which("gcc")
    if compiler is None:
        sys.exit("pretend_gpu: there is no gcc; install one")
    folders = [Path(place) / "nvidia/cu13/include" for place in sys.path]
    if not any((folder / "crt/host_defines.h").exists() for folder in folders):
        sys.exit("pretend_gpu: CUDA's headers are not there; pip install nvidia-cuda-crt")
    _BUILT.mkdir(parents=True, exist_ok=True)
    library = (_BUILT / "libcuda.so.1").resolve()
    includes = [f"-I{folder}" for folder in folders if folder.exists()]
    # Under this name torch takes it for the driver too.
    named = "-Wl,-soname,libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", *includes, str(_HERE / "cudart.c"), named]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


if __name__ == "__main__":
    main()
