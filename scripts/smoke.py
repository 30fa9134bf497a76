"""The first things that a user does, with an installed wheel and without extras."""

import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_iris

import kdmkit as kdm

assert version("kdmkit") == kdm.__version__
assert "site-packages" in kdm.__file__, kdm.__file__

X, y = load_iris(return_X_y=True)
classifier = kdm.KDMClassifier(max_epochs=10, random_state=0).fit(X, y)
assert classifier.score(X, y) > 0.9
regressor = kdm.KDMRegressor(max_epochs=10, random_state=0).fit(X[:, :3], X[:, 3])
low, high = regressor.predict_interval(X[:, :3], coverage=0.9).T
assert (low < high).all()
density = kdm.KDMDensity().fit(X)
table = kdm.KDMTable(n_components=4, max_epochs=3, random_state=0)
table.fit({"length": X[:, 0], "kind": np.array(["a", "b", "c"])[y]})
assert 0 < table.query("P(kind = a | length < 5)").probability() < 1

with tempfile.TemporaryDirectory() as folder:
    for model, rows in ((classifier, X), (regressor, X[:, :3]), (density, X)):
        path = Path(folder, "model.safetensors")
        kdm.save(model, path)
        assert np.allclose(kdm.load(path).score_samples(rows), model.score_samples(rows))

rho = kdm.KDM(torch.zeros(1, 1), None, kdm.RBF(1.0))
assert torch.isclose(rho.log_prob(torch.zeros(1)), torch.tensor(-0.5724), atol=1e-4)
print(f"kdmkit {kdm.__version__}: the installed wheel works")
