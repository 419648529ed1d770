"""Write one page about runs and models, side by side.

The papers' tables with their published rows and ours, means over seeds, learning curves, geometry, and what
differs between the recipes. Reads what evaluations wrote (RUN/report/*.json, results/NAME/*.json) and, of
runs, config.yaml and metrics.jsonl; computes nothing anew. Writes OUT/report.html (self-contained) and
report.json.
"""

import datetime
from pathlib import Path
from typing import Any

from finetune.report.page import write_page
from finetune.report.sources import collect, group
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import require_writable


def report(*sources: str, out: Path = Path("report"), title: str = "Sentence encoders") -> None:
    """Write one report about runs and models.

    Args:
        sources: run folders, model folders, folders of result files, or folders that hold several of these.
            Runs that differ only in seed become one row: mean and standard deviation.
        out: folder for report.html and report.json.
        title: the report's heading.
    """
    if not sources:
        raise UserError("name runs or folders of results: clearly report RUN_OR_FOLDER ...")
    require_writable(out)
    systems = group(collect(sources))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")
    content: dict[str, Any] = {
        "title": title,
        "date": now,
        "systems": [
            {"label": s.label, "seeds": s.seeds, "folders": [str(m.path) for m in s.members]} for s in systems
        ],
    }
    seeds = {s.label: f" ({len(s.members)} seeds)" if len(s.members) > 1 else "" for s in systems}
    introduction = [
        f"{now}. {', '.join(label + of_label for label, of_label in seeds.items())}.",
        "Shaded blue: ours, the best in bold; means ± standard deviation over seeds where there are "
        "several, else over the evaluation's own splits. Grey: figures as the papers print them. †: not "
        "comparable with published figures, and why.",
    ]
    write_page(out / "report", title, introduction, systems, content)
    count = sum(len(system.members) for system in systems)
    print(f"{out / 'report.html'}: systems: {len(systems)}, runs or models: {count}; report.json beside it")


if __name__ == "__main__":
    cli.run(report)
