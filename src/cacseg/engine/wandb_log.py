"""Weights & Biases, where it is installed."""

from __future__ import annotations

from lightning.pytorch.loggers import WandbLogger

from cacseg.engine._lightning import rank_zero_only


class WandbLog(WandbLogger):
    """Lightning's logger, which ends its run with ours: the next one of this process would go on in it."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
