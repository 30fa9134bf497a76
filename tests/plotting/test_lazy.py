"""matplotlib is wanted only where a figure is drawn."""

import subprocess
import sys

import pytest

from kdmkit import plotting

_IMPORTS = "import sys, kdmkit, kdmkit.plotting; sys.exit('matplotlib' in sys.modules)"


def test_importing_does_not_import_matplotlib():
    assert subprocess.run([sys.executable, "-c", _IMPORTS], check=False).returncode == 0


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'kdmkit\[plot\]'"):
        plotting.plot_pit([0.1, 0.5])
