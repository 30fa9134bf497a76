"""What has to happen before anything imports Triton: its kernels run in its interpreter, on the CPU."""

import importlib.util
import os

os.environ.setdefault("TRITON_INTERPRET", "1")

# Triton comes with CUDA builds of torch and, for development, on Linux. Without it these cannot be imported.
collect_ignore_glob = (
    [] if importlib.util.find_spec("triton") else ["tests/ops_triton/*", "src/kdmkit/ops/triton/*"]
)
