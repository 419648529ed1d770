"""Write a page on systems side by side: an HTML file without any request to anywhere, and JSON."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from finetune.report.sources import System
from finetune.report.tables import Cell, Table, config_table, other_tables, paper_tables, rows_of
from pretrain.common.files import make_folder, replace_durably, to_json


def write_page(
    place: Path,
    title: str,
    introduction: Sequence[str],
    systems: Sequence[System],
    content: Mapping[str, Any],
    differences: Sequence[Table] = (),
) -> None:
    """Write PLACE.html, `differences` first, and PLACE.json with `content` beside the tables."""
    from finetune.figures.drawing import to_svg
    from finetune.geometry.plots import all_figures
    from finetune.report.figures import draw_curves, geometry_rows

    rows = rows_of(systems)
    papers = paper_tables(rows)
    configuration = config_table(systems)
    tables: dict[str, list[Table]] = {
        "Differences": list(differences),
        "Results": [*(table for table in papers if table.ours), *other_tables(rows)],
        "Learning curves": [],
        "Geometry": [],
        "Configuration": [configuration] if configuration else [],
    }
    drawn = {"Learning curves": draw_curves(systems), "Geometry": all_figures(geometry_rows(rows))}
    figures = {
        section: {name: to_svg(figure, f"{_anchor(section)}-{name}") for name, figure in named.items()}
        for section, named in drawn.items()
    }
    environment = Environment(loader=PackageLoader("finetune.report", ""), autoescape=True)
    environment.filters |= {"anchor": _anchor, "is_prose": _is_prose}
    html = environment.get_template("page.html.jinja").render(
        title=title,
        introduction=introduction,
        sections=[name for name in tables if tables[name] or figures.get(name)],
        tables=tables,
        empty=[table for table in papers if not table.ours],
        figures=figures,
    )
    named = {section: [asdict(table) for table in of_section] for section, of_section in tables.items()}
    make_folder(place.parent)
    replace_durably(place.with_suffix(".html"), html.encode())
    replace_durably(place.with_suffix(".json"), to_json({**content, "tables": named}))


def _is_prose(cell: Cell) -> bool:
    """Return whether a cell holds words, which may wrap, rather than a figure."""
    return cell.value is None and bool(cell.text) and not re.fullmatch(r"[\d.,:]+[a-zA-Z]?", cell.text)


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")
