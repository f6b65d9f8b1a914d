"""The vLLM engine against the learner; collected only where vLLM is installed (see conftest.py)."""

import dppo
import grpo
from common.batch import collate
from common.engines import Request, prompt_seeds
from common.environments import Environment, EpisodeEngine, Observation
from common.logprobs import batch_logps, top_logps
from common.metrics import read_metrics
from common.models import load_model
from common.records import Problem
from common.stream import nucleus
from common.vllm_engine import VLLMEngine
from recipes import pipeline_rl

import pytest
import torch
from conftest import SMALL
from oracles import Response
from runs import finish, start
from sampling import three_versions
from slow import Model
from test_tasks import cut_behind


def sample(engine, prompts, n, limits, temperature, seeds, top_k=0, stop=()):
    limits = limits if isinstance(limits, list) else [limits] * len(prompts)
    return engine.sample(Request(prompts, n, limits, temperature, seeds, top_k, stop=stop))


def collated(prompts, rollouts):
    return collate([Problem("", "", "", ids) for ids in prompts], rollouts, "cpu")


@pytest.fixture(scope="module")
def engine_and_model():
    args = grpo.Args()
    model, tokenizer = load_model(args)
    engine = VLLMEngine(args, model, tokenizer, 256)
    yield engine, model, tokenizer
    engine.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_greedy_tokens_follow_every_update(engine_and_model, temperature):
    """After each update, learner and vLLM have the same log-probs and the same greedy response."""
    engine, model, tokenizer = engine_and_model
    prompts = [tokenizer(text)["input_ids"] for text in ("7+5=?\n", "12+30-4=?\n", "9+9+9+9=?\n")]
    for update in range(3):
        if update:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01 * torch.randn_like(parameter))
        engine.update(model.named_parameters())
        rollouts = sample(engine, prompts, 8, 48, temperature, prompt_seeds(3, update))
        batch = collated(prompts, rollouts)
        logp, _ = batch_logps(model, batch, grpo.Args(temperature=temperature))
        torch.testing.assert_close(logp, batch.rollout_logp, rtol=0, atol=1e-4)
        greedy = sample(engine, prompts, 1, 48, 0.0, prompt_seeds(3, 0))
        for prompt, response in zip(prompts, greedy.tokens, strict=True):
            output = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False)
            assert output[0, len(prompt) :].tolist() == response


def test_stop_strings(engine_and_model):
    """Stop strings of settings and requests keep the same tokens up to and including the one that completes them."""
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())
    prompts, stop = [tokenizer(text)["input_ids"] for text in ("7+5-1=?\n", "9+9+9+9=?\n")], ["=4", "d{1", "}"]
    free = sample(engine, prompts, 16, 40, 1.0, [1, 2])
    engine.stop = stop[:1]
    ended = sample(engine, prompts, 16, 40, 1.0, [1, 2], stop=tuple(stop[1:]))
    engine.stop = []
    cuts = [cut_behind(lambda ids: tokenizer.decode(ids, skip_special_tokens=True), row, stop) for row in free.tokens]
    assert ended.tokens == [row[:n] for row, n in zip(free.tokens, cuts, strict=True)]
    assert any(len(a) < len(b) for a, b in zip(ended.tokens, free.tokens, strict=True))
    for logps, own, n in zip(free.logps, ended.logps, cuts, strict=True):
        assert own == pytest.approx(logps[:n], abs=1e-4)
    texts = tokenizer.batch_decode(ended.tokens, skip_special_tokens=True)
    stopped = [any(s in text for s in stop) for text in texts]
    assert ended.truncated == [cut and not s for cut, s in zip(free.truncated, stopped, strict=True)]


def test_episodes(engine_and_model):
    """Turns end at a stop string or EOS, observations are inserted, and sampled tokens have the learner's log-probs."""
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())

    def play(problem):
        yield
        yield Observation("9")
        return 1.0

    problem = Problem("9+9+9=?", "27", "9+9+9=?\n", tokenizer("9+9+9=?\n")["input_ids"])
    episodes = EpisodeEngine(engine, Environment(play, stop=("=",)), tokenizer, grpo.Args(max_response_tokens=48), 3)
    rollouts = episodes.generate([problem], 16, 1)
    turns = [episode.starts for episode in rollouts.episodes]
    assert max(map(len, turns)) == 2
    nine, stopped = tokenizer("9")["input_ids"][0], 0
    for tokens, starts, sampled in zip(rollouts.tokens, turns, rollouts.sampled, strict=True):
        inserted = [i for i, own in enumerate(sampled) if not own]
        assert inserted == [start - 1 for start in starts[1:]] and all(tokens[i] == nine for i in inserted)
        ends = [tokenizer.decode(tokens[:i]).endswith("=") for i in inserted]
        assert all(end or tokens[i - 1] == tokenizer.eos_token_id for i, end in zip(inserted, ends, strict=True))
        stopped += sum(ends)
    assert stopped > 3
    batch = collate([problem], rollouts, "cpu")
    logp, _ = batch_logps(model, batch, grpo.Args())
    torch.testing.assert_close(logp * batch.response_mask, batch.rollout_logp * batch.response_mask, rtol=0, atol=1e-4)


def test_an_interrupted_response_leaves_nothing(engine_and_model, monkeypatch):
    """After Ctrl-C in a chat, the next question gets only its own response."""
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())
    question = [tokenizer("7+5=?\n")["input_ids"]], 1, 48, 0.0, [0]
    expected, steps, step = sample(engine, *question), [], engine.llm.llm_engine.step

    def interrupted():
        steps.append(step())
        if len(steps) == 3:
            raise KeyboardInterrupt
        return steps[-1]

    monkeypatch.setattr(engine.llm.llm_engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample(engine, *question)
    again = sample(engine, *question)
    assert again.tokens == expected.tokens and again.logps[0] == pytest.approx(expected.logps[0], abs=1e-4)


def test_top_k_and_ends(engine_and_model):
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())
    prompts = [tokenizer("12+30-4=?\n")["input_ids"]]
    rollouts = sample(engine, prompts, 16, 12, 1.0, [1], top_k=4)
    assert set(rollouts.truncated) == {True, False}
    for tokens, cut, ids, logps in zip(
        rollouts.tokens, rollouts.truncated, rollouts.top_ids, rollouts.top_logps, strict=True
    ):
        assert (tokens[-1] != tokenizer.eos_token_id) == cut
        assert ids.shape == logps.shape == (len(tokens), 4)
        assert (logps[:, :-1] >= logps[:, 1:]).all()


def test_the_sampled_token_and_the_likeliest_have_their_own_places(engine_and_model):
    """Top-K log-probs are the learner's, even if the sampled token is not among the K likeliest."""
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())
    prompts = [tokenizer("12+30-4=?\n")["input_ids"]]
    batch = collated(prompts, sample(engine, prompts, 32, 48, 1.0, [3], top_k=2))
    logp, _ = batch_logps(model, batch, grpo.Args())
    torch.testing.assert_close(logp, batch.rollout_logp, rtol=0, atol=1e-4)
    learned = top_logps(model, batch, torch.arange(len(logp)), grpo.Args())
    torch.testing.assert_close(learned, batch.top_logp, rtol=0, atol=1e-4)
    assert (~(batch.top_ids == batch.response[..., None]).any(-1) & batch.token_mask).any(), (
        "none was sampled from the tail"
    )


def test_parts_of_the_distribution(engine_and_model, monkeypatch):
    """With top-k and top-p, log-probs are those of the renormalized rest, as in the transformers engine."""
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())
    monkeypatch.setattr(engine, "top_k", 3)
    monkeypatch.setattr(engine, "top_p", 0.8)
    prompts, raised = [tokenizer(text)["input_ids"] for text in ("7+5=?\n", "12+30-4=?\n")], 0
    rollouts = sample(engine, prompts, 32, 48, 1.0, [5, 6])
    for i, (tokens, logps) in enumerate(zip(rollouts.tokens, rollouts.logps, strict=True)):
        ids = torch.tensor([prompts[i // 32] + tokens])
        with torch.no_grad():
            logp = model(ids).logits[0, -len(tokens) - 1 : -1].log_softmax(-1)  # (T, V)
        every, remaining = (x.gather(1, torch.tensor(tokens)[:, None])[:, 0] for x in (logp, nucleus(logp, 3, 0.8)))
        assert logps == pytest.approx(remaining.tolist(), abs=1e-3)
        raised += int((remaining > every + 0.05).sum())
    assert raised > 100, "hardly anything was left out"


def test_a_prompts_samples_are_its_own(engine_and_model):
    """A prompt gets the same samples alone, in another order, and with a list of limits."""
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())
    prompts = [tokenizer(text)["input_ids"] for text in ("7+5=?\n", "12+30-4=?\n", "9+9+9+9=?\n")]
    seeds = prompt_seeds(3, 1, 5)
    together = sample(engine, prompts, 8, 48, 1.0, seeds)
    turned = sample(engine, prompts[::-1], 8, [48, 48, 48], 1.0, seeds[::-1])
    assert [part.tokens for part in together.split(8)] == [part.tokens for part in turned.split(8)][::-1]
    alone = sample(engine, prompts[1:2], 8, 48, 1.0, seeds[1:2])
    assert alone.tokens == together.tokens[8:16]


def test_responses_continue_from_given_tokens(engine_and_model):
    engine, model, tokenizer = engine_and_model
    engine.update(model.named_parameters())
    prompts = [tokenizer(text)["input_ids"] for text in ("7+5=?\n", "12+30-4=?\n", "9+9+9+9=?\n")]
    whole = sample(engine, prompts, 1, 48, 0.0, [1, 2, 3])
    begun = sample(engine, prompts, 1, 4, 0.0, [1, 2, 3])
    rest = engine.extend(prompts, begun, 48, 0.0, [1, 2, 3])
    assert rest.tokens == whole.tokens and rest.truncated == whole.truncated


@pytest.mark.parametrize("kv", ["keep", "recompute", "paused"])
def test_a_stream_whose_weights_change(engine_and_model, kv):
    """Prompts join and weights load between vLLM's steps; requests keep their keys and values or recompute them."""
    _, model, tokenizer = engine_and_model
    args = pipeline_rl.Args(max_response_tokens=40)
    prompts, versions = [tokenizer(text)["input_ids"] for text in ("7+5=?\n", "9+9+9+9=?\n")], three_versions(model)
    engine = VLLMEngine(args, model, tokenizer, 256)
    engine.update(versions[0])
    stream, lengths, taken = engine.stream(), {}, {}
    for version in range(3):
        if version:
            if kv == "paused":
                state = stream.state_dict()
                assert not engine.llm.llm_engine.has_unfinished_requests() and not stream.groups
            engine.update(versions[version])
            if kv == "paused":
                stream.load_state_dict(state)
            elif kv == "recompute":
                stream.reread()
        if version < 2:
            stream.join([version], Request(prompts[version : version + 1], 8, [40], 1.0, [version + 1]))
        for key, (_, begun) in stream.groups.items():
            lengths[key, version] = max(map(len, begun.tokens))
        for _ in range(7 if version < 2 else 60):
            stream.step()
            taken |= stream.take()
    engine.close()
    assert sorted(taken) == [0, 1] and max(len(tokens) for one in taken.values() for tokens in one.tokens) > 20
    sampler, weights = Model("worlds/sums/model"), [[w for _, w in version] for version in versions]
    for key, rollouts in taken.items():
        at = {lengths[key, version]: (version, kv != "keep") for version in range(3) if (key, version) in lengths}
        assert 0 in at and len(at) == 3 - key
        at[0] = key, True
        for tokens, logps in zip(rollouts.tokens, rollouts.logps, strict=True):
            response = Response(
                prompts[key], tokens, logps, False, False, [True] * len(tokens), weights=at | {0: (key, True)}
            )
            with torch.no_grad():
                expected = sampler.sampled_logps(response, 1.0, weights)
            assert logps == pytest.approx([x.item() for x in expected], abs=1e-4)


def test_every_weight_is_reloaded(engine_and_model):
    """Zeroed weights, as after a deep sleep, are the learner's again after a reload."""
    engine, model, _ = engine_and_model

    def checksum(loaded):
        return {name: weight.double().sum().item() for name, weight in loaded.named_parameters()}

    def zero(loaded):
        for weight in loaded.parameters():
            weight.data.zero_()

    engine.update(model.named_parameters())
    before = engine.llm.apply_model(checksum)
    engine.llm.apply_model(zero)
    assert engine.llm.apply_model(checksum) != before
    engine.update(model.named_parameters())
    assert engine.llm.apply_model(checksum) == before


def rows_of_a_run(script, folder, **settings):
    script.main(script.Args(run_dir=folder, engine="vllm", **SMALL | settings))
    return read_metrics(folder)[1:]


def test_mismatch_grows_as_precision_falls(tmp_path, capsys):
    """Mean |Δp| to the fp32 learner: fp32 < fp16 < bf16 with an fp32 head < bf16 < fp8 < int4, and fp16 < int8 < fp8.

    bf16 and int8 have about the same precision, so either can be closer.
    """

    def mean(precision, head=False):
        settings = {"rollout_precision": precision, "fp32_lm_head": head, "steps": 1, "responses_per_prompt": 32}
        return rows_of_a_run(grpo, tmp_path / f"{precision}-{head}", **settings)[0]["mismatch_mean"]

    fp32, fp16, bf16, int8, fp8, int4 = map(mean, ("fp32", "fp16", "bf16", "int8", "fp8", "int4"))
    assert fp32 < 1e-5 and fp32 < fp16 < mean("bf16", head=True) < bf16 < fp8 < int4
    assert fp16 < int8 < fp8
    assert "engine: vllm" in capsys.readouterr().out


def test_dppo_with_the_likeliest_tokens(tmp_path, capsys):
    rows = rows_of_a_run(dppo, tmp_path / "run", divergence="topk-kl", delta=0.05, top_k=6)
    assert all(row["mismatch_max"] < 1e-3 for row in rows)


def test_search(tmp_path):
    """The longer responses of this world have the learner's log-probs, and its evaluations report behavior."""
    rows = rows_of_a_run(grpo, tmp_path / "run", model="search", dataset="search", max_response_tokens=240)
    assert all(row["mismatch_max"] < 1e-3 for row in rows if "mismatch_max" in row)
    assert rows[-1]["eval/behavior/correct_no"] > 0.9


def test_two_processes_have_an_engine_each(tmp_path):
    """With one engine per process, the engines' log-probs are those of the sharded learner."""
    flags = "--engine vllm --steps 3 --prompts-per-step 4 --eval-problems 4 --eval-samples 2 --max-response-tokens 48"
    finish(start(2, "grpo.py", tmp_path / "run", flags))
    rows = [row for row in read_metrics(tmp_path / "run") if "mismatch_max" in row]
    assert len(rows) == 3
    assert all(row["mismatch_max"] < 1e-4 for row in rows)


def test_other_versions_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("vllm.__version__", "0.11.2")
    with pytest.raises(SystemExit) as stop:
        VLLMEngine(grpo.Args(), None, None, 256)
    assert stop.value.code == 2
    assert "vLLM 0.11.2 is installed; these scripts need 0.32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("longest", "memory", "reason"),
    [(10**6, 512 << 20, "max_model_len (1000000) is greater"), (256, 1 << 10, "No available memory")],
)
def test_what_vllm_refuses_is_one_sentence(monkeypatch, capsys, longest, memory, reason):
    monkeypatch.setattr("common.vllm_engine.CPU_MEMORY", {"kv_cache_memory_bytes": memory})
    args = grpo.Args()
    with pytest.raises(SystemExit) as stop:
        VLLMEngine(args, *load_model(args), longest)
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: --engine vllm cannot start with --model sums: ") and reason in error
