"""OpenCV and Pillow read the same values, so that an exported model sees what the model saw."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import bad_files as bad
from cacseg.data.decode import decode_labels
from cacseg.runtime import colours, decode, headers
from cacseg.runtime.bands import decode_bands
from cacseg.runtime.headers import size_of, tiff_kind

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


@pytest.mark.parametrize("reader", ["OpenCV", "Pillow"])
def test_an_image_that_is_too_large_is_not_called_damaged(reader, monkeypatch):
    if reader == "Pillow":
        monkeypatch.setattr(decode, "cv2", None)
    with pytest.raises(OSError, match=r"x\.png.*40000x40000.*256 megapixels.*--max-pixels.*--tile") as raised:
        decode.decode_image(of_size(40_000, 40_000), "x.png")
    assert "damaged" not in str(raised.value)
    for name, applies in (("x.TIF", False), ("x.tiff", False), ("x.png", True), ("x.jpg", True)):
        with pytest.raises(OSError, match=r"--max-pixels.*--tile 1024") as raised:
            decode.check_size((40_000, 40_000), name, 10**6)
        assert ("save it as a TIFF" in str(raised.value)) == applies
    with pytest.raises(OSError, match="40000x40000"):
        decode.check_pixels(of_size(40_000, 40_000), "x.png", 10**6)


SIZES = {
    "claims.jpg": (32_767, 32_767),
    "claims_progressive.jpg": (32_767, 32_767),
    "claims.png": (60_000, 60_000),
    "claims.tif": (100_000, 100_000),
    "claims.bmp": (50_000, 50_000),
    "claims_gif.png": (65_535, 65_535),
    "claims.webp": (16_383, 16_383),
}


@pytest.mark.parametrize("name", bad.CLAIMS)
@pytest.mark.parametrize("reader", ["OpenCV", "Pillow"])
def test_a_claim_of_any_format_is_refused_before_it_is_decoded(name, reader, monkeypatch):
    """Images, labels and bands alike, and a limit that is raised lets the decoder see them."""
    content, size = bad.CLAIMS[name], "x".join(map(str, SIZES[name]))
    assert size_of(content) == SIZES[name]
    monkeypatch.setattr(decode, "_decode_with_pillow", lambda content, where: reader)
    if reader == "Pillow":
        monkeypatch.setattr(decode, "cv2", None)
    else:
        monkeypatch.setattr(decode.cv2, "imdecode", _never)
    with pytest.raises(OSError, match=rf"{name} has {size} pixels, more than 256 megapixels.*--max-pixels"):
        decode.decode_image(content, name)
    with pytest.raises(OSError, match=rf"{name} has {size} pixels.*--max-pixels"):
        decode_labels(content, name)
    with pytest.raises(OSError, match=rf"{name} has {size} pixels.*--max-pixels"):
        decode_bands(content, name, 3)
    if max(SIZES[name]) > 2**15:  # more than OpenCV takes
        assert decode.decode_image(content, name, 10**11) == reader or name == "claims.tif"


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_with_more_pixels_than_its_bytes_can_hold(progressive, monkeypatch):
    """Decoders fill up what is missing, so that 631 bytes became 254 megapixels."""
    monkeypatch.setattr(headers, "JPEG_SMALL", 10_000)
    side = 32
    while True:  # the densest that is made: one colour, and tables of its own
        flat = encoded(Image.new("RGB", (side, side)), "JPEG", quality=1, optimize=True, progressive=progressive)
        if side * side > 2_000_000:
            break
        assert decode.decode_image(flat, "flat.jpg").shape == (side, side, 3)
        side *= 3
    assert side * side / len(flat) < headers.JPEG_PIXELS / 4
    content = bad.jpeg(15_900, 16_000, progressive)
    with monkeypatch.context() as patch:
        patch.setattr(decode.cv2, "imdecode", _never)
        for read in decode.decode_image, lambda content, where: decode_bands(content, where, 3):
            with pytest.raises(OSError, match=rf"x\.jpg claims 15900x16000 .* {len(content)} bytes.*Copy it again"):
                read(content, "x.jpg")
    small = bad.jpeg(100, 100, progressive)
    assert len(small) * headers.JPEG_PIXELS > 10_000
    assert headers.can_hold(small, 10_000)
    assert not headers.can_hold(small, len(small) * headers.JPEG_PIXELS + 1)
    assert headers.can_hold(bad.png(15_900, 16_000), 15_900 * 16_000)  # of PNG the chunks are counted


def _never(*_):
    raise AssertionError("it was decoded")


@pytest.mark.parametrize("kind", FILES)
def test_sizes_are_those_that_are_decoded(kind):
    upright = decode.decode_image(FILES[kind], kind).shape[1::-1]
    assert size_of(FILES[kind]) == (upright[::-1] if kind == "photograph, held upright" else upright)
    for length in range(0, len(FILES[kind]), 7):  # of what is cut off nothing, or the same
        assert size_of(FILES[kind][:length]) in (None, size_of(FILES[kind]))


def test_a_limit_that_is_raised_is_not_pillow_s_either(monkeypatch):
    """A palette of more pixels than Pillow opens by itself."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    palette = encoded(Image.fromarray(GREY).convert("P"), "PNG")
    assert decode_labels(palette, "x.png", 24 * 32).indices.shape == (24, 32)
    with pytest.raises(OSError, match="32x24 pixels"):
        decode_labels(palette, "x.png", 24 * 32 - 1)
    monkeypatch.setattr(decode, "cv2", None)
    assert decode.decode_image(FILES["png"], "x.png", 24 * 32).shape == (24, 32, 3)


def test_a_float_tiff_is_not_called_damaged(monkeypatch):
    content = encoded(Image.fromarray(GREY.astype(np.float32) / 255), "TIFF")
    assert str(tiff_kind(content)) == "1 band(s) of floats of 32 bits"
    for _ in range(2):
        with pytest.raises(OSError, match=r"x\.tif has 1 band\(s\) of floats of 32 bits.*data\.bands=1") as raised:
            decode.decode_image(content, "x.tif")
        assert "damaged" not in str(raised.value)
        monkeypatch.setattr(decode, "cv2", None)  # Pillow would make it black


def test_numbers_that_claim_more_than_they_hold():
    def array(shape, kind="<f4"):
        header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(100)

    with pytest.raises(OSError, match="9000000x9000000 pixels"):
        decode_bands(array((9_000_000, 9_000_000, 3)), "x.npy", 3)
    with pytest.raises(OSError, match=r"x\.npy is damaged.*more than the file holds"):
        decode_bands(array((10_000, 10_000, 3)), "x.npy", 3)


def test_mutated_headers_are_one_line():
    numbers, said = np.random.default_rng(0), []
    for content in [*FILES.values(), *bad.CLAIMS.values()]:
        for _ in range(40):
            changed = bytearray(content)
            for place in numbers.integers(0, min(64, len(content)), 3):
                changed[place] = numbers.integers(0, 256)
            for read in (decode.decode_image, decode_labels):
                try:
                    read(bytes(changed), "x.png", 10**6)
                except (OSError, ValueError) as error:
                    said.append(str(error))
    assert len(said) > 500
    assert all("x.png" in one and "\n" not in one for one in said)


@pytest.mark.parametrize("reader", ["OpenCV", "Pillow"])
def test_a_part_that_says_that_it_has_gigabytes_is_not_given_them(reader, monkeypatch):
    content = bytearray(FILES["grey png"])
    place = content.index(b"IDAT")
    content[place - 4 : place] = struct.pack(">I", 2**31 - 1)
    if reader == "Pillow":
        monkeypatch.setattr(decode, "cv2", None)
    else:
        monkeypatch.setattr(decode.cv2, "imdecode", _never)
    for read in (decode.decode_image, decode_labels):
        with pytest.raises(OSError, match=r"x\.png is damaged"):
            read(bytes(content), "x.png")
    with pytest.raises(OSError, match=r"x\.png is damaged"):
        decode_bands(bytes(content), "x.png", 1)
