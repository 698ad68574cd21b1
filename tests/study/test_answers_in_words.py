"""What docs/results.md says about the whole recipe of MSRC-21, and about the mean of both answers."""

import re
from collections import Counter

from cacseg.study.classes import read_classes
from cacseg.study.summary import mean_of
from study_pages import (
    CELLS,
    FCN,
    PLANNED,
    RESULTS,
    WHOLE,
    apart,
    lines_of,
    pair,
    scores,
    sign,
    words_of,
)

HALF = ("msrc21_unscaled", FCN, "adamw", 2000)


def test_the_whole_recipe_in_words():
    page = words_of("results.md")
    own = {
        arm: "plain" if arm == "plain" else "context"
        for arm in ("plain", "evened", "paper", "released", "centred", "tuned")
    }
    whole, half = (
        {arm: scores(name, cell, arm, answer) for arm, answer in own.items()}
        for name, cell in (("recipe", WHOLE), ("unscaled", HALF))
    )
    gains = {arm: pair(apart(whole[arm], whole["plain"]), 2) for arm in own}
    (bullet,) = re.findall(r"- \*\*The whole recipe of MSRC-21.*?- \*\*", page)
    for words in (
        f"+{gains['centred']} beside {mean_of(list(whole['plain'].values())).value:.1f}",
        f"`evened` has {gains['evened']}, `paper` {gains['paper']} (but +",
        f"`released` {gains['released']} (",
    ):
        assert words in bullet
    later = {arm: pair(apart(whole[arm], half[arm])) for arm in own}
    words = "From 2000 to 4000 steps plain gains {plain}, `centred` {centred}, `paper` {paper}, `evened` {evened} and"
    assert f"{words.format(**later)} `released` {later['released'].replace('-0.0', '0.0')}" in page
    loses = later["tuned"].removeprefix("-")
    assert f"`tuned`, of which nothing was expected here, *loses* {loses}." in page
    assert later["tuned"] == f"-{loses}"
    assert f"plain gains {later['plain']}, and `tuned` loses {loses}." in page
    readme = words_of("../README.md")
    assert f"plain gains {later['plain']} and the default loses {loses}." in readme
    beside = {arm: apart(whole["centred"], whole[arm]) for arm in own}
    words = f"`centred` is {pair(beside['evened'])} above `evened` (in each seed: 0.5, 0.9 and 2.5), "
    assert f"{words}{pair(beside['released'])} above `released` and {pair(beside['paper'])} above `paper`" in page
    each = sorted(whole["centred"][seed] - whole["evened"][seed] for seed in PLANNED)
    assert [f"{one:.1f}" for one in each] == ["0.5", "0.9", "2.5"]
    assert f"and not by much ({pair(beside['evened'])})" in page

    plain = {arm: scores("recipe", WHOLE, arm, "plain") for arm in ("paper", "released", "centred")}
    own = pair(apart(whole["centred"], plain["centred"]))
    words = f"context answers are {own} above the plain answers of the same models,"
    assert f"{words} and those {pair(apart(plain['centred'], whole['plain']))} above plain" in page
    lower = [pair(apart(plain[arm], whole[arm])) for arm in ("paper", "released")]
    assert "*below* the plain ones of the same models, by {} and {},".format(*lower) in page
    means = {arm: apart(scores("recipe", WHOLE, arm, "mean"), whole["plain"]) for arm in ("paper", "released")}
    assert f'(but +{pair(means["paper"], 2)} with `answer="mean"`)' in bullet
    assert means["released"].value < 0 < means["paper"].value
    said = pair(means["paper"]), pair(means["released"]).lstrip("-")
    assert "is above either: {} above plain and {} below it".format(*said) in page
    fixed = scores("unscaled", HALF, "fixed", "plain")
    said = [apart(fixed, half["plain"]), apart(scores("unscaled", HALF, "fixed", "context"), fixed)]
    assert "its plain answers gained {}, and its others {} beside them".format(*map(pair, said)) in page

    rows = [row for row in read_classes([RESULTS / "classes" / "recipe.csv"]) if row["own"] == "yes"]
    by_class = {}
    for row in rows:
        by_class.setdefault((row["arm"], row["class"]), {})[row["seed"]] = row["iou"]
    names = list(dict.fromkeys(row["class"] for row in rows))
    gained = {one: apart(by_class["centred", one], by_class["plain", one]) for one in names}
    up, down = ([one for one in names if sign(gained[one]) == way] for way in (1, -1))
    words = f"Means rise in {sum(one.value > 0 for one in gained.values())} of {len(names)} classes, by more than two"
    assert f"{words} standard errors in six ({', '.join(up)}), and fall by as much in two" in page
    assert (down, f"(tree, by {-gained['tree'].value:.1f}, and bicycle)" in page) == (["tree", "bicycle"], True)


def test_the_mean_of_both_answers_in_words():
    page = words_of("results.md")

    def both(arm):
        found = {}
        for name in CELLS:
            lines = [line for line in lines_of(name, PLANNED) if line.arm == arm]
            own = {line.cell: line for line in lines if line.own and line.verdict}
            for line in lines:
                if line.answer == "mean" and line.cell in own:
                    found.setdefault(line.cell, (own[line.cell], line))
        return found

    found = both("centred")
    points = [mean.miou.value - own.miou.value for own, mean in found.values()]
    pixels = {cell: mean.pixel_difference.value - own.pixel_difference.value for cell, (own, mean) in found.items()}
    higher, lower = sum(one > 0 for one in points), sum(one < 0 for one in points)
    words = f"Over the {len(found)} cells with `centred`, that has the higher mIoU in {higher} cells and the lower"
    words += f" in {lower}, {-mean_of(points).value:.1f} lower on average, and the higher pixel accuracy in"
    words += (
        f" {sum(one > 0 for one in pixels.values())}, {mean_of(list(pixels.values())).value:.1f} higher on average."
    )
    counts = Counter(mean.verdict for _, mean in found.values())
    words += (
        f" It is ahead of plain in {counts['ahead']} cells, above in {counts['above']} and even in {counts['even']}."
    )
    assert words in page
    assert counts["behind"] == 0
    for arm, words in (
        ("released", "it has the higher mIoU in {} of {} cells;"),
        ("paper", "with `paper` in {} of {},"),
    ):
        pairs = both(arm).values()
        assert words.format(sum(mean.miou.value > own.miou.value for own, mean in pairs), len(pairs)) in page
    long = {cell: one for cell, one in pixels.items() if cell.steps >= 1000}
    camvid = [one for cell, one in long.items() if "camvid" in cell.data]
    msrc21 = [one for cell, one in long.items() if "camvid" not in cell.data]
    assert (len(camvid), len(msrc21), sum(one < 0 for one in msrc21)) == (4, 7, 6)
    words = f"in the four of CamVid, by {min(camvid):.1f} to {max(camvid):.1f}, and in six of the seven of MSRC-21"
    assert f"{words} the lower, by up to {-min(msrc21):.1f}." in page
