"""`pack_dataset`: checks the options, and packs to a folder or by way of one to a URL."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from datapipe.cpus import PackWorkers
from datapipe.declared import Word, checked
from datapipe.decode.image import MAX_PIXELS
from datapipe.decode.shrink import ImageFormat
from datapipe.decode.video import MISSING_AV, VIDEO_TIMEOUT, parse_video_frames
from datapipe.errors import PackError, PlanError
from datapipe.index.ignore import parse_ignore
from datapipe.index.sidecars import parse_sidecars
from datapipe.index.tar.listing import urls_of
from datapipe.pack.engine import open_engine
from datapipe.pack.input.raw_sample import Captions, ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.options import PackOptions, parse_max_rejects, parse_shard_size
from datapipe.pack.pack_job import Job
from datapipe.pack.raw_download import downloaded
from datapipe.pack.readers import RawReading
from datapipe.pack.recognition.choose import choose_reading
from datapipe.pack.report import PackReport
from datapipe.pack.url_upload import UploadStage, local_path, open_stage
from datapipe.pack.workers.prepare import Check, Pages
from datapipe.report.table import counted
from datapipe.store.record_fields import index_fields, parse_fields
from datapipe.workers.engine import EngineName


@checked(PackError)
def pack_dataset(
    raw: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    format: Word | None = None,
    image_root: str | PathLike[str] | None = None,
    image_column: Word | None = None,
    text_column: Word | None = None,
    include: Word | None = None,
    ignore: Word | Sequence[Word] = (),
    key_from: Word | None = None,
    map: Word | None = None,
    join: Word | None = None,
    captions: Captions | None = None,
    workers: PackWorkers | None = None,
    engine: EngineName = "local",
    address: Word | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    shard_size: Word | int = "512MB",
    check: Check = "decode",
    max_pixels: int = MAX_PIXELS,
    pages: Pages = "first",
    max_side: int | None = None,
    quality: int | None = None,
    image_format: ImageFormat = "keep",
    video_frames: Word | None = None,
    video_size: int | None = None,
    video_timeout: float = VIDEO_TIMEOUT,
    max_rejects: Word | int = "5%",
    limit: int | None = None,
    append: bool = False,
    fields: Word | Sequence[Word] = (),
    sidecars: Word | Sequence[Word] = (),
    space_check: bool = True,
    lock_check: bool = True,
    dry_run: bool = False,
    staging: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Pack raw image-text data into WebDataset shards with index and manifest.

    The same command continues a pack that was interrupted. Equal input and options give equal
    bytes, whatever `workers` is.

    Args:
        raw: file or folder of raw data, or a list of tars such as "data/train-{000..099}.tar"; any
            of them may be behind a URL, and is downloaded to the staging folder.
        out: folder or URL for the shards; new, or that of the same pack interrupted. With `dry_run`
            it may be None.
        format: name of the reader; recognised where None.
        image_root: where relative image paths of annotation files start.
        image_column, text_column: names of the columns of a table.
        include: pattern that the files of records must match, such as "data/train-*".
        ignore: patterns of files of a folder or members of tars that are left out, such as "*.mp4"
            or "*.seg.png"; several in a list, or separated by commas.
        key_from: field of the records that keys begin with, instead of the inputs' ordinals.
        map: which fields are what, such as "user=question,assistant=answer,image=img_path"; see
            docs/formats.md. Recognised by the fields' names where None.
        join: column that both of two tables have, one of images and one of texts, which are packed
            as one; "image_id=id" where the column of the texts has another name than that of the
            images.
        captions: what becomes of an image with several captions: a sample for each ("all"), the
            first alone ("first"), or one text of all ("join").
        workers: processes that read and check; one per available CPU where None.
        engine: "local" prepares samples in processes of this machine, "ray" in tasks of a Ray
            cluster, which also write the shards; see docs/cluster.md.
        address: of the Ray cluster, such as "auto" or "10.0.0.1:6379"; `RAY_ADDRESS` where None. If
            there is no cluster, one is started here, with `workers` CPUs.
        runtime_env: of Ray, for what the nodes lack: packages, variables of the environment.
        shard_size: bytes such as "512MB", or a number of samples.
        check: "decode" refuses images that training could not decode, "header" reads headers.
        max_pixels: images with more pixels are rejected.
        pages: "first" takes the first page of a TIFF or frame of an animation, "all" makes each an
            image of its sample, in order.
        max_side: images are made smaller until their longest side has so many pixels.
        quality: of images that are encoded again, 1 to 100.
        image_format: "jpg" or "webp" converts all other images, "keep" leaves the format.
        video_frames: which frames of videos become images, such as "fps=2,max=64": two a second,
            the first and the last among them, or 64 evenly spaced where that would be more. Videos
            are rejected where None. Needs the extra `video`.
        video_size: frames are made smaller until their longest side has so many pixels.
        video_timeout: seconds of the processor after which a video is rejected.
        max_rejects: a number, or a share such as "5%" judged after 1,000 inputs and at the end.
        limit: take no more inputs than these.
        append: add to the finished dataset in `out`, as new shards.
        fields: fields of the samples' JSON members that `index_fields` reads at the end, as new
            columns of `where=`: "score,meta.license"; several in a list, or separated by commas.
        sidecars: of "dali", "wids" and "energon", which index files of others to write too.
        space_check: refuse to start if the disk is too full.
        lock_check: refuse to start where files cannot be locked, as on some mounts of NFS; a second
            pack into the same folder would not be noticed there.
        dry_run: read and check, but write nothing.
        staging: where raw data from a URL, and shards for one, are kept until all is done, in a
            folder of their own; by default in the user's cache folder. It takes as much room.
        storage_options: for fsspec, which reads and writes URLs: credentials, endpoints.

    Raises:
        PackError: the input is not recognised, the output belongs to something else, too many
            inputs were rejected, or the disk is full.
        StoreError: the URL cannot be read or written.
        IndexMismatch: what is in `out` is not what its manifest says.

    Examples:
        >>> report = datapipe.pack_dataset("photos/", "shards/")
        >>> report.samples, report.rejected
        (8, 0)
    """
    started = time.monotonic()
    urls = urls_of(raw)
    of_out = staging, storage_options
    if urls and (out is None or local_path(out)):
        of_out = None, None  # both are for the raw data alone
    if out is None:
        _refuse_without_out(dry_run=dry_run, append=append, staging=of_out[0])
        stage, destination = None, ""
    else:
        stage = open_stage(out, *of_out, append=append)
        destination = str(out) if stage else str(local_path(out))
        if stage and engine == "ray":
            stage.direct = True
    names = parse_fields(fields)
    if stage and names:
        raise PackError(
            f"--fields are indexed in a folder, and {out} is none; leave them out: the first "
            "where= that names a field reads it"
        )
    folder = stage.folder if stage else Path(destination) if destination else None
    of_reader: dict[str, Any] = {
        "image_column": image_column,
        "text_column": text_column,
        "include": include,
        "ignore": ",".join(parse_ignore(ignore)) or None,
        "key_from": key_from,
        "map": map,
        "join": join,
        "captions": captions,
    }
    if video_frames is not None:
        if find_spec("av") is None:
            raise PackError(f"--video-frames: {MISSING_AV}")
        video_frames = str(parse_video_frames(video_frames))
    read_options = ReadOptions(
        image_root=Path(image_root) if image_root else None,
        videos=video_frames is not None,
        **of_reader,
    )
    arrival = None
    with ExitStack() as held:
        if urls:
            checks = {"space_check": space_check, "lock_check": lock_check}
            data = downloaded(str(raw), urls, staging, storage_options, **checks, keep=dry_run)
            arrival = held.enter_context(data)
            raw, read_options = arrival.raw, replace(read_options, wait=arrival.wait)
        runs = held.enter_context(closing(open_engine(engine, workers, address, runtime_env)))
        survey = Survey(raw, videos=read_options.videos)
        reading = choose_reading(survey, format, read_options)
        reader = reading.reader
        if arrival is not None and "wait" not in reader.takes:
            arrival.wait_for_all()
        for name in ("image_root", *of_reader):
            if getattr(read_options, name) is not None and name not in reader.takes:
                option = f"--{name.replace('_', '-')}"
                raise PackError(
                    f"{option} does not apply to the format {reader.name}; leave it out"
                )
        if folder is not None:
            _check_folder(folder, reading)
        kinds = parse_sidecars(sidecars if isinstance(sidecars, str) else ",".join(sidecars))
        job = Job(
            reading=reading,
            out=folder or Path(),  # which a rehearsal does not look at
            options=PackOptions(
                format=reader.name,
                shard_size=str(shard_size),
                check=check,
                limit=limit,
                max_pixels=max_pixels,
                pages=pages,
                max_side=max_side,
                quality=quality,
                image_format=image_format,
                video_frames=video_frames,
                video_size=video_size,
                video_timeout=video_timeout,
                **of_reader,
            ),
            engine=runs,
            size=parse_shard_size(str(shard_size)),
            max_rejects=parse_max_rejects(str(max_rejects)),
            space_check=space_check,
            lock_check=lock_check,
            placed=stage.send if stage else lambda shard: None,
            target=stage.target if stage and stage.direct else None,
            confirm=arrival.confirm if arrival else lambda: None,
        )
        if folder is None:
            report = job.rehearse(None)
        elif stage is None:
            report = job.pack(append=append, sidecars=kinds, dry_run=dry_run)
            if names and not dry_run:
                try:
                    index_fields(folder, names)
                except PlanError as error:
                    done = f"{counted(report.samples, 'sample')} packed, {report.rejected:,}"
                    raise PlanError(
                        f"--fields: {error}\n{done} rejected, and {out} is complete"
                    ) from None
        else:
            held.enter_context(stage.at_work(dry_run=dry_run, lock_check=lock_check))
            report = _pack_to_url(job, stage, destination, kinds, dry_run=dry_run)
    return replace(report, seconds=round(time.monotonic() - started, 3), output=destination)


def _refuse_without_out(
    *, dry_run: bool, append: bool, staging: str | PathLike[str] | None
) -> None:
    """Refuse a missing output unless nothing is to be written or compared there."""
    if not dry_run:
        raise PackError(
            "OUT (`out`) is missing: give a folder or URL for the shards, or --dry-run to read and "
            "check the raw data and write nothing"
        )
    for option, given in (("--append", append), ("--staging", staging)):
        if given:
            raise PackError(f"{option} has no effect without OUT; give OUT, or leave {option} out")


def _check_folder(out: Path, reading: RawReading) -> None:
    """Refuse a folder that cannot take the shards of this raw data."""
    raw, there = reading.survey.raw, out.resolve()
    if reading.survey.is_folder and there.is_relative_to(raw.resolve()):
        raise PackError(f"{out} is inside the raw data {raw}; give a folder outside it")
    # A pattern that lists tars would fit those to come.
    listed = reading.source.shards if reading.survey.is_list else ()
    if any(path.parent.resolve() == there for path in listed):
        raise PackError(f"{out} holds the tars that {raw} names; give a separate folder")


def _pack_to_url(
    job: Job, stage: UploadStage, url: str, sidecars: tuple[str, ...], *, dry_run: bool
) -> PackReport:
    """Pack to a URL, or find that it has been done."""
    there = stage.finished()
    if there is None:
        report = job.pack(append=False, sidecars=sidecars, dry_run=dry_run)
        if not dry_run:
            stage.finish()
        return replace(report, finished_before=False)
    job.same_as(there, url)
    if not dry_run:
        stage.add_sidecars(there, sidecars)
        stage.remove()
    return job.report(there, finished_before=True)
