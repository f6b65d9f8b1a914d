"""Several processes give the same results as one process: runs on CPUs, some started by torchrun."""

import importlib
import os
import shutil
import socket
import sys

import grpo
import worlds
from benchmarks import sharding
from common import batch as batches
from common.batch import collate, micro_batches
from common.checkpoints import PARTS, read_shards
from common.metrics import read_metrics
from common.records import Problem, Rollouts
from recipes import r1
from tools import checkpoints, plots
from tools.scripts import load

import pytest
import torch
import tyro
from conftest import FEW
from runs import PROCESSES, finish, made_once, results, start, without_times
from transformers import AutoModelForCausalLM

SMALL = "--steps 3 --prompts-per-step 5 --responses-per-prompt 4 --num-minibatches 5 --max-response-tokens 96 --lr 3e-4"
SMALL += " --eval-problems 5 --eval-samples 2 --eval-every 2 --save-every 1"


def be(rank, count, port, script, words, log, few):
    """Act as one of `count` processes of torchrun; with `few` problems, because reading all takes seconds."""
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in given.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    plots.draw_curves = lambda *_: None  # drawing takes a second
    every = worlds.generated_problems
    worlds.generated_problems = lambda *of: every(*of)[: FEW if few else None]
    script = importlib.import_module(script)
    with open(log, "a") as sys.stdout:
        script.main(tyro.cli(script.Args, args=words))


def run(count, script, folder, flags="", resume=False, few=True):
    """Run a script in `count` processes without torchrun; return what they printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--resume", str(folder)] if resume else [*flags.split(), "--run-dir", str(folder)]
    log = folder.parent / f"{folder.name}.log"
    of_all = count, port, load(script).__name__, words, log, few
    processes = [PROCESSES.Process(target=be, args=(i, *of_all)) for i in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0] * count, log.read_text()
    return log.read_text()


def outcome(folder):
    """The final weights and moments, and the log without times."""
    weights, rows = results(folder)
    last = sorted(folder.glob("checkpoint-*"))[-1]
    moments = torch.load(last / "state.pt", weights_only=True)["optimizer"]["state"]
    return weights, moments, without_times(rows)


def assert_same(one, other, tolerance):
    (weights, moments, rows), (weights_, moments_, rows_) = outcome(one), outcome(other)
    assert weights.keys() == weights_.keys()
    for name in weights:
        assert (weights[name] - weights_[name]).abs().max() <= tolerance, f"{name} differs"
    assert moments.keys() == moments_.keys()
    for i in moments:
        torch.testing.assert_close(moments[i], moments_[i], rtol=0, atol=tolerance)
    assert len(rows) == len(rows_)
    for row, row_ in zip(rows, rows_, strict=True):
        assert row.keys() == row_.keys(), f"step {row['step']}: metrics of one run only: {row.keys() ^ row_.keys()}"
        for name, value in row.items():
            other = row_[name]
            expected = None if other is None else pytest.approx(other, rel=tolerance, abs=tolerance)
            assert value == expected, f"step {row['step']}: {name}"


# Three processes get uneven shards of the five prompts, and of a minibatch's four or twenty responses.
CASES = {
    "grpo": "--kl-beta 0.05 --gradient-checkpointing --fp32-lm-head --staleness 1 --micro-batch-tokens 300",
    "dapo": "--update-epochs 2 --overlong-filter --num-minibatches 1",
    "ppo": "--micro-batch-tokens 400 --num-minibatches 1",
    "gigpo": "--micro-batch-tokens 400",
    "trpo": "--num-minibatches 1",
    "rspo": "--replay-routing --staleness 1",  # makes engine and learner choose different experts
}


@pytest.mark.slow
@pytest.mark.parametrize("script", CASES)
def test_processes_agree(script, tmp_path):
    """Runs with one process and with three end with the same weights, moments and metrics within rounding."""
    for processes in (1, 3):
        output = run(processes, script, tmp_path / str(processes), f"{SMALL} {CASES[script]}")
        assert output.count("held-out accuracy") == 1, "more than one process prints"
    # Rounding is larger where TRPO solves for its step, and where experts get other rows in a batch.
    assert_same(tmp_path / "1", tmp_path / "3", 1e-4 if script in ("trpo", "rspo") else 1e-5)


@pytest.mark.slow
def test_adapters_of_several_processes(tmp_path):
    """A sharded LoRA run equals one on a single process, which can also resume it."""
    flags = SMALL + " --lora-rank 3 --lr 1e-3 --staleness 1"
    for processes in (1, 2):
        run(processes, "grpo", tmp_path / str(processes), flags)
    assert_same(tmp_path / "1", tmp_path / "2", 1e-5)
    shutil.copytree(tmp_path / "2", tmp_path / "resumed")
    shutil.rmtree(sorted((tmp_path / "resumed").glob("checkpoint-*"))[-1])
    run(1, "grpo", tmp_path / "resumed", resume=True)
    assert_same(tmp_path / "1", tmp_path / "resumed", 1e-5)


@pytest.mark.slow
def test_a_batch_function_in_several_processes(tmp_path):
    """It gets all responses of a rollout batch, so rewards do not depend on the number of processes.

    20 responses in groups of 4: with three processes no shard is a whole number of groups.
    """
    (tmp_path / "rank.py").write_text("def rank(problems, texts, tokens, truncated):\n    return range(len(texts))\n")
    flags = f"{SMALL} --steps 1 --eval-every 0 --reward correct {tmp_path}/rank.py:rank=0.01"
    for processes in (1, 3):
        run(processes, "grpo", tmp_path / str(processes), flags)
    for row in read_metrics(tmp_path / "3"):
        count = 20 if row["step"] else 10  # responses, in the evaluation 5 problems with 2 samples
        named = "reward/rank" if row["step"] else "eval/reward/rank"
        assert row[named] == pytest.approx((count - 1) / 2)
    assert_same(tmp_path / "1", tmp_path / "3", 1e-5)


@pytest.mark.slow
def test_search_in_several_processes(tmp_path):
    """Runs with longer responses agree too, and another number of processes can resume them."""
    flags = SMALL.replace("-tokens 96", "-tokens 240") + " --model search --dataset search"
    for processes in (1, 2):
        run(processes, "grpo", tmp_path / str(processes), flags)
    assert_same(tmp_path / "1", tmp_path / "2", 1e-5)
    shutil.rmtree(sorted((tmp_path / "2").glob("checkpoint-*"))[-1])
    run(1, "grpo", tmp_path / "2", resume=True)
    assert_same(tmp_path / "1", tmp_path / "2", 1e-5)


@pytest.mark.slow
def test_in_flight_weights_of_several_processes(tmp_path):
    """Each process samples its shard of the prompts, and after each token all agree on which groups have ended."""
    flags = SMALL + " --staleness 1 --training-tokens 8 --in-flight-prompts 4"
    for processes in (1, 2):
        run(processes, "pipeline_rl", tmp_path / str(processes), flags)
    assert_same(tmp_path / "1", tmp_path / "2", 1e-5)


def test_the_first_process_decides_how_far_a_stage_is(tmp_path, monkeypatch):
    """The first process writes the folder, so it decides; the others may see an outdated one."""
    monkeypatch.setattr(r1, "gather", lambda mine: [(True, True), mine])
    assert r1.progress(tmp_path / "not begun") == (True, True)


@pytest.mark.slow
def test_stages_of_several_processes(tmp_path):
    """All processes agree on the next stage, and each stage gives the same result as with one process."""
    flags = SMALL + " --stages cold-start rl rejection --cold-start-solutions 32 --rejection-prompts 8"
    flags += " --sft-batch 16 --sft-epochs 2 --sft-lr 3e-4"  # more updates at a higher rate enlarge the rounding
    for processes in (1, 2):
        run(processes, "r1", tmp_path / str(processes), flags, few=False)  # some of the few enlarge it more
    for stage in ("1-cold-start", "2-rl", "3-rejection"):
        assert_same(tmp_path / "1" / stage, tmp_path / "2" / stage, 1e-5)


@pytest.mark.slow
def test_more_processes_than_rows(tmp_path):
    """With minibatches of two rows, one of three processes has no row to train on and stays in step."""
    flags = SMALL.replace("-step 5", "-step 2").replace("prompt 4", "prompt 2").replace("batches 5", "batches 2")
    for processes in (1, 3):
        run(processes, "grpo", tmp_path / str(processes), flags)
    assert_same(tmp_path / "1", tmp_path / "3", 1e-5)


QUICK_RUN = "--steps 2 --prompts-per-step 5 --responses-per-prompt 4 --num-minibatches 5 --max-response-tokens 32 "
QUICK_RUN += "--lr 3e-4 --eval-problems 2 --eval-samples 1 --save-every 1"


def test_two_processes_end_as_one(tmp_path):
    """A run in one process ends like the same run in two processes, which torchrun starts."""
    run(1, "grpo", tmp_path / "1", QUICK_RUN + " --staleness 1", few=False)
    output = finish(start(2, "grpo.py", tmp_path / "2", QUICK_RUN + " --staleness 1"))
    assert output.count("held-out accuracy") == 1, "more than one process prints"
    assert_same(tmp_path / "1", tmp_path / "2", 1e-5)


OF_TWO = SMALL + " --staleness 1 --kl-beta 0.05"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run in two processes."""
    return made_once(tmp_path_factory, "whole", lambda folder: run(2, "grpo", folder, OF_TWO))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_resume_with_another_number(processes, whole, tmp_path):
    """A resumed run ends the same within rounding, and bit for bit with the same number of processes."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoint-000003")
    output = run(processes, "grpo", folder, resume=True)
    assert "after step 2" in output
    assert_same(whole, folder, 0 if processes == 2 else 1e-5)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The same run with sharded checkpoints."""
    return made_once(
        tmp_path_factory, "parts", lambda folder: run(2, "grpo", folder, OF_TWO + " --sharded-checkpoints")
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_sharded_checkpoints(processes, whole, parts, tmp_path):
    """Each process saves its rows; any number of processes can resume, and one command builds a model from them."""
    folder = tmp_path / "run"
    last = folder / "checkpoint-000003"
    shutil.copytree(parts, folder)
    before = read_shards(last / PARTS, lambda _, kept: torch.empty(kept.size))
    shutil.rmtree(last)
    assert "after step 2" in run(processes, "grpo", folder, resume=True)
    assert len(list(last.glob("**/*.safetensors"))) == processes
    after = read_shards(last / PARTS, lambda _, kept: torch.empty(kept.size))
    torch.testing.assert_close(before, after, rtol=0, atol=0 if processes == 2 else 1e-5)
    assert without_times(read_metrics(parts)) == without_times(read_metrics(folder)) or processes != 2
    checkpoints.main([str(last), str(tmp_path / "model")])
    weights = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "model").named_parameters())
    expected = dict(AutoModelForCausalLM.from_pretrained(whole / last.name).named_parameters())
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_rows_are_dealt_once(processes, monkeypatch):
    """Every row goes to one process with its weights; all do equally many passes and about as many tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 96, *torch.randint(1, 97, (21,), generator=generator).tolist()]
    rollouts = Rollouts(
        [[5] * n for n in lengths], [[0.0] * n for n in lengths], [False] * 23, [[True] * n for n in lengths]
    )
    batch = collate([Problem("", "", "", [1, 2])] * 23, rollouts, "cpu")
    rows = torch.randperm(23, generator=generator)[:19]
    weights = torch.rand(19, batch.token_mask.shape[1], generator=generator)  # (b, T)
    args = grpo.Args(micro_batch_tokens=200)
    monkeypatch.setattr(batches, "world_size", lambda: processes)
    dealt = []
    for rank in range(processes):
        monkeypatch.setattr(batches, "rank", lambda rank=rank: rank)
        passes = list(micro_batches(rows, weights, batch, args))
        for part, w in passes:
            assert torch.equal(w, weights[[rows.tolist().index(row) for row in part.tolist()]]), "other rows' weights"
        dealt.append([part for part, _ in passes])
    assert len({len(passes) for passes in dealt}) == 1
    of_process = [torch.cat(passes) for passes in dealt]
    assert torch.cat(of_process).sort().values.tolist() == rows.sort().values.tolist()
    tokens = [int(batch.lengths[part].sum()) for part in of_process]
    assert max(tokens) - min(tokens) <= 98  # the longest row
    for part in (part for passes in dealt for part in passes if len(part) > 1):
        assert len(part) * int(batch.lengths[part].max()) <= 200


@pytest.mark.slow
def test_memory_and_traffic():
    """Each process holds its shard of the 16 bytes per parameter and receives as much as the formula says."""
    one, two = sharding.measure(1), sharding.measure(2)
    for precision in ("fp32", "bf16"):
        assert two[f"held, {precision}"] == pytest.approx(one[f"held, {precision}"] / 2, rel=0.15)
        # Embedding and head with their gradient (32 MiB), and three layers (13 MiB each).
        assert two[f"peak, {precision}"] - two[f"held, {precision}"] < 90 << 20
        # No gradients yet, and no bf16 copy of all weights.
        assert two[f"scoring, {precision}"] < two[f"held, {precision}"]
    parts = 4 * sharding.build().num_parameters() / 2
    for stage, times in {"in an update": 3, "in scoring": 1, "as new weights": 1}.items():
        assert one[f"received {stage}"] == 0
        assert two[f"received {stage}"] == pytest.approx(times * parts, rel=0.01)
