"""Features of a team's prompts and completions from a frozen network: one row per joint step, with
a vector for each agent. Computes no values and no gradients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import TrainingError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers
from mrlm.core.types import Turn
from mrlm.learn.credit.joint_steps import (
    Decode,
    JointStep,
    as_one,
    in_rounds,
    joint_steps,
    joint_texts,
    own_texts,
)
from mrlm.learn.data.batch import Sample, merge, pack
from mrlm.learn.data.samples import parts, split
from mrlm.learn.policy.policy import Policy


@dataclass(slots=True)
class FeatureRows:
    """Features of a team's episodes, a row per joint step (or round), by groups and episodes.

    Args:
        steps: the joint steps.
        slots: for each row, agent slot -> its turns there, in order.
        chosen, expected: (B, n, F) features of each agent's last completion in the row, and of its
            context before its first; zeros for inactive agents.
        state: (B, F) features of the joint state; (B, 0) if not requested.
        active: (B, n) mask of the agents that take part.
        decision: (B, n) equal for the answers of an agent to one prompt of one group.
    """

    steps: list[JointStep]
    slots: list[dict[int, list[Turn]]]
    chosen: Tensor
    expected: Tensor
    state: Tensor
    active: Tensor
    decision: Tensor

    def where(self, mask: Sequence[bool]) -> "FeatureRows":
        at = torch.tensor(mask, device=self.chosen.device)
        tensors = (self.chosen, self.expected, self.state, self.active, self.decision)
        steps, slots = list(compress(self.steps, mask)), list(compress(self.slots, mask))
        return FeatureRows(steps, slots, *(tensor[at] for tensor in tensors))


@dataclass(slots=True)
class _Features:
    """Features (F,) of one episode: by turn, and by joint step."""

    chosen: dict[int, Tensor] = field(default_factory=dict)
    expected: dict[int, Tensor] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class FeatureReader:
    """Computes features of conversations and joint states as text, independent of the policies'
    tokenizers; each of the `peers` reads a part.

    A text's features are the hidden state of its last token and the mean over its tokens, each
    normalised (F = 2H): the last token has seen all of the context, the mean represents the text
    apart from its end. Text beyond the network's positions is truncated from the left. With
    `rounds`, each round (`in_rounds`) is one step; with `states`, joint states are read too.
    """

    body: Policy
    decode: Decode
    agents: Sequence[str]
    max_tokens: int
    rounds: bool
    states: bool
    peers: Peers = ALONE

    def __post_init__(self) -> None:
        self.slots: dict[str, int] = {agent: slot for slot, agent in enumerate(self.agents)}
        self._cut = False

    @property
    def width(self) -> int:
        """Feature size F."""
        return 2 * self.body.output_layer.weight.shape[-1]

    def rows(self, groups: Sequence[Group]) -> FeatureRows | None:
        """Features of all episodes that did not fail; `None` if no agent has a turn."""
        valid = [(number, e) for number, group in enumerate(groups) for e in group.valid]
        features = self._features([episode for _, episode in valid])
        steps: list[tuple[JointStep, _Features, int, int]] = []  # with its features and group
        slots: list[dict[int, list[Turn]]] = []
        for (group, episode), read in zip(valid, features, strict=True):
            first = 0
            played = joint_steps(episode)
            for part in in_rounds(played) if self.rounds else [[step] for step in played]:
                step, taken = as_one(part), {}
                for turn in step.turns:
                    taken.setdefault(self._slot(turn), []).append(turn)
                steps.append((step, read, first, group))
                slots.append(taken)
                first += len(part)
        if not steps:
            return None
        count, device = len(self.slots), self.body.device
        chosen = torch.zeros(len(steps), count, self.width, device=device)
        expected = torch.zeros_like(chosen)
        active = torch.zeros(len(steps), count, dtype=torch.bool)
        decision = torch.arange(len(steps) * count).view(len(steps), count) + len(steps) * count
        questions: dict[tuple[int, ...], int] = {}
        for row, (taken, (_, read, _, group)) in enumerate(zip(slots, steps, strict=True)):
            for slot, turns in taken.items():
                chosen[row, slot] = read.chosen[id(turns[-1])]
                expected[row, slot] = read.expected[id(turns[0])]
                active[row, slot] = True
                question = (group, slot, *turns[0].prompt_ids)
                decision[row, slot] = questions.setdefault(question, len(questions))
        nothing = torch.zeros(0, device=device)
        states = [read.states.get(number, nothing) for _, read, number, _ in steps]
        row_steps = [step for step, *_ in steps]
        masks = active.to(device), decision.to(device)
        return FeatureRows(row_steps, slots, chosen, expected, torch.stack(states), *masks)

    def _slot(self, turn: Turn) -> int:
        if turn.agent not in self.slots:
            raise TrainingError(
                f"agent {turn.agent!r} has a turn, but the mixed critic knows only "
                f"{', '.join(self.slots)}; name every agent under agents:"
            )
        return self.slots[turn.agent]

    def _features(self, episodes: Sequence[Episode]) -> list[_Features]:
        results = [_Features() for _ in episodes]
        samples: list[Sample] = []
        places: dict[int, tuple[dict[int, Tensor], int]] = {}
        for features, episode in zip(results, episodes, strict=True):
            for rollout in episode.rollouts.values():
                texts = own_texts(rollout, self.decode)
                reads = self._pieces([text for _, *both in texts for text in both])
                pairs = zip(texts, reads[::2], reads[1::2], strict=True)
                for (turn, *_), seen, completion in pairs:
                    places[id(seen)] = (features.expected, id(turn))
                    places[id(completion)] = (features.chosen, id(turn))
                samples += merge(reads)
            if self.states:
                reads = self._pieces([text for _, text in joint_texts(episode, self.decode)])
                places |= {id(read): (features.states, at) for at, read in enumerate(reads)}
                samples += merge(reads)
        for unit, sample in enumerate(samples):
            sample.unit = unit
        shared = parts(samples, self.peers.size, self.body.packed)
        pieces = [[piece for sample in part for piece in sample.turns] for part in shared]
        by_piece = {id(piece): feature for piece, feature in self._read(shared[self.peers.rank])}
        if self.peers.size == 1:
            features = [[by_piece[id(piece)] for piece in pieces[0]]]
        else:
            numbers = [by_piece[id(piece)].cpu().numpy() for piece in pieces[self.peers.rank]]
            features = [
                [torch.from_numpy(row).to(self.body.device) for row in rows]
                for rows in self.peers.from_all(numbers)
            ]
        for part, rows in zip(pieces, features, strict=True):
            for piece, feature in zip(part, rows, strict=True):
                table, key = places[id(piece)]
                table[key] = feature
        return results

    def _pieces(self, texts: Sequence[str]) -> list[Turn]:
        """Texts as turns: the prompt is the text before, the completion this and an end mark."""
        tokenizer, limit = self.body.tokenizer, self.body.max_context
        mark = self.body.pad_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        before = [mark if tokenizer.bos_token_id is None else tokenizer.bos_token_id]
        pieces: list[Turn] = []
        for text in texts:
            ids = [*self.body.chat.encode_text(text), mark]
            tail = ids[-(limit - 1) :]
            if len(before) + len(ids) > limit and not self._cut:
                self._cut = True
                log.warning(
                    "conversations exceed the %d tokens of the mixed critic and are truncated on "
                    "the left; set training.critic_model to a model with more positions",
                    limit,
                )
            pieces.append(Turn("reader", "reader", before[-(limit - len(tail)) :], tail))
            before = [*before, *ids]
        return pieces

    def _read(self, samples: Sequence[Sample]) -> Iterator[tuple[Turn, Tensor]]:
        """Features (F,) of every text."""
        for micro in split(samples, self.max_tokens, packed=self.body.packed):
            batch = pack(micro, pad_id=self.body.pad_id, device=self.body.device)
            hidden, end = self.body.hidden(batch).float(), 0  # (N, H)
            for turn in batch.turns:
                start, end = end, end + len(turn)
                both = torch.stack([hidden[end - 1], hidden[start:end].mean(0)])
                yield turn, layer_norm(both, both.shape[-1:]).flatten()
