"""Weights between an encoder's start and what training made of it (WiSE-FT, Wortsman et al. 2022).

w = (1 - alpha) start + alpha adapted. Fine-tuned weights lie near enough to their start that those between
are good ones: they may have most of what is gained, and have forgotten less.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoModel

from augment.core.pretrained import pretrained, pretrained_model, require_weights
from finetune.encoders.source import cached_folder
from pretrain.common.files import copy_tree, filled_folder, let_read, remove_file, replace_durably, to_json
from pretrain.export.folder import MARK
from pretrain.export.sums import CARD, SUMS, WEIGHTS, write_sums

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def average(start: str, adapted: Path, alpha: float, out: Path) -> Path:
    """Write an export with weights between a start and the export `adapted`; return `out`.

    What the start lacks, as a masked-language head or tokens that were added, stays as in `adapted`.

    Args:
        start: folder or name of a model of transformers, of the same architecture.
        alpha: share of the adapted weights.
    """
    require_weights(adapted)
    with torch.random.fork_rng(devices=[]):
        before = pretrained_model(AutoModel, start).state_dict()
    prefix = MODEL_FOR_MASKED_LM_MAPPING[type(pretrained(AutoConfig, adapted))].base_model_prefix
    weights = load_file(adapted / WEIGHTS)
    for name, tensor in weights.items():
        own = before.get(name.removeprefix(f"{prefix}."))
        if own is None or not tensor.is_floating_point() or alpha == 1:  # lerp would turn -0.0 into 0.0
            continue
        rows = own.float()
        if own.shape != tensor.shape:  # tokens that were added have rows behind the start's
            rows = torch.cat([rows, tensor[len(own) :].float()])
        weights[name] = torch.lerp(rows, tensor.float(), alpha).to(tensor.dtype).contiguous()
    with filled_folder(out) as hidden:
        copy_tree(adapted, hidden)
        save_file(weights, hidden / WEIGHTS, metadata={"format": "pt"})
        let_read(hidden)
        if alpha < 1 and (card := hidden / CARD).is_file():
            what = f"{1 - alpha:g} of the start and {alpha:g} of what was trained" if alpha else "the start"
            note = f"The weights are {what}; what follows is of the training."
            text = card.read_text("utf-8").replace("\n\n", f"\n\n{note}\n\n", 1)
            replace_durably(card, text.encode())
        _mark(hidden, start, alpha)
    return out


def keep_start(start: str, adapted: Path, out: Path) -> Path:
    """Write the start where an export would be, to give the vectors that it gives itself; return `out`.

    One that brings its modules is copied as it is; another gets those of the export `adapted`, by which it
    was asked.
    """
    folder = Path(start) if Path(start).is_dir() else cached_folder(start)
    if folder is None or not all((folder / name).is_file() for name in ("modules.json", WEIGHTS)):
        return average(start, adapted, 0.0, out)
    with filled_folder(out) as hidden:
        copy_tree(folder, hidden)
        let_read(hidden)
        if (hidden / MARK).is_file():
            _mark(hidden, start, 0.0)
    return out


def _mark(folder: Path, start: str, alpha: float) -> None:
    """Say in an export's clear.json what its weights are, and write its sums."""
    policy = json.loads((folder / MARK).read_text("utf-8"))
    policy["average"] = {"start": Path(start).name, "alpha": alpha}
    if not alpha:
        policy |= {"step": 0, "progress": {}}
    replace_durably(folder / MARK, to_json(policy))
    remove_file(folder / SUMS)
    write_sums(folder)
