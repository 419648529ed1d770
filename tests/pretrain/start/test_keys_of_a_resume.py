"""Each key of a recipe, changed alone between two starts of a run: free, recorded, or refused."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.config.validation import leaves
from pretrain.start import continuity
from pretrain.start.continuity import record_changes, require_same

FREE = {
    "data.folder",
    "data.sets",
    "data.temperature",
    "data.workers",
    "data.damaged",
    "objective.mlm.initial_bias",
}
FREE |= {
    f"train.{key}" for key in ("micro_batch_tokens", "activation_checkpointing", "graphs", "deterministic")
}
FREE |= {f"train.{key}" for key in ("tf32", "optimizer_code", "zero", "threads", "rendezvous_seconds")}
FREE |= {"train.step_deadline"}
RECORDED = {f"train.{key}" for key in ("lr", "head_lr_scale", "clip", "precision", "log_every", "patience")}
RECORDED |= {"train.warmup_steps", "train.steps", "objective.contrastive.temperature"}
RECORDED |= {
    f"train.faults.{key}" for key in ("skip", "rollbacks", "spikes", "spike_factor", "jump", "dead_loss")
}
BY_STEP = {
    "objective.start_step",
    "objective.warmup_steps",
    "objective.mlm.rate",
    "objective.mlm.rate_change",
}
BY_STEP |= {"train.schedule", "train.decay_steps", "train.decay_shape"}
OF_OTHERS = ("simcse", "vascl", "augcse", "vadvcse", "sda", "diffcse", "esimcse", "declutr", "retain")
OF_OTHERS = tuple(f"objective.{name}." for name in (*OF_OTHERS, "distill", "scored"))


def another(value, key):
    """Return another value of the same type."""
    if key in (known := {"mask": 0.5, "random": 0.2, "initial_bias": "frequencies"}):
        return known[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [9] if isinstance(value, list) else f"{value}x"


CONFIG = load_config(None, {"train.precision": "bf16"})
TREE = CONFIG.model_dump(mode="json")
LEFT_OUT = (*BY_STEP, "data.prompts", "objective.mlm.later_rates", "objective.options", "model.init")
SECTIONS = ("data", "model", "augment", "objective", "train")
KEYS = [key for key in dict(leaves(TREE)) if key.split(".")[0] in SECTIONS and key not in LEFT_OUT]
# of a section of others one key tells
KEYS = [
    k for k in KEYS if not k.startswith(("data.prepare.", *OF_OTHERS)) or k.endswith((".seed", ".weight"))
]


def changed(key, tree=TREE):
    """Return the configuration of a checkpoint in which one key has another value."""
    before = copy.deepcopy(tree)
    *sections, name = key.split(".")
    section = before
    for one in sections:
        section = section[one]
    section[name] = another(section[name], name)
    return before


def recorded(before, config=CONFIG, step=5):
    state = {"config": before, "step": step, "progress": {"changes": [{"step": 1}]}}
    record_changes(config, state, Path("step-00000005"))
    earlier, *changes = state["progress"]["changes"]
    assert earlier == {"step": 1}
    return changes


def test_every_key_is_free_recorded_or_makes_another_run():
    wrong, known = {}, dict(leaves(TREE))
    for key in KEYS:
        before = changed(key)
        old, new = (dict(leaves(tree))[key] for tree in (before, TREE))
        if key in FREE or key.startswith(("data.prepare.", *OF_OTHERS)):
            expected = []
        else:
            expected = [{"step": 5, "key": key, "from": old, "to": new}] if key in RECORDED else key
        try:
            found = recorded(before)
        except UserError as error:
            found = key if f"was made with {key}={old}, this command has {new}" in str(error) else str(error)
        if found != expected:
            wrong[key] = found
    assert not wrong and len(KEYS) > 80
    assert known.keys() >= FREE | RECORDED | BY_STEP


def test_a_guide_is_known_by_its_hash_but_not_whether_there_is_one():
    def tree(guide):
        return load_config(None, {"objective.false_negatives.guide": guide})

    for before, now, refused in (
        *(("a", "b", False), ("b", "b", False), ("none", "b", True), ("self", "b", True)),
        *(("b", "self", True), ("b", "none", True), ("none", "self", True)),
    ):
        state = tree(before).model_dump(mode="json")
        if not refused:
            assert recorded(state, tree(now)) == []
            continue
        with pytest.raises(UserError, match=r"false_negatives\.guide"):
            recorded(state, tree(now))


def test_a_teacher_is_known_by_its_hash():
    def tree(teacher):
        return load_config(None, {"objective": "clear+distill", "objective.distill.model": teacher})

    assert recorded(tree("a").model_dump(mode="json"), tree("b")) == []
    before = tree("a").model_dump(mode="json")
    before["objective"]["distill"]["model"] = None
    with pytest.raises(UserError, match=r"distill\.model"):
        recorded(before, tree("b"))


@pytest.mark.parametrize(
    "accept, refused, said",
    [
        (None, {"rules", "parser"}, "--checkpoint.accept 'rules,parser'"),
        ("rules", {"parser"}, "--checkpoint.accept 'rules,parser'"),
        (" rules , parser ", set(), ""),
        ("rules,parser,batches", set(), ""),
        ("rules,none", None, "has no input none; it has shards, rules, parser, new"),
        ("shards", None, "shards cannot change within a run"),
    ],
)
def test_inputs_that_differ_are_accepted_by_name(accept, refused, said):
    def inputs(**digests):
        return {name: {"sha256": 20 * digest, "where": f"at {name}"} for name, digest in digests.items()}

    old = inputs(shards="a", rules="b", parser="c", gone="d")
    new = inputs(shards="a", rules="x", parser="y", new="z")
    if refused == set():
        assert require_same("step-1", old, new, accept) == [
            {"key": "input rules", "from": f"{12 * 'b'} (at rules)", "to": f"{12 * 'x'} (at rules)"},
            {"key": "input parser", "from": f"{12 * 'c'} (at parser)", "to": f"{12 * 'y'} (at parser)"},
        ]
        return
    with pytest.raises(UserError) as error:
        require_same("step-1", old, new, accept)
    assert said in str(error.value)
    if refused:
        listed = {line.split()[0] for line in str(error.value).splitlines() if line.startswith("  ")}
        assert listed == refused


def test_of_inputs_that_cannot_change_no_flag_is_offered():
    old, new = ({"tokenizer": {"sha256": digest, "where": "x"}} for digest in ("a", "b"))
    with pytest.raises(UserError) as error:
        require_same("step-1", old, new)
    assert "accept" not in str(error.value) and "tokenizer was a (x), is b (x)" in str(error.value)


def configured(**flags):
    return load_config(None, {key.replace("__", "."): str(value) for key, value in flags.items()})


def test_inputs_are_all_that_decides_a_batch(monkeypatch, tmp_path):
    monkeypatch.setattr(
        continuity, "resource_hash", lambda where: f"hash of {where}" if where != "hub" else None
    )
    monkeypatch.setattr(continuity, "rules_digest", lambda: "of rules")
    monkeypatch.setattr(continuity, "resources", lambda specs, synonyms: {"synonyms": f"{synonyms} {specs}"})
    monkeypatch.setattr(continuity, "needs_text", lambda spec: spec == "text")
    parser = {"name": "p", "version": "2", "language": "en", "parser": "models/p", "more": 1}

    def part(name, **manifest):
        splits = {"train": {"shards": [{"chunks": [name]}]}}
        one = SimpleNamespace(
            folder=Path(name), content_hash=f"content {name}", tokenizer_hash="tok", annotation=None
        )
        one.manifest = {"splits": splits, "unit": "sentence"} | manifest
        one.parts = [one]
        return one

    train, heldout = part("a"), part("h")
    views = [SimpleNamespace(augmentation=one) for one in ("none", "text")]
    flags = {
        "augment__synonyms": "table",
        "objective": "mlm+own.py:Mine",
        "objective__false_negatives__guide": "guide",
    }
    found = continuity.collect(configured(**flags), views, train, heldout)
    here = str(Path("a").resolve())
    shown = {name: (one["sha256"], one["where"]) for name, one in found.items() if name != "manifest"}
    assert shown == {
        "shards": ("content a", here),
        "held-out shards": ("content h", here),
        "tokenizer": ("tok", here),
        "rules": ("of rules", "augment/"),
        "own.py:Mine": ("hash of own.py", "own.py"),
        "synonyms": ("hash of table ['none', 'text']", "table ['none', 'text']"),
        "guide": ("hash of guide", "guide"),
    }
    hub = configured(**flags | {"objective__false_negatives__guide": "hub"})
    assert "guide" not in continuity.collect(hub, views[:1], train, heldout)
    assert "rules" not in continuity.collect(hub, views[:1], train, heldout)

    cached = part("c", cache={"parser": parser, "resources": {"wordnet": "digest"}, "rules": "old"})
    of_cache = continuity.collect(configured(), [], cached, heldout)
    assert of_cache["wordnet (of the cached views)"]["sha256"] == "digest"
    assert of_cache["rules (of the cached views)"]["sha256"] == "old"
    assert of_cache["parser"]["where"] == "models/p"
    cached.annotation = parser | {"version": "3"}
    newer = continuity.collect(configured(), [], cached, heldout)
    assert newer["parser"]["sha256"] != of_cache["parser"]["sha256"]
    cached.annotation = parser | {"more": 2}
    assert continuity.collect(configured(), [], cached, heldout)["parser"] == of_cache["parser"]

    several = part("a")
    several.parts = [part("a"), part("b")]
    both = continuity.collect(configured(), [], several, heldout)
    assert both["shards"]["where"] == f"{here}, {Path('b').resolve()}"
    digests = {
        continuity._manifest_hash(one) for one in (train, part("b"), several, part("a", unit="document"))
    }
    assert len(digests) == 4 and continuity._manifest_hash(part("a", other=1)) == continuity._manifest_hash(
        train
    )
