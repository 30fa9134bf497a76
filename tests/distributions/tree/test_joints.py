"""Trees and joint KDMs: a joint is a tree of one node, and a chain of joints is a tree of two."""

import torch
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, simplex


def joint(batch: tuple[int, ...] = ()) -> kdm.JointKDM:
    components = {"x": normal(6, 2, seed=1), "y": normal(6, 3, seed=2).abs(), "z": torch.arange(6) % 4}
    kernels = {"x": kdm.RBF(0.8), "y": kdm.Cosine(), "z": kdm.Categorical(4, 0.1).double()}
    return kdm.JointKDM(components, simplex(*batch, 6, seed=3), kernels)


X, Y, Z = normal(5, 2, seed=4), torch.tensor([0, 1, 2, 1, 0]), torch.tensor([0, 1, 2, 3, 1])


def test_a_joint_is_a_tree_of_one_node() -> None:
    rho = joint()
    tree = kdm.TreeKDM.from_joint(rho)
    assert tree.nodes == {"joint": ("x", "y", "z")}
    close(tree.log_prob(x=X, y=Y, z=Z), rho.log_prob(x=X, y=Y, z=Z))
    close(tree.infer(x=X, target="y").probs, rho.infer(x=X, target="y").probs)
    close(tree.infer(x=X).log_evidence, rho.infer(x=X).log_evidence)
    close(tree.infer(x=X).log_prob(y=Y, z=Z), rho.infer(x=X).log_prob(y=Y, z=Z))
    close(tree.marginal("x").log_prob(X), rho.marginal("x").log_prob(X))
    bag = kdm.KDM(X[:3], simplex(5, 3, seed=8), kdm.RBF(0.8))
    close(tree.infer(x=bag, target="z").probs, rho.infer(x=bag, target="z").probs, rtol=1e-6)
    noisy = {"x": bag, "noisy": True, "target": "y"}
    close(tree.infer(**noisy).probs, rho.infer(**noisy).probs)


def test_a_joint_with_a_batch_of_weights() -> None:
    rho = joint((5,))
    tree = kdm.TreeKDM.from_joint(rho)
    assert tree.batch_shape == (5,)
    close(tree.log_prob(x=X, y=Y, z=Z), rho.log_prob(x=X, y=Y, z=Z))
    close(tree.infer(x=X, y=Y).probs, rho.infer(x=X, y=Y).probs, rtol=1e-6)
    assert tree.sample((7,))["x"].shape == (7, 5, 2)


def test_the_papers_chain_is_a_tree_of_two_nodes() -> None:
    """ρ_yz.infer(y=ρ_xy.infer(x=x)): {x, y} → {z} with the edge softmax_j(ℓ′_j + log_overlap(y_i, y′_j))."""
    kernel = kdm.RBF(0.7)
    first = kdm.JointKDM(
        {"x": normal(6, 2, seed=1), "y": normal(6, 1, seed=2)},
        simplex(6, seed=3),
        {"x": kdm.RBF(0.9), "y": kernel},
    )
    second = kdm.JointKDM(
        {"y": normal(8, 1, seed=4), "z": normal(8, 3, seed=5).abs()},
        simplex(8, seed=6),
        {"y": kernel, "z": kdm.Cosine()},
    )
    chain = second.infer(y=first.infer(x=X))
    overlaps = kernel.log_overlap(first.components["y"].unsqueeze(1), second.components["y"])
    edge: Tensor = torch.log_softmax(second.log_weights + overlaps, -1)
    tree = kdm.TreeKDM(
        {**first.components, "z": second.components["z"]},
        {**first.kernels, "z": kdm.Cosine()},
        {"xy": None, "z": "xy"},
        nodes={"xy": ("x", "y"), "z": ("z",)},
        log_root_weights=first.log_weights,
        log_edge_weights={"z": edge},
    )
    rho = tree.infer(x=X, target="z")
    close(rho.log_weights, chain.log_weights)
    close(rho.log_prob(Y), chain.log_prob(Y))


def test_a_batch_of_trees() -> None:
    """Edges, roots and components of every element of a batch."""
    edges, roots, c = simplex(2, 3, 4, seed=1), simplex(2, 3, seed=2), normal(2, 3, 1, seed=3)
    kernels = {"x": kdm.RBF(0.5), "y": kdm.Categorical(4).double()}
    parents = {"x": None, "y": "x"}
    codes = torch.arange(4)
    tree = kdm.TreeKDM({"x": c, "y": codes}, kernels, parents, roots, {"y": edges})
    x, y = normal(5, 2, 1, seed=4), torch.tensor([3, 1])
    singles = [
        kdm.TreeKDM({"x": c[i], "y": codes}, kernels, parents, roots[i], {"y": edges[i]}) for i in range(2)
    ]
    wanted = torch.stack([one.log_prob(x=x[:, i], y=y[i]) for i, one in enumerate(singles)], -1)
    close(tree.log_prob(x=x, y=y), wanted)
    close(tree.marginal("y").probs, torch.stack([one.marginal("y").probs for one in singles]), rtol=1e-6)
    posterior = torch.stack([one.infer(x=x[:, i]).probs for i, one in enumerate(singles)], 1)
    close(tree.infer(x=x).probs, posterior, rtol=1e-6)
    assert tree.sample((3,))["y"].shape == (3, 2)
    assert tree.infer(x=x, target=("y",)).sample((3,)).shape == (3, 5, 2)
