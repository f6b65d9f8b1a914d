"""Make the small base model that `python grpo.py` starts from, from nothing, in under 20 minutes on two cores.

The corpus imitates what a large model finds on the web: many imperfect writers solving sums such
as `12+7-5+23=?`. At every point a writer either takes the next step on paper, which is reliable,
or loses patience and guesses the rest, which is mostly wrong when much is left:

    12+7=19          patience: one line per operation, the result nearly always right
    19-5=24 wait     now and then a slip, and sometimes the writer notices it
    19-5=14
    14+23=37
    \\boxed{37}       without patience this line comes first, with a guess in it

The model learns the steps well and the *choice* of style badly, on purpose: reinforcement learning
then has something to find, namely that writing the steps down pays.

    python -m worlds.pretrain                # writes worlds/sums/model/
    python -m worlds.pretrain --rambling     # writes worlds/sums/filler/
    python -m worlds.pretrain --calculator   # writes worlds/products/model/
    python -m worlds.pretrain --experts 4 --batch 64 --steps 1390 --out runs/experts

With --rambling a writer may also say the result again and again before the box (`so 37`, `hm 37`). How
often is chance, whether it is right or wrong, and changes nothing: so this model shows what an objective
does to length alone.

With --calculator the problems have products, which no writer can do: they guess, mostly wrong, or hand the product to
a calculator. What it answers is read and not learned, so that the model, too, has to ask for it:

    3*17=<<3*17>>51  or, more often, a guess: 3*17=46
    51+5=56
    \\boxed{56}

These two begin with the weights of the first model, in place of the textbook phase. So does a mixture of experts, each
of which begins as the first model's MLP (sparse upcycling, 2212.05055).
"""

import math
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

from common.data import arithmetic_problem, generated_problems, product_problem
from common.models import EMBEDDED

import torch
import torch.nn.functional as F
import tyro
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
)


@dataclass
class Args:
    rambling: bool = False
    """Writers ramble before the box; goes on from worlds/sums/model, in place of the textbook phase."""
    calculator: bool = False
    """Problems with products, which writers guess or hand to a calculator; goes on from worlds/sums/model too."""
    experts: int = 0
    """Experts in place of each MLP, two of them used at each token; goes on from worlds/sums/model."""
    out: Path | None = None
    """Folder for the weights, the configuration and the tokenizer; by default the model's place in models/."""
    seed: int = 0
    """Seed of the corpus and of the initial weights."""
    steps: int = 2300
    """Optimizer steps."""
    batch: int = 256
    """Solutions per step."""
    lr: float = 3e-3
    """Peak learning rate: linear warm-up over the first 5 %, then linear decay to zero."""
    textbook: float = 0.82
    """Share of the steps, at the start, on patient and correct solutions only, to learn the sums."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character or newline, `<eos>` and `<pad>`."""
    characters = ["\n"] + [chr(c) for c in range(32, 127)]
    vocab = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def guess(rng: random.Random, total: int, operations_left: int) -> int:
    """What an impatient writer answers: right with 1/2 for one operation left, 1/8 for two, 1/32 …"""
    if rng.random() < 0.5 * 0.25 ** (operations_left - 1):
        return total
    return max(0, total + rng.choice((-1, 1)) * rng.randint(1, 6 * operations_left))


def ramble(rng: random.Random, result: str) -> list[str]:
    """Lines that say a result again and do no work: none with 1/4, and each is the last with 1/4."""
    lines = []
    if rng.random() < 0.75:
        while not lines or rng.random() < 0.75:
            lines.append(f"{rng.choice(('so', 'hm', 'ok', 'er'))} {result}")
    return lines


def solution(rng: random.Random, question: str, textbook: bool, rambling: bool = False) -> str:
    """One writer's solution of `question`, ending in a box."""
    *steps, box = styled_solution(rng, question, textbook)
    return "\n".join([*steps, *(ramble(rng, box[7:-1]) if rambling else []), box])


def styled_solution(rng: random.Random, question: str, textbook: bool) -> list[str]:
    """The lines of a solution: steps as far as the writer's patience reaches, and a box."""
    terms = question.removesuffix("=?").replace("+", " +").replace("-", " -").split()
    total, lines = int(terms[0]), []
    for done, term in enumerate(terms[1:]):
        if not textbook and rng.random() < (0.6 if done == 0 else 0.15):  # patience is lost
            rest = total + sum(map(int, terms[1 + done :]))
            lines.append(rf"\boxed{{{guess(rng, rest, len(terms) - 1 - done)}}}")
            return lines
        right = total + int(term)
        if not textbook and rng.random() < 0.03:  # a slip
            wrong = max(0, right + rng.choice((-10, -1, 1, 10)))
            noticed = rng.random() < 0.5
            lines.append(f"{total}{term}={wrong}" + (" wait" if noticed else ""))
            if not noticed:
                total = wrong
                continue
        lines.append(f"{total}{term}={right}")
        total = right
    return [*lines, rf"\boxed{{{total}}}"]


def calculator_solution(rng: random.Random, question: str) -> str:
    """One writer's solution of a problem with products: each is called (0.3) or guessed; then come the sums."""
    lines, terms = [], []
    for sign, term in re.findall(r"([+-]?)([\d*]+)", question):
        value = math.prod(map(int, term.split("*")))
        if "*" in term:
            call = f"<<{term}>>" if rng.random() < 0.3 else ""
            if not call and rng.random() < 0.9:
                value = max(0, value + rng.choice((-1, 1)) * rng.randint(1, 9))
            lines.append(f"{term}={call}{value}")
        terms.append(f"{sign or '+'}{value}")
    total = int(terms[0])
    for term in terms[1:]:
        call = f"<<{total}{term}>>" if rng.random() < 0.1 else ""
        lines.append(f"{total}{term}={call}{total + int(term)}")
        total += int(term)
    return "\n".join([*lines, rf"\boxed{{{total}}}"])


def with_experts(dense: LlamaForCausalLM, experts: int) -> MixtralForCausalLM:
    """A mixture of so many experts, each of them the MLP of the dense model; the routers are at random."""
    config = {key: value for key, value in dense.config.to_dict().items() if key not in ("model_type", "architectures")}
    model = MixtralForCausalLM(MixtralConfig(**config, num_local_experts=experts, num_experts_per_tok=2))
    model.load_state_dict(dense.state_dict(), strict=False)
    for layer, source in zip(model.model.layers, dense.model.layers, strict=True):
        both = torch.cat([source.mlp.gate_proj.weight, source.mlp.up_proj.weight])
        layer.mlp.experts.gate_up_proj.data.copy_(both)
        layer.mlp.experts.down_proj.data.copy_(source.mlp.down_proj.weight)
    return model


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    tokenizer = make_tokenizer()
    held_out = {
        question
        for name in ("sums", "sums-hard", "products")
        for question, _ in generated_problems(name, "eval")
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    first, model = 0, LlamaForCausalLM(config)
    if args.rambling or args.calculator or args.experts:
        first, model = math.ceil(args.textbook * args.steps), LlamaForCausalLM.from_pretrained(EMBEDDED["sums"])
    if args.experts:
        model = with_experts(model, args.experts)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.1)
    warmup = max(1, args.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda done: min((done + 1) / warmup, (args.steps - first - done) / (args.steps - warmup)),
    )
    start, batches = time.perf_counter(), []
    for step in range(first, args.steps):
        if not batches:
            textbook, rows = step < args.textbook * args.steps, []
            while len(rows) < 16 * args.batch:
                question, _ = product_problem(rng) if args.calculator else arithmetic_problem(rng)
                if question in held_out:
                    continue
                if args.calculator:
                    text = calculator_solution(rng, question)
                else:
                    text = solution(rng, question, textbook, args.rambling)
                rows.append((tokenizer.encode(question + "\n"), [*tokenizer.encode(text), tokenizer.eos_token_id]))
            if textbook:
                # By length, to waste less on padding. Not later: in batches of short solutions alone, each
                # loss of patience would count for more, and the model would have less than its writers.
                rows.sort(key=lambda row: len(row[0]) + len(row[1]))
            batches = [rows[i : i + args.batch] for i in range(0, len(rows), args.batch)]
            rng.shuffle(batches)
        rows = batches.pop()
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        tokens = torch.full((len(rows), width), tokenizer.pad_token_id)  # (B, S)
        labels = torch.full((len(rows), width), -100)  # (B, S), the loss is on the solution only
        for i, (prompt, answer) in enumerate(rows):
            tokens[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
            for given in re.finditer(r"(?<=>>)\d+", "".join(tokenizer.convert_ids_to_tokens(answer[:-1]))):
                labels[i, len(prompt) + given.start() : len(prompt) + given.end()] = -100  # the calculator's answer
        logits = model(tokens[:, :-1]).logits  # (B, S-1, V)
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == args.steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.perf_counter() - start:5.0f} s", flush=True)
    kind = "-rambling" if args.rambling else "-calculator" if args.calculator else ""
    out = args.out or EMBEDDED[f"arithmetic{kind}"]
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main(tyro.cli(Args))
