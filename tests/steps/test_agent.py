"""Episodes: the agent's recipe, GiGPO's advantages, and the guessing game that the embedded model plays."""

import random
import re
from statistics import fmean

from common.environments import Observation, ask, load_environment
from common.records import Episode, Problem, Rollouts
from methods import gigpo
from recipes import agent
from worlds import generated_problems
from worlds.guessing.environment import ENVIRONMENT, feedback
from worlds.guessing.problems import GUESSES, bounds, guessing_problem
from worlds.guessing.writers import solution
from worlds.pretrain import make_tokenizer, to_tensors

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, on_tiny, refused, run


def episodes(*rows, length=3):
    """Rollouts of episodes, each given by the states before its turns, with equally many tokens per turn."""
    found = [Episode([length * k for k in range(len(states))], list(states)) for states in rows]
    return Rollouts([[0] * (length * len(states)) for states in rows], episodes=found)


class TestGiGPO:
    def test_turns_from_the_same_state_are_compared_by_what_followed(self):
        """Turns from equal states are compared within a group, even if one episode returns to a state."""
        rollouts = episodes(["", "a"], ["", "b", "a"], ["", "a"], [""])
        rewards = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        found = gigpo.step_advantages(rewards, rollouts, gigpo.Args(discount=0.5, ddof=0))
        first = 1 - 1e-5  # the std has 1e-6 added
        expected = [
            [first] * 3 + [0] * 3,  # 0.5 against 0.25; then, from a, 1 and 1 are equal
            [-first] * 3 + [0] * 3 + [0] * 3,  # no other turn starts from b
            [first] * 3 + [0] * 3,  # 0.5 against 0; state a belongs to another prompt
            [-first] * 3,
        ]
        for row, values in zip(found, expected, strict=True):
            assert row[: len(values)].tolist() == pytest.approx(values, abs=2e-5) and not row[len(values) :].any()
        same = episodes(["", "a", "a"], ["", "a"], ["", "c"])
        values = [0.5, 1.0, 0.0]  # the three turns from a: two of the first episode, one of the second
        found = gigpo.step_advantages(torch.tensor([[1.0, 0.0, 1.0]]), same, gigpo.Args(discount=0.5))
        mean, std = 0.5, 0.5
        assert found[[0, 0, 1], [3, 6, 3]].tolist() == pytest.approx([(v - mean) / std for v in values], abs=1e-4)

    def test_one_turn_is_grpo_times_1_plus_omega(self):
        rewards = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
        found = gigpo.step_advantages(rewards, episodes(*[[""]] * 40), gigpo.Args())
        grpo_advantages = gigpo.compute_advantages(rewards, gigpo.Args()).view(-1, 1)
        torch.testing.assert_close(found, grpo_advantages.expand(40, 3))

    def test_different_states_are_grpo(self):
        rows = [[f"{row} {turn}" for turn in range(1 + row % 3)] for row in range(8)]
        unknown = [[None] * len(states) for states in rows]
        for states in (rows, unknown):
            assert not gigpo.step_advantages(torch.rand(2, 4), episodes(*states), gigpo.Args()).any()

    def test_without_weight_it_is_the_agent_to_the_bit(self, tiny_model, half_correct, tmp_path, capsys):
        from conftest import LETTERS

        tiny = on_tiny(tiny_model) | {"environment": LETTERS, "lr": 1e-3, "eval_every": 0}
        weights, rows = run("agent", tmp_path / "agent", **tiny)
        others, other_rows = run("gigpo", tmp_path / "gigpo", step_weight=0.0, **tiny)
        assert_same_weights(weights, others)
        assert_same_rows(rows, other_rows)
        assert differing(weights, run("gigpo", tmp_path / "other", **tiny)[0])


class TestGuessing:
    def played(self, secret, *turns, question="12: 17-29?"):
        play = ENVIRONMENT.play(Problem(question, str(secret), "", []))
        return [ask(play, text) for text in turns]

    def test_a_game(self):
        answers = self.played(22, "17?", "27?", "30?", "22?")
        assert [answer[:2] for answer in answers[:3]] == [
            ("higher 18-29\n", "18-29, 3 left"),
            ("lower 18-26\n", "18-26, 2 left"),
            ("lower 18-26\n", "18-26, 1 left"),
        ]  # fmt: skip
        assert answers[3].reward == 1.0
        assert self.played(22, "17?", "18?", "19?", "20?")[-1].reward == 0.0
        for text in ("", "22", "022?", "2 2?", "x?", "22?22?"):
            assert self.played(22, text)[-1].reward == 0.0

    def test_the_middle_always_wins(self):
        for low, high in ((1, 11), (60, 74)):
            for secret in range(low, high + 1):
                first, last = low, high
                play = ENVIRONMENT.play(Problem(f"1: {low}-{high}?", str(secret), "", []))
                answers = []
                while not answers or isinstance(answers[-1], Observation):
                    answers.append(ask(play, f"{(first + last) // 2}?"))
                    if isinstance(answers[-1], Observation):
                        first, last = map(int, answers[-1].state.partition(",")[0].split("-"))
                assert answers[-1].reward == 1.0 and len(answers) <= GUESSES

    def test_problems_and_players(self):
        rng = random.Random(0)
        for _ in range(300):
            question, answer = guessing_problem(rng)
            low, high = bounds(question)
            assert 1 <= low <= int(answer) <= high <= 99 and 11 <= high - low + 1 <= 15
        games = [solution(rng, "12: 17-29?", False) for _ in range(2000)]
        first = [int(game[: game.index("?")]) for game in games]
        lowest, middle = (sum(guess == number for guess in first) / 2000 for number in (17, 23))
        assert lowest == pytest.approx(0.55 + 0.4 / 13, abs=0.05) and middle == pytest.approx(0.05 + 0.4 / 13, abs=0.02)
        for game in games[:100]:
            turns, low, high = re.findall(r"(\d+)\?(?:(higher|lower) (\d+)-(\d+)\n)?", game), 17, 29
            assert len(turns) <= GUESSES and turns[-1][1] == ""
            for guess, said, first, last in turns[:-1]:
                secret = 99 if said == "higher" else 0
                text, low, high = feedback(int(guess), secret, low, high)
                assert text == f"{said} {first}-{last}\n"

    def test_answers_have_no_loss_in_pretraining(self):
        tokenizer = make_tokenizer()
        game = "17?higher 18-29\n23?"
        row = (tokenizer.encode("12: 17-29?\n"), [*tokenizer.encode(game), tokenizer.eos_token_id])
        _, labels = to_tensors([row], tokenizer)
        kept = tokenizer.decode(labels[0][labels[0] >= 0].tolist(), skip_special_tokens=True)
        assert kept == "17?23?"

    @pytest.mark.slow
    def test_it_learns_to_take_the_middle(self, tmp_path, capsys):
        """The base model plays the game badly, guessing the lowest or a random number first; training improves it."""
        settings = dict(steps=30, prompts_per_step=32, responses_per_prompt=8, eval_problems=64, eval_samples=8)
        _, rows = run("agent", tmp_path / "run", max_response_tokens=96, eval_every=0, **settings)
        assert 0.25 < rows[0]["eval/avg"] < 0.5 and rows[0]["eval/greedy"] < 0.5
        assert rows[1]["turns"] > 2.5 and rows[1]["out_of_turns"] == 0
        assert rows[-1]["eval/avg"] > rows[0]["eval/avg"] + 0.08
        assert fmean(row["turns"] for row in rows[-6:-1]) < rows[1]["turns"]


@pytest.mark.slow
def test_with_the_calculator_it_is_its_parent_to_the_bit(tmp_path, capsys):
    """With the calculator the run equals calculator.py's bit for bit, even with too many calls."""
    same = {"steps": 2, "lr": 1e-3, "max_response_tokens": 96}
    weights, logged = run("calculator", tmp_path / "calculator", max_calls=1, **same)
    worlds = {"environment": "calculator", "model": "products", "dataset": "products"}
    expected, others = run("agent", tmp_path / "agent", max_turns=2, **worlds, **same)
    assert_same_weights(weights, expected)
    assert any(row.get("out_of_turns") for row in others)
    counts = {"calls", "turns", "out_of_turns", "environment_errors", "environment_timeouts"}
    assert_same_rows(logged, others, more=counts)


def test_held_out_games_are_not_played_in_training():
    train, held_out = generated_problems("guessing", "train"), generated_problems("guessing", "eval")
    assert not {question for question, _ in train} & {question for question, _ in held_out}


def test_an_environment_that_does_not_exist_is_refused(capsys, tmp_path):
    assert "--environment chess is not one of" in refused(capsys, tmp_path, agent, environment="chess")
    assert load_environment("guessing") is ENVIRONMENT
