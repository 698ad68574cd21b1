"""Kills commands, fills their disk, kills a rank, runs them again, and compares with what was left alone: make chaos

    make chaos KILLS=50 SEED=1

Each job is one of train, compare, predict and export on a small model. It is killed (SIGKILL, every process of it) at
random moments, half of them while an unfinished file is there, run again by the same command (`train` by --resume), and
at the end each file must be what an uninterrupted job wrote, bit for bit, with nothing beside it. A command runs in a
process that is forked from one that has imported everything, which saves seconds; --fresh starts each anew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cacseg.bench.machine import processor_name
from campaign.jobs import (
    FRESH,
    JOBS,
    PATIENCE,
    SETTINGS,
    UNFINISHED,
    Job,
    Running,
    content_of,
    differing,
    in_child,
    last_line,
    make_inputs,
    sets,
)
from campaign.machine import make_command
from campaign.workers import preload

ENOUGH = 100 * 1024  # KiB, for whatever a job writes
SHARES = {"train": 15, "compare": 9, "predict": 16, "export": 10}  # of the kills
IN_A_ROW = {"compare": (3, 4)}  # kills of one job, else one to three: a comparison takes the longest to end


def has_unfinished(folder: Path) -> bool:
    return any(UNFINISHED.search(name) for _, folders, names in os.walk(folder) for name in (*folders, *names))


def kill_once(
    job: Job, inputs: Path, place: Path, rng: random.Random, seconds: float, python: Sequence[str], log: Path
) -> str:
    """Starts or resumes a job and kills it; says when that was, or "" where it ended before."""
    output = job.output(place)
    goes_on = job.name == "train" and (output / "config.json").is_file()
    running = Running(job.arguments(inputs, output, goes_on), log, python)
    inside, start = rng.random() < 0.5, time.monotonic()
    until, sightings = start + rng.random() * seconds, rng.choice((1, 2, 5, 12))
    while time.monotonic() < (start + 2 * seconds if inside else until):
        if running.poll() is not None:
            return ""
        if inside and has_unfinished(place):
            sightings -= 1
            if sightings == 0:
                break
        time.sleep(0.001)
    running.kill()
    return "inside a write" if has_unfinished(place) else f"after {time.monotonic() - start:.2f} s"


def next_job(made: Mapping[str, int]) -> str:
    """The job that is furthest behind its share of the kills."""
    return min(SHARES, key=lambda name: made[name] / SHARES[name])


def finish(job: Job, inputs: Path, place: Path, python: Sequence[str], log: Path) -> list[str]:
    """Runs a job to its end; what went wrong."""
    output = job.output(place)
    goes_on = job.name == "train" and (output / "config.json").is_file()
    code = Running(job.arguments(inputs, output, goes_on), log, python).wait()
    return [] if code == 0 else [f"exit code {code}: {last_line(log)}"]


def kill_jobs(
    kills: int,
    seed: int,
    inputs: Path,
    scratch: Path,
    alone: dict[str, tuple[dict[str, Any], float, int]],
    python: Sequence[str],
    kept: Path | None,
) -> list[dict[str, Any]]:
    """Jobs that are killed once or more each, until so many kills were made."""
    results: list[dict[str, Any]] = []
    made, number = Counter[str](), 0
    while (done := made.total()) < kills:
        rng = random.Random(f"{seed}/{number}")
        job = JOBS[next_job(made)]
        expected, seconds, _ = alone[job.name]
        place, log = scratch / f"{number}-{job.name}", scratch / f"{number}-{job.name}.txt"
        place.mkdir()
        wanted, moments = min(rng.choice(IN_A_ROW.get(job.name, (1, 2, 3))), kills - done), []
        for _ in range(wanted):
            if was := kill_once(job, inputs, place, rng, seconds, python, log):
                moments.append(was)
        problems = finish(job, inputs, place, python, log) or differing(job.output(place), expected)
        results.append({"job": job.name, "kills": moments, "problems": problems})
        tell(f"{done + len(moments):3d}/{kills} {job.name}: killed {', '.join(moments) or 'too late'}", problems)
        made[job.name] += len(moments)
        number += 1
        if not problems:
            shutil.rmtree(place)
        elif kept is not None:
            shutil.copytree(place, kept / place.name, symlinks=True, dirs_exist_ok=True)
            shutil.copy(log, kept)
    return results


def tell(words: str, problems: Sequence[str] = ()) -> None:
    print(words + (": equal" if not problems else f": {'; '.join(problems)}"), flush=True)


@contextmanager
def small_disk(place: Path, kib: int) -> Iterator[bool]:
    """A tmpfs at `place`; False where mounting is not allowed."""
    place.mkdir()
    mounted = _mount(place, kib)
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def _mount(place: Path, kib: int, more: str = "") -> bool:
    how = ["mount", "-t", "tmpfs", "-o", f"{more}size={kib}k", "tmpfs", str(place)]
    return subprocess.run(how, capture_output=True, check=False).returncode == 0


def fill_disk(
    job: Job, seed: int, inputs: Path, scratch: Path, alone: tuple[dict[str, Any], float, int]
) -> dict[str, Any] | None:
    """The disk is full before the job ends: it must end with one line that says so, and go on when there is room.

    Runs look for room before they begin, so their disk is filled while they write.
    """
    rng, (expected, _, size) = random.Random(f"{seed}/full/{job.name}"), alone
    place, is_run = scratch / f"full-{job.name}", job.name in ("train", "compare")
    with small_disk(place, ENOUGH if is_run else max(64, int(size * rng.uniform(0.2, 0.7)) // 1024)) as mounted:
        if not mounted:
            return None
        output, log = job.output(place), scratch / f"full-{job.name}.txt"
        running = Running(job.arguments(inputs, output, False), log)
        if is_run:
            code, after = None, rng.uniform(0.0, 0.3)
            while (code := running.poll()) is None and not any(output.rglob("last.ckpt")):
                time.sleep(0.005)
            start = time.monotonic()
            while code is None and time.monotonic() < start + after and (code := running.poll()) is None:
                time.sleep(0.005)
            _fill(place / "filler")
            code = running.wait() if code is None else code
            (place / "filler").unlink()
        else:
            code = running.wait()
            _mount(place, ENOUGH, "remount,")
        text, problems = log.read_text(), []
        said = [line for line in text.splitlines() if "o space left" in line and place.name in line]
        if code not in (1, 2) or "Traceback" in text or not said:
            problems.append(f"exit code {code} on a full disk: {last_line(log)}")
        if unfinished := [path.name for path in place.rglob("*") if UNFINISHED.search(path.name)]:
            problems.append(f"a full disk left {unfinished}")
        problems += finish(job, inputs, place, (), log) or differing(output, expected)
        words = re.sub(r"/\S*/", "", said[0])[:200] if said else last_line(log)
        tell(f"full disk, {job.name}: {words}", problems)
        return {"job": f"{job.name}, full disk", "kills": [], "said": words, "problems": problems}


def not_run(job: str) -> dict[str, Any]:
    """The record of a job that this machine does not allow."""
    return {"job": job, "kills": [], "not_run": "mounting a tmpfs needs root", "problems": []}


def _fill(path: Path) -> None:
    try:
        with path.open("wb", buffering=0) as file:
            while file.write(bytes(2**16)):
                pass
    except OSError:
        pass


def kill_rank(scratch: Path) -> dict[str, Any]:
    """Of two that train together: the other ends and says how to resume, and the resumed run is the same."""
    place, problems = scratch / "ranks", []
    log, alone, folder = scratch / "ranks.txt", place / "alone" / "run", place / "killed" / "run"
    alone.parent.mkdir(parents=True)
    folder.parent.mkdir()
    settings = [one for one in SETTINGS if not one.startswith(("training.devices", "schedule.steps"))]
    quiet = ["--no-progress", "--no-report"]
    settings += ["training.devices=2", "schedule.steps=24", "training.synchronise_batch_norm=false"]
    begin = ["train", "synthetic", *sets(settings), *quiet]
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "cacseg.cli"]
    about = {"job": "train on two ranks, one killed", "kills": ["rank 1"]}
    if code := Running([*begin, "-o", str(alone)], log, ranks).wait():
        problems.append(f"two ranks: exit code {code}: {last_line(log)}")
        tell("two ranks", problems)
        return {**about, "kills": [], "problems": problems}
    running = Running([*begin, "-o", str(folder)], log, ranks)
    until, found = time.monotonic() + PATIENCE, list[int]()
    while not (found and (folder / "last.ckpt").exists()):
        if running.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"two ranks ended before one was killed: {last_line(log)}")
        found = _children(running.pid)
        time.sleep(0.01)
    os.kill(max(found), signal.SIGKILL)
    start, code = time.monotonic(), running.wait()
    said = [line for line in log.read_text().splitlines() if "--resume" in line]
    if code == 0 or not said:
        problems.append(f"a killed rank: exit code {code}; lines that say how to resume: {len(said)}")
    seconds = time.monotonic() - start
    if code := Running(["train", "--resume", *quiet, "-o", str(folder)], log, ranks).wait():
        problems.append(f"resumed ranks: exit code {code}: {last_line(log)}")
    else:
        problems += differing(folder, in_child(lambda: content_of(alone)))
    tell(f"a killed rank: the other ended after {seconds:.0f} s", problems)
    return {**about, "said": said[-1:], "problems": problems}


def _children(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


def command(chosen: argparse.Namespace) -> str:
    """What does the same to the same jobs; where folders are kept is left out."""
    more = [part for name in chosen.only or () for part in ("--only", name)]
    more += [f"--{name.replace('_', '-')}" for name in ("fresh", "no_disk", "no_rank") if vars(chosen)[name]]
    return make_command("chaos", {"KILLS": chosen.kills, "SEED": chosen.seed}, "CHAOS", more)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(JOBS), help="a command; again for more")
    parser.add_argument("--fresh", action="store_true", help="a new interpreter for every command: seconds each")
    parser.add_argument("--no-disk", action="store_true", help="leave out full disks")
    parser.add_argument("--no-rank", action="store_true", help="leave out the killed rank")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("runs/chaos"), help="for the folders of jobs that differ"
    )
    parser.add_argument("--json", type=Path, help="write what happened as a record")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = read_options(arguments)
    for name in set(SHARES) - set(chosen.only or SHARES):
        del SHARES[name]
    begun, python = time.monotonic(), FRESH if chosen.fresh else ()
    preload()
    with tempfile.TemporaryDirectory(prefix="cacseg_chaos_", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        inputs = make_inputs(scratch / "inputs")
        alone: dict[str, tuple[dict[str, Any], float, int]] = {}
        for name in SHARES:
            job, place, start = JOBS[name], scratch / f"alone-{name}", time.monotonic()
            place.mkdir()
            if problems := finish(job, inputs, place, python, scratch / "log.txt"):
                raise RuntimeError(f"{name}, uninterrupted: {problems[0]}")
            seconds = time.monotonic() - start
            size = sum(one.stat().st_size for one in place.rglob("*") if one.is_file())
            alone[name] = in_child(lambda job=job, place=place: content_of(job.output(place))), seconds, size
            print(f"{name}, uninterrupted: {seconds:.1f} s, {len(alone[name][0])} files", flush=True)
        results = kill_jobs(chosen.kills, chosen.seed, inputs, scratch, alone, python, chosen.output)
        if not chosen.no_disk:
            full = [fill_disk(JOBS[name], chosen.seed, inputs, scratch, alone[name]) for name in SHARES]
            if None in full:
                print("full disks were left out: mounting a tmpfs needs root")
            results += [one or not_run(f"{name}, full disk") for name, one in zip(SHARES, full, strict=True)]
        if not chosen.no_rank and "train" in SHARES:
            results.append(kill_rank(scratch))
    bad = [one for one in results if one["problems"]]
    kills = Counter()
    for one in results:
        kills[one["job"]] += len(one["kills"])
    inside = sum(moment == "inside a write" for one in results for moment in one["kills"])
    minutes = (time.monotonic() - begun) / 60
    print(
        f"{sum(kills.values())} kills ({inside} inside a write) of {len(results)} jobs in {minutes:.1f} minutes; "
        f"seed {chosen.seed}: {len(bad)} differ"
    )
    if chosen.json:
        date = datetime.now(timezone.utc).date().isoformat()
        facts = {
            "command": command(chosen),
            "date": date,
            "seed": chosen.seed,
            "processor": processor_name(),
        }
        facts |= {"kills": dict(kills), "inside_writes": inside, "minutes": round(minutes, 1), "jobs": results}
        chosen.json.write_text(json.dumps(facts, indent=2) + "\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
