"""What has to happen before anything imports Triton: its kernels run in its interpreter, on the CPU."""

import importlib.util
import os
from importlib.metadata import version

os.environ.setdefault("TRITON_INTERPRET", "1")

# Triton comes with CUDA builds of torch and, for development, on Linux. Without it these cannot be imported.
# The interpreter of older releases (3.2 and 3.4 were tried) does not find constants of a module.
_OLDEST_INTERPRETER = (3, 7)
collect_ignore_glob: list[str] = []
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob += ["tests/ops_triton/*", "src/kdmkit/ops/triton/*"]
elif tuple(map(int, version("triton").split(".")[:2])) < _OLDEST_INTERPRETER:
    collect_ignore_glob += ["tests/ops_triton/*", "tests/compiled/test_triton.py"]

# The page is an extra.
if importlib.util.find_spec("starlette") is None:
    collect_ignore_glob += ["src/kdmkit/explore", "tests/browser", "tests/explore"]
