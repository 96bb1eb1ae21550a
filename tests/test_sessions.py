"""What episodes come to: moat/sessions.py."""

from types import SimpleNamespace

import pytest

from moat.sessions import RewardMetrics, episode_reward, format_reward, reward_metrics


@pytest.mark.trap(36)
def test_the_mean_is_over_all_episodes():
    """Rewards 1, 0.5, 0 and two unfinished: (1 + 0.5) / 5 = 0.3, one full success of five, not of three or of two."""
    found = reward_metrics([1.0, None, 0.5, 0.0, None])
    assert found == RewardMetrics(n=5, unfinished=2, mean_reward=pytest.approx(0.3), success_rate=pytest.approx(0.2))


@pytest.mark.trap(36)
def test_episodes_that_were_not_finished_are_worth_nothing():
    assert reward_metrics([None, None]) == RewardMetrics(n=2, unfinished=2, mean_reward=0.0, success_rate=0.0)


def test_no_episodes_have_no_mean():
    with pytest.raises(ValueError, match="no episodes"):
        reward_metrics([])


@pytest.mark.parametrize("reward", [-0.1, 1.1, float("nan"), 100.0])
def test_a_reward_out_of_range_is_named(reward):
    with pytest.raises(ValueError, match="episode 2"):
        reward_metrics([1.0, reward])


@pytest.mark.trap(36)
@pytest.mark.parametrize(("reward", "done", "worth"), [(0.75, True, 0.75), (0.75, False, 0.0), (0.0, True, 0.0)])
def test_an_episode_is_worth_its_reward_once_it_is_over(reward, done, worth):
    assert episode_reward(SimpleNamespace(reward=reward, done=done)) == worth


@pytest.mark.parametrize(
    ("reward", "text"),
    [(1.0, "1"), (0.75, "0.75"), (0.0, "0"), (2 / 3, "0.666667"), (0.1, "0.1"), (1 - 1e-9, "1")],
)
def test_a_reward_as_text(reward, text):
    assert format_reward(reward) == text
