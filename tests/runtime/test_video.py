"""Films in, films or masks out."""

import io
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import cacseg
from cacseg.runtime import video
from cacseg.runtime.backend import Answer
from cacseg.runtime.folder import Prediction, SaveOptions
from cacseg.runtime.inputs import Input
from cacseg.runtime.journal import Journal
from cacseg.runtime.video import CONTEXT, SAVE_EVERY, is_video, open_frames, write_masks, write_video
from command_line import run
from distributed_evaluation import small_model

SIZE, FPS, COUNT = (64, 48), 12.5, 9


def write(path, pictures, fps=FPS, codec="mp4v"):
    height, width = pictures[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*codec), fps, (width, height))
    for picture in pictures:
        writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    writer.release()
    return path


def read(path):
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    fps, frames = capture.get(cv2.CAP_PROP_FPS), []
    while (found := capture.read())[0]:
        frames.append(cv2.cvtColor(found[1], cv2.COLOR_BGR2RGB))
    return frames, fps


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.raises(OSError, match="camera:99"):
        open_frames("camera:99")  # as in the command, before FFmpeg is used: it asks once how much it may print
    root = tmp_path_factory.mktemp("films")
    model = small_model(("grass", "sky", "stone"))
    model.palette = [[200, 30, 30], [30, 200, 30], [30, 30, 200]]
    model.save(root / "model.safetensors")
    numbers = np.random.default_rng(0)
    coarse = numbers.integers(0, 256, (COUNT, 6, 8, 3), np.uint8)
    pictures = [one.repeat(8, 0).repeat(8, 1) for one in coarse]
    write(root / "film.mp4", pictures)
    (root / "frames").mkdir()
    for index, picture in enumerate(pictures):
        Image.fromarray(picture).save(root / f"frames/frame{index + 5}.png")  # 5 to 13
    return root


@pytest.fixture
def predict(place, capfd, monkeypatch):  # with what OpenCV and FFmpeg print
    monkeypatch.chdir(place)
    return lambda *arguments: run("predict", "model.safetensors", *arguments, capsys=capfd, monkeypatch=monkeypatch)


def masks(folder):
    return {path.stem: np.asarray(Image.open(path)) for path in sorted((folder / "masks").glob("*.png"))}


@pytest.mark.parametrize("carry", [0.0, 0.9])
@pytest.mark.parametrize("suffix", ["mp4", "avi", "webm"])
def test_a_film_comes_back_as_a_film(predict, place, tmp_path, suffix, carry):
    done = predict("film.mp4", "-o", tmp_path / f"out.{suffix}", "--carry", carry, "--opacity", 1.0, "--batch", 2)
    assert done.code == 0, done.err
    frames, fps = read(tmp_path / f"out.{suffix}")
    assert len(frames) == COUNT
    assert fps == pytest.approx(FPS, rel=1e-3)
    assert all(frame.shape == (SIZE[1], SIZE[0], 3) for frame in frames)
    results = list(cacseg.Predictor(place / "model.safetensors", device="cpu").stream(place / "film.mp4", carry=carry))
    for frame, result in zip(frames, results, strict=True):
        assert np.abs(frame.astype(int) - np.asarray(result.overlay(1.0))).mean() < 30  # codecs blur
    assert [path.name for path in tmp_path.iterdir()] == [f"out.{suffix}"]
    again = predict("film.mp4", "-o", tmp_path / f"out.{suffix}")
    assert again.code == 2
    assert "exists already" in again.err


def test_a_film_becomes_a_folder_of_masks_and_resumes(predict, place, tmp_path):
    arguments = ("film.mp4", "-o", tmp_path / "out", "--no-overlays", "--confidence")
    assert predict(*arguments).code == 0
    found = masks(tmp_path / "out")
    assert list(found) == [f"{index:06}" for index in range(COUNT)]
    predictor = cacseg.Predictor(place / "model.safetensors", device="cpu")
    for mask, frame in zip(found.values(), read(place / "film.mp4")[0], strict=True):
        assert np.array_equal(mask, predictor(frame).mask)
    (tmp_path / "out/masks/000003.png").unlink()
    done = predict(*arguments)
    assert "1 frames" in done.out
    assert "8 were done before" in done.out
    assert predict(*arguments, "--carry", 0.5).code == 2  # other options


def test_a_folder_of_frames_in_the_order_of_their_numbers(predict, place, tmp_path):
    assert [one.item.name for one in open_frames(place / "frames").images] == [f"frame{k}" for k in range(5, 14)]
    done = predict("frames", "-o", tmp_path / "out.mp4", "--fps", 10, "--opacity", 0.0)
    assert done.code == 0, done.err
    frames, fps = read(tmp_path / "out.mp4")
    assert fps == 10
    for index, frame in enumerate(frames):
        expected = np.asarray(Image.open(place / f"frames/frame{index + 5}.png")).astype(int)
        assert np.abs(frame - expected).mean() < 15
    assert predict("frames", "-o", tmp_path / "out", "--carry", 0.9, "--no-overlays").code == 0
    results = cacseg.Predictor(place / "model.safetensors", device="cpu").stream(place / "frames", carry=0.9)
    found = masks(tmp_path / "out")
    for index, result in enumerate(results):
        assert np.array_equal(found[f"frame{index + 5}"], result.mask)


def test_a_damaged_frame_is_named_and_the_others_go_on(predict, place, tmp_path):
    frames = tmp_path / "frames"
    shutil.copytree(place / "frames", frames)
    whole = (frames / "frame7.png").read_bytes()
    (frames / "frame7.png").write_bytes(whole[:60])
    for arguments in (("-o", tmp_path / "out.mp4"), ("-o", tmp_path / "carried", "--carry", 0.9)):
        done = predict(frames, *arguments)
        assert done.code == 1
        assert "frame7.png" in done.err
        assert f"1 of {COUNT} frames" in done.err
    assert len(read(tmp_path / "out.mp4")[0]) == COUNT - 1
    others = {f"frame{k}" for k in range(5, 14)} - {"frame7"}
    assert set(masks(tmp_path / "carried")) == others
    assert predict(frames, "-o", tmp_path / "carried", "--carry", 0.9).code == 1  # nothing else is left to do
    with pytest.raises(OSError, match=r"frame7\.png"):
        list(cacseg.Predictor(place / "model.safetensors", device="cpu").stream(frames))
    (frames / "frame7.png").write_bytes(whole)
    (tmp_path / "out.mp4").unlink()
    done = predict(frames, "-o", tmp_path / "out.mp4")
    assert done.code == 0, done.err
    assert "8 were done before" in done.out
    assert len(read(tmp_path / "out.mp4")[0]) == COUNT
    assert not (tmp_path / "out.mp4.part").exists()


def test_streams_from_python(place):
    predictor = cacseg.Predictor(place / "model.safetensors", device="cpu")
    pictures = read(place / "film.mp4")[0]
    alone = [predictor(picture).mask for picture in pictures]
    assert all(
        np.array_equal(*pair) for pair in zip(alone, (one.mask for one in predictor.stream(pictures)), strict=True)
    )
    carried = list(predictor.stream(iter(pictures), carry=0.9))
    assert np.array_equal(carried[0].mask, alone[0])
    assert not all(np.array_equal(one.mask, mask) for one, mask in zip(carried, alone, strict=True))
    assert np.array_equal(carried[3].plain, predictor(pictures[3]).plain)
    planes = [torch.from_numpy(np.ascontiguousarray(one.transpose(2, 0, 1))) for one in pictures]
    assert np.array_equal(next(predictor.stream(planes)).mask, alone[0])


def predictions(place, count, size=SIZE):
    for index in range(count):
        image = np.full((size[1], size[0], 3), index, np.uint8)
        yield Prediction(Input(place, f"{index:06}"), {}, image, Answer(image[..., 0] * 0))


def test_a_camera_is_ended_by_an_interrupt_and_a_file_is_not(tmp_path):
    def interrupted():
        yield from predictions(tmp_path, 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(tmp_path / "out.mp4", interrupted(), 25.0, palette=[(0, 0, 0)])
    assert list(tmp_path.iterdir()) == []
    assert write_video(tmp_path / "out.mp4", interrupted(), 25.0, palette=[(0, 0, 0)], is_live=True) == 3
    assert len(read(tmp_path / "out.mp4")[0]) == 3


def test_a_video_without_a_frame_is_named(tmp_path):
    path = write(tmp_path / "in.mp4", [np.zeros((48, 64, 3), np.uint8)])
    ended = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    assert [ended.read()[0], ended.read()[0]] == [True, False]
    with pytest.raises(OSError, match=r"in\.mp4 has no frame that can be read"):
        list(video._read_video(ended, path, {}))


def test_frames_of_two_sizes(tmp_path):
    frames = [*predictions(tmp_path, 1), *predictions(tmp_path, 1, (32, 32))]
    with pytest.raises(ValueError, match=r"32x32.*64x48"):
        write_video(tmp_path / "out.mp4", frames, 25.0, palette=[(0, 0, 0)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_video_goes_on(place, tmp_path):
    numbers = np.random.default_rng(1).integers(0, 256, (300, 6, 8, 3), np.uint8)
    write(tmp_path / "long.avi", [one.repeat(8, 0).repeat(8, 1) for one in numbers], codec="MJPG")
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "cacseg.cli", "predict", place / "model.safetensors", tmp_path / "long.avi"]
    command = [*map(str, command), "-o", str(out / "out.mp4"), "--carry", "0.9"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "out.mp4.part" / CONTEXT).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert os.listdir(out) == ["out.mp4.part"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"(\d+) were done before", done.stdout)[1]) >= SAVE_EVERY
    assert os.listdir(out) == ["out.mp4"]
    assert len(read(out / "out.mp4")[0]) == 300


@pytest.mark.parametrize("damage", ["empty", "array", "method", "garbage"])
def test_a_damaged_context_is_none(damage, tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    array = buffer.getvalue()
    np.savez(tmp_path / "a.npz", frame=np.array("3"))
    whole = (tmp_path / "a.npz").read_bytes()
    at = whole.index(b"PK\x01\x02") + 10  # how the member is packed
    other = whole[:at] + b"\x63\0" + whole[at + 2 :]
    content = {"empty": b"", "array": array, "method": other, "garbage": b"garbage!"}[damage]
    (tmp_path / CONTEXT).write_bytes(content)
    assert video._read_context(SimpleNamespace(folder=tmp_path)) is None


def test_carried_context_goes_on_exactly(place, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "SAVE_EVERY", 2)
    backend = cacseg.Predictor(place / "model.safetensors", device="cpu").backend

    def predict(folder, count, **changes):
        frames = open_frames(place / "frames")
        frames.images = itertools.islice(frames.images, count)
        with Journal(folder, {}) as journal:
            return write_masks(backend, frames, journal, SaveOptions(overlays=False), False, 1, 2, carry=0.9, **changes)

    assert predict(tmp_path / "whole", COUNT) == (COUNT, 0)
    assert predict(tmp_path / "parts", 5) == (5, 0)
    assert predict(tmp_path / "parts", COUNT) == (5, 4)  # the context of the fourth was saved
    whole, parts = masks(tmp_path / "whole"), masks(tmp_path / "parts")
    assert list(whole) == list(parts)
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    (tmp_path / "parts" / CONTEXT).write_bytes(b"cut short")
    assert predict(tmp_path / "parts", COUNT) == (COUNT, 0)
    (tmp_path / "parts/masks/frame6.png").unlink()
    with pytest.raises(ValueError, match="frame6"):
        predict(tmp_path / "parts", COUNT)


def test_nothing_is_left_of_a_video_that_was_not_finished(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.part.out.mp4").write_bytes(b"of a killed run")
    write_video(tmp_path / "out/out.mp4", predictions(tmp_path, 4), 25.0, palette=[(0, 0, 0)])
    assert os.listdir(tmp_path / "out") == ["out.mp4"]
    assert len(read(tmp_path / "out/out.mp4")[0]) == 4


@pytest.fixture(scope="module")
def broken(place):
    whole = (place / "film.mp4").read_bytes()
    (place / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (place / "text.mp4").write_text("no video")
    (place / "empty.mp4").write_bytes(b"")
    (place / "nothing").mkdir()
    return place


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cut.mp4",), ("cut.mp4", "damaged")),
        (("text.mp4",), ("text.mp4", "damaged")),
        (("empty.mp4",), ("empty.mp4", "damaged")),
        (("none.mp4",), ("there is no file none.mp4",)),
        (("camera:7",), ("there is no camera:7",)),
        (("camera:front",), ("camera:0", "camera:front")),
        (("nothing",), ("nothing to predict", "nothing")),
        (("film.mp4", "film.mp4"), ("got 2 paths",)),
        (("film.mp4", "--shard", "1/2"), ("--shard 1/1",)),
        (("film.mp4", "--carry", "0.5", "--plain"), ("--carry", "--plain")),
        (("film.mp4", "--carry", "0.5", "--flip"), ("whole",)),
        (("film.mp4", "--entropy"), ("folder",)),
    ],
)
def test_what_is_refused(predict, broken, tmp_path, arguments, words):
    done = predict(*arguments, "-o", tmp_path / "out.mp4")
    assert done.code == 2
    assert all(word in done.err for word in words)
    assert len(done.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_names(place, predict, tmp_path):
    assert predict("film.mp4", "-o", tmp_path / "out.wmv").code == 2
    assert [is_video(name) for name in ("a.mp4", "camera:0", "a/b.MOV", "a.jpg", "mp4", "out")] == [True] * 3 + [
        False
    ] * 3
