"""Read labelled pairs, and the further texts that negatives may be taken from."""

from dataclasses import dataclass, field

from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources import readers
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.records import COLUMNS, Record, records
from pretrain.prepare.tasks import Task

_TEXT, _POSITIVE, _NEGATIVE = (COLUMNS.index(name) for name in ("text", "positive", "negative"))
_FURTHER = len(COLUMNS)  # from here on negatives


@dataclass
class Pairs:
    """Different pairs of texts that mean the same, in the order of their files."""

    texts: list[str] = field(default_factory=list)
    positives: list[str] = field(default_factory=list)
    """Of each text, one that means the same."""
    negatives: list[str] = field(default_factory=list)
    """Different texts that the files give as negatives of some pair."""

    def __len__(self) -> int:
        return len(self.texts)


def read_pairs(sources: list[Source]) -> Pairs:
    """Read the pairs of files or data sets, cleaned as a preparation cleans them; each pair is kept once.

    Raises:
        UserError: no such file, no pair in it, or a row that is no pair (a column or text missing, a label),
            named by file and line.
    """
    pairs: dict[tuple[str, str], None] = {}
    negatives: dict[str, None] = {}
    for task in plan_tasks(sources, records=True):
        for record in records(task, sources[task.source]):
            text, positive = record.texts[_TEXT], record.texts[_POSITIVE]
            if not positive:
                raise _fault(
                    task,
                    record,
                    "has no positive, a text that means the same; --positive-key names its column",
                )
            if record.label is not None:
                raise _fault(
                    task,
                    record,
                    "has a label; keep only the pairs that mean the same, and leave the column out",
                )
            pairs[text, positive] = None
            given = (record.texts[_NEGATIVE], *record.texts[_FURTHER:])
            negatives |= dict.fromkeys(filter(None, given))
    if not pairs:
        raise UserError(f"there is no pair in {', '.join(map(str, sources))}")
    return Pairs([text for text, _ in pairs], [positive for _, positive in pairs], list(negatives))


def read_texts(source: Source) -> list[str]:
    """Read the different texts of a source, a line or a row each, cleaned.

    Raises:
        UserError: as `read_pairs`, but for a positive that is missing.
    """
    tasks = plan_tasks([source], records=True)
    return list(dict.fromkeys(record.texts[_TEXT] for task in tasks for record in records(task, source)))


def _fault(task: Task, record: Record, what: str) -> UserError:
    return UserError(f"{readers.where(task, record.position)}: the record {what}")
