"""The papers' rows: they agree with themselves, with their papers, and with the evaluations' tasks."""

import re
import statistics

import pytest
from real_data import DATA

from finetune.report.tables import PUBLISHED
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS

CUT = {  # averages that the papers cut to their last digit, or that do not follow from their row
    "RoBERTa-base, [CLS]",
    "AugCSE-BERT-base",
    "SimCSE-distil",
    "SDA-RoBERTa-base, ensemble",
    "Avg. BERT embeddings",
    "CPT-text-S",
    "V-advCSE-BERT-base",
}


def published_rows():
    """Yield (table, paper, name of the row, its cells)."""
    for table, _ in PUBLISHED:
        for block in table.blocks:
            for row in block.rows:
                yield table, block.heading, row.label, row.cells


def test_published_averages_follow_from_published_rows():
    """A digit copied wrong would break its row's average; the papers' own exceptions are named."""
    broken = set()
    averages = {table.key: [] in sources and sources.index([]) for table, sources in PUBLISHED}
    for table, _, name, cells in published_rows():
        average, figures = averages[table.key], [cell.value for cell in cells]
        assert len(figures) == len(table.columns), (table.key, name)
        if average is False or figures[average] is None:
            continue
        mean = statistics.fmean(f for place, f in enumerate(figures) if place != average)
        if abs(mean - figures[average]) > 0.51 * 10 ** -cells[0].digits:
            broken.add(name)
    assert broken == CUT


@pytest.mark.skipif(
    not (DATA.parent / "papers" / "clear.txt").is_file(), reason="the papers' texts are not beside CLEAR_DATA"
)
def test_every_published_figure_stands_in_its_paper():
    folder = DATA.parent / "papers"
    files = {"CLEAR": "clear", "VaSCL": "vascl", "AugCSE": "augcse", "V-advCSE": "v-advcse", "SDA": "sda"}
    texts = {
        name: re.findall(r"\d+\.\d+", (folder / f"{file}.txt").read_text()) for name, file in files.items()
    }
    for table, source, name, cells in published_rows():
        known = {float(number) for number in texts[re.match(r"[\w-]+", source)[0]]}
        for figure in (cell.value for cell in cells):
            assert figure is None or figure in known, (table.key, source, name, figure)


@pytest.mark.parametrize(
    ("evaluation", "module", "names"),
    [
        ("senteval", "finetune.senteval.tasks", lambda m: {*m.TASKS, *SEVEN_TASKS}),
        ("glue", "finetune.tuning.tasks", lambda m: set(m.TABLE_1)),
        ("clustering", "finetune.clustering", lambda m: set(m.SIX)),
        (
            "intents",
            "finetune.intents.sets",
            lambda m: {f"{name}-{k}" for name in m.SETS for k in (5, 10, 20)},
        ),
        ("anli", "finetune.anli", lambda m: {*m.ROUNDS, "all"}),
        ("nli_distance", "finetune.nli_distance", lambda m: set(m.TASKS)),
        ("zh_sts", "finetune.zh_sts", lambda m: set(m.TASKS)),
    ],
)
def test_columns_name_tasks_that_the_evaluations_have(evaluation, module, names):
    known = names(pytest.importorskip(module))
    sources = [source for _, columns in PUBLISHED for column in columns for source in column]
    assert {task for name, task, _ in sources if name == evaluation} <= known
