"""One rank of an exactness run: gradients of the engine against a padded single-device float64 reference.

Run as `python exactness_worker.py OUT.json STAGE CASE,CASE... DROPOUT BALANCE LAYERS PRECISION,...
DEVICE` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. With dropout only float32 is run.
LAYERS is `plain`; `recomputed`, with activation checkpointing; `flash`, by the variable-length branch that
CUDA takes (dropout on probabilities depends on the split there, so DROPOUT leaves it out); or `graphs`, that
branch with rows as graphs, as a GPU has them whatever LAYERS are: then a batch comes three times, and what is
compared is of the last, by graphs that were recorded at the second. The reference shares nothing with the
system but the weights and the token ids: the library's padded model, full similarity matrices, one backward.
"""

import json
import math
import os
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "step"))
os.environ["DS_ACCELERATOR"] = "cuda" if sys.argv[-1] == "cuda" else "cpu"

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from pretrain.common.transfer import Numbers, send
from pretrain.config.objectives import DISTILLING
from pretrain.config.recipe import validate_config
from pretrain.data.batch import RankBatch
from pretrain.data.microbatches import count_micro_batches
from pretrain.losses import contrastive
from pretrain.model.encoder import build_encoder
from pretrain.objectives import BatchContext, build_objective
from pretrain.objectives.vadvcse import sequence_noise
from pretrain.step import placement
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.graphs import Graphs
from pretrain.step.model import SentenceModel
from pretrain.step.placement import balance, imbalance
from pretrain.step.plan import initial_owners, passes_of
from pretrain.step.precision import LossScale
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch

# isort: split
from contrastive_references import NEGATIVES
from encoder_helpers import scale_matrices
from exactness_cases import CASES, CLS, LABELS, MASK, PAD, SEED, SEP, VOCABULARY, WIDTH, N, make_batch, share
from flash_reference import flash_on_cpu
from graph_recorder import Recorder, count_repeats
from objective_references import SYSTEMS, reference_shares
from reference_model import KeyedReference, Reference, double


class FakeTokenizer:
    """What `build_encoder` asks of a tokenizer."""

    pad_token_id, cls_token_id, sep_token_id, mask_token_id = PAD, CLS, SEP, MASK
    bos_token_id, eos_token_id = CLS, SEP
    all_special_ids = (PAD, CLS, SEP, MASK)
    vocab_size = VOCABULARY

    def __len__(self):
        return VOCABULARY

    def __call__(self, text):
        assert not text
        return {"input_ids": [CLS, SEP]}


def reference_gradients(
    model: SentenceModel, whole: dict, config, world: int, systems: tuple[str, ...], dropout: bool
) -> tuple[dict, dict, dict]:
    """(losses, gradients by name, shares) of the formulae, in float64, from padded batches on one device."""
    ref = (KeyedReference if dropout else Reference)(model, PAD, list(whole["outside"].values()))
    weights = model.objective.weights(0)

    def keyed(rows, purpose, number):
        if dropout:
            ref.assign(rows, purpose, number, SEED)
        return rows

    losses, shares, size = {}, {}, len(whole["originals"])
    for copy, (rows, positions) in enumerate(whole["masked"]):
        logits = ref.logits(keyed(rows, "masking", copy))
        picked = [(i, p) for i, chosen in enumerate(positions) for p in chosen]
        target = torch.tensor([whole["originals"][i][p] for i, p in picked])
        losses["mlm"] = losses.get("mlm", 0) + F.cross_entropy(
            torch.stack([logits[i, p] for i, p in picked]), target
        )
    discriminator = None
    if systems:
        rows = whole["views"]
        context = {
            "ids": {r: torch.from_numpy(i) for r, i in whole["identities"].items()},
            "rows": rows,
            "present": {r: torch.from_numpy(p) for r, p in whole["present"].items()},
            "labels": torch.from_numpy(whole["labels"]),
            "number_of_labels": LABELS,
            "progress": 0.0,
            "groups": torch.tensor(
                [next(r for r in range(world) if i < (r + 1) * size // world) for i in range(size)]
            ),
            "generator": lambda purpose: BatchContext(0, 0.0, None, None, {}, None, SEED).generator(purpose),
        }
        if config.objective.view_dropout:
            for number, of in enumerate(rows.values()):
                keyed(of, "view", number)
        vectors = {role: ref.vectors(of) for role, of in rows.items()}
        if model.objective.guide is not None:
            context["guided"] = {role: ref.vectors_of_guide(of) for role, of in rows.items()}
        numbers = {"vadvcse": ("anchor",), "diffcse": ("anchor", "positive")}
        keys = {
            (system, role): sequence_keys(SEED, 0, np.arange(size, dtype=np.uint64), i, "sequence-loss")
            for system, of in numbers.items()
            for i, role in enumerate(of)
        }
        if "vadvcse" in systems:
            lengths = torch.tensor([len(r) for r in rows["anchor"]])
            keyed(rows["anchor"], "sequence-loss", 0)
            context["noise"] = sequence_noise(keys["vadvcse", "anchor"], lengths, WIDTH)
        if "diffcse" in systems:
            term, context["edited"] = model.objective.terms["diffcse"], {}
            for number, role in enumerate(("anchor", "positive")):
                lengths = torch.tensor([len(r) for r in rows[role]])
                edited = term.edit(
                    torch.tensor([token for row in rows[role] for token in row]),
                    lengths,
                    keys["diffcse", role],
                )
                replaced = [part.tolist() for part in edited.split(lengths.tolist())]
                context["edited"][role] = keyed(replaced, "sequence-loss", number)
            discriminator = ref.add(term.discriminator) if dropout else double(term.discriminator.lm)
            context["discriminator"] = discriminator
        if "esimcse" in systems:
            term = model.objective.terms["esimcse"]
            filled = int(term.filled) if term.momentum_role else 0
            queues = (
                (term.queue[:filled].clone(), term.queue_identities[:filled].clone()) if filled else ((), ())
            )
            context |= dict(zip(("queue", "queue_ids"), queues))
        for system in systems:
            chosen = {role: vectors[role] for role in model.objective.terms[system].roles}
            losses |= SYSTEMS[system](ref, chosen, context, config)
        shares = reference_shares(losses, weights, list(vectors.values()), context.get("entering", []))
    total = sum(weights[name] * loss for name, loss in losses.items())
    total.backward()
    gradients = {f"encoder.lm.{n}": p.grad for n, p in ref.lm.named_parameters()}
    gradients |= {f"objective.{n}": p.grad for n, p in ref.heads.items() if ".discriminator.lm." not in n}
    if discriminator is not None:
        prefix = "objective.terms.diffcse.discriminator.lm."
        gradients |= {prefix + n: p.grad for n, p in discriminator.named_parameters()}
    losses = {n: float(v) for n, v in losses.items()}
    return losses, {n: g for n, g in gradients.items() if g is not None}, shares


def engine_gradients(engine) -> dict:
    """Gradients by name as the optimizer is about to see them, whole, on every rank."""
    from deepspeed.utils import safe_get_full_grad

    stage = int(engine.zero_optimization_stage())
    result = {}
    for name, p in engine.module.named_parameters():
        gradient = p.grad if stage <= 1 else safe_get_full_grad(p)
        if gradient is not None:
            result[name] = gradient.detach().double().cpu().clone()
    return result


def errors(got: dict, expected: dict) -> dict:
    """Errors relative to the reference, in L2: of the whole gradient, and the largest of any single
    parameter's.

    A parameter whose gradient is 0 by formula (a bias before batch norm, a key's bias) is held against the
    mean norm instead.
    """
    if missing := set(expected) - set(got):
        raise AssertionError(f"no gradient for {sorted(missing)}")
    difference = {n: float((got[n].reshape(g.shape) - g).norm()) for n, g in expected.items()}
    norm = {n: float(g.norm()) for n, g in expected.items()}
    floor = 0.1 * float(np.mean(list(norm.values())))
    return {
        "error": float(np.linalg.norm(list(difference.values())) / np.linalg.norm(list(norm.values()))),
        "worst_parameter": max(difference[n] / max(norm[n], floor) for n in expected),
    }


def build(case: str, stage: int, precision: str, dropout: float, of_attention: float | None = None):
    of_attention = dropout if of_attention is None else of_attention
    tree = {name: part for name, part in json.loads(json.dumps(CASES[case])).items() if name != "batch"}
    sizes = {
        "type": "bert",
        "layers": 2,
        "hidden_size": WIDTH,
        "heads": 4,
        "max_positions": 64,
        "dropout": dropout,
        "attention_dropout": of_attention,
    }
    tree["model"] = {"pooling": "mean"} | tree.get("model", {}) | sizes
    tree.setdefault("objective", {}).setdefault("contrastive", {}).update(projection_size=16, temperature=0.1)
    tree["augment"] = {"augmented": "del-word|reorder|repeat"}
    if stage <= 1:  # several buckets, of which most leave during the last backward pass
        tree["deepspeed"] = {"zero_optimization": {"reduce_bucket_size": 5000}}
    settings = {"zero": stage, "global_batch": N, "steps": 10, "warmup_steps": 0, "clip": 0.0}
    tree["train"] = settings | tree.get("train", {})
    torch.manual_seed(7)
    architecture = sizes | {"intermediate_size": 2 * WIDTH}
    with tempfile.TemporaryDirectory() as folder:
        if "diffcse" in tree["objective"]:
            lm = build_encoder(architecture | {"hidden_size": 16}, FakeTokenizer()).lm
            lm.config.save_pretrained(folder)
            save_file(
                {n: p.contiguous() for n, p in lm.state_dict().items() if "decoder" not in n},
                Path(folder) / "model.safetensors",
                {"format": "pt"},
            )
            tree["objective"]["diffcse"]["generator"] = folder
        config = validate_config(tree, case)
        encoder = build_encoder(architecture, FakeTokenizer(), config.model.pooling)
        if config.model.token_weights == "sif":
            encoder.token_weights = torch.linspace(0.01, 1.0, VOCABULARY)
        scale_matrices(encoder)
        guide = None
        if config.objective.guide is not None:  # another encoder, of another width unless it is compared with
            losses = {
                getattr(config.objective, name).loss for name in DISTILLING if name in config.objective.parts
            }
            width = WIDTH if losses & {"mse", "cosine"} else 16
            guide = build_encoder(architecture | {"hidden_size": width}, FakeTokenizer(), "mean").eval()
            scale_matrices(guide.requires_grad_(False))
        objective = build_objective(config, encoder, FakeTokenizer(), LABELS, guide)
    for module in objective.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # the references have none in heads
    with torch.no_grad():
        for name, parameter in objective.named_parameters():
            if parameter.ndim == 2 and ".head." in name:
                parameter.mul_(8)
        if "esimcse" in objective.terms and objective.terms["esimcse"].momentum_role:
            objective.terms["esimcse"].queue.normal_()
            objective.terms["esimcse"].queue_identities.copy_(
                torch.arange(-20, -20 + len(objective.terms["esimcse"].queue))
            )
            objective.terms["esimcse"].filled.fill_(24)  # the last ones are texts of this batch
    return config, SentenceModel(encoder, objective, precision)


def replayed(engine, batch: RankBatch, seed: int, budget: int, config) -> dict:
    """Gradients with every micro-batch's graph kept alive, one rank: the same layout, the same dropout, one
    backward."""
    model = engine.module
    for p in model.parameters():
        p.grad = None

    def on_device(rows):
        return [row.moved(iter(send(row.moving, engine.device))) for row in rows]

    vectors = torch.zeros(len(batch.views) * N, WIDTH, device=engine.device)
    views = Ragged.concatenate([view.tokens for view in batch.views.values()])
    count = count_micro_batches(views.lengths, budget)
    passes = passes_of(batch, model.objective, budget, seed, 0)
    for row in on_device(passes["views"].micro_batches(count)):
        vectors = vectors.index_put((row.rows,), model.embed(row))
    same = {role: torch.from_numpy(view.identities).to(engine.device) for role, view in batch.views.items()}
    groups = torch.zeros(N, dtype=torch.long, device=engine.device)
    context = BatchContext(batch.step, 0.0, groups, same, {}, None, seed)
    by_role = dict(zip(batch.views, vectors.unflatten(0, (-1, N))))
    total = model.relate(by_role, context)["contrastive"] * config.objective.contrastive.weight
    masked = batch.masked[0]
    count = count_micro_batches(masked.lengths, budget)
    for row in on_device(passes["masking 0"].micro_batches(count)):
        total = total + model.masked_loss(row) / len(masked.positions)
    total.backward()
    return {n: p.grad.double().cpu().clone() for n, p in model.named_parameters() if p.grad is not None}


def dropout_replay() -> dict:
    """Errors of the gradients with dropout, beside those of one backward through the same dropout."""
    config, model = build("clear_mean", 0, "fp32", 0.2)
    engine = build_engine(model, config)
    engine.train()
    batch = share(make_batch(5, 1, ("anchor", "positive")), 0, 1, 4)
    WholeBatch(engine, 5, 90).compute(batch)
    got = engine_gradients(engine)
    return errors(got, replayed(engine, batch, 5, 90, config))


def mlm_weight() -> dict:
    """Errors in bfloat16 of what the loss's weight makes of the gradient: it is a float32 factor."""
    config, model = build("mlm", 0, "bf16", 0.0)
    engine, gradients = build_engine(model, config), []
    for weight in (0.7, 1.0):
        model.objective.mlm_weight = weight
        WholeBatch(engine, SEED, 90).compute(share(make_batch(5, 1, ()), 0, 1, 0))
        gradients.append(engine_gradients(engine))
        engine.zero_grad()
    return errors(gradients[0], {name: 0.7 * of for name, of in gradients[1].items()})


def needed_micro_batches(
    shares: list[RankBatch], model: SentenceModel, budget: int, how: str
) -> tuple[int, int]:
    """How many micro-batches of views and of a masking the rank that needs the most has to make."""
    step = shares[0].step
    roles = model.objective.roles if model.objective.needs_views(step) else ()
    masks = shares[0].masked if model.objective.weights(step).get("mlm", 0) > 0 else []
    views = [[of.views[role].tokens.lengths for of in shares] for role in roles]
    return (
        _most_micro_batches(views, budget, how) if roles else 0,
        _most_micro_batches([[of.masked[0].lengths for of in shares]], budget, how) if masks else 0,
    )


def _most_micro_batches(lengths_by_role: list[list[np.ndarray]], budget: int, how: str) -> int:
    lengths, world = (
        np.concatenate([own for role in lengths_by_role for own in role]),
        len(lengths_by_role[0]),
    )
    owners = initial_owners([len(own) for own in lengths_by_role[0]], len(lengths_by_role))
    if how != "off" and world > 1:
        assert imbalance(lengths, owners, world) > 1.3
        owners = balance(lengths, owners, world)
        assert imbalance(lengths, owners, world) < 1.1
    return max(count_micro_batches(lengths[owners == rank], budget) for rank in range(world))


def vectors_of_equal_shares(stage: int, rank: int, world: int) -> torch.Tensor:
    """float32[views, N, d] of a batch in which every rank has the same sequences, with dropout."""
    config, model = build("clear_mean", stage, "fp32", 0.2)
    engine = build_engine(model, config)
    engine.train()
    same = share(make_batch(5, 1, ("anchor", "positive")), 0, world, 4)
    same = replace(same, sequence_ids=same.sequence_ids + np.uint64(rank * N))
    views = WholeBatch(engine, SEED, 10**6).compute(same).views
    engine.destroy()
    return views


def main() -> None:
    out, stage, cases = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    rate, how = float(sys.argv[4]), sys.argv[5]
    if how == "off":
        placement.ABOVE = math.inf
    layers, precisions = sys.argv[6], ["fp32"] if rate else sys.argv[7].split(",")
    attention = flash_on_cpu if layers in ("flash", "graphs") else nullcontext
    of_attention = 0.0 if layers in ("flash", "graphs") else rate
    if sys.argv[8] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    start_processes()
    rank, world = dist.get_rank(), dist.get_world_size()
    report = []
    for case in cases:
        for precision in ("fp16",) if case.startswith("faint") else precisions:
            config, model = build(case, stage, precision, rate, of_attention)
            own = CASES[case].get("batch", {})
            whole = make_batch(5, model.objective.masked_copies, model.objective.roles, how != "off", **own)
            model.encoder.leave_out(np.array(prompt, np.int32) for prompt in whole["outside"].values())
            NEGATIVES.clear()
            systems = () if case == "not_yet" else tuple(model.objective.terms)
            expected_losses, expected, expected_shares = reference_gradients(
                model, whole, config, world, systems, rate > 0
            )
            if layers == "recomputed":
                model.encoder.recompute_layers()
            engine = build_engine(model, config)
            graphs = Graphs(engine, "auto", record=Recorder() if layers == "graphs" else None)
            update = Update(engine, 0.0, graphs=graphs)
            batch = share(whole, rank, world, 0)
            shares = [share(whole, other, world, 0) for other in range(world)]
            every = max(
                sum(v.tokens.num_tokens for v in of.views.values()) or of.original.num_tokens for of in shares
            )
            scale = LossScale(engine.module, 2.0**20 if precision == "fp16" else 1024.0)
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            for pieces in (1, 2, 4):
                # each rank computes the whole loss, or its share of it
                contrastive.SMALLEST_SHARED = 2**20 if pieces == 2 else 0
                budget = max(32, -(-every // pieces) + (24 if pieces > 1 else 0))
                # a run scales in float16 alone: else graphs do not divide by it (`RowGraph.divides`)
                scaled = precision == "fp16" or (pieces == 2 and not graphs.on)
                scaling = scale if scaled else None
                computes = WholeBatch(engine, SEED, budget, scaling, lanes=N, graphs=graphs)
                computes.adds = stage <= 1 and (pieces > 1 or graphs.on)  # as on a GPU
                for turn in range(3 if graphs.on else 1):
                    if turn:
                        engine.module.zero_grad()
                    for name, buffer in engine.module.named_buffers():
                        buffer.copy_(buffers[name])  # ESimCSE's queue moves with every batch
                    repeats = count_repeats(graphs)
                    with attention():
                        result = computes.compute(batch, collects_diagnostics=pieces > 1)
                got = engine_gradients(engine)
                needed = needed_micro_batches(shares, model, budget, how)
                report.append(
                    {
                        "case": case,
                        "precision": precision,
                        "stage": stage,
                        "world": world,
                        "micro_batches": result.micro_batches,
                        "needed_micro_batches": needed,
                        "repeats": repeats["backward"],
                        "losses": Numbers(result.losses).read(),
                        "expected_losses": expected_losses,
                        "negatives": result.negatives,
                        "expected_negatives": max(NEGATIVES, default=None),
                        "measures": Numbers(result.measures).read() if pieces > 1 else {},
                        "expected_shares": expected_shares if pieces > 1 else {},
                        **errors(got, expected),
                    }
                )
                for group in engine.optimizer.param_groups:
                    group["lr"] = 0.0
                update.apply(result.losses["total"])  # clears gradients; at learning rate 0 the weights stay
            engine.destroy()
    dropout = {}
    if world > 1 and not rate:
        first, second = vectors_of_equal_shares(stage, rank, world).unflatten(1, (world, -1)).unbind(1)[:2]
        cosine = F.cosine_similarity(first, second, dim=-1)
        dropout = {"largest_cosine_between_ranks": float(cosine.max()), "sequences": cosine.numel()}
    if world == 1 and stage == 0 and not rate:
        empty = {name: {} for name in ("losses", "expected_losses", "measures", "expected_shares")}
        empty |= {"micro_batches": [0, 0], "needed_micro_batches": [0, 0]}
        for case, check in (("dropout_replay", dropout_replay), ("mlm_weight", mlm_weight)):
            with attention():
                found = check()
            report.append({"case": case, "precision": "fp32", "stage": 0, "world": 1} | found | empty)
    if rank == 0:
        out.write_text(json.dumps({"rows": report, "dropout": dropout}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
