"""Jobs in several processes on one device at once.

Each process keeps the data that it has loaded. A job that fails takes its process with it, because a device that has
once reported an error may go on doing so; another process takes its place.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from cacseg._version import __version__
from cacseg.study.plan import Job
from cacseg.study.results import state_path

# A server that has imported everything once forks the processes: seconds saved for each of them. It never touches a
# GPU itself, so that its children may.
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_WORK = "cacseg.study.job"


class Stepped(NamedTuple):
    steps: int  # done since the last such message


class Resumed(NamedTuple):
    steps: int  # done before an interruption


class Finished(NamedTuple):
    record: dict[str, Any]


class Failed(NamedTuple):
    error: str  # one line
    details: str = ""  # where it was raised
    of_data: bool = False  # which all jobs on these data would meet


class Saving(NamedTuple):
    """Where jobs that are not finished are kept, and how often, in seconds."""

    folder: Path
    every: float


Message = Stepped | Resumed | Finished | Failed
Report = Callable[[Job, Message], None]


@dataclass
class _Worker:
    process: Any
    job: Job


def start_server() -> None:
    """Begins to import what the processes need, in the background."""
    if _METHOD == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload([_WORK])
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the server keeps: Ctrl-C is for this process
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)


def run_jobs(
    jobs: Sequence[Job],
    report: Report,
    *,
    device: str,
    workers: int,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    graphs: bool = True,
    saving: Saving | None = None,
) -> None:
    """Runs all jobs, `workers` at a time, in their order; tells of steps, results and failures.

    `threads` of each process on the CPU (None: as torch has it); `environment` is added to theirs; `graphs`: see
    `train_model`. Whatever ends this call ends the processes too; with `saving` their jobs go on next time.
    """
    context: Any = multiprocessing.get_context(_METHOD)
    waiting, busy = deque(jobs), dict[Connection, _Worker]()
    arguments = (device, threads, dict(environment or {}), graphs, saving)
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, *arguments), daemon=True)
                process.start()
                there.close()
                job = waiting.popleft()
                here.send(job)
                busy[here] = _Worker(process, job)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                _listen(ready, busy, waiting, report)
    finally:
        for worker in busy.values():
            worker.process.terminate()
        for worker in busy.values():
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()


def _listen(connection: Connection, busy: dict[Connection, _Worker], waiting: deque[Job], report: Report) -> None:
    """One message of one process, and its next job where the last is done."""
    worker = busy[connection]
    try:
        message: Message = connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
        message = Failed(f"its process ended with code {worker.process.exitcode}; out of memory?")
    if isinstance(message, Stepped | Resumed):
        report(worker.job, message)
        return
    done = worker.job
    if isinstance(message, Finished) and waiting:
        worker.job = waiting.popleft()
        connection.send(worker.job)
    else:
        del busy[connection]
        connection.close()  # which the process takes for its end
    report(done, message)
    if isinstance(message, Failed) and message.of_data:
        for job in [job for job in waiting if _data_key(job) == _data_key(done)]:
            waiting.remove(job)
            report(job, message)


def _work(
    connection: Connection,
    device_name: str,
    threads: int | None,
    environment: Mapping[str, str],
    graphs: bool,
    saving: Saving | None,
) -> None:
    """What a process does: job after job, until nobody sends another or one has failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    import torch

    from cacseg.study.halfway import Halfway
    from cacseg.study.job import load_data, run_job

    if threads is not None:
        torch.set_num_threads(threads)
    _hush_decoder()
    device = torch.device(device_name)
    loaded: dict[Any, Any] = {}

    def progress(steps: int) -> None:
        connection.send(Stepped(steps))

    def kept_at(saving: Saving, job: Job, data_digest: str) -> Halfway:
        key = " ".join((job.id, job.digest, data_digest, __version__, torch.__version__))
        path = state_path(saving.folder, job.id)
        return Halfway(path, key, saving.every, lambda steps: connection.send(Resumed(steps)))

    while True:
        try:
            job: Job = connection.recv()
        except (EOFError, ConnectionError):
            return
        key = _data_key(job)
        try:
            if key not in loaded:
                loaded[key] = load_data(job.config, job.held_out, device)
            halfway = None if saving is None else kept_at(saving, job, loaded[key].digest)
            record = run_job(job, loaded[key], device, progress, graphs=graphs, halfway=halfway)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        except (BrokenPipeError, ConnectionResetError):  # nobody is there to hear of it
            return
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            of_data = key not in loaded and isinstance(error, OSError | ValueError)  # not for want of memory
            connection.send(Failed(f"{type(error).__name__}: {words}", traceback.format_exc(), of_data))
            return
        connection.send(Finished(record))


def _hush_decoder() -> None:
    """OpenCV's own words about a damaged file, which ours name in full."""
    try:
        from cv2.utils import logging
    except ImportError:  # then Pillow decodes
        return
    logging.setLogLevel(logging.LOG_LEVEL_ERROR)


def _data_key(job: Job) -> tuple[Any, ...]:
    """Equal where the loaded data are."""
    data = job.config.data
    where = (data.name, data.root, data.train_split, data.val_split, data.ignore_index)
    return (*where, data.size, data.length, data.val_length, job.held_out)
