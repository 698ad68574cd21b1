"""`cacseg predict` in processes that are forked from one that has imported torch already, to be killed."""

import multiprocessing
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

# The last is what a comparison preloads: a process has one fork server, which keeps the list of whoever began it.
PRELOADED = ["cacseg.cli", "cacseg.engine.backend", "cacseg.predictor", "prediction_workers", "cacseg.recipes.build"]


def start(arguments, log, **environment):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_predict, args=([str(one) for one in arguments], str(log), environment))
    process.start()
    return process


def _predict(arguments, log, environment):
    import torch

    from cacseg.cli import main

    torch.set_num_threads(1)
    os.environ.update(environment)
    sys.argv = ["cacseg", "predict", *arguments]
    with Path(log).open("a") as file, redirect_stdout(file), redirect_stderr(file):
        main()
