"""Weights & Biases, where it is installed."""

from __future__ import annotations

from lightning.pytorch.loggers import WandbLogger

from cacseg.engine._lightning import rank_zero_only


class WandbLog(WandbLogger):
    """Lightning's logger, which also finishes its run: otherwise the next run of this process would continue it."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
