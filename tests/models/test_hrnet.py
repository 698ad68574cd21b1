import torch
from torch.nn import functional as F

from cacseg.models.backbones import make_backbone


@torch.no_grad()
def test_coarse_branches_come_up_bilinearly_at_any_size():
    backbone = make_backbone("hrnet_w18_small").eval()
    pyramid = backbone(torch.randn(1, 3, 33, 47))
    assert [tuple(level.shape[2:]) for level in pyramid] == [(9, 12), (5, 6), (3, 3), (2, 2)]

    module = backbone.net.stage2[0]
    fine, coarse = torch.randn(1, 16, 9, 12), torch.randn(1, 32, 5, 6)
    fused = module([fine, coarse])
    fine, coarse = module.branches[0](fine), module.branches[1](coarse)
    conv, norm, _ = module.fuse_layers[0][1]
    up = F.interpolate(norm(conv(coarse)), scale_factor=2, mode="bilinear", align_corners=False)
    up = F.interpolate(up, size=(9, 12), mode="bilinear", align_corners=False)
    torch.testing.assert_close(fused[0], (fine + up).relu())
    torch.testing.assert_close(fused[1], (module.fuse_layers[1][0](fine) + coarse).relu())
