"""Train a small captioner on a packed dataset: the first training loop to read.

    datapipe pack RAW SHARDS
    python examples/train_captioner.py SHARDS

A small convolutional encoder turns the first image of each sample into a few prefix tokens, and a
causal transformer continues them with the sample's text, one UTF-8 byte at a time. It trains on the
CPU in about a minute and exits with an error when the loss does not fall. All that datapipe does
here is in `train`: make a loader, iterate over it, save its state.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import datapipe

IMAGE_SIZE = 96
PREFIX_TOKENS = 9  # the encoder's last feature map is 3 x 3
MAX_BYTES = 160  # longer texts are cut
END = 256  # follows the last byte of a text; 0 to 255 are the bytes
IGNORE = -100  # a target that counts nothing in the loss
WINDOW = 10  # steps of warm-up, between printed lines, and averaged for a smoothed loss


class Block(nn.Module):
    """A pre-norm transformer layer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens `[B, T, width]` to tokens of the same shape."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.mlp(self.norm_mlp(x))
        return mixed


def shrink(channels: int, out: int, kernel: int, stride: int) -> nn.Sequential:
    """Make a strided convolution; its batch norm leaves what differs between images."""
    convolution = nn.Conv2d(channels, out, kernel, stride, padding=(kernel - stride + 1) // 2)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


class Captioner(nn.Module):
    """Image prefix and text bytes in, logits over the next byte out."""

    def __init__(self, width: int = 96, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            shrink(3, 32, kernel=4, stride=4),  # 96 -> 24
            nn.GELU(),
            shrink(32, 64, kernel=3, stride=2),  # 24 -> 12
            nn.GELU(),
            shrink(64, 96, kernel=3, stride=2),  # 12 -> 6
            nn.GELU(),
            shrink(96, width, kernel=3, stride=2),  # 6 -> 3
            nn.Flatten(2),
        )
        self.no_image = nn.Parameter(torch.zeros(width))
        self.embedding = nn.Embedding(256, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.position = nn.Parameter(0.02 * torch.randn(PREFIX_TOKENS + MAX_BYTES, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, END + 1))

    def forward(self, images: Tensor, has_image: Tensor, text: Tensor) -> Tensor:
        """Predict each next byte.

        `images` are float32 `[sum(has_image), 3, 96, 96]`, `has_image` bool `[B]`, `text` int64
        `[B, L]`; the logits are `[B, L + 1, 257]`: for every byte, then for what follows the last.
        """
        prefix = self.no_image.repeat(len(text), PREFIX_TOKENS, 1)
        prefix[has_image] = self.encoder(images).transpose(1, 2)
        x = torch.cat([prefix, self.embedding(text)], dim=1)
        x = self.blocks(x + self.position[: x.shape[1]])
        logits: Tensor = self.head(x[:, PREFIX_TOKENS - 1 :])
        return logits


def encode_texts(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Bytes `[B, L]`, padded with zeros, and targets `[B, L + 1]`, padded with `IGNORE`."""
    encoded = [text.encode()[:MAX_BYTES] for text in texts]
    length = max(map(len, encoded))
    inputs = torch.zeros(len(texts), length, dtype=torch.int64)
    targets = torch.full((len(texts), length + 1), IGNORE)
    for row, data in enumerate(encoded):
        inputs[row, : len(data)] = torch.tensor(list(data), dtype=torch.int64)
        targets[row, : len(data) + 1] = torch.tensor([*data, END])
    return inputs, targets


def first_images(pixel_values: Tensor, images_per_sample: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first image of each sample that has one, and bool `[B]`: which samples do.

    The images of a batch lie one after another whatever sample they belong to, so a sample's first
    image comes after as many images as the samples before it have.
    """
    starts = images_per_sample.cumsum(0) - images_per_sample
    has_image = images_per_sample > 0
    return pixel_values[starts[has_image]], has_image


def compute_loss(model: Captioner, batch: dict[str, Any]) -> Tensor:
    """Mean cross entropy of the next byte, in nats, over the valid samples."""
    if any("\nchosen: " in text and "\nrejected: " in text for text in batch["text"]):
        raise ValueError(
            "these are preference pairs, and the text of each has both answers; to train on the "
            "chosen ones alone, pack with --map 'image=image,user=question,assistant=chosen' "
            "(docs/preferences.md)"
        )
    inputs, targets = encode_texts(batch["text"])
    targets[~batch["valid"]] = IGNORE  # repeats at the end of an epoch, and skipped samples
    images, has_image = first_images(batch["pixel_values"], batch["images_per_sample"])
    logits = model(images, has_image, inputs)
    losses = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    return losses / (targets != IGNORE).sum().clamp(min=1)


@torch.no_grad()
def loss_with_wrong_images(model: Captioner, batch: dict[str, Any]) -> tuple[float, float]:
    """Return the loss of a batch as it is, and with its images exchanged."""
    wrong = batch | {"pixel_values": batch["pixel_values"].roll(1, dims=0)}
    model.eval()
    right_loss, wrong_loss = (compute_loss(model, b).item() for b in (batch, wrong))
    model.train()
    return right_loss, wrong_loss


@dataclass(frozen=True, kw_only=True)
class Report:
    """Losses in nats per byte, times in seconds, both by step."""

    losses: list[float]
    waits: list[float]
    images: int
    seconds: float

    def smoothed(self) -> tuple[float, float]:
        """Means over the first and the last few steps."""
        few = max(1, min(WINDOW, len(self.losses) // 2))
        return fmean(self.losses[:few]), fmean(self.losses[-few:])

    def __str__(self) -> str:
        # The first batch waits for the workers to start, so it is no measure of the rest.
        first_wait, later_waits = self.waits[0], sum(self.waits[1:])
        seconds = self.seconds - first_wait
        first, last = self.smoothed()
        return (
            f"steps {len(self.losses)}, {self.images / seconds:.0f} images/s, "
            f"loss {first:.3f} -> {last:.3f}, "
            f"waiting for data {later_waits / seconds:.1%} of the time "
            f"(first batch apart: {first_wait:.2f} s)"
        )


def endless(loader: Any) -> Iterator[dict[str, Any]]:
    """Epoch after epoch: iterating again over an exhausted loader starts its next epoch."""
    while True:
        yield from loader


def train(shards: Path, steps: int, batch_size: int, save: Path | None) -> Report:
    """Train for `steps` steps; `save` is where the checkpoint goes."""
    loader = datapipe.make_loader(
        shards,
        batch_size=batch_size,
        image=datapipe.ImageSpec(size=IMAGE_SIZE, resize="crop", normalize="imagenet"),
        shuffle=True,
        seed=0,
        num_workers=2,
    )
    torch.manual_seed(0)
    model = Captioner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=WINDOW)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {len(loader)} steps per epoch")

    losses, waits, images = [], [], 0
    batches = endless(loader)
    started = time.perf_counter()
    for step in range(1, steps + 1):
        asked = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - asked)

        loss = compute_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()

        losses.append(loss.item())
        images += len(batch["pixel_values"])
        if step % WINDOW == 0 or step == 1:
            print(f"step {step:4d}  loss {losses[-1]:.3f}", flush=True)
    seconds = time.perf_counter() - started
    right, wrong = loss_with_wrong_images(model, batch)
    print(f"last batch: loss {right:.3f}, and {wrong:.3f} with its images swapped")
    if save is not None:
        # The loader counts the batches it has yielded, so a run that calls load_state_dict on all
        # of these goes on with the very batch that would have come next.
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "warmup": warmup.state_dict(),
            "loader": loader.state_dict(),
        }
        torch.save(checkpoint, save)
    return Report(losses=losses, waits=waits, images=images, seconds=seconds)


def main() -> None:
    """Parse the command line, train and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shards", type=Path, help="a folder made by `datapipe pack`")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--save", type=Path, help="write a checkpoint of model and loader here")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    try:
        report = train(**vars(arguments))
    except ValueError as error:  # datapipe's own errors are such too
        sys.exit(f"train_captioner: {error}")
    print(report)
    first, last = report.smoothed()
    if not last < first:
        sys.exit(f"the loss did not fall: {first:.3f} -> {last:.3f}")


if __name__ == "__main__":
    main()
