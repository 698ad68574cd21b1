"""What exporters need: the same values with sizes that are symbols."""

import pytest
import torch
from torch.export import Dim, export
from torch.nn import functional as F

from cacseg.models.layers import missing_to_multiple, pool, pooling_matrix


@pytest.mark.parametrize("bins", [1, 2, 3, 6])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 13, 64])
def test_the_bins_are_those_of_adaptive_pooling(bins, length):
    values = torch.randn(length, dtype=torch.float64)
    truth = F.adaptive_avg_pool1d(values[None, None], bins)[0, 0]
    torch.testing.assert_close(pooling_matrix(length, bins, values) @ values, truth)


def test_multiples():
    assert [missing_to_multiple(side, 7) for side in (1, 6, 7, 8)] == [6, 1, 0, 6]


class Pooled(torch.nn.Module):
    def forward(self, maps):
        return pool(maps, 6), pool(maps, (1, 3))


def dynamic(least):
    return {0: Dim("batch", min=1), 2: Dim("height", min=least), 3: Dim("width", min=least)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooling_exports_with_any_size(dtype):
    program = export(Pooled(), (torch.randn(2, 3, 8, 9, dtype=dtype),), dynamic_shapes=(dynamic(2),))
    for shape in ((1, 3, 5, 17), (3, 3, 12, 4)):
        maps = torch.randn(shape, dtype=dtype)
        coarse, wide = program.module()(maps)
        torch.testing.assert_close(coarse, F.adaptive_avg_pool2d(maps, 6))
        torch.testing.assert_close(wide, F.adaptive_avg_pool2d(maps, (1, 3)))


def test_the_average_of_half_precision_is_taken_in_float32():
    maps = torch.full((1, 2, 300, 300), 7.0, dtype=torch.float16)
    program = export(Pooled(), (maps,))
    assert torch.equal(program.module()(maps)[0], torch.full((1, 2, 6, 6), 7.0, dtype=torch.float16))
