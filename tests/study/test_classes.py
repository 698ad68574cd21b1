import pytest

from cacseg.study.classes import CSV, class_rows, classes_tables, read_classes, write_classes


def record(arm, seed, ious, *, status="done", steps=400):
    cell = {"study": "small", "data": "camvid", "model": "fcn", "optimiser": "adamw", "steps": steps}
    job = {**cell, "arm": arm, "seed": seed, "status": status, "id": f"{arm}.{steps}.{seed}"}
    if status == "failed":
        return job
    answers = {name: {"iou": values} for name, values in ious.items()}
    return {**job, "default_output": list(ious)[-1], "answers": answers, "class_names": ["sky", "pole", "car"]}


RECORDS = [
    record("tuned", 0, {"plain": [1.0, 2.0, 3.0], "context": [90.0, 20.0, 50.0]}),
    record("tuned", 1, {"plain": [1.0, 2.0, 3.0], "context": [91.0, 30.0, None]}),
    record("plain", 0, {"plain": [92.0, 10.0, 40.0]}),
    record("broken", 0, {}, status="failed"),
]


def test_one_row_for_each_class_that_is_there(tmp_path):
    rows = class_rows(RECORDS)
    assert len(rows) == 6 + 5 + 3
    assert [row["iou"] for row in rows if row["own"] == "yes" and row["class"] == "pole"] == [20.0, 30.0, 10.0]
    write_classes(tmp_path, RECORDS)
    read = read_classes([tmp_path / CSV])
    assert sorted(map(str, read)) == sorted(map(str, rows))
    (tmp_path / "again.csv").write_text((tmp_path / CSV).read_text())
    assert read_classes([tmp_path / CSV, tmp_path / "again.csv"]) == read  # once
    (tmp_path / "again.csv").write_text((tmp_path / CSV).read_text().replace(",20.0", ",21.0"))
    with pytest.raises(ValueError, match=r"again\.csv has other scores of camvid\.fcn\.adamw\.400\.tuned\.0 than what"):
        read_classes([tmp_path / CSV, tmp_path / "again.csv"])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv is no classes\.csv of a study: its columns must be study, data"):
        read_classes([tmp_path / "other.csv"])


def test_means_over_seeds_of_the_default_outputs_the_baseline_first():
    short, long = classes_tables(
        class_rows([*RECORDS, record("plain", 0, {"plain": [1.0, 1.0, 1.0]}, steps=800)]), "plain"
    )
    assert short.title == "IoU in percent, camvid, fcn, adamw, 400 steps"
    assert short.header == ["class", "plain", "tuned"]
    assert short.rows == [["sky", "92.0", "90.5"], ["pole", "10.0", "25.0"], ["car", "40.0", "50.0"]]
    assert long.header == ["class", "plain"]
    (compared,) = classes_tables(
        class_rows([*RECORDS, record("plain", 1, {"plain": [90.0, 14.0, 1.0]})]), "plain", differences=True
    )
    assert compared.rows == [
        ["sky", "91.0", "90.5 (-0.5 ± 1.5)"],
        ["pole", "12.0", "25.0 (+13.0 ± 3.0)"],
        ["car", "20.5", "50.0 (+10.0)"],  # one seed of tuned has it
    ]
    (fewer,) = classes_tables(class_rows(RECORDS), "plain", differences=True)
    assert fewer.rows[1] == ["pole", "10.0", "25.0 (+10.0, 1 seeds)"]
    with pytest.raises(ValueError, match="no job has ended well"):
        classes_tables(class_rows(RECORDS[3:]), "plain")
