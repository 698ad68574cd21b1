"""What the pages say of cells that were run when all was decided is what the records say."""

from collections import Counter

import pytest

from cacseg.study.summary import mean_of
from study_pages import (
    FCN,
    NUMBERS,
    SIX,
    WHOLE,
    apart,
    line_of,
    lines_of,
    pair,
    scores,
    signed_pair,
    told,
    words_of,
)

FCN_LONG = ("camvid_held_out", FCN, "adamw", 4000)
OCRNET = ("camvid_held_out", "ocrnet_mobilenetv2", "adamw", 1000)
OCRNET_MSRC = ("msrc21_unscaled", "ocrnet_mobilenetv2", "adamw", 2000)
UPERNET = ("msrc21_unscaled", "upernet_mobilenetv2", "adamw", 500)


def own(cell):
    return line_of("tuned", "confirm", cell, "plain")


def plain_of(cell):
    return scores("confirm", cell, "plain", "plain")


def mean_plain(cell):
    return mean_of(list(plain_of(cell).values())).value


@pytest.fixture(scope="module")
def results():
    return words_of("results.md")


def test_the_verdicts(results):
    found = {line.cell: line for line in lines_of("confirm") if line.own and line.arm == "tuned"}
    assert set(found) == {FCN_LONG, OCRNET, OCRNET_MSRC, UPERNET}
    assert all(line.difference.n == 3 for line in found.values())
    verdicts = Counter(line.verdict for line in found.values())
    assert verdicts == {"ahead": 1, "above": 1, "even": 2}
    assert f"is missed in {NUMBERS[4 - verdicts['ahead']]} of the four" in results
    long = found[FCN_LONG]
    words = f"`tuned` 2.0 above plain | {pair(long.difference)}, {long.verdict}; {told(long.pixel_difference, -1)} less"
    assert f"{words} pixel accuracy |" in results
    ocrnet = found[OCRNET]
    plain = mean_plain(OCRNET)
    assert f"ahead | plain {plain:.1f}; {pair(ocrnet.difference)}, {ocrnet.verdict} |" in results
    for cell in (OCRNET_MSRC, UPERNET):
        plain = mean_plain(cell)
        line = found[cell]
        assert f"ahead | plain **{plain:.1f}**; {signed_pair(line.difference)}, {line.verdict} |" in results


def test_in_short(results):
    heads, upernet = (signed_pair(own(cell).difference) for cell in (OCRNET_MSRC, UPERNET))
    ocrnet, long = (pair(own(cell).difference) for cell in (OCRNET, FCN_LONG))
    before = line_of("tuned", "ends", ("camvid_held_out", FCN, "adamw", 1000), "plain").difference.value
    assert f"{long} of {before:.1f} are left" in results
    assert f"gains {ocrnet} on" in results
    assert f"{heads} and {upernet} from it" in results


def test_how_strong_plain_is(results):
    first, second = (mean_plain(cell) for cell in (OCRNET_MSRC, UPERNET))
    assert f"where plain has {first:.1f} with OCRNet and {second:.1f} with UPerNet and not 80" in results
    assert f"wrong by {first - 79:.0f} and {second - 70:.0f} points" in results
    whole = mean_of(list(scores("recipe", WHOLE, "plain", "plain").values())).value
    training = words_of("training.md")
    assert f"has {second:.1f} on MSRC-21, where" in training
    assert f"with the first blocks dilated, {whole:.1f} after 4000" in training
    fcn = mean_of(list(scores("ends", ("camvid_held_out", FCN, "adamw", 1000), "plain", "plain").values())).value
    assert f"beside a plain model that is {mean_plain(OCRNET) - fcn:.1f} stronger" in results


def test_within_one_model(results):
    for cell, words in (
        (
            UPERNET,
            "Within UPerNet context answers are {} above the plain answers of the same models, and these {} below",
        ),
        (OCRNET_MSRC, "With OCRNet on MSRC-21 it is {} and {},"),
        (OCRNET, "on CamVid {} and +{},"),
        (FCN_LONG, "and with FCN after 4000 steps {} and +{}."),
    ):
        context, plain = (scores("confirm", cell, "tuned", answer) for answer in ("context", "plain"))
        rest = apart(plain, plain_of(cell))
        said = told(rest, -1) if cell == UPERNET else pair(rest)
        assert words.format(pair(apart(context, plain)), said) in results


def test_the_control_in_the_whole_recipe(results):
    search = words_of("search.md")
    control, plain, tuned = (
        scores("recipe", WHOLE, arm, "plain" if arm == "plain" else "context")
        for arm in ("plain_overlap", "plain", "tuned")
    )
    pixels = line_of("plain_overlap", "recipe", WHOLE, "plain").pixel_difference
    said = told(apart(control, plain), -1)
    words = f"is {said} below plain with {-pixels.value:.2f} ± {pixels.error:.2f} less pixel accuracy, and"
    assert f"{words} {told(apart(control, tuned), -1)} below `tuned` at equal seeds" in results
    assert f"`plain_overlap` in the whole recipe: {said} below plain" in search


def test_six_seeds_where_three_were_even():
    cell = ("camvid", "deeplabv3plus_mobilenetv2", "adamw", 200)
    line = line_of("tuned", "presets", cell, "plain", SIX)
    assert (line.verdict, line.difference.n) == ("ahead", 6)
    beside = line_of("tuned", "presets", cell, "centred", SIX).difference
    said = f"with six it is {pair(line.difference)} above plain, ahead (expected: 4.5, ahead), and {pair(beside)} from"
    assert f"{said} `centred`." in words_of("search.md")
