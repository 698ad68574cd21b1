"""The campaign of `make fuzz` and `make chaos`: a small part of it, and that it sees what it is there to see."""

import json
import os
import random
import signal
import time
from collections import Counter
from importlib import import_module

import numpy as np
import pytest

from cacseg._tensors import read_safetensors
from cacseg.cli import MISTAKES
from campaign import chaos, corpus, fuzz, jobs, workers
from campaign.loads import KINDS, ROOT, Kind
from campaign.mutate import BYTES, IMAGE, ZIP, bomb_member
from campaign.workers import FINE, Case, damage, run_case, run_cases

EXPORTS = ("onnx", "export-metadata", "service")
# Those of which a hundred loads take seconds; runs and their checkpoints take too long to make.
QUICK = ("image", "labels-index", "labels-colour", "class-list", "zip", "weights", "arms", "journal", "bands", "coco")
QUICK = (*QUICK, "labelme", "yolo", "voc", "label-studio", *EXPORTS, "page")
LOADS = 8  # of each kind


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("images", "bands", "labels", "models", "journal"):
        corpus.PARTS[name](folder / name)
    corpus.write_arms(folder / "runs" / "arms")
    return folder


@pytest.fixture(params=QUICK)
def kind(request):
    if request.param in EXPORTS:
        pytest.importorskip("onnx", reason="needs the extra export")
    return request.param


@pytest.mark.filterwarnings("ignore")  # as in the processes of the campaign: they are no outcome
def test_damaged_files_are_named_or_accepted(kind, whole, tmp_path):
    """make fuzz loads thousands."""
    bad = []
    for number in range(LOADS):
        found = run_case(Case(7, kind, number), whole, tmp_path)
        if found.outcome not in FINE:
            bad.append((str(found.case), found.outcome, found.words))
    assert bad == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore")
def test_whole_files_are_accepted(kind, whole, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, kind, KINDS[kind]._replace(mutators=(lambda rng, content, others: content,)))
    found = run_case(Case(0, kind, 0), whole, tmp_path)
    assert (found.outcome, found.words) == ("accepted", "")


def test_a_case_is_a_function_of_its_three_numbers(whole):
    for kind in ("image", "zip", "coco", "class-list", "bands"):
        made = [damage(Case(1, kind, number), whole) for number in range(20)]
        assert made == [damage(Case(1, kind, number), whole) for number in range(20)]
        assert len(set(made)) > 15
        assert made != [damage(Case(2, kind, number), whole) for number in range(20)]
        assert sum(content != workers.tree_of(whole, KINDS[kind].tree)[name] for name, content in made) > 15


def test_a_longer_campaign_has_the_cases_of_a_shorter_one():
    cases = fuzz.plan(10_000, 1)
    assert abs(len(cases) - 10_000) < len(KINDS)
    assert set(fuzz.plan(500, 1)) <= set(cases)
    assert {case.kind for case in cases} == set(KINDS)
    assert sum(KINDS[case.kind].is_new for case in cases) >= 1000


def test_clean_names_the_file(whole, tmp_path):
    file = tmp_path / "a.png"

    def outcome(error, kind="image"):
        def load():
            raise error

        return workers.judge(Case(0, kind, 0), tmp_path / "other", file, load)[0]

    assert {kind: outcome(kind("a.png is broken")) for kind in MISTAKES if kind is not MemoryError} == dict.fromkeys(
        [kind for kind in MISTAKES if kind is not MemoryError], "clean"
    )
    assert outcome(ValueError("it is broken")) == "raw"
    assert outcome(ValueError(f"{tmp_path / 'other'} is broken")) == "raw"  # its folder does not say which
    assert outcome(ValueError(f"a.png is {'x' * workers.LONGEST}")) == "raw"
    assert outcome(ValueError(f"{tmp_path / 'other'} is broken"), "labels-index") == "clean"
    assert outcome(KeyError("a.png")) == "raw"
    assert outcome(RecursionError("a.png")) == "raw"
    with pytest.raises(MemoryError) as raised:
        np.empty(2**60, np.uint8)
    assert outcome(raised.value) == "large"
    wrapped = OSError("a.png is damaged")
    wrapped.__cause__ = raised.value
    assert outcome(wrapped) == "large"
    for reasons, expected in (
        ([], "accepted"),
        (["a.png: no"], "clean"),
        (["x", "a.png"], "clean"),
        (["x"], "raw"),
        (["a.png" * 999], "raw"),
    ):
        assert workers.judge(Case(0, "image", 0), tmp_path / "other", file, lambda said=reasons: said)[0] == expected


def test_a_report_that_calls_missing_what_is_there_is_wrong(tmp_path, monkeypatch):
    page = tmp_path / "out" / "report.html"
    page.parent.mkdir()
    (tmp_path / "metrics.csv").write_text("x")
    monkeypatch.setattr(import_module("cacseg.cli.report"), "write_page", lambda *_, **__: page)
    kind = KINDS["metrics"]
    for words, expected in (("metrics.csv is missing", "wrong"), ("scores.json is missing", "accepted")):
        page.write_text(f"<p>There are no curves: {tmp_path / words}.</p>")
        load = lambda: kind.load(tmp_path, tmp_path, tmp_path / "metrics.csv")  # noqa: E731
        assert workers.judge(Case(0, "metrics", 0), tmp_path, tmp_path / "metrics.csv", load)[0] == expected


def _behave(corpus_folder, folder, file):
    """A load that does what the number of its case says."""
    number = int(folder.name.rpartition("-")[2])
    if number == 1:
        time.sleep(60)
    elif number == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    elif number == 3:
        np.ones(2**33, np.uint8)
    elif number == 4:
        content = bytearray(3 * 2**29)
        content[:: 2**12] = bytes(range(256)) * (len(content) // 2**20)
    return [f"{file.name} is bad"] if number == 5 else []


@pytest.mark.filterwarnings("ignore")
def test_what_hangs_crashes_or_eats_memory_is_told_and_the_rest_goes_on(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS", 2.0)
    monkeypatch.setattr(workers, "BYTES", 2**30)
    monkeypatch.setitem(KINDS, "behaves", Kind("images", ("*.png",), BYTES, _behave))
    found = run_cases([Case(0, "behaves", number) for number in range(8)], whole, tmp_path / "work", 1)
    expected = ["accepted", "slow", "crashed", "large", "large", "clean", "accepted", "accepted"]
    assert [(one.case.number, one.outcome) for one in found] == list(enumerate(expected))


def test_a_failure_is_kept_with_the_command_that_repeats_it(whole, tmp_path):
    case = Case(3, "coco", 5)
    fuzz.keep(workers.Found(case, "raw", "KeyError: 'x'"), whole, tmp_path)
    (folder,) = tmp_path.iterdir()
    text = (folder / "about.txt").read_text()
    assert "make fuzz REPEAT=3/coco/5" in text
    assert "KeyError" in text
    name, content = damage(case, whole)
    assert (folder / "files" / name).read_bytes() == content
    assert workers.parse_case("3/coco/5") == case


def test_the_table_counts_every_load():
    found = [workers.Found(Case(0, kind, 0), outcome) for kind, outcome in (("image", "clean"), ("zip", "raw"))]
    rows = fuzz.table(found)
    assert [row[0] for row in rows] == ["image", "zip", "all"]
    assert rows[-1][1:] == [str(Counter(one.outcome for one in found)[outcome]) for outcome in workers.OUTCOMES]


def test_records_name_their_command():
    chosen = fuzz.read_options(["-n", "400", "--seed", "5", "--only", "image", "--only", "page", "-o", "elsewhere"])
    assert fuzz.command(chosen) == 'make fuzz N=400 SEED=5 FUZZ="--only image --only page"'
    assert fuzz.command(fuzz.read_options([])) == f"make fuzz N={fuzz.LOADS} SEED=0"
    assert fuzz.command(fuzz.read_options(["--repeat", "1/zip/7"])) == "make fuzz REPEAT=1/zip/7"
    chosen = chaos.read_options(
        ["--kills", "16", "--seed", "1", "--only", "train", "--fresh", "--no-disk", "--no-rank"]
    )
    assert chaos.command(chosen) == 'make chaos KILLS=16 SEED=1 CHAOS="--only train --fresh --no-disk --no-rank"'
    assert chaos.command(chaos.read_options([])) == "make chaos KILLS=50 SEED=0"


def test_half_of_the_edits_of_a_model_get_past_its_checksum(whole):
    from campaign.loads import edit_safetensors

    content = (whole / "models" / "model.safetensors").read_bytes()
    path, past, stopped = whole / "edited.safetensors", 0, 0
    for seed in range(60):
        path.write_bytes(edit_safetensors(random.Random(seed), content, ()))
        try:
            read_safetensors(path)
            past += 1
        except ValueError as error:
            stopped += "checksum" in str(error)
    assert past >= 15
    assert stopped >= 10


def test_mutators_take_files_of_any_length():
    for mutator in {*BYTES, *IMAGE, *ZIP, bomb_member} - {ZIP[-1]}:
        for content in (b"\x89PNG\r\n\x1a\n" + bytes(80), b"GIF89a" + bytes(60), b"BM" + bytes(60), b"PK" + bytes(60)):
            for seed in range(5):
                assert isinstance(mutator(random.Random(seed), content, [b"other", b""]), bytes)


def test_every_job_gets_its_share_of_the_kills():
    made, rng = Counter(), random.Random(0)
    while made.total() < 50:
        made[chaos.next_job(made)] += rng.choice((0, 1, 2, 3))  # 0: it ended before it was killed
    assert set(made) == set(jobs.JOBS)
    assert min(made.values()) >= 8


def test_chaos_sees_what_differs(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "masks.png").write_bytes(b"same")
        (tmp_path / name / "train.log").write_text(name)
    first, second = (jobs.content_of(tmp_path / name / "masks.png") for name in ("one", "two"))
    assert jobs.differences(first, second) == []
    (tmp_path / "two" / "masks.png").write_bytes(b"other")
    assert jobs.differences(jobs.content_of(tmp_path / "two" / "masks.png"), first) == ["masks.png differs"]
    assert jobs.differences({**first, "x.tmp": b""}, first) == ["x.tmp is left over"]
    assert jobs.differences({}, first) == ["masks.png is missing"]
    (tmp_path / "two" / "masks.png.tmp").write_bytes(b"x")
    assert jobs.content_of(tmp_path / "two")["two/masks.png.tmp"] == b"x"
    (tmp_path / "two" / ".12.34.tmp").touch()
    assert chaos.has_unfinished(tmp_path / "two")
    assert not chaos.has_unfinished(tmp_path / "one")


def test_chaos_compares_the_scores_of_a_checkpoint_but_for_its_times(tmp_path, monkeypatch):
    def facts(**scores):
        state = {"seconds": scores.get("seconds", 0), "step": 3, "scores": json.dumps(scores) if scores else ""}
        monkeypatch.setattr("cacseg.engine.checkpoints.read_checkpoint", lambda path: state)
        (tmp_path / "last.ckpt").touch()
        return jobs.content_of(tmp_path / "last.ckpt")

    one = facts(mean_iou=0.5, seconds=1, date="a", peak_mib=3)
    assert jobs.differences(facts(mean_iou=0.5, seconds=2, date="b", peak_mib=4), one) == []
    assert jobs.differences(facts(mean_iou=0.6, seconds=1), one) == ["last.ckpt differs"]
    assert jobs.differences(facts(), one) == ["last.ckpt differs"]


def test_a_job_that_was_not_run_is_said_in_the_table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import time_tables

    found = [chaos.not_run("train, full disk"), {"job": "train", "kills": ["x"], "problems": []}]
    record = {"jobs": found, "kills": {"train": 1}, "inside_writes": 0, "command": "c", "processor": "p"}
    monkeypatch.setattr(time_tables, "timed", lambda name: {**record, "date": "d", "minutes": 1.0})
    rows = [row for row in time_tables.killed_jobs() if row.startswith("| train")]
    assert [("not run" in row, row.count("1")) for row in rows] == [(True, 0), (False, 3)]
