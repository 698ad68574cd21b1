"""Runs of `cacseg train` in processes of their own, several at a time on one device or several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from cacseg._files import check_there, open_appending
from cacseg.recipes.compare import RUNS, Run, is_finished
from cacseg.recipes.config import change
from cacseg.recipes.files import CONFIG

LOG, METRICS = "train.log", "metrics.csv"
MOST_JOBS = 12  # at once on a GPU, unless told otherwise
# A server that has imported everything once forks the processes: ten seconds saved for each. It never touches a GPU
# itself, so that its children may.
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class Machine(NamedTuple):
    """Where runs go."""

    devices: tuple[str, ...]  # values of CUDA_VISIBLE_DEVICES; none: the CPU
    jobs: int  # at once, over all devices
    threads: int  # of each run


class _Busy(NamedTuple):
    process: Any
    connection: Connection
    run: Run
    slot: int


def choose_machine(devices: str, jobs: int | None, runs: int, *, cpu_jobs: int = 1) -> Machine:
    """`devices`: "auto", "cpu", or numbers of GPUs, "0,1". `cpu_jobs` are the default there.

    The threads do not depend on how many runs are left: sums are rounded alike when a comparison goes on.
    """
    import torch

    from cacseg.engine.device import available_cores

    shown = torch.cuda.device_count()  # does not start CUDA here
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    names = visible[:shown] or [str(index) for index in range(shown)]
    if devices == "auto":
        chosen = tuple(names)
    elif devices == "cpu":
        chosen = ()
    else:
        places = devices.split(",")
        if any(not place.isdigit() or int(place) >= shown for place in places) or len(set(places)) < len(places):
            raise ValueError(
                f"--devices must be cpu, auto or different numbers below {shown}, the CUDA devices of this machine; "
                f"got {devices!r}."
            )
        chosen = tuple(names[int(place)] for place in places)
    cores = available_cores()
    most = min(MOST_JOBS * len(chosen), cores - 2) if chosen else cpu_jobs
    jobs = max(1, min(jobs or most, runs))
    return Machine(chosen, jobs, max(1, cores // jobs))


def start_server() -> None:
    """Begins to import what the runs need, in the background."""
    if _METHOD == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload(["cacseg.recipes.build"])
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the server keeps: Ctrl-C is for the runs
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)


def train_runs(
    runs: Sequence[Run],
    folder: Path,
    machine: Machine,
    *,
    recipe: str,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[Mapping[str, int]], None],
    ended: Callable[[Run, str], None],
) -> None:
    """Trains all runs in their order. Ctrl-C stops them after a checkpoint, another one at once; it is raised then.

    Args:
        runs: that are not finished; those that have begun are resumed.
        folder: of the comparison.
        machine: where they go.
        recipe: its name, for config.json.
        environment: added to that of the processes.
        progress: called twice a second with the last step of each run that is under way, by its name.
        ended: called for each run that ended, with the reason if it failed.
    """
    context: Any = multiprocessing.get_context(_METHOD)
    waiting, busy, slots = deque(runs), list[_Busy](), list(range(machine.jobs))[::-1]
    try:
        while waiting or busy:
            while waiting and slots:
                check_there(folder)
                run, slot = waiting.popleft(), slots.pop()
                here, there = context.Pipe()
                device = machine.devices[slot % len(machine.devices)] if machine.devices else ""
                added = {**(environment or {}), "CUDA_VISIBLE_DEVICES": device}
                placed = run._replace(config=_placed(run, machine))
                arguments = (train_run, placed, folder / RUNS / run.name, recipe, added, machine.threads, there)
                process = context.Process(target=_work, args=arguments)
                process.start()
                there.close()
                busy.append(_Busy(process, here, run, slot))
            wait([one.process.sentinel for one in busy], timeout=0.5)
            progress({one.run.name: last_step(folder / RUNS / one.run.name) for one in busy})
            for one in [one for one in busy if not one.process.is_alive()]:
                busy.remove(one)
                slots.append(one.slot)
                ended(one.run, _reason(one, folder / RUNS / one.run.name))
    except BaseException:
        _stop(busy)
        raise


def train_run(run: Run, folder: Path, recipe: str) -> None:
    """One run, in its own process."""
    from cacseg.recipes.build import run as train

    def report(text: str) -> None:
        with suppress(OSError):  # a full disk: the log is not worth the run
            print(text, flush=True)

    train(run.config, folder, recipe=recipe, resume=(folder / CONFIG).exists(), report=report)


def last_step(folder: Path) -> int:
    """The step of the last whole row of a run's metrics.csv."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().split(b"\n")[1:-1]  # not the header, nor a line whose beginning or end is missing
    except OSError:
        return 0
    steps = [line.split(b",")[0] for line in lines]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def _placed(run: Run, machine: Machine) -> Any:
    """The configuration with the machine's accelerator, and no more readers than it has cores for."""
    from cacseg.engine.device import available_cores

    workers = min(run.config.training.workers, max(1, available_cores() // machine.jobs - 1))
    accelerator = "gpu" if machine.devices else "cpu"
    return change(run.config, {"training.accelerator": accelerator, "training.workers": workers})


def _reason(one: _Busy, folder: Path) -> str:
    """Why a run failed, in one line; empty where it did not."""
    try:
        said = one.connection.recv() if one.connection.poll() else None
    except (EOFError, ConnectionError):
        said = None
    one.connection.close()
    if said is None:
        return f"its process ended with code {one.process.exitcode}; out of memory? See {folder / LOG}"
    if not said and not is_finished(folder):
        return f"it ended without its scores. See {folder / LOG}"
    return str(said)


def _stop(busy: Sequence[_Busy]) -> None:
    """Asks for a checkpoint and waits; whatever happens meanwhile ends the runs at once."""
    try:
        for one in busy:
            one.process.terminate()
        for one in busy:
            one.process.join()
    finally:
        for one in busy:
            one.process.kill()


def _work(
    train: Callable[[Run, Path, str], None],
    run: Run,
    folder: Path,
    recipe: str,
    environment: Mapping[str, str],
    threads: int,
    connection: Connection,
) -> None:
    """What a process does: one run, its words in train.log, the reason of a failure to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until training takes it, see `engine.callbacks`
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    os.environ.update(environment)
    folder.mkdir(parents=True, exist_ok=True)
    with open_appending(folder / LOG) as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    import torch

    from cacseg.engine.callbacks import Stopped

    torch.set_num_threads(threads)
    try:
        train(run, folder, recipe)
    except Stopped as stopped:
        print(stopped, flush=True)
        connection.send(str(stopped))
    except Exception as error:
        connection.send(" ".join(str(error).split()) or type(error).__name__)
        with suppress(OSError):
            traceback.print_exc()
        sys.exit(1)
    else:
        connection.send("")


def _end_with_parent(connection: Connection) -> None:
    """Ends this process when its parent is gone: nobody else would, and its run could not go on elsewhere."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(1)
