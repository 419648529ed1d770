"""The masked language modelling loss against the library's head and a float64 cross-entropy, gradients
included."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from encoder_helpers import make_encoder
from run_helpers import ROOT, finish, start
from torch.nn.functional import cross_entropy

from pretrain.losses import mlm
from pretrain.losses.mlm import masked_lm_loss
from pretrain.model import encoder as encoder_module
from pretrain.model.kernels.plain import cross_entropy_sum


def test_cross_entropy_sum_equals_the_reference():
    logits = torch.randn(9, 50, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 50, (9,))
    assert torch.autograd.gradcheck(lambda x: cross_entropy_sum(x, labels, x.shape[1]), logits)
    torch.testing.assert_close(
        cross_entropy_sum(logits, labels, logits.shape[1]), cross_entropy(logits, labels, reduction="sum")
    )


def test_cross_entropy_of_bfloat16_logits_is_summed_in_float32():
    logits = (4 * torch.randn(200, 300)).bfloat16().requires_grad_()
    labels = torch.randint(0, 300, (200,))
    loss = cross_entropy_sum(logits, labels, logits.shape[1])
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (weighted,) = torch.autograd.grad(0.7 * loss, logits)  # the weight stays float32
    assert torch.equal(weighted, (0.7 * gradient.float()).bfloat16())
    expected = cross_entropy(wide := logits.detach().double().requires_grad_(), labels, reduction="sum")
    (wanted,) = torch.autograd.grad(expected, wide)
    assert loss.dtype == torch.float32 and gradient.dtype == torch.bfloat16
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient.double(), wanted, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "distilbert", "electra"])
@pytest.mark.parametrize("tile_bytes", [None, 4, 520])
def test_masked_lm_loss_equals_the_library_head_and_cross_entropy(family, tile_bytes, monkeypatch):
    if tile_bytes:
        monkeypatch.setitem(mlm.TILE_BYTES, "cpu", tile_bytes)
    encoder = make_encoder(family).double()
    hidden = torch.randn(30, 32, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([0, 3, 4, 17, 29])
    labels = torch.randint(0, encoder.vocab_size, (5,), dtype=torch.int32)
    wanted = list(encoder.lm.parameters())
    ours = masked_lm_loss(encoder, hidden, positions, labels)
    theirs = cross_entropy(encoder.mlm_logits(hidden)[positions], labels.long(), reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, expected in zip(
        torch.autograd.grad(ours, [hidden, *wanted], allow_unused=True),
        torch.autograd.grad(theirs, [hidden, *wanted], allow_unused=True),
    ):
        assert (mine is None) == (expected is None)
        if mine is not None:
            torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_masked_lm_loss_without_masked_positions_still_reaches_the_head():
    encoder = make_encoder("bert")
    hidden = torch.randn(4, 32, requires_grad=True)
    loss = masked_lm_loss(encoder, hidden, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0.0 and not hidden.grad.any()
    assert all(p.grad is not None and not p.grad.any() for p in encoder.lm.cls.parameters())


@pytest.mark.parametrize("tile_bytes", [2**27, 520])
def test_masked_lm_loss_under_autocast_is_float32(tile_bytes, monkeypatch):
    encoder = make_encoder("bert")
    hidden = torch.randn(30, 32, requires_grad=True)
    positions, labels = torch.arange(0, 30, 3), torch.randint(0, encoder.vocab_size, (10,))
    exact = masked_lm_loss(encoder, hidden, positions, labels)
    monkeypatch.setitem(mlm.TILE_BYTES, "cpu", tile_bytes)
    with torch.autocast("cpu", torch.bfloat16):
        loss = masked_lm_loss(encoder, hidden, positions, labels)
    loss.backward()
    assert loss.dtype == torch.float32 and hidden.grad.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)


@pytest.mark.slow
def test_ranks_with_unequal_tiles_do_not_hang_under_zero_3(tmp_path):
    """Weights are gathered by collectives, once a tile: all ranks must run as many tiles. 2 ranks, CPU."""
    import tiles_worker

    path = os.pathsep.join(map(str, [ROOT, *Path(__file__).parents[1:3]]))
    finish(start([tiles_worker.__file__, str(tmp_path / "gradients.pt")], ranks=2, PYTHONPATH=path))
    model = tiles_worker.Model()
    (model(0) + model(1)).backward()
    gradients = torch.load(tmp_path / "gradients.pt")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            gradients[name].view_as(parameter), parameter.grad, rtol=1e-4, atol=1e-5, msg=name
        )


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "distilbert", "electra"])
def test_a_vocabulary_that_is_filled_up_changes_neither_loss_nor_parameters(family, monkeypatch):
    """What a GPU does, under bfloat16 on a CPU: 65 tokens as 128."""
    encoder = make_encoder(family)
    names = {name: value.shape for name, value in encoder.state_dict().items()}
    hidden, positions = torch.randn(30, 32), torch.tensor([0, 3, 4, 17, 29])
    labels = torch.tensor([64, 0, 5, 33, 64])
    widths = []

    def run():
        leaf = hidden.clone().requires_grad_()
        with encoder.weights_unchanged(), torch.autocast("cpu", torch.bfloat16):
            widths.append(encoder.filled_logits(hidden).shape[1])
            loss = masked_lm_loss(encoder, leaf, positions, labels)
        loss.backward()
        gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
        encoder.zero_grad(set_to_none=True)
        return loss.detach(), gradients | {"hidden": leaf.grad}

    loss, gradients = run()
    monkeypatch.setattr(encoder_module, "fills_up", lambda weight: True)
    filled, found = run()
    assert widths == [65, 128]
    torch.testing.assert_close(filled, loss, rtol=1e-5, atol=1e-5)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert found[name].dtype == gradient.dtype and found[name].shape == gradient.shape
        error = torch.linalg.vector_norm(found[name] - gradient)
        assert error <= 0.02 * torch.linalg.vector_norm(gradient) + 1e-6, name
    assert {name: value.shape for name, value in encoder.state_dict().items()} == names


def test_logits_are_filled_up_on_a_gpu_under_autocast_only(monkeypatch):
    weight = torch.zeros(65, 32, device="meta")
    assert not encoder_module.fills_up(torch.zeros(65, 32))
    on_gpu = SimpleNamespace(device=torch.device("cuda", 0))
    assert not encoder_module.fills_up(on_gpu)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    assert encoder_module.fills_up(on_gpu) and not encoder_module.fills_up(weight)
    on_gpu.ds_id = 3  # ZeRO-3 gathers it for the module's forward alone
    assert not encoder_module.fills_up(on_gpu)


def test_a_tile_of_logits_is_bound_in_bytes_of_their_type(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert mlm.tile_rows(cpu, 2**10) == 2**15 and mlm.tile_rows(cuda, 2**10) == 2**18
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    assert mlm.tile_rows(cpu, 2**10) == 2**15  # read in float32
    assert mlm.tile_rows(cuda, 2**10) == 2**19 and mlm.tile_rows(cuda, 2**31) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("half,tiles", [(False, 8), (True, 4)])
def test_on_a_gpu_a_tile_of_logits_is_bound_in_bytes_of_their_type(monkeypatch, half, tiles):
    encoder = make_encoder("bert").cuda()
    monkeypatch.setitem(mlm.TILE_BYTES, "cuda", 4 * 8 * encoder.vocab_size)
    made, filled_logits = [], encoder.filled_logits
    monkeypatch.setattr(
        encoder, "filled_logits", lambda states: made.append(filled_logits(states)) or made[-1]
    )
    rows = torch.arange(64, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
        masked_lm_loss(encoder, torch.zeros(64, 32, device="cuda"), rows, torch.zeros_like(rows))
    assert len(made) == tiles and all(logits.element_size() == (2 if half else 4) for logits in made)
