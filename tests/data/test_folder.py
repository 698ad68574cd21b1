"""A folder of one's own: kinds of files, classes.txt, ignore index, what is refused."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

import data_trees as trees
from cacseg.data import open_data
from cacseg.data.class_list import parse_classes
from cacseg.runtime.colours import distinct_colours

CLASSES = "road 128 64 128\ncar 0 0 142\nsky 70 130 180\n"
COLOURS = np.array([[128, 64, 128], [0, 0, 142], [70, 130, 180]], np.uint8)


def _with_labels(root, labels, classes="road\ncar\nsky\n", suffix=".png", **options):
    """A folder with one image and these labels: an array, a Pillow image or bytes."""
    path = root / "labels/train" / f"a{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(labels, bytes):
        path.write_bytes(labels)
    else:
        (Image.fromarray(labels) if isinstance(labels, np.ndarray) else labels).save(path)
    trees.write(root / "images/train/a.jpg", trees.image(0))
    trees.write_text(root / "classes.txt", classes)
    return open_data("folder", root, "train", **options)


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".PNG", ".JPG"])
def test_kinds_of_images(suffix, tmp_path):
    trees.write(tmp_path / "labels/train/x/a.png", np.zeros(trees.SIZE, np.uint8))
    trees.write_text(tmp_path / "classes.txt", "one\ntwo\n")
    smooth = np.asarray(Image.fromarray(trees.image(0, (3, 4))).resize(trees.SIZE[::-1], Image.Resampling.BILINEAR))
    trees.write(tmp_path / f"images/train/x/a{suffix}", smooth)
    read = open_data("folder", tmp_path, "train").read(0).image
    with Image.open(tmp_path / f"images/train/x/a{suffix}") as picture:
        expected = np.asarray(picture.convert("RGB")).astype(int)
    # Lossy formats may be decoded with other rounding; swapped channels would be far off.
    assert abs(read - expected).max() <= (4 if suffix.lower() in (".jpg", ".jpeg", ".webp") else 0)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}])
def test_cut_and_lengthened_jpegs(options, tmp_path, capfd):
    """What was cut off anywhere is missed; what phones append (a film, a trailer) is passed over."""
    trees.write(tmp_path / "labels/train/a.png", np.zeros((200, 300), np.uint8))
    trees.write_text(tmp_path / "classes.txt", "one\n")
    content = io.BytesIO()
    Image.fromarray(trees.image(0, (200, 300))).save(content, "JPEG", **options)
    whole, path = content.getvalue(), tmp_path / "images/train/a.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole)
    data = open_data("folder", tmp_path, "train")
    expected = data.read(0).image
    path.write_bytes(whole + b"ftypmp42 \xff\xda \xff\xd8 more")
    np.testing.assert_array_equal(data.read(0).image, expected)
    for share in (0.01, 0.3, 0.7, 0.99, 0.9999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(OSError, match=r"a.jpg is damaged, truncated or no image"):
            data.read(0)


def test_grey_deep_and_transparent_images(tmp_path):
    grey = trees.image(0)[..., 0]
    trees.write_text(tmp_path / "classes.txt", "one\ntwo\n")
    alpha = np.dstack([trees.image(1), np.full(trees.SIZE, 7, np.uint8)])
    files = {"deep": grey.astype(np.uint16) * 257, "grey": grey, "transparent": alpha}
    for name, array in files.items():
        trees.write(tmp_path / f"images/train/{name}.png", array)
        trees.write(tmp_path / f"labels/train/{name}.png", np.zeros(trees.SIZE, np.uint8))
    data = open_data("folder", tmp_path, "train")
    images = {data.image_name(k): data.read(k).image for k in range(3)}
    np.testing.assert_array_equal(images["deep"], np.repeat(grey[..., None], 3, -1))
    np.testing.assert_array_equal(images["grey"], np.repeat(grey[..., None], 3, -1))
    np.testing.assert_array_equal(images["transparent"], alpha[..., :3])


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_images_are_turned_upright(suffix, tmp_path):
    """As held: orientation 6 is turned by 90 degrees, so labels of the upright size fit and others do not."""
    picture, exif = Image.fromarray(trees.image(0)), Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images/train").mkdir(parents=True)
    picture.save(tmp_path / f"images/train/a{suffix}", exif=exif)
    trees.write_text(tmp_path / "classes.txt", "one\ntwo\n")
    trees.write(tmp_path / "labels/train/a.png", np.zeros(trees.SIZE[::-1], np.uint8))
    assert open_data("folder", tmp_path, "train").read(0).image.shape == (*trees.SIZE[::-1], 3)
    trees.write(tmp_path / "labels/train/a.png", np.zeros(trees.SIZE, np.uint8))
    with pytest.raises(ValueError, match=r"one size; .* is 24x32 and .* 32x24. The image may carry a rotation"):
        open_data("folder", tmp_path, "train").read(0)


def _grey_png(labels, bits):
    """A grey PNG of 1, 2 or 4 bits a pixel, as programs that shrink PNGs write them."""
    height, width = labels.shape
    planes = (labels[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    rows = np.packbits(planes.reshape(height, width * bits).astype(np.uint8), axis=1)
    content = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(content)), (b"IEND", b""))
    parts = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_low_bit_depths_are_not_stretched(bits, tmp_path):
    labels = trees.raw_labels(list(range(2 if bits == 1 else 3)), 0)
    np.testing.assert_array_equal(_with_labels(tmp_path, _grey_png(labels, bits)).read(0).labels, labels)


def test_kinds_of_label_files(tmp_path):
    labels = trees.raw_labels([0, 1, 2, 255], 0)
    palette_file = Image.fromarray(labels)
    palette_file.putpalette(bytes(range(256)) * 3)
    three = np.repeat(labels[..., None], 3, -1)
    kinds = {"index": labels, "deep": labels.astype(np.uint16), "palette": palette_file, "three": three}
    kinds["transparent"] = Image.fromarray(np.dstack([labels, labels]), "LA")
    for name, content in kinds.items():
        read = _with_labels(tmp_path / name, content).read(0).labels
        np.testing.assert_array_equal(read, labels, err_msg=name)
        assert read.flags.writeable, name  # or torch.from_numpy warns
    for suffix in (".bmp", ".tif", ".tiff"):
        data = _with_labels(tmp_path / suffix, labels, suffix=suffix)
        np.testing.assert_array_equal(data.read(0).labels, labels, err_msg=suffix)


def test_colours_are_decoded(tmp_path):
    labels = trees.raw_labels([0, 1, 2], 0)
    data = _with_labels(tmp_path, COLOURS[labels], CLASSES)
    assert data.palette == tuple(map(tuple, COLOURS.tolist()))
    np.testing.assert_array_equal(data.read(0).labels, labels)
    ignored = COLOURS[labels]
    ignored[labels == 1] = 0
    data = _with_labels(tmp_path / "ignored", ignored, CLASSES + "[ignore] 0 0 0\n[ignore] 1 1 1\n")
    np.testing.assert_array_equal(data.read(0).labels, np.where(labels == 1, 255, labels))
    assert data.class_names == ("road", "car", "sky")


def test_unknown_colours_are_named(tmp_path):
    pixels = COLOURS[trees.raw_labels([0, 1, 2], 0)]
    pixels[3, 5] = 1, 2, 3
    with pytest.raises(ValueError, match=r"a.png holds the colour \(1, 2, 3\) in 1 of 768 pixels, which is no class"):
        _with_labels(tmp_path, pixels, CLASSES).read(0)
    with pytest.raises(ValueError, match=r"holds colours, \(128, 64, 128\) among them, and nothing says which class"):
        _with_labels(tmp_path / "without", np.full((*trees.SIZE, 3), (128, 64, 128), np.uint8)).read(0)


def test_a_palette_in_another_order_is_refused(tmp_path):
    """Some program numbered the colours: taking the indices would silently swap the classes."""
    swapped = Image.fromarray(np.zeros(trees.SIZE, np.uint8))
    swapped.putpalette(COLOURS[[1, 0, 2]].tobytes())
    with pytest.raises(ValueError, match=r"shows index 0 as \(0, 0, 142\), the colour of class 1"):
        _with_labels(tmp_path, swapped, CLASSES).read(0)
    straight = Image.fromarray(np.full(trees.SIZE, 2, np.uint8))
    straight.putpalette(COLOURS.tobytes())
    assert (_with_labels(tmp_path / "straight", straight, CLASSES).read(0).labels == 2).all()


def test_another_ignore_index(tmp_path):
    labels = trees.raw_labels([0, 1, 2, 11], 0)
    data = _with_labels(tmp_path, labels, ignore_index=11)
    assert data.ignore_index == 255
    np.testing.assert_array_equal(data.read(0).labels, np.where(labels == 11, 255, labels))
    with pytest.raises(ValueError, match=r"holds the label 255 .*ignored is 11"):
        _with_labels(tmp_path / "both", trees.raw_labels([0, 255], 0), ignore_index=11).read(0)
    deep = trees.raw_labels([0, 1, 2], 0).astype(np.uint16)
    deep[0, 0] = 65535
    assert _with_labels(tmp_path / "deep", deep, ignore_index=65535).read(0).labels[0, 0] == 255
    with pytest.raises(ValueError, match=r"must be no class number; 2 is one of the 3 classes"):
        open_data("folder", tmp_path, "train", ignore_index=2)
    with pytest.raises(ValueError, match=r"a value that an image file can hold, 0 to 65535; got -1"):
        open_data("folder", tmp_path, "train", ignore_index=-1)


@pytest.mark.parametrize("values", [[0, 3], [0, 254], [0, 300], [0, 65535]])
def test_labels_out_of_range(values, tmp_path):
    labels = trees.raw_labels(values, 0)
    with pytest.raises(ValueError, match=rf"a.png holds the label {values[1]} in .*classes are 0 to 2; ignored is 255"):
        _with_labels(tmp_path, labels).read(0)


def test_labels_of_a_strange_kind(tmp_path):
    content = io.BytesIO()
    Image.fromarray(np.zeros(trees.SIZE, np.float32)).save(content, "TIFF")
    with pytest.raises(ValueError, match=r"grey or palette files, or RGB of 8 bits; .*a.tif has mode F"):
        _with_labels(tmp_path, content.getvalue(), suffix=".tif").read(0)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("channels", [3, 4])
def test_deep_labels_in_several_channels_are_refused_and_not_read_as_zero(suffix, channels, tmp_path):
    labels = trees.raw_labels([0, 1, 2], 0).astype(np.uint16)
    content = cv2.imencode(suffix, np.repeat(labels[..., None], channels, -1))[1].tobytes()
    with pytest.raises(ValueError, match=rf"RGB of 8 bits; .*a{suffix} has mode RGBA? with 16 bits a channel"):
        _with_labels(tmp_path, content, suffix=suffix).read(0)


def test_classes_file():
    for text in (
        CLASSES,
        "road, 128, 64, 128\ncar,0,0,142\nsky: 70 130 180",
        "road #804080\ncar #00008E\nsky #4682b4\n",
    ):
        classes = parse_classes("\ufeff# our classes\n\n" + text, "classes.txt")
        assert classes.names == ("road", "car", "sky")
        assert classes.palette == tuple(map(tuple, COLOURS.tolist()))
        assert classes.has_colours
    plain = parse_classes("traffic light\nhouse 2\n", "classes.txt")
    assert plain.names == ("traffic light", "house 2")
    assert not plain.has_colours
    assert plain.palette == distinct_colours(2)
    assert len(set(distinct_colours(255))) == 255


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "classes.txt names no class"),
        ("# nothing\n", "classes.txt names no class"),
        ("a\nb\na\n", "'a' twice .line 3"),
        ("a 1 2 3\nb\n", "gives 1 for 2 classes"),
        ("a 1 2 300\n", "from 0 to 255; line 1 of classes.txt has"),
        ("a\n[ignore] 0 0 0\n", "none of the classes has one"),
        ("a 0 0 0\n[ignore]\n", r"\[ignore\] must be followed by a colour"),
        ("a 0 0 0\n[ignore] 0 0 0\n", "a class or ignored, not both"),
        ("\n".join(f"class{k}" for k in range(256)), "1 to 255 classes .*; got 256"),
    ],
)
def test_broken_classes_files(text, message):
    with pytest.raises(ValueError, match=message):
        parse_classes(text, "classes.txt")


def test_255_classes_are_the_most(tmp_path):
    labels = np.arange(256, dtype=np.uint8).repeat(3).reshape(trees.SIZE)
    data = _with_labels(tmp_path, labels, "\n".join(f"class{k}" for k in range(255)) + "\n")
    np.testing.assert_array_equal(data.read(0).labels, labels)


def test_what_is_refused_at_open(tmp_path):
    trees.folder(tmp_path)
    (tmp_path / "images/test").mkdir()
    with pytest.raises(ValueError, match=r"the split 'test' of .* is empty"):
        open_data("folder", tmp_path, "test")
    with pytest.raises(ValueError, match=r"no split 'training' in .*There is test, train, val"):
        open_data("folder", tmp_path, "training")
    trees.write_text(tmp_path / "classes.txt", "a 1 1 1\nb 1 1 1\nc 2 2 2\n")
    with pytest.raises(ValueError, match=r"gives classes 0 and 1 one colour, \(1, 1, 1\)"):
        open_data("folder", tmp_path, "train")
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no .*classes.txt. Write one class name a line"):
        open_data("folder", tmp_path, "train")
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"classes.txt must be a text file in UTF-8"):
        open_data("folder", tmp_path, "train")


def test_one_of_several_is_not_guessed(tmp_path):
    trees.folder(tmp_path / "cats")
    assert len(open_data("folder", tmp_path, "train")) == 3
    trees.folder(tmp_path / "dogs")
    with pytest.raises(ValueError, match=r"2 data sets lie in .*: cats, dogs. Give one of them"):
        open_data("folder", tmp_path, "train")


def test_two_files_of_one_name(tmp_path):
    trees.folder(tmp_path)
    trees.write(tmp_path / "images/train/day0/0.png", trees.image(0))
    with pytest.raises(ValueError, match=r"images must differ in more than their suffix"):
        open_data("folder", tmp_path, "train")
    (tmp_path / "images/train/day0/0.png").unlink()
    trees.write(tmp_path / "labels/train/day0/0.bmp", np.zeros(trees.SIZE, np.uint8))
    with pytest.raises(ValueError, match=r"an image has one file of labels"):
        open_data("folder", tmp_path, "train")


def test_arguments_that_do_not_belong(tmp_path):
    trees.folder(tmp_path)
    with pytest.raises(ValueError, match=r"unknown data set 'ade'. There are ade20k, "):
        open_data("ade", tmp_path, "train")
    with pytest.raises(ValueError, match=r"'folder' needs a root"):
        open_data("folder", None, "train")
    with pytest.raises(ValueError, match=r"size, length and seed belong to 'synthetic'"):
        open_data("folder", tmp_path, "train", seed=1)
    with pytest.raises(ValueError, match=r"ignore_index belongs to 'folder'"):
        open_data("camvid", tmp_path, "train", ignore_index=11)
    with pytest.raises(ValueError, match=r"takes neither root, ignore_index"):
        open_data("synthetic", tmp_path, "train")


def test_clutter_of_desktops_is_passed_over(tmp_path):
    raw = trees.folder(tmp_path)
    for name in ("images/train/.DS_Store", "images/train/._0.jpg", "labels/train/Thumbs.db", "__MACOSX/images/x.jpg"):
        trees.write_text(tmp_path / name, "x")
    trees.write_text(tmp_path / "images/train/notes.txt", "x")
    assert len(open_data("folder", tmp_path, "train")) == len(raw)


@pytest.mark.parametrize("kind", ["grey", "bits", "colours"])
def test_a_single_class_has_a_background_before_it(kind, tmp_path):
    labels = trees.raw_labels([0, 1], 0)
    stored = {"grey": labels, "bits": Image.fromarray(labels * 255).convert("1")}
    stored["colours"] = np.array([[0, 0, 0], [255, 0, 0]], np.uint8)[labels]
    data = _with_labels(tmp_path, stored[kind], "crack 255 0 0\n" if kind == "colours" else "crack\n")
    assert data.class_names == ("background", "crack")
    assert data.palette[0] == (0, 0, 0) != data.palette[1]
    np.testing.assert_array_equal(data.read(0).labels, labels)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ("background\n", r"classes\.txt names 'background' alone\. Name the class to be found"),
        ("crack 0 0 0\n", r"gives black to something else\. Write both classes"),
        ("crack 255 0 0\n[ignore] 0 0 0\n", r"gives black to something else\. Write both classes"),
    ],
)
def test_a_single_class_that_leaves_no_background(classes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        _with_labels(tmp_path, trees.raw_labels([0, 1], 0), classes)


def test_a_value_beyond_a_single_class(tmp_path):
    data = _with_labels(tmp_path, trees.raw_labels([0, 1, 2], 0), "crack\n")
    with pytest.raises(ValueError, match=r"holds the label 2 .* The 2 classes are 0 to 1; ignored is 255"):
        data.read(0)
