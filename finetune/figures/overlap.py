"""How many words the two sentences of a pair share: why some benchmarks punish shared words (SDA, 6.3)."""

import re
from statistics import fmean

from finetune.files import data_root
from finetune.sts.tasks import SEVEN_TASKS, StsFiles

PUBLISHED = {"SICK-R": 57.24, "the other six": 47.39}
_WORD = re.compile(r"\w+")


def jaccard(first: str, second: str) -> float:
    """Return the share of two sentences' distinct words, in lower case, that both have; 0 without any.

    >>> jaccard("A man eats.", "a dog eats")
    0.5
    """
    one, other = (set(_WORD.findall(sentence.lower())) for sentence in (first, second))
    return len(one & other) / len(one | other) if one | other else 0.0


def overlaps(data: str) -> dict[str, float]:
    """Return the mean overlap (%) of the pairs of each of the seven tasks, and of all but SICK-R's.

    Raises:
        UserError: the benchmarks are not there.
    """
    files = StsFiles(data_root(data))
    of_task = {
        task: [jaccard(*pair) for part in files.load(task) for pair in zip(part.first, part.second)]
        for task in SEVEN_TASKS
    }
    means = {task: 100 * fmean(values) for task, values in of_task.items()}
    others = [value for task, values in of_task.items() if task != "SICK-R" for value in values]
    return means | {"the other six": 100 * fmean(others)}


def overlap_table(data: str) -> str:
    """Return the overlaps in Markdown, beside SDA's."""
    lines = ["Mean Jaccard similarity of a pair's words, %", "", "| pairs of | ours | SDA |", "|---|---|---|"]
    for task, value in overlaps(data).items():
        published = f"{PUBLISHED[task]:.2f}" if task in PUBLISHED else ""
        lines.append(f"| {task} | {value:.2f} | {published} |")
    return "\n".join(lines) + "\n"
