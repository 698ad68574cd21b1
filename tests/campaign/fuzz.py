"""Loads thousands of damaged files through the functions of the commands: make fuzz N=10000 SEED=1

Prints a table by kind of file and exits with 1 unless every load was clean (an error of one line that names the file)
or accepted. What was not is kept in the output folder with the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cacseg.bench.machine import processor_name
from campaign.corpus import make_corpus
from campaign.loads import KINDS
from campaign.machine import make_command
from campaign.workers import FINE, OUTCOMES, Case, Found, lay_out, parse_case, preload, run_cases

LOADS = 1500


def plan(count: int, seed: int, only: Sequence[str] = ()) -> list[Case]:
    """So many cases, shared out over the kinds; a larger number only adds to them."""
    kinds = {name: kind for name, kind in KINDS.items() if not only or name in only}
    total = sum(kind.share for kind in kinds.values())
    shares = {name: max(1, round(count * kind.share / total)) for name, kind in kinds.items()}
    return [Case(seed, name, number) for name, share in shares.items() for number in range(share)]


def keep(found: Found, corpus: Path, folder: Path) -> None:
    """The damaged files, what was said, and how to repeat it."""
    case = found.case
    place = folder / f"{case.seed}-{case.kind}-{case.number}"
    shutil.rmtree(place, ignore_errors=True)
    file = lay_out(case, corpus, place / "files")
    about = f"{found.outcome}: {file.relative_to(place)}\nrepeat: make fuzz REPEAT={case}\n\n{found.words}\n"
    (place / "about.txt").write_text(about, errors="backslashreplace")


def table(results: Sequence[Found]) -> list[list[str]]:
    counts: dict[str, Counter[str]] = {}
    for found in results:
        counts.setdefault(found.case.kind, Counter())[found.outcome] += 1
    rows = [[name, *(str(one[outcome]) for outcome in OUTCOMES)] for name in KINDS if (one := counts.get(name))]
    total = Counter(found.outcome for found in results)
    return [*rows, ["all", *(str(total[outcome]) for outcome in OUTCOMES)]]


def print_table(results: Sequence[Found]) -> None:
    rows = [["", *OUTCOMES], *table(results)]
    width = max(len(row[0]) for row in rows)
    for row in rows:
        print(row[0].ljust(width), *(cell.rjust(9) for cell in row[1:]))


def command(chosen: argparse.Namespace) -> str:
    """What loads the same files; where they are kept is left out."""
    numbers = {"REPEAT": chosen.repeat} if chosen.repeat else {"N": chosen.loads, "SEED": chosen.seed}
    return make_command("fuzz", numbers, "FUZZ", [part for name in chosen.only for part in ("--only", name)])


def record(results: Sequence[Found], chosen: argparse.Namespace, seconds: float) -> dict[str, Any]:
    import torch

    import cacseg

    counts = {row[0]: dict(zip(OUTCOMES, map(int, row[1:]), strict=True)) for row in table(results)}
    return {
        "command": command(chosen),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "seed": chosen.seed,
        "loads": len(results),
        "new": sum(KINDS[found.case.kind].is_new for found in results),
        "minutes": round(seconds / 60, 1),
        "processes": chosen.jobs,
        "longest_seconds": max(found.seconds for found in results),
        "largest_mib": max(found.mib for found in results),
        "processor": processor_name(),
        "versions": {"cacseg": cacseg.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "kinds": counts,
    }


def summary(results: Sequence[Found]) -> list[str]:
    """Failures by their last words, with a case that repeats each."""
    groups: dict[tuple[str, str, str], list[Found]] = {}
    for found in results:
        if found.outcome not in FINE:
            words = re.sub(r"/\S+|\d+|'[^']*'", "_", found.words.splitlines()[0])[:90] if found.words else ""
            groups.setdefault((found.case.kind, found.outcome, words), []).append(found)
    return [
        f"{len(group):4d} x {kind}, {outcome}: {group[0].words.splitlines()[0][:200] if group[0].words else ''}\n"
        f"         make fuzz REPEAT={group[0].case}"
        for (kind, outcome, _), group in groups.items()
    ]


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--loads", type=int, default=LOADS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], choices=list(KINDS), help="a kind; again for more")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeat", type=parse_case, metavar="SEED/KIND/NUMBER", help="one case, with its traceback")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/fuzz"), help="for what failed")
    parser.add_argument("--corpus", type=Path, help="the whole files, kept from one call to the next")
    parser.add_argument("--json", type=Path, help="write the table as a record")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = read_options(arguments)
    with tempfile.TemporaryDirectory(prefix="cacseg_fuzz_") as scratch:
        corpus = make_corpus(chosen.corpus or Path(scratch) / "corpus")
        preload()
        cases = [chosen.repeat] if chosen.repeat else plan(chosen.loads, chosen.seed, chosen.only)
        start, told = time.monotonic(), [0.0]

        def tell(found: Found) -> None:
            told.append(found.seconds)
            if found.outcome not in FINE:
                keep(found, corpus, chosen.output)
            if len(told) % 250 == 0:
                print(
                    f"{len(told)} of {len(cases)} loads, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True
                )

        results = run_cases(cases, corpus, Path(scratch) / "work", chosen.jobs, tell)
        seconds = time.monotonic() - start
    if chosen.repeat:
        print(f"{results[0].outcome} in {results[0].seconds} s, {results[0].mib} MiB\n{results[0].words}")
    else:
        print_table(results)
        print(*summary(results), sep="\n")
        print(f"{len(results)} loads in {seconds:.0f} s; seed {chosen.seed}")
    if chosen.json:
        chosen.json.write_text(json.dumps(record(results, chosen, seconds), indent=2) + "\n")
    return int(any(found.outcome not in FINE for found in results))


if __name__ == "__main__":
    sys.exit(main())
