"""OpenCV and Pillow read the same values, so that an exported model sees what the model saw."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cacseg.runtime import colours, decode

GREY = np.random.default_rng(0).integers(0, 256, (24, 32), np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (24, 32, 3), np.uint8)


def encoded(picture, kind, **options):
    content = io.BytesIO()
    picture.save(content, kind, **options)
    return content.getvalue()


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


FILES = {
    "photograph": encoded(Image.fromarray(COLOUR), "JPEG", quality=90),
    "photograph, held upright": encoded(Image.fromarray(COLOUR), "JPEG", exif=turned()),
    "grey photograph": encoded(Image.fromarray(GREY), "JPEG"),
    "png": encoded(Image.fromarray(COLOUR), "PNG"),
    "grey png": encoded(Image.fromarray(GREY), "PNG"),
    "16-bit png": encoded(Image.fromarray(GREY.astype(np.uint16) * 251), "PNG"),
    "transparent": encoded(Image.fromarray(np.dstack([COLOUR, GREY])), "PNG"),
    "palette": encoded(Image.fromarray(COLOUR).quantize(32), "PNG"),
    "two colours": encoded(Image.fromarray(GREY > 128), "PNG"),
    "bmp": encoded(Image.fromarray(COLOUR), "BMP"),
    "tiff": encoded(Image.fromarray(COLOUR), "TIFF"),
    "webp": encoded(Image.fromarray(COLOUR), "WEBP", lossless=True),
}


@pytest.mark.parametrize("kind", FILES)
def test_both_readers_agree(kind, monkeypatch):
    first = decode.decode_image(FILES[kind], kind)
    monkeypatch.setattr(decode, "cv2", None)
    second = decode.decode_image(FILES[kind], kind)
    assert first.dtype == second.dtype == np.uint8
    assert np.array_equal(first, second)


@pytest.mark.parametrize("content", [b"", b"no image", FILES["png"][:100], FILES["photograph"][:200]])
def test_both_refuse_what_is_broken(content, monkeypatch):
    for _ in range(2):
        with pytest.raises(OSError, match=r"x\.png"):
            decode.decode_image(content, "x.png")
        monkeypatch.setattr(decode, "cv2", None)


def test_jpegs_of_both_writers_show_the_picture(monkeypatch):
    smooth = np.asarray(Image.fromarray(COLOUR).resize((4, 3)).resize((32, 24), Image.Resampling.BICUBIC))
    for _ in range(2):
        found = decode.decode_image(colours.jpeg(smooth), "x.jpg")
        assert np.abs(found.astype(int) - smooth).mean() < 4
        monkeypatch.setattr(colours, "cv2", None)


def of_size(width, height):
    """A PNG whose header claims so many pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + FILES["png"][33:]


@pytest.mark.parametrize("side", [100, 12_000, 40_000])
def test_pixels_are_counted_of_images_of_any_size(side, tmp_path):
    limit = Image.MAX_IMAGE_PIXELS
    (tmp_path / "x.png").write_bytes(of_size(side, side))
    assert decode.count_pixels(tmp_path / "x.png") == side**2
    assert limit == Image.MAX_IMAGE_PIXELS
    (tmp_path / "x.png").write_bytes(b"no image")
    assert decode.count_pixels(tmp_path / "x.png") == 0


def test_an_image_that_is_too_large_is_not_called_damaged(monkeypatch):
    monkeypatch.setattr(decode, "cv2", None)
    with pytest.raises(OSError, match=r"x\.png.*40000x40000.*OpenCV") as raised:
        decode.decode_image(of_size(40_000, 40_000), "x.png")
    assert "damaged" not in str(raised.value)
    with pytest.raises(OSError, match="40000x40000"):
        decode.check_pixels(of_size(40_000, 40_000), "x.png", 10**6)
