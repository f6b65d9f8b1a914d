"""Generation and log-probs: what the engine reports is what the learner computes."""

import copy

import grpo
from common.batch import collate, minibatches, split_rows
from common.engines import InFlight, WeightHistory, prompt_seeds, rounded_to_fp8, rounded_to_int4
from common.logprobs import batch_logps, logp_and_entropy, token_logps, top_logps
from common.metrics import mismatch_metrics, read_metrics
from common.models import load_model
from common.records import Problem, Rollouts
from common.transformers_engine import MAX_ROWS, ROOM, GrowingLayer, TransformersEngine

import pytest
import torch
from conftest import SMALL
from transformers import DynamicCache, DynamicLayer

PROMPTS = ["7+5=?\n", "12+30-4=?\n", "9+9+9+9=?\n"]


@pytest.fixture(scope="module")
def embedded():
    return load_model(grpo.Args())


@pytest.fixture(scope="module")
def problems(embedded):
    return [Problem(text, "", text, embedded[1](text)["input_ids"]) for text in PROMPTS]


def make(embedded, max_rows=MAX_ROWS, **settings):
    return TransformersEngine(grpo.Args(**settings), *embedded, max_rows)


def sample(engine, problems, n=8, temperature=1.0, seeds=(1, 2, 3), limit=48, **more):
    prompts = [problem.prompt_ids for problem in problems]
    return engine.sample(prompts, n, [limit] * len(prompts), temperature, list(seeds), **more)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_engine_log_probs_are_the_learners(embedded, problems, temperature):
    rollouts = sample(make(embedded), problems, temperature=temperature)
    batch = collate(problems, rollouts, "cpu")
    logp, _ = batch_logps(embedded[0], batch, grpo.Args(temperature=temperature))
    torch.testing.assert_close(logp, batch.rollout_logp, rtol=0, atol=1e-5)
    assert len({len(tokens) for tokens in rollouts.tokens}) > 3, "rows of different lengths are the point"


def test_log_probs_against_a_plain_computation_in_float64(embedded, problems):
    """Row by row, without padding, from the model's own logits."""
    model, _ = embedded
    rollouts = sample(make(embedded), problems, temperature=0.8)
    batch = collate(problems, rollouts, "cpu")
    logp, entropy = batch_logps(model, batch, grpo.Args(temperature=0.8, micro_batch_tokens=300))
    double = load_model(grpo.Args())[0].double()
    for i, response in enumerate(rollouts.tokens):
        prompt = problems[i // 8].prompt_ids
        with torch.no_grad():
            logits = double(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 0.8
        expected = logits.log_softmax(-1)
        torch.testing.assert_close(
            logp[i, : len(response)].double(), expected[range(len(response)), response], rtol=0, atol=1e-5
        )
        torch.testing.assert_close(
            entropy[i, : len(response)].double(), -(expected.exp() * expected).sum(-1), rtol=0, atol=1e-5
        )
        assert (logp[i, len(response) :] == 0).all()


def test_chunked_head_has_the_same_gradient(embedded, problems, monkeypatch):
    """Splitting the (tokens, V) logits is a matter of memory only."""
    model, _ = embedded
    rollouts = sample(make(embedded), problems)
    batch = collate(problems, rollouts, "cpu")

    def gradient():
        model.zero_grad()
        token_logps(model, batch, torch.arange(24), grpo.Args()).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    whole = gradient()
    monkeypatch.setattr("common.logprobs.LOGITS_AT_ONCE", 1000)
    for a, b in zip(whole, gradient(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    model.zero_grad()


def test_fp32_head_under_bf16():
    """With the head in fp32, log-probs pass through no bf16 logits: the sampler's, whose weights are bf16."""
    torch.manual_seed(0)
    plain = {"with_entropy": False, "entropy_gradient": False}
    head = torch.nn.Linear(64, 500, bias=False)
    hidden, targets = torch.randn(20, 64).bfloat16(), torch.randint(500, (20, 1))
    sampler, _ = logp_and_entropy(hidden, targets, copy.deepcopy(head).bfloat16(), 1.0, True, **plain)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = logp_and_entropy(hidden, targets, head, 1.0, False, **plain)
        kept, _ = logp_and_entropy(hidden, targets, head, 1.0, True, **plain)
    torch.testing.assert_close(kept, sampler)
    assert (rounded - sampler).abs().max() > 1e-3
    unrounded, _ = logp_and_entropy(hidden.float(), targets, head, 1.0, False, **plain)
    assert (unrounded - sampler).abs().max() > 1e-4


def test_learner_in_bf16(embedded, problems):
    """Its log-probs are those of a model computing in bf16, its gradients reach fp32 weights along fp32's direction."""
    model, _ = embedded
    rollouts = sample(make(embedded, rollout_precision="bf16"), problems)
    batch = collate(problems, rollouts, "cpu")

    def learner(**settings):
        model.zero_grad()
        logp = token_logps(model, batch, torch.arange(24), grpo.Args(**settings))
        logp.sum().backward()
        assert logp.dtype == torch.float32
        return logp.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

    exact, gradient = learner()
    rounded, rounded_gradient = learner(learner_precision="bf16")
    kept, _ = learner(learner_precision="bf16", fp32_lm_head=True)
    model.zero_grad()
    error = {name: (logp - exact).abs().mean() for name, logp in {"bf16": rounded, "fp32 head": kept}.items()}
    assert 1e-5 < error["fp32 head"] < error["bf16"] < 1e-2, error
    assert torch.equal(learner(learner_precision="fp32")[0], exact), "auto is fp32 on a CPU"
    model.zero_grad()
    assert rounded_gradient.dtype == torch.float32
    assert torch.cosine_similarity(rounded_gradient, gradient, dim=0) > 0.999


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
    """Keys and values are those of `DynamicLayer`, which copies them, whatever the order in which rows are dropped."""
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
    ours.keep(torch.tensor([1, 2]), torch.tensor([5, 7]), 5)  # rows 1, 2 and 6 end
    theirs.batch_select_indices(torch.tensor([0, 5, 7, 3, 4]))
    rows = torch.arange(5)
    for _ in range(2 * ROOM):
        append(1)


def test_prompt_seeds_do_not_meet():
    """Of 200 steps and 1,000 prompts each, also with a round in the key, no two are the same."""
    seeds = [s for step in range(200) for s in prompt_seeds(1000, 1, step)] + prompt_seeds(1000, 1, 0, 1)
    assert len(set(seeds)) == len(seeds) and max(seeds) < 1 << 48
    assert prompt_seeds(5, 1, 2) == prompt_seeds(9, 1, 2)[:5]


def test_responses_go_on_from_given_tokens(embedded, problems):
    """Given a response's first tokens, greedy sampling finds the rest; what was given keeps its records."""
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


def three_versions(model):
    """Weights that move a little from one to the next."""
    noise = torch.Generator().manual_seed(0)
    moved = [model.state_dict()]
    for _ in range(2):
        moved.append({n: w + 0.2 * w.std() * torch.randn(w.shape, generator=noise) for n, w in moved[-1].items()})
    return [[(name, weights[name]) for name, _ in model.named_parameters()] for weights in moved]


@pytest.mark.parametrize("keep", [True, False])
def test_in_flight_each_token_has_its_weights(embedded, problems, keep):
    """Token t is sampled from version min(⌊t/n⌋, 2), over keys and values that were kept or computed again.

    Row by row, without padding; rows leave at different times, and a second part of the batch begins anew.
    """
    model, versions = copy.deepcopy(embedded[0]), three_versions(embedded[0])
    rollouts = sample(make(embedded, max_rows=16), problems, limit=40, in_flight=InFlight(7, versions, keep))
    assert min(map(len, rollouts.tokens)) < 14 < 20 < max(map(len, rollouts.tokens))
    for i, (response, logps) in enumerate(zip(rollouts.tokens, rollouts.logps, strict=True)):
        prompt, expected = problems[i // 8].prompt_ids, []
        cache, unread = DynamicCache(), prompt
        for t, token in enumerate(response):
            if t in (0, 7, 14):
                model.load_state_dict(dict(versions[t // 7]), strict=False)
                if not keep:
                    cache, unread = DynamicCache(), prompt + response[:t]
            with torch.no_grad():
                logits = model(torch.tensor([unread]), past_key_values=cache).logits[0, -1]
            expected.append(logits.log_softmax(-1)[token].item())
            unread = [token]
        assert logps == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("keep", [True, False])
def test_in_flight_with_the_same_weights(embedded, problems, keep):
    """Nothing changes: to the bit where keys and values are kept, to rounding where they are computed again."""
    engine = make(embedded)
    whole = sample(engine, problems)
    same = InFlight(5, [list(embedded[0].named_parameters())] * 4, keep)
    changing = sample(engine, problems, in_flight=same)
    assert changing.tokens == whole.tokens and changing.truncated == whole.truncated
    for logps, expected in zip(changing.logps, whole.logps, strict=True):
        assert logps == (expected if keep else pytest.approx(expected, abs=1e-5))


def test_versions_are_those_of_the_last_steps():
    """The last is the learner's own, the first k batches old; asking changes nothing, recording does."""
    layer = torch.nn.Linear(1, 1, bias=False)
    history, seen = WeightHistory(2), []
    for step in range(1, 6):
        with torch.no_grad():
            layer.weight.fill_(step)
        for _ in range(2):
            seen.append([weights[0][1].item() for weights in history.versions(layer)])
        history.record(layer)
    assert seen[::2] == seen[1::2] == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert WeightHistory(0).versions(layer) == [[("weight", layer.weight)]]


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


def test_engine_has_its_own_weights(embedded, problems):
    """An update of the learner shows in the engine only after load_weights."""
    model = copy.deepcopy(embedded[0])
    engine = make((model, embedded[1]))
    before = sample(engine, problems)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    assert sample(engine, problems) == before
    engine.load_weights(model)
    after = sample(engine, problems)
    assert after != before
    batch = collate(problems, after, "cpu")
    torch.testing.assert_close(batch_logps(model, batch, grpo.Args())[0], batch.rollout_logp, rtol=0, atol=1e-5)


def test_top_k(embedded, problems):
    """The engine's likeliest tokens are those of the learner, with the same log-probs."""
    model, _ = embedded
    rollouts = sample(make(embedded), problems, top_k=5)
    batch = collate(problems, rollouts, "cpu")
    rows = torch.arange(24)
    learner = top_logps(model, batch, rows, grpo.Args())
    torch.testing.assert_close(learner, batch.top_logp, rtol=1e-4, atol=1e-4)
    assert (batch.top_logp[..., 0] >= batch.top_logp[..., 4]).all()
    for row in (*rollouts.top_ids, *rollouts.top_logps):
        assert row.untyped_storage().nbytes() == row.nbytes, "other processes get it with all rows"
    assert (batch.top_logp.exp().sum(-1)[batch.token_mask] <= 1 + 1e-5).all()


def test_mask_counts_the_eos_even_where_pad_is_eos():
    """Built from lengths: the final EOS is trained on, padding with the same id is not."""
    eos = 0
    rollouts = Rollouts(
        [[5, eos], [6, 7, 8, eos], [9, 9, 9, 9]],
        [[-1.0] * 2, [-1.0] * 4, [-1.0] * 4],
        [False] * 3,
        [[True] * 2, [True, False, True, True], [True] * 4],
    )
    batch = collate([Problem("", "", "", ids) for ids in ([1], [2, 3], [4])], rollouts, "cpu")
    assert batch.token_mask.tolist() == [[True, True, False, False], [True] * 4, [True] * 4]
    assert batch.response_mask.tolist() == [[True, True, False, False], [True, False, True, True], [True] * 4]
    assert batch.tokens[0].tolist() == [1, 5, eos, 0, 0, 0]
    assert batch.response[0].tolist() == [5, eos, 0, 0]
    assert (batch.rollout_logp == -1.0 * batch.token_mask).all()


def test_micro_batches_hold_every_row_once(embedded, problems):
    rollouts = sample(make(embedded), problems)
    batch = collate(problems, rollouts, "cpu")
    rows = torch.tensor([5, 3, 11, 20, 2, 0])
    for budget in (1, 70, 150, 10**6):
        parts = list(split_rows(rows, batch, budget))
        assert sorted(torch.cat(parts).tolist()) == sorted(rows.tolist())
        for part in parts:
            assert len(part) == 1 or len(part) * batch.lengths[part].max() <= budget
    assert len(parts) == 1


def test_minibatches_hold_whole_groups():
    args = grpo.Args(num_minibatches=3, update_epochs=2)
    parts = list(minibatches(6, 4, args))
    assert len(parts) == 6
    for part in parts:
        assert sorted((part // 4).tolist()) == sorted([g for g in set((part // 4).tolist()) for _ in range(4)])
    for epoch in (parts[:3], parts[3:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(24))


def test_gradient_checkpointing_changes_nothing(embedded, problems):
    """The gradient of a batch, with activations kept and computed again."""
    gradients = []
    for again in (False, True):
        args = grpo.Args(gradient_checkpointing=again)
        model, _ = load_model(args)
        rollouts = sample(make(embedded), problems[:2], 4, seeds=(0, 1), limit=32)
        batch = collate(problems[:2], rollouts, "cpu")
        assert model.is_gradient_checkpointing == again
        token_logps(model, batch, torch.arange(8), args).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_rounding_to_fp8():
    """4 significant bits: the relative error is at most 1/16 within the range; the largest of a row stays itself."""
    torch.manual_seed(0)
    weight = torch.randn(50, 40) * torch.logspace(-6, 3, 50)[:, None]
    rounded = rounded_to_fp8(weight)
    inside = weight.abs() > weight.abs().amax(1, keepdim=True) * 2.0**-14
    assert ((rounded - weight).abs() / weight.abs())[inside].max() <= 1 / 16
    top = weight.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(rounded.gather(1, top), weight.gather(1, top))
    torch.testing.assert_close(rounded_to_fp8(rounded), rounded)
    assert (rounded_to_fp8(torch.zeros(2, 3)) == 0).all()


def test_rounding_to_int4():
    """16 levels in each group of 128 weights, no weight farther from its own than half a step; groups are their own."""
    torch.manual_seed(0)
    weight = torch.randn(20, 300) * torch.logspace(-6, 3, 20)[:, None]
    rounded = rounded_to_int4(weight)
    for start in (0, 128, 256):
        group, levels = weight[:, start : start + 128], rounded[:, start : start + 128]
        step = group.abs().amax(1, keepdim=True) / 7.5
        assert ((levels - group).abs() <= 0.5001 * step).all()
        whole = levels / step
        torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-4)
        assert {len(set(row)) for row in whole.round().tolist()} <= set(range(9, 17))
        assert whole.min() > -8.001 and whole.max() < 7.001
        torch.testing.assert_close(rounded_to_int4(group), levels)
    assert (rounded_to_int4(torch.zeros(2, 3)) == 0).all()


def test_int4_sampler_of_the_embedded_model(embedded):
    """What it computes with: matrices between embeddings and head on 16 levels per group, all else in bf16."""
    model, _ = embedded
    mine = dict(make(embedded, rollout_precision="int4").model.named_parameters())
    for name, learned in model.named_parameters():
        groups = [len(group.unique()) for row in mine[name] for group in row.split(128)] if learned.ndim == 2 else []
        if learned.ndim == 2 and "embed" not in name:
            assert max(groups) <= 16, name
        else:
            torch.testing.assert_close(mine[name], learned.bfloat16(), rtol=0, atol=0)


def test_tis_sees_an_int4_sampler(tmp_path):
    """A run works, and the weights of TIS are those of its mismatch: cut at the cap, as they never are in fp32."""
    rows = {}
    for precision in ("fp32", "int4"):
        grpo.main(grpo.Args(run_dir=tmp_path / precision, rollout_precision=precision, **SMALL | {"tis_cap": 1.2}))
        rows[precision] = [row for row in read_metrics(tmp_path / precision) if "tis_truncated" in row]
    assert all(row["tis_truncated"] == 0 and abs(row["tis_weight"] - 1) < 1e-4 for row in rows["fp32"])
    assert all(row["tis_truncated"] > 0.003 and row["mismatch_mean"] > 0.002 for row in rows["int4"]), rows["int4"]


def test_mismatch_grows_as_the_sampler_loses_precision(embedded, problems):
    means = []
    for precision, head in (("fp32", False), ("bf16", True), ("bf16", False), ("fp8", False), ("int4", False)):
        engine = make(embedded, fp32_lm_head=head, rollout_precision=precision)
        batch = collate(problems, sample(engine, problems, 64), "cpu")
        old_logp, _ = batch_logps(embedded[0], batch, grpo.Args())
        means.append(mismatch_metrics(old_logp, batch.rollout_logp, batch.token_mask)["mismatch_mean"])
    assert means[0] < 1e-6 and means == sorted(means), means


def test_weights_that_are_not_finite_end_the_run(embedded, tmp_path, capsys):
    model, tokenizer = embedded
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.layers[0].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(SystemExit) as stop:
        make((broken, tokenizer)).sample([[5, 6]], 2, [4], 1.0, [0])
    assert stop.value.code == 1 and "no finite probabilities" in capsys.readouterr().err
    broken.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as stop:
        load_model(grpo.Args(model=str(tmp_path)))
    assert stop.value.code == 2 and "not finite" in capsys.readouterr().err
