"""Several workers in one folder: what they exclude, what they leave, and what kills cost."""

import csv
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cacseg.runtime.inputs import Input, find_images
from cacseg.runtime.journal import Journal, stamp
from cacseg.runtime.shards import Shard
from distributed_evaluation import small_model
from prediction_workers import start

OPTIONS = {"model": "m"}


def indexes(folder):
    return sorted(path.name for path in folder.glob("index*"))


def listed(index):
    with index.open(newline="") as file:
        return sorted(row["name"] for row in csv.DictReader(file))


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "photos").mkdir()
    for k in range(20):
        (tmp_path / f"photos/{k:02}.png").write_bytes(bytes(k))
    return find_images([tmp_path / "photos"])


def work(folder, inputs, shard=None, options=OPTIONS):
    """The names that a worker adds, all that it finds undone."""
    shard = shard or Shard()
    with Journal(folder, options, shard=shard) as journal:
        todo = [item for item in inputs if shard.owns(item.name) and not journal.is_done(item)]
        for item in todo:
            journal.add(item, (1, 1), stamp(item.path))
    return [item.name for item in todo]


class Elsewhere:
    """A journal that another process holds open."""

    def __init__(self, folder, shard=None, kill=False):
        code = "import sys; from pathlib import Path; from cacseg.runtime.journal import Journal\n"
        code += "from cacseg.runtime.shards import Shard\n"
        code += f"with Journal(Path({str(folder)!r}), {OPTIONS!r}, shard={shard or Shard()!r}):\n"
        code += "    print('open', flush=True); sys.stdin.readline()"
        self.command, self.kill = [sys.executable, "-c", code], kill

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "open\n"

    def __exit__(self, *_):
        if self.kill:
            self.process.kill()
        self.process.communicate("\n")


def test_shards_one_after_another_become_one_index(tmp_path, inputs):
    out = tmp_path / "out"
    done = [work(out, inputs, Shard(index, 3)) for index in range(3)]
    assert all(done)
    assert (
        sorted(name for names in done for name in names)
        == listed(out / "index.csv")
        == sorted(item.name for item in inputs)
    )
    assert indexes(out) == ["index.csv"]
    for shard in (Shard(), Shard(0, 2), Shard(4, 7)):
        assert work(out, inputs, shard) == []


def test_shards_side_by_side_keep_their_own_index(tmp_path, inputs):
    out = tmp_path / "out"
    with Elsewhere(out, Shard(0, 2)):
        done = work(out, inputs, Shard(1, 2))
        assert indexes(out) == ["index.1-of-2.csv", "index.2-of-2.csv"]
        assert listed(out / "index.2-of-2.csv") == sorted(done)
        assert work(out, inputs, Shard(1, 2)) == []
    assert indexes(out) == ["index.csv"]  # the other one ended last
    assert listed(out / "index.csv") == sorted(done)
    assert len(work(out, inputs)) == len(inputs) - len(done)


def test_the_last_worker_writes_what_is_about_all(tmp_path, inputs):
    out, told = tmp_path / "out", []
    with Elsewhere(out, Shard(0, 2)), Journal(out, OPTIONS, shard=Shard(1, 2), finish=told.append) as journal:
        mine = [item for item in inputs if Shard(1, 2).owns(item.name)]
        for item in mine:
            journal.add(item, (1, 1), stamp(item.path))
    assert told == []
    with Journal(out, OPTIONS, shard=Shard(0, 2), finish=told.append) as journal:
        item = next(item for item in inputs if item not in mine)
        journal.add(item, (1, 1), stamp(item.path))
    assert told == [sorted([item.name, *(one.name for one in mine)])]
    with pytest.raises(KeyError), Journal(out, OPTIONS, finish=told.append):
        raise KeyError
    assert len(told) == 1


def test_a_killed_worker_leaves_its_index_to_the_next(tmp_path, inputs):
    out = tmp_path / "out"
    with Elsewhere(out, Shard(0, 2), kill=True):
        done = work(out, inputs, Shard(1, 2))
        with (out / "index.2-of-2.csv").open("ab") as file:
            file.write(b"cut,short")
    assert indexes(out) == ["index.1-of-2.csv", "index.2-of-2.csv"]
    assert set(work(out, inputs, Shard(0, 3)) + done) >= {item.name for item in inputs if Shard(0, 3).owns(item.name)}
    assert indexes(out) == ["index.csv"]
    names = listed(out / "index.csv")
    assert len(set(names)) == len(names)
    assert set(done) < set(names)


@pytest.mark.parametrize(
    ("held", "other"),
    [
        (Shard(), Shard()),
        (Shard(), Shard(1, 2)),
        (Shard(1, 2), Shard()),
        (Shard(1, 2), Shard(1, 2)),
        (Shard(0, 2), Shard(0, 3)),  # overlap
        (Shard(0, 2), Shard(3, 4)),  # do not overlap: refused by their number
    ],
)
def test_workers_that_exclude_each_other(tmp_path, inputs, held, other):
    out = tmp_path / "out"
    with Elsewhere(out, held), pytest.raises(OSError, match=str(out)):
        work(out, inputs, other)
    assert work(out, inputs, other)


def test_workers_compare_their_options(tmp_path, inputs):
    out = tmp_path / "out"
    with Elsewhere(out, Shard(0, 2)), pytest.raises(ValueError, match=r"model was 'm' and is now 'other'"):
        work(out, inputs, Shard(1, 2), {"model": "other"})


def test_unfinished_files_are_those_of_killed_workers_only_while_none_runs(tmp_path, inputs):
    out = tmp_path / "out"
    with Elsewhere(out, Shard(0, 2)):
        (out / ".1.2.tmp").write_bytes(b"half")
        work(out, inputs, Shard(1, 2))
        assert (out / ".1.2.tmp").exists()
    work(out, inputs, Shard(1, 2))
    assert not (out / ".1.2.tmp").exists()


def test_an_image_that_changed_is_listed_once(tmp_path, inputs):
    out, item = tmp_path / "out", inputs[0]
    work(out, inputs)
    item.path.write_bytes(b"another")
    for shard in (Shard(0, 2), Shard(1, 2)):
        work(out, inputs, shard)
    assert listed(out / "index.csv") == sorted(one.name for one in inputs)
    assert work(out, inputs) == []


def test_what_shards_cannot_do(tmp_path):
    with pytest.raises(ValueError, match="--overwrite"):
        Journal(tmp_path / "out", {}, shard=Shard(0, 2), overwrite=True)


def predict_under_fire(root, count, kills, seed):
    """Two workers on `count` images, killed and restarted `kills` times; the last ones end by themselves."""
    numbers, choices = np.random.default_rng(seed), random.Random(seed)
    small_model(("grass", "sky", "stone")).save(root / "model.safetensors")
    (root / "photos").mkdir()
    for k in range(count):
        Image.fromarray(numbers.integers(0, 256, (32, 40, 3), np.uint8)).save(root / f"photos/{k:04}.png")
    out, log = root / "out", root / "log"

    def begin(index, folder=out, shards=2):
        arguments = [root / "model.safetensors", root / "photos", "-o", folder, "--workers", 1, "--batch", 1]
        return start([*arguments, "--shard", f"{index + 1}/{shards}", "--device", "cpu"], log)

    def written():
        return len(list((out / "masks").glob("*.png")))

    workers, killed = [begin(index) for index in range(2)], 0
    for target in sorted(choices.sample(range(1, count * 6 // 10), kills)):
        while written() < target:
            time.sleep(choices.uniform(0.0, 0.01))
            assert any(one.is_alive() for one in workers), log.read_text()
        alive = [index for index in range(2) if workers[index].is_alive()]
        for index in choices.sample(alive, choices.randint(1, len(alive))):
            workers[index].kill()
            workers[index].join()
            killed += workers[index].exitcode == -signal.SIGKILL
            workers[index] = begin(index)
    for one in workers:
        one.join(300)
        assert one.exitcode == 0, log.read_text()
    assert killed >= kills
    whole = begin(0, root / "whole", 1)
    whole.join(300)
    names = [f"{k:04}" for k in range(count)]
    assert indexes(out) == ["index.csv"]
    assert listed(out / "index.csv") == names
    assert not list(out.rglob(".*.tmp"))
    for name in names:
        for kind, suffix in (("masks", "png"), ("overlays", "jpg")):
            found, expected = (folder / kind / f"{name}.{suffix}" for folder in (out, root / "whole"))
            assert found.read_bytes() == expected.read_bytes()
    assert len(list((out / "masks").iterdir())) == count


def test_workers_killed_at_random_lose_and_repeat_nothing(tmp_path):
    predict_under_fire(tmp_path, 60, 3, 0)


@pytest.mark.slow
def test_five_hundred_images_and_twenty_kills(tmp_path):
    predict_under_fire(tmp_path, 500, 20, 1)


def test_inputs_are_named_by_hand_too(tmp_path):
    """A name that a shard does not own is never looked up in its rows."""
    out, item = tmp_path / "out", Input(Path(__file__), "one")
    with Journal(out, OPTIONS) as journal:
        journal.add(item, (1, 1), stamp(item.path))
    owner = next(shard for shard in (Shard(0, 2), Shard(1, 2)) if shard.owns("one"))
    with Journal(out, OPTIONS, shard=owner) as journal:
        assert journal.is_done(item)
        assert set(journal.rows) == {"one"}
    with Journal(out, OPTIONS, shard=Shard(1 - owner.index, 2)) as journal:
        assert journal.rows == {}


@pytest.mark.parametrize(
    "tail", [b"\0" * 4096, b"\0" * 200_000 + b"\n", b"\0\n" * 9, b'"' + b"x" * 200_000 + b"\n", b"\xff\xfe,\n"]
)
def test_an_index_that_a_crash_has_damaged_keeps_its_whole_rows(tmp_path, inputs, tail):
    assert len(work(tmp_path / "out", inputs)) == 20
    with (tmp_path / "out/index.csv").open("ab") as file:
        file.write(tail)
    assert work(tmp_path / "out", inputs) == []
    assert len(listed(tmp_path / "out/index.csv")) == 20


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{", "5"])
def test_damaged_options_of_a_prediction(tmp_path, inputs, content):
    work(tmp_path / "out", inputs)
    (tmp_path / "out/predict.json").write_text(content)
    with pytest.raises(ValueError, match=r"predict\.json is damaged.*--overwrite"):
        work(tmp_path / "out", inputs)


def test_an_index_or_a_lock_that_is_a_link_is_not_followed(tmp_path, inputs):
    (tmp_path / "precious").write_text("all of it")
    work(tmp_path / "out", inputs)
    for name in (".lock", "index.csv"):
        (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"\.lock must be a file to be written to; it is a link"):
        work(tmp_path / "out", inputs)
    (tmp_path / "out/.lock").unlink()
    work(tmp_path / "out", inputs)
    assert (tmp_path / "precious").read_text() == "all of it"
