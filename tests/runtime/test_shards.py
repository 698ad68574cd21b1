"""Images shared out over workers."""

import pytest

from cacseg.runtime.shards import HASHES, Shard, parse_shard, shard_of_environment

NAMES = [f"a/b{k}" for k in range(3000)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_each_image_has_one_shard_and_shards_are_about_equal(count):
    shards = [Shard(index, count) for index in range(count)]
    assert [one.start for one in shards] == [0, *(one.end for one in shards[:-1])]
    assert shards[-1].end == HASHES
    found = [[name for name in NAMES if one.owns(name)] for one in shards]
    assert sorted(name for names in found for name in names) == sorted(NAMES)
    expected = len(NAMES) / count
    assert all(abs(len(names) - expected) <= 5 * expected**0.5 for names in found)


def test_the_shard_of_a_name_is_the_same_everywhere():
    owned = [next(index for index in range(8) if Shard(index, 8).owns(name)) for name in ("a", "b/c", "\udcff", "ä")]
    assert owned == [3, 1, 0, 3]


def test_an_argument():
    assert parse_shard("3/8") == Shard(2, 8)
    assert parse_shard("1/1") == Shard()
    for text in ("0/8", "9/8", "3", "3/", "a/b", "-1/4", "1/0", "2/1.5"):
        with pytest.raises(ValueError, match="3/8"):
            parse_shard(text)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({}, Shard()),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Shard(1, 2)),
        ({"ID": "3", "COUNT": "8", "MIN": "1", "MAX": "8", "STEP": "1"}, Shard(2, 8)),
        ({"ID": "3", "COUNT": "8"}, Shard(3, 8)),
        ({"ID": "20", "COUNT": "3", "MIN": "10", "STEP": "5"}, Shard(2, 3)),
        ({"ID": "5", "COUNT": "1", "MIN": "5", "STEP": "1"}, Shard()),
        ({"ID": "2", "COUNT": "4", "MIN": "1", "STEP": "1", "RANK": "1", "WORLD_SIZE": "2"}, Shard(3, 8)),
    ],
)
def test_the_environment(task, expected):
    ours = ("RANK", "WORLD_SIZE")
    assert shard_of_environment({key if key in ours else f"SLURM_ARRAY_TASK_{key}": task[key] for key in task}) == (
        expected
    )


def test_an_array_with_gaps():
    task = {"ID": "7", "COUNT": "3", "MIN": "1", "STEP": "1"}
    with pytest.raises(ValueError, match="--shard"):
        shard_of_environment({f"SLURM_ARRAY_TASK_{key}": value for key, value in task.items()})


def test_tasks_of_srun():
    step = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"}
    assert shard_of_environment(step) == Shard(5, 8)
    array = {f"SLURM_ARRAY_TASK_{key}": value for key, value in {"ID": "2", "COUNT": "3", "MIN": "1"}.items()}
    assert shard_of_environment({**step, **array}) == Shard(13, 24)
    assert shard_of_environment({**step, "RANK": "1", "WORLD_SIZE": "4"}) == Shard(1, 4)  # torchrun under srun
    assert (
        shard_of_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == Shard()
    )  # a batch script, which runs once
