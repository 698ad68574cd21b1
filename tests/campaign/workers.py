"""Loads damaged files in forked processes with limits of memory and time, and judges what came of it."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import random
import resource
import selectors
import shutil
import signal
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from campaign.corpus import Tree, read_tree
from campaign.loads import KINDS, WrongResult

try:
    from cacseg.cli import MISTAKES
except ImportError:
    MISTAKES = (ValueError, TypeError, OSError, ModuleNotFoundError)

SECONDS = 30.0  # of one load
BYTES = 4 * 2**30  # that one load may take beside what a process has before
LONGEST = 2000  # characters of a message
CHUNK = 25  # loads of one process
OUTCOMES = ("clean", "accepted", "raw", "wrong", "slow", "large", "crashed")
FINE = ("clean", "accepted")
MEMORY_WORDS = (
    "unable to allocate",
    "insufficient memory",
    "bad_alloc",
    "can't allocate memory",
    "cannot allocate memory",
)
PRELOADED = (
    *(
        "torch",
        "cv2",
        "rasterio",
        "onnxruntime",
        "onnx",
        "lightning.pytorch",
        "pandas",
        "matplotlib.pyplot",
        "scipy.io",
    ),
    *("cacseg.predictor", "cacseg.cli", "cacseg.engine.rasters", "cacseg.recipes.build", "cacseg.recipes.hub"),
    *(
        "cacseg.app.server",
        "cacseg.reports.page",
        "cacseg.reports.comparison",
        "cacseg.recipes.results",
        "cacseg.data.check",
    ),
    *("tensorboard.backend.event_processing.event_accumulator", "cacseg.models.card", "uvicorn", "cacseg.reports.runs"),
)


class Case(NamedTuple):
    """A damaged file is a pure function of these three."""

    seed: int
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.seed}/{self.kind}/{self.number}"


class Found(NamedTuple):
    case: Case
    outcome: str
    words: str = ""  # the message, or the end of the traceback
    seconds: float = 0.0
    mib: float = 0.0  # that the load took at most


def parse_case(text: str) -> Case:
    seed, kind, number = text.split("/")
    if kind not in KINDS:
        raise ValueError(f"there is no kind {kind!r}. There are {', '.join(KINDS)}.")
    return Case(int(seed), kind, int(number))


@cache
def tree_of(corpus: Path, name: str) -> Tree:
    return read_tree(corpus / name)


def damage(case: Case, corpus: Path) -> tuple[str, bytes]:
    """The name of the damaged file in its tree, and its bytes."""
    kind, rng = KINDS[case.kind], random.Random(str(case))
    tree = tree_of(corpus, kind.tree)
    names = [name for glob in kind.targets for name in tree if matches(name, glob)]
    name = rng.choice(names)
    return name, rng.choice(kind.mutators)(rng, tree[name], list(tree.values()))


def matches(name: str, glob: str) -> bool:
    if glob == "**/*":
        return True
    path = Path(name)
    if "**/" in glob:
        above, _, below = glob.rpartition("**/")
        return name.startswith(above) and path.match(below)
    return path.match(glob) and len(path.parts) == len(Path(glob).parts)


def lay_out(case: Case, corpus: Path, folder: Path) -> Path:
    """Writes the files of a case; returns the damaged one."""
    kind = KINDS[case.kind]
    name, content = damage(case, corpus)
    files = {
        other: whole
        for other, whole in tree_of(corpus, kind.tree).items()
        if any(matches(other, glob) for glob in kind.beside)
    }
    for other, whole in {**files, name: content}.items():
        path = folder / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole)
    return folder / name


def judge(case: Case, folder: Path, file: Path, load: Callable[[], list[str]]) -> tuple[str, str]:
    """The outcome and its words.

    Clean is an error that the command line turns into one line: it names the file, or the data set that it is of, and
    has at most `LONGEST` characters.
    """
    kind = KINDS[case.kind]
    names = (file.name, *kind.also, *((str(folder),) if kind.is_data else ()))

    def is_clear(words: str) -> bool:
        return len(words) <= LONGEST and any(name in words for name in names)

    try:
        reasons = load()
    except WrongResult as error:
        return "wrong", str(error)
    except BaseException as error:
        words, chain = f"{type(error).__name__}: {error}", [error]
        while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
            chain.append(inner)
        if any(_is_of_memory(str(one)) or (isinstance(one, MemoryError) and not str(one)) for one in chain):
            return "large", words
        if isinstance(error, MISTAKES) and is_clear(str(error)):
            return "clean", words
        return "raw", words + "\n" + "".join(traceback.format_exception(error)[-8:])
    if not reasons:
        return "accepted", ""
    for reason in reasons:
        if _is_of_memory(reason):
            return "large", reason
    if long := [reason for reason in reasons if len(reason) > LONGEST]:
        return "raw", f"reported in {len(long[0])} characters: {long[0]}"
    named = [reason for reason in reasons if is_clear(reason)]
    return ("clean", named[0]) if named else ("raw", f"reported without the name of the file: {reasons[0]}")


def _is_of_memory(words: str) -> bool:
    return any(one in words.lower() for one in MEMORY_WORDS)


def run_case(case: Case, corpus: Path, work: Path) -> Found:
    folder = work / f"{case.kind}-{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    file = lay_out(case, corpus, folder)
    before, start = _reset_peak(), time.monotonic()
    outcome, words = judge(case, folder, file, lambda: KINDS[case.kind].load(corpus, folder, file))
    seconds, peak = time.monotonic() - start, _memory("VmHWM") - before
    if outcome in FINE and peak > BYTES:
        outcome = "large"
    shutil.rmtree(folder, ignore_errors=True)
    return Found(case, outcome, words[-6000:], round(seconds, 3), round(peak / 2**20, 1))


def preload() -> None:
    """Imports what loads need, and computes nothing: a forked process must find no threads."""
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    for name in PRELOADED:
        importlib.import_module(name)
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    gc.freeze()


def limit(work: Path) -> None:
    """In a forked process: no output, no more memory than allowed, and no way to leave children behind."""
    log = os.open(work / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _Child:
    """A forked process and the cases it has still to do."""

    def __init__(self, cases: Sequence[Case], corpus: Path, work: Path) -> None:
        self.todo, self.begun = deque(cases), time.monotonic()
        self.is_late = False
        reading, writing = os.pipe()
        self.work = work
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reading)
                os.setsid()
                limit(work)
                for case in cases:
                    found = run_case(case, corpus, work)
                    os.write(writing, (json.dumps(found._replace(words=found.words[-3000:])) + "\n").encode()[:65536])
            except BaseException:
                traceback.print_exc()
                os._exit(3)
            os._exit(0)
        os.close(writing)
        self.pipe, self.text = reading, b""

    def read(self) -> tuple[list[Found], bool]:
        """What was finished, and whether the process has ended."""
        part = os.read(self.pipe, 2**20)
        *lines, self.text = (self.text + part).split(b"\n")
        found = []
        for line in lines:
            case, *rest = json.loads(line)
            found.append(Found(Case(*case), *rest))
            self.todo.popleft()
            self.begun = time.monotonic()
        return found, not part

    def check_time(self) -> None:
        if not self.is_late and time.monotonic() - self.begun > SECONDS:
            self.is_late = True
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> Found | None:
        """After the process ended: what the case that it was at has come to."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        log = self.work / f"{self.pid}.log"
        said = log.read_bytes().decode("utf-8", "replace")[-2000:] if log.exists() else ""
        log.unlink(missing_ok=True)
        if not self.todo:
            return None
        case = self.todo.popleft()
        seconds = round(time.monotonic() - self.begun, 1)
        if self.is_late:
            return Found(case, "slow", f"more than {SECONDS:.0f} s", seconds)
        code = os.waitstatus_to_exitcode(status)
        return Found(case, "crashed", f"ended with {code}\n{said}", seconds)


def run_cases(
    cases: Iterable[Case], corpus: Path, work: Path, jobs: int, tell: Callable[[Found], None] = lambda found: None
) -> list[Found]:
    """Every case, in `jobs` processes at a time."""
    work.mkdir(parents=True, exist_ok=True)
    chunks: deque[list[Case]] = deque()
    for case in cases:
        if chunks and len(chunks[-1]) < CHUNK and chunks[-1][-1].kind == case.kind:
            chunks[-1].append(case)
        else:
            chunks.append([case])
    results: list[Found] = []

    def keep(found: Found) -> None:
        results.append(found)
        tell(found)

    with selectors.DefaultSelector() as ready:
        children: set[_Child] = set()
        while chunks or children:
            while chunks and len(children) < jobs:
                child = _Child(chunks.popleft(), corpus, work)
                children.add(child)
                ready.register(child.pipe, selectors.EVENT_READ, child)
            for key, _ in ready.select(0.5):
                child = key.data
                found, has_ended = child.read()
                for one in found:
                    keep(one)
                if has_ended:
                    ready.unregister(child.pipe)
                    children.remove(child)
                    last = child.end()
                    if last is not None:
                        keep(last)
                    if child.todo:
                        chunks.appendleft(list(child.todo))
            for child in children:
                child.check_time()
    return results


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _reset_peak() -> int:
    """Of the memory of this process; returns what it takes now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _memory("VmHWM")
    return _memory("VmRSS")
