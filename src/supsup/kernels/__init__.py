"""Kernels: triton for GPUs, numba for CPUs, and CUDA graphs; `available` says which of them can be used."""
