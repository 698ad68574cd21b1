"""Segmentors with the names and the order of calls of mmsegmentation 1.2.2, which needs an environment of its own.

What is here was read off its `BaseSegmentor`, `EncoderDecoder`, `CascadeEncoderDecoder` and `BaseDecodeHead`;
tools/check_convert_with_mmsegmentation.py runs the same on mmsegmentation itself.
"""

import torch
from torch import nn

N = 5


class CrossEntropyLoss(nn.Module):
    def __init__(self, loss_weight=1.0):
        super().__init__()
        self.loss_weight = loss_weight


class DiceLoss(CrossEntropyLoss):
    pass


class FCNHead(nn.Module):
    def __init__(self, in_channels, in_index, loss_decode=None, ignore_index=255, align_corners=False):
        super().__init__()
        self.in_index, self.ignore_index, self.align_corners = in_index, ignore_index, align_corners
        self.loss_decode = loss_decode or CrossEntropyLoss()
        self.convs = nn.Conv2d(in_channels, 8, 1)
        self.conv_seg = nn.Conv2d(8, N, 1)
        self.dropout = nn.Dropout2d(0.1)

    def cls_seg(self, feat):
        return self.conv_seg(self.dropout(feat))

    def forward(self, inputs):
        return self.cls_seg(self.convs(inputs[self.in_index]))


class STDCHead(FCNHead):
    pass


class DAHead(FCNHead):
    def __init__(self, in_channels, in_index):
        super().__init__(in_channels, in_index)
        self.pam_conv_seg, self.cam_conv_seg = nn.Conv2d(8, N, 1), nn.Conv2d(8, N, 1)

    def forward(self, inputs):
        feat = self.convs(inputs[self.in_index])
        return self.cls_seg(feat), self.pam_conv_seg(self.dropout(feat)), self.cam_conv_seg(self.dropout(feat))


class OCRHead(FCNHead):
    def forward(self, inputs, prev_output):
        return self.cls_seg(self.convs(inputs[self.in_index]) * prev_output.softmax(1).amax(1, keepdim=True))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)])

    def forward(self, x):
        outputs = []
        for layer in self.layers:
            x = layer(x).relu()
            outputs.append(x)
        return tuple(outputs)


class EncoderDecoder(nn.Module):
    def __init__(self, decode_head, auxiliary_head=None):
        super().__init__()
        self.backbone = Backbone()
        self.decode_head = nn.ModuleList(decode_head) if isinstance(decode_head, list) else decode_head
        if auxiliary_head is not None:
            self.auxiliary_head = nn.ModuleList(auxiliary_head) if isinstance(auxiliary_head, list) else auxiliary_head

    def forward(self, inputs, data_samples=None, mode="tensor"):
        if mode == "loss":
            return self.loss(inputs, data_samples)
        if mode == "predict":
            return self.predict(inputs, data_samples)
        return self._forward(inputs, data_samples)

    def extract_feat(self, inputs):
        return self.backbone(inputs)

    def loss(self, inputs, data_samples):
        raise NotImplementedError  # of the original, for samples

    def predict(self, inputs, data_samples=None):
        return self._forward(inputs).argmax(1)

    def _forward(self, inputs, data_samples=None):
        return self.decode_head.forward(self.extract_feat(inputs))


class CascadeEncoderDecoder(EncoderDecoder):
    def _forward(self, inputs, data_samples=None):
        x = self.extract_feat(inputs)
        out = self.decode_head[0].forward(x)
        for head in self.decode_head[1:]:
            out = head.forward(x, out)
        return out


class DepthEstimator(EncoderDecoder):
    pass


for _kind in (EncoderDecoder, CascadeEncoderDecoder, DepthEstimator):
    _kind.__module__ = "mmseg.models.segmentors"


class PixelData:
    def __init__(self, data):
        self.data = data


class SegDataSample:
    def __init__(self, labels):
        self.gt_sem_seg = PixelData(labels[None])


def build(name):
    """Small segmentors, by name."""
    torch.manual_seed(0)
    return {
        "one auxiliary": lambda: EncoderDecoder(FCNHead(16, 1), FCNHead(8, 0, CrossEntropyLoss(0.3))),
        "two auxiliaries": lambda: EncoderDecoder(
            FCNHead(16, 1),
            [FCNHead(8, 0, CrossEntropyLoss(0.3)), FCNHead(16, 1, nn.ModuleList([CrossEntropyLoss(0.2), DiceLoss()]))],
        ),
        "none": lambda: EncoderDecoder(FCNHead(16, 1, ignore_index=7)),
        "cascade": lambda: CascadeEncoderDecoder([FCNHead(16, 1, CrossEntropyLoss(0.4)), OCRHead(16, 1)]),
        "second classifiers": lambda: EncoderDecoder(DAHead(16, 1)),
    }[name]()
