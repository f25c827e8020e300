"""The critic that mixes: what it reads, what of it learns, and runs with it from end to end."""

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from critics import episode, policies, spoken
from logged_rows import CONFIG, Stop, logged
from mrlm import Learner, load_config, run_experiment
from mrlm.algorithms.mappo import MAPPO
from mrlm.algorithms.qmix import QMIX
from mrlm.algorithms.vdn import VDN
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, MRLMError, TrainingError
from mrlm.core.types import Rollout as SubmittedCode
from mrlm.core.types import Task, Turn
from mrlm.learn.credit.joint_steps import joint_texts, own_texts
from mrlm.learn.critics.mixers import Mixing
from mrlm.learn.critics.mixing_critic import MixedCritic
from mrlm.learn.data.batch import merge, pack
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.copies import frozen_beside
from mrlm.learn.policy.policy import Policy

FAST = LearnerSettings(critic_learning_rate=3e-3)


def critic_of(policy: Policy, mixing: Mixing, agents: Any = "ab", seed: int = 0) -> MixedCritic:
    chats = dict.fromkeys(agents, policy.chat)
    return MixedCritic(frozen_beside(policy), FAST, chats, list(agents), mixing, seed)


def dialogue(tokenizer: Any, answers: list[tuple[str, str]], paid: list[float]) -> Group:
    """Episodes of one question, in each of which a and b say something at once."""
    found = []
    for number, (said, reward) in enumerate(zip(answers, paid, strict=True)):
        parts = {}
        for agent, words in zip("ab", said, strict=True):
            prompt = tokenizer(f"{agent}, speak: ")["input_ids"]
            turn = Turn(agent, agent, prompt, tokenizer(words)["input_ids"])
            turn.logprobs = [-1.0] * len(turn)
            parts[agent] = SubmittedCode(agent, agent, "t", [turn])
        found.append(Episode(f"e{number}", Task("t"), parts, reward, [reward], "done"))
    return Group(found, "t")


# -- what it reads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lean", [True, False])
def test_what_it_reads_with_is_the_base_whatever_adapter_is_on(
    lean: bool, model: Any, tokenizer: Any
) -> None:
    policy, other = policies(model, tokenizer, lora=True)
    policy.lean = lean
    body, batch = frozen_beside(policy), pack(merge([Turn("a", "a", [5, 6, 7], [8, 9])]))
    with torch.no_grad():
        before = body.hidden(batch)
        for weight in (*policy.parameters(), *other.parameters()):
            weight.add_(0.1)
        for each in (policy, other):
            assert not torch.allclose(each.hidden(batch), before)
            torch.testing.assert_close(body.hidden(batch), before)


@pytest.mark.parametrize("lora", [False, True])
def test_what_it_reads_never_changes_and_costs_an_adapter_nothing(
    lora: bool, model: Any, tokenizer: Any
) -> None:
    policy, other = policies(model, tokenizer, lora)
    critic = critic_of(policy, Mixing("qmix", "factored"))
    assert (critic.body.model is policy.model) == lora
    before = {name: weight.clone() for name, weight in critic.body.model.named_parameters()}
    groups, algorithm = [dialogue(tokenizer, [("x", "y"), ("z", "y")], [1.0, 0.0])], QMIX()
    critic.annotate(groups)
    first = critic.rows
    assert first is not None
    algorithm.credit(groups)
    learned = [weight.clone() for weight in critic.team.parameters()]
    assert critic.update(groups, algorithm, 0, 0)["value_loss"] > 0
    assert any(
        not torch.equal(a, b) for a, b in zip(learned, critic.team.parameters(), strict=True)
    )
    assert all(torch.equal(w, before[n]) for n, w in critic.body.model.named_parameters())
    with torch.no_grad():
        for weight in (*policy.parameters(), *other.parameters()):
            weight.add_(0.1)
    critic.annotate(groups)
    assert critic.rows is not None
    torch.testing.assert_close(critic.rows.chosen, first.chosen)


def test_an_utility_depends_on_what_was_said_and_an_expectation_does_not(
    model: Any, tokenizer: Any
) -> None:
    critic = critic_of(Policy("a", model, tokenizer), Mixing("qmix", "factored"))
    answers = [("yes", "so"), ("no", "so"), ("yes", "so")]
    critic.annotate(
        [dialogue(tokenizer, answers, [0.0] * 3), dialogue(tokenizer, answers[:1], [0.0])]
    )
    rows = critic.rows
    assert rows is not None and rows.active.all() and rows.chosen.shape == (4, 2, 2 * 128)
    a, b = rows.chosen.unbind(1)
    torch.testing.assert_close(a[0], a[2])
    assert (a[0] - a[1]).abs().max() > 0.1
    torch.testing.assert_close(b[0], b[1])
    for read in (rows.expected, rows.state):
        torch.testing.assert_close(read[0], read[1])
    # the same question of the same group is one decision
    assert (
        rows.decision[:3].unique().numel() == 2 and rows.decision[3].min() > rows.decision[2].max()
    )


def test_a_text_is_read_alike_alone_and_among_others(model: Any, tokenizer: Any) -> None:
    for lean in (True, False):
        policy = Policy("a", copy.deepcopy(model), tokenizer, lean=lean)
        critic = critic_of(policy, Mixing("qmix", "factored"))
        assert critic.body.packed == lean
        both = {"a": tokenizer, "b": tokenizer}
        groups = [Group([episode(both)]), dialogue(tokenizer, [("long and longer", "b")], [0.0])]
        critic.annotate(groups)
        together = critic.rows
        critic.annotate(groups[1:])
        alone = critic.rows
        assert together is not None and alone is not None
        for name in ("chosen", "expected", "state"):
            torch.testing.assert_close(
                getattr(together, name)[2:], getattr(alone, name), atol=1e-3, rtol=1e-3
            )


def test_what_outgrows_the_network_is_read_from_its_end_and_said_once(
    model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    critic = critic_of(Policy("a", model, tokenizer), Mixing("qmix", "factored"))
    critic.body.model.config.max_position_embeddings = 24
    critic.annotate([dialogue(tokenizer, [("word " * 40, "b")], [0.0])] * 2)
    assert critic.rows is not None and critic.rows.chosen.isfinite().all()
    assert len([r for r in caplog.records if "exceed the 24 tokens" in r.message]) == 1


def test_somebody_it_was_not_told_of_is_named(model: Any, tokenizer: Any) -> None:
    critic = critic_of(Policy("a", model, tokenizer), Mixing(), agents="ac")
    critic.chats["b"] = critic.body.chat
    with pytest.raises(TrainingError, match=r"'b' has a turn.*a, c"):
        critic.annotate([dialogue(tokenizer, [("x", "y")], [0.0])])


def test_agents_of_different_tokenizers_have_one_mixer(
    model: Any, tokenizer: Any, gpt2_path: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    other = AutoTokenizer.from_pretrained(gpt2_path)
    policy = Policy("a", AutoModelForCausalLM.from_pretrained(gpt2_path), other)
    critic = critic_of(policy, Mixing("qmix", "factored"))
    critic.chats["b"] = Policy("b", model, tokenizer).chat
    groups, algorithm = [Group([episode({"a": other, "b": tokenizer})])], QMIX()
    critic.annotate(groups)
    algorithm.credit(groups)
    assert critic.update(groups, algorithm, 0, 0)["value_loss"] > 0
    algorithm.refine(groups, [critic])
    assert all(t.advantages is not None for t in groups[0].episodes[0].turns)


# -- what it learns --------------------------------------------------------------------------------


def test_a_team_of_one_whose_values_are_added_is_an_ordinary_critic(
    model: Any, tokenizer: Any
) -> None:
    """The same steps as a regression of one head to the returns, written out."""
    critic = critic_of(Policy("a", model, tokenizer), Mixing("vdn", "vdac", epochs=6), agents="a")
    groups = [dialogue(tokenizer, [("x", "y"), ("z", "y")], [0.5, 2.0])]
    for each in groups[0]:
        del each.rollouts["b"]
    algorithm = VDN(mode="vdac", whiten_advantages=False)
    critic.annotate(groups)
    assert critic.rows is not None and critic.team.expected is not None
    head = copy.deepcopy(critic.team.expected[0])
    algorithm.credit(groups)
    turns = [turn for each in groups[0] for turn in each.turns]
    assert [turn.advantages for turn in turns] == [turn.returns for turn in turns] == [0.5, 2.0]
    critic.update(groups, algorithm, 0, 0)
    returns = torch.tensor([0.5, 2.0])
    scale = returns.square().mean().sqrt()
    optimizer = torch.optim.AdamW(head.parameters(), 3e-3, weight_decay=0.0)
    for _ in range(6):
        optimizer.zero_grad()
        (head(critic.rows.expected[:, 0])[:, 0] - returns / scale).square().mean().div(2).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    critic.annotate(groups)
    expected = head(critic.rows.expected[:, 0])[:, 0] * scale
    assert [turn.values for turn in turns] == pytest.approx(expected.tolist(), abs=1e-5)
    assert abs(turns[0].values) > 1e-2


@pytest.mark.parametrize(
    "algorithm",
    [
        VDN(),
        QMIX(),
        pytest.param(QMIX(target_rate=0.5), marks=pytest.mark.slow),
        pytest.param(QMIX(hypernet_layers=1), marks=pytest.mark.slow),
    ],
)
def test_each_is_paid_for_its_own_words(algorithm: Any, model: Any, tokenizer: Any) -> None:
    """The team is paid for what a says; b's words do nothing. From the team's reward alone a's good
    word gets the better advantage, and b's words hardly differ."""
    critic = critic_of(Policy("a", model, tokenizer), algorithm.spec.critic.mixing)
    algorithm = copy.deepcopy(algorithm)
    algorithm.whiten_advantages = False
    answers = [("good", "x"), ("good", "y"), ("bad", "x"), ("bad", "y")]
    groups = [dialogue(tokenizer, answers, [1.0, 1.0, 0.0, 0.0])]
    for step in range(12):
        critic.annotate(groups)
        algorithm.credit(groups)
        critic.update(groups, algorithm, step, step)
        algorithm.refine(groups, [critic])
    assert algorithm.metrics["explained_variance"] > 0.9
    a, b = ([turn.advantages for e in groups[0] for turn in e.rollouts[x].turns] for x in "ab")
    assert min(a[:2]) - max(a[2:]) > 0.5
    assert max(b) - min(b) < 0.3
    assert min(a[:2]) > 0 > max(a[2:])


def test_the_best_answers_are_found(model: Any, tokenizer: Any) -> None:
    algorithm = QMIX(mode="bon", improve="dpo", group_size=4)
    critic = critic_of(Policy("a", model, tokenizer), algorithm.spec.critic.mixing)
    answers = [("good", "x"), ("good", "y"), ("bad", "x"), ("bad", "y")]
    groups = [dialogue(tokenizer, answers, [1.0, 0.5, 0.5, 0.0])]
    for step in range(12):
        critic.annotate(groups)
        algorithm.credit(groups)
        critic.update(groups, algorithm, step, step)
        algorithm.refine(groups, [critic])
    episodes = groups[0].episodes
    a, b = ([e.rollouts[x].turns[0].advantages for e in episodes] for x in "ab")
    assert 1.0 in a[:2] and -1.0 in a[2:] and b.index(1.0) % 2 == 0 and b.index(-1.0) % 2 == 1
    assert a.count(None) == b.count(None) == 2
    # every answer to the question is worth what the best one is, as a target
    values = [e.rollouts["a"].turns[0].values for e in episodes]
    assert values == pytest.approx([values[0]] * 4, abs=1e-4)


def test_the_order_of_agents_changes_nothing(model: Any, tokenizer: Any) -> None:
    found = []
    for agents in ("ab", "ba"):
        policy = Policy("a", copy.deepcopy(model), tokenizer)
        critic, algorithm = critic_of(policy, QMIX().spec.critic.mixing, agents), QMIX()
        groups = [dialogue(tokenizer, [("x", "y"), ("z", "y")], [1.0, 0.0])]
        if agents == "ba":
            for each in groups[0]:
                each.rollouts = dict(reversed(each.rollouts.items()))
        critic.annotate(groups)
        algorithm.credit(groups)
        critic.update(groups, algorithm, 0, 0)
        algorithm.refine(groups, [critic])
        found.append([e.rollouts[x].turns[0].advantages for e in groups[0] for x in "ab"])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_episodes_without_a_reward_and_failed_ones_are_left_out(model: Any, tokenizer: Any) -> None:
    critic, algorithm = critic_of(Policy("a", model, tokenizer), QMIX().spec.critic.mixing), QMIX()
    group = dialogue(tokenizer, [("x", "y"), ("z", "y"), ("v", "y")], [1.0, 0.0, 0.5])
    group.episodes[1].missing = frozenset(group.episodes[1].rollouts)
    group.episodes[2].status = "error"
    critic.annotate([group])
    algorithm.credit([group])
    assert math.isfinite(critic.update([group], algorithm, 0, 0)["value_loss"])
    algorithm.refine([group], [critic])
    kept = [turn.advantages is not None for each in group for turn in each.turns]
    assert kept == [True, True, False, False, False, False]
    critic.annotate([])
    assert critic.rows is None and critic.update([], algorithm, 0, 0) == {}


def test_what_was_learned_is_saved_bit_by_bit(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    policy, mixing = Policy("a", model, tokenizer), QMIX(target_rate=0.1).mixing
    critic, other = critic_of(policy, mixing), critic_of(policy, mixing, seed=1)
    groups, algorithm = [dialogue(tokenizer, [("x", "y"), ("z", "y")], [1.0, 0.0])], QMIX()

    def learn(one: MixedCritic) -> list[float]:
        one.annotate(groups)
        values = [float(turn.values) for e in groups[0] for turn in e.turns]  # pyright: ignore
        algorithm.credit(groups)
        one.update(groups, algorithm, 0, 0)
        return values

    first = learn(critic)
    critic.save(tmp_path)
    tensors, rest = copy.deepcopy(critic.optimizer_state())
    assert learn(other) != first
    other.load(tmp_path)
    other.load_optimizer_state(tensors, json.loads(json.dumps(rest)))
    assert learn(other) == learn(critic)
    assert learn(other) == learn(critic) != first
    with pytest.raises(TrainingError, match="mixer is of another kind"):
        critic_of(policy, VDN().spec.critic.mixing).load(tmp_path)


# -- runs ------------------------------------------------------------------------------------------

BINDINGS: dict[str, dict[str, Any]] = {
    "shared": {
        "policies": {"policy": {}},
        "agents": {"first": {"policy": "policy"}, "second": {"policy": "policy"}},
    },
    "own": {"policies": {"first": {}, "second": {}}},
    "adapters": {"policies": {"first": {"lora": {"r": 4}}, "second": {"lora": {"r": 2}}}},
    "frozen": {"policies": {"first": {}, "second": {"trainable": False}}},
}
MODES: list[dict[str, Any]] = [
    {"mode": "vdac", "critic_warmup": 1},
    {"mode": "factored"},
    {"mode": "bon", "group_size": 3},
    {"mode": "bon", "group_size": 3, "improve": "dpo"},
]


def config(tmp_path: Path, algorithm: str, settings: dict[str, Any], **more: Any) -> Any:
    written = {
        "environments": [{"env_type": "talking:Pair"}],
        "training": {
            "algorithm": algorithm,
            "num_iterations": 2,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
        },
        algorithm: {"update_epochs": 1, **settings},
        "generation": {"max_new_tokens": 3},
        "output_dir": str(tmp_path / "run"),
        **more,
    }
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_config(path)


@pytest.mark.parametrize(
    ("binding", "algorithm", "mode"),
    [
        *((binding, "qmix", MODES[1]) for binding in BINDINGS),
        *(("own", "vdn", mode) for mode in MODES),
        *(
            pytest.param(binding, name, mode, marks=pytest.mark.slow)
            for binding, name, modes in (
                ("adapters", "qmix", (MODES[0], MODES[3])),
                ("shared", "vdn", MODES[1:3]),
            )
            for mode in modes
        ),
    ],
)
def test_two_steps_with_every_binding_and_mode(
    binding: str, algorithm: str, mode: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"critic_epochs": 3, **mode}
    result = run_experiment(config(tmp_path, algorithm, settings, **BINDINGS[binding]))
    rows = [row for row in result.history if row["step"]]
    assert all(math.isfinite(row["value_loss"]) for row in rows) and len(rows) == 2
    assert math.isfinite(rows[-1]["loss"]) and rows[-1]["grad_norm"] > 0
    saved = tmp_path / "run" / "checkpoint-2" / "critics" / "team"
    assert [path.name for path in saved.iterdir()] == ["mixer.safetensors"]


def test_mappo_may_mix_too(tmp_path: Path) -> None:
    result = run_experiment(config(tmp_path, "mappo", {"critic": "mixed"}))
    assert math.isfinite(result.history[-1]["value_loss"])
    assert MAPPO(critic="mixed").spec.critic.mixing == Mixing("qmix", "vdac")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("qmix", {"critic_warmup": 2, "target_rate": 0.1}),
        ("vdn", {"mode": "bon", "group_size": 2, "improve": "dpo"}),
    ],
)
def test_a_stopped_run_goes_on_bit_by_bit(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Beside a whole model and an adapter with dropout."""
    more = {"policies": CONFIG["policies"]}
    whole = config(tmp_path, algorithm, settings, **more)
    whole.training.num_iterations, whole.training.save_steps = 5, 1
    parts = whole.model_copy(update={"output_dir": str(tmp_path / "parts")})
    run_experiment(whole)
    run_experiment(parts, callbacks=[Stop(1, 3)])
    run_experiment(parts, callbacks=[Stop(1, 3)], resume=tmp_path / "parts")
    run_experiment(parts, resume=tmp_path / "parts")
    expected = logged(tmp_path / "run")
    assert logged(tmp_path / "parts") == expected
    assert [row["step"] for row in expected if row["step"]] == [1, 2, 3, 4, 5]


# -- refusals --------------------------------------------------------------------------------------


def test_a_learner_of_one_policy_refuses_a_mixed_critic(model: Any, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="sees every agent"):
        Learner(model, tokenizer, QMIX()).calculate_loss([spoken("5")], [1.0])


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ("vdn", {"critic": "central"}, r"critic='central' is not supported.*mixed \("),
        ("qmix", {"mode": "bon"}, r"qmix\.group_size.*at least 2"),
        ("qmix", {"hypernet_layers": 3}, "hypernet_layers"),
        ("vdn", {"mode": "coma"}, "mode"),
        ("vdn", {"state_size": 8}, "state_size"),
        ("ppo", {"critic": "mixed"}, "critic='mixed' is not supported"),
        ("ppo", {"critic_epochs": 3}, "critic_epochs needs a critic with its own network"),
        ("td3", {}, r"td3 moves continuous actions.*use sac"),
    ],
)
def test_what_cannot_work_is_refused(
    algorithm: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(MRLMError, match=said):
        config(tmp_path, algorithm, settings)


@pytest.mark.parametrize("mode", ["vdac", "factored", "bon"])
def test_values_are_in_the_units_of_rewards(mode: Any, model: Any, tokenizer: Any) -> None:
    """The network values in its own units, and a target says how large these are."""
    critic = critic_of(Policy("a", model, tokenizer), Mixing("vdn", mode))
    for place, weight in enumerate(critic.team.parameters()):
        torch.nn.init.normal_(weight, std=0.1, generator=torch.manual_seed(place))
    group = dialogue(tokenizer, [("xy", "zw"), ("xx", "yy")], [1.0, 0.0])
    found = []
    for scale in (1.0, 4.0):
        critic.team.scale.fill_(scale)
        critic.annotate([group])
        turns = [rollout.turns[0] for each in group for rollout in each.rollouts.values()]
        found.append([turn.values for turn in turns])
    assert any(found[0])
    assert found[1] == pytest.approx([4 * value for value in found[0]], rel=1e-6)


# -- by hand ---------------------------------------------------------------------------------------


def shaken(policy: Policy, mixing: Mixing, settings: LearnerSettings = FAST) -> MixedCritic:
    """A critic whose heads say something from the beginning."""
    chats = dict.fromkeys("ab", policy.chat)
    critic = MixedCritic(frozen_beside(policy), settings, chats, list("ab"), mixing, 0)
    for place, weight in enumerate(critic.team.parameters()):
        torch.nn.init.normal_(weight, std=0.1, generator=torch.manual_seed(place))
    if critic.target is not None:
        critic.target.load_state_dict(critic.team.state_dict())
    return critic


def three(tokenizer: Any, returns: tuple[Any, ...] = (0.3, 0.4, None)) -> list[Group]:
    """Three episodes, in the second of which b is silent; and their returns."""
    group = dialogue(tokenizer, [("yes", "so"), ("no", ""), ("maybe", "x")], [0.0] * 3)
    del group.episodes[1].rollouts["b"]
    for each, paid in zip(group, returns, strict=True):
        for turn in each.turns:
            turn.returns = paid
    return [group]


def said_by_heads(critic: MixedCritic) -> tuple[np.ndarray, np.ndarray]:
    """u and v of every row and agent, read off the heads one by one; 0 for who is silent."""
    rows, network, found = critic.rows, critic.team, []
    assert rows is not None
    for heads, read in ((network.chosen, rows.chosen), (network.expected, rows.expected)):
        table = np.zeros((3, 2))
        for row in range(3):
            for slot in range(2):
                if heads is not None and (row, slot) != (1, 1):
                    table[row, slot] = float(heads[slot](read[row, slot]).detach())
        found.append(table)
    return found[0], found[1]


def test_heads_begin_by_their_seed_and_nothing_else_is_drawn(model: Any, tokenizer: Any) -> None:
    policy, mixing, found = Policy("a", model, tokenizer), Mixing("qmix", "factored"), []
    for drawn, seed in ((1, 0), (2, 0), (1, 5)):
        torch.manual_seed(drawn)
        before = torch.random.get_rng_state()
        found.append(critic_of(policy, mixing, seed=seed))
        assert torch.equal(torch.random.get_rng_state(), before)
    chats = dict.fromkeys("ab", policy.chat)
    found.append(MixedCritic(frozen_beside(policy), FAST, chats, ["a", "b"], mixing))
    flat = [torch.nn.utils.parameters_to_vector(critic.team.parameters()) for critic in found]
    assert torch.equal(flat[0], flat[1]) and torch.equal(flat[0], flat[3])
    assert not torch.equal(flat[0], flat[2])
    for critic in found:
        assert not any(weight.requires_grad for weight in critic.body.model.parameters())
        assert all(weight.requires_grad for weight in critic.team.parameters())


@pytest.mark.parametrize("mode", ["vdac", "factored", "bon"])
def test_losses_of_a_mixed_critic_by_hand(mode: Any, model: Any, tokenizer: Any) -> None:
    critic = shaken(Policy("a", model, tokenizer), Mixing("vdn", mode))
    groups = three(tokenizer, (np.array([0.2, 0.4]), 0.4, None))
    critic.annotate(groups)
    u, v = said_by_heads(critic)
    q = (v if mode == "vdac" else u).sum(1)
    for paid in ([0.3, 0.4], [3.0, -4.0]):
        groups[0].episodes[0].rollouts["a"].turns[0].returns = np.array([paid[0]] * 2)
        groups[0].episodes[1].rollouts["a"].turns[0].returns = paid[1]
        scale = math.sqrt((0.3**2 + 0.4**2) / 2)  # of the first returns, whatever comes later
        expected = np.mean([(q[row] - paid[row] / scale) ** 2 for row in range(2)]) / 2
        if mode == "factored":
            spoke = [(0, 0), (0, 1), (1, 0)]
            expected += np.mean([(v[at] - u[at]) ** 2 for at in spoke]) / 2
        assert critic.loss(groups, VDN()).item() == pytest.approx(expected, rel=1e-4)
        assert float(critic.scale) == pytest.approx(scale)
        assert critic.fit is not None
        assert critic.fit[0] == pytest.approx(paid) and critic.fit[1] == pytest.approx(
            q[:2] * scale, rel=1e-4
        )
    for turn in groups[0].episodes[0].turns:
        turn.returns = None
    for turn in groups[0].episodes[1].turns:
        turn.returns = None
    assert critic.loss(groups, VDN()).item() == 0.0 and critic.fit is None
    assert list(critic.losses(groups, VDN(), random.Random(0))) == []
    assert critic.update(groups, VDN(), 0, 0) == {}


def test_where_nobody_was_paid_units_are_one(model: Any, tokenizer: Any) -> None:
    critic = shaken(Policy("a", model, tokenizer), Mixing("vdn", "factored"))
    groups = three(tokenizer, (0.0, 0.0, 0.0))
    critic.annotate(groups)
    critic.take_returns(groups)
    assert float(critic.scale) == 1.0
    for turn in groups[0].episodes[0].turns:
        turn.returns = 3.0
    critic.take_returns(groups)
    assert float(critic.scale) == pytest.approx(math.sqrt(3.0))


def test_what_each_said_by_hand(model: Any, tokenizer: Any) -> None:
    critic = shaken(Policy("a", model, tokenizer), Mixing("vdn", "factored"))
    with pytest.raises(TrainingError, match="call annotate first"):
        critic.utilities()
    groups = three(tokenizer)
    critic.annotate(groups)
    critic.take_returns(groups)
    u, v = said_by_heads(critic)
    spoke = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    turns = [groups[0].episodes[row].rollouts["ab"[slot]].turns for row, slot in spoke]
    for found in (critic.counterfactuals(), critic.utilities()):
        assert [entry[0] for entry in found] == list("abaab")
        assert all(one[1][0] is other[0] for one, other in zip(found, turns, strict=True))
    scale = math.sqrt((0.3**2 + 0.4**2) / 2)
    added = [(u[at] - v[at]) * scale for at in spoke]
    assert [entry[2] for entry in critic.counterfactuals()] == pytest.approx(added, abs=1e-5)
    assert [entry[2] for entry in critic.utilities()] == pytest.approx([u[at] for at in spoke])
    numbers = [entry[3] for entry in critic.utilities()]
    assert numbers[0] == numbers[2] == numbers[3] != numbers[1] == numbers[4]
    rows = critic.rows
    assert rows is not None and rows.decision[1, 1] not in numbers and rows.decision.min() >= 0
    assert rows.active.tolist() == [[True, True], [True, False], [True, True]]
    part = rows.where([False, True, True])
    assert part.steps == rows.steps[1:] and part.slots == rows.slots[1:]
    for name in ("chosen", "expected", "state", "active", "decision"):
        assert torch.equal(getattr(part, name), getattr(rows, name)[1:])


def test_a_target_is_the_best_answer_to_a_question(model: Any, tokenizer: Any) -> None:
    critic = shaken(Policy("a", model, tokenizer), Mixing("vdn", "bon"))
    groups = three(tokenizer)
    assert critic.take_returns(groups) is None  # nothing has been read
    critic.annotate(groups)
    critic.take_returns(groups)
    critic.annotate(groups)
    u, _ = said_by_heads(critic)
    best = u[:, 0].max(), max(u[0, 1], u[2, 1])
    scale = math.sqrt((0.3**2 + 0.4**2) / 2)
    values = [each.rollouts["a"].turns[0].values for each in groups[0]]
    expected = [sum(best) * scale, best[0] * scale, sum(best) * scale]
    assert values == pytest.approx(expected, rel=1e-4)


class Slowed:
    """Weights that take over a quarter of what a critic has learned, each time they are told to."""

    def __init__(self, critic: MixedCritic) -> None:
        self.critic = critic
        self.weights = [weight.detach().clone() for weight in critic.team.parameters()]

    def follow(self) -> None:
        pairs = zip(self.weights, self.critic.team.parameters(), strict=True)
        self.weights = [0.75 * slow + 0.25 * fast.detach() for slow, fast in pairs]


@pytest.mark.parametrize("how", ["update", "losses", "loss"])
def test_the_target_follows_every_step_and_says_what_is_bootstrapped_from(
    how: str, model: Any, tokenizer: Any
) -> None:
    mixing = Mixing("vdn", "factored", target_rate=0.25, epochs=3)
    critic = shaken(Policy("a", model, tokenizer), mixing)
    assert critic.target is not None
    groups, slowed = three(tokenizer), Slowed(critic)
    critic.annotate(groups)
    if how == "update":
        stepper = critic.stepper
        step = stepper.step

        def noted(apply: bool) -> None:
            step(apply)
            slowed.follow()

        stepper.step = noted  # type: ignore[method-assign]
        critic.update(groups, VDN(), 0, 0)
    else:
        every = (critic.loss(groups, VDN()) for _ in range(3))
        if how == "losses":
            every = critic.losses(groups, VDN(), random.Random(0))
        steps = 0
        for loss in every:
            steps += 1
            if how == "loss":
                slowed.follow()  # before each: there is no sign of a step after the last
            critic.stepper.clear()
            loss.backward()
            critic.stepper.norm()
            critic.stepper.step(apply=True)
            if how == "losses":
                slowed.follow()
        assert steps == 3
    for slow, weight in zip(slowed.weights, critic.target.parameters(), strict=True):
        torch.testing.assert_close(weight, slow)
    assert torch.equal(critic.target.scale, critic.team.scale)
    critic.annotate(groups)
    rows = critic.rows
    assert rows is not None
    with torch.no_grad():
        worth = critic._mixed(critic.target, rows) * critic.scale
    values = [each.rollouts["a"].turns[0].values for each in groups[0]]
    assert values == pytest.approx(worth.tolist())


# -- what is read of a text ------------------------------------------------------------------------


@pytest.mark.parametrize("lean", [True, False])
def test_features_by_hand(lean: bool, model: Any, tokenizer: Any) -> None:
    """The state of a text's last token and the mean over its tokens, in a conversation that is read
    once; of several turns in one step what was read before the first, and what the last said."""
    policy = Policy("a", model, tokenizer, lean=lean)
    critic = critic_of(policy, Mixing("qmix", "factored"))
    played = episode({"a": tokenizer, "b": tokenizer})
    for turn in played.rollouts["a"].turns:
        turn.step = 0
    critic.annotate([Group([played])])
    rows = critic.rows
    assert rows is not None
    assert [[t.agent for t in step.turns] for step in rows.steps] == [["a", "a", "b"], ["b"]]

    def read(texts: list[str]) -> list[torch.Tensor]:
        mark, ids, found = tokenizer.eos_token_id, [tokenizer.eos_token_id], []
        assert tokenizer.bos_token_id is None
        for text in texts:
            start = len(ids)
            ids += [*critic.body.chat.encode_text(text), mark]
            with torch.no_grad():
                hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
            before = hidden[start - 1 : -1]  # what predicts its tokens and the mark
            both = torch.stack([before[-1], before.mean(0)])
            both = both - both.mean(1, keepdim=True)
            found.append((both / (both.var(1, correction=0, keepdim=True) + 1e-5).sqrt()).flatten())
        return found

    def decode(turn: Turn, ids: Any) -> str:
        return tokenizer.decode(ids)

    for slot, agent in enumerate("ab"):
        texts = [text for _, *both in own_texts(played.rollouts[agent], decode) for text in both]
        asked, said, more, again = read(texts)
        expected = [(said, asked), (again, more)] if agent == "b" else [(again, asked)]
        for row, (chosen, before) in enumerate(expected):
            torch.testing.assert_close(rows.chosen[row, slot], chosen, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(rows.expected[row, slot], before, atol=1e-3, rtol=1e-3)
    assert not rows.chosen[1, 0].any() and not rows.active[1, 0]
    states = read([text for _, text in joint_texts(played, decode)])
    torch.testing.assert_close(rows.state, torch.stack(states), atol=1e-3, rtol=1e-3)
