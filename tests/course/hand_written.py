"""Correct functions written by hand, by exercise: function bodies, and alternatives for parts of the solution."""

GSPO_TOKEN = """s = torch.exp(((logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).detach()
ratio = s * torch.exp(logp - logp.detach())
return -torch.min(ratio * advantages, ratio.clamp(1 - args.clip_eps_low, 1 + args.clip_eps_high) * advantages), {}"""
MASK_FORM = """r = torch.exp(logp - old_logp)
gone = ((advantages > 0) & (r > 1 + args.clip_eps)) | ((advantages < 0) & (r < 1 - args.clip_eps))
return -(r.detach() * advantages * logp) * ~gone, {}"""
GAE_FORWARD_SUM = """B, T = values.shape
keep = mask.to(values.dtype)
after = torch.cat([values * keep, torch.zeros_like(values[:, :1])], dim=1)[:, 1:]
delta = (rewards + args.gamma * after - values) * keep
rows = [sum((args.gamma * args.gae_lambda) ** (k - t) * delta[:, k] for k in range(t, T)) for t in range(T)]
advantages = torch.stack(rows, dim=1) * keep
return advantages, advantages + values"""
GRPO_STD = "z = rewards - rewards.mean(1, keepdim=True)\nreturn z / {}"
HAND_WRITTEN = {
    "rloo.compute_advantages": (
        "G = rewards.shape[1]\nreturn G / (G - 1) * (rewards - rewards.mean(1, keepdim=True))",
        "G = rewards.shape[1]\nw = 1 - torch.eye(G, dtype=rewards.dtype)\nreturn rewards - rewards @ w / (G - 1)",
    ),
    "reinforce.compute_advantages": (
        "b = {'none': 0.0, 'ema': ema}.get(args.baseline, rewards.mean().item())\nreturn rewards - b",
        "if args.baseline == 'none':\n    return rewards\n"
        "return rewards - (ema if args.baseline == 'ema' else rewards.sum() / rewards.numel())",
    ),
    "reinforce.token_weights": ("w = torch.zeros(mask.shape)\nw[mask] = 1 / len(mask)\nreturn w",
        "return mask.float() / mask.shape[0]",
        "return torch.where(mask, 1 / mask.size(0), 0.0)",
    ),
    "grpo.compute_advantages": tuple(
        GRPO_STD.format(std)
        for std in (
            "(rewards.std(1, correction=args.ddof, keepdim=True) + 1e-8)",
            "(rewards.std(1, correction=args.ddof, keepdim=True) + 1e-4)",
            "(rewards.var(1, correction=args.ddof, keepdim=True) + 1e-5).sqrt()",
            "rewards.std(1, correction=args.ddof, keepdim=True).clamp(min=1e-6)",
        )
    ),
    "grpo.token_weights": ("n = mask.sum(1)\nreturn torch.einsum('bt,b->bt', mask.double(), 1 / n) / mask.shape[0]",),
    "dr_grpo.compute_advantages": (
        "return torch.stack([row - row.mean() for row in rewards])",
        "G = rewards.shape[1]\nreturn rewards @ (torch.eye(G, dtype=rewards.dtype) - 1 / G)",
    ),
    "dr_grpo.token_weights": (
        "return mask.double() / (mask.shape[0] * args.max_response_tokens)",
        "return torch.where(mask, 1 / (len(mask) * args.max_response_tokens), 0.0)",
    ),
    "dapo.token_weights": (
        "return mask.double() / mask.double().sum()",
        "w = torch.zeros(mask.shape)\nw[mask] = 1 / mask.sum()\nreturn w",
        "return mask.float() * mask.sum().float().reciprocal()",
        "return torch.where(mask, 1 / int(mask.sum()), 0.0)",
    ),
    "maxrl.compute_advantages": (
        "mean = rewards.mean(1, keepdim=True)\nreturn torch.nan_to_num((rewards - mean) / mean)",
    ),
    "grpo.policy_loss": (MASK_FORM,),
    "cispo.policy_loss": (
        "r = torch.exp(logp - old_logp).detach()\n"
        "return -torch.where(r > args.ratio_cap, args.ratio_cap, r) * advantages * logp, {}",
    ),
    "grpo.kl_penalty": (
        "x = ref_logp - logp\nreturn torch.expm1(x) - x",
        "x = torch.exp(ref_logp - logp)\nreturn x - x.log() - 1",
    ),
    "dapo.has_signal": (
        "return (correct != correct[:, :1]).any(1)",
        "return correct.amax(1) > correct.amin(1)",
        "n = correct.sum(1)\nreturn (n > 0) & (n < correct.shape[1])",
        "return torch.tensor([0 < sum(row) < len(row) for row in correct.tolist()])",
    ),
    "ppo.value_loss": (
        "d = values - old_values\nclipped = old_values + torch.sign(d) * d.abs().clamp(max=args.value_clip)\n"
        "a, b = (values - returns).square() / 2, (clipped - returns).square() / 2\nreturn torch.maximum(a, b)",
    ),
    "ppo.compute_advantages": (GAE_FORWARD_SUM,),
    "gspo.policy_loss": (GSPO_TOKEN,),
    "loop.response_mask": (
        "T = int(lengths.max())\nreturn torch.tensor([[t < n for t in range(T)] for n in lengths.tolist()])",
        "mask = torch.zeros(len(lengths), max(lengths.tolist()), dtype=torch.bool)\n"
        "for row, n in enumerate(lengths.tolist()):\n    mask[row, :n] = True\nreturn mask",
        "return torch.arange(max(lengths).item()).expand(len(lengths), -1) < lengths.unsqueeze(1)",
        "return torch.ones(len(lengths), int(lengths.max())).cumsum(1) <= lengths[:, None]",
    ),
    "loop.collate": (
        "rows = [torch.tensor(p + r) for p, r in zip(prompts, responses)]\n"
        "pad = lambda x: torch.nn.utils.rnn.pad_sequence(x, batch_first=True)\n"
        "return pad(rows), pad([torch.tensor(x) for x in logps])",
        "rows = [p + r for p, r in zip(prompts, responses)]\nS, T = max(map(len, rows)), max(map(len, logps))\n"
        "return torch.tensor([x + [0] * (S - len(x)) for x in rows]), "
        "torch.tensor([x + [0.0] * (T - len(x)) for x in logps])",
        "rows = [[*p, *r] for p, r in zip(prompts, responses)]\n"
        "from itertools import zip_longest\n"
        "return [torch.tensor([*zip(*zip_longest(*x, fillvalue=f))]) for x, f in ((rows, 0), (logps, 0.0))]",
        "B, ends = len(prompts), [len(p) + len(r) for p, r in zip(prompts, responses)]\n"
        "tokens = torch.zeros((B, max(ends)), dtype=torch.int64)\nout = torch.zeros((B, max(map(len, logps))))\n"
        "for b in range(B):\n    n = len(prompts[b])\n    tokens[b, :n] = torch.LongTensor(prompts[b])\n"
        "    tokens[b, n : ends[b]] = torch.LongTensor(responses[b])\n"
        "    for t, x in enumerate(logps[b]):\n        out[b, t] = x\nreturn tokens, out",
        "from torch.nn.functional import pad\nrows = [torch.tensor(p + r) for p, r in zip(prompts, responses)]\n"
        "values, longest = list(map(torch.tensor, logps)), lambda x: max(len(row) for row in x)\n"
        "return tuple(torch.stack([pad(x, (0, longest(part) - len(x))) for x in part]) for part in (rows, values))",
        "ends = torch.tensor([len(p) + len(r) for p, r in zip(prompts, responses)])\n"
        "tokens = torch.zeros(len(prompts), int(ends.max()), dtype=torch.long)\n"
        "tokens[torch.arange(tokens.shape[1]) < ends[:, None]] = torch.tensor("
        "[i for p, r in zip(prompts, responses) for i in p + r])\n"
        "counts = torch.tensor(list(map(len, logps)))\nout = torch.zeros(len(logps), int(counts.max()))\n"
        "out[torch.arange(out.shape[1]) < counts[:, None]] = torch.tensor([x for row in logps for x in row])\n"
        "return tokens, out",
        "rows = [p + r for p, r in zip(prompts, responses)]\nS, T = len(max(rows, key=len)), len(max(logps, key=len))\n"
        "tokens = torch.LongTensor([(row + S * [0])[:S] for row in rows])\n"
        "return [tokens, torch.FloatTensor([(row + T * [0.0])[:T] for row in logps])]",
        "rows = [p + r for p, r in zip(prompts, responses)]\n"
        "def padded(x, like):\n    n = max(map(len, x))\n"
        "    return torch.stack([torch.cat([like(row), like([0] * (n - len(row)))]) for row in x])\n"
        "return padded(rows, torch.LongTensor), padded(logps, torch.FloatTensor)",
    ),
    "loop.response_logps": (
        "out = torch.zeros(mask.shape, dtype=logits.dtype)\n"
        "for b in range(len(tokens)):\n    for t in range(int(mask[b].sum())):\n"
        "        at = int(prompt_lengths[b]) + t\n"
        "        out[b, t] = logits[b, at - 1].log_softmax(-1)[tokens[b, at]]\nreturn out",
        "rows, t = mask.nonzero(as_tuple=True)\nat = prompt_lengths[rows] + t\n"
        "out = torch.zeros(mask.shape, dtype=logits.dtype)\n"
        "out[mask] = logits[rows, at - 1].log_softmax(-1).gather(1, tokens[rows, at][:, None])[:, 0]\nreturn out",
        "rows, t = mask.nonzero(as_tuple=True)\nat = prompt_lengths[rows] + t\n"
        "nll = torch.nn.functional.cross_entropy(logits[rows, at - 1], tokens[rows, at], reduction='none')\n"
        "return torch.zeros(mask.shape, dtype=logits.dtype).masked_scatter(mask, -nll)",
    ),
    "loop.exact_rewards": (
        "import re\nout = []\nfor text, answer, cut in zip(texts, answers, truncated):\n"
        "    found = re.findall(r'\\\\boxed\\{(.*?)\\}', text)\n"
        "    out.append(1.0 if found and found[-1] == answer and not cut else 0.0)\nreturn torch.tensor(out)",
        "def one(text, answer, cut):\n    parts = [p for p in text.split('\\\\boxed{')[1:] if '}' in p]\n"
        "    return float(bool(parts) and not cut and parts[-1].split('}')[0] == answer)\n"
        "return torch.tensor([one(*row) for row in zip(texts, answers, truncated)])",
        "out = torch.zeros(len(texts))\nfor i, text in enumerate(texts):\n"
        "    if not truncated[i]:\n        boxes = re.findall(r'\\\\boxed{([^}]*)}', text)\n"
        "        out[i] = bool(boxes) and boxes[-1] == answers[i]\nreturn out",
        "last = [(['', *re.findall(r'boxed{([^{}]+)}', text)])[-1] for text in texts]\n"
        "return torch.tensor([float(a == b) for a, b in zip(last, answers)]) * (~torch.tensor(truncated)).float()",
        "def box(text):\n    end = text.rfind('}')\n    start = text.rfind('{', 0, end) + 1\n"
        "    return text[start:end] if end > 0 else None\n"
        "return torch.tensor([0.0 if cut else float(box(x) == y) for x, y, cut in zip(texts, answers, truncated)])",
        "found = [None if cut else re.search(r'.*\\\\boxed{([^{}]*)}', text, re.S) "
        "for text, cut in zip(texts, truncated)]\n"
        "return torch.tensor([1.0 * (m is not None and m[1] == y) for m, y in zip(found, answers)])",
        "import numpy as np\ndef last(text):\n    return re.findall(r'{(.*?)}', text)[-1:]\n"
        "right = np.array([last(x) == [y] for x, y in zip(texts, answers)])\n"
        "return torch.from_numpy((right & ~np.array(truncated)).astype('float32'))",
        "out = []\nfor text, answer, cut in zip(texts, answers, truncated):\n"
        "    boxes = [m.group(1) for m in re.finditer(r'\\\\boxed{([^{}]*)}', text)]\n"
        "    if cut or not boxes:\n        out.append(0.0)\n    else:\n        out.append(float(boxes[-1] == answer))\n"
        "return torch.tensor(out, dtype=torch.float32)",
    ),
    "loop.minibatches": (
        "size = len(order) // count\nrows = torch.arange(len(order) * G).view(-1, G)[order]\n"
        "return [rows[i * size : (i + 1) * size].reshape(-1) for i in range(count)]",
        "size, out = len(order) // count, []\nfor i in range(0, len(order), size):\n"
        "    out.append(torch.tensor([p * G + g for p in order[i : i + size].tolist() for g in range(G)]))\nreturn out",
        "rows = (order[:, None] * G + torch.arange(G)).flatten()\nreturn list(rows.view(count, -1))",
        "rows = (order.repeat_interleave(G) * G) + torch.arange(G).repeat(len(order))\nreturn list(rows.chunk(count))",
        "parts = order.view(count, -1).tolist()\n"
        "return [torch.cat([torch.arange(p * G, (p + 1) * G) for p in part]) for part in parts]",
        "starts = G * order.view(count, -1, 1)\nreturn [*(starts + torch.arange(G)).flatten(1)]",
        "of = torch.arange(len(order) * G) // G\n"
        "return [torch.cat([(of == p).nonzero()[:, 0] for p in part]) for part in order.tensor_split(count)]",
    ),
}  # fmt: skip

CLIP = "torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)"
OWN_CLIP = (
    CLIP,
    "norm = torch.cat([p.grad.flatten() for p in policy.parameters()]).norm()\n"
    "                for p in policy.parameters():\n"
    "                    p.grad *= min(1.0, args.max_grad_norm / norm)",
)
PARTS = {
    "loop.train": (
        (".view(-1, 1).expand(mask.shape)", ".flatten()[:, None].repeat(1, mask.shape[1])"),
        (".view(-1, 1).expand(mask.shape)", ".reshape(-1)[:, None] * torch.ones(mask.shape)"),
        ("with torch.no_grad():\n            old_logp = response_logps(policy(tokens), tokens, prompt_lengths, mask)",
         "if True:\n            old_logp = response_logps(policy(tokens), tokens, prompt_lengths, mask).detach()"),
        OWN_CLIP,
        (CLIP, CLIP.replace("policy.parameters()", "[p for p in policy.parameters() if p.requires_grad]")),
        ("optimizer.zero_grad()", "for p in policy.parameters():\n                    p.grad = None"),
        ("optimizer.zero_grad()", "policy.zero_grad()"),
        (".sum().backward()", ".sum(1).sum(0).backward()"),
        (" * loss).sum().backward()", " * loss).mul(2).sum().div(2).backward()"),
        ("torch.stack(curve)", "torch.tensor([float(x) for x in curve])"),
        ("curve.append(rewards.mean())", "curve.append(rewards.sum() / len(rewards))"),
        ("minibatches(torch.randperm(P), G, args.num_minibatches)",
         "list(minibatches(torch.randperm(args.prompts_per_step), G, args.num_minibatches))"),
        ("for _ in range(args.update_epochs):", "for epoch in range(1, 1 + args.update_epochs):"),
        ("[problem.answer for problem in problems for _ in range(G)]",
         "sum(([problem.answer] * G for problem in problems), [])"),
        ("torch.tensor([len(ids) for ids in prompts])", "torch.as_tensor(list(map(len, prompts)))"),
        ("tis = tis_weight", "tis = 1.0 * tis_weight"),
        ("rewards = exact_rewards(", "rewards = 0.0 + exact_rewards("),
    ),
}  # fmt: skip
