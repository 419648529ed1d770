"""Examine what evaluations and augmentations read: benchmarks, and a dependency parser."""

import os
from pathlib import Path

from pretrain.doctor.findings import Finding

PARSER = "CLEAR_PARSER"


def sets(data: str) -> list[Finding]:
    """Say which benchmarks are complete in a folder ("": none was named)."""
    if not data:
        todo = (
            "CLEAR_DATA=DIR names their folder; `python -m finetune.data check --help` says what goes where"
        )
        return [Finding("note", "no folder of benchmarks is named: training goes without STS-B dev", todo)]
    if not Path(data).is_dir():
        return [Finding("wrong", f"the folder of benchmarks {data} is not there", "name another: --data DIR")]
    from finetune.data import catalogue

    groups: dict[str, list[str]] = {}
    incomplete = []
    for one in catalogue.choose(""):
        status = catalogue.check(one, Path(data))
        group = one.name.partition("/")[0]
        groups.setdefault(group, []).append(status.state)
        if status.state not in ("complete", "missing"):
            incomplete.append(f"{one.name} is {status.state}")
    counted = [f"{name} {states.count('complete')} of {len(states)}" for name, states in groups.items()]
    todo = f"python -m finetune.data check {data}, for each set and where to get it"
    whole = all(set(states) == {"complete"} for states in groups.values())
    findings = [
        Finding(
            "good" if whole else "note", f"benchmarks in {data}: {', '.join(counted)}", "" if whole else todo
        )
    ]
    if incomplete:
        findings.append(Finding("note", "; ".join(incomplete), todo))
    return findings


def parser() -> list[Finding]:
    """Load the dependency parser that CLEAR_PARSER names, and parse a sentence."""
    named = os.environ.get(PARSER, "")
    if not named:
        todo = (
            f"{PARSER}=NAME_OR_FOLDER names a spaCy pipeline; only augmentations that rewrite text need one"
        )
        return [Finding("note", "no dependency parser is named", todo)]
    from augment.core.errors import AugmentationError
    from augment.text.parsing import find_parser, parse_texts

    try:
        (sentence,) = parse_texts(["The dog barks."], find_parser())
    except (AugmentationError, OSError, ValueError) as error:
        return [Finding("wrong", f"the parser {named} does not work: {error}", f"name another in {PARSER}")]
    return [Finding("good", f"parser {named}: {len(sentence.words)} words of a sentence parsed")]
