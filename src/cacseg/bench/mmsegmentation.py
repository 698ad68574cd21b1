"""Training crops by the transforms of mmsegmentation, where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from cacseg.data import SegmentationData
from cacseg.recipes.config import Config


def is_installed() -> bool:
    return find_spec("mmseg") is not None


class MmsegCrops(Dataset[tuple[Tensor, Tensor]]):
    """Files are read by our reader, resized, cropped, flipped and distorted by mmsegmentation.

    As there, crops stay bytes; the training device normalises them.
    """

    def __init__(self, data: SegmentationData, config: Config) -> None:
        self.data, self.config = data, config.data
        self.pipelines: dict[tuple[int, int], Any] = {}  # by (long, short) side at ratio 1

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sample = self.data.read(index)
        size = sample.labels.shape
        scale = self.config.scale or size
        sides = max(scale), min(scale)
        if sides not in self.pipelines:
            self.pipelines[sides] = _compose(self._steps(sides))
        described = {"img": sample.image[..., ::-1], "gt_seg_map": sample.labels, "seg_fields": ["gt_seg_map"]}
        packed = self.pipelines[sides]({**described, "img_shape": size, "ori_shape": size})
        image, labels = packed["inputs"].flip(0), packed["data_samples"].gt_sem_seg.data[0].long()
        height, width = self.config.crop
        room = (0, width - labels.shape[1], 0, height - labels.shape[0])
        return F.pad(image, room), F.pad(labels, room, value=self.data.ignore_index)

    def _steps(self, sides: tuple[int, int]) -> list[dict[str, Any]]:
        chosen = self.config
        return [
            {"type": "RandomResize", "scale": sides, "ratio_range": chosen.ratios, "keep_ratio": True},
            {"type": "RandomCrop", "crop_size": chosen.crop, "cat_max_ratio": chosen.max_share},
            {"type": "RandomFlip", "prob": chosen.flip},
            *([{"type": "PhotoMetricDistortion"}] if chosen.distort else []),
            {"type": "PackSegInputs"},
        ]


def _compose(steps: list[dict[str, Any]]) -> Any:
    from mmcv.transforms import Compose
    from mmengine.registry import init_default_scope
    from mmseg.datasets import transforms  # noqa: F401  (fills the registry)

    init_default_scope("mmseg")
    return Compose(steps)
