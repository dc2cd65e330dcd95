"""Kernels: Triton for GPUs, numba for CPUs, and CUDA graphs; `available` says which compilers are installed."""
