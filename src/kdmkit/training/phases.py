"""A fit in phases: an encoder with a dense head, then a KDM layer behind the encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import apply, bad_argument, check_count, check_instance
from kdmkit.nn import JointLayer, make_linear
from kdmkit.training.fit_arguments import FitOptions, Rows
from kdmkit.training.loop import fit
from kdmkit.training.objectives import ConditionalObjective, DenseObjective

# The largest learning rate of an encoder: it diverges with a rate that suits components.
_ENCODER_RATE = 3e-3
# The learning rate of encoder and layer together, relative to that of pretraining.
_JOINT_RATE = 0.3


class PhasedFit:
    """Fits an encoder and a joint KDM behind it, phase by phase.

    1. `pretrain`: the encoder with a dense head.
    2. `place_components`: the layer's components start at centres of clusters of latent vectors.
    3. `fit_head`: the layer alone, on latent vectors of the fixed encoder.
    4. `fit_jointly`: encoder and layer together.
    5. `fit_head` again.

    Phases 1, 3 and 5 need an encoder; 3 and 5 run only if `head_epochs` is not 0. `fit_likelihood` is not
    part of `run`. For other phases call the methods one by one, and `minimize` with other objectives, rows
    or options between them.

    Args:
        encoder: from x to latent vectors z; None means z = x.
        layer: the joint KDM of z and y.
        train, validation: rows of inputs x and targets y.
        options: of all phases. `learning_rate` is that of the layer alone. An encoder takes at most 3e-3, and
            0.3 times as much together with the layer. With `averaging` every phase ends with averaged
            weights. Every phase has a folder inside `checkpoint_dir`.
        dense: the dense head; None is a linear map.
        head_epochs: epochs of the layer alone, before and after it is trained together with the encoder.
        generative_weight: α of the loss −log p(y|z) − α·log p(z).
        noise, loss: of `fit_jointly`, as in `ConditionalObjective`.
        identity: what else checkpoints depend on, as in `fit`.

    Attributes:
        histories: the history of every phase that has run, by its name.
        generator: of first weights.

    >>> import kdmkit as kdm
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> encoder, layer = nn.Linear(4, 2), kdm.nn.JointLayer(2, 3, n_components=9)
    >>> options = kdm.training.FitOptions(max_epochs=3, averaging=0.2)
    >>> phases = PhasedFit(encoder, layer, kdm.training.Rows((x, y)), options=options, head_epochs=2)
    >>> {phase: len(history) for phase, history in phases.run().items()}
    {'pretraining': 3, 'head-before': 2, 'joint': 3, 'head-after': 2}
    """

    def __init__(
        self,
        encoder: nn.Module | None,
        layer: JointLayer,
        train: Rows,
        validation: Rows | None = None,
        *,
        options: FitOptions,
        dense: nn.Module | None = None,
        head_epochs: int = 0,
        generative_weight: float = 0.0,
        noise: float = 0.0,
        loss: Literal["nll", "mse"] = "nll",
        identity: dict[str, Any] | None = None,
    ) -> None:
        check_count("head_epochs", head_epochs, least=0)
        check_instance("layer", layer, JointLayer, "a kdmkit.nn.JointLayer")
        self.encoder, self.layer, self.dense = encoder, layer, dense
        self.train, self.validation, self.options = train, validation, options
        self.head_epochs, self.generative_weight, self.identity = head_epochs, generative_weight, identity
        self.noise, self.loss = noise, loss
        self.histories: dict[str, list[dict[str, float]]] = {}
        self.generator = torch.Generator().manual_seed(options.seed)

    def run(self) -> dict[str, list[dict[str, float]]]:
        """All phases, one after the other; returns their histories."""
        self.pretrain()
        self.place_components()
        self.fit_head("head-before")
        self.fit_jointly()
        self.fit_head("head-after")
        return self.histories

    # ---- phases

    def pretrain(self) -> None:
        """Trains the encoder with a dense head, so that its latent space separates the targets."""
        if self.encoder is None:
            return
        if self.dense is None:
            self.dense = self._make_dense(self.encoder)
        self.minimize("pretraining", DenseObjective(self.encoder, self.dense))

    def place_components(self) -> None:
        """Starts the components at centres of clusters of latent vectors."""
        x, y = self.train.tensors[:2]
        generator = torch.Generator().manual_seed(self.options.seed)
        self.layer.initialize(self.encode(x), y, method="kmeans", generator=generator)

    def fit_head(self, phase: str) -> None:
        """Trains the layer alone on latent vectors, which are computed once.

        Before `fit_jointly`, it protects the encoder from gradients of untrained components; after it, it
        adapts the components to the encoder's last weights.
        """
        if self.encoder is not None and self.head_epochs:
            self.minimize(phase, self.head_objective(), self.latent_rows)

    def fit_jointly(self) -> None:
        """Trains encoder and layer together; without an encoder the layer."""
        settings = {"generative_weight": self.generative_weight, "noise": self.noise}
        objective = ConditionalObjective(self.encoder, self.layer, **settings, loss=self.loss)
        self.minimize("joint", objective)

    def fit_likelihood(self) -> None:
        """Maximises the layer's likelihood p(z, y) from its present weights; the encoder is fixed."""
        objective = ConditionalObjective(None, self.layer, generative_weight=1.0)
        self.minimize("likelihood", objective, self.latent_rows)

    # ---- parts of the phases

    def head_objective(self) -> nn.Module:
        """The objective of `fit_head`; it takes latent vectors and targets."""
        return ConditionalObjective(None, self.layer, generative_weight=self.generative_weight)

    def options_for(self, phase: str) -> FitOptions:
        """The options of a phase."""
        changes: dict[str, Any] = {}
        rate = min(self.options.learning_rate, _ENCODER_RATE)
        if phase.startswith("head"):
            changes["max_epochs"] = self.head_epochs
        elif phase == "joint" and self.encoder is not None:
            changes["learning_rate"] = _JOINT_RATE * rate
        elif phase not in ("joint", "likelihood"):
            changes["learning_rate"] = rate
        if self.options.checkpoint_dir is not None:
            changes["checkpoint_dir"] = Path(self.options.checkpoint_dir) / phase
        return replace(self.options, **changes)

    def _make_dense(self, encoder: nn.Module) -> nn.Module:
        """A linear map from latent vectors to as many outputs as y has dimensions or classes."""
        latent = encode_rows(encoder, self.train.tensors[0][:2]).shape[1]
        kernel, y = self.layer.kernel("y"), self.layer.components["y"]
        outputs = kernel.probs(y[:1]) if kernel.discrete else y[:1].flatten(1)
        return make_linear(latent, outputs.shape[-1], self.generator)

    def encode(self, x: Tensor) -> Tensor:
        """Latent vectors of many rows, without gradients."""
        return x if self.encoder is None else encode_rows(self.encoder, x)

    def latent_rows(self, rows: Rows) -> Rows:
        """The rows with latent vectors in place of inputs."""
        x, *rest = rows.tensors
        return Rows((self.encode(x), *rest), rows.weights)

    def minimize(
        self,
        phase: str,
        objective: nn.Module,
        prepare: Callable[[Rows], Rows] = lambda rows: rows,
        **changes: Any,
    ) -> None:
        """Fits an objective with the options of a phase and keeps the history.

        Args:
            phase: the name in `histories`.
            objective: maps the tensors of a batch to one loss per row.
            prepare: maps the rows of `train`, and those of `validation`, to the rows of the objective.
            changes: options that differ from those of the phase.
        """
        validation = None if self.validation is None else prepare(self.validation)
        options = replace(self.options_for(phase), **changes)
        settings: dict[str, Any] = {"options": options, "identity": self.identity}
        self.histories[phase] = fit(objective, prepare(self.train), validation, description=phase, **settings)


@torch.no_grad()
def encode_rows(
    encoder: nn.Module, x: Tensor, device: torch.device | None = None, *, block: int = 8192
) -> Float[Tensor, "n e"]:
    """Latent vectors of many rows, in evaluation mode, as float32 on the device of x.

    Args:
        encoder: from rows to vectors.
        x: rows.
        device: of the computation; afterwards the encoder moves back. None is the encoder's device.
        block: the number of rows per forward pass.

    Returns:
        One latent vector per row.

    >>> encode_rows(nn.Linear(3, 2), torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """
    home = next((tensor.device for tensor in chain(encoder.parameters(), encoder.buffers())), x.device)
    device = home if device is None else device
    encoder.eval().to(device)
    blocks = [_encode(encoder, part.to(device)).to(x.device) for part in x.split(block)]
    encoder.to(home)
    return torch.cat(blocks)


def _encode(encoder: nn.Module, x: Tensor) -> Tensor:
    latent, n = apply("encoder", encoder, x), len(x)
    if not isinstance(latent, Tensor) or latent.ndim != 2 or len(latent) != n:
        got = tuple(latent.shape) if isinstance(latent, Tensor) else type(latent).__name__
        raise ValueError(bad_argument("encoder", f"outputs of shape ({n}, features) for {n} rows", got))
    return latent.float()
