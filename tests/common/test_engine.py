"""Generation: each prompt has its own samples, which follow the distribution and end where they should."""

import copy

import grpo
import ppo
from common.batch import collate
from common.cache import ROOM, GrowingLayer
from common.engines import Request, check_memory, prompt_seeds
from common.logprobs import batch_logps
from common.models import load_model
from common.records import Rollouts
from common.stream import StopStrings, nucleus
from methods import opd, sdpo, vapo
from recipes import pipeline_rl

import pytest
import torch
from sampling import make, sample
from transformers import DynamicLayer


def test_greedy_is_transformers_own(embedded, problems):
    model, _ = embedded
    rollouts = sample(make(embedded), problems, n=1, temperature=0.0)
    for problem, response in zip(problems, rollouts.tokens, strict=True):
        prompt = problem.prompt_ids
        output = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False)
        assert output[0, len(prompt) :].tolist() == response


def test_rows_do_not_depend_on_who_is_beside_them(embedded, problems):
    """Greedy responses are the same alone and in a batch whose rows end at different times."""
    together = sample(make(embedded), problems, n=2, temperature=0.0)
    engine = make(embedded)
    for i, problem in enumerate(problems):
        assert sample(engine, [problem], 1, 0.0, [0]).tokens[0] == together.tokens[2 * i]


def test_sampling_follows_the_distribution(embedded, problems):
    """The first token's frequencies over 4,000 samples are the model's probabilities."""
    model, _ = embedded
    rollouts = sample(make(embedded), problems[1:2], 4000, seeds=[5], limit=1)
    counts = torch.bincount(torch.tensor(rollouts.tokens).flatten(), minlength=model.config.vocab_size)
    with torch.no_grad():
        p = model(torch.tensor([problems[1].prompt_ids])).logits[0, -1].softmax(-1)
    assert ((counts / 4000 - p).abs() < 4 * (p * (1 - p) / 4000).sqrt() + 1e-3).all()


def test_a_prompts_samples_are_its_own(embedded, problems):
    """What is sampled for a prompt depends on its seed, not on the other prompts, their order or their number."""
    seeds = prompt_seeds(3, 1, 5)
    together = sample(make(embedded), problems, seeds=seeds)
    turned = sample(make(embedded, max_rows=8), problems[::-1], seeds=seeds[::-1])
    assert [part.tokens for part in together.split(8)] == [part.tokens for part in turned.split(8)][::-1]
    alone = sample(make(embedded), problems[1:2], seeds=seeds[1:2])
    assert alone.tokens == together.tokens[8:16]


def test_cache_grows_moves_and_drops_rows():
    """Keys and values equal those of `DynamicLayer`, which copies them, for any order in which rows are dropped."""
    noise = torch.Generator().manual_seed(0)
    ours, theirs, rows = GrowingLayer(), DynamicLayer(), torch.arange(4)

    def append(tokens):
        new = [torch.randn(len(rows), 2, tokens, D, generator=noise) for D in (3, 5)]
        got, expected = ours.update(*new), theirs.update(*new)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert ours.get_seq_length() == theirs.get_seq_length()

    append(5)
    ours.move(ours.buffers[0].shape[2], 2)
    theirs.batch_repeat_interleave(2)
    rows = torch.arange(8)
    for _ in range(2 * ROOM):
        append(1)
    ours.keep(torch.tensor([1, 2]), torch.tensor([5, 7]), 5)  # drops rows 1, 2 and 6
    theirs.batch_select_indices(torch.tensor([0, 5, 7, 3, 4]))
    rows = torch.arange(5)
    for _ in range(2 * ROOM):
        append(1)


def test_prompt_seeds_do_not_meet():
    """200 steps with 1,000 prompts each, and another round of the first step, have all different seeds."""
    seeds = [s for step in range(200) for s in prompt_seeds(1000, 1, step)] + prompt_seeds(1000, 1, 0, 1)
    assert len(set(seeds)) == len(seeds) and max(seeds) < 1 << 48
    assert prompt_seeds(5, 1, 2) == prompt_seeds(9, 1, 2)[:5]


def test_responses_go_on_from_given_tokens(embedded, problems):
    """From a response's first tokens, greedy sampling continues as before; the given tokens keep their records."""
    _, tokenizer = embedded
    engine, prompts = make(embedded), [problem.prompt_ids for problem in problems]
    whole = sample(engine, problems, n=1, temperature=0.0)
    cut = [min(4, len(tokens) - 1) for tokens in whole.tokens]
    begun = Rollouts(
        [tokens[:n] for tokens, n in zip(whole.tokens, cut, strict=True)],
        [[-7.0] * n for n in cut],
        [False] * 3,
        [[False] * n for n in cut],
    )
    rest = engine.extend(prompts, begun, 48, 0.0, [1, 2, 3])
    assert rest.tokens == whole.tokens and rest.truncated == whole.truncated
    for n, was, logps, expected in zip(cut, rest.sampled, rest.logps, whole.logps, strict=True):
        assert was == [False] * n + [True] * (len(was) - n)
        assert logps[:n] == [-7.0] * n and logps[n:] == pytest.approx(expected[n:], abs=1e-5)
    limited = engine.extend(prompts, begun, 6, 1.0, [1, 2, 3])
    for tokens, cut_off in zip(limited.tokens, limited.truncated, strict=True):
        assert len(tokens) <= 6 and (tokens[-1] != tokenizer.eos_token_id) == cut_off


def test_same_seed_same_responses(embedded, problems):
    engine = make(embedded)
    assert sample(engine, problems) == sample(engine, problems)
    assert sample(engine, problems).tokens != sample(engine, problems, seeds=(4, 5, 6)).tokens


def test_ends_and_truncation(embedded, problems):
    _, tokenizer = embedded
    rollouts = sample(make(embedded), problems, n=32, limit=20)
    assert {True, False} == set(rollouts.truncated)
    for tokens, logps, cut in zip(rollouts.tokens, rollouts.logps, rollouts.truncated, strict=True):
        assert len(tokens) == len(logps)
        assert (tokens[-1] != tokenizer.eos_token_id) == cut
        assert tokenizer.eos_token_id not in tokens[:-1]
        assert len(tokens) == 20 if cut else len(tokens) <= 20
    row, n = next((i, len(t)) for i, t in enumerate(rollouts.tokens) if not rollouts.truncated[i] and len(t) > 3)
    shorter = sample(make(embedded), problems, n=32, limit=n)
    assert shorter.tokens[row] == rollouts.tokens[row] and not shorter.truncated[row], "it ends at the limit"


def test_each_prompt_has_its_own_limit(embedded, problems):
    """No response exceeds its own limit, and one that reaches it without an EOS is truncated."""
    limits, prompts, eos = [3, 30, 11], [problem.prompt_ids for problem in problems], embedded[1].eos_token_id
    rollouts = make(embedded).sample(Request(prompts, 8, limits, 1.0, [1, 2, 3]))
    of_row = [limit for limit in limits for _ in range(8)]
    for tokens, logps, cut, limit in zip(rollouts.tokens, rollouts.logps, rollouts.truncated, of_row, strict=True):
        assert 0 < len(tokens) == len(logps) <= limit and cut == (eos not in tokens)
        assert not cut or len(tokens) == limit
    reached = {limit for tokens, limit in zip(rollouts.tokens, of_row, strict=True) if len(tokens) == limit}
    assert {3, 11} <= reached
    begun = rollouts.select([0, 8, 16])  # different lengths leave different numbers of tokens
    begun = Rollouts([t[:n] for t, n in zip(begun.tokens, (1, 4, 7), strict=True)],
                     [p[:n] for p, n in zip(begun.logps, (1, 4, 7), strict=True)], [False] * 3,
                     [[True] * n for n in (1, 4, 7)])  # fmt: skip
    whole = make(embedded).extend(prompts, begun, 9, 1.0, [4, 5, 6])
    assert all(len(tokens) <= 9 for tokens in whole.tokens) and max(map(len, whole.tokens)) == 9


def test_engine_has_its_own_weights(embedded, problems):
    """An update of the learner has no effect on the engine before load_weights."""
    model = copy.deepcopy(embedded[0])
    engine = make((model, embedded[1]))
    before = sample(engine, problems)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    assert sample(engine, problems) == before
    engine.load_weights(model)
    after = sample(engine, problems)
    assert after != before
    batch = collate(problems, after, "cpu")
    torch.testing.assert_close(batch_logps(model, batch, grpo.Args())[0], batch.rollout_logp, rtol=0, atol=1e-5)


def test_weights_that_are_not_finite_end_the_run(embedded, tmp_path, capsys):
    model, tokenizer = embedded
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.layers[0].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(SystemExit) as stop:
        make((broken, tokenizer)).sample(Request([[5, 6]], 2, [4], 1.0, [0]))
    assert stop.value.code == 1 and "no finite probabilities" in capsys.readouterr().err
    broken.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as stop:
        load_model(grpo.Args(model=str(tmp_path)))
    assert stop.value.code == 2 and "not finite" in capsys.readouterr().err


def test_a_special_token_is_no_part_of_a_stop_string(embedded):
    """As in vLLM, stop strings are matched in the text without special tokens."""
    tokenizer = embedded[1]
    one, two = tokenizer.encode("12", add_special_tokens=False)
    stop = StopStrings(("12",), tokenizer, tokenizer.encode("1+1=?"))
    assert [stop.complete(token) for token in (two, one, tokenizer.pad_token_id, two)] == [False, False, False, True]


@pytest.mark.parametrize("script, copies", [(grpo, 3), (ppo, 6), (vapo, 6)])
def test_memory_that_leaves_too_little_to_the_learner_is_refused(script, copies, embedded, capsys):
    """The memory outside the engine must hold the learner's weights and moments, and those of a critic."""
    model = copy.deepcopy(embedded[0])
    held = sum(weight.nbytes for weight in model.parameters())
    args = script.Args(gpu_memory_utilization=0.5)
    check_memory(args, model, total=2 * copies * held + 10)
    with pytest.raises(SystemExit) as stop:
        check_memory(args, model, total=2 * copies * held - 10)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "error: --gpu-memory-utilization 0.5 leaves" in error and "0.50 would fit" in error
    with pytest.raises(SystemExit):
        check_memory(args, model, total=held)
    assert "more than this GPU's" in capsys.readouterr().err
    model.requires_grad_(False)  # as in an evaluation or a chat, where nothing has moments
    check_memory(grpo.Args(gpu_memory_utilization=0.5), model, total=2 * held + 10)
    half = {"gpu_memory_utilization": 0.5, "kl_beta": 0.0}
    for args, models in (  # none has moments
        (opd.Args(**half, teacher="x"), 2),
        (sdpo.Args(**half), 2),  # the model that teaches itself
        (grpo.Args(**half | {"kl_beta": 0.1}, staleness=2), 4),
        (pipeline_rl.Args(**half, staleness=2), 1),  # its generator keeps no older weights
    ):
        check_memory(args, model, total=2 * models * held + 10)
        with pytest.raises(SystemExit):
            check_memory(args, model, total=2 * models * held - 10)


@pytest.mark.parametrize("top_k,top_p", [(0, 1.0), (3, 1.0), (0, 0.6), (4, 0.5), (1, 0.2), (99, 0.01)])
def test_parts_of_the_distribution(top_k, top_p):
    """Top-k keeps the k likeliest tokens, top-p the fewest of them with probability p; the rest is renormalized."""
    generator = torch.Generator().manual_seed(0)
    logp = (3 * torch.randn(50, 20, generator=generator, dtype=torch.float64)).log_softmax(-1)
    for before, after in zip(logp.exp().tolist(), nucleus(logp, top_k, top_p).exp().tolist(), strict=True):
        kept = sorted(range(20), key=lambda v: -before[v])[: top_k or 20]
        whole, mass, chosen = sum(before[v] for v in kept), 0.0, []
        while mass < top_p * whole and len(chosen) < len(kept):
            chosen.append(kept[len(chosen)])
            mass += before[chosen[-1]]
        assert after == pytest.approx([before[v] / mass if v in chosen else 0.0 for v in range(20)], abs=1e-9)
