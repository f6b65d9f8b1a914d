"""Chat: type a question, and see the response while it is sampled.

    python -m tools.chat --model X

The model gets a question as in training: with its chat template and the default instruction, or with --prompt. With
--conversation a chat model gets the typed text unchanged, after the conversation so far. Ctrl-C stops a response,
Ctrl-D ends the chat.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from common.cli import fail, lacks_memory, say
from common.data import make_prompt
from common.distributed import world_size
from common.engines import Engine, make_engine, prompt_seeds
from common.help import parse_args
from common.models import context_length, load_model
from common.records import Problem, Rollouts
from common.settings import Count, ModelSettings, NonNegative, Seed
from tools.sampling import SamplingSettings

PIECE = 16  # tokens shown at a time
LONGEST = 8192  # tokens of prompt and response that vLLM reserves memory for, or twice the longest response if more


@dataclass(kw_only=True)
class Args(SamplingSettings, ModelSettings):
    conversation: bool = False
    """Talk to a chat model: no instruction is added, and each answer stays in its context."""
    max_response_tokens: Count = 1024
    """Length limit of a response."""
    temperature: NonNegative = 1.0
    """Sampling temperature; 0 is greedy."""
    seed: Seed = 0
    """Seed of the responses: the same questions get the same responses."""


def respond(
    engine: Engine, tokenizer: Any, prompt_ids: list[int], limit: int, key: tuple[int, ...], args: Args
) -> tuple[str, bool]:
    """Show a response piece by piece; returns its text and whether it was cut off at `limit`. Ctrl-C stops it."""
    response, text, shown, cut = Rollouts([[]], [[]], [True], [[]]), "", 0, True
    try:
        for end in range(PIECE, limit + PIECE, PIECE):
            seeds = prompt_seeds(1, *key, end)  # new random numbers for each piece
            response = engine.extend([prompt_ids], response, min(end, limit), args.temperature, seeds)
            text = tokenizer.decode(response.tokens[0], skip_special_tokens=True)
            # The engine only sees a stop string within a piece.
            stop = min((text.index(words) + len(words) for words in args.stop if words in text), default=None)
            text, cut = text[:stop], response.truncated[0] and stop is None
            ready = len(text.rstrip("\ufffd"))  # a character may end in the next piece
            say(text[shown:ready], keep="\n\t", end="")
            shown = max(shown, ready)
            if not cut:
                break
    except KeyboardInterrupt:
        say(" [stopped]", end="")
        return text, False
    say(text[shown:], keep="\n\t", end="")
    return text, cut


def chat(args: Args, read: Callable[[str], str] = input) -> None:
    """Answer questions until the input ends."""
    with ExitStack() as stack:
        model, tokenizer = load_model(args)
        model.requires_grad_(False)  # so no gradients take memory
        if args.conversation and tokenizer.chat_template is None:
            fail("--conversation is for chat models, and this model's tokenizer has no chat template: leave it out.")
        make_prompt("", args.prompt, tokenizer, args.system_prompt)  # fails early on an invalid prompt
        context = min(context_length(model), max(LONGEST, 2 * args.max_response_tokens))
        args.max_response_tokens = min(args.max_response_tokens, context - 1)
        vocabulary = model.get_input_embeddings().num_embeddings
        longest = Problem("", "", "", [0] * (context - args.max_response_tokens))
        engine = make_engine(args, model, tokenizer, [longest])
        engine.top_p, engine.top_k = args.top_p, args.top_k
        stack.callback(engine.close)
        say("Ctrl-C stops a response, Ctrl-D ends.")
        messages: list[dict[str, str]] = []
        turn = 0
        while True:
            try:
                question = read("> ").strip()
            except KeyboardInterrupt:
                say("\nCtrl-D ends.", keep="\n")
                continue
            except EOFError:
                say("")
                return
            if not question:
                continue
            turn += 1
            if args.conversation:
                messages.append({"role": "user", "content": question})
            _, prompt_ids = make_prompt(messages or question, args.prompt, tokenizer, args.system_prompt)
            limit = min(args.max_response_tokens, context - len(prompt_ids))
            if not prompt_ids or max(prompt_ids) >= vocabulary or limit < 1:
                say(f"this cannot be read: a prompt of {len(prompt_ids)} tokens, a context of {context}.")
                messages = messages[:-1]
                continue
            text, cut = respond(engine, tokenizer, prompt_ids, limit, (args.seed, turn), args)
            say(f" [cut off after {limit} tokens]" if cut else "")
            if args.conversation:
                messages.append({"role": "assistant", "content": text})


def main(args: Args) -> None:
    if world_size() > 1:
        fail("a chat runs in one process: leave out torchrun.")
    try:
        chat(args.checked())
    except KeyboardInterrupt:
        fail("stopped.", 130)
    except BrokenPipeError:
        fail("stdout was closed.", 1)
    except Exception as error:
        if not lacks_memory(error):
            raise
        fail("not enough memory: lower --max-response-tokens, or with vLLM --gpu-memory-utilization.", 1)


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
