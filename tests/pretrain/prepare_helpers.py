"""Small corpora and what became of them, for tests of preparation."""

import hashlib
import json
import random
from pathlib import Path

from pretrain.config.data import DataConfig
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer

WORDS = ["river", "stone", "cloud", "winter", "garden", "letter", "music", "window", "forest", "market"]


def make_corpus(path: Path, documents: int = 120, seed: int = 0, repeats: float = 0.3) -> list[list[str]]:
    """Paragraph layout; some sentences occur in many documents, inside one too."""
    random_ = random.Random(seed)
    common = [f"Everybody knows the {a} near the {b}." for a in WORDS for b in WORDS[:4]]
    made = []
    for _ in range(documents):
        sentences = []
        for _ in range(random_.randrange(2, 14)):
            if random_.random() < repeats:
                sentences.append(random_.choice(common))
            else:
                picked = " ".join(random_.choice(WORDS) for _ in range(random_.randrange(3, 12)))
                sentences.append(f"The {picked} was {random_.randrange(10**6)} years old.")
        made.append(sentences)
    path.write_text("\n\n".join(" ".join(sentences) for sentences in made) + "\n")
    return made


def config(*places: object, **settings) -> DataConfig:
    settings = {"vocabulary": 320, "min_letters": 0.3, "heldout": 0.15, "chunk_tokens": 400, **settings}
    return DataConfig(sources=[str(place) for place in places], **settings)


def digest(folder: Path) -> dict[str, str]:
    """sha256 of everything a preparation leaves, the record of the run itself aside."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.name == "manifest.json":
                manifest = json.loads(data)
                manifest.pop("run", None)
                data = json.dumps(manifest).encode()
            found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def texts_of(folder: Path, split: str) -> list[str]:
    reader, tokenizer = ShardReader(folder, split), load_tokenizer(folder)
    found = []
    for number in range(reader.num_chunks):
        sequences = reader.read(number).sequences
        found += [
            tokenizer.decode(sequences[i], skip_special_tokens=True).strip() for i in range(len(sequences))
        ]
    return found
