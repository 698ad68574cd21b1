"""Shares images out over workers that know nothing of each other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

HASHES = 2**30  # a shard is a range of hashes and of bytes of a lock file, which old NFS counts in 32 bits


@dataclass(frozen=True)
class Shard:
    """The images that one of several workers predicts: those whose name has its hash in the worker's range.

    The shard of an image depends on its name and the number of shards alone, not on the list it stands in: workers that
    list a growing folder at different times still share no image.
    """

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"shard {self.index + 1} of {self.count}"

    @property
    def start(self) -> int:
        return -(-self.index * HASHES // self.count)

    @property
    def end(self) -> int:
        return -(-(self.index + 1) * HASHES // self.count)

    def owns(self, name: str) -> bool:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return self.start <= int.from_bytes(digest, "big") % HASHES < self.end


def parse_shard(text: str) -> Shard:
    """'3/8', from 1 on."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count) <= HASHES):
        raise ValueError(f"--shard must be like 3/8, from 1/8 to 8/8; got {text!r}.")
    return Shard(int(index) - 1, int(count))


def shard_of_environment(environment: Mapping[str, str]) -> Shard:
    """Of the rank by torchrun or srun, and of the task of a SLURM array; of both, each task has its own ranks.

    SLURM_STEP_NUM_TASKS is there under srun alone; a batch script that runs once has SLURM_PROCID and SLURM_NTASKS too.
    """
    keys = ("RANK", "WORLD_SIZE") if "RANK" in environment else ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    rank, ranks = (int(environment[key]) for key in keys) if all(key in environment for key in keys) else (0, 1)
    usual = {"ID": "0", "COUNT": "1", "MIN": "0", "STEP": "1"}
    found = {key: int(environment.get(f"SLURM_ARRAY_TASK_{key}") or value) for key, value in usual.items()}
    place, rest = divmod(found["ID"] - found["MIN"], found["STEP"])
    if found["COUNT"] == 1:  # `--array=5` is one task
        place = rest = 0
    if rest or not 0 <= place < found["COUNT"]:
        raise ValueError(
            f"task {found['ID']} of a SLURM array of {found['COUNT']} tasks from {found['MIN']} on: the numbers have "
            "gaps. Use --array=1-8, or --shard."
        )
    return Shard(place * ranks + rank, found["COUNT"] * ranks)
