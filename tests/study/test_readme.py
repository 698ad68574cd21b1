"""What the README says of the study is what the records say."""

from collections import Counter

import pytest

from cacseg.study.summary import mean_of
from study_pages import (
    ADAPTING,
    CELLS,
    FCN,
    HALF,
    NEAR,
    NUMBERS,
    PLANNED,
    SCENES,
    SIX,
    WHOLE,
    adapting,
    apart,
    line_of,
    lines_of,
    own_lines,
    own_of,
    pair,
    rows_of,
    scores,
    signed_pair,
    words_of,
)
from study_strong import BEFORE, HELD_OUT, MSRC, UPERNET, before, beside, of, over_all, training_rows

SHORT = ("camvid", FCN, "adamw", 800)
LONG_HELD_OUT = ("camvid_held_out", FCN, "adamw", 4000)


def gains():
    """The table: mIoU, and its difference at equal seeds."""
    cells = {
        "CamVid, validation images, short": ("presets", SHORT),
        "CamVid, validation images": ("full", ("camvid", FCN, "adamw", 2000)),
        "CamVid, validation images, DeepLabV3+": ("further", ("camvid", NEAR, "adamw", 1000)),
        "CamVid, held-out images": BEFORE[HELD_OUT],
        "CamVid, held-out images, all dilated": ("strong", HELD_OUT),
        "MSRC-21": ("unscaled", HALF),
        "MSRC-21, twice as long": ("recipe", WHOLE),
        "MSRC-21, all dilated": ("strong", MSRC),
        "MSRC-21, UPerNet": ("strong", UPERNET),
    }
    for title, (name, cell) in cells.items():
        lines = {line.arm: line for line in lines_of(name, PLANNED) if line.own and line.cell == cell}
        lines = {arm: line for arm, line in lines.items() if arm == "plain" or line.verdict}  # else too few seeds
        row = [str(cell[3]), f"{lines['plain'].miou.value:.1f}"]
        row += [
            f"{lines[arm].miou.value:.1f} ({signed_pair(lines[arm].difference)})" if arm in lines else ""
            for arm in ("plain_overlap", "paper", "released", "tuned")
        ]
        yield f"| {title} | {' | '.join(row)} |"


@pytest.mark.parametrize(("page", "name", "rows"), [("../README.md", "gains", gains)])
def test_the_rows_of_a_table_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())


def from_plain(name, cell, seeds=PLANNED):
    return line_of("tuned", name, cell, "plain", seeds).difference


def over_overlap():
    """`tuned` beside the plain classifier with its loss, over long cells and over short ones."""
    found = [
        line
        for name in CELLS
        if any(line.arm == "plain_overlap" for line in lines_of(name))
        for line in own_lines(lines_of(name, PLANNED, baseline="plain_overlap"))
        if line.arm == "tuned" and line.difference and line.difference.n == len(PLANNED)
    ]
    for long in (True, False):
        values = [line.difference.value for line in found if (line.cell.steps >= 1000) == long]
        yield pair(mean_of(values)), NUMBERS[len(values)]


def said():
    """Every sentence with a figure, with the figures of the records."""
    found = own_of("tuned", PLANNED)
    counts = Counter(line.verdict for line in found)
    yield f"two standard errors) in {counts['ahead']} of the {len(found)} cells"
    yield f"even in {counts['even']} and behind in {counts['behind'] or 'none'}, all with the reference's dilation"
    later = {
        line.cell: line.verdict
        for name in ("strong", "confirm")
        for line in lines_of(name)
        if line.own and line.arm == "tuned" and line.verdict
    }
    counts = Counter(later.values())
    assert set(counts) == {"ahead", "above", "even"}
    words = f"Of {NUMBERS[len(later)]} run afterwards it is ahead in {counts['ahead']}, above in {counts['above']} and"
    verdicts = [row.rstrip(" |").split(" | ")[-1] for row in training_rows()]
    assert sorted(verdicts) == ["behind", "even", "even"]
    yield f"{words} even in {counts['even']}; but in one of three trainings of UPerNet it is behind"

    ocrnet = [from_plain("confirm", (data, "ocrnet_mobilenetv2", "adamw", steps)) for data, steps in OCRNET]
    nine = beside(over_all("tuned"), over_all("plain"))
    assert nine.n == 9
    words = f"{pair(from_plain('strong', MSRC))} above it with every block dilated,"
    words = f"{words} {signed_pair(from_plain('recipe', WHOLE, SIX))} from it after 4000 steps (six seeds),"
    words = (
        f"{words} {signed_pair(ocrnet[0])} with OCRNet and, over nine runs of each, {signed_pair(nine)} with UPerNet"
    )
    yield words
    words = f"On images held out of CamVid {pair(from_plain('strong', HELD_OUT))} with every block dilated,"
    yield f"{words} {pair(ocrnet[1])} with OCRNet, {pair(from_plain('confirm', LONG_HELD_OUT))} after 4000 steps."

    better = [pair(apart(of(cell, "plain"), before(cell, "plain"))) for cell in (MSRC, HELD_OUT)]
    yield f"is worth {better[0]} points to a plain FCN on MSRC-21 and {better[1]} on images held out of CamVid"
    plain = [mean_of(list(scores("strong", cell, "plain", "plain").values())).value for cell in (UPERNET, MSRC)]
    yield f"(a plain UPerNet has {NUMBERS[round(plain[0] - plain[1])]} more on MSRC-21)"
    (long, many), (short, more) = over_overlap()
    yield f"`tuned` is {long} above that over {many} long cells, and {short} over {more} short ones"

    held_out, scaled, unscaled = (signed_pair(adapting(*one)) for one in ADAPTING)
    yield f"`tuned` is {scaled}, {unscaled} and {held_out} in three cells"
    yield "On generated scenes, where it pays by design, {} and {}.".format(
        *(signed_pair(adapting(*one)) for one in SCENES)
    )


OCRNET = (("msrc21_unscaled", 2000), ("camvid_held_out", 1000))


def test_the_sentences():
    page = words_of("../README.md")
    for words in said():
        assert words in page
