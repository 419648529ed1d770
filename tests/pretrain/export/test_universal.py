"""Checkpoints in DeepSpeed's universal format: DeepSpeed loads them, and steps on as we do."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from run_helpers import command, finish, start

from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.common.files import write_durably
from pretrain.export.__main__ import main
from pretrain.export.universal import export_universal

WORKER = Path(__file__).parents[1] / "checkpoint" / "universal_worker.py"
SAVED = (0, 2, 3)


def launch(ranks: int, folder: Path, name: str, action: str, **arguments) -> list[dict]:
    """What an action of the worker says on every rank."""
    scenario = folder / f"{name}.json"
    actions = [[action, {"root": str(folder)} | arguments]]
    scenario.write_text(json.dumps({"actions": actions, "out": str(folder / name)}))
    finish(start([str(WORKER), str(scenario), "cpu"], ranks, DS_ACCELERATOR="cpu"), timeout=300)
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """Checkpoints of two ranks at several ZeRO stages, and what is exported of them."""
    folder = tmp_path_factory.mktemp("universal")
    launch(2, folder, "save", "save_ours", stages=SAVED)
    for stage in SAVED:
        export_universal(folder / str(stage) / "step-00000003", folder / f"universal{stage}")
    return folder


@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeed_loads_ours_and_steps_as_we_do(exported, ranks):
    """Bit by bit: parameters and both moments after the load, and after one more step."""
    for rank in launch(ranks, exported, f"load{ranks}", "load_theirs", saved=SAVED, stages=[1, 2, 3]):
        assert len(rank) == 9
        for result in rank.values():
            assert result == {"load": [], "step": [], "client": 3, "counts": [3, 0]}, rank


def test_a_whole_run_is_exported_by_the_command(tiny_data, tmp_path, capsys):
    run = tmp_path / "run"
    finish(start(command(tiny_data, run, train__steps=3, evaluate__every=0)))
    assert main(str(run), format="deepspeed-universal", out=str(tmp_path / "out")) == 0
    assert f"engine.load_checkpoint('{tmp_path / 'out'}')" in capsys.readouterr().out
    zero = tmp_path / "out" / (tmp_path / "out" / "latest_universal").read_text() / "zero"
    checkpoint = store.latest(run / "checkpoints")
    for series, file in {"parameters": "fp32", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}.items():
        for name, tensor in store.read_tensors(checkpoint, series):
            assert torch.load(zero / name / f"{file}.pt")["param"].equal(tensor)
            assert torch.load(zero / name / "step.pt") == 3
    state = torch.load(zero / "optimizer_state.pt")
    assert [group["weight_decay"] for group in state["param_groups"]] == [0.01, 0.0]
    with pytest.raises(UserError, match="is not empty"):
        export_universal(run, tmp_path / "out")
    with pytest.raises(UserError, match="is an export, without the optimizer's state"):
        export_universal(run, tmp_path / "other", step="best")
    with pytest.raises(UserError, match=r"best is an export, .* state: give the folder of its run"):
        main(str(run / "best"), format="deepspeed-universal")
    assert not list(tmp_path.glob(".*"))


def test_what_cannot_be_expressed_is_refused(exported, tmp_path):
    def changed(change) -> Path:
        copy = tmp_path / "step-00000003"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(exported / "2" / "step-00000003", copy)
        content = json.loads((copy / "state.json").read_text())
        change(content)
        data = json.dumps(content).encode()
        manifest = json.loads((copy / "manifest.json").read_text())
        (copy / "state.json").unlink()
        manifest["files"]["state.json"] = write_durably(copy / "state.json", data)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        return copy

    for name in ("muon", "lamb"):
        copy = changed(lambda content, name=name: content["state"]["config"]["train"].update(optimizer=name))
        with pytest.raises(UserError, match=rf"of train.optimizer {name}: .* AdamW's state alone"):
            export_universal(copy, tmp_path / "out")
    with pytest.raises(UserError, match="has no optimizer state"):
        export_universal(changed(lambda content: content["optimizer"].update(moments=[])), tmp_path / "out")
    with pytest.raises(UserError, match="has 1 groups of parameters, and its recipe makes 2"):
        copy = changed(lambda content: content["optimizer"].update(learning_rates=[0.1]))
        export_universal(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))
    with pytest.raises(UserError, match="--format bert is unknown"):
        main(str(exported), format="bert")
    with pytest.raises(UserError, match="goes with --step and --out alone"):
        main(str(exported), format="deepspeed-universal", quantize="int8")
