"""Why a unit cannot be done, or is not worth it: data that is not there, a model that it does not suit."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from augment.core.pretrained import pretrained
from finetune import nanobeir, zh_sts
from finetune.encoders.source import ModelSource, kind_of, names_function
from finetune.evaluate.suites import FINE_TUNED, Unit
from finetune.hub import reach_hub
from pretrain.common.errors import UserError

_MOST_UNKNOWN = 0.5
"""Share of unknown tokens above which a tokenizer does not know a language."""
_PAIRS_READ = 200
_NOT_THERE = " is not there"


def obstacle(unit: Unit, root: Path, source: ModelSource, suite: str) -> str:
    """Return why a unit of a suite is left out; "" if it can be done."""
    return (
        lacking(unit, root) or _unfit(unit, source) or (_unread(unit, root, source) if suite == "all" else "")
    )


def lines_of_left_out(reasons: Mapping[Unit, str]) -> list[str]:
    """Return a line for each evaluation with units that are left out, with the first one's reason.

    Units whose data are not there at all have a line apart from others.
    """
    groups: dict[tuple[str, bool], list[Unit]] = {}
    for unit, reason in reasons.items():
        groups.setdefault((unit.evaluation, reason.endswith(_NOT_THERE)), []).append(unit)
    lines = []
    for first, *others in groups.values():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"left out: {first.name}{more}: {reasons[first]}")
    return lines


def none_left(units: Sequence[Unit], reasons: Mapping[Unit, str]) -> UserError:
    """Return the error of a suite of which nothing can be done."""
    more = "; `python -m finetune.data check DIR` says what is missing and where to get it"
    first = reasons[units[0]]
    absent = units[0].reads_folder and first.endswith(_NOT_THERE)
    return UserError(f"nothing of this suite can be done: {first}{more if absent else ''}")


def lacking(unit: Unit, root: Path) -> str:
    """Return why a unit cannot be done with the data that is there; "" if it can."""
    if not unit.reads_folder:
        return _hub_fault()
    if unit.evaluation == "nanobeir":
        folder = root / nanobeir.FOLDER / unit.tasks[0]
        if folder.is_dir() and (fault := nanobeir.lacking(folder)):
            return fault
    absent = [path for path in unit.files(root) if not path.is_file()]
    return f"{absent[0]}{_NOT_THERE}" if absent else ""


@cache
def _hub_fault() -> str:
    try:
        reach_hub("MTEB's data", "leave mteb-eng out")
    except UserError as error:
        return str(error)
    return ""


def _unfit(unit: Unit, source: ModelSource) -> str:
    """Return why a unit cannot be done with such a model; "" if it can."""
    if unit.evaluation not in FINE_TUNED:
        return ""
    if names_function(source.location) or kind_of(source.location) == "sentence-transformers":
        return "it trains the weights, and takes a run, an export or a Hugging Face folder"
    return ""


def _unread(unit: Unit, root: Path, source: ModelSource) -> str:
    """Return that the tokenizer does not know the unit's language; "" if it does, or if that is not known.

    Its figure would be that of sentences of unknown tokens.
    """
    if unit.evaluation != "zh_sts" or names_function(source.location):
        return ""
    from transformers import AutoTokenizer

    try:
        pairs = zh_sts.read(unit.files(root)[0])
        tokenizer = pretrained(AutoTokenizer, source.location)
    except (OSError, ValueError, KeyError, UserError):
        return ""  # the unit itself says what is wrong; a model without a tokenizer here is tried
    rows = tokenizer(pairs.first[:_PAIRS_READ], add_special_tokens=False)["input_ids"]
    tokens = [token for row in rows for token in row]
    unknown = tokens.count(tokenizer.unk_token_id) / max(1, len(tokens))
    if unknown <= _MOST_UNKNOWN:
        return ""
    anyway = f"--suite {unit.evaluation} does it all the same"
    return f"{unknown:.0%} of its tokens are unknown to the tokenizer; {anyway}"
