from __future__ import annotations

import pytest

from leanwam.errors import InputError
from leanwam.rollouts import TASKS, Shard, call_seed, plan_episodes, select_tasks
from leanwam.rollouts.demonstrations import attempt_seed
from leanwam.rollouts.metaworld import DEMONSTRATION_SEED_BASE


def test_the_plan_is_a_function_of_task_and_episode_alone():
    few = plan_episodes(select_tasks("push,hammer"), 3)
    many = plan_episodes(select_tasks(None), 5)
    assert set(few) <= set(many)
    assert len({item.noise_seed for item in many}) == len(many)
    assert {item.start_seed for item in many} == set(range(5))


def test_another_noise_stream_keeps_the_starts():
    first = plan_episodes(select_tasks("push"), 4)
    second = plan_episodes(select_tasks("push"), 4, noise_stream=1)
    assert [item.start_seed for item in first] == [item.start_seed for item in second]
    assert not {item.noise_seed for item in first} & {item.noise_seed for item in second}


def test_evaluation_never_meets_the_seeds_of_demonstrations():
    last = plan_episodes(select_tasks("push"), 1, first=DEMONSTRATION_SEED_BASE - 1)[0]
    assert last.start_seed < attempt_seed(0, TASKS["push"], 0)
    with pytest.raises(InputError, match="episodes run from 0 to 999999"):
        plan_episodes(select_tasks("push"), 2, first=DEMONSTRATION_SEED_BASE - 1)


def test_attempts_of_all_tasks_and_seeds_are_distinct():
    seeds = [attempt_seed(s, task, k) for s in range(3) for task in TASKS.values() for k in (0, 1, 9_999)]
    assert len(set(seeds)) == len(seeds)


def test_shards_part_the_plan():
    plans = plan_episodes(select_tasks("PnP"), 7)
    parts = [Shard.parse(f"{i}/3").pick(plans) for i in (1, 2, 3)]
    assert sorted((item.task, item.episode) for part in parts for item in part) == sorted(
        (item.task, item.episode) for item in plans
    )
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2"])
def test_a_wrong_shard_is_refused(text):
    with pytest.raises(InputError, match="a shard is i/k"):
        Shard.parse(text)


def test_call_seeds_differ_by_call_and_episode():
    assert len({call_seed(noise, call) for noise in range(50) for call in range(50)}) == 2500


def test_families_and_nearest_names():
    pnp, other = select_tasks("PnP"), select_tasks("articulated")
    assert len(pnp) >= 6
    assert len(other) >= 6
    assert len(pnp) + len(other) == len(TASKS) >= 12
    known = ["push", "door-open", "basketball"]
    for name, chosen in (
        ("trained", known),
        ("all", known),
        ("PnP", ["push", "basketball"]),
        ("hammer", ["hammer"]),
    ):
        assert [task.name for task in select_tasks(name, known)] == chosen
    with pytest.raises(InputError, match="unknown task"):
        select_tasks("trained")
    with pytest.raises(InputError, match="no task of this family"):
        select_tasks("articulated", ["push"])
    with pytest.raises(InputError, match="did you mean 'push'"):
        select_tasks("pusj")
    with pytest.raises(InputError, match="twice"):
        select_tasks("push,PnP")
