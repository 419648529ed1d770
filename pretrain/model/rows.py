"""A packed batch as the encoder runs it: one row of sequences in an order, with positions and filler."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from augment.core.keys import derive
from augment.core.ragged import segment_indices
from pretrain.common.memory import rounded_rows
from pretrain.common.transfer import send
from pretrain.model.attention import PackedLayout, sort_order
from pretrain.model.kernels.dropout import token_keys

EditEmbeddings = Callable[[Tensor], Tensor]
"""[T, H] -> [T, H]: replaces what the embedding block gives (adversarial noise, a sentence vector in the
first place)."""


@dataclass(frozen=True, eq=False)
class PackedRow:
    """Sequences end to end, equal lengths next to each other, and filler that belongs to none.

    ids, positions, token_types: int64[T + filler], on the device; positions count from the model's first,
        token_types is None if none were given.
    keys: int64[T + filler], a dropout key for every token, or None.
    lengths: int64[N], on the device, in the order of the input.
    order, restore: int64[T], on the device: the tokens' places in the input, and the inverse; None if the
        row is in the input's order.
    pooled: bool[T] or float32[T], in the order of the input: the tokens that a mean is over, or their weights
        in it; None: all alike.

    >>> ids, lengths = torch.tensor([1, 9, 2, 1, 7, 8, 2, 1, 6, 2]), torch.tensor([3, 4, 3])
    >>> row = PackedRow.build(ids, lengths, torch.device("cpu"), pad_id=0, first_position=0)
    >>> row.ids[:11].tolist(), len(row.ids)  # equal lengths together, and filler behind
    ([1, 9, 2, 1, 6, 2, 1, 7, 8, 2, 0], 64)
    >>> row.positions[:10].tolist(), row.order.tolist()
    ([0, 1, 2, 0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 7, 8, 9, 3, 4, 5, 6])
    """

    ids: Tensor
    positions: Tensor
    token_types: Tensor | None
    keys: Tensor | None
    layout: PackedLayout
    lengths: Tensor
    order: Tensor | None
    restore: Tensor | None
    pooled: Tensor | None = None

    @classmethod
    def build(
        cls,
        ids: Tensor,
        lengths: Tensor,
        device: torch.device,
        pad_id: int,
        first_position: int,
        token_types: Tensor | None = None,
        keys: np.ndarray | None = None,
    ) -> "PackedRow":
        """Lay out `ids` int64[T], sequences of `lengths` int64[N] (on the CPU).

        The row is filled up with padding, so that rows of a thousand lengths have a few dozen shapes (see
        `pretrain.common.memory`). An empty batch is a row of filler. keys: uint64[N], one for each sequence.
        """
        tokens = ids.numel()
        filler = max(rounded_rows(tokens), 1) - tokens

        def padded(values: Tensor, value: int = 0) -> Tensor:
            return torch.nn.functional.pad(values, (0, filler), value=value)

        # All but the ids, which are on the device already, is made on the host and sent in one transfer: a
        # launch costs as much as a thousand tokens.
        order, in_order = sort_order(lengths), lengths
        parts = {"lengths": lengths}
        if order is not None:
            in_order = lengths[order]
            sizes, chosen = lengths.numpy(), order.numpy()
            starts = (sizes.cumsum() - sizes)[chosen]
            parts["order"] = torch.from_numpy(segment_indices(starts, sizes[chosen]))
            parts["restore"] = torch.empty_like(parts["order"])
            parts["restore"][parts["order"]] = torch.arange(tokens)
        if keys is not None:
            # whatever else the caller draws by these keys, dropout is independent of it
            of_dropout = torch.from_numpy(derive(keys, "dropout").view(np.int64))
            parts["keys"] = padded(token_keys(of_dropout if order is None else of_dropout[order], in_order))
        positions = torch.from_numpy(segment_indices(np.full(len(lengths), first_position), in_order.numpy()))
        parts["positions"] = padded(positions, first_position)
        layout = PackedLayout.build(in_order, torch.device("cpu"), filler)
        parts |= {"boundaries": layout.boundaries, "slots": layout.slots}
        sent = dict(zip(parts, send([*parts.values()], device)))

        def in_row(values: Tensor, value: int = 0) -> Tensor:
            values = values.to(device, torch.long)
            return padded(values if order is None else values.index_select(0, sent["order"]), value)

        return cls(
            in_row(ids, pad_id),
            sent["positions"],
            None if token_types is None else in_row(token_types),
            sent.get("keys"),
            layout.moved(sent["boundaries"], sent["slots"]),
            sent["lengths"],
            sent.get("order"),
            sent.get("restore"),
        )

    @property
    def contents(self) -> list[Tensor]:
        """Return all that a pass reads of a row that is in the input's order, but for its `shape`."""
        assert self.order is None and self.token_types is None and self.pooled is None
        keys = [] if self.keys is None else [self.keys]
        return [self.ids, self.positions, self.layout.boundaries, self.layout.slots, *keys]

    @property
    def shape(self) -> Hashable:
        """Return what is the same of rows whose `contents` may lie in the same memory."""
        layout = self.layout
        return len(self.ids), len(layout.boundaries), layout.longest, layout.buckets, self.keys is None

    def of_slots(self, contents: Sequence[Tensor]) -> "PackedRow":
        """Return a row of the same shape and other `contents`, whose sequences are all S of its boundaries.

        Behind the N of its own are filler, and empty ones. No number of it depends on what the contents are.
        """
        ids, positions, boundaries, slots, *keys = contents
        layout = replace(
            self.layout,
            groups=(),
            num_tokens=len(ids),
            filler=0,
            cumulative=boundaries,
            boundaries=boundaries,
            slots=slots,
        )
        lengths = boundaries.diff().long()
        return PackedRow(ids, positions, None, keys[0] if keys else None, layout, lengths, None, None)

    def in_input_order(self, state: Tensor) -> Tensor:
        """Return the row's states [T + filler, H] as [T, H], in the order of the input."""
        state = state[: self.layout.num_tokens]
        return state if self.restore is None else state.index_select(0, self.restore)

    def edited(self, embedded: Tensor, edit: EditEmbeddings | None) -> Tensor:
        """Pass the row's embeddings [T + filler, H] through `edit`, in the order of the input."""
        if edit is None:
            return embedded
        changed = edit(self.in_input_order(embedded))
        changed = changed if self.order is None else changed.index_select(0, self.order)
        return torch.cat([changed.to(embedded.dtype), embedded[self.layout.num_tokens :]])
