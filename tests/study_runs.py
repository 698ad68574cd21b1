"""A study of seconds, and processes that end badly; a module of its own, so that a fresh process can import it."""

import os

from cacseg.study.pool import Failed

SMALL = """
name = "small"
baseline = "plain"
seeds = [0]
steps = [3]
settings = { training.batch = 2, schedule.warmup_steps = 0 }

[data.scenes]
recipe = "synthetic"
[data.scenes.settings]
data.size = [32, 32]
data.crop = [32, 32]
data.length = 6
data.val_length = 4
data.max_share = 1.0

[models.fcn]
settings = { model.name = "fcn", model.backbone = "test_resnet", model.auxiliary = false, model.output_stride = 32 }

[optimisers.adamw]
settings = { optimiser.name = "adamw", optimiser.rate = 1e-3 }

[arms.plain]
settings = { model.classifier = "plain" }

[arms.paper]
settings = { model.classifier = "context", model.preset = "paper" }
"""

# Known to be wrong before anything runs, and only when it does: no variance of a single value.
REFUSED = """
[arms.refused]
settings = { model.classifier_arguments.no_such_argument = 1 }
"""
BROKEN = """
[arms.broken]
settings = { training.batch = 1 }
"""


def no_data(connection, *_):
    """A process that cannot read the images of its job."""
    connection.recv()
    connection.send(Failed("OSError: 0.png is damaged", of_data=True))


def die(connection, *_):
    """A process that is killed in the midst of a job."""
    connection.recv()
    os._exit(9)
