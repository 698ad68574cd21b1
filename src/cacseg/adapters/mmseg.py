"""mmsegmentation: one name for the seam in every decode head."""

from __future__ import annotations

from cacseg.adapters.rows import Row

ROWS = [
    Row(
        "mmseg",
        "EncoderDecoder",
        "decode_head.conv_seg",
        dropout="decode_head.dropout",
        remark="`model(images)` and `model.loss(images, labels)` take tensors; its auxiliary heads do not run there",
    ),
]
