"""Measure what augmentations do to real sentences: a table, JSON, and samples to read.

    python -m finetune.augmentation_quality runs/NAME --text-file sentences.txt --out quality
    python -m finetune.augmentation_quality bert-base-uncased --text-file sentences.txt.gz --aug 'pi;mv;subs'

For every augmentation of the catalogue that needs no model of its own (SDA's rules in both variants): the
share of sentences that it changes, and of those the mean cosine similarity under the encoder, the change of
its masked-language loss under fixed masks, and the overlap of words (`finetune.augmentation_quality.measures`
has the definitions). Each figure is of the sentences that the augmentation changes. People judge whether
outputs are right: tests/augment/readings.

--out holds table.md, results.json, samples.md (the first five changed sentences in an order drawn once), and
kept/: the parses of the sentences, and the figures of each augmentation, by the sentences that it wrote. The
same command again makes only what is missing, or what a rule now writes differently.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from augment.spec.grammar import parse
from augment.text.parsing import find_parser
from finetune.encoders.models import open_model
from finetune.files import read_sentences, spaced
from finetune.flags import Model, Pooling
from pretrain.common import cli
from pretrain.common.files import make_folder, replace_durably, require_writable, to_json
from pretrain.data.annotate import describe_parser


def main(
    model: Model,
    *,
    text_file: Path,
    parser: str = "",
    aug: str = "",
    also: str = "",
    sentences: Annotated[int, Field(ge=10)] = 10_000,
    masked: cli.Natural = 1000,
    pooling: Pooling = "",
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    seed: cli.Natural = 0,
    out: Path = Path("augmentation_quality"),
) -> None:
    """Measure augmentations on real sentences: rate of change, similarity, masked loss, overlap of words.

    Args:
        text_file: the sentences, one a line (.gz too).
        parser: a spaCy pipeline, by name or folder; default: $CLEAR_PARSER, else one that is installed.
        aug: augmentations, separated by semicolons: "pi;mv:variant=code;subs"; default: all that need no
            model of their own.
        also: further augmentations, beside those of --aug:
            "contextual:model=FOLDER;back-translation:forward=A:back=B".
        sentences: number of sentences, taken evenly over the file.
        masked: number of sentences measured under masks; 0: none.
        precision: arithmetic of the encoder's products: fp32, bf16 or fp16.
        seed: seed of augmentations, maskings, and the order in which samples and masked sentences are taken.
        out: folder for the table, the figures, the samples, and what is kept.
    """
    from finetune.augmentation_quality import run
    from finetune.geometry.augmentations import AugmentedSentences

    require_writable(out)
    specifications = list(dict.fromkeys([*(_listed(aug) or run.every_specification()), *_listed(also)]))
    for specification in specifications:  # before any work
        parse(specification)
    chosen = spaced(read_sentences(text_file, "text-file"), sentences)
    pipeline = find_parser(parser)
    folder = out
    make_folder(folder / "kept")
    parses = run.annotate(chosen, pipeline, folder / "kept")
    opened = open_model(model, pooling)
    augmented = AugmentedSentences(opened, chosen, seed, parses, precision)
    quality = run.Quality(augmented, pipeline, masked, folder / "kept", f"{opened.identity} {opened.pooling}")
    figures, notes = run.measure_all(quality, specifications)
    notes = [*augmented.notes, *notes] + [augmented.why_no_perplexity] * bool(augmented.why_no_perplexity)
    settings: dict[str, Any] = {
        "model": opened.name,
        "pooling": opened.pooling,
        "precision": precision,
        "parser": describe_parser(pipeline),
    }
    settings |= {"text": text_file.name}
    settings |= {"sentences": len(chosen), "masked": masked, "seed": seed, "notes": notes}
    made = run.table(figures, augmented.has_mlm_head and bool(masked))
    replace_durably(folder / "results.json", to_json({**settings, "augmentations": figures}))
    replace_durably(folder / "table.md", made.encode())
    replace_durably(folder / "samples.md", run.samples(figures).encode())
    print(made)
    for note in notes:
        print(f"note: {note}")
    print(f"{folder}/table.md, results.json, samples.md")


def _listed(specifications: str) -> list[str]:
    return [str(parse(one.strip())) for one in specifications.split(";") if one.strip()]


if __name__ == "__main__":
    cli.run(main)
