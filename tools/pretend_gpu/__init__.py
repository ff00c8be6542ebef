"""A GPU that is pretended, to run code for one where there is none.

    python -m tools.pretend_gpu pytest -m gpu tests/loader

needs a build of torch for CUDA, gcc, and `pip install nvidia-cuda-crt`. Memory of the device is the
host's, torch's kernels run on the CPU, and copies are done as late as the code allows: what does
not wait for them reads what was there before. Graphs, Triton, NCCL, NVML and the profiler see no
GPU, models are not compiled, and DALI decodes on the CPU. It tells nothing about speed.
"""
