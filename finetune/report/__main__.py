"""Write one page about runs and models, side by side.

The papers' tables with their published rows and ours, means over seeds, learning curves, geometry, what
differs between the recipes, and cost. Reads what evaluations wrote (RUN/report/*.json, results/NAME/*.json)
and, of runs, config.yaml, metrics.jsonl and report/summary.json; computes nothing anew. Writes
OUT/report.html (self-contained), report.md with figures/*.png, and report.json.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.report.cells import Table, as_json
from finetune.report.page import markdown, page
from finetune.report.sources import System, collect, group
from finetune.report.tables import (
    config_table,
    cost_table,
    geometry_tables,
    other_tables,
    paper_tables,
    rows_of,
)
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, require_writable, to_json


def report(*sources: str, out: Path = Path("report"), title: str = "Sentence encoders") -> None:
    """Write one report about runs and models.

    Args:
        sources: run folders, model folders, folders of result files, or folders that hold several of these.
            Runs that differ only in seed become one row: mean and standard deviation.
        out: folder for report.html, report.md, report.json and figures/.
        title: the report's heading.
    """
    from finetune.report.figures import draw

    if not sources:
        raise UserError(
            "name runs or results: python -m finetune.report RUN_OR_RESULTS_FOLDER ... [--out report]"
        )
    require_writable(out)
    systems = group(collect(sources))
    rows = rows_of(systems)
    papers, used = paper_tables(rows)
    tables: dict[str, list[Table]] = {
        "Results": [*(table for table in papers if table.ours), *other_tables(rows, used)],
        "Learning curves": [],
        "Geometry": geometry_tables(rows),
        "Configuration": [table for table in [config_table(systems)] if table],
        "Cost": [table for table in [cost_table(systems)] if table],
    }
    empty = [table for table in papers if not table.ours]
    drawn = draw(systems, rows)
    figures = {"Learning curves": drawn["curves"], "Geometry": drawn["geometry"]}
    folder = out
    make_folder(folder / "figures")
    paths: dict[str, dict[str, str]] = {}
    for section, named in figures.items():
        for name, (_, png) in named.items():
            file = f"figures/{section.split()[0].lower()}_{name}.png"
            replace_durably(folder / file, png)
            paths.setdefault(section, {})[name] = file
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
    introduction = _introduction(systems, now)
    svgs = {section: {name: svg for name, (svg, _) in named.items()} for section, named in figures.items()}
    replace_durably(folder / "report.html", page(title, introduction, tables, empty, svgs).encode())
    replace_durably(folder / "report.md", markdown(title, introduction, tables, empty, paths).encode())
    content: dict[str, Any] = {
        "title": title,
        "date": now,
        "systems": [
            {"label": s.label, "seeds": s.seeds, "folders": [str(m.path) for m in s.members]} for s in systems
        ],
        "tables": {section: [as_json(table) for table in named] for section, named in tables.items()},
        "figures": paths,
    }
    replace_durably(folder / "report.json", to_json(content))
    count = sum(len(system.members) for system in systems)
    print(
        f"{folder / 'report.html'}: {len(systems)} systems, {count} runs or models; report.md and "
        "report.json beside it"
    )


def _introduction(systems: Sequence[System], now: str) -> list[str]:
    names = []
    for system in systems:
        seeds = f" ({len(system.members)} seeds)" if len(system.members) > 1 else ""
        names.append(f"{system.label}{seeds}")
    return [
        f"{now}. {', '.join(names)}.",
        "Shaded blue: ours, the best in bold; means ± standard deviation over seeds where there are "
        "several, else over the "
        "evaluation's own splits. Grey: figures as the papers print them. †: not comparable with published "
        "figures, and why.",
    ]


if __name__ == "__main__":
    cli.run(report)
