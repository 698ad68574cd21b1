"""Frames of a video, a camera or a folder in their order, and videos made of frames."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cacseg._files import check_target, lock_bytes, open_appending, write_file
from cacseg.runtime.backend import Answer, Backend, Context
from cacseg.runtime.colours import Colour, Picture, overlay
from cacseg.runtime.decode import MAX_PIXELS, RAISE_LIMIT, check_size, decode_image, max_bytes
from cacseg.runtime.files import read_file
from cacseg.runtime.folder import Failure, Prediction, SaveOptions, check_names, longest_name, write_prediction
from cacseg.runtime.inputs import Input, find_images
from cacseg.runtime.journal import Journal, stamp
from cacseg.runtime.opencv import cv2
from cacseg.runtime.prefetch import prefetch

CODECS = {".mp4": "mp4v", ".mov": "mp4v", ".mkv": "mp4v", ".avi": "MJPG", ".webm": "VP80"}  # that OpenCV can write
SUFFIXES = (*CODECS, ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp")
CAMERA = "camera:"
CONTEXT = "carry.npz"  # what is carried, and the last frame it is of
SAVE_EVERY = 50  # frames
USUAL_FPS = 25.0


class Frame(NamedTuple):
    item: Input
    stamp: dict[str, str]  # of the file, from before it was read
    image: Picture


@dataclass
class Frames:
    """Frames in their order, to be read once.

    Args:
        images: the frames.
        fps: frames a second; None: unknown.
        count: as the file says, which may be an estimate; None: unknown.
        is_live: a camera, which goes on until it is stopped.
        failed: files of a folder that could not be read and were left out, so far.
    """

    images: Iterator[Frame] = field(repr=False)
    fps: float | None = None
    count: int | None = None
    is_live: bool = False
    failed: list[Failure] = field(default_factory=list)


def is_video(path: str | Path) -> bool:
    """Whether a path is a video by its suffix, or a camera."""
    return str(path).startswith(CAMERA) or Path(path).suffix.lower() in SUFFIXES


def open_frames(
    source: str | Path, out: Path | None = None, *, skip_damaged: bool = False, max_pixels: int = MAX_PIXELS
) -> Frames:
    """The frames of a video file, of "camera:0", or of a folder (or glob) of images, by name: 2 comes before 10.

    Images in `out` are skipped: they are earlier predictions. With `skip_damaged` an image that cannot be read, or has
    more than `max_pixels`, is left out and named in `failed`; else it is an error.
    """
    text = str(source)
    if not is_video(text):
        inputs = sorted(find_images([text], out), key=lambda item: _by_number(item.name))
        failed: list[Failure] = []
        images = _read_images(inputs, failed if skip_damaged else None, max_pixels)
        return Frames(images, count=len(inputs), failed=failed)
    if cv2 is None:
        raise ModuleNotFoundError("videos need OpenCV, which is not installed: pip install opencv-python-headless")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # quiet: what is wrong is said here, in one line
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    is_live = text.startswith(CAMERA)
    if is_live:
        number = text.removeprefix(CAMERA)
        if not number.isdecimal():
            raise ValueError(f"a camera is camera:0, camera:1, ...; got {text}.")
        capture = cv2.VideoCapture(int(number))
        if not capture.isOpened():
            raise OSError(f"there is no {text}, or another program has it. Is it connected?")
    else:
        if not Path(text).is_file():
            raise FileNotFoundError(f"there is no file {text}.")
        capture = cv2.VideoCapture(text, cv2.CAP_FFMPEG)
        if not capture.isOpened():
            raise OSError(f"{text} is damaged, cut short or no video that FFmpeg reads. Copy it again, or convert it.")
        width, height = (int(capture.get(one)) for one in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        check_size((width, height), f"a frame of {text}", max_pixels, RAISE_LIMIT)
    fps, count = capture.get(cv2.CAP_PROP_FPS), int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    read = {"bytes": "", "modified_ns": ""} if is_live else stamp(Path(text))
    return Frames(
        _read_video(capture, Path(text), read), fps if fps > 0.0 else None, count if count > 0 else None, is_live
    )


def _read_images(inputs: Iterable[Input], failed: list[Failure] | None, max_pixels: int) -> Iterator[Frame]:
    for item in inputs:
        try:
            content, read = read_file(item.path, max_bytes(max_pixels))
            frame = Frame(item, read, decode_image(content, str(item.path), max_pixels))
        except OSError as error:
            if failed is None:
                raise
            failed.append(Failure(item.path, str(error)))
        else:
            yield frame


def _read_video(capture: Any, path: Path, read: dict[str, str]) -> Iterator[Frame]:
    number = 0
    while True:
        is_there, image = capture.read()
        if not is_there:
            capture.release()
            if number == 0:
                raise OSError(f"{path} has no frame that can be read. Is the video whole?")
            return
        yield Frame(Input(path, f"{number:06}"), read, cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
        number += 1


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def predict_frames(
    backend: Backend, frames: Iterable[Frame], *, maps: bool = False, plain: bool = False, batch: int = 1
) -> Iterator[Prediction]:
    """The predictions of frames in their order; frames are read and resized ahead, in a thread."""
    if backend.bands is not None:
        raise ValueError(f"frames are red, green and blue bytes; the model takes {backend.bands} bands of images.")
    source = iter(frames)

    def load(_: None) -> tuple[Frame, Any] | None:
        frame = next(source, None)
        return None if frame is None else (frame, backend.view(frame.image))

    def predict(group: list[tuple[Frame, Any]]) -> list[Prediction]:
        height, width = group[0][0].image.shape[:2]
        answers = backend.predict([view for _, view in group], (height, width), maps=maps, plain=plain)
        found = [Prediction(*frame, answer) for (frame, _), answer in zip(group, answers, strict=True)]
        return [*found[:-1], found[-1]._replace(context=backend.context())]

    loaded = takewhile(lambda one: one is not None, prefetch(load, repeat(None), 1))
    groups = _batches((one for one in loaded if one is not None), batch)
    return chain.from_iterable(prefetch(predict, groups, backend.threads))


def _batches(frames: Iterable[tuple[Frame, Any]], batch: int) -> Iterator[list[tuple[Frame, Any]]]:
    """Up to `batch` frames of one size that follow each other."""
    group: list[tuple[Frame, Any]] = []
    for one in frames:
        if group and (len(group) == batch or one[0].image.shape != group[0][0].image.shape):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def write_video(
    path: Path,
    predictions: Iterable[Prediction],
    fps: float,
    *,
    palette: Sequence[Colour],
    opacity: float = 0.5,
    overwrite: bool = False,
    is_live: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Writes overlays as a video beside `path`, moves it there when it is whole, and returns the number of frames.

    A run that was killed leaves a hidden file, which the next one replaces. With `is_live` a KeyboardInterrupt ends the
    video; otherwise nothing is left of it.
    """
    check_target(path, overwrite)
    scratch, writer, done, size = path.with_name(f".part.{path.name}"), None, 0, (0, 0)
    with open_appending(scratch) as lock:
        if os.name != "nt" and not lock_bytes(lock):
            raise OSError(f"another process is writing {path}. Wait for it, or end it, first.")
        try:
            try:
                for one in predictions:
                    height, width = one.image.shape[:2]
                    if writer is None:
                        size = (width, height)
                        writer = _open_writer(scratch, path, fps, size)
                    if size != (width, height):
                        raise ValueError(
                            f"the frames of a video have one size; {one.item.path} ({one.item.name}) has "
                            f"{width}x{height}, those before it {size[0]}x{size[1]}. Write a folder of masks."
                        )
                    picture = overlay(one.image, one.answer.mask, palette, opacity)
                    writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
                    done += 1
                    progress(done)
            except KeyboardInterrupt:
                if not is_live:
                    raise
            if writer is None:
                raise OSError("no frame could be read. Is the video whole?")
            writer.release()
            if not cv2.VideoCapture(str(scratch), cv2.CAP_FFMPEG).isOpened():
                raise OSError(f"{path} could not be written. Is the disk full?")
            os.replace(scratch, path)
        finally:
            if writer is not None:
                writer.release()
            scratch.unlink(missing_ok=True)
    return done


def with_masks(frames: Iterable[Frame], folder: Path) -> Iterator[Prediction]:
    """Frames with the masks that `write_masks` wrote of them."""
    for frame in frames:
        with Image.open(folder / "masks" / f"{frame.item.name}.png") as mask:
            yield Prediction(*frame, Answer(np.asarray(mask)))


def _open_writer(scratch: Path, path: Path, fps: float, size: tuple[int, int]) -> Any:
    writer = cv2.VideoWriter(
        str(scratch), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*CODECS[path.suffix.lower()]), fps, size
    )
    if not writer.isOpened():
        raise OSError(f"{path} cannot be written by this OpenCV at {fps:g} frames a second of {size[0]}x{size[1]}.")
    return writer


def write_masks(
    backend: Backend,
    frames: Frames,
    journal: Journal,
    save: SaveOptions,
    plain: bool,
    batch: int,
    workers: int,
    *,
    carry: float = 0.0,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Writes masks/000000.png and so on, as `predict_files` does; returns how many frames, and how many were skipped.

    Frames that are in the journal are skipped; with `carry` those up to the one whose context was saved.
    """
    skipped, saved, longest = 0, 0, longest_name(journal.folder)
    start = _read_context(journal) if carry > 0.0 else None
    if carry > 0.0:
        backend = backend.carrying(carry, None if start is None else start[1])

    def todo() -> Iterator[Frame]:
        nonlocal skipped
        may_skip = not frames.is_live and (carry == 0.0 or start is not None)
        for frame in frames.images:
            name = frame.item.name
            paths = save.paths(journal.folder, name).values()
            is_done = may_skip and journal.is_done(frame.item) and all(path.exists() for path in paths)
            if start is not None and may_skip and not is_done:
                raise ValueError(
                    f"frame {name} of {frame.item.path} changed, or its mask is gone, and later frames carry its "
                    "context. Pass --overwrite to start anew."
                )
            try:
                check_names(frame.item, paths, longest)
            except OSError as error:
                frames.failed.append(Failure(frame.item.path, str(error)))
                continue
            if is_done:
                skipped += 1
                may_skip = start is None or name != start[0]
            else:
                yield frame

    def write(one: Prediction) -> Prediction:
        write_prediction(one, journal.folder, backend.classes, save)
        return one

    predictions = predict_frames(backend, todo(), maps=save.confidence or save.entropy, plain=plain, batch=batch)
    written = 0
    try:
        for one in prefetch(write, predictions, workers):
            journal.add(one.item, (one.image.shape[0], one.image.shape[1]), one.stamp)
            written += 1
            progress(written + skipped)
            if one.context is not None and written - saved >= SAVE_EVERY:
                saved = written
                _write_context(journal, one.item.name, one.context)
    except KeyboardInterrupt:
        if not frames.is_live:
            raise
    if written + skipped == 0:
        raise OSError("no frame could be read. Is the video whole?")
    return written, skipped


def _write_context(journal: Journal, name: str, context: Context) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, frame=np.array(name), **context)  # type: ignore[arg-type]  # allow_pickle has another type
    write_file(journal.folder / CONTEXT, buffer.getvalue())


def _read_context(journal: Journal) -> tuple[str, Context] | None:
    """The last frame and what is carried after it; None where there is none, or a damaged one."""
    try:
        with np.load(journal.folder / CONTEXT, allow_pickle=False) as file:
            found = {key: file[key] for key in file.files}
        return str(found.pop("frame")), found
    except Exception:  # of many types: numpy's and those of zip files
        return None
