"""Windows against a reading with loops: the map is padded, the windows are laid over it half a window further."""

import math

import pytest
import torch
from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention

from cacseg.models.backbones import make_backbone
from cacseg.models.reference import shifted_window_mask, windowed_attention


def naive_windowed_attention(x, attention, window, shift):
    """One query at a time. A roll by `shift` makes windows that start at `shift`, and the last ones wrap around."""
    b, h, w, d = x.shape
    height, width = math.ceil(h / window) * window, math.ceil(w / window) * window
    padded = torch.zeros(b, height, width, d, dtype=x.dtype)
    padded[:, :h, :w] = x
    heads = attention.num_heads
    queries, keys, values = attention.qkv(padded).unflatten(-1, (3, heads, d // heads)).unbind(3)
    out = torch.zeros_like(padded)
    for row in range(height):
        for column in range(width):
            in_window = [
                (i, j, (i - shift) % height % window, (j - shift) % width % window)
                for i in range(height)
                for j in range(width)
                if (i - shift) % height // window == (row - shift) % height // window
                and (j - shift) % width // window == (column - shift) % width // window
            ]
            at = ((row - shift) % height % window, (column - shift) % width % window)
            scores = []
            for i, j, window_i, window_j in in_window:
                offset = (at[0] - window_i + window - 1) * (2 * window - 1) + at[1] - window_j + window - 1
                score = (queries[:, row, column] * keys[:, i, j]).sum(-1) * (d // heads) ** -0.5
                score = score + attention.relative_position_bias_table[offset]
                # Wrapped: one of the two lies before the seam of the roll, the other behind it.
                wrapped = (i < shift) != (row < shift) or (j < shift) != (column < shift)
                scores.append(score - 100.0 * wrapped)
            weights = torch.stack(scores).softmax(0)  # [area, b, heads]
            seen = torch.stack([values[:, i, j] for i, j, _, _ in in_window])  # [area, b, heads, d / heads]
            out[:, row, column] = attention.proj((weights[..., None] * seen).sum(0).flatten(1))
    return out[:, :h, :w]


@pytest.mark.parametrize("size", [(8, 8), (10, 9), (5, 3), (4, 4), (2, 3)])
@pytest.mark.parametrize("shift", [0, 2])
@torch.no_grad()
def test_windows_are_padded_first_and_rolled_second(size, shift):
    torch.manual_seed(0)
    attention = WindowAttention(6, num_heads=2, window_size=4).double()
    attention.relative_position_bias_table.normal_()
    attention.qkv.bias.normal_()  # padding has keys and values of its own
    x = torch.randn(2, *size, 6).double()
    mask = shifted_window_mask(x, (4, 4), (shift, shift)) if shift else None
    ours = windowed_attention(x, attention, (4, 4), (shift, shift), mask)
    torch.testing.assert_close(ours, naive_windowed_attention(x, attention, 4, shift))


@torch.no_grad()
def test_where_nothing_is_padded_the_block_is_timms():
    block = SwinTransformerBlock(6, (8, 12), num_heads=2, window_size=4, shift_size=2).double().eval()
    x = torch.randn(2, 8, 12, 6).double()
    ours = windowed_attention(x, block.attn, (4, 4), (2, 2), shifted_window_mask(x, (4, 4), (2, 2)))
    torch.testing.assert_close(ours, block._attn(x))


@torch.no_grad()
def test_the_pyramid_of_any_size():
    backbone = make_backbone("swin_tiny_patch4_window7_224").eval()
    pyramid = backbone(torch.randn(1, 3, 33, 47))
    assert [tuple(level.shape[1:]) for level in pyramid] == [(96, 9, 12), (192, 5, 6), (384, 3, 3), (768, 2, 2)]
    assert all(level.is_contiguous() for level in pyramid)


def test_only_the_maps_that_are_read_have_a_norm():
    with torch.device("meta"):
        backbone = make_backbone("swin_tiny_patch4_window7_224", levels=(0, 3))
    assert [name for name, _ in backbone.net.norms.named_parameters()] == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_drop_path_grows_with_depth():
    with torch.device("meta"):
        backbone = make_backbone("swin_tiny_patch4_window7_224", drop_path=0.3)
    rates = [
        module.drop_prob
        for name, module in backbone.named_modules()
        if name.endswith("drop_path1") and "blocks.0" not in name
    ]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(0.3)
