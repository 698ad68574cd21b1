"""Damage to exported files is found, whatever byte it is in."""

import pytest

from cacseg.runtime.onnx_file import OnnxBackend
from cacseg.runtime.seal import KEY, UNSEALED, check_seal, seal
from onnx_files import Small, onnx, write_small


@pytest.fixture
def path(tmp_path):
    path = write_small(tmp_path / "m.onnx", Small(3))
    model = onnx.load(path)
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, UNSEALED
    onnx.save(model, path)
    return path


def test_every_flipped_byte_is_found(path):
    seal(path)
    check_seal(path)
    OnnxBackend(path)
    whole = path.read_bytes()
    mark = whole.index(KEY.encode())
    places = [place for place in range(len(whole)) if not mark <= place < mark + len(KEY) + 2 + len("crc32:")]
    for place in [*places[::9], mark + len(KEY) + 10]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if mark < place < mark + 40 and path.read_bytes()[place] not in b"0123456789abcdef":
            continue  # the checksum is none any more: nothing else was damaged
        with pytest.raises(ValueError, match=r"m\.onnx is damaged: .*\(checksum crc32:\w{8}, now crc32:\w{8}\)"):
            check_seal(path)
    path.write_bytes(whole[:100] + b"x" + whole[101:])
    with pytest.raises(ValueError, match=r"m\.onnx is damaged.*export it again"):
        OnnxBackend(path)


def test_a_sealed_file_says_so_in_its_metadata(path):
    seal(path)
    (value,) = [one.value for one in onnx.load(path).metadata_props if one.key == KEY]
    assert value.startswith("crc32:")
    assert value != UNSEALED


def test_a_file_from_elsewhere_has_no_checksum(tmp_path):
    path = write_small(tmp_path / "m.onnx", Small(3))
    check_seal(path)
    OnnxBackend(path)
    with pytest.raises(ValueError, match=rf"m\.onnx.*{KEY}={UNSEALED}"):
        seal(path)
