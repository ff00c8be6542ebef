"""Sizes of models, from 5 M parameters for a CPU to 1 B for a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """A vision transformer over any number of patches.

    `width / heads` must be a multiple of 4, since rotary positions turn pairs of values, half of
    them by row and half by column.
    """

    width: int
    layers: int
    heads: int
    patch: int = 14  # side in pixels
    merge: int = 2  # patches along each side that become one token of the language model
    image_size: int = 224  # side in pixels of an image of fixed size
    max_pixels: int = 512 * 512  # of a native image; bounds the length that attention is told

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 4:
            raise ValueError(
                f"width {self.width} over {self.heads} heads: give a width of which every head "
                "gets a multiple of 4"
            )
        if self.image_size % self.cell:
            raise ValueError(
                f"image_size {self.image_size} is no multiple of patch * merge = {self.cell}; give "
                f"{self.image_size // self.cell * self.cell or self.cell}"
            )

    @property
    def cell(self) -> int:
        """Side in pixels of what becomes one token of the language model."""
        return self.patch * self.merge

    @property
    def image_tokens(self) -> int:
        """Tokens of the language model for an image of fixed size."""
        return (self.image_size // self.cell) ** 2

    @property
    def max_patches(self) -> int:
        """Most patches of an image."""
        return max(self.max_pixels, self.image_size**2) // self.patch**2


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A causal language model that sees images where its texts have placeholders.

    `width / heads` must be even, and `kv_heads`, of keys and values, divide `heads`.
    """

    vision: VisionConfig
    width: int
    layers: int
    heads: int
    kv_heads: int
    rope_base: float = 10_000.0  # wavelength of the slowest rotary position, relative to 2 pi

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"width {self.width} over {self.heads} heads: give a width of which every head "
                "gets an even part"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} do not divide {self.heads} heads")

    @property
    def hidden(self) -> int:
        """Width inside of an MLP: 8/3 of the width, up to the next multiple of 64."""
        return -(-self.width * 8 // 3 // 64) * 64


# Parameters with a vocabulary of 32,000: 21 M (5 M with one of bytes), 84 M, 0.39 B, 1.1 B.
MODELS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(
        vision=VisionConfig(width=192, layers=4, heads=3, image_size=112),
        width=256,
        layers=4,
        heads=4,
        kv_heads=2,
    ),
    "small": ModelConfig(
        vision=VisionConfig(width=384, layers=8, heads=6), width=512, layers=12, heads=8, kv_heads=4
    ),
    "base": ModelConfig(
        vision=VisionConfig(width=768, layers=12, heads=12, image_size=336),
        width=1024,
        layers=20,
        heads=16,
        kv_heads=8,
    ),
    "large": ModelConfig(
        vision=VisionConfig(width=1024, layers=16, heads=16, image_size=336),
        width=2048,
        layers=16,
        heads=16,
        kv_heads=8,
    ),
}
