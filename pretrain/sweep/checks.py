"""What makes a table wrong: runs that did not train what their row says, and rows of equal weights."""

from collections.abc import Iterable, Iterator
from typing import Any

from pretrain.config.run import Config
from pretrain.config.validation import leaves, read_yaml
from pretrain.sweep.file import Entry
from pretrain.sweep.runs import Run

_NOT_COMPARED = (
    "data.",
    "track",
    "model.init",
    "train.precision",
    "train.threads",
    "train.zero",
    "evaluate.",
    "checkpoint.",
)
"""Keys that are recorded otherwise than they are asked for (paths, `auto`), or that train nothing."""
_TRAIN_NOTHING = ("name", "folder", "track", "evaluate.", "checkpoint.", "train.threads", "train.log_every")
_NAMED = 5  # settings that an error lists


def errors_of(rows: Iterable[tuple[Entry, list[Run]]]) -> list[str]:
    """Return what is wrong with the finished runs of a sweep's rows, a sentence each."""
    finished = [(entry.name, run) for entry, runs in rows for run in runs if run.state == "done"]
    errors = [
        f"{name}, seed {run.seed}: {'; '.join(wrong)} ({run.folder})"
        for name, run in finished
        if (wrong := unlike_recorded(run))
    ]
    return errors + list(_equal(finished))


def unlike_recorded(run: Run) -> list[str]:
    """Return the settings of a run's row that its folder records otherwise, or that were not in force."""
    path = run.folder / "config.yaml"
    if not path.is_file():
        return []
    recorded, wanted = read_yaml(path), run.config.model_dump(mode="json")
    in_force = (run.summary or {}).get("in_force", {})
    wrong = []
    for key in run.point.overrides:
        if key.startswith(_NOT_COMPARED):
            continue
        asked = _at(wanted, key)
        for where, found in (("records", _at(recorded, key)), ("trained with", in_force.get(key, asked))):
            if found is not _ABSENT and asked is not _ABSENT and found != asked:
                wrong.append(f"the row sets {key} {asked}, the run {where} {found}")
    return wrong


def _equal(finished: list[tuple[str, Run]]) -> Iterator[str]:
    """Yield an error for every two rows that have trained the same weights with one seed in two runs."""
    seen: dict[tuple[int, str], tuple[str, Run]] = {}
    named: set[tuple[str, str]] = set()
    for name, run in finished:
        digest = (run.summary or {}).get("weights")
        if digest is None:
            continue
        other, earlier = seen.setdefault((run.seed, digest), (name, run))
        if earlier.folder == run.folder or (other, name) in named:
            continue
        keys = differing(earlier.config, run.config)
        trained = [key for key in keys if not key.startswith(_TRAIN_NOTHING)]
        if keys and not trained:
            continue
        named.add((other, name))
        settings = ", ".join(trained[:_NAMED]) + (" ..." if len(trained) > _NAMED else "")
        yield (
            f"{other} and {name} have trained equal weights (seed {run.seed}: {earlier.folder}, "
            f"{run.folder}). They differ in {settings or 'nothing'}, which then did nothing: a weight of 0, "
            "a setting of what is switched off, or one that a checkpoint overrides"
        )


def differing(first: Config, second: Config) -> list[str]:
    """Return the dotted keys in which two configurations differ.

    >>> differing(Config(), Config(name="other"))
    ['name']
    """
    one, other = (dict(leaves(config.model_dump(mode="json"))) for config in (first, second))
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


_ABSENT: Any = object()


def _at(tree: Any, dotted: str) -> Any:
    """Return the value at a dotted key; `_ABSENT` where there is none."""
    for part in dotted.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return _ABSENT
        tree = tree[part]
    return tree
