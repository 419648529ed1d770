"""A place that results cannot be written to is refused before a model is opened, by every command."""

import importlib
import os

import pytest

from finetune.results import Evaluation, write
from pretrain.common.cli import require_writable
from pretrain.common.errors import UserError

MODEL = {"model": "no/such/model"}
COMMANDS = {
    "sts": ("evaluate_model", MODEL),
    "zh_sts": ("main", MODEL),
    "clustering": ("main", MODEL),
    "intents": ("main", MODEL),
    "cola_probe": ("main", MODEL),
    "nli_distance": ("main", MODEL),
    "anli": ("main", MODEL),
    "baselines": ("main", {"kind": "averaged", **MODEL}),
    "senteval.__main__": ("main", MODEL),
    "glue.__main__": ("main", MODEL),
    "augmentation_quality.__main__": ("main", MODEL),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_in_the_place_of_out_is_refused_first(name, tmp_path):
    (tmp_path / "file").touch()
    function, arguments = COMMANDS[name]
    command = getattr(importlib.import_module(f"finetune.{name}"), function)
    for place in ("file", "file/results"):
        with pytest.raises(UserError, match=rf"--out \S*/{place}: \S*/file is not a folder"):
            command(**arguments, out=str(tmp_path / place))


def test_commands_of_several_models_or_sources_refuse_it_too(tmp_path):
    from finetune.geometry.__main__ import geometry
    from finetune.report.__main__ import report
    from pretrain.sweep.__main__ import main as sweep

    place = tmp_path / "file"
    place.touch()
    for command in (geometry, report):
        with pytest.raises(UserError, match="is not a folder"):
            command("no/such/model", out=str(place))
    with pytest.raises(UserError, match="is not a folder"):
        sweep(file="no_such_sweep.yaml", out=str(place))


def test_the_folder_of_fetched_data_is_looked_at_before_the_hub(tmp_path):
    from finetune.data.__main__ import main

    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^DIR \S+: \S+ is not a folder"):
        main("fetch", "GLUE/RTE", str(tmp_path / "file"))


def test_what_can_be_made_is_taken_and_not_made_yet(tmp_path):
    require_writable(tmp_path / "a" / "b")
    require_writable("")
    assert not (tmp_path / "a").exists()
    with pytest.raises(UserError, match="cannot be used"):
        require_writable(tmp_path / ("x" * 300))
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(UserError, match="is not writable"):
            require_writable(tmp_path / "a")
        tmp_path.chmod(0o700)


def test_a_result_that_cannot_be_written_is_one_message(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*name another folder with --out"):
        write(Evaluation("sts", "a model", "cls", None, "cosine"), tmp_path / "file")
