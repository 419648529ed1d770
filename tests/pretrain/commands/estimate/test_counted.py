"""A plan's bytes are those of a real engine; what two ranks exchange follows from the ZeRO stage."""

import json
from pathlib import Path

import pytest
from run_helpers import finish, start

from pretrain.start.estimate import WIRE, BatchSize, Layout, ModelSize, memory

WORKER = Path(__file__).with_name("counting_worker.py")
SEQUENCES, BUDGET = 16, 96
STAGE_3_EXCESS = 0.12
"""DeepSpeed gathers the words once more for the head that is tied to them."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("counted") / "counted.json"
    finish(start([str(WORKER), str(out), "0123", "fp32,bf16"], ranks=2, DS_ACCELERATOR="cpu"))
    return json.loads(out.read_text())


@pytest.mark.full
@pytest.mark.parametrize("stage", range(4))
def test_states_are_counted_exactly(counted, stage):
    size, found = ModelSize(**counted["size"]), counted["stages"]["fp32"][str(stage)]
    batch = BatchSize(SEQUENCES, 64, 0.0, 0.0, 2, 0.0)
    plan = memory(size, batch, Layout(2, stage, BUDGET))
    share = 4 * size.trained / 2
    kept_whole = 4 * size.small if stage == 3 else 0
    assert found["weights"] == plan["weights"] - kept_whole
    assert found["optimizer"] == plan["optimizer"]
    assert found["master"] == plan["master"]
    assert found["local"] == 4 * size.trained
    assert found["reduced"] == (0 if stage <= 1 else share)
    optimizers_own = share if stage == 3 else 0  # what its step reads
    kept = found["reduced"] + optimizers_own if stage == 3 else 0
    assert plan["gradients"] == found["local"] + kept


@pytest.mark.parametrize("stage", range(4))
def test_gradients_in_bfloat16_are_rounded_and_no_more(counted, stage):
    """Two ranks: (1 + 2^-8)^2 - 1 of the mean absolute value is the most; most are off by less."""
    assert 2**-11 < counted["stages"]["bf16"][str(stage)]["error"] < 2**-7


def exchanged(size, stage, wire, views, masked):
    """Return the bytes of each kind of exchange, for so many micro-batches of views and of maskings.

    Stage 3 gathers weights at every pass over a micro-batch, forward (views twice, where they are replayed)
    and backward, but for small ones. At stages 1 and 2 DeepSpeed reduces whole gradients to all ranks.
    """
    vectors, gradients = 2 * SEQUENCES * size.width * 4, wire * size.trained
    if stage == 3:
        passes = 2 * (views + masked) + views * (views > 1)
        gathered = 4 * ((size.trained + size.frozen - size.small) * passes + size.small)
        return {"reduce-scatter": gradients, "all-gather": gathered + vectors}
    return {"all-reduce": gradients, "all-gather": 4 * size.trained * (stage > 0) + vectors}


@pytest.mark.parametrize("dtype", WIRE)
@pytest.mark.parametrize("stage", range(4))
def test_bytes_on_the_wire_are_counted(counted, stage, dtype):
    size, found = ModelSize(**counted["size"]), counted["stages"][dtype][str(stage)]
    views, masked = found["micro_batches"]
    planned = exchanged(size, stage, WIRE[dtype], views, masked)
    assert planned.keys() == found["sent"].keys() - ({"all-reduce"} if stage == 3 else set())
    for kind, payload in planned.items():
        small = 2000  # bytes of the step's plan, of losses' sums and of norms
        excess = STAGE_3_EXCESS if (stage, kind) == (3, "all-gather") else 0.0
        assert payload <= found["sent"][kind] <= payload * (1 + excess) + small
