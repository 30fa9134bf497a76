"""Backend `triton`: fused kernels for one squared distance on a CUDA device.

Importing this package does not import Triton; `backend` does so with the first use.
"""
