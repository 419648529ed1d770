"""What the estimates know of a run: sizes of its model, of its batch and of a token's activations."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSize:
    """A model, as training holds it.

    trained, frozen: parameters that have gradients, and those that have none.
    moments: elements of the optimizer's state: one for each parameter that Muon updates, two for each other.
    small: trained parameters in tensors that ZeRO 3 keeps whole on every rank.
    largest: elements of the largest tensor.
    width: of sentence vectors.
    vocabulary: rows of the masked-language head.
    copies: bytes of working copies of weights that a pass of any length keeps.
    token_bytes: activations that a pass with gradients keeps for each token of the encoder.
    masked_bytes: further ones for each masked token, without the tile of logits.
    token_flops: of a forward pass, for each token, attention at the batch's mean length included.
    masked_flops: further ones for each masked token.
    guide: parameters of the frozen encoder that finds false negatives; whole on every rank, never saved.
    """

    trained: int
    frozen: int
    moments: int
    small: int
    largest: int
    width: int
    vocabulary: int
    copies: float
    token_bytes: float
    masked_bytes: float
    token_flops: float
    masked_flops: float
    guide: int = 0


@dataclass(frozen=True)
class BatchSize:
    """The global batch of a step.

    sequences: of the batch. longest: tokens of the longest sequence that may come.
    masked_tokens: tokens of all maskings together. predicted: of them, those to predict.
    views: sentence vectors of a sequence. view_tokens: tokens of all views together.
    sequence_tokens: tokens of the passes of losses of one sequence at a time.
    momentum_tokens: tokens that an encoder without gradients reads.
    """

    sequences: int
    longest: int
    masked_tokens: float
    predicted: float
    views: int
    view_tokens: float
    sequence_tokens: float = 0.0
    momentum_tokens: float = 0.0

    @property
    def tokens(self) -> float:
        """Tokens that go forward and backward, each counted once, as a run's metrics count them."""
        return self.masked_tokens + self.view_tokens + self.sequence_tokens

    @property
    def largest_pass(self) -> float:
        """Tokens of the pass that has the most: the views together, or a loss's own."""
        return max(self.view_tokens, self.masked_tokens, self.sequence_tokens)


@dataclass(frozen=True)
class Layout:
    """How a run is spread: ranks, ZeRO stage, tokens of a micro-batch, and how gradients travel.

    bucket: elements of gradients reduced at once. wire: bytes of an element of a gradient between ranks.
    reserved: whether a bucket takes its whole size (a GPU), or only the part that is used (untouched pages of
    a CPU are free). background: whether checkpoints are copied, and written while training goes on.
    """

    ranks: int
    zero: int
    micro_batch_tokens: int
    bucket: int = 500_000_000
    reserved: bool = True
    wire: int = 4
    background: bool = False
