"""Imports that only a fit needs."""

import subprocess
import sys


def test_accelerate_is_imported_by_a_fit_and_not_before():
    code = (
        "import sys, kdmkit.training as t; assert 'accelerate' not in sys.modules;"
        "import torch; rows = t.Rows((torch.ones(2, 2),));"
        "m = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0));"
        "t.fit(m, rows, options=t.FitOptions(max_epochs=1)); assert 'accelerate' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
