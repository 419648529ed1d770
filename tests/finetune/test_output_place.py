"""A place that results cannot be written to is refused before a model is opened, by every command."""

import importlib
import os
from dataclasses import replace

import numpy as np
import pytest
from commands import call

from finetune.encoders.models import open_model
from finetune.encoders.source import ModelSource
from finetune.results import Evaluation, folder_for, write
from pretrain.common.cli import OutFile
from pretrain.common.errors import UserError
from pretrain.common.files import require_writable

COMMANDS = {
    "sts": "main",
    "zh_sts": "main",
    "clustering": "main",
    "intents.__main__": "main",
    "cola_probe": "main",
    "nli_distance": "main",
    "anli": "main",
    "senteval.__main__": "main",
    "glue.__main__": "glue",
    "geometry.__main__": "geometry",
    "report.__main__": "report",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_in_the_place_of_out_is_refused_first(name, tmp_path):
    (tmp_path / "file").touch()
    command = getattr(importlib.import_module(f"finetune.{name}"), COMMANDS[name])
    for place in ("file", "file/results"):
        with pytest.raises(UserError, match=rf"--out \S*/{place}: \S*/file is not a folder"):
            call(command, "no/such/model", out=tmp_path / place)


def test_the_folder_of_fetched_data_is_looked_at_before_the_hub(tmp_path):
    from finetune.data import fetch

    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^EVAL_DATA \S+: \S+ is not a folder"):
        call(fetch, "GLUE/RTE", tmp_path / "file")


def test_a_default_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = open_model(lambda texts: np.ones((len(texts), 2)))
    assert str(folder_for(model)) == "results/lambda" and not (tmp_path / "results").exists()
    (tmp_path / "results").touch()
    with pytest.raises(UserError, match=r"without --out, results go to results/\S+: \S+/results is not a fo"):
        folder_for(model)
    (tmp_path / "report").touch()
    with pytest.raises(UserError, match=r"results go to \S+/report: \S+/report is not a folder"):
        folder_for(replace(model, source=ModelSource("run", str(tmp_path), run=tmp_path)))
    with pytest.raises(UserError, match=r"--out report: .* is not a folder"):
        call(importlib.import_module("finetune.report.__main__").report, tmp_path)


def test_a_file_may_be_replaced_but_not_a_folder(tmp_path):
    def write(*, out: OutFile | None = None) -> OutFile | None:
        return out

    (tmp_path / "page.html").touch()
    for place in ("page.html", "new/page.html"):
        assert call(write, out=tmp_path / place) == tmp_path / place
    with pytest.raises(UserError, match=r"--out \S+: a folder; name a file in it"):
        call(write, out=tmp_path)
    with pytest.raises(UserError, match=r"--out \S+/page\.html: \S+/page\.html is not a folder"):
        call(write, out=tmp_path / "page.html" / "x.html")
    assert call(write) is None and not (tmp_path / "new").exists()


def test_what_can_be_made_is_taken_and_not_made_yet(tmp_path):
    require_writable(tmp_path / "a" / "b")
    require_writable("")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="cannot be used"):
        require_writable(tmp_path / ("x" * 300))
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(UserError, match="is not writable"):
            require_writable(tmp_path / "a")
        tmp_path.chmod(0o700)


def test_a_folder_whose_access_bits_promise_too_much_is_refused():
    """Root may write to /proc by its bits, and no file can be made there."""
    with pytest.raises(UserError, match=r"--out /proc/x: /proc is not writable \(.+\); name another place"):
        require_writable("/proc/x")


def test_a_result_that_cannot_be_written_is_one_message(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*name another folder with --out"):
        write(Evaluation("sts", "a model", "cls", None, "cosine"), tmp_path / "file")
