"""The pretraining that the worlds with an embedded model share; `python -m worlds.sums.pretrain` is a command.

The corpus imitates the text of many imperfect writers (worlds/WORLD/writers.py). The model learns their steps well and
repeats their bad habits, which reinforcement learning can then correct.
"""

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from worlds import generated_problems

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

Row = tuple[list[int], list[int]]  # token ids of a prompt, and of its solution with EOS
Writer = Callable[[random.Random, str, bool], str]  # (rng, question, textbook) in, a solution out
TEXTBOOK = 0.82  # fraction of the schedule, at its start, with textbook solutions only, to learn the steps
# In a solution, an environment's answers, which have no loss.
OBSERVATION = re.compile(r"(?<=>>)\d+|(?<=\?)[a-z].*\n|(?<=</search>)\n.*\n|```output\n.*\n```\n")


@dataclass
class PretrainSettings:
    out: Path | None = None
    """Folder for weights, configuration and tokenizer. Default: the model's folder in worlds/."""
    seed: int = 0
    """Seed of the corpus and of the initial weights."""
    steps: int | None = None
    """Optimizer steps of the whole schedule, of which models made from sums may run only the last 18 %. The defaults
    of this, --batch and --lr made the weights in worlds/."""
    batch: int | None = None
    """Solutions per step."""
    lr: float = 3e-3
    """Peak learning rate: linear warm-up over the first 5 % of the schedule, then linear decay to zero."""

    def with_defaults(self, **defaults: Any) -> Self:
        """These settings with defaults for those that are None."""
        unset = [f.name for f in fields(self) if getattr(self, f.name) is None]
        return replace(self, **{name: defaults[name] for name in unset})


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


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 341,952 parameters with random weights."""
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
    return LlamaForCausalLM(config)


@dataclass
class Corpus:
    """An endless stream of batches of written solutions, which depends only on the seed."""

    problem: Callable[[random.Random], tuple[str, str]]
    write: Writer
    datasets: tuple[str, ...]  # generated data sets whose held-out questions are left out

    @cached_property
    def held_out(self) -> set[str]:
        return {question for name in self.datasets for question, _ in generated_problems(name, "eval")}

    def batches(self, tokenizer: PreTrainedTokenizerFast, args: PretrainSettings, start: int) -> Iterator[list[Row]]:
        """A batch of rows for each step of the schedule from `start` on."""
        rng, pool = random.Random(args.seed), []
        for step in range(start, args.steps):
            if not pool:
                textbook, rows = step < TEXTBOOK * args.steps, []
                while len(rows) < 16 * args.batch:
                    question, _ = self.problem(rng)
                    if question[: question.index("?") + 1] not in self.held_out:
                        rows.append(encoded(tokenizer, question, self.write(rng, question, textbook)))
                if textbook:
                    # Sorted by length, for less padding. Not later: batches of only short solutions would give
                    # early guesses a larger weight, and the model would guess more than its writers.
                    rows.sort(key=lambda row: len(row[0]) + len(row[1]))
                pool = [rows[i : i + args.batch] for i in range(0, len(rows), args.batch)]
                rng.shuffle(pool)
            yield pool.pop()


def encoded(tokenizer: PreTrainedTokenizerFast, question: str, written: str) -> Row:
    return tokenizer.encode(question + "\n"), [*tokenizer.encode(written), tokenizer.eos_token_id]


def to_tensors(rows: list[Row], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Padded tokens (B, S), and labels (B, S) that are -100 outside of what the writer wrote."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = torch.full((len(rows), width), tokenizer.pad_token_id)  # (B, S)
    labels = torch.full((len(rows), width), -100)  # (B, S)
    for i, (prompt, answer) in enumerate(rows):
        start, end = len(prompt), len(prompt) + len(answer)
        tokens[i, :end] = torch.tensor(prompt + answer)
        labels[i, start:end] = torch.tensor(answer)
        for output in OBSERVATION.finditer("".join(tokenizer.convert_ids_to_tokens(answer[:-1]))):
            labels[i, start + output.start() : start + output.end()] = -100
    return tokens, labels


def pretrain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    args: PretrainSettings,
    start: int = 0,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Train the model on the corpus from step `start` of the schedule on, and save it with weights of `dtype`."""
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.1)
    warmup = max(1, args.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min((i + 1) / warmup, (args.steps - start - i) / (args.steps - warmup)),
    )
    began = time.perf_counter()
    for step, rows in enumerate(corpus.batches(tokenizer, args, start), start):
        tokens, labels = to_tensors(rows, tokenizer)
        logits = model(tokens[:, :-1]).logits  # (B, S-1, V)
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == args.steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.perf_counter() - began:5.0f} s", flush=True)
    model.to(dtype).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"wrote {args.out}")
