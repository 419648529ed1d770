"""One rank of an exactness run: gradients of the engine against a padded single-device float64 reference.

Run as `python exactness_worker.py OUT.json STAGE CASE,CASE...` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
The reference shares nothing with the system but the weights and the token ids: the library's padded model, full
similarity matrices, one backward.
"""

import copy
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["DS_ACCELERATOR"] = "cpu"

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from augment.ragged import Ragged
from pretrain.config import validate_config
from pretrain.encoder import build_encoder
from pretrain.engine import build_engine, start_processes
from pretrain.loader import RankBatch
from pretrain.masking import Masked
from pretrain.model import SentenceModel
from pretrain.objectives import build_objective
from pretrain.whole_batch import WholeBatch

VOCABULARY, PAD, CLS, SEP, MASK, WIDTH = 96, 0, 1, 2, 3, 32
N = 16  # sequences of the global batch


class FakeTokenizer:
    """What `build_encoder` asks of a tokenizer."""

    pad_token_id, cls_token_id, sep_token_id, mask_token_id = PAD, CLS, SEP, MASK
    bos_token_id, eos_token_id = CLS, SEP
    all_special_ids = (PAD, CLS, SEP, MASK)

    def __len__(self):
        return VOCABULARY


def make_batch(seed: int, copies: int, views: int) -> dict:
    """A global batch: every part as lists of token lists."""
    rng = np.random.default_rng(seed)

    def sequence(length):
        return [CLS, *rng.integers(5, VOCABULARY, length).tolist(), SEP]

    originals = [sequence(rng.integers(1, 20)) for _ in range(N)]
    masked = []
    for _ in range(copies):
        rows, positions = [], []
        for row in originals:
            chosen = sorted(rng.choice(np.arange(1, len(row) - 1), max(1, len(row) // 6), replace=False).tolist())
            rows.append([MASK if i in chosen else token for i, token in enumerate(row)])
            positions.append(chosen)
        masked.append((rows, positions))
    return {"originals": originals, "masked": masked,
            "views": [[sequence(rng.integers(1, 14)) for _ in range(N)] for _ in range(views)]}


def share(whole: dict, rank: int, world: int, step: int) -> RankBatch:
    """This rank's consecutive share of the batch, in the system's own types."""
    part = slice(rank * N // world, (rank + 1) * N // world)
    masked = []
    for rows, positions in whole["masked"]:
        batch = Ragged.from_sequences(rows[part])
        where = [batch.offsets[i] + p for i, chosen in enumerate(positions[part]) for p in chosen]
        labels = [whole["originals"][part][i][p] for i, chosen in enumerate(positions[part]) for p in chosen]
        masked.append(Masked(batch, np.array(where, np.int64), np.array(labels, np.int32)))
    return RankBatch(step=step, epoch=0, sequence_ids=np.arange(N, dtype=np.uint64)[part],
                     original=Ragged.from_sequences(whole["originals"][part]), masked=masked,
                     views=[Ragged.from_sequences(v[part]) for v in whole["views"]],
                     identities=[np.arange(N)[part] for _ in whole["views"]],
                     present=[np.ones(N, bool)[part] for _ in whole["views"]], labels=None, substitutions=[])


def reference_gradients(model: SentenceModel, whole: dict, config, world: int) -> tuple[dict, dict]:
    """(losses, gradients by name) of the formulae, in float64, from padded batches on one device."""
    settings = copy.deepcopy(model.encoder.lm.config)
    settings._attn_implementation = "eager"
    lm = type(model.encoder.lm)(settings)
    lm.load_state_dict(model.encoder.lm.state_dict())
    lm.tie_weights()
    lm.double().eval()
    heads = {name: p.detach().double().requires_grad_() for name, p in model.objective.named_parameters()}

    def padded(rows):
        width = max(map(len, rows))
        ids = torch.tensor([r + [PAD] * (width - len(r)) for r in rows])
        attention = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
        return ids, attention

    losses = {}
    total = torch.zeros((), dtype=torch.float64)
    mlm = 0.0
    for rows, positions in whole["masked"]:
        ids, attention = padded(rows)
        logits = lm(input_ids=ids, attention_mask=attention).logits
        picked = [(i, p) for i, chosen in enumerate(positions) for p in chosen]
        target = torch.tensor([whole["originals"][i][p] for i, p in picked])
        mlm = mlm + F.cross_entropy(torch.stack([logits[i, p] for i, p in picked]), target)
    if whole["masked"]:
        losses["mlm"] = mlm.item()
        total = total + config.objective.mlm.weight * mlm
    if whole["views"] and config.objective.name != "mlm":
        settings, vectors = config.objective.contrastive, []
        for rows in whole["views"]:
            ids, attention = padded(rows)
            hidden = lm.base_model(input_ids=ids, attention_mask=attention).last_hidden_state
            keep = attention.unsqueeze(-1).double()
            vectors.append(hidden[:, 0] if config.model.pooling == "cls" else (hidden * keep).sum(1) / keep.sum(1))
        z = torch.cat(vectors)
        first, second = "projection.layers.0", "projection.layers.2"
        if settings.projection_layers:
            z = F.linear(z, heads[f"{first}.weight"], heads[f"{first}.bias"])
        if settings.projection_batch_norm:  # over the whole global batch, both views together
            norm, second = "projection.layers.1", "projection.layers.3"
            z = (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() * heads[f"{norm}.weight"] + heads[f"{norm}.bias"]
        if settings.projection_layers:
            z = F.linear(F.relu(z), heads[f"{second}.weight"], heads[f"{second}.bias"])
        z = F.normalize(z, dim=1)
        logits = z @ z.T / settings.temperature
        logits.fill_diagonal_(-torch.inf)
        if settings.scope == "local":
            group = torch.arange(world).repeat_interleave(N // world).repeat(2)
            logits = logits.masked_fill(group[:, None] != group[None, :], -torch.inf)
        contrastive = F.cross_entropy(logits, (torch.arange(2 * N) + N) % (2 * N))
        losses["contrastive"] = contrastive.item()
        total = total + settings.weight * contrastive
    total.backward()
    gradients = {f"encoder.lm.{n}": p.grad for n, p in lm.named_parameters()}
    gradients |= {f"objective.{n}": p.grad for n, p in heads.items()}
    return losses, {n: g for n, g in gradients.items() if g is not None}


def engine_gradients(engine) -> dict:
    """Gradients by name as the optimizer is about to see them, whole, on every rank."""
    from deepspeed.utils import safe_get_full_grad

    stage = int(engine.zero_optimization_stage())
    result = {}
    for name, p in engine.module.named_parameters():
        gradient = p.grad if stage == 0 else safe_get_full_grad(p)
        if gradient is not None:
            result[name] = gradient.detach().double().clone()
    return result


def errors(got: dict, expected: dict) -> dict:
    """Errors relative to the reference, in L2: of the whole gradient, and the largest of any single parameter's.

    A parameter whose gradient is 0 by formula (a bias before batch norm, a key's bias) is held against the mean norm instead.
    """
    if missing := set(expected) - set(got):
        raise AssertionError(f"no gradient for {sorted(missing)}")
    difference = {n: float((got[n].reshape(g.shape) - g).norm()) for n, g in expected.items()}
    norm = {n: float(g.norm()) for n, g in expected.items()}
    floor = 0.1 * float(np.mean(list(norm.values())))
    return {"error": float(np.linalg.norm(list(difference.values())) / np.linalg.norm(list(norm.values()))),
            "worst_parameter": max(difference[n] / max(norm[n], floor) for n in expected)}


CASES = {
    "mlm": {"objective": {"name": "mlm"}},
    "double_mlm": {"objective": {"name": "mlm", "mlm": {"copies": 2}}},
    "clear_mean": {"model": {"pooling": "mean"}},
    "clear_cls": {"model": {"pooling": "cls"}, "objective": {"contrastive": {"weight": 0.7}}},
    "clear_batch_norm": {"model": {"pooling": "mean"}, "objective": {"contrastive": {"projection_batch_norm": True}}},
    "clear_no_head": {"model": {"pooling": "mean"}, "objective": {"contrastive": {"projection_layers": 0}}},
    "clear_local": {"model": {"pooling": "mean"}, "objective": {"contrastive": {"scope": "local"}}},
    "contrastive_only": {"model": {"pooling": "mean"}, "objective": {"mlm": {"weight": 0.0}}},
    "not_yet": {"model": {"pooling": "mean"}, "objective": {"contrastive": {"start_step": 100}}},
}


def build(case: str, stage: int, precision: str, dropout: float):
    tree = json.loads(json.dumps(CASES[case]))
    tree.setdefault("model", {})
    tree["model"] |= {"type": "bert", "layers": 2, "hidden_size": WIDTH, "heads": 4, "max_positions": 64, "dropout": dropout,
                      "attention_dropout": dropout}
    tree.setdefault("objective", {}).setdefault("contrastive", {}).update(projection_size=16, temperature=0.1)
    tree["train"] = {"zero": stage, "global_batch": N, "steps": 10, "warmup_steps": 0, "clip": 0.0}
    config = validate_config(tree, case)
    torch.manual_seed(7)
    architecture = config.model.model_dump(exclude={"init", "pooling"}, exclude_none=True) | {"intermediate_size": 2 * WIDTH}
    encoder = build_encoder(architecture, FakeTokenizer(), config.model.pooling)
    with torch.no_grad():  # weights of ordinary size: tiny ones hide errors in attention
        for p in encoder.parameters():
            if p.ndim == 2:
                p.mul_(4)
    model = SentenceModel(encoder, build_objective(config, WIDTH), precision)
    return config, model


def replayed(engine, batch: RankBatch, seed: int, budget: int, config) -> dict:
    """Gradients with every micro-batch's graph kept alive, one rank: the same layout, the same dropout, one backward."""
    from augment.ragged import Ragged as R
    from pretrain.microbatches import count_micro_batches, cut
    from pretrain.objectives import BatchContext
    from pretrain.whole_batch import micro_seed, select_positions

    model = engine.module
    for p in model.parameters():
        p.grad = None
    views = R.concatenate(batch.views)
    rows = cut(views.lengths, count_micro_batches(views.lengths, budget))
    vectors = torch.zeros(len(views), WIDTH)
    for index, part in enumerate(rows):
        torch.manual_seed(micro_seed(seed, batch.step, 0, 0, index))
        chosen = views.take(part)
        vectors = vectors.index_put((torch.from_numpy(part),),
                                    model("embed", torch.from_numpy(chosen.ids).long(), torch.from_numpy(chosen.lengths)))
    context = BatchContext(batch.step, torch.zeros(N, dtype=torch.long))
    total = model("relate", vectors.unflatten(0, (2, N)), context)["contrastive"] * config.objective.contrastive.weight
    masked = batch.masked[0]
    for index, part in enumerate(cut(masked.batch.lengths, count_micro_batches(masked.batch.lengths, budget))):
        torch.manual_seed(micro_seed(seed, batch.step, 0, 1, index))
        chosen = masked.batch.take(part)
        positions, labels = select_positions(masked.batch, part, masked.positions, masked.labels)
        total = total + model("mlm", torch.from_numpy(chosen.ids).long(), torch.from_numpy(chosen.lengths), positions,
                              labels) / len(masked.positions)
    total.backward()
    return {n: p.grad.double().clone() for n, p in model.named_parameters() if p.grad is not None}


def main() -> None:
    out, stage, cases = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    torch.set_num_threads(1)
    start_processes()
    rank, world = dist.get_rank(), dist.get_world_size()
    report = []
    for case in cases:
        for precision in ("fp32", "bf16"):
            config, model = build(case, stage, precision, 0.0)
            copies, views = model.objective.masked_copies, model.objective.views
            whole = make_batch(3, copies, views)
            expected_losses, expected = reference_gradients(model, whole, config if case != "not_yet" else
                                                            config.model_copy(update={"objective": config.objective.model_copy(
                                                                update={"name": "mlm"})}), world)
            engine = build_engine(model, config)
            batch = share(whole, rank, world, 0)
            every = sum(v.num_tokens for v in batch.views) or batch.original.num_tokens
            for pieces in (1, 2, 4):
                budget = max(24, -(-every // pieces) + (24 if pieces > 1 else 0))
                result = WholeBatch(engine, 5, budget).compute(batch)
                got = engine_gradients(engine)
                report.append({
                    "case": case, "precision": precision, "stage": stage, "world": world, "micro_batches": result.micro_batches,
                    "losses": result.losses, "expected_losses": expected_losses, **errors(got, expected)})
                for group in engine.optimizer.param_groups:
                    group["lr"] = 0.0
                engine.step()  # clears gradients; at learning rate 0 the weights stay
            engine.destroy()
    if world == 1 and stage == 0:
        config, model = build("clear_mean", 0, "fp32", 0.2)
        engine = build_engine(model, config)
        engine.train()
        batch = share(make_batch(3, 1, 2), 0, 1, 4)
        WholeBatch(engine, 5, 90).compute(batch)
        got = engine_gradients(engine)
        expected = replayed(engine, batch, 5, 90, config)
        report.append({"case": "dropout_replay", "precision": "fp32", "stage": 0, "world": 1, **errors(got, expected),
                       "losses": {}, "expected_losses": {}, "micro_batches": [0, 0]})
    if rank == 0:
        out.write_text(json.dumps(report))
    dist.barrier()


if __name__ == "__main__":
    main()
