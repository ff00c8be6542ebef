"""The model: an encoder makes tokens of images, which enter where the texts have placeholders."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.vlm.data.batches import IGNORE
from examples.vlm.model.attention import Table
from examples.vlm.model.config import ModelConfig, VisionConfig
from examples.vlm.model.inputs import Inputs, Patches, own_share
from examples.vlm.model.layers import Transformer, angles

CHUNK = 2**22  # logits in memory at a time, about: 16 MB of float32


class VisionEncoder(nn.Module):
    """A ViT over images of any size in one row; positions turn with row and column.

    Images of fixed size are the case in which all segments have one length.
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


class VLM(nn.Module):
    """A ViT, a projector and a causal decoder.

    `image_id` is the placeholder of an image's features, `kernel` one of `attention.KERNELS`, or a
    table of them by length. Ranks of `context` share rows. The `last` one of a pipeline has losses.
    """

    def __init__(
        self, config: ModelConfig, vocabulary: int, image_id: int, kernel: str | Table
    ) -> None:
        super().__init__()
        self.config, self.image_id, self.kernel = config, image_id, kernel
        self.context: dist.ProcessGroup | None = None
        self.last = True
        self.vision = VisionEncoder(config.vision)
        self.projector = Projector(config.vision, config.width)
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.language = Transformer(
            config.width, config.layers, config.heads, config.kv_heads, config.hidden
        )
        self.head = nn.Linear(config.width, vocabulary, bias=False)
        self.apply(_initialise)

    def forward(self, inputs: Inputs, received: Tensor | None = None) -> Tensor:
        """Return the cross entropy of each next token in nats: float32 [T], 0 without a target.

        Under context parallelism it is that of this rank's tokens: [T / ranks]. The caller divides
        the losses by the number of labels over all ranks and accumulated batches. In a pipeline,
        ranks but the first take activations `[T, width]`, and ranks but the last return them.
        """
        if self.context is not None:
            merged = self.config.vision.merge**2
            how: dict[str, Any] = {"image_id": self.image_id, "merged": merged}
            inputs = own_share(inputs, self.context, kernel=self.kernel, **how)
        segments = inputs.segments
        x = self.embed(inputs) if received is None else received
        x = self.language(x, self.turns(inputs.positions), segments, segments.kernel)
        return self.losses(x, inputs.targets) if self.last else x

    def embed(self, inputs: Inputs) -> Tensor:
        """Embed tokens `[T, width]`, those of images by the encoder."""
        patches = inputs.patches
        features = self.projector(self.vision(patches, patches.segments.kernel))
        wanted = inputs.ids == self.image_id
        return place(self.embedding(inputs.ids), features, wanted, inputs.skipped)

    def turns(self, positions: Tensor) -> Tensor:
        """Angles of positions: float32 `[T, size of a head / 2]`."""
        return angles(positions, self.config.width // self.config.heads, self.config.rope_base)

    def losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of each next token, from some rows of logits at a time.

        Logits of 8,192 tokens of 128,000 words take 4 GB, and their gradient as much again. So they
        are recomputed in the backward pass.
        """
        rows = max(1, CHUNK // self.head.out_features)
        if len(x) <= 2 * rows or not torch.is_grad_enabled():
            return self._entropy(x, targets)
        parts = [
            checkpoint(self._entropy, some, wanted, use_reentrant=False)
            for some, wanted in zip(torch.split(x, rows), torch.split(targets, rows), strict=True)
        ]
        return torch.cat(parts)

    def _entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(x)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return functional.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none")


def place(embedded: Tensor, features: Tensor, wanted: Tensor, skipped: int = 0) -> Tensor:
    """Put features `[F, width]`, in order, where images are wanted among `[T, width]`.

    Selecting rows by a mask would wait for the device, so every token looks up a feature, or a row
    of zeros. `skipped` features come before the first. Too few are noticed on the CPU only.
    """
    if wanted.device.type == "cpu" and skipped + wanted.sum() > len(features):
        raise ValueError(
            f"the texts have {skipped + int(wanted.sum())} places for images and the images make "
            f"{len(features)} tokens; give TextSpec the model's image_tokens"
        )
    none = len(features)
    which = torch.where(wanted, wanted.cumsum(0) - 1 + skipped, none)
    table = torch.cat([features, features.new_zeros(1, features.shape[1])])
    found = functional.embedding(which, table, padding_idx=none).to(embedded.dtype)
    return torch.where(wanted[:, None], found, embedded)


def _initialise(module: nn.Module) -> None:
    """Draw normal weights of deviation 0.02, as in GPT-2; no bias."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
