"""After every exchange of weights an engine proves that it samples with those that are trained: any
one tensor that stays behind is found at the first step."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from foreign import untied
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.config import parse_config
from mrlm.core.errors import CheckError
from mrlm.core.sync_async import run_async
from mrlm.engines.lean.copies import Changes
from mrlm.learn.policy.digest import CHUNK, digests
from mrlm.train import iterate, train
from mrlm.training.run import Run
from mrlm.training.weight_proof import EVERY, gaps

pytestmark = pytest.mark.system

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Withholding:
    """An engine whose exchanges leave one tensor as it was at the start of the run.

    Args:
        inner: the engine.
        policy: whose exchanges.
        kept: name of the parameter.
        times: how many exchanges do so; all if `None`.
    """

    def __init__(self, inner: Any, policy: Any, kept: str, times: int | None = None) -> None:
        self.inner = inner
        self.policy = policy.name
        self.kept = kept
        self.times = times
        self.exchanges = 0
        self.sampled: list[int] = []
        self._first = self._kept(policy).detach().clone()

    def _kept(self, policy: Any) -> Any:
        return policy.named_parameters()[self.kept]

    def stale(self, policy: Any) -> Any:
        """A copy of a policy with the old tensor."""
        found = copy.copy(policy)
        found.passes = {}
        found.model = copy.deepcopy(policy.model)
        with torch.no_grad():
            self._kept(found).copy_(self._first)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(self, requests: Any) -> Any:
        self.sampled.append(self.exchanges)
        return await self.inner.generate(requests)

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        if policy != self.policy:
            return await self.inner.load_weights(policy, weights, version)
        self.exchanges += 1
        if self.times is None or self.exchanges <= self.times:
            weights = self.stale(weights)
        await self.inner.load_weights(policy, weights, version)


def make_run(folder: Path, engine: str = "lean", model: Any = None, **changes: Any) -> Run:
    """A run of two iterations over one policy."""
    data: dict[str, Any] = {
        "experiment_name": "proof",
        "output_dir": str(folder / "run"),
        "environments": [{"env_type": "policy_server:Letters"}],
        "policies": {"policy": {}},
        "training": {
            "algorithm": "grpo",
            "num_iterations": 2,
            "batch_size": 2,
            "learning_rate": 5.0e-3,
            "report_to": "none",
        },
        "grpo": {"group_size": 4},
        "generation": {"max_new_tokens": 6},
        "engine": {"name": engine},
    }
    data |= {key: changes.pop(key) for key in ("policies", "environments") if key in changes}
    config = parse_config(data, (), "test").merged(changes)
    return build(config, LiveObjects(models={"policy": (model, None)} if model is not None else {}))


def to_its_end(run: Run) -> None:
    run_async(train(run))
    run.log.close()


def ends(run: Run, message: str) -> None:
    """A run whose check fails."""
    with pytest.raises(CheckError, match=message):
        run_async(train(run))
    run.log.close()


def withheld(run: Run, kept: str, times: int | None = None) -> Withholding:
    """Let the run's engine keep a tensor."""
    policy = run.learners[0].weights_of
    engine = Withholding(run.engines["policy"], policy, kept, times)
    run.engines["policy"] = engine
    return engine


def every_tensor() -> list[Any]:
    """Of two layers, with every map of the second; the rest is slow."""
    quick = ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
    quick += [f"model.layers.1.{part}.weight" for part in ("self_attn.q_proj", "mlp.down_proj")]
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
    for layer in range(2):
        for part in LAYERS:
            block = "mlp" if part in LAYERS[4:] else "self_attn"
            names.append(f"model.layers.{layer}.{block}.{part}.weight")
        names += [
            f"model.layers.{layer}.{norm}.weight"
            for norm in ("input_layernorm", "post_attention_layernorm")
        ]
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in quick)) for name in names]


@pytest.mark.parametrize("engine", ["lean", "hf"])
@pytest.mark.parametrize("kept", every_tensor())
def test_a_tensor_that_stays_behind_is_found_at_the_first_step(
    engine: str, kept: str, tmp_path: Path, tiny_path: str
) -> None:
    run = make_run(tmp_path, engine, **{"model.model_name_or_path": untied(tiny_path, tmp_path)})
    late = withheld(run, kept)
    ends(run, r"check weights: the engine of policy 'policy' does not")
    assert run.step == 0 and late.exchanges == 2, "once more in full, then the end"


@pytest.mark.parametrize("engine", ["lean", "hf"])
def test_a_tied_head_that_stays_behind_is_found(engine: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, engine)
    withheld(run, "model.embed_tokens.weight")
    ends(run, "check weights")


@pytest.mark.parametrize("engine", ["lean", "hf"])
@pytest.mark.parametrize("part", LAYERS[:1] + LAYERS[-1:])
def test_an_adapter_that_stays_behind_is_found(engine: str, part: str, tmp_path: Path) -> None:
    """The second factor moves first: as long as it is zero, the first has no gradient."""
    pytest.importorskip("peft")
    lora = {"lora": {"r": 4, "target_modules": [part]}}
    run = make_run(tmp_path, engine, policies={"policy": lora})
    adapter = run.learners[0].weights_of.adapter
    block = "mlp" if part in LAYERS[4:] else "self_attn"
    withheld(run, f"base_model.model.model.layers.1.{block}.{part}.lora_B.{adapter}.weight")
    ends(run, "check weights")


def test_an_exchange_that_failed_once_is_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path)
    late = withheld(run, "model.norm.weight", times=1)
    with caplog.at_level(logging.WARNING, "mrlm"):
        to_its_end(run)
    assert run.step == 2 and late.exchanges == 3
    assert "the weights of policy 'policy' did not arrive; loading them again" in caplog.text


@pytest.mark.parametrize("checks", ["warn", "off"])
def test_whoever_wants_goes_on(
    checks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path, **{"training.checks": checks})
    late = withheld(run, "model.norm.weight")
    with caplog.at_level(logging.WARNING, "mrlm"):
        to_its_end(run)
    assert run.step == 2 and late.exchanges == {"warn": 4, "off": 2}[checks]
    assert ("check weights" in caplog.text) == (checks == "warn")


@pytest.mark.parametrize("own_head", [False, True])
def test_an_engine_of_this_process_compares_every_weight(
    own_head: bool, tmp_path: Path, tiny_path: str
) -> None:
    """One entry of any tensor is enough, written without notice."""
    name = untied(tiny_path, tmp_path) if own_head else tiny_path
    run = make_run(tmp_path, **{"model.model_name_or_path": name})
    to_its_end(run)
    engine, policy = run.engines["policy"], run.learners[0].weights_of
    assert engine.holds("policy", policy)
    (base,) = engine._bases.values()
    products = [product for layer in base.decoder.products for product in layer.values()]
    read = {product.weight.data_ptr() for product in products}  # not copies
    if own_head:
        read.add(policy.named_parameters()["model.embed_tokens.weight"].data_ptr())
    for name, tensor in policy.named_parameters().items():
        if tensor.data_ptr() in read:
            continue
        before, flat = tensor.detach().clone(), tensor.detach().view(-1)
        for place in (0, len(flat) // 2, len(flat) - 1):
            flat[place] += 1e-6
            assert not engine.holds("policy", policy), (name, place)
            tensor.data.copy_(before)
            assert engine.holds("policy", policy)
    assert not engine.holds("policy", copy.copy(policy)), "another policy, only samples can tell"


@pytest.mark.parametrize("engine", ["lean", "hf"])
def test_between_two_proofs_by_samples_weights_are_compared(engine: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, engine, **{"training.num_iterations": EVERY + 2})
    sampled: list[Any] = []
    generate = run.engines["policy"].generate

    async def counted(requests: Any) -> Any:
        sampled.extend({each.key[2] for each in requests if each.key[1] == "proof"})
        return await generate(requests)

    run.engines["policy"].generate = counted
    to_its_end(run)
    assert sampled == [0, 0, EVERY], "at the start, after the first step, and later"


def test_copies_that_stay_behind_later_are_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first step a decoder takes its weights for unchanged."""
    run = make_run(tmp_path, **{"training.num_iterations": 6})
    take = Changes.take

    def blind(self: Changes, tensors: Any) -> list[bool]:
        changed = take(self, tensors)
        return [False] * len(changed) if run.step else changed

    monkeypatch.setattr(Changes, "take", blind)
    ends(run, "check weights: the engine of policy 'policy' does not")
    assert run.step == 1


def test_a_sound_engine_is_nowhere_near_its_limit(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    to_its_end(run)
    (gap,) = run_async(gaps(run, run.learners))
    assert gap.nats < 1e-5 and gap.limit == 1e-4 and not gap.wrong


def test_a_tolerance_of_ones_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, **{"engine.tolerance": 1e-12})
    ends(run, r"rounding explains 1e-12")


def test_a_run_that_samples_nothing_is_proven_before_its_evaluations(tmp_path: Path) -> None:
    data = {
        "output_dir": str(tmp_path / "run"),
        "environments": [{"env_type": "relay"}],
        "policies": {"policy": {}},
        "training": {
            "algorithm": "sft",
            "num_iterations": 4,
            "learning_rate": 5.0e-3,
            "report_to": "none",
        },
        "sft": {"teacher": "expert"},
        "generation": {"max_new_tokens": 4},
        "evaluation": {"every": 3, "episodes": 2, "at_start": False},
    }
    run = build(parse_config(data, (), "test"))
    late = withheld(run, "model.norm.weight")
    ends(run, "check weights: the engine of policy 'policy' does not")
    assert run.step == 3 and late.exchanges == 4, "once a step, and once more at the evaluation"
    assert late.sampled[0] == 3, "nothing before, so that no weights are laid out for sampling"


def test_a_frozen_policy_is_proven_at_the_start(tmp_path: Path, tiny_path: str) -> None:
    """An engine that began with another tensor than the policy has, and takes none."""
    frozen = {"second": {"trainable": False, "model": tiny_path}}
    world = {"environments": [{"env_type": "relay"}]}
    run = make_run(tmp_path, policies={"first": {}} | frozen, **world)
    policy = run.frozen[0].weights_of
    norm = policy.model.get_parameter("model.norm.weight")
    norm.data *= 1.1
    late = Withholding(run.engines["second"], policy, "model.norm.weight")
    norm.data /= 1.1
    run.engines["second"].policies["second"] = late.stale(policy)
    run.engines = dict.fromkeys(run.engines, late)
    ends(run, r"check weights: the engine of policy 'second' does not")
    assert run.step == 0 and late.exchanges == 1


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_an_opponent_is_proven_whenever_it_is_loaded(
    lora: dict[str, Any] | None, tmp_path: Path
) -> None:
    """The first one is what the player was at the start; of the next, one tensor stays behind."""
    games = {"environments": [{"env_type": "small_environments:Higher"}]}
    section = {"opponents": {"every": 1, "games": 1}}
    run = make_run(
        tmp_path, policies={"player": {"lora": lora} if lora else {}}, **games, **section
    )
    (stand_in,) = run.population.opponents["player"]
    names = [name for name in stand_in.named_parameters() if "norm" in name or "lora_B" in name]
    late = Withholding(run.engines[stand_in.name], stand_in, names[-1])
    run.engines[stand_in.name] = late
    run.population.grow(0)
    run_async(iterate(run))
    run.step = 1
    run.population.grow(1)
    with pytest.raises(CheckError, match=r"the engine of policy 'player-opponent' does not"):
        run_async(run.population._load({"player": run.population.past["player"][-1:]}))
    run.log.close()
    assert late.exchanges == 3, "the first opponent, the second, and the second once more"


def test_nothing_is_proven_about_an_engine_without_weights(tmp_path: Path, tokenizer: Any) -> None:
    from mrlm.engines.scripted import ScriptedEngine

    run = make_run(tmp_path)
    run.engines["policy"] = ScriptedEngine(["abc"], tokenizer)
    assert run_async(gaps(run, run.learners)) == []
    run.log.close()


# -- digests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_digest_sees_every_element(dtype: torch.dtype) -> None:
    tensor = torch.ones(CHUNK + 77, dtype=dtype)
    (before,) = digests([tensor])
    for place in (0, 63, 64, 1000, CHUNK - 1, CHUNK, CHUNK + 76):
        tensor.data[place] = 1.0 + 2**-7
        assert digests([tensor]) != [before], place
        tensor.data[place] = 1.0
    assert digests([tensor]) == [before]


def test_a_digest_sees_every_sign() -> None:
    """Also that in the top bit of a word, which even factors would push out of it."""
    tensor = torch.ones(400)
    (before,) = digests([tensor])
    for place in range(len(tensor)):
        tensor.data[place] = -1.0
        assert digests([tensor]) != [before], place
        tensor.data[place] = 1.0


def test_a_digest_is_no_sum() -> None:
    """Neither an exchange of two elements nor the same change of all goes unseen."""
    tensor = torch.arange(1.0, 301.0).reshape(20, 15)
    swapped = tensor.clone()
    swapped[0, 0], swapped[9, 3] = tensor[9, 3], tensor[0, 0]
    ones = torch.ones(256)
    found = digests([tensor, swapped, tensor.t(), ones, ones * 2, -ones, torch.zeros(256)])
    assert len(set(found)) == 7
    assert digests([]) == []
