"""matplotlib is wanted only where a figure is drawn."""

import sys

import pytest

from kdmkit import plotting


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'kdmkit\[plot\]'"):
        plotting.plot_pit([0.1, 0.5])
