"""From what people type to typed values, and from types to the words of a help text."""

import itertools
import os
import re
import types
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from augment.core.errors import excerpt, nearest_name, shortened
from pretrain.common.errors import UserError, naming

NONE_IS_A_VALUE = "none is a value"
"""Marks a field, by `Annotated[str, NONE_IS_A_VALUE]`, in which `none` is a text like any other (`--aug
none`)."""

OWN_WORDS = "own_words"
"""Type of a pydantic error whose message is complete but for the key."""

_INTEGER = re.compile(r"[+-]?\d+")
_MOST = 3000  # characters of a message about a recipe

_STEP_SIZE = "sequences per step, over all ranks"
_EPOCHS = "a run prints at its start how many epochs they are"
_SOURCE = "a key of a source: '[{source: PLACE, text_key: FIELD}]'"
_OTHERS = (
    ("train.global_batch batch_size", "batch_size train_batch_size per_device_train_batch_size", _STEP_SIZE),
    ("train.micro_batch_tokens", "gradient_accumulation_steps", "micro-batches are cut by tokens"),
    ("", "per_device_eval_batch_size eval_batch_size", ""),  # nothing is like it: no guess
    ("train.steps", "epochs num_epochs num_train_epochs", _EPOCHS),
    ("train.steps", "max_steps total_steps max_train_steps", ""),
    ("train.seed", "seeds", "for several: clearly sweep --config RECIPE --seed-list 1,2"),
    ("train.lr lr", "learning_rate", ""),
    ("train.schedule", "lr_scheduler_type", ""),
    ("train.warmup_steps", "warmup warmup_ratio warmup_proportion", "a number of steps"),
    ("train.optimizer", "optim", ""),
    ("train.betas", "adam_beta1 adam_beta2", "both, as 0.9,0.98"),
    ("train.eps", "adam_epsilon", ""),
    ("train.clip", "max_grad_norm gradient_clipping", ""),
    ("train.precision precision", "fp16 bf16 dtype torch_dtype", "fp32, bf16 ..."),
    ("train.activation_checkpointing", "gradient_checkpointing", ""),
    ("train.patience", "early_stopping_patience", ""),
    ("train.log_every", "logging_steps", ""),
    ("checkpoint.every", "save_steps", ""),
    ("checkpoint.keep", "save_total_limit", ""),
    ("evaluate.every", "eval_steps evaluation_steps", ""),
    ("evaluate.best_by", "metric_for_best_model", ""),
    ("objective.mlm.rate", "mlm_probability mask_ratio", ""),
    ("objective.contrastive.temperature", "temp temperature", "each objective has its own"),
    ("model.layers", "num_hidden_layers num_layers", ""),
    ("model.heads", "num_attention_heads num_heads", ""),
    ("model.dropout", "hidden_dropout_prob", ""),
    ("model.attention_dropout", "attention_probs_dropout_prob", ""),
    ("model.max_positions", "max_position_embeddings", ""),
    ("model.pooling pooling", "pooler_type pooling_mode", ""),
    ("data.prepare.max_length max_length", "max_seq_length max_seq_len", ""),
    ("data.prepare.tokenizer tokenizer", "tokenizer_name tokenizer_name_or_path", ""),
    ("data.prepare.vocabulary vocabulary", "vocab_size", ""),
    ("data.workers workers", "num_workers dataloader_num_workers num_proc", ""),
    ("source data.prepare.sources text", "text_key positive_key negative_key label_key score_key", _SOURCE),
    ("source data.prepare.sources text", "layout markup unwrap", _SOURCE),
    ("eval_data", "data", "the folder of the benchmarks; --data is prepared data"),
    ("eval_data", "sts", "the folder of the benchmarks"),
    ("init model.init", "model_name_or_path base_model", ""),
    ("run", "folder", "the run folder"),
    ("out run", "output_dir save_dir output_path", ""),
    ("name", "run_name", ""),
    ("track", "report_to", ""),
    ("resume checkpoint.resume", "resume_from_checkpoint", ""),
)
OTHER_NAMES = {other: (ours, remark) for ours, others, remark in _OTHERS for other in others.split()}
"""What other programs, or earlier versions of this one, call a flag or key: its names here, and a remark."""
TEXT_NAMES = ("source", "text", "data")
"""What commands call a corpus, the most telling name first."""
_OTHER_TEXT_NAMES = {*TEXT_NAMES, "sources", "corpus", "input", "texts", "text_file", "train_file"}


class _Loader(yaml.SafeLoader):
    """Refuse an anchor that holds itself (`&a [*a]`), and an integer of over 64 bits."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.deep_construct = True  # a node is whole before it is used: one that holds itself cannot be

    def construct_yaml_int(self, node: Any) -> int:
        return _require_64_bits(super().construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML text. `where`: what the error calls it."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {shortened(' '.join(str(error).split()), 1000)}") from None
    except RecursionError:
        raise UserError(f"{where} is not a recipe: its YAML is nested too deeply") from None
    except Exception as error:  # what PyYAML's own constructors raise: 2026-13-45, `!!bool maybe`, `!!int x`
        what = shortened(str(error), 1000)
        raise UserError(f"{where} is not YAML: {type(error).__name__}, {what}") from None


def _require_64_bits(number: int) -> int:
    if abs(number) >= 2**63:
        raise ValueError(f"{excerpt(number)} is too large: integers have at most 64 bits")
    return number


def parse_value(text: str, kind: Any, flag: str) -> Any:
    """Return what `text`, typed behind a flag, means for a field of type `kind` (None: the field is unknown).

        mlp|none    none        -> "none"               int|none    none     -> None
        str         [draft]     -> "[draft]"            list        [a, b]   -> ["a", "b"]
        tuple       0.9,0.98    -> ["0.9", "0.98"]      Any         5e8      -> 500000000

    What is not decided here stays text; pydantic converts it. A field of any type is YAML.

    Raises: UserError for a field of any type, and for a list of mappings, whose text is not YAML; for an
        integer of over 64 bits.
    """
    members = _members(kind)
    own = {value for m in members if typing.get_origin(m) is Literal for value in typing.get_args(m)}
    if any(NONE_IS_A_VALUE in getattr(member, "__metadata__", ()) for member in members):
        own |= {"none", "None"}
    if any(getattr(member, "__origin__", member) is Any for member in members):
        return None if text in {"none", "None"} - own else _any_value(text, flag)
    if type(None) in members and text in {"none", "None", "null"} - own:
        return None
    origins = {typing.get_origin(member) or member for member in members}
    kinds = tuple(origin for origin in origins if isinstance(origin, type))
    nested = any(issubclass(kind, (list, tuple, dict, BaseModel)) for kind in kinds)
    if nested and text[:1] in ("[", "{"):
        try:
            return parse_yaml(text, flag)
        except UserError:
            if text.startswith("[{"):
                raise
            return text  # a glob that begins with a bracket; or pydantic says what the field wants
    if any(getattr(member, "__origin__", member) is int for member in members) and _INTEGER.fullmatch(text):
        with naming(flag, ValueError):
            _require_64_bits(int(text[:100]))
    if tuple in origins:
        return [part.strip() for part in text.strip("()").split(",")]
    return text


def _members(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(kind) for member in _members(part)]
    return [kind]


def _any_value(text: str, flag: str) -> Any:
    """A YAML value; YAML 1.1 would read 5e8 as a string."""
    value = parse_yaml(text, f"{flag} {text}")
    with suppress(ValueError, TypeError):
        if isinstance(value, str):
            return int(number) if (number := float(value)).is_integer() else number
    return value


def named_places(value: Any) -> dict[str, str]:
    """Return name -> place of files as people list them: NAME=PLACE, or PLACE, which gives the name.

    >>> named_places("dev/mine.tsv.gz,other=b/mine.tsv")
    {'mine': 'dev/mine.tsv.gz', 'other': 'b/mine.tsv'}

    value: a text with commas, a list of texts, or a mapping of names to places.
    """
    if value is None or value == "none":
        return {}
    if isinstance(value, dict):
        return {str(name): str(place) for name, place in value.items()}
    found: dict[str, str] = {}
    listed = value if isinstance(value, list | tuple) else str(value).split(",")
    for text in filter(None, (str(one).strip() for one in listed)):
        given, file = re.fullmatch(r"([\w-]+)=(.+)", text), os.path.basename(text.rstrip("/"))
        name, place = given.groups() if given else (re.sub(r"[^\w-]+", "-", file.partition(".")[0]), text)
        if name in found:
            raise UserError(f"{found[name]} and {place} would both be called {name}: write OTHER={place}")
        found[name] = place
    return found


def faults(error: ValidationError, unknown_key: Callable[[str], str]) -> str:
    """Return the faults that pydantic found, as "key: what (got value)", with "; " between.

    Beyond `_MOST` characters the others are counted: values in YAML may be long, and stand in many places.

    unknown_key: the message for a dotted key that the model does not have.
    """

    def text(fault: Any) -> str:
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden":
            return unknown_key(key)
        what = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "value_error":  # our own words: they say which key
            return what
        if fault["type"] == OWN_WORDS:
            return f"{key}: {what}"
        return f"{key}: {what} (got {excerpt(fault['input'])})"

    texts = [text(fault) for fault in error.errors()]
    ends = itertools.accumulate(len(text) + 2 for text in texts)
    said = max(1, sum(end <= _MOST for end in ends))
    more = f"; and {len(texts) - said} more" if said < len(texts) else ""
    return "; ".join(texts[:said]) + more


def nearest(key: str, names: Iterable[str], prefix: str = "") -> str:
    """Return what to say behind "unknown key": "; did you mean NAME?", or nothing."""
    names = list(names)
    last = key.split(".")[-1]
    other, remark = OTHER_NAMES.get(last, ("", ""))
    if last in OTHER_NAMES and not other:
        return ""
    if last in _OTHER_TEXT_NAMES:
        known = ("file",) if {"file", "text"} <= set(names) else TEXT_NAMES  # `text` is a sentence beside it
        ours = ((name, "") for name in known if name in names and name != last)
        other, remark = next(ours, (other, remark))
    if "." in key and (ends := [name for name in names if name.endswith(f".{key}")]):  # simcse.temperature
        return f"; did you mean {prefix}{ends[0]}?"
    if other := next((name for name in other.split() if name in names), ""):
        return f"; its name here is {prefix}{other}" + (f" ({remark})" if remark else "")
    of_last: dict[str, list[str]] = {}  # a name may stand in a wrong section, or without one
    for name in names:
        of_last.setdefault(name.split(".")[-1], []).append(name)
    if (match := nearest_name(last, of_last)) is not None:
        near = nearest_name(key, of_last[match]) or of_last[match][0]
    else:
        other, _ = OTHER_NAMES.get(nearest_name(last, OTHER_NAMES) or "", ("", ""))
        near = next((name for name in other.split() if name in names), "")
    return f"; did you mean {prefix}{near}?" if near else ""


def type_name(kind: Any) -> str:
    """Return a type as help shows it: `a|b` for a choice, `list` whatever it holds, `none` for null."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if origin in (typing.Union, types.UnionType):
        return "|".join(map(type_name, typing.get_args(kind)))
    if origin is Annotated:
        return type_name(kind.__origin__)
    if kind is type(None):
        return "none"
    return getattr(origin or kind, "__name__", str(kind))


class Flag(NamedTuple):
    """A flag, or a word that may stand without one. `default`: "required" without one."""

    name: str
    kind: str
    default: str
    meaning: str

    @classmethod
    def of_field(cls, name: str, field: FieldInfo) -> "Flag":
        """Return the flag of a model's field, its description on one line and its default as typed."""
        default = field.get_default(call_default_factory=True)
        text = "required" if field.is_required() else value_text(default)
        return cls(name, type_name(field.annotation), text, " ".join((field.description or "").split()))

    @property
    def typed_as(self) -> str:
        """The flag as people type it."""
        return "--" + self.name.replace("_", "-")


def value_text(value: Any) -> str:
    """Return a value as it would be typed."""
    if value is None or value == ():
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
