"""Parameters and optimizer state of a DeepSpeed engine, by parameter name, at any ZeRO stage.

Each rank reads and writes its own part of them; nothing here is gathered. Each stage keeps the same numbers
in a different place:

- ZeRO 0: the optimizer's state is keyed by the parameters themselves.
- ZeRO 1 and 2: parameters of a group are flattened, each rank owns a slice in fp32, and the optimizer's state
  is keyed by that flat slice. A parameter finds its piece through `_hp_mapping`.
- ZeRO 3: as above by sub-group, and the parameters themselves are partitioned too.

A flat slice has one step count, a list of parameters has one each. They agree unless some parameters got no
gradient at some steps (ZeRO 0 skips those, a flat slice steps them with gradient zero).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn


def parameter_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the whole shape; the `shape` of a parameter that ZeRO 3 has partitioned is (0,)."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


class Part(NamedTuple):
    """A run of consecutive elements of a flattened tensor, which this rank holds.

    values: one-dimensional, a view of the engine's own memory. start: where it begins in the whole.
    """

    values: Tensor
    start: int


class EngineState:
    """Read and write an engine's tensors at ZeRO 0 (or without ZeRO); base of the other stages."""

    flat = False  # whether the state is keyed by slices in which parameters lie one after another

    def __init__(self, engine) -> None:
        self.engine = engine
        self.module: nn.Module = engine.module
        self.inner: torch.optim.Optimizer = engine.optimizer.optimizer if self.flat else engine.optimizer
        self.holders: dict[int, Tensor] = {}  # id(parameter) -> the tensor that keys its optimizer state
        self._find_holders()

    # -- where things are --------------------------------------------------------

    def _find_holders(self) -> None:
        for group in self.inner.param_groups:
            for parameter in group["params"]:
                self.holders[id(parameter)] = parameter

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every parameter once: a tied weight by the first of its names."""
        yield from self.module.named_parameters()

    def aliases(self) -> dict[str, str]:
        """Return further names of tied parameters -> the name they are saved under."""
        first = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return {
            name: first[id(parameter)]
            for name, parameter in self.module.named_parameters(remove_duplicate=False)
            if first[id(parameter)] != name
        }

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield persistent buffers (batch-norm statistics ...); a new model recomputes the others."""
        for prefix, module in self.module.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    yield f"{prefix}.{name}" if prefix else name, buffer

    def moment_keys(self, parameter: nn.Parameter) -> list[str]:
        """Return the names of the parameter's moments (exp_avg, exp_avg_sq); [] before the first step."""
        holder = self.holders.get(id(parameter))
        if holder is None or holder not in self.inner.state:
            return []
        return sorted(
            key
            for key, value in self.inner.state[holder].items()
            if torch.is_tensor(value) and key != "step" and value.shape == holder.shape
        )

    # -- reading --------------------------------------------------------

    def is_whole(self, parameter: nn.Parameter) -> bool:
        """Return whether every rank holds the parameter and its moments whole, and not a part of its own."""
        return True

    def part(self, parameter: nn.Parameter, key: str | None) -> Part | None:
        """Return what this rank holds of a parameter, or of its moment `key`; None: nothing.

        Of a parameter that is not whole on every rank (`is_whole`), the parts of all ranks cover each element
        once.

        Args:
            key: a name of `moment_keys`; None: the parameter itself, in master precision.
        """
        holder = parameter if key is None else self.inner.state[self.holders[id(parameter)]][key]
        return Part(holder.detach().reshape(-1), 0)

    def scalars(self, parameter: nn.Parameter) -> dict[str, float | int]:
        """Return the optimizer's numbers for a parameter: {"step": 12} for Adam; {} before the first step."""
        holder = self.holders.get(id(parameter))
        if holder is None or holder not in self.inner.state:
            return {}
        scalars: dict[str, float | int] = {}
        moments = self.moment_keys(parameter)
        for key, value in self.inner.state[holder].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                scalars[key] = value
            elif torch.is_tensor(value) and value.numel() == 1 and key not in moments:
                scalars[key] = value.item()
        steps = [group["step"] for group in self.inner.param_groups if "step" in group]
        if "step" not in scalars and steps:  # apex counts per group
            scalars["step"] = int(max(steps))
        return scalars

    # -- writing --------------------------------------------------------

    def prepare(self, saved_keys: dict[int, list[str]]) -> None:
        """Create the optimizer's state, zeros, for exactly those parameters of which the checkpoint has some.

        Optimizers create their state at their first step, so a new engine has none. An engine that has
        stepped keeps its tensors, since others hold views of them.

        Args:
            saved_keys: id(parameter) -> names of its saved moments.
        """
        wanted: dict[int, set[str]] = {}
        holders: dict[int, Tensor] = {}
        for identity, holder in self.holders.items():
            holders[id(holder)] = holder
            wanted.setdefault(id(holder), set()).update(saved_keys.get(identity, []))
        for identity, holder in holders.items():
            keys = wanted[identity]
            state = self.inner.state[holder] if keys or holder in self.inner.state else {}
            for key, value in state.items():
                if torch.is_tensor(value):
                    value.zero_()
                elif isinstance(value, int | float):
                    state[key] = type(value)(0)
            for key in keys - set(state):
                state[key] = torch.zeros_like(holder.data)
            # of a slice parameters hold views; zeros at step 0 are a fresh state there
            if not keys and not self.flat:
                self.inner.state.pop(holder, None)

    def wanted(self, parameter: nn.Parameter, key: str | None) -> slice:
        """Return the elements of a flattened parameter or moment that this rank must be given by `set`."""
        part = self.part(parameter, key)
        return slice(0, 0) if part is None else slice(part.start, part.start + part.values.numel())

    def set(self, parameter: nn.Parameter, key: str | None, values: Tensor) -> None:
        """Overwrite what this rank holds of a parameter (key: None) or of its moment `key`.

        Args:
            values: the elements that are `wanted`, one-dimensional, on the CPU.
        """
        if self.is_whole(parameter):
            holder = parameter.data if key is None else self.inner.state[self.holders[id(parameter)]][key]
            holder.copy_(values.reshape(holder.shape))  # which need not be contiguous
        elif (part := self.part(parameter, key)) is not None:
            part.values.copy_(values)

    def set_scalars(self, saved: dict[int, dict[str, float | int]]) -> None:
        """Restore the numbers of all parameters: id(parameter) -> {"step": 12}.

        A flat slice gets the largest of its parameters': at ZeRO 0 some had no gradient at some steps.
        """
        merged: dict[int, tuple[Tensor, dict[str, float | int]]] = {}
        for identity, numbers in saved.items():
            holder = self.holders.get(identity)
            if holder is None or not numbers:
                continue
            _, counts = merged.setdefault(id(holder), (holder, {}))
            for key, number in numbers.items():
                counts[key] = max(number, counts.get(key, number))
        for holder, numbers in merged.values():
            for key, number in numbers.items():
                self._set_scalar(holder, key, number)

    def _set_scalar(self, holder: Tensor, key: str, number: float | int) -> None:
        if key == "step" and type(self.inner).__module__.startswith("apex"):
            for group in self.inner.param_groups:
                current = group.get("step", 0)
                group["step"] = current.fill_(number) if torch.is_tensor(current) else int(number)
            return
        state = self.inner.state[holder]
        if torch.is_tensor(state.get(key)):
            state[key].fill_(number)
            return
        groups = self.inner.param_groups
        is_fused = any(group.get("fused") for group in groups)  # torch's fused AdamW, alone or beside another
        if is_fused or type(self.inner).__module__.startswith("torch.optim"):
            on_device = is_fused or any(group.get("capturable") for group in groups)
            device = holder.device if on_device else "cpu"
            state[key] = torch.tensor(float(number), dtype=torch.float32, device=device)
        else:
            state[key] = int(number) if key == "step" else number

    def finish(self) -> None:
        """Update the working copies of the parameters from the master copies. Collective: on every rank."""


class FlatPartitionState(EngineState):
    """ZeRO 1 and 2."""

    flat = True

    def _find_holders(self) -> None:
        zero = self.engine.optimizer
        self._take_groups(zero.bit16_groups, zero.single_partition_of_fp32_groups)

    def _take_groups(self, groups: list[list[nn.Parameter]], slices: list[Tensor]) -> None:
        for parameters, holder in zip(groups, slices, strict=True):
            self.holders |= {id(parameter): holder for parameter in parameters}

    def is_whole(self, parameter: nn.Parameter) -> bool:
        return id(parameter) not in self.holders  # frozen

    def part(self, parameter: nn.Parameter, key: str | None) -> Part | None:
        """Read through DeepSpeed's addresses of a parameter in its flat slice, which are right.

        Its getters are not: it links the optimizer's state once, after the step of the first parameter
        group, when the state of further groups does not exist yet.
        """
        if self.is_whole(parameter):
            return super().part(parameter, key)
        mapping = parameter._hp_mapping
        if mapping is None:
            return None
        ours, whole = mapping.get_hp_fragment_address(), mapping.lp_fragment_address
        holder = self.holders[id(parameter)]
        source = holder if key is None else self.inner.state[holder][key]
        return Part(source.detach().narrow(0, ours.start, ours.numel), whole.start)

    def finish(self) -> None:
        self.engine.optimizer.update_lp_params()


class Stage3State(FlatPartitionState):
    """ZeRO 3: the parameters are partitioned as well."""

    def _find_holders(self) -> None:
        zero = self.engine.optimizer
        assert not getattr(zero, "swap_optimizer", False)  # `deepspeed_config` refuses offloading
        self._take_groups(zero.fp16_groups, zero.fp32_partitioned_groups_flat)

    def is_whole(self, parameter: nn.Parameter) -> bool:
        return False

    def part(self, parameter: nn.Parameter, key: str | None) -> Part | None:
        start, slot = self._slot(parameter, key)
        count = min(slot.numel(), parameter.ds_numel - start)  # the rest is padding
        return Part(slot[:count], start) if count > 0 else None

    def _slot(self, parameter: nn.Parameter, key: str | None) -> tuple[int, Tensor]:
        """Return where this rank's part begins in the flattened whole, and its memory, with the padding.

        DeepSpeed's `safe_set_full_*` read past the end if the size is no multiple of the world size.
        """
        zero = self.engine.optimizer
        rank = zero._get_param_partition_rank(parameter)
        holder = self.holders.get(id(parameter))
        if holder is None:  # frozen: partitioned, but no fp32 master
            return parameter.ds_tensor.ds_numel * rank, parameter.ds_tensor.data
        _, offset, count = zero.grad_position[zero.get_param_id(parameter)]
        tensor = holder if key is None else self.inner.state[holder][key]
        return count * rank, tensor.data.narrow(0, offset, count)

    def set(self, parameter: nn.Parameter, key: str | None, values: Tensor) -> None:
        slot = self._slot(parameter, key)[1]
        slot[: values.numel()].copy_(values)
        slot[values.numel() :].zero_()  # the padding

    def finish(self) -> None:
        zero = self.engine.optimizer
        zero.checkpoint_event_prologue()  # partition everything, so that no gathered copy stays stale
        for index in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(index)
        zero.checkpoint_event_epilogue()  # gather again the small ones that are kept whole


def engine_state(engine) -> EngineState:
    """Return the class above that fits the engine's ZeRO stage."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return Stage3State(engine)
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        return FlatPartitionState(engine)
    # `deepspeed_config` refuses the sections `fp16` and `bf16`, whose master weights lie elsewhere
    assert isinstance(optimizer, torch.optim.Optimizer)
    return EngineState(engine)
