"""Configuration of the data: the corpora of a mixture, how text becomes shards, and how a run reads them."""

import os
import re
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from pretrain.common.credentials import require_no_credentials
from pretrain.common.errors import UserError
from pretrain.common.typed_values import faults, nearest
from pretrain.config.terms import Section, refuse

NAMED_DATA: dict[str, dict[str, Any]] = {
    "simcse-wiki1m": {
        "source": "hub:princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt",
        "layout": "lines",
    },
    "nli-for-simcse": {"source": "hub:princeton-nlp/datasets-for-simcse/nli_for_simcse.csv"},
    "wikipedia": {"source": "hub:wikimedia/wikipedia", "subset": "20231101.en"},
    "fineweb-edu": {"source": "hub:HuggingFaceFW/fineweb-edu", "subset": "sample-10BT"},
    "bookcorpus": {"source": "hub:SamuelYang/bookcorpus", "layout": "passages"},
}
"""Word -> the keys of the source that it stands for; docs/data.md has sizes and licences."""
_WEIGHT = re.compile(r"^(.*[^@])@(\d+(?:\.\d+)?)$")


class Source(Section):
    """One corpus of a mixture; `PLACE` or `PLACE@WEIGHT` for short.

    >>> source = Source.model_validate("wiki.txt@0.5")
    >>> source.source, source.weight
    ('wiki.txt', 0.5)
    """

    source: str
    """'embedded' (documentation of the installed Python packages), a file, folder or glob (text, jsonl, csv,
    tsv, parquet; all but parquet also as .gz, .zst, .bz2 and .xz), a folder of datasets' save_to_disk, a
    Hugging Face name as hub:OWNER/NAME (hub:OWNER/NAME/FILE: one of its), or a corpus by name: simcse-wiki1m,
    nli-for-simcse, wikipedia, fineweb-edu, bookcorpus"""
    weight: float = Field(1.0, gt=0)
    """how often an epoch shows each of its sequences: 2 means twice, 0.3 keeps a fixed 30% of them, chosen by
    hash. Held-out data is never repeated"""
    format: Literal["auto", "text", "jsonl", "parquet", "csv", "tsv"] = "auto"
    """auto: by the file's name"""
    layout: Literal["auto", "lines", "paragraphs", "passages"] = "auto"
    """documents in a text file: one per line; lines with a blank line between documents; or passages, running
    text cut every 32 kB. auto: paragraphs if there are blank lines, else lines; for unit record: lines. In
    other formats a record is a document, and passages joins records that follow each other, as the sentences
    of a book that are a row each"""
    unwrap: bool | Literal["auto"] = "auto"
    """join the lines of a paragraph, which blank lines end. auto: if the text is hard-wrapped, as e-mails
    and Gutenberg's books are. (Unit record takes lines as they are)"""
    markup: Literal["none", "html"] = "none"
    """html: the texts of rows are HTML, and read as files of HTML are, without code, tables and navigation"""
    line_megabytes: float = Field(8, gt=0)
    """longest line of a file, and longest text of a row, in MB; a longer one is refused"""
    text_key: str = "text"
    """field with the text, for jsonl, csv, tsv, parquet and datasets"""
    positive_key: str = "positive"
    """field with a text that means the same; with pairs of structure, text_key and it are the two columns"""
    negative_key: str = "negative"
    """of records: field with a text that means something else"""
    augmented_key: str = "augmented"
    """of records: field with the text after an augmentation"""
    label_key: str = "label"
    """of records: field with a label, a whole number from 0 on"""
    score_key: str | None = None
    """of records: field with a number that says how alike text and positive are; none: score, unless
    other_fields is ignore"""
    other_fields: Literal["refuse", "ignore"] = "refuse"
    """of records: what to do about other fields; one that may be a misspelt name is refused either way"""
    subset: str | None = None
    """Hugging Face configuration name, as 20231101.en"""
    split: str = "train"
    """Hugging Face split"""
    revision: str | None = None
    """Hugging Face revision: a commit to pin, or a branch"""
    streaming: bool = True
    """read a hub dataset as it downloads, without keeping it on disk"""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = _weighted("source", value)
        if (
            isinstance(value, dict)
            and isinstance(name := value.get("source"), str)
            and name in NAMED_DATA
            and not os.path.exists(name)
        ):
            return NAMED_DATA[name] | {key: own for key, own in value.items() if key != "source"}
        return value

    @field_validator("source")
    @classmethod
    def _can_be_written(cls, value: str) -> str:
        if any("\udc80" <= character <= "\udcff" for character in value):
            raise ValueError(f"{value!a} is no UTF-8 here; rename it, or set PYTHONUTF8=1 or LC_ALL=C.UTF-8")
        return value

    def how_to_set(self, key: str) -> str:
        """Say in an error what to type to set a key of this source, as `text_key`."""
        how = f"""--source '[{{source: "{self.source}", {key}: FIELD}}]'"""
        return f"Set its {key}: {how} (for `clearly adapt`, the same after --text)."

    def __str__(self) -> str:
        return self.source if self.weight == 1 else f"{self.source}@{self.weight:g}"


class DataSet(Section):
    """A folder of prepared data among several; `FOLDER` or `FOLDER@WEIGHT` for short."""

    folder: Path
    """prepared data (manifest.json inside)"""
    weight: float | None = Field(None, gt=0)
    """how many of the steps read it, relative to the other sets; none: as many as its number of sequences
    asks for (data.temperature)"""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return _weighted("folder", str(value)) if isinstance(value, str | Path) else value

    def __str__(self) -> str:
        return str(self.folder) if self.weight is None else f"{self.folder}@{self.weight:g}"


class DataConfig(Section):
    """How text becomes shards: all that decides the shards."""

    former: ClassVar = {"new_words": 0, "exact_vocabulary": False, "bucket_megabytes": ...}

    sources: list[Source] = Field(default_factory=lambda: [Source(source="embedded")])
    """the corpora of the mixture: names, comma-separated, each with @WEIGHT if not 1; or a list of mappings
    in YAML. Where two hold the same sentence, the first one keeps it"""
    unit: Literal["sentence", "sequence", "document", "record"] = "sentence"
    """what a sequence is. sentence: one sentence; sequence: full sentences of a document, packed up to
    max_length, crossing into the next document after an extra separator (RoBERTa's FULL-SENTENCES); document:
    a document, cut at max_length; record: a line of a text file, or a row of another source with a text and
    optionally a positive, a negative, an augmented text and a label or score, unchanged"""
    pairs: Literal["none", "structure", "columns", "heading", "title", "neighbour"] = "none"
    """make records of pairs of texts that belong together in the documents' own structure: a heading and its
    section (Markdown, reStructuredText, HTML, wikitext), two columns of a row as title and text, a first line
    and the text below it, a sentence and the next one; structure: all of these. The unit is then record"""
    language: str = "any"
    """of pairs: any; same: drop those whose two texts are told to be in different languages; or codes, as de
    or en,de: drop those in others. What is too short to be told stays. Dropped pairs are counted and shown"""
    max_length: int = Field(64, ge=8)
    """longest sequence in tokens, special tokens included"""
    long_sentences: Literal["auto", "truncate", "split", "drop"] = "auto"
    """a sentence (of records: a text) longer than max_length; auto: split (units sequence and document, which
    allow nothing else) or truncate; dropping a text drops its record. Counted in the manifest either way"""
    tokenizer: str | None = None
    """existing tokenizer: folder or Hugging Face name; [DEL] is added (a run without a view that has it
    exports none). none: train one"""
    tokenizer_type: Literal["bpe", "wordpiece"] = "bpe"
    """trained tokenizer: byte-level BPE or WordPiece"""
    vocabulary: int = Field(16384, ge=300)
    """vocabulary of a trained tokenizer, rounded up to a multiple of 64"""
    lowercase: bool | Literal["auto"] = False
    """trained tokenizer lower-cases and strips accents; auto: unless more than 0.2% of the text's letters
    would lose something, as umlauts, й, が and vowel signs do"""
    tokenizer_megabytes: float = Field(24, gt=0)
    """MB of text to train the tokenizer on, chosen by hash"""
    heldout: float = Field(0.01, ge=0, lt=0.5)
    """share of documents held out, chosen by hash: at least one of two, and of a single one its last
    sentences. 0: nothing"""
    min_words: int = Field(4, ge=1)
    """shorter sentences are not prose and are dropped; characters count in Chinese and the like. (In units
    sequence and document: see min_prose. Records are never dropped)"""
    min_letters: float = Field(0.6, ge=0, le=1)
    """smallest share of letters among a sentence's non-blank characters, to be prose"""
    min_prose: float = Field(0.5, ge=0, le=1)
    """units sequence and document, whose running text stays whole: smallest share of a document's characters
    in sentences of prose; a document with less is dropped, others stay whole"""
    dedup: Literal["exact", "minhash", "none"] = "exact"
    """exact: every sentence (or record) once over all sources; minhash: near-duplicate documents removed as
    well (datatrove); none: only what also occurs in held-out text is removed from train. In units sequence
    and document, documents are compared, not sentences"""
    seed: int = Field(0, ge=0)
    """seed of the shuffle, the held-out choice and the weights' sampling"""
    chunk_tokens: int = Field(65536, ge=64)
    """approximate tokens in a chunk, which is read, checked and replaced as one"""

    positives: Literal["apart", "together"] = "apart"
    """of a row of records with several positives: a record for each, or one record of all, whose columns are
    positive, positive2 ... (objective.simcse.positives)"""
    annotate: str | None = None
    """spaCy pipeline, by name or folder: text and parse are kept beside the tokens, which augmentations of
    text (pi, mv, dn, neg ...) need; auto: $CLEAR_PARSER, or else one that is installed. For units sentence
    and record"""

    @model_validator(mode="before")
    @classmethod
    def _pairs_are_records(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("pairs", "none") != "none":
            return {"unit": "record"} | value
        return value

    @field_validator("sources", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = _by_commas(value)
        if isinstance(value, Source | dict):
            value = [value]
        if not value:
            raise ValueError("no source given: name at least one, as 'embedded' or a text file")
        return value

    @model_validator(mode="after")
    def _texts_stay_whole(self) -> Self:
        no_records = self.pairs != "none" and self.unit != "record"
        refuse(no_records, f"pairs: {self.pairs} makes records, and is not for unit {self.unit}")
        refuse(self.language != "any" and self.pairs == "none", f"language: {self.language} is for pairs")
        record, split = self.unit == "record", self.long_sentences == "split"
        whole = "is not for unit record, whose texts stay as they are"
        refuse(record and split, f"long_sentences: split {whole}")
        refuse(record and self.dedup == "minhash", f"dedup: minhash {whole}")
        passages = any(source.layout == "passages" for source in self.sources)
        refuse(record and self.pairs == "none" and passages, f"layout: passages {whole}")
        cuts = (
            f"long_sentences: {self.long_sentences} would cut documents, which unit {self.unit} keeps whole"
        )
        refuse(self.keeps_documents and self.long_policy != "split", f"{cuts}: leave it at auto")
        setting = f"unit {self.unit}" if self.keeps_documents else "long_sentences: split"
        parsed = self.annotate is not None and (self.keeps_documents or split)
        refuse(parsed, f"annotate is not for {setting}: a sequence there is not one whole text")
        return self

    @property
    def long_policy(self) -> str:
        """Return `long_sentences` with auto resolved."""
        if self.long_sentences != "auto":
            return self.long_sentences
        return "split" if self.keeps_documents else "truncate"

    @property
    def keeps_documents(self) -> bool:
        """Return whether the sentences of a document stay together."""
        return self.unit in ("sequence", "document")


class LoadingConfig(Section):
    former: ClassVar = {"remote_cache": ...}

    folder: Path | None = None
    """prepared data (manifest.json inside); none: data/NAME, prepared on first use from data.prepare. Flag
    --data"""
    remote: str | None = None
    """URL of a folder of prepared data (https://, s3://, gs://, ...): it is copied into the folder of --data
    before the run begins (docs/data.md)"""
    sets: list[DataSet] = Field(default_factory=list)
    """several folders of prepared data in place of one, each with @WEIGHT or none: a global batch is of one
    of them (docs/data.md). The first one's tokenizer and held-out split are the run's"""
    temperature: float = Field(1.0, gt=0)
    """T of data.sets without weights: a set of n sequences is read as often as n^(1/T) says; 1: by size,
    larger: more equally"""
    prepare: DataConfig = Field(default_factory=DataConfig)
    """how to prepare the data if the folder has none"""
    cache: int = Field(0, ge=0)
    """0: all views are augmented again in every epoch; k: positives, negatives and labelled augmentations are
    made once, k of every sentence, and kept beside the data (clearly cache)"""
    prompts: dict[str, str] = Field(default_factory=dict)
    """role of a view -> text before every sentence of it, as {anchor: 'query: ', positive: 'passage: '}; it
    is never augmented or masked. Kept in the export (docs/data.md)"""
    prompts_pooled: bool = True
    """false: the mean over a sentence's tokens leaves out its prompt, and the first token with it
    (include_prompt of sentence-transformers)"""
    lanes: int = Field(16, ge=1)
    """parallel streams that make up the data order: at least as many as the most ranks that the run should
    resume on, and a divisor of train.global_batch"""
    no_duplicates: bool = False
    """no batch has a text twice among its records' anchors and positives: a record that would repeat one
    comes at a later step of its epoch. Reads all data at the start"""
    workers: int = Field(1, ge=0)
    """loader processes per rank; 0 loads in the training process"""
    damaged: Literal["refuse", "skip"] = "refuse"
    """a chunk whose hash is wrong: stop, or replace it by another and record that"""

    @field_validator("sets", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @model_validator(mode="after")
    def _one_way_to_name_data(self) -> Self:
        other = "data.cache" if self.cache else "data.folder (--data)"
        two = self.sets and (self.folder is not None or self.cache)
        refuse(two, f"data.sets and {other} exclude each other: leave one of them out")
        barred = "data.sets" if self.sets else "data.damaged=skip" if self.damaged == "skip" else None
        refuse(barred and self.no_duplicates, f"data.no_duplicates and {barred} exclude each other")
        folders = {one.folder.resolve() for one in self.sets}
        refuse(len(folders) < len(self.sets), "data.sets names a folder twice: give it a larger weight")
        some = len({one.weight is None for one in self.sets}) > 1
        refuse(some, "data.sets: give a weight (FOLDER@WEIGHT) to all sets, or to none")
        return self


def _weighted(key: str, text: str) -> dict[str, Any]:
    """Return PLACE or PLACE@WEIGHT as fields; a file or folder of that name is a PLACE."""
    match = _WEIGHT.match(text)
    if match and not os.path.exists(text):
        return {key: match[1], "weight": float(match[2])}
    return {key: text}


def _by_commas(text: str) -> list[str]:
    """Split sources at their commas, but not at those in the name of a file that is there."""
    parts = text.split(",")
    sources = []
    while parts:
        named = next((n for n in range(len(parts), 1, -1) if _is_there(",".join(parts[:n]))), 1)
        sources.append(",".join(parts[:named]).strip())
        del parts[:named]
    return [source for source in sources if source]


def _is_there(source: str) -> bool:
    """Return whether a source, with its weight or without, is a file or a folder."""
    match = _WEIGHT.match(source.strip())
    places = [source.strip(), *([match[1]] if match else [])]
    return any(os.path.exists(os.path.expanduser(place)) for place in places)


def data_config(tree: dict[str, Any]) -> DataConfig:
    """Return the configuration in a mapping of keys to values; one error names all that is wrong."""
    try:
        config = DataConfig(**tree)
    except ValidationError as error:
        known = [*DataConfig.model_fields, *Source.model_fields]
        raise UserError(faults(error, lambda key: f"unknown key {key}" + nearest(key, known))) from None
    require_no_credentials(str(config.model_dump()), "settings")
    return config
