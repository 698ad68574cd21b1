import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from cacseg._tensors import CHECKSUM, check_finite, checksum, is_finite, read_safetensors, write_safetensors

TENSORS = {
    "weight": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
    "half": torch.tensor([0.5, -0.5], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "flag": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
}
FACTS = {"format": "x 1", "mean": "[0.485]"}


def test_tensors_and_facts_come_back_without_the_checksum(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", TENSORS, FACTS)
    tensors, facts = read_safetensors(tmp_path / "a.safetensors")
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert load_file(tmp_path / "a.safetensors").keys() == TENSORS.keys()


def test_every_flipped_bit_of_the_values_and_of_the_facts_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, TENSORS, FACTS)
    whole = path.read_bytes()
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    places = [*range(start, len(whole)), whole.index(b"0.485") + 3]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"a\.safetensors is damaged: .*checksum crc32:\w{8}, now crc32:\w{8}"):
            read_safetensors(path)


def test_a_file_from_elsewhere_has_no_checksum(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors", metadata={"x": "1"})
    assert read_safetensors(tmp_path / "a.safetensors")[1] == {"x": "1"}
    save_file({"a": torch.ones(2)}, tmp_path / "b.safetensors")
    assert read_safetensors(tmp_path / "b.safetensors")[1] == {}


def test_the_checksum_is_of_names_types_shapes_and_values():
    one = {"a": torch.zeros(2, 2), "b": torch.ones(2)}
    known = checksum(one, FACTS)
    assert known == checksum(dict(reversed(one.items())), dict(reversed(FACTS.items())))
    others = [{**one, "a": torch.zeros(4)}, {**one, "a": torch.zeros(2, 2, dtype=torch.int32)}, {"a": one["a"]}]
    others.append({"c" if name == "b" else name: tensor for name, tensor in one.items()})
    assert known not in {checksum(other, FACTS) for other in others}
    assert known != checksum(one, {**FACTS, "mean": "[0.486]"})


@pytest.mark.parametrize(
    "header", [b"{}" + b" " * 90, b"[" * 100_000, b'{"a": 1}', b'{"__metadata__": {"x": 1}}', b"\xff"]
)
def test_a_malformed_header_is_one_line(tmp_path, header):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    if header.startswith(b"{}"):
        assert read_safetensors(path) == ({}, {})
        return
    with pytest.raises(ValueError, match=r"a\.safetensors is damaged \(.*cut short"):
        read_safetensors(path)


@pytest.mark.parametrize("claim", [[0, 4 * 10**9], [0, -1], [0, 2**64], [8, 0]])
def test_offsets_that_the_file_does_not_hold(tmp_path, claim):
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**9], "data_offsets": claim}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
        read_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_values_that_are_not_finite(dtype):
    good = torch.ones(3, 4).to(dtype)
    assert is_finite(good)
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = torch.ones(3, 4)
        bad[1, 2] = value
        assert not is_finite(bad.to(dtype))
    assert is_finite(torch.zeros(0, dtype=dtype))


def test_names_of_tensors_that_are_not_finite():
    bad = torch.tensor([1.0, float("nan")])
    tensors = [
        ("a", torch.ones(2)),
        *((f"b{index}", bad) for index in range(5)),
        ("z", torch.tensor(1 + float("inf") * 1j)),
    ]
    with pytest.raises(ValueError, match=r"must be finite; x\.pth holds NaN or infinity in b0, b1, b2 and 3 more"):
        check_finite(tensors, "x.pth")
    check_finite(tensors[:1], "x.pth")
    assert CHECKSUM == "checksum"
