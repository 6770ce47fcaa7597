"""The page in a real browser, over the embedded model: a video made, one cancelled, one
refused."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from ui_fakes import FakeMaker, answering, until
from ui_process import Running, svoo_ui

from svoo.app.ui.server import make_app
from svoo.app.ui.settings import Limits
from svoo.app.ui.store import Store

PLACES = {"desktop": (1280, 900), "phone": (390, 844)}
TOKEN = "a token for the page"


class Page:
    """What a person does with the page."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def find(self, selector: str) -> WebElement:
        """Wait for an element to be shown."""

        def shown() -> list[WebElement]:
            try:
                found = self.browser.find_elements(By.CSS_SELECTOR, selector)
                return [element for element in found if element.is_displayed()]
            except StaleElementReferenceException:  # the page was drawn anew in between
                return []

        found: list[WebElement] = until(shown)
        return found[0]

    def text(self, selector: str) -> str:
        return str(self.script(f"return document.querySelector('{selector}')?.innerText ?? ''"))

    def type(self, **values: object) -> None:
        for name, value in values.items():
            field = self.find(f"#ask [name={name}]")
            field.clear()
            field.send_keys(str(value))

    def press(self) -> None:
        self.find("#make").click()

    def make(self) -> None:
        """Press the button and wait until the new run is shown."""
        shown = "return document.querySelector('#stage .run')?.dataset.id"
        before = self.script(shown)
        self.press()
        until(lambda: self.script(shown) not in (before, None))

    def wait(self, selector: str, text: str) -> None:
        until(lambda: text in self.text(selector), 180)

    def script(self, text: str) -> Any:
        return self.browser.execute_script(text)


@pytest.fixture(params=PLACES)
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("needs chromium and chromedriver (apt-get install chromium chromium-driver)")
    width, height = PLACES[request.param]
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for switch in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{switch}")
    metrics = {"width": width, "height": height, "pixelRatio": 1}
    options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
    service = webdriver.ChromeService(str(programs[1]))
    with webdriver.Chrome(options=options, service=service) as browser:
        yield Page(browser)
        logged = [row["message"] for row in browser.get_log("browser")]  # type: ignore[no-untyped-call]
    refusals = ("400", "401", "404")  # the browser notes answers that the tests provoke
    assert [
        row for row in logged if not any(f"status of {code}" in row for code in refusals)
    ] == []


@contextmanager
def answered(page: Page, app: FastAPI) -> Iterator[str]:
    """Serve an app; the page leaves before it ends, so that it asks nobody for what is missing."""
    with answering(app) as address:
        yield address
        page.browser.get("about:blank")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with svoo_ui(tmp_path_factory.mktemp("ui")) as running:
        yield running


def test_a_video_is_made_and_played_one_cancelled_and_one_refused(
    page: Page, server: Running
) -> None:
    page.browser.get(server.link)
    page.wait("#model", "mini")
    page.find("#more summary").click()
    page.type(prompt="a blue star spins over rippling water", width=64, height=48, num_frames=5)
    page.type(steps=4, seed=11)
    page.find("#ask [name=method] [value=paper]").click()
    page.find("#ask [name=dense]").click()
    page.make()
    page.wait("#stage .status", "done")
    for variant in ("video", "dense"):
        playing = f"const v = document.querySelector('[data-variant={variant}]');"
        until(lambda playing=playing: page.script(f"{playing} return v && v.currentTime > 0"))
        assert page.script(f"{playing} return [v.videoWidth, v.videoHeight]") == [64, 48]
    assert "speed-up" in page.text("#stage .figures")
    page.find("#stage .map summary").click()
    until(lambda: page.script("return document.querySelector('.map img').naturalWidth > 0"))
    page.find("#stage .settings summary").click()
    left = "Array.from(document.querySelectorAll('.settings dl div'), row => row.offsetLeft)"
    assert page.script(f"return new Set({left}).size") == 1  # one setting below the other
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")
    playing = "[...document.querySelectorAll('video')]"
    page.script(f"{playing}[0].pause(); {playing}[0].currentTime = 0.2")
    until(lambda: page.script(f"return {playing}.every(v => v.paused && v.currentTime === 0.2)"))
    link = page.find("#stage .again").get_attribute("href")

    page.type(steps=100)
    page.make()
    page.wait("#stage .where", "step 1")
    page.wait("#stage .where", "left")
    page.find("#stage .cancel").click()
    page.wait("#stage .status", "cancelled")

    page.type(width=48, prompt=" ")
    page.script("document.querySelector('#ask').noValidate = true")
    page.press()
    page.wait("#ask > .error", "prompt is empty: say what to show")

    page.wait("#history li:first-child", "cancelled")
    assert "cancelled" not in page.text("#history li:nth-child(2)")
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")  # nothing cut

    page.browser.get(str(link))
    until(lambda: page.find("#ask [name=seed]").get_attribute("value") == "11")
    page.make()
    page.wait("#stage .status", "done")
    rows = server.client.get("/v1/videos").json()["data"]
    again, _cancelled, first = rows[:3]
    assert again["settings"] == first["settings"] and again["id"] != first["id"]
    contents = [server.client.get(f"/v1/videos/{row['id']}/content") for row in (again, first)]
    assert contents[0].content == contents[1].content


def test_the_token_is_asked_for_or_comes_with_the_link(page: Page, tmp_path: Path) -> None:
    maker = FakeMaker()
    app = make_app(maker, Store(tmp_path / "ui"), token=TOKEN, local=False)
    with answered(page, app) as address:
        page.browser.get(address)
        page.find("#login input").send_keys("a wrong one")
        page.find("#login button").click()
        page.wait("#login .error", "not this server's token")
        page.find("#login input").clear()
        page.find("#login input").send_keys(TOKEN)
        page.find("#login button").click()
        page.wait("#model", "fake")
        assert page.find("#picture").is_displayed()  # this model starts from one
        page.browser.delete_all_cookies()
        page.browser.get("about:blank")
        page.browser.get(f"{address}/#token={TOKEN.replace(' ', '%20')}")
        page.wait("#model", "fake")
        assert "token" not in page.browser.current_url
        assert TOKEN not in page.script("return document.cookie + JSON.stringify(localStorage)")


def test_a_picture_is_chosen_shown_left_out_and_repeated(page: Page, tmp_path: Path) -> None:
    chosen, large = tmp_path / "chosen.png", tmp_path / "large.png"
    Image.new("RGB", (40, 20), "red").save(chosen)
    large.write_bytes(bytes(2 << 20))
    shows = "const i = document.querySelector('{}'); return i.offsetWidth > 0 && i.naturalWidth"
    app = make_app(FakeMaker(), Store(tmp_path / "ui"), limits=Limits(upload=1 << 20))
    with answered(page, app) as address, httpx2.Client(base_url=address, timeout=60) as client:

        def made() -> Any:
            page.make()
            page.wait("#stage .status", "done")
            return client.get("/v1/videos").json()["data"][0]

        page.browser.get(address)
        page.find("#more summary").click()
        page.type(prompt="it jumps", seed=3)
        upload = page.find("#picture input")
        upload.send_keys(str(large))
        assert "has 2.0 MB; at most 1 MB" in str(upload.get_property("validationMessage"))
        upload.send_keys(str(chosen))
        until(lambda: page.script(shows.format("#chosen img")) == 40)
        page.find("#chosen button").click()
        assert not page.script(shows.format("#chosen img")) and not made()["settings"]["picture"]
        upload.send_keys(str(chosen))
        first = made()
        page.find("#stage .settings summary").click()
        until(lambda: page.script(shows.format("#stage .settings img")) == 40)
        link = str(page.find("#stage .again").get_attribute("href"))
        page.browser.get(link)
        until(lambda: page.script(shows.format("#chosen img")) == 40)
        again = made()
        assert first["settings"] == again["settings"] and first["settings"]["picture"]
        client.delete(f"/v1/videos/{first['id']}")
        page.browser.get(link)
        page.wait("#ask > .error", "The picture of that run is gone: choose one.")
        assert page.script("return document.documentElement.scrollWidth <= innerWidth")


def test_hostile_text_stays_text(page: Page, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=document.title='owned'><script>1</script>"
    with answered(page, make_app(FakeMaker(), Store(tmp_path / "ui"))) as address:
        page.browser.get(address)
        page.type(prompt=hostile)
        page.make()
        page.wait("#stage .status", "done")
        assert page.text("#stage .prompt") == hostile
        assert page.text("#history strong") == hostile
        assert page.browser.title == "svoo: fake"
        assert not page.browser.find_elements(By.CSS_SELECTOR, "#stage .prompt *")
