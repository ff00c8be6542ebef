"""Cache of images on the device, with which batches are completed.

Workers leave the images of cached samples out of `pixel_values`, so only the others cross the bus.
Images are mirrored on the device, since the cached ones must be the same in every epoch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Bools, Int64
from datapipe.cache.factory import DeviceRows
from datapipe.cache.sample_cache import TierStats
from datapipe.decode.transform import ImageTransform, Placement
from datapipe.errors import DatapipeError
from datapipe.index.columns import Columns
from datapipe.index.files.random_read import gather_counts
from datapipe.loader.batch.context import StepJob
from datapipe.loader.batch.image_batch import GEOMETRY, ImageContext, frames_taken, image_draw
from datapipe.loader.device.prefetcher import Carry, Complete
from datapipe.plan.ragged import edges, ranges, totals


class DeviceCache:
    """Tier of a cache on the device. For the thread that takes the batches.

    Images are uint8, without anything random but mirroring, whose probability is `flip`.
    """

    def __init__(self, rows: DeviceRows, images: ImageContext, flip: float) -> None:
        assert images.kinds is None, "datasets with images of their own are refused"
        self._rows = rows
        self._columns = images.columns
        self._transform = images.transforms[0]
        self._flip = flip
        self._seed = images.seed
        self._total = images.rows
        self._present = np.zeros(rows.layout.kept, bool)
        # Written and read on one stream, so that a row is there for every batch after its own.
        self._kept: Tensor | None = None
        self._geometry: dict[int, Tensor] = {}
        self._hits = self._bytes = 0

    def holds(self, samples: Int64) -> Bools:
        """Return whether the images of each sample are on the device: bool [n]."""
        indices = self._rows.layout.places(samples)
        held = indices >= 0
        held[held] = self._present[indices[held]]
        return held

    def stats(self) -> TierStats:
        return TierStats(
            hits=self._hits,
            bytes=self._bytes,
            kept=int(np.count_nonzero(self._present)),
            expected=self._rows.layout.share,
        )

    def begin(
        self, step: StepJob, batch: dict[str, Any], failed: Collection[int], blank: Tensor | None
    ) -> Complete:
        """Complete the `image_geometry` of a batch that is still on the host.

        `batch` lacks the rows of the images on the device, `failed` are slots, and `blank`, bool
        [rows], are rows that hold no image. Return the function that completes `pixel_values` on
        the device. Call it before `begin` of the next batch.
        """
        part = _BatchRows(step, self._columns, self._transform)
        indices = self._rows.layout.places(part.samples)
        fresh = ~part.resident & part.full & (indices >= 0)
        fresh[list(failed)] = False
        fresh[fresh] = ~self._present[indices[fresh]]
        # Samples without images have nothing to wait for.
        self._present[indices[fresh & (part.rows == 0)]] = True
        self._hits += int(part.resident.sum())
        self._bytes += int(part.rows[part.resident].sum()) * torch.Size(self._rows.shape).numel()
        starts = self._rows.layout.offsets[indices]
        mirrored = self._mirrored(part)
        if GEOMETRY in batch:
            self._complete_geometry(part, batch[GEOMETRY], fresh, mirrored)

        def complete(sent: Tensor, carry: Carry) -> Tensor:
            if fresh.any():
                self._keep(part, fresh, starts, sent, carry)
                self._present[indices[fresh]] = True
            out = sent
            if part.sent_rows < part.all_rows:
                out = self._join(part, sent, starts, blank, carry)
            if mirrored:
                rows = carry(torch.tensor(mirrored, device="cpu"))
                out.index_copy_(0, rows, out.index_select(0, rows).flip(-1))
            return out

        return complete

    def _keep(
        self, part: _BatchRows, fresh: Bools, starts: Int64, sent: Tensor, carry: Carry
    ) -> None:
        wanted = ranges(part.sent_edges[:-1][fresh], part.rows[fresh])
        if len(wanted) == part.sent_rows:
            new = sent[: part.sent_rows]
        else:
            new = sent.index_select(0, carry(torch.from_numpy(wanted)))
        if self._kept is None:
            self._kept = self._allocate()
        indices = torch.from_numpy(ranges(starts[fresh], part.rows[fresh]))
        self._kept.index_copy_(0, carry(indices), new)

    def _allocate(self) -> Tensor:
        shape = int(self._rows.layout.offsets[-1]), *self._rows.shape
        try:
            return torch.empty(shape, dtype=torch.uint8, device=self._rows.device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            raise DatapipeError(
                f"{self._rows.device} has no room for {torch.Size(shape).numel():,} bytes of "
                "images; give a smaller CacheSpec(device=...)"
            ) from error

    def _join(
        self, part: _BatchRows, sent: Tensor, starts: Int64, blank: Tensor | None, carry: Carry
    ) -> Tensor:
        """Return all rows of a batch: those that were sent, and those on the device."""
        assert self._kept is not None, "rows are put before they are taken"
        here = carry(torch.from_numpy(ranges(starts[part.resident], part.rows[part.resident])))
        total = part.all_rows if self._total is None else self._total
        out = torch.empty((total, *self._rows.shape), dtype=torch.uint8, device=self._rows.device)
        out[part.all_rows :] = 0
        if part.sent_rows:
            rest = ~part.resident
            cached_rows = ranges(part.edges[:-1][part.resident], part.rows[part.resident])
            sent_rows = ranges(part.edges[:-1][rest], part.rows[rest])
            kept = self._kept.index_select(0, here)
            out.index_copy_(0, carry(torch.from_numpy(cached_rows)), kept)
            out.index_copy_(0, carry(torch.from_numpy(sent_rows)), sent[: part.sent_rows])
        else:
            torch.index_select(self._kept, 0, here, out=out[: part.all_rows])
        if blank is not None and bool(blank[: part.all_rows].any()):
            # The text of these samples failed, so they are left out after all.
            out.masked_fill_(carry(blank).view(-1, *(1 for _ in self._rows.shape)), 0)
        return out

    def _mirrored(self, part: _BatchRows) -> list[int]:
        """Return the images of a batch that are drawn to be mirrored; each is one row."""
        if not self._flip:
            return []
        frames = frames_taken(self._columns, part.samples, part.counts)
        at = np.zeros(int(part.images[-1]), np.int64) if frames is None else frames.numbers
        return [
            image
            for slot in range(len(part.samples))
            for number, image in enumerate(range(*part.images[slot : slot + 2].tolist()))
            # One draw for all frames of a video.
            if image_draw(self._seed, *part.step.keys.of(slot), number - int(at[image])).mirrors(
                self._flip
            )
        ]

    def _complete_geometry(
        self, part: _BatchRows, geometry: Tensor, fresh: Bools, mirrored: list[int]
    ) -> None:
        """Keep the placements of new images and fill in those of cached ones, float64 [I, 6]."""
        bounds = part.images.tolist()
        for slot in np.flatnonzero(fresh | part.resident).tolist():
            rows = geometry[bounds[slot] : bounds[slot + 1]]
            if part.resident[slot]:
                rows.copy_(self._geometry[int(part.samples[slot])])
            else:
                self._geometry[int(part.samples[slot])] = rows.clone()
        for image in mirrored:
            *placed, width, _ = geometry[image].tolist()
            if width:  # else it failed, and has no placement
                made = Placement(*placed).mirrored(self._rows.shape[-1])
                geometry[image, :4] = torch.tensor(made, dtype=torch.float64, device="cpu")


class _BatchRows:
    def __init__(self, step: StepJob, columns: Columns, transform: ImageTransform) -> None:
        units = step.share.units
        self.samples = step.samples
        self.step = step
        every = gather_counts(columns.sample_image, self.samples)
        self.counts: Int64 = every if units.sizes is None else units.sizes.images
        self.full: Bools = self.counts == every
        widths, heights, self.images = columns.image_sides(self.samples, self.counts)
        self.rows = totals(transform.rows(widths, heights), self.images)
        resident = step.resident
        self.resident: Bools = np.zeros(len(self.samples), bool) if resident is None else resident
        self.edges: Int64 = edges(self.rows)
        self.sent_edges: Int64 = edges(np.where(self.resident, 0, self.rows))
        self.all_rows, self.sent_rows = int(self.edges[-1]), int(self.sent_edges[-1])
