"""The encoder of images: patches in, tokens of the language model out."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.vlm.model.config import VisionConfig
from examples.vlm.model.inputs import Patches
from examples.vlm.model.layers import Transformer
from examples.vlm.model.rotary import angles


class VisionEncoder(nn.Module):
    """A ViT over images of any size in one row; positions turn with row and column.

    Images of fixed size are the case in which all segments are of one length.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        width, heads = config.width, config.heads
        self.embed = nn.Linear(3 * config.patch**2, width)
        self.transformer = Transformer(width, config.layers, heads, heads, 8 * width // 3)

    def forward(self, patches: Patches, kernel: str) -> Tensor:
        """Patches `[P, 3 * patch**2]` to features `[P, width]`."""
        half = self.config.width // self.config.heads // 2
        turned = torch.cat([angles(patches.rows, half), angles(patches.columns, half)], dim=-1)
        dtype = self.embed.weight.dtype
        # What blocks add to stays in float32 under autocast, as in the language model.
        x = self.embed(patches.values.to(dtype)).to(dtype)
        features: Tensor = self.transformer(x, turned, patches.segments, kernel)
        return features


class Projector(nn.Module):
    """An MLP from the `merge * merge` patches of a token to the language model's width."""

    def __init__(self, config: VisionConfig, width: int) -> None:
        super().__init__()
        self.merged = config.merge**2
        self.first = nn.Linear(config.width * self.merged, width)
        self.second = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Features `[P, vision width]` to `[P / merge**2, width]`."""
        merged = features.reshape(-1, self.first.in_features)
        projected: Tensor = self.second(functional.gelu(self.first(merged)))
        return projected
