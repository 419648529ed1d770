"""A step does not wait for a GPU: found on the CPU, by a device that is none."""

import json
from pathlib import Path

import pytest
import torch
from pretended_device import PretendedDevice
from run_helpers import finish, start

from pretrain.common.transfer import Numbers, send

HERE = Path(__file__).parent
BUDGETS = json.loads((HERE / "host_waits.json").read_text())
OBJECTIVES = (
    "clear_mean,clear_local,double_mlm,simcse_supervised,sda,declutr,esimcse,vascl,augcse,augcse_order,"
    "vadvcse_printed,diffcse,diffcse_sample,scored,simcse_positives,distill_kl,distill_margin"
)
POOLINGS = "clear_cls,mlm,not_yet,clear_batch_norm,vascl_paper,vadvcse_two_steps,clear+vadvcse"


def check(tmp_path: Path, stage: int, cases: str, log_every: int = 100) -> None:
    out = tmp_path / "waits.json"
    finish(
        start([str(HERE / "waits_worker.py"), str(out), str(stage), cases, "0.1", str(log_every)]),
    )
    report = json.loads(out.read_text())
    assert list(report) == cases.split(",")
    for case, counted in report.items():
        of_deepspeed = {place: n for place, n in counted["waits"].items() if " at deepspeed " in place}
        ours = {place: n for place, n in counted["waits"].items() if place not in of_deepspeed}
        assert sum(ours.values()) <= BUDGETS[str(stage)]["ours"], (case, ours)
        assert sum(of_deepspeed.values()) <= BUDGETS[str(stage)]["deepspeed"], (case, of_deepspeed)
        assert counted["reads"] == counted["steps"], case  # one a step, of the step before


@pytest.mark.full
@pytest.mark.parametrize(
    "stage,cases", [(0, "clear_mean,esimcse,diffcse,kept distill_kl"), (1, "clear_mean")]
)
def test_a_step_reads_no_number_of_its_own(tmp_path, stage, cases):
    check(tmp_path, stage, cases)


@pytest.mark.full
def test_a_step_that_ends_a_row_reads_no_more(tmp_path):
    """Shares of the gradient and checks of mechanisms, of a batch too small for the decompositions."""
    check(tmp_path, 0, f"{OBJECTIVES},clear+vadvcse", log_every=1)


@pytest.mark.slow
@pytest.mark.parametrize("stage,cases", [(0, POOLINGS), *((stage, OBJECTIVES) for stage in range(4))])
def test_a_step_reads_no_number_of_its_own_in_any_setting(tmp_path, stage, cases):
    check(tmp_path, stage, cases)


WAITS = {
    "reads a number": lambda x: float(x.sum()),
    "branches on one": lambda x: 1 if x[0] > 0 else 2,
    "lists": lambda x: x.tolist(),
    "copies to the host": lambda x: x.cpu(),
    "copies to the device": lambda x: torch.zeros(4).to(x.device),
    "makes a tensor of a number there": lambda x: torch.tensor(1.0, device=x.device),
    "finds places": lambda x: x.nonzero(),
    "picks by a mask": lambda x: x[x > 0],
    "picks by places on the host": lambda x: x[torch.arange(2)],
    "repeats by counts": lambda x: torch.repeat_interleave(x.long().abs()),
    "mixes host and device": lambda x: x + torch.zeros(4),
}


@pytest.mark.parametrize("what", WAITS)
def test_what_waits_is_found(what):
    x, device = torch.ones(4), PretendedDevice()
    with device():
        WAITS[what](x)
    assert sum(device.waits.values()) == 1, device.waits
    assert all(" at tests/pretrain/step/test_waits.py:" in place for place in device.waits)


def test_what_does_not_wait_is_not_counted():
    x, device = torch.ones(4, requires_grad=True), PretendedDevice()
    with device():
        lengths = torch.tensor([1, 3])
        assert int(lengths.sum()) == 4 and lengths.tolist() == [1, 3]  # of the host
        (moved,) = send([lengths], x.device)
        order = torch.repeat_interleave(moved, output_size=4)
        picked = torch.where(x > 0, x, 0.0)[order] * torch.tensor(2.0)  # a scalar of the host goes along
        picked.sum().backward()
        coming = Numbers({"sum": picked.sum(), "known": 3.0})
    assert not device.waits and device.read == 0
    with device():
        assert coming.read() == {"sum": 8.0, "known": 3.0}
    assert not device.waits and device.read == 1
