"""`cacseg predict` of a video, a camera, or a folder of frames in their order."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacseg.cli._console import fail, progress_bar, say, typer

if TYPE_CHECKING:
    from cacseg.runtime.backend import Backend
    from cacseg.runtime.folder import SaveOptions
    from cacseg.runtime.shards import Shard
    from cacseg.runtime.video import Frames


def open_stream(
    paths: Sequence[str], output: Path, carry: float, plain: bool, save: SaveOptions, worker: Shard, max_pixels: int
) -> Frames | None:
    """The frames, where paths, output or carry ask for a stream."""
    from cacseg.runtime.video import CODECS, is_video, open_frames

    to_video = is_video(output)
    if not (to_video or carry > 0.0 or any(map(is_video, paths))):
        return None
    if len(paths) > 1:
        raise ValueError(f"a stream is one video, one camera or one folder of frames; got {len(paths)} paths.")
    if worker.count > 1:
        raise ValueError("the frames of a stream follow each other, so that one process predicts them: --shard 1/1.")
    if save.polygons is not None and (to_video or is_video(paths[0])):
        raise ValueError(
            f"--format {save.polygons} is of images, and a video's frames are no files. Write the frames as images "
            "first, and give a folder for the output."
        )
    if plain and carry > 0.0:
        raise ValueError("--carry is for the context-aware classifier. Leave out --carry or --plain.")
    if to_video and output.suffix.lower() not in CODECS:
        raise ValueError(f"a video is written as {', '.join(CODECS)}; got {output}.")
    if to_video and (save.confidence or save.entropy):
        raise ValueError("a video holds overlays alone. Give a folder for confidence and entropy.")
    return open_frames(paths[0], None if to_video else output, skip_damaged=True, max_pixels=max_pixels)


def predict_stream(
    backend: Backend,
    source: str,
    frames: Frames,
    output: Path,
    written: Mapping[str, Any],
    *,
    save: SaveOptions,
    carry: float,
    fps: float | None,
    plain: bool,
    batch: int,
    workers: int,
    max_pixels: int,
    overwrite: bool,
) -> None:
    from cacseg._files import check_target
    from cacseg.runtime.folder import SaveOptions, join_coco
    from cacseg.runtime.journal import Journal
    from cacseg.runtime.video import (
        USUAL_FPS,
        is_video,
        open_frames,
        predict_frames,
        with_masks,
        write_masks,
        write_video,
    )

    if carry > 0.0:
        backend.carrying(carry)  # or an error, before anything is written
    to_video = is_video(output)
    batch = 1 if frames.is_live else batch
    start, skipped = time.perf_counter(), 0
    with progress_bar() as bar:
        task = bar.add_task("predicting", total=frames.count)

        def update(done: int) -> None:
            bar.update(task, completed=done)

        film: dict[str, Any] = {"palette": backend.classes.palette, "opacity": save.opacity, "overwrite": overwrite}
        film |= {"progress": update}
        rate = fps or frames.fps or USUAL_FPS
        if to_video and frames.is_live:
            backend = backend.carrying(carry) if carry > 0.0 else backend
            predictions = predict_frames(backend, frames.images, plain=plain, batch=batch)
            done = write_video(output, predictions, rate, is_live=True, **film)
        else:
            # Masks first, so that a long film goes on where it was interrupted.
            folder = output.with_name(f"{output.name}.part") if to_video else output
            if to_video:
                check_target(output, overwrite)
                save = SaveOptions(overlays=False)
            finish = join_coco(folder, backend.classes.names, save)
            with Journal(folder, {**written, "carry": carry}, overwrite=overwrite, finish=finish) as journal:
                if frames.is_live and journal.rows:
                    raise FileExistsError(f"{output} holds frames of a camera already. Choose another folder.")
                done, skipped = write_masks(
                    backend, frames, journal, save, plain, batch, workers, carry=carry, progress=update
                )
            if to_video:
                bar.reset(task, description="writing", total=done + skipped)
                again = open_frames(source, skip_damaged=True, max_pixels=max_pixels)
                write_video(output, with_masks(again.images, folder), rate, **film)
                if not frames.failed:
                    shutil.rmtree(folder)
    seconds = time.perf_counter() - start
    earlier = f", {skipped} were done before" if skipped else ""
    say(f"{done} frames predicted in {seconds:.1f} s ({done / seconds:.1f} a second){earlier}: {output}")
    for failure in frames.failed:
        fail(failure.reason)
    if frames.failed:
        kept = f" The masks of the others are in {output}.part." if to_video else ""
        fail(f"{len(frames.failed)} of {frames.count} frames could not be read and were left out.{kept}")
        raise typer.Exit(1)
    if frames.count is not None and done + skipped < 0.95 * frames.count - 1:  # the number may be an estimate
        fail(f"{done + skipped} frames could be read; the file says {frames.count}. Is it whole?")
        raise typer.Exit(1)
