"""Every number that a run logs, and the test that computes it by hand. A name that is not in the
table of metrics fails the test that logged it; a row without its test fails, too."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import mrlm
from mrlm.tracking.metric_table import metric, sections
from places import TESTS

ROWS: dict[str, str] = {
    "reward/mean": "test_numbers.py::test_what_was_played",
    "reward/std": "test_numbers.py::test_what_was_played",
    "reward/missing": "test_numbers.py::test_a_missing_reward_is_in_no_mean",
    "reward/<agent>/mean": "test_numbers.py::test_what_was_played",
    "<environment>/reward/mean": "test_numbers.py::test_what_was_played",
    "reward/<component>": "test_numbers.py::test_components_are_means_over_episodes",
    "data/<metric>": "test_unplayed.py",
    "greedy_reward/mean": "test_plans.py",
    "turns/mean": "test_numbers.py::test_what_was_played",
    "episodes/count": "test_numbers.py::test_what_was_played",
    "episodes/failed": "test_numbers.py::test_what_was_played",
    "episodes/truncated": "test_numbers.py::test_what_was_played",
    "completion_length/mean": "test_numbers.py::test_what_was_played",
    "completion_length/max": "test_numbers.py::test_what_was_played",
    "completion_length/cut": "test_numbers.py::test_what_was_played",
    "completion_length/<agent>/mean": "test_numbers.py::test_what_was_played",
    "distinct_completions": "test_agent_numbers.py::test_distinct_completions_by_agent",
    "marginal/<agent>": "test_team_effects.py",
    "influence/<agent>/<agent>": "test_team_effects.py",
    "changed/<agent>/<agent>": "test_team_effects.py",
    "num_groups_played": "test_plans.py",
    "num_groups_trained": "test_plans.py",
    "advantage/mean": "test_agent_numbers.py::test_advantages_by_policy",
    "advantage/std": "test_agent_numbers.py::test_advantages_by_policy",
    "advantage/zero": "test_agent_numbers.py::test_advantages_by_policy",
    "advantage/<agent>/mean": "test_numbers.py::test_what_credit_assigned",
    "advantage/<agent>/std": "test_numbers.py::test_what_credit_assigned",
    "advantage/<agent>/zero": "test_numbers.py::test_what_credit_assigned",
    "tokens/trained": "test_numbers.py::test_what_credit_assigned",
    "tokens/<agent>/share": "test_numbers.py::test_what_credit_assigned",
    "frac_zero_variance": "test_numbers.py::test_comparisons_that_train_nothing",
    "frac_small_groups": "test_numbers.py::test_comparisons_that_train_nothing",
    "frac_without_greedy": "test_plans.py",
    "frac_dropped_pairs": "test_preference.py",
    "frac_filtered": "test_preference.py",
    "frac_compared": "test_preference.py",
    "good_answers": "test_preference.py",
    "baseline/<role>": "test_group_credit.py",
    "baseline/<agent>/<turn>": "test_group_credit.py",
    "score/<policy>/mean": "test_cory.py",
    "score/<policy>/running_std": "test_cory.py",
    "compound_factor/<policy>": "test_happo.py",
    "alpha": "test_sac.py",
    "target_entropy": "test_sac.py",
    "return_variance": "test_agent_numbers.py::test_value_errors_by_agent",
    "explained_variance": "test_critic.py",
    "value_error": "test_agent_numbers.py::test_value_errors_by_agent",
    "value_loss": "test_critic.py",
    "returns/<critic>/mean": "test_value_units.py",
    "returns/<critic>/std": "test_value_units.py",
    "critic_warmup": "test_bases.py",
    "critic_grad_norm": "test_critic.py",
    "critic_learning_rate": "test_critic.py",
    "loss": "test_oracles.py",
    "policy_loss": "test_oracles.py",
    "entropy": "test_oracles.py",
    "approx_kl": "test_oracles.py",
    "kl": "test_awkward_losses.py",
    "divergence": "test_distillation.py",
    "kl_coef": "test_cory.py",
    "clip_fraction": "test_awkward_losses.py",
    "ratio_mean": "test_agent_numbers.py::test_ratios_by_hand",
    "ratio_max": "test_agent_numbers.py::test_ratios_by_hand",
    "mismatch_kl": "test_mismatch.py::test_the_first_pass_by_agent",
    "grad_norm": "test_policy.py",
    "gradient_share/<agent>": "test_gradient_parts.py::test_the_parts_add_up",
    "gradient_cosine/<agent>/<agent>": "test_gradient_parts.py::test_the_parts_add_up",
    "learning_rate": "test_policy.py",
    "optimizer_steps": "test_policy.py",
    "weight_change": "test_weight_change.py::test_the_change_of_an_update_by_hand",
    "nonfinite_steps": "test_policy.py",
    "rewards/chosen": "test_preference.py",
    "rewards/rejected": "test_preference.py",
    "rewards/margins": "test_preference.py",
    "rewards/accuracies": "test_preference.py",
    "dpo_loss": "test_awkward_preferences.py",
    "sft_loss": "test_awkward_preferences.py",
    "tokens/total": "test_numbers.py::test_tokens_and_seconds_of_a_run",
    "tokens_per_second": "test_numbers.py::test_tokens_and_seconds_of_a_run",
    "seconds/play": "test_numbers.py::test_tokens_and_seconds_of_a_run",
    "seconds/learn": "test_numbers.py::test_tokens_and_seconds_of_a_run",
    "seconds/waiting": "test_ahead.py",
    "seconds/resting": "test_ahead.py",
    "lag/mean": "test_ahead.py",
    "lag/max": "test_ahead.py",
    "lag/partial": "test_ahead.py",
    "lag/dropped": "test_ahead.py",
    "lag/tokens/<lag>": "test_ahead.py",
    "lag/kl": "test_mismatch.py::test_the_age_of_weights_has_a_divergence_of_its_own",
    "rollbacks": "test_rollback.py",
    "api/<policy>/<name>": "test_api_agents.py",
    "opponents/cycles": "test_ratings.py::test_rock_beats_scissors_beats_paper_beats_rock",
    "opponents/share": "test_opponents.py",
    "opponents/<opponent>/score": "test_opponents.py",
    "opponents/<opponent>/reward": "test_opponents.py",
    "rating/<player>": "test_opponents.py",
    "rating/<player>/low": "test_opponents.py",
    "rating/<player>/high": "test_opponents.py",
    "rating/<player>/moving": "test_opponents.py",
}
"""Name in the table of metrics -> the test (or the file of tests) that computes it by hand."""


def unknown(names: Iterable[str]) -> list[str]:
    """Those names that are not in the table of metrics."""
    return sorted(name for name in names if metric(name) is None)


def names() -> list[str]:
    """The names of the table."""
    return [row.name for part in sections() for row in part.metrics]


def unwritten() -> list[str]:
    """Rows of the table whose words no module of the package writes in a string."""
    texts = []
    for path in Path(mrlm.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    words = set(re.findall(r"\w+", "\n".join(text for text in texts if " " not in text)))
    return [name for name in names() if set(re.findall(r"\w+", PLACE.sub("", name))) - words]


PLACE = re.compile(r"<\w+>")


def missing_tests() -> list[str]:
    """Rows whose test is not there."""
    lost = []
    for where in sorted(set(ROWS.values())):
        file, _, name = where.partition("::")
        path = next(TESTS.rglob(file), None)
        tree = None if path is None else ast.parse(path.read_text(encoding="utf-8"))
        known = {each.name for each in getattr(tree, "body", ()) if hasattr(each, "name")}
        if tree is None or (name and name not in known):
            lost.append(where)
    return lost
