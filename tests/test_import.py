"""What `import kdmkit` brings along."""

import subprocess
import sys


def test_importing_is_light():
    """The compiler and what draws figures take seconds to import: whoever uses them pays."""
    heavy = ["torch._dynamo", "torch._inductor", "triton", "matplotlib", "sklearn.cluster"]
    code = f"import sys, kdmkit; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
