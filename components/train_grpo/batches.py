"""How batch size, accumulation, world size and group size are made to fit together.

TRL generates `per_device_train_batch_size * gradient_accumulation_steps * processes` completions for each optimizer
step; that number must be a multiple of G (`num_generations`) because advantages are taken inside groups.
"""

from dataclasses import dataclass, replace

from components.errors import BadInputError


@dataclass(frozen=True)
class BatchPlan:
    """The batch of one optimizer step.

    Attributes:
        per_device: completions a process holds at once.
        accumulation: micro-batches a process adds up.
        processes: number of training processes.
        group_size: G, completions of one prompt.
    """

    per_device: int
    accumulation: int
    processes: int
    group_size: int

    @property
    def completions(self) -> int:
        """Completions an optimizer step learns from."""
        return self.per_device * self.accumulation * self.processes

    @property
    def prompts(self) -> int:
        """Prompts an optimizer step learns from."""
        return self.completions // self.group_size

    def smaller(self) -> "BatchPlan | None":
        """The next smaller micro-batch with the same completions a step, or None when one completion is left."""
        half = next((size for size in range(self.per_device // 2, 0, -1) if self.per_device % size == 0), None)
        if half is None:
            return None
        return replace(self, per_device=half, accumulation=self.accumulation * self.per_device // half)

    def rounds(self, micro_batches: int) -> int:
        """Micro-batches to generate for at once, at most so many, so that groups stay whole and rounds come out even.

        Args:
            micro_batches: most micro-batches.

        Returns:
            A divisor of `accumulation`; all of them when nothing smaller holds whole groups.
        """
        lane = self.per_device * self.processes
        fitting = [
            n
            for n in range(1, min(micro_batches, self.accumulation) + 1)
            if self.accumulation % n == 0 and lane * n % self.group_size == 0
        ]
        return fitting[-1] if fitting else self.accumulation


def plan_batches(
    *, group_size: int, per_device: int, accumulation: int | None, prompts_per_step: int | None, processes: int
) -> BatchPlan:
    """Settle the batch of one optimizer step, or refuse with the choices that work.

    Args:
        group_size: G, at least 2.
        per_device: completions a process holds at once.
        accumulation: micro-batches added up; None lets it follow from `prompts_per_step` (else the smallest that fits).
        prompts_per_step: prompts wanted in one optimizer step; None lets it follow from the others.
        processes: number of training processes (GPUs).

    Returns:
        A plan whose completions are a multiple of G.

    Raises:
        BadInputError: when the wanted numbers cannot be had together.
    """
    if group_size < 2:
        raise BadInputError(
            f"training.num_generations is {group_size}: GRPO compares the completions of one prompt with each other, "
            "so it needs at least 2; write 4 to 16"
        )
    lane = per_device * processes
    if prompts_per_step is not None:
        wanted = prompts_per_step * group_size
        if accumulation is not None and lane * accumulation != wanted:
            raise BadInputError(
                f"training.prompts_per_step: {prompts_per_step} times num_generations {group_size} is {wanted} "
                f"completions a step, but per_device_train_batch_size {per_device} x gradient_accumulation_steps "
                f"{accumulation} x {processes} process(es) is {lane * accumulation}; leave "
                "gradient_accumulation_steps out and it is computed"
            )
        if wanted % lane:
            fitting = [size for size in range(1, wanted + 1) if wanted % (size * processes) == 0]
            if not fitting:
                raise BadInputError(
                    f"training.prompts_per_step: {prompts_per_step} x num_generations {group_size} = {wanted} "
                    f"completions cannot be shared by {processes} processes; choose prompts_per_step so that it can"
                )
            raise BadInputError(
                f"training.per_device_train_batch_size: {per_device} does not divide {wanted} completions a step "
                f"({prompts_per_step} prompts x G {group_size}) over {processes} process(es); "
                f"valid values: {_listed(fitting)}"
            )
        return BatchPlan(per_device, wanted // lane, processes, group_size)
    if accumulation is None:
        accumulation = next(n for n in range(1, group_size + 1) if lane * n % group_size == 0)
    if lane * accumulation % group_size:
        completions = lane * accumulation
        accumulations = [n for n in range(1, 8 * group_size + 1) if lane * n % group_size == 0][:4]
        groups = [g for g in range(2, completions + 1) if completions % g == 0][:6]
        raise BadInputError(
            f"training.num_generations: {group_size} does not divide the {completions} completions of a step "
            f"(per_device_train_batch_size {per_device} x gradient_accumulation_steps {accumulation} x {processes} "
            f"process(es)); set gradient_accumulation_steps to one of {_listed(accumulations)}"
            + (f", or num_generations to one of {_listed(groups)}" if groups else "")
            + ", or give training.prompts_per_step and leave accumulation out"
        )
    return BatchPlan(per_device, accumulation, processes, group_size)


def _listed(values: list[int]) -> str:
    """Numbers for a message, the long tail cut."""
    return ", ".join(str(value) for value in values[:12])
