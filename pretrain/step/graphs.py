"""A step's passes over packed rows as CUDA graphs: recorded once, then launched as one.

With short sentences a GPU waits for the host, which launches a thousand operators a row one by one. A graph
of them is one launch. It repeats what was recorded at the same addresses, so a row is first copied to where
the graph reads, and its shape must be that of the recorded row: rows have few (`PackedRow.shape`).

A shape is recorded when it comes a second time with a backward pass behind it. From then on its forward is
one graph and its backward another, and the two are a function to autograd. Gradients are added to the
parameters' own: at ZeRO 0 and 1 by the graph itself, in memory that stays, at ZeRO 2 by autograd, as
DeepSpeed's hooks want. Order and bits are those of a pass without graphs.

These graphs share one pool of memory. What a forward keeps for its backward is there until another one runs.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import Parameter

from pretrain.data.microbatches import MicroBatch
from pretrain.losses.mlm import round_up
from pretrain.model.layer import layers_of
from pretrain.model.rows import PackedRow
from pretrain.step.gradients import Gradients
from pretrain.step.model import Request, SentenceModel, seed
from pretrain.step.precision import factor_of

MOST_GRAPHS = 64
"""Shapes that are recorded; each holds a few MB of the device."""
LARGEST_ROW = 1 << 15
"""Tokens of the longest row that is recorded: with more, launches no longer limit the device, and a second
pool of activations would have to fit into its memory."""

Method = Callable[..., Tensor]
"""Of a `SentenceModel`: (model, packed row, more tensors) -> sentence vectors [N, H], or a scalar."""
Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a function without arguments or result, and returns one that repeats it on the device."""


class Graphs:
    """The graphs of a model's passes. Whatever cannot be recorded runs operator by operator, as before."""

    def __init__(
        self, engine, setting: str, say: Callable[[str], None] = print, record: Record | None = None
    ):
        """
        Args:
            engine: DeepSpeed engine around a `SentenceModel`.
            setting: `train.graphs`.
            say: told, once each, why a GPU runs rows without graphs.
            record: how functions are recorded; None: as CUDA graphs.
        """
        self.model: SentenceModel = engine.module
        self.say, self.said = say, set[str]()
        self.on = setting == "auto" and (record is not None or engine.device.type == "cuda")
        self.live: Any = None  # the pass whose activations are in the pool
        self.graphs: dict[Hashable, RowGraph] = {}
        self._met: set[Hashable] = set()
        self.gradients = Gradients(engine)
        stage = int(engine.zero_optimization_stage())
        self.adds = stage <= 1
        """Whether graphs add gradients themselves, and not autograd, as DeepSpeed's hooks want."""
        # instead of the parameters, where autograd is to add nothing to them
        self._instead = (torch.zeros((), device=engine.device, requires_grad=True),) if self.adds else ()
        if self.on and stage == 3:
            self._give_up("ZeRO 3 gathers weights in every pass")
        elif self.on and layers_of(self.model.encoder.lm)[0].gradient_checkpointing:
            self._give_up("train.activation_checkpointing is on")
        if self.on:
            # each in a pool of its own: that of the passes is free again when they are given up
            self.record, self.record_update = (record or cuda_recorder() for _ in range(2))

    def embed(self, model: SentenceModel, row: MicroBatch) -> Tensor:
        """Return `SentenceModel.embed(row)`."""
        with model.autocast(row):
            return self._run(SentenceModel.embed_row, row, model.pack(row, model.objective.view_dropout))

    def masked_loss(self, model: SentenceModel, row: MicroBatch) -> Tensor:
        """Return `SentenceModel.masked_loss(row)`."""
        with model.autocast(row):
            more = round_up(row.positions, row.labels)
            return self._run(SentenceModel.masked_loss_of_row, row, model.pack(row), *more)

    def add(self, graph: "RowGraph") -> tuple[Tensor | None, ...]:
        """Run a graph's backward; return what autograd is to add to its parameters' gradients."""
        if not self.adds:
            graph.backward()
            return tuple(own for _, own in graph.pairs)
        factor = factor_of(self.model)
        assert graph.divides or factor is None
        if graph.divides:
            graph.divisor.fill_(1.0) if factor is None else graph.divisor.copy_(factor)
        self.gradients.keep(graph.pairs)
        graph.backward()
        return (None,)

    def _run(self, method: Method, row: MicroBatch, packed: PackedRow, *more: Tensor) -> Tensor:
        graph = self._graph(method, row, packed, more)
        if graph is None:
            return method(self.model, packed, *more)
        torch._foreach_copy_(graph.contents, [*packed.contents, *more])
        return _Replay.apply(self, graph, len(row.lengths), *(self._instead or graph.parameters))

    def _graph(
        self, method: Method, row: MicroBatch, packed: PackedRow, more: tuple[Tensor, ...]
    ) -> "RowGraph | None":
        """Return the graph of a row's shape, recorded if this is the time to; None: there is none."""
        if not self.on or not self.model.training:
            return None
        if len(packed.ids) > LARGEST_ROW:
            self._say(f"not where a row has more than {LARGEST_ROW:,} tokens")
            return None
        key = method, packed.shape, packed.order is None, packed.pooled is None, *map(len, more)
        if key in self.graphs:
            return self.graphs[key]
        if why := self.model.encoder.why_not_repeatable(packed):
            self._say(f"not where {why}")
            return None
        if key not in self._met:
            if torch.is_grad_enabled():
                self._met.add(key)
            return None
        if len(self.graphs) == MOST_GRAPHS:
            self._say(f"not where a row has a shape beyond the first {MOST_GRAPHS} that came twice")
            return None
        try:
            self.graphs[key] = RowGraph(self, method, packed, more)
        except RuntimeError as error:  # CUDA's, and those of a full memory, are such, too
            self._give_up(str(error).strip().splitlines()[0])
            return None
        finally:
            if row.seed is not None:  # recording has run the row once
                seed(row.seed, row.ids.device)
        return self.graphs[key]

    def _give_up(self, why: str) -> None:
        self.on = False
        self._say(f"none any more: {why}" if self.graphs else f"none: {why}")
        self.graphs.clear()  # with them goes the memory of their pool
        self.gradients.forget()

    def _say(self, what: str) -> None:
        if what not in self.said:
            self.said.add(what)
            self.say(f"graphs     {what}")


class RowGraph:
    """Forward and backward of rows of one shape.

    contents: what the forward reads. output: where it leaves its result. gradient: that of the result, which
    the backward reads. parameters: those that have a gradient. pairs: each, and where the backward leaves its
    gradient, or adds it; divides: whether divided by `divisor` (`LossScale`).
    """

    def __init__(self, graphs: Graphs, method: Method, packed: PackedRow, more: tuple[Tensor, ...]):
        self._model, self._method, self._packed = graphs.model, method, packed
        self.contents = [part.clone() for part in (*packed.contents, *more)]
        named = dict(self._model.named_parameters())
        trained = {n: p for n, p in named.items() if p.requires_grad and n.startswith("encoder.")}
        self._aliases = _aliases(trained)
        # Run it once as it is: what is loaded or compiled at its first use must not be while it is recorded.
        self._result = self._within(self._compute)
        self.output, self.gradient = torch.zeros_like(self._result), torch.zeros_like(self._result)
        found = [gradient is not None for gradient in self._within(self._differentiate)]
        self.parameters = [parameter for parameter, has_one in zip(trained.values(), found) if has_one]
        places = {id(parameter): own for parameter, own in graphs.gradients.pairs}
        self.pairs = [(parameter, places[id(parameter)]) for parameter in self.parameters]
        self.divisor, self._adds = torch.ones((), device=self.gradient.device), graphs.adds
        precision, masked = self._model.precision, method is SentenceModel.masked_loss_of_row
        self.divides = graphs.adds and (precision == "fp16" or (precision == "bf16" and masked))
        self._aliases = _aliases(trained)  # autograd remembers on which stream it met the others
        self.forward = graphs.record(self._forward)
        self.backward = graphs.record(self._backward)

    def _forward(self) -> None:
        self._result = self._within(self._compute)
        self.output.copy_(self._result.detach())

    def _backward(self) -> None:
        found = [gradient for gradient in self._within(self._differentiate) if gradient is not None]
        if self.divides:
            found = torch._foreach_div(found, self.divisor)
        (torch._foreach_add_ if self._adds else torch._foreach_copy_)([own for _, own in self.pairs], found)

    def _compute(self) -> Tensor:
        inputs = len(self._packed.contents)
        row, more = self._packed.of_slots(self.contents[:inputs]), self.contents[inputs:]
        return self._method(self._model, row, *more)

    def _differentiate(self) -> tuple[Tensor | None, ...]:
        result, self._result = self._result, None  # with it goes what the pool holds of the row
        aliases = list(self._aliases.values())
        with torch.autocast(result.device.type, enabled=False):
            return torch.autograd.grad(result, aliases, self.gradient, allow_unused=True)

    def _within(self, body: Callable[[], Any]) -> Any:
        """Call `body` with the aliases as the model's parameters, and no copy of a weight outlives it."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with torch.enable_grad(), self._model.weights_unchanged(anew=True):
                return functional_call(self._model, self._aliases, (Request(lambda _: body()),))
        finally:
            torch.set_autocast_cache_enabled(cached)


def _aliases(parameters: dict[str, Parameter]) -> dict[str, Tensor]:
    """Return what stands for parameters whose hooks and accumulated gradients must not get into a graph."""
    return {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}


class _Replay(torch.autograd.Function):
    """What a graph makes of the row in its `contents`; differentiable by the graph's parameters."""

    @staticmethod
    def forward(ctx: Any, graphs: Graphs, graph: RowGraph, count: int, *parameters: Tensor) -> Tensor:
        """count: how many sequences the row has."""
        ctx.graphs, ctx.graph, ctx.count, ctx.adds_to = graphs, graph, count, graph.parameters
        graphs.live = ctx
        graph.forward()
        return (graph.output[:count] if graph.output.ndim else graph.output).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        graphs, graph = ctx.graphs, ctx.graph
        assert graphs.live is ctx, "another graph ran between a row's forward and its backward"
        graphs.live = None
        if graph.gradient.ndim:
            graph.gradient[: ctx.count].copy_(gradient)
            graph.gradient[ctx.count :].zero_()
        else:
            graph.gradient.copy_(gradient)
        return None, None, None, *graphs.add(graph)


def cuda_recorder() -> Record:
    """Return what records functions as CUDA graphs, all in one pool of memory."""
    pool = torch.cuda.graph_pool_handle()

    def record(body: Callable[[], None]) -> Callable[[], None]:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # other threads (a checkpoint being saved, NCCL's watchdog) may go on with what they do
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                body()
        finally:
            torch.cuda.set_stream(stream)  # which a recording that fails leaves changed
        return graph.replay

    return record
