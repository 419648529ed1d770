"""The geometry of an encoder's sentence vectors: `python -m finetune.geometry MODEL [MODEL ...]`.

    sts           alignment (STS-B pairs scored above 4), uniformity and isotropy (all sentences of STS-B)
    neighbourhood purity of and distance to the top K, on StackOverflow (VaSCL, figure 2a) or another set
    nli           premise-entailment against premise-contradiction distances (VaSCL, figure 2b)
    isomorphism   of premises, entailed and contradicting hypotheses (AugCSE, table 15)
    augmentation  per augmentation: rate of change, similarity, overlap of words, pseudo-perplexity,
                  isomorphism (AugCSE, appendix A.13 and A.14); samples to read; PCA and t-SNE

Numbers go to RUN/report/geometry-POOLING.json (results/NAME/ for models that are no run), figures and
TensorBoard projector files into the folder geometry-POOLING/ beside it. `python -m finetune.report` draws
several models into one figure.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from augment.spec.grammar import parse
from finetune.encoders.models import open_model
from finetune.flags import EvalData, Pooling
from finetune.intents import sets as intents
from finetune.results import folder_for, folder_name, table, write
from pretrain.benchmarks.files import known_name
from pretrain.common import cli

USUAL = ("sts", "neighbourhood", "nli", "augmentation")
MEASURES = (*USUAL, "isomorphism")


def geometry(
    *models: str,
    measure: cli.Names = (),
    pooling: Pooling = "",
    eval_data: EvalData = "",
    aug: str = "",
    text_file: str = "",
    sentences: Annotated[int, Field(ge=10)] = 1000,
    neighbours: cli.Names = ("stackoverflow",),
    parser: str = "",
    synonyms: str = "",
    label: str = "",
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0,
    out: str = "",
) -> None:
    """Measure the geometry of encoders' sentence vectors.

    Args:
        models: runs, exports, Hugging Face or sentence-transformers folders or names, file.py:function.
        measure: some of sts, neighbourhood, nli, isomorphism, augmentation, by commas; default: all that
            have data but isomorphism.
        aug: augmentations, separated by semicolons: "del-span,reorder;subs;yoda"; all: every one that needs
            no model of its own; default: those of tokens.
        text_file: sentences to augment, one a line (.gz too); default: those of STS-B.
        sentences: number of sentences, or triplets of isomorphism, taken evenly. The Gromov-Hausdorff
            distance as coded takes at most 2,000 of them.
        neighbours: sets for the neighbourhoods, by commas: of clustering/, and SNIPS, BANKING77, CLINC150,
            HWU64, ATIS of intents/. VaSCL's figure is of stackoverflow alone.
        parser: for augmentations of text, a spaCy pipeline, by name or folder; default: $CLEAR_PARSER, else
            an installed one.
        synonyms: table or WordNet for subs; default: as in training.
        label: written behind the results' name, so that another set of measures stays beside this one.
        seed: of augmentations, maskings, samples and t-SNE.
        out: folder for results; default: RUN/report or results/MODEL. Several models get a folder each.
    """
    from finetune.geometry import run
    from finetune.geometry.augmentations import every_specification

    for name in measure:
        known_name(name, MEASURES, "measure", plain=str)
    options = run.Options(
        eval_data,
        [name.upper() if name.upper() in intents.SETS else name for name in neighbours],
        text_file,
        sentences,
        every_specification() if aug == "all" else [one.strip() for one in aug.split(";") if one.strip()],
        parser,
        synonyms,
        seed,
    )
    for specification in options.aug:
        parse(specification)  # every mistake is found before any work
    inputs, missing = run.read_inputs(options, measure or USUAL, bool(measure))
    for source in models:
        model = open_model(source, pooling)
        folder = folder_for(model, Path(out) / folder_name(source) if out and len(models) > 1 else out)
        evaluation = run.measure_model(model, inputs, options, folder, label)
        evaluation.notes += missing
        path = write(evaluation, folder)
        print(table(evaluation))
        print(f"{path}; figures and projector files in {run.figure_folder(folder, evaluation)}")


if __name__ == "__main__":
    cli.run(geometry)
