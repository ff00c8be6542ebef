"""Oracle of the packer: the same algorithm in plain Python, with its own integers and lists."""

from bisect import insort

import numpy as np

from datapipe.plan.packing_kernel import (
    HORIZON,
    LONGEST_SEARCH,
    MOST_IMAGES,
    POOR,
    RICH,
    SEARCHED,
    STEERED,
    STEERING_ROOM,
    UNLIMITED,
    image_kinds,
    mean_of_images,
)


def pack(lengths, images, capacity, window, max_images, max_samples):
    """Return what `packing_kernel.pack` does."""
    mean_images = mean_of_images(lengths, images, capacity)
    steered = mean_images > 0 and STEERING_ROOM * mean_images <= max_images
    limited = min(max_images, max_samples) < UNLIMITED
    search = _Search(lengths, images)
    lengths = lengths.tolist()
    waiting = []  # the longest first, and of those of one length the oldest
    arriving = list(range(len(lengths)))
    order, offsets = [], [0]

    def refill():
        """Let samples arrive until the window is full. Return whether any wait."""
        while arriving and len(waiting) < window:
            insort(waiting, arriving.pop(0), key=lambda sample: (-lengths[sample], sample))
        return bool(waiting)

    while refill():
        left, left_images, left_samples = capacity, max_images, max_samples
        while left_samples > 0 and refill() and lengths[waiting[-1]] <= left:
            oldest, longest = min(waiting), waiting[0]
            if left_samples == max_samples:
                chosen = [oldest if arriving else longest]
            elif not limited and left - lengths[oldest] >= HORIZON * lengths[longest]:
                chosen = [oldest]
            else:
                fitting = [
                    sample
                    for sample in waiting
                    if lengths[sample] <= left and images[sample] <= left_images
                ]
                if not fitting:
                    break
                fitting = fitting[:: -(-len(fitting) // SEARCHED)]
                if left > LONGEST_SEARCH:
                    chosen = fitting[:1]
                else:
                    wanted = mean_images - (max_images - left_images) if steered else None
                    chosen = search.finish(fitting, left, left_images, left_samples, wanted)
            left -= search.length(chosen)
            left_images -= search.count(chosen)
            left_samples -= len(chosen)
            order += chosen
            for sample in chosen:
                waiting.remove(sample)
        offsets.append(len(order))
    return np.array(order, np.int64), np.array(offsets, np.int64)


class _Search:
    """Sets of samples that fill what is left of a pack."""

    def __init__(self, lengths, images):
        self._kinds = image_kinds(lengths, images).tolist()
        self._lengths, self._images = lengths.tolist(), images.tolist()

    def length(self, samples):
        return sum(self._lengths[sample] for sample in samples)

    def count(self, samples):
        return sum(self._images[sample] for sample in samples)

    def finish(self, candidates, left, left_images, left_samples, wanted):
        """Return the candidates that fill the space best within the limits."""

        def allowed(samples):
            return len(samples) <= left_samples and self.count(samples) <= left_images

        chosen = self._closest(candidates, left)
        if wanted is not None and self.length(chosen) == left:
            chosen = self._steered(candidates, chosen, left, wanted)
        if self.count(chosen) > left_images:
            chosen = self._closest(candidates, left, self._images, min(left_images, MOST_IMAGES))
        if chosen and allowed(chosen):
            return chosen
        chosen = []
        for sample in candidates:
            if self.length([*chosen, sample]) <= left and allowed([*chosen, sample]):
                chosen.append(sample)
        return chosen

    def _closest(self, candidates, left, images=None, limit=0):
        """Return candidates, of at most `limit` images, whose lengths add up closest to `left`.

        Of such sets it is one that as few candidates as possible, from the first on, suffice for.
        """
        row = np.full(left + 1, limit + 1, np.int16)  # fewest images of any set of each total
        row[0] = 0
        rows = [row]
        for sample in candidates:
            length = self._lengths[sample]
            count = min(images[sample], limit + 1) if images else 0
            more = row[: left + 1 - length] + np.int16(count)
            row = row.copy()
            np.minimum(row[length:], more, out=row[length:])
            rows.append(row)
            if row[left] <= limit:
                break
        total = int(np.flatnonzero(row <= limit)[-1])
        used = len(rows) - 1
        chosen = []
        while total > 0:
            while rows[used - 1][total] == rows[used][total]:
                used -= 1
            used -= 1
            chosen.append(candidates[used])
            total -= self._lengths[candidates[used]]
        return chosen

    def _steered(self, candidates, chosen, left, wanted):
        """Return the set closest to `wanted` images, of some that fill the space exactly."""
        images = self.count(chosen)
        kind = RICH if images < wanted else POOR
        of_kind = [sample for sample in candidates if self._kinds[sample] == kind]
        for number in STEERED:
            if not of_kind or images == wanted or (images < wanted) != (kind == RICH):
                break
            front = of_kind[:number]
            others = [sample for sample in candidates if sample not in front]
            found = self._closest(front + others, left)
            count = self.count(found)
            if self.length(found) == left and abs(count - wanted) < abs(images - wanted):
                chosen, images = found, count
        return chosen
