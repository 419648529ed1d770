"""A real browser: pages are opened, read and used as a person does."""

import shutil
from collections.abc import Iterator

import pytest

_WIDTHS = (1280, 400)  # pixels: a screen, a telephone
_LOADED = "return [...document.images].every(image => image.complete && image.naturalWidth > 0)"
_SIDEWAYS = """
const page = document.scrollingElement;
return page.scrollWidth - page.clientWidth
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator:
    """Chromium without a window, driven by selenium."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(programs):
        pytest.skip("no browser: `apt install chromium chromium-driver`")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs[1]))
    try:
        yield driver
    finally:
        driver.quit()


def require_sound(browser) -> None:
    """Fail where the open page complains, lacks an image, or is wider than a screen or a telephone."""
    assert [line["message"] for line in browser.get_log("browser")] == []
    assert browser.execute_script(_LOADED)
    for width in _WIDTHS:
        browser.set_window_size(width, 900)
        over = browser.execute_script(_SIDEWAYS)
        assert over <= 0, f"at {width} pixels {browser.current_url} runs {over} pixels out of the window"
