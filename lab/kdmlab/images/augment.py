"""Random changes of training images that keep their class."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Augment:
    """Moves, turns, scales, mirrors and covers images, each at random by torch's global generator.

    Args:
        shift: the farthest move in pixels, to whole ones.
        turn: the largest angle, in degrees.
        scale: the largest relative change of size.
        mirror: whether left and right may change sides.
        cover: the side of a square that is set to the image's mean, 0 for none.
    """

    shift: int = 0
    turn: float = 0.0
    scale: float = 0.0
    mirror: bool = False
    cover: int = 0

    def __call__(self, x: Float[Tensor, "n c s s"]) -> Float[Tensor, "n c s s"]:
        grid = functional.affine_grid(self._maps(x), list(x.shape), align_corners=False)
        moved = functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
        return self._covered(moved) if self.cover else moved

    def _maps(self, x: Tensor) -> Float[Tensor, "n 2 3"]:
        """Affine maps from positions in the new image to the old one, in units of half its side."""
        n, side = len(x), x.shape[-1]
        angle = (2 * torch.rand(n, device=x.device) - 1) * math.radians(self.turn)
        scale = 1 + (2 * torch.rand(n, device=x.device) - 1) * self.scale
        sign = 1.0 - 2.0 * (torch.rand(n, device=x.device) < 0.5 * self.mirror).float()
        move = torch.randint(-self.shift, self.shift + 1, (n, 2), device=x.device) * (2 / side)
        cosine, sine = scale * angle.cos(), scale * angle.sin()
        rows = torch.stack([sign * cosine, -sine, sign * sine, cosine], -1).view(n, 2, 2)
        return torch.cat([rows, move.unsqueeze(-1)], -1)

    def _covered(self, x: Tensor) -> Tensor:
        n, side = len(x), x.shape[-1]
        corner = torch.randint(-self.cover // 2, side - self.cover // 2, (n, 2, 1), device=x.device)
        place = torch.arange(side, device=x.device)
        inside = (place >= corner) & (place < corner + self.cover)
        square = (inside[:, 0, :, None] & inside[:, 1, None, :]).unsqueeze(1)
        return torch.where(square, x.mean((-1, -2), keepdim=True), x)


#: The usual augmentation of each set. Digits are not mirrored: that would change them.
AUGMENTS = {
    "mnist": Augment(shift=2, turn=15, scale=0.15),
    "fashion_mnist": Augment(shift=2, mirror=True, cover=8),
    "cifar10": Augment(shift=4, mirror=True, cover=8),
    "digits": Augment(shift=1, turn=10),
}
