"""The page of `cacseg app` in a browser: upload, slider, the class under the pointer, downloads, bad files."""

import re
import threading

import numpy as np
import pytest
from PIL import Image

from app_server import CLASSES, PALETTE, bad_uploads, encode, make_server, named_model, noise, predictor, serving
from cacseg.app.predict import Predictor
from cacseg.app.server import Example, Server
from cacseg.models import create_model
from command_line import run

PNG = "image/png"


@pytest.fixture(scope="module")
def url():
    with serving(make_server(examples=[Example("first", noise), Example("second", lambda: noise(30, 90))])) as address:
        yield address


@pytest.fixture(scope="module")
def expected():
    """Which pixels of an image get another class from the context, and everything else the page shows of it."""
    image = np.kron(noise(6, 9, seed=7), np.ones((20, 20, 1), np.uint8))
    return image, predictor().predict(image)


def choose(page, name, content, kind=PNG):
    page.locator("#file").set_input_files({"name": name, "mimeType": kind, "buffer": content})


def shows(page, name):
    page.locator("#name", has_text=name).wait_for()
    page.locator("#status:empty").wait_for(state="attached")


def colour_at(page, canvas, x, y):
    script = "([id, x, y]) => [...document.getElementById(id).getContext('2d').getImageData(x, y, 1, 1).data]"
    return page.evaluate(script, [canvas, x, y])[:3]


def point_at(page, size, x, y):
    box = page.locator("#picture").bounding_box()
    page.mouse.move(box["x"] + (x + 0.5) / size[0] * box["width"], box["y"] + (y + 0.5) / size[1] * box["height"])


def slide_to(page, value):
    page.locator("#split").fill(str(value))


def test_an_image_from_upload_to_mask(page, url, expected, screenshot, tmp_path, capsys, monkeypatch):
    image, found = expected
    plain, context = (found.answers[output].mask for output in ("plain", "context"))
    height, width = plain.shape
    page.goto(url)
    assert page.locator("#result").is_hidden()
    choose(page, "photo.png", encode(image))
    shows(page, "photo.png")

    # Colours: each side in the palette of its own classifier where it is opaque.
    page.locator("#opacity").fill("100")
    below, across = map(int, np.argwhere(plain != context)[0])
    assert colour_at(page, "left-side", across, below) == PALETTE[plain[below, across]]
    assert colour_at(page, "right-side", across, below) == PALETTE[context[below, across]]

    # The slider: what is left of it shows the plain mask.
    for place in (25, 80):
        slide_to(page, place)
        assert page.locator("#left-side").evaluate("one => one.style.clipPath") == f"inset(0px {100 - place}% 0px 0px)"
        assert page.locator("#divider").evaluate("one => one.style.left") == f"{place}%"
    page.locator("#split").focus()
    page.keyboard.press("Home")
    assert page.locator("#divider").evaluate("one => one.style.left") == "0%"

    # The pointer: both classes are read, and the tip tells that of the side.
    for x, y in ((0, 0), (across, below), (width - 1, height - 1), (40, 70)):
        point_at(page, (width, height), x, y)
        for output, answer in found.answers.items():
            label, confidence, _ = answer.layers[:, y, x].tolist()
            part = page.locator(f"#reading [data-output={output}][data-label='{label}']", has_text=CLASSES[label])
            part.filter(has_text=f"confidence {confidence / 255:.2f}").wait_for()
        page.locator("#tip", has_text=CLASSES[context[y, x]]).wait_for()  # the divider is at 0

    # Legend and rows.
    for output, mask in (("plain", plain), ("context", context)):
        for label in np.unique(mask).tolist():
            text = page.locator(f"#legend [data-label='{label}'] [data-output={output}]").inner_text()
            share = (mask == label).mean()
            assert text == (f"{100 * share:.1f} %" if share >= 0.0005 else "<0.1 %")
    assert f"{100 * (plain != context).mean():.1f} %" in page.locator("#changed").inner_text()
    moved = [
        int(one) for one in page.locator("#moved-list li").evaluate_all("all => all.map((one) => one.dataset.label)")
    ]
    assert moved == np.argsort(found.moved)[::-1].tolist()

    screenshot("app")

    # The downloads are what `cacseg predict` writes.
    named_model().save(tmp_path / "model.safetensors")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/photo.png").write_bytes(encode(image))
    for output, option in (("context", ()), ("plain", ("--plain",))):
        with page.expect_download() as download:
            page.locator(f"#download-{output}").click()
        assert download.value.suggested_filename == f"photo_{output}.png"
        arguments = (tmp_path / "model.safetensors", tmp_path / "photos", "-o", tmp_path / output, "--device", "cpu")
        arguments += ("--precision", "fp32")
        assert run("predict", *arguments, *option, capsys=capsys, monkeypatch=monkeypatch).code == 0
        with Image.open(download.value.path()) as ours, Image.open(tmp_path / output / "masks/photo.png") as theirs:
            assert ours.mode == theirs.mode == "P"
            assert ours.getpalette() == theirs.getpalette()
            assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def divider(page):
    return float(page.locator("#divider").evaluate("one => one.style.left").removesuffix("%"))


def test_the_slider_follows_a_dragging_mouse(page, url):
    page.goto(url)
    choose(page, "photo.png", encode(noise(60, 90)))
    shows(page, "photo.png")
    box = page.locator("#picture").bounding_box()

    def move(share):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.4 * box["height"], steps=3)

    move(0.5)
    move(0.9)
    assert divider(page) == 50.0  # no button is down
    page.mouse.down()
    for share in (0.9, 0.7, 0.25):
        move(share)
        assert divider(page) == pytest.approx(100 * share, abs=0.6)
        assert page.locator("#split").input_value() == f"{divider(page):g}"
    move(1.2)  # beyond the edge, still held
    assert divider(page) == 100.0
    move(0.3)
    page.mouse.up()
    move(0.8)
    assert divider(page) == pytest.approx(30.0, abs=0.6)


@pytest.mark.slow
def test_the_slider_follows_a_finger(phone, url):
    phone.goto(url)
    phone.locator("#example-list button").first.tap()
    shows(phone, "first")
    picture = phone.locator("#picture")
    picture.scroll_into_view_if_needed()
    box, device = picture.bounding_box(), phone.context.new_cdp_session(phone)

    def touch(kind, *shares):
        places = [{"x": box["x"] + one * box["width"], "y": box["y"] + 0.5 * box["height"]} for one in shares]
        device.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", 0.5)
    for share in (0.6, 0.7, 0.8):
        touch("touchMove", share)
    touch("touchEnd")
    assert divider(phone) == pytest.approx(80.0, abs=1.0)
    assert phone.locator("#reading [data-output=plain]").count() == 1
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_files_that_are_dropped(page, url):
    page.goto(url)
    files = [("one.png", encode(noise(20, 30))), ("two.png", encode(noise(20, 31))), ("text.png", b"no picture")]
    script = """files => {
        const transfer = new DataTransfer();
        for (const [name, bytes] of files)
            transfer.items.add(new File([new Uint8Array(bytes)], name, {type: "image/png"}));
        return transfer;
    }"""
    transfer = page.evaluate_handle(script, [[name, list(content)] for name, content in files])
    page.locator("#drop").dispatch_event("dragover", {"dataTransfer": transfer})
    assert "over" in page.locator("#drop").get_attribute("class").split()
    page.locator("#drop").dispatch_event("drop", {"dataTransfer": transfer})
    assert "over" not in page.locator("#drop").get_attribute("class").split()
    page.locator("#problems li", has_text="text.png").wait_for()
    shows(page, "two.png")
    assert page.locator("#history-list button").count() == 2


def test_views_of_confidence_entropy_and_changes(page, url, expected):
    image, found = expected
    plain, context = (found.answers[output].mask for output in ("plain", "context"))
    page.goto(url)
    choose(page, "photo.png", encode(image))
    shows(page, "photo.png")
    page.locator("#opacity").fill("100")
    stops = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])
    for view, layer in (("confidence", 1), ("entropy", 2)):
        page.locator(f"#views input[value={view}]").check(force=True)
        for output, canvas in (("plain", "left-side"), ("context", "right-side")):
            place = found.answers[output].layers[layer, 33, 44] / 255 * 4
            expected_colour = [np.interp(place, range(5), stops[:, channel]) for channel in range(3)]
            assert colour_at(page, canvas, 44, 33) == pytest.approx(expected_colour, abs=0.51)
        assert page.locator("#scale").is_visible()
    page.locator("#views input[value=changes]").check(force=True)
    y, x = map(int, np.argwhere(plain != context)[0])
    assert colour_at(page, "right-side", x, y) == PALETTE[context[y, x]]
    y, x = map(int, np.argwhere(plain == context)[0])
    assert colour_at(page, "right-side", x, y) not in PALETTE
    assert page.locator("#scale").is_hidden()
    page.locator("#left").select_option("input")
    assert page.locator("#left-name").inner_text() == "Input"


@pytest.mark.slow
def test_keyboard_alone(page, url):
    page.goto(url)
    page.locator("#example-list button").first.focus()
    page.keyboard.press("Enter")
    shows(page, "first")
    page.locator("#picture").focus()
    page.keyboard.press("ArrowRight")
    before = page.locator("#probe").get_attribute("style")
    page.keyboard.press("Shift+ArrowDown")
    assert page.locator("#probe").get_attribute("style") != before
    assert page.locator("#reading [data-output=plain]").count() == 1
    page.locator("#views input").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#scale").is_visible()
    page.locator("#legend button").first.focus()
    page.keyboard.press("Space")
    assert page.locator("#legend button").first.get_attribute("aria-pressed") == "true"
    assert all(page.locator("img").evaluate_all("all => all.map((one) => one.hasAttribute('alt'))"))
    assert "first" in page.locator("#picture").get_attribute("aria-label")


def test_bad_files_get_a_message_and_a_good_one_is_predicted(page, url):
    page.goto(url)
    for name, content, word in bad_uploads():
        choose(page, name, content)
        message = page.locator("#problems li", has_text=name)
        message.wait_for()
        assert word in message.inner_text()
    assert page.locator("#result").is_hidden()
    choose(page, "good.png", encode(noise()))
    shows(page, "good.png")
    assert page.locator("#problems li").count() == 0


def test_several_files_and_back_to_an_earlier_one(page, url):
    page.goto(url)
    files = [{"name": f"{k}.png", "mimeType": PNG, "buffer": encode(noise(20 + k, 30))} for k in range(3)]
    page.locator("#file").set_input_files(files)
    shows(page, "2.png")
    assert page.locator("#history-list button").count() == 3
    page.locator("#history-list button").last.click()
    page.locator("#name", has_text="0.png").wait_for()
    assert re.findall(r"\d+", page.locator("#size").inner_text()) == ["30", "20"]


@pytest.mark.slow
def test_the_status_ends_with_the_prediction(page):
    """Though the answer to how many are waiting comes after that of the prediction."""
    late, gate = [], threading.Event()

    class Slow(Predictor):
        def predict(self, image):
            assert gate.wait(30)
            return super().predict(image)

    with serving(Server(predictor(kind=Slow), "slow")) as url:
        page.route("**/api/queue", lambda route: late.append(route))
        page.goto(url)
        with page.expect_request("**/api/queue"):
            choose(page, "slow.png", encode(noise()))
        assert "slow" in page.locator("#status").inner_text()
        gate.set()
        shows(page, "slow")
        late[0].fulfill(json={"waiting": 3})
        page.wait_for_timeout(200)
        assert page.locator("#status").inner_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_page(page, url, screenshot, width, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(url)
    choose(page, f"{'a_very_long_name_' * 7}.png", encode(noise(80, 400)))
    page.locator("#result").wait_for()
    screenshot(f"app_{scheme}_{width}", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    choose(page, "tall.png", encode(noise(400, 80)))
    shows(page, "tall.png")
    boxes = [page.locator(one).bounding_box() for one in ("#picture", "#split")]
    assert boxes[0]["width"] < 0.5 * width
    for key in ("x", "width"):  # the slider is as wide as what it divides
        assert boxes[1][key] == pytest.approx(boxes[0][key], abs=1)


def test_a_plain_model_is_compared_with_its_input(page):
    with serving(
        Server(predictor(create_model("fcn", 4, "plain", backbone="test_resnet", head_channels=16)), "plain")
    ) as url:
        page.goto(url)
        assert page.locator("#examples").is_hidden()
        choose(page, "a.png", encode(noise()))
        shows(page, "a.png")
        assert [page.locator(one).input_value() for one in ("#left", "#right")] == ["input", "plain"]
        for one in ("#changes", "#moved", "#download-context"):
            assert page.locator(one).is_hidden()
        assert page.locator("#download-plain").is_visible()


def test_a_server_that_ended_is_told(page):
    with serving(make_server()) as url:
        page.goto(url)
        page.locator("#limits", has_text="MiB").wait_for()
    choose(page, "a.png", encode(noise()))
    page.locator("#problems li", has_text="cannot be reached").wait_for()
