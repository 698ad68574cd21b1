"""The settings of float32, by torch's older names and by its newer ones, which it refuses to mix."""

from contextlib import suppress

import pytest
import torch

from cacseg.functional._precision import exact_products, matmul_precision, without_tf32

NEWER = pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="the settings of torch 2.9")


class OnGpu(torch.Tensor):
    """A tensor that says so, on a machine that may have none."""

    is_cuda = True


ON_GPU = torch.empty(0).as_subclass(OnGpu)


@pytest.fixture(params=[False, True])
def block(request):
    """Code that may fail."""

    def fail():
        if request.param:
            raise KeyError

    return fail


def test_without_tf32(monkeypatch, block):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with matmul_precision("high"):
        with suppress(KeyError), without_tf32():
            assert not torch.backends.cudnn.allow_tf32
            assert torch.get_float32_matmul_precision() == "highest"
            block()
        assert torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("allowed", ["highest", "high"])
def test_exact_products(allowed, block):
    with matmul_precision(allowed):
        with suppress(KeyError), exact_products(ON_GPU):
            assert torch.get_float32_matmul_precision() == "highest"
            block()
        assert torch.get_float32_matmul_precision() == allowed


@NEWER
@pytest.mark.parametrize("allowed", ["ieee", "tf32"])
@pytest.mark.parametrize("for_all", [False, True])
def test_exact_products_by_newer_settings(allowed, for_all, block):
    products = torch.backends.cuda.matmul
    setting = torch.backends if for_all else products
    setting.fp32_precision = allowed
    try:
        with suppress(KeyError), exact_products(ON_GPU):
            assert products.fp32_precision == "ieee"
            block()
        assert products.fp32_precision == allowed
    finally:
        setting.fp32_precision = products.fp32_precision = "none"
