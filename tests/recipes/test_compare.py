"""Plans of comparisons, and what may be mixed in one folder."""

import json

import pytest

import compare_runs
from cacseg.recipes.compare import (
    ARMS,
    RUNS,
    Run,
    check_runs,
    choose_arms,
    describe,
    is_finished,
    join_plan,
    make_plan,
    naming_file,
    read_comparison,
    write_comparison,
)
from cacseg.recipes.config import change
from cacseg.recipes.files import write_config
from cacseg.recipes.named import find_recipe
from cacseg.recipes.pool import Machine, choose_machine, last_step, train_runs
from cacseg.recipes.results import read_results

BASE = find_recipe("synthetic")
TWO = choose_arms("plain,tuned")


def finish(folder, run, **values):
    """A folder as a finished run leaves it."""
    path = folder / RUNS / run.name
    path.mkdir(parents=True)
    write_config(path, "synthetic", run.config, {"preset": run.config.model.preset, "classifier": "plain"})
    (path / "scores.json").write_text(json.dumps(compare_runs.scores(steps=run.steps, **values)))
    return path


def comparison_in(folder, plan, arms=TWO, base=BASE, **values):
    for run in plan:
        finish(folder, run, **values)
    write_comparison(folder, describe("synthetic", base, arms))
    return folder


def test_runs_are_paired_by_seed_and_differ_in_the_arm_alone():
    plan = make_plan(BASE, ARMS, [0, 5], [500, 2000])
    assert len(plan) == len({run.name for run in plan}) == len(ARMS) * 2 * 2
    assert [run.name for run in plan[:2]] == ["plain-2000-0", "overlap-2000-0"]
    assert [run.seed for run in plan] == sorted(run.seed for run in plan)
    for run in plan:
        config = run.config
        assert (config.schedule.steps, config.training.seed) == (run.steps, run.seed)
        assert (config.training.devices, config.training.nodes) == (1, 1)
        without = config.model_copy(update={"model": plan[0].config.model})
        beside = next(one for one in plan if one[1:3] == run[1:3])
        assert without == beside.config.model_copy(update={"model": plan[0].config.model})


def test_the_named_arms():
    models = {run.arm: run.config.model for run in make_plan(BASE, ARMS, [0])}
    assert [models[name].classifier for name in ("plain", "overlap")] == ["plain", "plain"]
    assert [models[name].overlap_weight for name in ("plain", "overlap", "tuned")] == [None, 3.0, None]
    for preset in ("tuned", "released", "paper"):
        assert (models[preset].classifier, models[preset].preset) == ("context", preset)
    assert models["unadapted"].classifier_arguments == {"context_design": "weight"}
    check_runs([run for run in make_plan(BASE, ARMS, [0]) if run.arm in ("overlap", "unadapted")])


def test_a_shorter_schedule():
    base = change(BASE, {"schedule.steps": 10_000, "schedule.warmup_steps": 200})
    schedules = {run.steps: run.config for run in make_plan(base, {"plain": ARMS["plain"]}, [0], [500, 2000, 10_000])}
    assert [schedules[steps].schedule.warmup_steps for steps in (500, 2000, 10_000)] == [50, 200, 200]
    assert [schedules[steps].training.validate_every for steps in (500, 2000, 10_000)] == [125, 500, 2500]
    (run,) = make_plan(base, {"plain": ARMS["plain"]}, [0], [500], {"schedule.warmup_steps": 7})
    assert run.config.schedule.warmup_steps == 7


def test_arms_of_the_command_line_and_of_a_file(tmp_path):
    added = choose_arms("plain", ["slow:tuned,optimiser.rate=1e-4,data.crop=64,96", "mine:model.preset=paper"])
    assert added["slow"] == {**ARMS["tuned"], "optimiser.rate": 1e-4, "data.crop": [64, 96]}
    assert added["mine"] == {"model.preset": "paper"}
    file = tmp_path / "arms.toml"
    file.write_text('[plain]\n[mine]\nmodel.preset = "paper"\n"optimiser.rate" = 0.1\n')
    assert choose_arms(str(file)) == {"plain": ARMS["plain"], "mine": {"model.preset": "paper", "optimiser.rate": 0.1}}


@pytest.mark.parametrize(
    ("names", "more", "words"),
    [
        ("plain,tunde", [], "Did you mean 'tuned'"),
        ("plain", ["mine"], "NAME:KEY=VALUE"),
        ("plain", ["plain:model.preset=paper"], "new name"),
        ("plain", ["a/b:model.preset=paper"], "letters"),
        ("", [], "needs an arm"),
    ],
)
def test_wrong_arms(names, more, words):
    with pytest.raises(ValueError, match=words):
        choose_arms(names, more)


@pytest.mark.parametrize(
    ("arms", "settings", "words"),
    [
        (TWO, {"schedule.steps": 5}, "use --steps"),
        (TWO, {"model.preset": "paper"}, r"\(tuned\)"),
        ({"one": {}, "two": {}}, {}, "one and two are the same"),
        ({"one": {"model.presett": 1}}, {}, "arm one: .*model.preset"),
    ],
)
def test_wrong_plans(arms, settings, words):
    with pytest.raises(ValueError, match=words):
        make_plan(BASE, arms, [0], (), settings)


def test_what_all_runs_would_meet_is_found_before_the_first(tmp_path):
    base = change(BASE, {"data.crop": 999})
    with pytest.raises(ValueError, match=r"crop.*999") as error:
        check_runs(make_plan(base, TWO, [0]))
    assert "plain" not in str(error.value)  # all arms share the data
    with pytest.raises(ValueError, match=r"arm wide: .*crop.*999"):
        check_runs(make_plan(BASE, {**TWO, "wide": {"model.classifier": "plain", "data.crop": 999}}, [0]))
    with pytest.raises(ValueError, match=r"arm one: .*'design_z' .*Did you mean 'design_"):
        check_runs([make_plan(BASE, {"one": {"model.variant": "design_z"}}, [0])[0]])
    with pytest.raises(ValueError, match=r"with model\.classifier=plain; got 'loss_a'"):
        check_runs(make_plan(BASE, {"one": {"model.variant": "loss_a", "model.classifier": "plain"}}, [0]))


def test_other_settings_are_never_mixed(tmp_path):
    plan = make_plan(BASE, TWO, [0])
    comparison_in(tmp_path, plan)
    again = describe("synthetic", BASE, TWO)
    assert join_plan(tmp_path, again, make_plan(BASE, TWO, [0, 1])) == again
    with pytest.raises(ValueError, match=r"optimiser.rate was 0.001, now 0.1"):
        join_plan(tmp_path, again, make_plan(BASE, TWO, [1], (), {"optimiser.rate": 0.1}))
    with pytest.raises(ValueError, match=r"training.batch was 8, now 4"):  # another arm beside the same runs
        join_plan(tmp_path, again, make_plan(BASE, choose_arms("paper"), [0], (), {"training.batch": 4}))
    with pytest.raises(ValueError, match=r"model.pretrained was False, now True"):
        join_plan(tmp_path, again, make_plan(BASE, TWO, [1], (), {"model.pretrained": True}))
    other = change(BASE, {"model.backbone": "mobilenetv2_100"})
    with pytest.raises(ValueError, match=r"on the model 'fcn on mobilenetv2_035'; got 'fcn on mobilenetv2_100'"):
        join_plan(tmp_path, describe("synthetic", other, TWO), make_plan(other, TWO, [0]))
    more = {**choose_arms("paper"), **TWO}
    assert list(join_plan(tmp_path, describe("synthetic", BASE, choose_arms("paper")), plan).arms) == list(more)


def test_folders_of_several_machines_are_joined(tmp_path):
    plan = make_plan(BASE, TWO, [0, 1])
    first = comparison_in(tmp_path / "a", plan[:2])
    second = comparison_in(tmp_path / "b", plan[1:])  # has a run of the first as well
    found = read_results([first, second])
    assert list(found.results["arm"]) == ["plain", "plain", "tuned", "tuned"]
    assert list(found.results["seed"]) == [0, 1, 0, 1]
    assert list(found.results["mean_iou"]) == [37.5] * 4
    assert list(found.classes["labelled"][:2]) == [99.0, 1.0]
    assert found.arms == ["plain", "tuned"]
    with pytest.raises(ValueError, match=r"a.runs.plain-400-0.*c.runs.plain-400-0"):
        read_results([first, comparison_in(tmp_path / "c", plan[:1], iou=(0.1, 0.2))])
    with pytest.raises(ValueError, match="different images"):
        read_results([first, comparison_in(tmp_path / "d", plan[2:], labelled=(98, 2))])
    changed = comparison_in(tmp_path / "e", make_plan(BASE, TWO, [1], (), {"optimiser.rate": 0.5}))
    with pytest.raises(ValueError, match=r"optimiser.rate was 0.001, now 0.5"):
        read_results([first, changed])
    other = change(BASE, {"model.name": "upernet"})  # compared on its own
    both = read_results([first, comparison_in(tmp_path / "f", make_plan(other, TWO, [0]), base=other)])
    assert sorted(set(both.results["model"])) == ["fcn on mobilenetv2_035", "upernet on mobilenetv2_035"]


def test_unfinished_runs_take_no_part(tmp_path):
    plan = make_plan(BASE, TWO, [0])
    comparison_in(tmp_path, plan[:1])
    path = finish(tmp_path, plan[1], finished=False)
    assert not is_finished(path)
    found = read_results([tmp_path])
    assert (found.arms, found.unfinished) == (["plain"], [str(path)])


def test_no_comparison(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"comparison\.json"):
        read_results([tmp_path])


def test_the_threads_do_not_depend_on_what_is_left():
    assert choose_machine("cpu", None, 6) == ((), 1, choose_machine("cpu", 1, 1).threads)
    assert choose_machine("cpu", 4, 2).jobs == 2
    with pytest.raises(ValueError, match="--devices must be"):
        choose_machine("0,0", None, 6)


def test_steps_are_read_from_a_file_that_is_being_written(tmp_path):
    assert last_step(tmp_path) == 0
    (tmp_path / "metrics.csv").write_text("step,loss\n10,0.5\n20,0.4\n30")
    assert last_step(tmp_path) == 20
    rows = "".join(f"{step},0.4022593526190782\n" for step in range(100, 500))
    for cut in range(25):  # wherever the part that is read begins
        (tmp_path / "metrics.csv").write_text(f"step,loss\n{'1' * cut},0\n{rows}")
        assert last_step(tmp_path) == 499


def test_a_run_is_named_after_its_folder():
    assert Run("tuned", 500, 3, BASE).name == "tuned-500-3"


@pytest.mark.parametrize("content", [b"a=" + b"[" * 100_000, b"\xff\xfe", "[pl\u00e4in]".encode("latin-1"), b"[plain"])
def test_a_damaged_file_of_arms(tmp_path, content):
    (tmp_path / "arms.toml").write_bytes(content)
    with pytest.raises(ValueError, match=r"arms\.toml is no TOML"):
        choose_arms(str(tmp_path / "arms.toml"))


@pytest.mark.parametrize("text", ["[nothing]\n", '["a b"]\nx = 1\n', '[wide]\n"model.nothing" = 1\n', ""])
def test_errors_of_arms_name_their_file(tmp_path, text):
    path = tmp_path / "arms.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"arms\.toml: .*arm"), naming_file(str(path)):
        make_plan(BASE, choose_arms(str(path)), (0,), (4,), {})
    with pytest.raises(ValueError, match=r"^there is no arm"), naming_file("nothing"):
        choose_arms("nothing")


def test_a_file_of_arms_may_begin_with_a_mark(tmp_path):
    (tmp_path / "arms.toml").write_text("[plain]\n", encoding="utf-8-sig")
    assert choose_arms(str(tmp_path / "arms.toml")) == {"plain": ARMS["plain"]}


@pytest.mark.parametrize(
    "change",
    [{"arms": []}, {"arms": {"plain": 5}}, {"arms": {"../x": {}}}, {"data": None}, {"model": "\ud800"}, {"more": 1}],
)
def test_a_damaged_comparison(tmp_path, change):
    content = {"format": "cacseg comparison 1", **describe("synthetic", BASE, TWO)._asdict()}
    for text in (json.dumps({**content, **change}), "[" * 100_000, "[]", ""):
        (tmp_path / "comparison.json").write_text(text)
        with pytest.raises(ValueError, match=r"comparison\.json cannot be read"):
            read_comparison(tmp_path)


def test_a_comparison_without_the_arm_of_a_run(tmp_path):
    comparison_in(tmp_path, make_plan(BASE, TWO, [0]), arms=choose_arms("plain"))
    with pytest.raises(ValueError, match=r"comparison\.json must have the arms of all runs; .*tuned-400-0"):
        read_results([tmp_path])


def test_damaged_scores_leave_a_run_unfinished(tmp_path):
    run = make_plan(BASE, TWO, [0])[0]
    path = finish(tmp_path, run)
    assert is_finished(path)
    for content in ("[" * 100_000, '{"finished": true}', ""):
        (path / "scores.json").write_text(content)
        assert not is_finished(path)


def test_a_comparison_whose_folder_was_removed_starts_no_more_runs(tmp_path):
    plan, ignore = make_plan(BASE, TWO, [0]), lambda *_: None
    with pytest.raises(FileNotFoundError, match="gone was removed while something ran in it"):
        train_runs(plan, tmp_path / "gone", Machine((), 1, 1), recipe="synthetic", progress=ignore, ended=ignore)
    assert not (tmp_path / "gone").exists()
