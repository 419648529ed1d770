"""Evaluate a model on held-out sequences: masked-language loss, and top-1 retrieval of the other view."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from scipy.special import logsumexp

from augment.core.identity import sequence_identities
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.spec.grammar import parse
from augment.tokens.synonyms import SynonymTable
from pretrain.common.errors import UserError
from pretrain.common.ranks import gathered
from pretrain.config.run import Config
from pretrain.data.annotation import Sentences
from pretrain.data.damage import known_damaged
from pretrain.data.masking import Masked, mask_tokens
from pretrain.data.microbatches import MicroBatch, count_micro_batches, cut, pack
from pretrain.data.shards import Chunk, DamagedShard, ShardReader
from pretrain.data.worker import build_for, clip, with_prompt
from pretrain.model.modules import evaluation_mode
from pretrain.step.model import Request, SentenceModel

PARTNER_OF_ITSELF = "crop:rate=0.7"  # the view to be found if training's are told apart by dropout alone
PARTNER_TEMPERATURE = 0.05  # SimCSE's; the same for all objectives, so that their held-out losses compare
SIGNAL_SAMPLE = 96  # sequences whose views are embedded as in training
SEED = 20201231  # fixed: every evaluation of every run masks and augments the same sequences the same way


class Heldout:
    """Held-out sequences with fixed masks and views, evaluated on all ranks together.

    Every rank holds all of it and computes every W-th micro-batch; all ranks enter the same number of forward
    passes, as ZeRO-3 demands.
    """

    def __init__(
        self,
        reader: ShardReader,
        vocabulary: Vocabulary,
        config: Config,
        synonyms: SynonymTable | None,
        max_length: int,
        left_out: Sequence[dict] = (),
        prompts: Mapping[str, np.ndarray] | None = None,
    ):
        """
        Args:
            max_length: what the encoder takes; longer views are cut as in training.
            left_out: damaged chunks that this run's record names; they are left out unread.
            prompts: as `BatchSpec.prompts`.

        Raises:
            UserError: the data has no held-out sequences.
            DamagedShard: a chunk is damaged that is not in the record, and `data.damaged` is refuse.
        """
        if not reader.num_sequences:
            raise UserError(
                f"{reader.folder} has no held-out sequences: prepare it with data.prepare.heldout"
            )
        wanted = max(config.evaluate.heldout_sequences, config.evaluate.partners)
        recorded = known_damaged(left_out)
        sequences, ids, sentences, damaged = read_sound(
            reader, wanted, config.data.damaged == "skip", recorded
        )
        self.left_out = [
            {"chunk": chunk, "reason": reason}
            for chunk, reason in sorted(damaged.items())
            if chunk not in recorded
        ]
        self.budget = config.train.micro_batch
        keys = sequence_keys(SEED, 0, ids, 0, "mask")
        self.count = min(config.evaluate.heldout_sequences, len(sequences))
        mlm = config.objective.mlm
        self.masked: Masked = mask_tokens(
            sequences.slice(0, self.count),
            keys[: self.count],
            vocabulary,
            rate=config.heldout_rate,
            mask=mlm.mask,
            random=mlm.random,
        )
        self.partners = min(config.evaluate.partners, len(sequences))
        originals = sequences.slice(0, self.partners)
        self.texts = sequence_identities(originals)
        specs = [config.augment.of_role(role) for role in ("anchor", "positive")]
        if all(parse(spec).is_identity for spec in specs):  # equal texts find each other whatever was learned
            specs[1] = PARTNER_OF_ITSELF
        self.views, self.view_keys = [], []
        for view, (role, spec) in enumerate(zip(("anchor", "positive"), specs)):
            keys = sequence_keys(SEED, 0, ids[: self.partners], view, "augment")
            tokens = build_for(reader, spec, vocabulary, synonyms)(originals, keys, sentences)
            self.views.append(clip(with_prompt(tokens, (prompts or {}).get(role)), max_length))
            self.view_keys.append(sequence_keys(SEED, 0, ids[: self.partners], view, "view"))

    def evaluate(self, engine) -> dict[str, float]:
        """Evaluate in inference mode; the same dict on every rank.

        heldout_mlm_loss: mean cross-entropy (nats) over the masked tokens.
        partner_found: share of first views whose nearest second view (cosine of the vectors in use: pooled,
            and through no head but one that is kept) is their own.
        partner_loss: mean -log softmax(cosine / PARTNER_TEMPERATURE) of it: it still moves if every
            partner is found.
        partner_among: how many second views there were.
        view_signal: `signal_to_noise` of the pooled vectors of up to SIGNAL_SAMPLE of them, embedded as views
            are in training: with its dropout. Not of a single one.
        """
        model = engine.module
        with evaluation_mode(model), torch.no_grad(), model.weights_unchanged():
            result: dict[str, float] = {}
            if model.objective.masked_copies:
                result["heldout_mlm_loss"] = self._masked_loss(engine)
            first, second = (embed_sharded(engine, view, self.budget) for view in self.views)
            result["partner_found"], result["partner_loss"] = find_partners(first, second, self.texts)
            result["partner_among"] = float(self.partners)
            model.encoder.train()
            count = min(SIGNAL_SAMPLE, self.partners)
            first, second = (
                embed_sharded(engine, view.slice(0, count), self.budget, keys[:count])
                for view, keys in zip(self.views, self.view_keys)
            )
            if count > 1:  # one sequence has no variance
                result["view_signal"] = signal_to_noise(first, second)
        return result

    def _masked_loss(self, engine) -> float:
        total = torch.zeros((), dtype=torch.float64, device=engine.device)
        for row in _my_share(self.masked, self.budget, engine.device):
            total += engine.module(Request(SentenceModel.masked_loss, row))
        dist.all_reduce(total)
        return total.item() / max(1, len(self.masked.positions))


def signal_to_noise(first: np.ndarray, second: np.ndarray) -> float:
    """Return the variance between sequences over the variance between the two views of one (float[N, d]).

    The variance of a sequence's mean vector holds half of the noise of a view, which is taken away. About 0:
    what the vectors say is drowned, and no loss of them can learn.
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    noise = np.square(first - second).sum(1).mean() / 2
    signal = ((first + second) / 2).var(axis=0, ddof=1).sum() - noise / 2
    return float(max(signal, 0.0) / max(noise, 1e-12 * abs(signal), 1e-300))


def embed_sharded(engine, sequences: Ragged, budget: int, keys: np.ndarray | None = None) -> np.ndarray:
    """Embed sequences on all ranks together: the vectors in use, float32[N, d], whole on each rank.

    keys: uint64[N], of dropout in training mode.
    """
    vectors = torch.zeros(len(sequences), engine.module.encoder.hidden_size, device=engine.device)
    with torch.no_grad():
        for row in _my_share(sequences, budget, engine.device, keys):
            vectors[row.rows] = engine.module(Request(SentenceModel.embed_for_use, row))
    dist.all_reduce(vectors)
    return vectors.cpu().numpy()


def embed_texts(
    engine, tokenizer, max_length: int, budget: int, prompt: str, sentences: list[str]
) -> np.ndarray:
    """Embed the same sentences on every rank, `prompt` before each: float32[N, d]. Collective."""
    encoded = tokenizer(
        [prompt + sentence for sentence in sentences],
        truncation=True,
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
    )["input_ids"]
    return embed_sharded(engine, Ragged.from_sequences(encoded), budget)


def find_partners(
    first: np.ndarray, second: np.ndarray, texts: np.ndarray | None = None
) -> tuple[float, float]:
    """Match rows of `first` to rows of `second` by cosine (both float[N, d]).

    texts: int64[N], identities of what rows are views of. If given, another view of the same text is no
    candidate: records may repeat a text, with other positives.

    Returns:
        The share of rows whose nearest row is their own, and the mean cross-entropy of choosing it at
        PARTNER_TEMPERATURE.
    """
    a = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-12)
    b = second / np.maximum(np.linalg.norm(second, axis=1, keepdims=True), 1e-12)
    similarity = a @ b.T
    own = np.diagonal(similarity).copy()
    if texts is not None:
        similarity[texts[:, None] == texts] = -np.inf
        np.fill_diagonal(similarity, own)
    loss = logsumexp(similarity.astype(np.float64) / PARTNER_TEMPERATURE, axis=1) - own / PARTNER_TEMPERATURE
    np.fill_diagonal(similarity, -np.inf)
    # a tie is no find: a collapsed encoder finds nothing
    return float(np.mean(own > similarity.max(1))), float(loss.mean())


def _my_share(
    sequences: Ragged | Masked, budget: int, device: torch.device, keys: np.ndarray | None = None
) -> Iterator[MicroBatch]:
    """Yield every W-th micro-batch: equally many on every rank."""
    world, rank, lengths = dist.get_world_size(), dist.get_rank(), sequences.lengths
    count = -(-count_micro_batches(lengths, budget) // world) * world
    for part in cut(lengths, count)[rank::world]:
        yield pack(sequences, part, device, keys)


def read_sound(
    reader: ShardReader, wanted: int, skip_damaged: bool, recorded: dict[int, str]
) -> tuple[Ragged, np.ndarray, Sentences | None, dict[int, str]]:
    """Read the first sequences of the sound chunks of the held-out split, the same on every rank.

    A chunk that one rank cannot read is left out on all: they embed the sequences together. recorded: damaged
    chunks that are left out unread.

    Returns:
        The sequences, their numbers, their text and parse if they have them, and the damaged chunks with the
        reasons.

    Raises:
        DamagedShard: a chunk is damaged, and skip_damaged is False.
    """
    damaged = dict(recorded)
    while True:
        chunks: dict[int, Chunk] = {}
        for index in range(reader.num_chunks):
            if index in damaged or sum(len(chunk.sequences) for chunk in chunks.values()) >= wanted:
                continue
            try:
                chunks[index] = reader.read(index)
            except DamagedShard as error:
                if not skip_damaged:
                    raise
                damaged[index] = error.reason
        every = gathered(damaged)
        if all(other.keys() == every[0].keys() for other in every):
            break
        damaged = {chunk: reason for other in every for chunk, reason in other.items()}
    if not chunks:
        raise UserError(f"every held-out chunk of {reader.folder} is damaged; prepare the data again")
    sentences = None
    if reader.annotation is not None:
        annotations = {
            index: chunk.annotation for index, chunk in chunks.items() if chunk.annotation is not None
        }
        of_chunk = [np.full(len(chunk.sequences), index) for index, chunk in chunks.items()]
        rows = [np.arange(0, len(chunk.stored), len(chunk.columns)) for chunk in chunks.values()]
        sentences = Sentences(annotations, np.concatenate(of_chunk), np.concatenate(rows))
    sequences = Ragged.concatenate([chunk.sequences for chunk in chunks.values()])
    ids = np.concatenate([chunk.sequence_ids for chunk in chunks.values()])
    return sequences.slice(0, min(wanted, len(ids))), ids[:wanted], sentences, damaged
