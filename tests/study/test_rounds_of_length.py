"""Rounds twenty-five and twenty-six of docs/search.md, and what follows from them, are what the records say."""

import pytest

from cacseg.study.classes import read_classes
from cacseg.study.summary import mean_of
from study_pages import (
    ADAPTING,
    HALF,
    PLANNED,
    RESULTS,
    SCENES,
    SIX,
    WHOLE,
    adapting,
    apart,
    own,
    pair,
    rows_of,
    scores,
    sign,
    signed_pair,
    told,
    words_of,
)

LATER = SIX[len(PLANNED) :]
LENGTHS = {"recipe": WHOLE, "unscaled": HALF}  # the same cell, by the file that has it


def whole(arm, seeds=SIX, measure="miou"):
    return own("recipe", WHOLE, arm, seeds, measure)


def length_rows():
    for seeds in (PLANNED, LATER, SIX):
        plain, centred, tuned = (whole(arm, seeds) for arm in ("plain", "centred", "tuned"))
        pixels = apart(*(whole(arm, seeds, "pixel_accuracy") for arm in ("tuned", "centred")))
        found = apart(centred, plain), apart(tuned, plain), apart(tuned, centred), pixels
        yield f"| {seeds[0]} to {seeds[-1]} | {' | '.join(map(signed_pair, found))} |"


def adapting_rows():
    for name, other, cell in ADAPTING + SCENES:
        plain, fixed, centred = (own(name, cell, arm) for arm in ("plain", "fixed", "centred"))
        still, tuned, control = (
            own(file, cell, arm) for file, arm in ((name, "fixed_overlap"), (other, "tuned"), (other, "plain_overlap"))
        )
        beside = adapting(name, other, cell), adapting(name, other, cell, "pixel_accuracy")
        found = [apart(still, plain), apart(tuned, plain), *beside, apart(still, control)]
        yield f"| {' | '.join([*map(str, cell), *map(signed_pair, [*found, apart(centred, fixed)])])} |"


@pytest.mark.parametrize(
    ("page", "name", "rows"), [("search.md", "twentyfive", length_rows), ("search.md", "twentysix", adapting_rows)]
)
def test_the_rows_of_a_table_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())


def test_the_length_of_training_in_words():
    results, search, training = map(words_of, ("results.md", "search.md", "training.md"))
    plain, centred, tuned = (whole(arm) for arm in ("plain", "centred", "tuned"))
    from_plain = [signed_pair(apart(one, plain)) for one in (tuned, centred)]
    pixels = told(apart(*(whole(arm, measure="pixel_accuracy") for arm in ("tuned", "plain"))), -1)
    assert f"4000 steps and six seeds, it is {from_plain[0]} from plain, with {pixels} less pixel accuracy" in results
    assert f"pixel accuracy; `centred` has {from_plain[1]} there." in results
    half = {arm: own("unscaled", HALF, arm, SIX) for arm in ("plain", "centred", "tuned")}
    after_half = apart(half["tuned"], half["plain"])
    late = [one.lstrip("+") for one in from_plain]
    beside = told(apart(half["centred"], half["plain"]), 1)
    words = (
        f"it is {told(after_half, 1)} with half of them and {late[0]} with all, and with `--set model.preset=centred`"
    )
    assert f"{words} too {beside} and {late[1]} (six seeds each;" in training
    three = [signed_pair(apart(whole(arm, PLANNED), whole("plain", PLANNED))) for arm in ("tuned", "centred")]
    assert "With the three seeds of the tables they were {} and {}: chance.".format(*three) in results

    later = {arm: apart(whole(arm), half[arm]) for arm in half}
    words = f"plain gains {pair(later['plain'])}, `centred` {pair(later['centred'])}, and `tuned` loses"
    assert f"{words} {told(later['tuned'], -1)}." in results
    words = f"plain gains {pair(later['plain'])}, `centred` {pair(later['centred'])} and `tuned` {pair(later['tuned'])}"
    assert f"{words} (six seeds)" in results
    new = [told(apart(whole("tuned", LATER), whole(arm, LATER)), 1) for arm in ("plain", "centred")]
    assert "in the next three `tuned` is {} above plain and {} above `centred`".format(*new) in results
    same = pair(apart(tuned, centred)).lstrip("-")
    assert same.startswith("0.0")
    for page, words in (
        (results, f"as good as each other ({same}), and neither can be told from plain"),
        (results, f"with six seeds none, {same}:"),
        (search, f"{same} below, and {from_plain[0]} from plain"),
    ):
        assert words in page
    assert not any(sign(apart(one, plain)) for one in (centred, tuned))
    assert f"{told(apart(tuned, centred), -1, 2)} is not below in any sense" in search


def test_what_is_lost_with_the_length_in_words():
    page, arms = words_of("results.md"), ("centred", "tuned")
    plain = {name: own(name, cell, "plain", SIX) for name, cell in LENGTHS.items()}
    adapted, answers = (  # of the same models the context answers, and the plain ones
        {(name, arm): scores(name, cell, arm, answer, SIX) for name, cell in LENGTHS.items() for arm in arms}
        for answer in ("context", "plain")
    )
    within = {key: apart(adapted[key], answers[key]) for key in adapted}
    shared = {(name, arm): apart(answers[name, arm], plain[name]) for name, arm in answers}
    at_end, at_half = ([pair(within[name, arm]) for arm in arms] for name in LENGTHS)
    words = "context answers are {} (`centred`) and {} (`tuned`) above the plain answers of the same models; after half"
    assert words.format(*at_end) in page
    assert "of the same models; after half of the steps it was {} and {}.".format(*at_half) in page
    below = [told(shared["recipe", arm], -1) for arm in arms]
    above = [told(shared["unscaled", arm], 1) for arm in arms]
    words = "are {} and {} *below* those of a plain model, where after half of the steps they were {} and {} above"
    assert words.format(*below, *above) in page

    def lost(of):
        """What `tuned` loses beside plain from half of the steps on."""
        end, half = ({seed: of[name, "tuned"][seed] - plain[name][seed] for seed in SIX} for name in LENGTHS)
        return told(apart(half, end), 1)

    assert f"of the {lost(adapted)} that `tuned` loses beside plain {lost(answers)} lie there" in page
    assert f"do not ({pair(apart(*(answers[name, 'tuned'] for name in LENGTHS)))})" in page


def test_the_classes_of_the_whole_recipe_in_words():
    page = words_of("results.md")
    by_class = {}
    for row in read_classes([RESULTS / "classes" / "recipe.csv"]):
        if row["own"] == "yes":
            by_class.setdefault((row["arm"], row["class"]), {})[row["seed"]] = row["iou"]
    names = list(dict.fromkeys(one for _, one in by_class))
    said = {}
    for arm in ("centred", "tuned"):
        gained = {one: apart(by_class[arm, one], by_class["plain", one]) for one in names}
        assert {one.n for one in gained.values()} == {len(SIX)}
        said[arm] = [sum(one.value > 0 for one in gained.values())]
        said[arm] += [", ".join(one for one in names if sign(gained[one]) == way) for way in (1, -1)]
        if arm == "centred":
            chairs = gained["chair"].value
    rise, up, down = said["centred"]
    words = (
        f"With `centred` the means of {rise} of {len(names)} classes rise (six seeds), by more than two standard errors"
    )
    assert f"{words} in five ({up}; chairs by {chairs:.1f}), and fall by as much in two ({down});" in page
    rise, up, down = said["tuned"]
    assert f"with `tuned` of {rise}, in five ({up}) and in five ({down})." in page


def test_the_adapting_in_words():
    results, search = map(words_of, ("results.md", "search.md"))
    held_out, scaled, unscaled = found = [adapting(*one) for one in ADAPTING]
    words = f"{signed_pair(scaled)} on MSRC-21, {signed_pair(unscaled)} where its images keep their size and"
    assert f"{words} {signed_pair(held_out)} on CamVid's held-out images, of gains of" in results
    gains = [apart(own(other, cell, "tuned"), own(name, cell, "plain")).value for name, other, cell in ADAPTING]
    assert "of gains of {1:.1f}, {2:.1f} and {0:.1f};".format(*gains) in results
    pixels = [adapting(*one, "pixel_accuracy") for one in ADAPTING]
    assert "in pixel accuracy {1}, {2} and {0}.".format(*map(signed_pair, pixels)) in results
    assert not any(sign(one) for one in found)
    for arm, words in (
        ("tuned", "context answers of `tuned` are {1}, {2} and {0} above the plain answers"),
        ("fixed_overlap", "by a cosine that learns with an oracle, it is {1}, {2} and {0},"),
    ):
        files = [(other if arm == "tuned" else name, cell) for name, other, cell in ADAPTING]
        within = [pair(apart(own(file, cell, arm), scores(file, cell, arm, "plain"))) for file, cell in files]
        assert words.format(*within) in results
    assert f"`fixed_overlap` as `tuned` | {told(held_out, -1)} above |" in search
    assert f"| MSRC-21: 0.7 below | {told(scaled, 1)} below |" in search
    assert f"| MSRC-21 unscaled: 0.3 below | {told(unscaled, 1)} below |" in search
    over, more = (mean_of([one.value for one in lines]) for lines in (found, pixels))
    assert f"adapting is worth {pair(over)}, the error being that of the cells' means, with {pair(more)} more" in search
    beside = mean_of(
        [
            apart(own(name, cell, "fixed_overlap"), own(other, cell, "plain_overlap")).value
            for name, other, cell in ADAPTING
        ]
    )
    assert f"`fixed_overlap` is {pair(beside)} above `plain_overlap`" in search
    assert [sign(one) for one in pixels] == [0, 1, 1]
    assert f"three seeds show on MSRC-21 ({pair(pixels[1])}, and {pair(pixels[2])} unscaled)" in search
    assert f"on average it is {pair(over)}, and in pixels it is shown in both of MSRC-21" in results


def test_the_adapting_on_generated_scenes_in_words():
    results, search = map(words_of, ("results.md", "search.md"))
    found = [adapting(*one) for one in SCENES]
    words = " and ".join(told(one, 1) for one in found)
    assert f"| generated scenes: two points below at either rate | {words} below |" in search
    assert f"On generated scenes, where it pays by design, it is {words}" in results
    gains = [apart(own(name, cell, "tuned"), own(name, cell, "plain")).value for name, _, cell in SCENES]
    assert f"it is {words} of gains of {gains[0]:.1f} and {gains[1]:.1f}" in results
    assert [sign(one) for one in found] == [0, 1]
