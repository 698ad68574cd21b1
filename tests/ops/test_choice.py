import pytest
import torch

from cacseg import ops
from cacseg.functional.distillation import DISTILLATION_FORMS
from cacseg.ops import _choice


def test_a_cpu_takes_plain_torch():
    assert not _choice.use_triton("auto", torch.randn(2))
    assert not _choice.use_triton("torch", torch.randn(2))


def test_triton_says_why_it_cannot_run(monkeypatch):
    logits, labels = torch.randn(1, 3, 2, 2), torch.zeros(1, 4, 4, dtype=torch.long)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(_choice, "TRITON_IS_THERE", True)
    with pytest.raises(ValueError, match="needs tensors on a CUDA device; got cpu"):
        ops.upsampled_cross_entropy(logits, labels, impl="triton")
    with pytest.raises(ValueError, match=r"float32, float16 or bfloat16 tensors; got torch\.float64"):
        ops.upsampled_cross_entropy(logits.double(), labels, impl="triton")
    with pytest.raises(ValueError, match="Use impl='auto'"):
        ops.pixel_losses(logits, logits, labels, entropy_logits=logits.clone(), impl="triton")
    rows, offsets = torch.randn(4, 3), torch.tensor([0, 1, 4])
    for form in DISTILLATION_FORMS:
        with pytest.raises(ValueError, match="Use impl='auto'"):
            ops.pixel_losses(rows, rows, labels.flatten()[:4], form, offsets=offsets, impl="triton")
    with pytest.raises(ValueError, match="impl must be one of 'auto', 'torch', 'triton'; got 'cuda'"):
        ops.overlap_loss(logits, labels, impl="cuda")
    monkeypatch.setattr(_choice, "TRITON_IS_THERE", False)
    with pytest.raises(ValueError, match="triton not found"):
        ops.upsampled_cross_entropy(logits, labels, impl="triton")


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), 1.0), ((7, 5), -1.0)])
def test_what_a_device_can_do_is_a_constant_to_the_compiler(monkeypatch, capability, expected):
    monkeypatch.setattr(_choice, "TRITON_IS_THERE", True)
    monkeypatch.setattr(_choice, "_fit", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)  # no such device here
    torch._dynamo.reset()

    def signed(values):
        return values if _choice.kernels_run_on(torch.device("cuda", 0)) else -values

    assert torch.compile(signed, fullgraph=True, backend="eager")(torch.ones(1)).item() == expected
