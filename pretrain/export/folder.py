"""Write and read exports: folders with an encoder as transformers and sentence-transformers load it."""

import filecmp
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from augment.core.pretrained import pretrained, quiet_transformers
from pretrain.checkpoint import store
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.common.run_folder import require_folder
from pretrain.config.recipe import as_yaml
from pretrain.data.tokenizer import DEL, cleaning_tokenizer, tokenizer_hash, without_del
from pretrain.export.model_card import model_card
from pretrain.export.sentence_transformers import (
    POOLED_TYPES,
    Interface,
    weights_by_token,
    write_modules,
    write_static,
)
from pretrain.export.sums import write_sums
from pretrain.model.architectures import family_of
from pretrain.model.heads import ProjectionHead, simcse_head
from pretrain.model.pooling import WORDS

FORMAT_VERSION = 1
SECONDS_FOR_ANOTHER = 600.0
"""How long to wait for another process that writes the same export; one takes seconds."""
MARK = "clear.json"
"""The file that marks a folder as an export, which a newer one may replace."""


def export(
    source: str | Path, out: str | Path | None = None, step: int | str = "latest", trial: Path | None = None
) -> Path:
    """Export a checkpoint.

    Args:
        source: a run folder, its checkpoints/ folder, or one checkpoint's folder.
        out: the folder to write; None: RUN/export, or of the best RUN/best as it is. An export there is
            replaced atomically, any other content is an error.
        step: which checkpoint of a run: "latest" (the newest that verifies), a step number, or "best"
            (RUN/best, the export with the best score, is copied).
        trial: make the export in this temporary folder instead, and leave `out` as it is.

    Raises:
        UserError: there is nothing to export, the checkpoint is damaged, its tokenizer is missing, or `out`
            holds something else.
    """
    run, chosen = find_source(Path(source), str(step))
    if out is None and is_export(chosen):
        return chosen
    out = Path(out) if out is not None else run / "export"
    if out.exists() and not is_export(out) and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an export of this program; choose another --out.")
    if trial is not None:
        out = trial / out.name
    try:
        files.make_folder(out.parent)
        with folder_lock(out.parent, SECONDS_FOR_ANOTHER, part=out.name):  # a run exports too when it ends
            files.recover(out)
            with files.filled_folder(out) as hidden, files.library_errors():
                if (chosen / MARK).is_file():
                    shutil.copytree(chosen, hidden, dirs_exist_ok=True)
                    cleaning_tokenizer(pretrained(AutoTokenizer, hidden)).save_pretrained(hidden)
                else:
                    _write(chosen, run, hidden)
                write_sums(hidden)
                _settle_weights(hidden, out)
    except (OSError, store.CheckpointError) as error:
        if not chosen.exists():
            raise UserError(f"{chosen} is gone: a run replaced it. Give the same command again.") from error
        if isinstance(error, store.CheckpointError):
            raise
        own = out.parent == run  # a run writes these itself, and has no --out
        then = "Mend that, then give the same command again" if own else "Name another --out"
        raise UserError(f"cannot write {out}: {error.strerror or error}. {then}.") from error
    return out


def find_source(source: Path, step: str) -> tuple[Path, Path]:
    """Return the run folder, and the checkpoint or finished export to take."""
    require_folder(source)
    if is_export(source):
        raise UserError(f"{source} is an export already; send it to the hub with --push OWNER/NAME alone")
    named = source / "best" if step == "best" else source
    if (named / "modules.json").is_file() and not is_export(named):
        raise UserError(
            f"{named} is a sentence-transformers model, no export: a best/ that is the start, unchanged, has "
            "nothing to export or push. What was trained is in RUN/export"
        )
    if store.STEP_FOLDER.fullmatch(source.name) and source.is_dir():
        if (problem := store.problem_with(source)) is not None:
            raise UserError(f"checkpoint {source} {problem}. Export another: clearly export RUN")
        run = source.parent.parent if source.parent.name == "checkpoints" else source.parent
        return run, source
    run = source.parent if source.name == "checkpoints" else source
    root = run / "checkpoints" if (run / "checkpoints").is_dir() else source
    if step == "best":
        if not (run / "best" / MARK).is_file():
            raise UserError(f"{run} has no best/ yet: evaluations write it. Use --step latest.")
        return run, run / "best"
    checkpoints = store.candidates(root)
    if step == "latest":
        chosen = store.latest(root)
        if chosen is None:
            raise UserError(f"nothing to export in {source}: there is no checkpoint in it.")
        return run, chosen
    matching = [path for path in checkpoints if step.isdigit() and store.step_of(path) == int(step)]
    if not matching:
        steps = ", ".join(str(store.step_of(path)) for path in reversed(checkpoints)) or "none"
        raise UserError(f"{run} has no checkpoint of step {step!r}; there are: {steps}, latest, best.")
    if (problem := store.problem_with(matching[0])) is not None:
        raise UserError(f"checkpoint {matching[0]} {problem}. Choose another step.")
    return run, matching[0]


def is_export(folder: Path) -> bool:
    """Return whether a folder is an export of this program, whole or damaged; `export` replaces no other."""
    return (folder / MARK).is_file()


def _settle_weights(hidden: Path, out: Path) -> None:
    """Let others read the weights; those that the old export has, too, keep their time there.

    Evaluations know weights by it.
    """
    for new in hidden.rglob("*.safetensors"):
        before = out / new.relative_to(hidden)
        if before.is_file() and filecmp.cmp(new, before, shallow=False):
            shutil.copystat(before, new)
    files.let_read(hidden)


def _tokenizer(run: Path, config: dict[str, Any], expected_hash: str | None) -> tuple[Any, str]:
    """Return the run's tokenizer, from the run folder or its data, with the checkpoint's hash, and that."""
    places = [run / "tokenizer", _data_folder(config) / "tokenizer", run / "best", run / "export"]
    for place in places:
        if not (place / "tokenizer.json").is_file():
            continue
        found = tokenizer_hash(place)
        # an export's may lack the [DEL] of its data's
        if expected_hash in (None, found, (read_policy(place) or {}).get("tokenizer_hash")):
            return cleaning_tokenizer(pretrained(AutoTokenizer, place)), expected_hash or found
    raise UserError(
        f"copy tokenizer/ of the training data, hash {str(expected_hash)[:12]}, into {run}: there is none"
    )


def _data_folder(config: dict[str, Any]) -> Path:
    sets = config["data"].get("sets")
    return Path(sets[0]["folder"] if sets else config["data"]["folder"] or Path("data") / config["name"])


def interface_of(config: dict[str, Any], of_start: dict[str, Any], longest: int) -> Interface:
    """Return what an export says of its use: as the start, but with the recipe's prompts if it has any.

    of_start: the start's, as JSON; empty: random weights, or a start that says nothing.
    longest: most tokens that the encoder takes.
    """
    interface = Interface(**of_start)
    interface = replace(interface, max_length=min(interface.max_length or longest, longest))
    if any((prompts := config["data"].get("prompts") or {}).values()):
        # by sentence-transformers' names: anchors ask, and positives answer
        named = {"query": prompts.get("anchor", ""), "document": prompts.get("positive", "")}
        pooled = config["data"].get("prompts_pooled", True)
        interface = replace(interface, prompts=named, default_prompt="query", include_prompt=pooled)
    return interface


def _describe_data(config: dict[str, Any]) -> dict[str, Any]:
    """Return what the run was trained on, by the data's manifest if it is still there, else the recipe.

    A recipe that names prepared data says nothing of that data's sources: its own `prepare` was not used.
    """
    prepare = config["data"].get("prepare") or {}
    described: dict[str, Any] = {"folder": str(_data_folder(config))}
    if sets := config["data"].get("sets"):
        return described | {"sources": [one["folder"] for one in sets]}
    try:
        manifest = json.loads((_data_folder(config) / "manifest.json").read_bytes())
        prepare = manifest.get("config") or prepare
        described |= {key: manifest["splits"]["train"][key] for key in ("sequences", "tokens")}
        described |= {"unit": manifest["unit"], "columns": manifest.get("columns", [])}
    except (OSError, ValueError, KeyError, TypeError):
        if config["data"].get("folder"):  # moved or removed since
            return described
    sources = prepare.get("sources") if isinstance(prepare, dict) else None
    if sources:
        named = [s["source"] if isinstance(s, dict) else str(s) for s in sources]
        described["sources"] = list(dict.fromkeys(own for one in named for own in _users_own(one)))
    return described


def _users_own(source: str) -> list[str]:
    """Return the text of which `clearly adapt` held out a test and wrote this source; else the source."""
    try:  # the test says what it was made of
        about = json.loads(Path(source).with_name("about.json").read_bytes())
        return [one["source"] for one in about["settings"]["sources"]]
    except (OSError, ValueError, KeyError, TypeError):
        return [source]


# -- writing -----------------------------------------------------------


def _write(checkpoint: Path, run: Path, out: Path) -> None:
    content = store.read_json(checkpoint)
    state = content["state"]
    config = state["config"]
    tokenizer, its_hash = _tokenizer(run, config, state.get("tokenizer_hash"))
    if tokenizer.get_vocab().get(DEL) == state.get("tokens"):  # the run has done without
        tokenizer = without_del(tokenizer)
    pooling = config["model"]["pooling"]
    model, heads = _rebuild(checkpoint, content)
    weights = heads.pop("encoder.token_weights", None)
    longest = family_of(model.config.model_type).usable_positions(model.config)
    tokenizer.model_max_length = longest

    with quiet_transformers():
        model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    kept = state.get("kept_head")
    interface = interface_of(config, state.get("interface") or {}, longest)
    if pooling == WORDS:
        folder, weights = None, None
        write_static(out, model.get_input_embeddings().weight, tokenizer, interface)
    else:
        folder = write_modules(
            out,
            pooling,
            model.config.hidden_size,
            model.config.num_hidden_layers,
            interface,
            None if kept is None else _kept_head(heads, kept),
            pooler=model.config.model_type in POOLED_TYPES,
            token_weights=None if weights is None else weights_by_token(weights.tolist(), tokenizer),
        )
    if heads:
        save_file(heads, out / "heads.safetensors", metadata={"format": "pt"})
    files.write_durably(out / "training_config.yaml", as_yaml(config).encode())
    policy = {
        "format_version": FORMAT_VERSION,
        "pooling": pooling,
        "kept_head": None if kept is None else {"folder": folder, "name": kept},
        "max_length": interface.max_length,
        "hidden_size": model.config.hidden_size,
        "normalize": interface.normalize,
        "token_weights": weights is not None,
        "prompts": interface.prompts,
        "default_prompt": interface.default_prompt,
        "prompts_pooled": interface.include_prompt,
        "dimensions": config["objective"].get("matryoshka") or [],
        "step": state["step"],
        "progress": state.get("progress", {}),
        "data": _describe_data(config),
        "tokenizer_hash": its_hash,
        "heads": sorted(heads),
        "versions": content["versions"],
        "recipe": config,
    }
    files.write_durably(out / MARK, files.to_json(policy))
    card = model_card(policy, run / "metrics.jsonl", model.num_parameters(), model.config.model_type)
    files.write_durably(out / "README.md", card.encode())


def read_policy(folder: str | Path) -> dict[str, Any] | None:
    """Read an export's clear.json ("pooling", "step", "recipe" ...); None: the folder is no export."""
    path = Path(folder) / MARK
    if not path.is_file():
        return None
    try:
        policy = json.loads(path.read_text("utf-8"))
        policy["pooling"], policy["step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is damaged ({what}): clearly export RUN --out {folder}") from None
    return policy


def _kept_head(heads: dict[str, torch.Tensor], name: str) -> ProjectionHead:
    """Build the head `name` (`WholeObjective.kept_head_name`) from its weights among `heads`."""
    weights = {
        key.removeprefix(f"{name}."): tensor for key, tensor in heads.items() if key.startswith(f"{name}.")
    }
    head = simcse_head(len(weights["layers.0.bias"]))
    head.load_state_dict(weights)
    return head


def _rebuild(checkpoint: Path, content: dict[str, Any]) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """Build the masked language model with the checkpoint's weights; also return the heads' tensors."""
    prefix, settings = content["hugging_face"]["prefix"], dict(content["hugging_face"]["config"])
    weights: dict[str, torch.Tensor] = {}
    heads: dict[str, torch.Tensor] = {}
    for series in ("parameters", "buffers"):
        for name, tensor in store.read_tensors(checkpoint, series):
            if name.startswith(prefix):
                weights[name.removeprefix(prefix)] = tensor
            else:
                heads[name.removeprefix("objective.")] = tensor
    model_config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model_config.dtype = torch.float32
    model = AutoModelForMaskedLM.from_config(model_config, attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    model.tie_weights()
    tied = {name.removeprefix(prefix) for name in content["aliases"]}
    lacking = [name for name in missing if name not in tied]
    if lacking or unexpected:  # transformers renames weights
        raise UserError(
            f"the weights in {checkpoint} do not fit their config (missing {lacking[:4]}, left over "
            f"{unexpected[:4]}): export with the version of transformers that trained them"
        )
    return model.eval(), heads
