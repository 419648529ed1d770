"""The geometry of an encoder's sentence vectors: `clearly geometry MODEL [MODEL ...]`.

    sts           alignment (STS-B pairs scored above 4), uniformity and isotropy (all sentences of STS-B)
    neighbourhood purity of and distance to the top K, on StackOverflow (VaSCL, figure 2a) or another set
    nli           premise-entailment against premise-contradiction distances (VaSCL, figure 2b)
    augmentation  per augmentation: rate of change, similarity, overlap of words (AugCSE, appendix A.14)

Numbers go to RUN/report/geometry-POOLING.json (results/NAME/ for models that are no run), figures into the
folder geometry-POOLING/ beside it. `clearly report` draws several models into one figure.
"""

from pathlib import Path

from finetune.encoders.models import open_model
from finetune.encoders.source import require_model
from finetune.flags import Pooling
from finetune.geometry.options import GeometryOptions
from finetune.results import folder_for, folder_name, table, write
from pretrain.benchmarks.files import known_name
from pretrain.common import cli

MEASURES = ("sts", "neighbourhood", "nli", "augmentation")


def geometry(
    *models: str, measure: cli.Names = (), pooling: Pooling = "", out: str = "", options: GeometryOptions
) -> None:
    """Measure the geometry of encoders' sentence vectors.

    Args:
        models: runs, exports, Hugging Face or sentence-transformers folders or names, file.py:function.
        measure: some of sts, neighbourhood, nli, augmentation, by commas; default: all that have data.
        out: folder for results; default: RUN/report or results/MODEL. Several models get a folder each.
    """
    for name in measure:
        known_name(name, MEASURES, "measure", plain=str)
    for source in models:
        require_model(source)
    from finetune.geometry import run

    inputs, missing = run.read_inputs(options, measure or MEASURES, bool(measure))
    for source in models:
        model = open_model(source, pooling)
        folder = folder_for(model, Path(out) / folder_name(source) if out and len(models) > 1 else out)
        evaluation = run.measure_model(model, inputs, options, folder)
        evaluation.notes += missing
        path = write(evaluation, folder)
        print(table(evaluation))
        print(f"{path}; figures in {folder / evaluation.file_name}")


if __name__ == "__main__":
    cli.run(geometry)
