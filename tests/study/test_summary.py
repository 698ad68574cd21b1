"""Records, the CSV and the statistics, against numbers worked out by hand."""

import csv
from pathlib import Path

import pytest

from cacseg.study.classes import read_classes
from cacseg.study.plots import difference_picture, layout
from cacseg.study.results import COLUMNS, part_of, read_records, rows, write_csv, write_record, write_rows
from cacseg.study.summary import Line, baseline_of, mean_of, pool, summarise, summarise_answers
from cacseg.study.tables import answers_table, arms_table, markdown, pooled_table, wide_table

RESULTS = Path(__file__).parents[2] / "studies" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_results_of_the_repository_are_read(path):
    """Also those of options that are gone."""
    if path.stem.endswith("_classes"):
        assert read_classes([path])
        return
    records = read_records([path])
    assert arms_table(summarise(records), baseline_of(records)).rows


def record(arm, seed, scores, *, steps=400, status="done", digest=None, own=None, pixels=90.0):
    made = {
        "format": "cacseg job 1",
        "id": f"camvid.fcn.adamw.{steps}.{arm}.{seed}",
        **dict(study="small", baseline="plain", data="camvid", model="fcn", optimiser="adamw", steps=steps),
        **dict(arm=arm, seed=seed, status=status, digest=digest or arm),
        "config": {"optimiser": {"rate": 2e-4}, "training": {"batch": 16, "precision": "bf16"}},
    }
    if status == "failed":
        return {**made, "error": "ValueError: no"}
    of_pixels = pixels if isinstance(pixels, dict) else dict.fromkeys(scores, pixels)
    answers = {
        name: {"miou": score, "mean_accuracy": 70.0, "pixel_accuracy": of_pixels[name]}
        for name, score in scores.items()
    }
    run = dict(images=101, seconds_training=10.0, seconds_evaluation=1.5, peak_mib=100.0)
    own = own or ("plain" if arm == "plain" else "context")
    return {**made, "default_output": own, "answers": answers, **run}


PLAIN = [record("plain", seed, {"plain": score}) for seed, score in enumerate((60.0, 62.0, 61.0))]
BETTER = [
    record("better", seed, {"plain": score - 1.0, "context": score, "oracle": 80.0})
    for seed, score in enumerate((62.0, 63.0, 63.0))
]


def of(lines, arm, answer) -> Line:
    (line,) = (line for line in lines if (line.arm, line.answer) == (arm, answer))
    return line


def test_means_errors_and_paired_differences():
    lines = summarise([*BETTER, *PLAIN])
    plain, context = of(lines, "plain", "plain"), of(lines, "better", "context")
    assert lines[0] is plain
    assert plain.miou == pytest.approx((61.0, 1 / 3**0.5, 3))  # deviations -1, 1, 0: variance 1
    assert context.differences == (2.0, 1.0, 2.0)
    assert context.difference == pytest.approx((5 / 3, (1 / 3) ** 0.5 / 3**0.5, 3))
    assert (context.own, context.verdict) == (True, "ahead")  # 1.67 > 2 * 0.33
    assert of(lines, "better", "plain").verdict == "even"  # 0.67 is not more than 2 * 0.33
    assert of(lines, "better", "oracle").own is False


MODELS = [  # that differ by more than their answers do
    record("better", 0, {"plain": 60.0, "context": 61.0, "oracle": 70.0}, pixels=dict(plain=80, context=84, oracle=90)),
    record("better", 1, {"plain": 64.0, "context": 66.0, "oracle": 70.0}, pixels=dict(plain=82, context=84, oracle=90)),
]


def test_answers_of_the_same_models():
    lines = summarise_answers([*PLAIN, *MODELS, record("better", 2, {}, status="failed")], "plain")
    assert [(line.arm, line.answer) for line in lines] == [("better", "context"), ("better", "oracle")]
    context = of(lines, "better", "context")
    assert context.differences == (1.0, 2.0)
    assert context.difference == pytest.approx((1.5, 0.5, 2))
    assert context.pixel_difference == pytest.approx((3.0, 1.0, 2))
    assert [row[4:] for row in answers_table(lines, "plain").rows] == [
        ["better", "context", "", "2", "63.50 ± 2.50", "+1.50 ± 0.50", "84.00", "+3.00 ± 1.00"],
        ["better", "oracle", "", "2", "70.00 ± 0.00", "+8.00 ± 2.00", "90.00", "+9.00 ± 1.00"],
    ]
    third = record("better", 2, {"plain": 60.0, "context": 61.5})
    assert of(summarise_answers([*MODELS, third], "plain"), "better", "context").verdict == "ahead"
    (row, _) = answers_table(summarise_answers([*MODELS, third], "context"), "context").rows
    assert row[5:9] == ["plain", "behind", "3", "61.33 ± 1.33"]


def test_models_without_the_answer_take_no_part():
    lines = summarise_answers([*PLAIN, *BETTER], "oracle")
    assert {line.arm for line in lines} == {"better"}
    assert of(lines, "better", "context").differences == (-18.0, -17.0, -17.0)
    some = [*MODELS, record("better", 2, {"plain": 1.0, "context": 2.0}), record("better", 3, {"plain": 1.0})]
    context, plain = (of(summarise_answers(some, "oracle"), "better", name) for name in ("context", "plain"))
    assert (context.difference.n, context.miou.n, plain.difference.n) == (2, 2, 2)
    assert of(summarise_answers(some, "plain"), "better", "context").differences == (1.0, 2.0, 1.0)
    unlabelled = record("better", 2, {"plain": None, "context": 61.0})
    assert of(summarise_answers([*MODELS, unlabelled], "plain"), "better", "context").miou.n == 2


def test_what_is_wrong_with_answers_is_said():
    with pytest.raises(ValueError, match=r"no answer 'contxt' in the results\. There is context, oracle, plain\."):
        summarise_answers([*PLAIN, *BETTER], "contxt")
    with pytest.raises(ValueError, match="no job has ended well"):
        summarise_answers([record("better", 2, {}, status="failed")], "plain")
    with pytest.raises(ValueError, match="were made with different settings"):
        summarise_answers([*MODELS, record("better", 2, {"plain": 1.0}, digest="other")], "plain")


def test_seeds_that_the_baseline_lacks_are_named():
    rows = arms_table(summarise([*PLAIN[:2], *BETTER]), "plain").rows
    assert rows[1][7:10] == ["3", "62.67 ± 0.33", "+1.50 ± 0.50 (2 seeds)"]


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((1.0, 1.0, 1.0), "ahead"),
        ((0.9, 0.9, 0.9), "above"),  # sure, but less than a point
        ((0.0, 4.0, 0.0), "even"),  # 1.33 +- 1.33
        ((-0.3, -0.3, -0.2), "behind"),
        ((2.0,), ""),
        ((2.0, 2.1), ""),  # of two numbers the scatter says too little
    ],
)
def test_verdicts(differences, verdict):
    arm = [record("arm", seed, {"context": 61.0 + value}) for seed, value in enumerate(differences)]
    base = [record("plain", seed, {"plain": 61.0}) for seed in range(3)]
    assert of(summarise([*arm, *base]), "arm", "context").verdict == verdict


def test_only_equal_seeds_are_paired():
    lines = summarise([*PLAIN[:2], *BETTER[1:]])
    assert of(lines, "better", "context").differences == (1.0,)
    assert of(lines, "better", "context").miou.n == 2
    apart = summarise([PLAIN[0], BETTER[1]])
    assert of(apart, "better", "context").difference is None


def test_the_default_output_is_the_one_that_the_model_gave():
    scores = {"plain": 60.0, "context": 61.0, "mean": 63.0}
    lines = summarise([PLAIN[0], record("averaged", 0, scores, own="mean")])
    assert [line.answer for line in lines if line.own] == ["plain", "mean"]
    assert of(lines, "averaged", "mean").differences == (3.0,)


def test_cells_are_counted():
    long = [
        record(arm, seed, {name: 60.0}, steps=1600)
        for arm, name in (("plain", "plain"), ("better", "context"))
        for seed in (0, 1, 2)
    ]
    (count,) = pool(summarise([*PLAIN, *BETTER, *long]), "plain")
    assert (count.arm, count.undecided) == ("better", 0)
    assert count.verdicts == {"ahead": 1, "above": 0, "even": 1, "behind": 0}
    assert count.difference == pytest.approx(5 / 6)
    (count,) = pool(summarise([*PLAIN, *BETTER[:2]]), "plain")
    assert (sum(count.verdicts.values()), count.undecided) == (0, 1)


def test_pixel_accuracy_is_paired_as_well():
    worse = [record("better", seed, {"context": 63.0}, pixels=88.0 + seed) for seed in range(3)]
    line = of(summarise([*PLAIN, *worse]), "better", "context")
    assert line.pixels == pytest.approx((89.0, 1 / 3**0.5, 3))
    assert line.pixel_difference == pytest.approx((-1.0, 1 / 3**0.5, 3))
    none = [{**one, "answers": {"context": {"miou": 63.0, "pixel_accuracy": None}}} for one in worse]
    assert of(summarise([*PLAIN, *none]), "better", "context").pixels is None


def test_what_differs_is_not_compared():
    other = record("plain", 2, {"plain": 60.0}, digest="other")
    with pytest.raises(ValueError, match=r"400\.plain\.0 and .*plain\.2 were made with different settings"):
        summarise([*PLAIN[:2], other])
    for key, words in (
        ("images", "were scored on different numbers of images"),
        ("data_digest", "saw different data"),
        ("shared", "differ in more than the arm's settings"),
    ):
        plain, better = [{**one, key: "1"} for one in PLAIN], [{**one, key: "2"} for one in BETTER]
        with pytest.raises(ValueError, match=rf"plain\.0 and .*better\.0 {words} and cannot be compared"):
            summarise([*plain, *better])
        summarise([*plain, *({**one, key: None} for one in BETTER)])  # not known of all


def test_failed_jobs_take_no_part():
    lines = summarise([*PLAIN, record("plain", 3, {}, status="failed")])
    assert lines[0].miou.n == 3
    with pytest.raises(ValueError, match="no job has ended well"):
        summarise([record("plain", 3, {}, status="failed")])


@pytest.mark.parametrize("side", ["plain", "better"])
def test_a_run_that_diverged_leaves_its_cell_undecided(side):
    """On either side: what it scored says when it diverged, not how well it learns. It is named in every table."""
    ran = [*PLAIN, *BETTER]
    broken = [{**one, "status": "diverged"} if (one["arm"], one["seed"]) == (side, 1) else one for one in ran]
    lines = summarise(broken)
    assert of(lines, "better", "context").difference == of(summarise(ran), "better", "context").difference
    assert of(lines, "better", "context").verdict == ""
    (count,) = pool(lines, "plain")
    assert (count.cells, count.undecided, sum(count.verdicts.values())) == (1, 1, 0)
    assert f"| {side} (1 diverged) |" in markdown(arms_table(lines, "plain"))
    wide = markdown(wide_table(lines, "plain")).splitlines()[2]
    assert {"plain": "| 61.0, 1 diverged |", "better": "(+1.7 ± 0.3), 1 diverged |"}[side] in wide


def test_the_baseline_must_be_there():
    assert baseline_of([*PLAIN, *BETTER], "better") == "better"
    with pytest.raises(ValueError, match=r"no result of the baseline 'plain'\. There is better: --baseline NAME"):
        baseline_of(BETTER)
    other = [{**BETTER[0], "baseline": "better"}]
    with pytest.raises(ValueError, match=r"different baselines, better, plain\. Choose one"):
        baseline_of([*PLAIN, *other])


def test_one_row_for_each_answer(tmp_path):
    ran = {"data_digest": "d1", "versions": {"torch": "2.11", "device": "H200"}, "finished": "2026-11-16"}
    write_csv(tmp_path, [*(one | ran for one in BETTER), PLAIN[0], record("broken", 0, {}, status="failed")])
    with (tmp_path / "results.csv").open() as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == COLUMNS
    assert len(found) == 3 * 3 + 1 + 1
    assert found[1] == {
        **dict(study="small", baseline="plain", data="camvid", model="fcn", optimiser="adamw", rate="0.0002"),
        **dict(
            steps="400",
            batch="16",
            arm="better",
            seed="0",
            answer="context",
            own="yes",
            miou="62.0",
            mean_accuracy="70.0",
            pixel_accuracy="90.0",
        ),
        **dict(images="101", seconds="11.5", peak_mib="100.0", status="done", digest="better"),
        **dict(shared="", data_digest="d1", precision="bf16", device="H200", torch="2.11", finished="2026-11-16"),
    }
    (broken,) = (row for row in found if row["arm"] == "broken")
    assert (broken["status"], broken["answer"], broken["miou"]) == ("failed", "", "")
    assert len(rows(PLAIN)) == 3


def test_folders_are_read_together(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for one in PLAIN:
        write_record(here, one)
    write_record(there, BETTER[0])
    write_record(there, PLAIN[0])
    assert len(read_records([here, there])) == 4
    write_record(there, PLAIN[0] | {"answers": {"plain": {"miou": 60.5}}})
    with pytest.raises(ValueError, match=r"are two runs of the job camvid\.fcn\.adamw\.400\.plain\.0, with different"):
        read_records([here, there])
    write_record(there, PLAIN[0] | {"digest": "other"})
    with pytest.raises(ValueError, match=r"have the job camvid\.fcn\.adamw\.400\.plain\.0 with different settings"):
        read_records([here, there])
    assert len(read_records([here, there], {"seeds": ["1", "2"]})) == 2  # what is left out is in nobody's way
    assert len(read_records([here, there], {"arms": ["better"]})) == 1
    (there / "jobs" / "half.json").write_text("{")
    with pytest.raises(ValueError, match=r"half\.json is no record of a job"):
        read_records([there])
    with pytest.raises(FileNotFoundError, match="holds no results of a study"):
        read_records([tmp_path])


def test_what_may_have_been_meant_is_named(tmp_path):
    write_csv(tmp_path, PLAIN)
    (tmp_path / "results.csv").rename(tmp_path / "full.csv")
    (tmp_path / "full.toml").write_text("")
    (tmp_path / "iou.csv").write_text("study,class,iou\n")
    for name, words in (
        ("full", rf"Did you mean {tmp_path}/full\.csv\?"),
        ("full.toml", rf"It is the plan of a study: cacseg study run {tmp_path}/full\.toml"),
        ("", rf"Did you mean one of its files, such as {tmp_path}/full\.csv\?"),
        ("nowhere", r"there is no .*nowhere/jobs/\*\.json\.$"),
    ):
        with pytest.raises(FileNotFoundError, match=words):
            read_records([tmp_path / name])
    with pytest.raises(ValueError, match=r"It has the IoU of classes: cacseg study classes\."):
        read_records([tmp_path / "iou.csv"])
    with pytest.raises(ValueError, match=r"It has no IoU of classes: cacseg study table\."):
        read_classes([tmp_path / "full.csv"])


def test_the_csv_alone_says_the_same(tmp_path):
    whole = [*BETTER, *PLAIN, record("broken", 0, {}, status="failed")]
    write_csv(tmp_path, whole)
    read = read_records([tmp_path / "results.csv"])
    assert summarise(read) == summarise(whole)
    assert sum(one["status"] == "failed" for one in read) == 1
    write_rows(tmp_path / "again.csv", COLUMNS, rows(sorted(read, key=lambda one: one["id"])))
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "results.csv").read_text()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv is no results\.csv of a study"):
        read_records([tmp_path / "other.csv"])


def test_a_csv_keeps_apart_what_saw_different_data(tmp_path):
    """As the records do; a file from before there were such columns is read without them."""
    for folder, ran, data in (("here", PLAIN, "one"), ("there", BETTER, "other")):
        write_csv(tmp_path / folder, [one | {"data_digest": data} for one in ran])
    here, there = (tmp_path / folder / "results.csv" for folder in ("here", "there"))
    with pytest.raises(ValueError, match="saw different data and cannot be compared"):
        summarise(read_records([here, there]))
    older = [",".join(line.split(",")[:20]) for line in there.read_text().splitlines()]
    there.write_text("\n".join(older) + "\n")
    assert summarise(read_records([here, there])) == summarise([*PLAIN, *BETTER])


def test_files_that_are_not_whole_are_named(tmp_path):
    write_csv(tmp_path, [*BETTER, *PLAIN])
    whole = (tmp_path / "results.csv").read_text()
    header, *lines = whole.splitlines(keepends=True)
    bad = tmp_path / "bad.csv"
    for content, words in (
        (header, r"bad\.csv holds no results"),
        (header + lines[0] + lines[1][:40], r"bad\.csv, line 3: it must have 26 values\. Is the file cut off"),
        (header + lines[0], r"bad\.csv lacks the own answer of camvid\.fcn\.adamw\.400\.better\.0"),
        (whole.replace(",62.0,", ",nan,", 1), r"bad\.csv, line 3: a score must be finite; got nan"),
        (whole.replace(",62.0,", ",abc,", 1), r"bad\.csv, line 3: could not convert string to float: 'abc'"),
        (whole + lines[0].replace(",61.0,", ",1.0,"), r"bad\.csv, line 14: the answer 'plain' of .* has two scores"),
    ):
        bad.write_text(content)
        with pytest.raises(ValueError, match=words):
            read_records([bad])
    bad.write_bytes(b"\x89PNG\xff\x00")
    with pytest.raises(ValueError, match=r"bad\.csv is no results\.csv of a study"):
        read_records([bad])
    with pytest.raises(FileNotFoundError, match=r"there is no .*nowhere\.csv"):
        read_records([tmp_path / "nowhere.csv"])
    (tmp_path / "bom.csv").write_text(whole, encoding="utf-8-sig")
    assert len(read_records([tmp_path / "bom.csv"])) == 6


def test_records_that_are_none_are_named(tmp_path):
    write_record(tmp_path, PLAIN[0])
    path = tmp_path / "jobs" / f"{PLAIN[0]['id']}.json"
    for content, words in (
        ('{"format": "cacseg job 1"}', "it lacks id, study, .*answers"),
        (path.read_text().replace('"seed"', '"sed"'), "it lacks seed"),
        (path.read_text().replace("plain.0", "plain.7"), r"it is of the job camvid\.fcn\.adamw\.400\.plain\.7"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"plain\.0\.json is no record of a job \({words}\)\. Remove it"):
            read_records([tmp_path])
        write_record(tmp_path, PLAIN[0])
    with pytest.raises(FileNotFoundError, match=rf"Did you mean {tmp_path}"):
        read_records([tmp_path / "jobs"])


def test_tables():
    lines = summarise([*PLAIN, *BETTER])
    page = markdown(arms_table(lines, "plain")).splitlines()
    assert page[0].endswith("| seeds | mIoU | from plain | pixels | from plain | plain | context | oracle |")
    assert page[2] == "| camvid | fcn | adamw | 400 | plain | plain |  | 3 | 61.00 ± 0.58 |  | 90.00 |  | 61.00 |  |  |"
    assert page[3].startswith(
        "| camvid | fcn | adamw | 400 | better | context | ahead | 3 | 62.67 ± 0.33 | +1.67 ± 0.33 | 90.00 |"
    )
    assert markdown(pooled_table(pool(lines, "plain"))).splitlines()[2] == "| better | 1 | +1.67 | 1 | 0 | 0 | 0 | 0 |"
    assert mean_of([1.0]).error is None


def test_a_row_for_each_cell():
    long = [record(arm, 0, {"plain": 70.0}, steps=1600, own="plain") for arm in ("plain", "other")]
    page = wide_table(summarise([*PLAIN, *BETTER, *long]), "plain")
    assert page.header == ["data", "model", "optimiser", "steps", "plain", "better", "other"]
    assert page.rows == [
        ["camvid", "fcn", "adamw", "400", "61.0", "62.7 (+1.7 ± 0.3)", ""],
        ["camvid", "fcn", "adamw", "1600", "70.0", "", "70.0 (+0.0)"],
    ]


def test_a_part_of_the_results():
    records = [*PLAIN, *BETTER]
    assert part_of(records, {}) == records
    assert part_of(records, {"arms": ["plain"], "seeds": ["0", "2"]}) == [PLAIN[0], PLAIN[2]]
    assert part_of(records, {"steps": ["400"]}) == records
    with pytest.raises(ValueError, match=r"no axis 'arm'\. Did you mean 'arms'"):
        part_of(records, {"arm": ["plain"]})
    with pytest.raises(ValueError, match=r"no value of seeds '3'\. There is 0, 1, 2"):
        part_of(records, {"seeds": ["0", "3"]})


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures(format, start):
    lines = summarise([*PLAIN, *BETTER])
    assert difference_picture(lines, "plain", "50 % of $x$", format).startswith(start)
    with pytest.raises(ValueError, match="nothing to draw"):
        difference_picture(summarise(PLAIN), "plain", "none")
    with pytest.raises(ValueError, match="a picture is one of png"):
        difference_picture(lines, "plain", "none", "gif")


def test_panels_have_no_gaps():
    assert layout([("a", 200), ("a", 800), ("b", 200), ("b", 800)]) == (2, 2)
    assert layout([("a", 200), ("b", 200), ("c", 200)]) == (2, 2)
    assert layout([("a", 200), ("b", 800), ("c", 800)]) == (2, 2)
    assert layout([("a", 200), ("a", 400), ("a", 800), ("b", 200), ("c", 200)]) == (3, 2)
