"""The page of `clearly search --serve` in a browser, as a person uses it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from browser import require_sound, submit
from model_folders import save_bert
from run_helpers import environment, kill

SENTENCES = [
    f"the {animal} sleeps in the {place}"
    for animal in ("dog", "cat", "bird")
    for place in ("garden", "house", "hut")
]
SCRIPT = "<script>document.title = 'run'</script> & <b>bold</b>"


@pytest.fixture
def address(tmp_path, monkeypatch):
    """Where the command serves two models; it ends by Ctrl-C, without a traceback."""
    monkeypatch.chdir(tmp_path)
    for name in ("model", "other"):
        save_bert(tmp_path / name)
    Path("text.txt").write_text("\n".join([*SENTENCES, SCRIPT]))
    words = ["-m", "finetune.search", "model", "--text", "text.txt", "--beside", "other"]
    process = subprocess.Popen(
        [sys.executable, *words, "--pooling", "mean", "--serve", "--port", "0"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stdout.readline()
            assert line, said
            said += line
        yield found[0]
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate()
        assert "Traceback" not in rest and process.returncode == 130, rest
    finally:
        if process.poll() is None:
            kill([process])


def test_a_person_asks_reads_and_asks_for_fewer(browser, address):
    from selenium.webdriver.common.by import By

    def rows():
        return [
            [item.text for item in section.find_elements(By.TAG_NAME, "li")]
            for section in browser.find_elements(By.TAG_NAME, "section")
        ]

    browser.get(address)
    assert browser.switch_to.active_element.get_attribute("name") == "q"  # ready to type
    assert rows() == []
    require_sound(browser)
    submit(browser, browser.switch_to.active_element, SENTENCES[2])
    assert browser.title == SENTENCES[2]
    assert [heading.text for heading in browser.find_elements(By.TAG_NAME, "h2")] == ["model", "other"]
    for found in rows():
        assert len(found) == 5 and found[0].split("\n") == ["1.000", SENTENCES[2]]
    require_sound(browser)

    number = browser.find_element(By.NAME, "top")
    number.clear()
    submit(browser, number, "2")
    assert [len(found) for found in rows()] == [2, 2]

    query = browser.find_element(By.NAME, "q")
    assert query.get_attribute("value") == SENTENCES[2]
    query.clear()
    submit(browser, query, SCRIPT)
    assert browser.title == SCRIPT  # shown, not run
    assert all(found[0].split("\n") == ["1.000", SCRIPT] for found in rows())
    assert browser.find_elements(By.CSS_SELECTOR, "section b") == []
    require_sound(browser)
