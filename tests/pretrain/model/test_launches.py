"""What runs on a GPU, seen without one: which branch is taken, that the host never waits, what is launched.

`python tests/pretrain/model/launches.py` prints the counts; launches.json beside it holds the budgets.
"""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from launches import FAMILIES, META, TOKENS, as_on_a_gpu, count_micro_batch, make_encoder
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.model import attention as flash
from pretrain.model.kernels import fused
from pretrain.model.layer import layers_of
from pretrain.model.rows import PackedRow

BUDGETS = json.loads(Path(__file__).with_name("launches.json").read_text())
LENGTHS = torch.tensor([5, 9, 5, 140])


@pytest.mark.parametrize("family", FAMILIES)
def test_launches_and_bytes_of_a_micro_batch_stay_within_their_budget(family):
    found = {}
    for name, launches in zip(("train", "embed"), count_micro_batch(make_encoder(family))):
        kilobytes = sum(launches.bytes.values()) / TOKENS / 1e3
        found[name] = {"launches": launches.operators.total(), "kilobytes_a_token": round(kilobytes)}
    within = [
        found[name][what] <= limit for name, of in BUDGETS[family].items() for what, limit in of.items()
    ]
    assert all(within), (
        f"{found}: more than {BUDGETS[family]}; `python tests/pretrain/model/launches.py` shows of what"
    )


@pytest.mark.parametrize(
    "family,length,exact,attention",
    [
        *((family, 128, False, "attention_forward attention_backward") for family in FAMILIES),
        ("bert", 256, False, "_flash_attention_forward _flash_attention_backward"),
        ("bert", 256, True, "long_attention_forward long_attention_of_queries long_attention_of_keys"),
    ],
)
def test_fused_kernels_compute_every_layer_and_flash_attention_long_sequences(
    family, length, exact, attention
):
    encoder = make_encoder(family, layers=4)
    encoder.exact_attention = exact
    train, embed = count_micro_batch(encoder, length)
    for launches, names in ((train, attention.split()), (embed, attention.split()[:1])):
        found = {name: count for name, count in launches.operators.items() if "attention" in name}
        assert found == dict.fromkeys(names, 4)
        assert launches.operators["norm_forward"] == (8 if family == "modernbert" else 9)
        assert not {"native_dropout", "bernoulli_", "_softmax"} & set(launches.operators)
    assert train.operators["cross_entropy"] == 1 and "_log_softmax" not in train.operators


def test_a_host_that_reads_a_value_is_an_error():
    encoder = make_encoder("bert", layers=1)
    ids = torch.zeros(int(LENGTHS.sum()), dtype=torch.long, device=META)
    with as_on_a_gpu():
        encoder.embed(ids, LENGTHS)
        for read in (float, bool, torch.Tensor.tolist, torch.Tensor.cpu):
            with pytest.raises((RuntimeError, NotImplementedError)):
                encoder.embed(ids, LENGTHS, edit=lambda x, read=read: (read(x.detach().sum()), x)[1])


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.devices: dict[str, set[str]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor):
            self.devices.setdefault(function.__name__.split(".")[0], set()).add(first.device.type)
        return output


@pytest.mark.skipif(torch.version.cuda is None, reason="torch's CUDA build is not installed")
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_that_say_they_are_on_cuda_take_the_variable_length_branch(family, monkeypatch):
    """Nothing but the capabilities of a GPU is made up here; a fake tensor's device is `cuda`."""
    monkeypatch.setattr(flash, "_runs_flash", lambda device: device.type == "cuda")
    monkeypatch.setattr(fused, "available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    encoder = make_encoder(family, layers=2)
    ids, keys = torch.zeros(int(LENGTHS.sum()), dtype=torch.long), np.arange(4, dtype=np.uint64)
    row = PackedRow.build(ids, LENGTHS, torch.device("cpu"), 0, 0, keys=keys)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), cuda_autocast():
        for module in encoder.modules():
            module._parameters |= {name: on_cuda(value, True) for name, value in module._parameters.items()}
            module._buffers |= {name: on_cuda(value) for name, value in module._buffers.items()}
        row = replace(row, **on_cuda_all(row), layout=replace(row.layout, **on_cuda_all(row.layout)))
        launched = []
        monkeypatch.setattr(
            fused, "_launch", lambda name, grid, first, *_, **__: launched.append((name, first.device.type))
        )
        with Operators() as operators, encoder.weights_unchanged():
            last = encoder.states_of_row(row).last
            logits = encoder.filled_logits(last)
        assert last.device.type == "cuda" and last.dtype == torch.float32
        assert logits.shape == (len(ids), 30_592) and logits.dtype == torch.bfloat16
        with pytest.raises(DataDependentOutputException):
            float(last.sum())
        with encoder.weights_unchanged(leaf=True):  # gradients are added there, too
            encoder.states_of_row(row)
            for (*_, multiple), copy in encoder.copies._copies.items():
                copy.grad = None if multiple > 1 else torch.empty_like(copy)  # logits' weights are no leaf
            encoder.copies.add_gradients(torch.ones((), device="cuda:0"))
        gradients = [parameter.grad for parameter in layers_of(encoder.lm).parameters()]
        assert {(gradient.device.type, gradient.dtype) for gradient in gradients} == {("cuda", torch.float32)}
    assert operators.devices["_flash_attention_forward"] == {"cuda"}
    assert not any("scaled_dot_product" in name for name in operators.devices)
    assert ("norm_forward", "cuda") in launched


def on_cuda(tensor: torch.Tensor | None, parameter: bool = False) -> torch.Tensor | None:
    if tensor is None:
        return None
    fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda:0")
    return nn.Parameter(fake) if parameter else fake


def on_cuda_all(record: object) -> dict[str, torch.Tensor]:
    return {name: on_cuda(value) for name, value in vars(record).items() if isinstance(value, torch.Tensor)}


@contextmanager
def cuda_autocast():
    """bfloat16 on CUDA, which `torch.autocast` itself turns off where there is no GPU."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
