"""What the pages about results say of the whole recipe of MSRC-21, and of the mean of both answers."""

import re
from collections import Counter

from cacseg.study.summary import mean_of
from study_pages import (
    CELLS,
    HALF,
    PLANNED,
    RESULT_PAGES,
    WHOLE,
    apart,
    lines_of,
    pair,
    scores,
    words_of,
)


def test_the_whole_recipe_in_words():
    page = words_of(*RESULT_PAGES)
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
    later = {arm: pair(apart(whole[arm], half[arm])) for arm in ("paper", "evened", "released")}
    words = "`paper` {paper}, `evened` {evened} and".format(**later)
    assert f"{words} `released` {later['released'].replace('-0.0', '0.0')} (three)" in page
    beside = {arm: apart(whole["centred"], whole[arm]) for arm in own}
    words = f"`centred` is {pair(beside['evened'])} above `evened` (in each seed: 0.5, 0.9 and 2.5), "
    assert f"{words}{pair(beside['released'])} above `released` and {pair(beside['paper'])} above `paper`" in page
    each = sorted(whole["centred"][seed] - whole["evened"][seed] for seed in PLANNED)
    assert [f"{one:.1f}" for one in each] == ["0.5", "0.9", "2.5"]
    assert f"and not by much ({pair(beside['evened'])})" in page

    plain = {arm: scores("recipe", WHOLE, arm, "plain") for arm in ("paper", "released")}
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


def test_the_mean_of_both_answers_in_words():
    page = words_of(*RESULT_PAGES)

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
