"""A taskset of verifiers, as a user would write it: sums, with two rewards and a metric."""

from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.75)
    async def right(self, task: SumData, trace: vf.Trace) -> float:
        if trace.last_reply == "break":
            raise RuntimeError("this function is broken")
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.25)
    async def brief(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 5 and trace.num_turns == 1)

    @vf.metric
    async def characters(self, trace: vf.Trace) -> float:
        assert [message.role for message in trace.messages] == ["system", "user", "assistant"]
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    largest: int = 9


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        for first in range(self.config.largest + 1):
            for second in range(self.config.largest + 1):
                data = SumData(
                    prompt=f"{first}+{second}=", system_prompt="Add.", answer=str(first + second)
                )
                yield SumTask(data, self.config.task)


class Boxed(SumTask):
    NEEDS_CONTAINER = True


class InBoxes(vf.Taskset[Boxed, SumsConfig]):
    def load(self) -> Iterator[Boxed]:
        yield Boxed(SumData(prompt="1+1=", answer="2"), self.config.task)


class Empty(Sums):
    def load(self) -> Iterator[SumTask]:
        return iter(())


__all__ = ["Sums"]
