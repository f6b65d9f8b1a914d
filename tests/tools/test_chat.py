"""tools.chat asks as in training and shows responses without control characters."""

import io

from common.engines import Request
from common.models import load_model
from common.transformers_engine import TransformersEngine
from tools import chat

from runs import ended


def talk(monkeypatch, typed, **settings):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    chat.main(chat.Args(**settings))


def test_a_chat_asks_as_training_does(monkeypatch, capsys):
    """A typed sum gets the engine's response to the training prompt, and so does a second one."""
    args = chat.Args(temperature=0.0)
    model, tokenizer = load_model(args)
    question = "8+33+33+7=?"
    engine = TransformersEngine(args, model, tokenizer)
    greedy = engine.sample(Request([tokenizer(f"{question}\n").input_ids], 1, [96], 0.0, [0]))
    expected = tokenizer.decode(greedy.tokens[0], skip_special_tokens=True)
    talk(monkeypatch, f"{question}\n\n{question}\n", temperature=0.0)
    out = capsys.readouterr().out
    assert out.count(f"> {expected}\n") == 2 and "cut off" not in out
    talk(monkeypatch, question + "\n", temperature=0.0, max_response_tokens=3)
    assert "[cut off after 3 tokens]" in capsys.readouterr().out


def test_a_stop_string_in_two_pieces_ends_a_response(monkeypatch, capsys):
    """A stop string that spans two pieces ends a response like one within a piece."""
    monkeypatch.setattr(chat, "PIECE", 6)
    for stop, shown in (("oxe", "\\boxe"), ("ed{8", "\\boxed{8")):  # in the greedy \boxed{81}, one token per character
        talk(monkeypatch, "8+33+33+7=?\n", temperature=0.0, stop=(stop,))
        out = capsys.readouterr().out
        assert f"> {shown}\n" in out and "cut off" not in out


def test_a_conversation_keeps_what_was_said(chat_model, monkeypatch, capsys):
    """Responses are shown without control characters, may be cut short by Ctrl-C, and precede the next question."""
    prompts, seeds, real = [], [], TransformersEngine.extend

    def scripted(engine, prompt_ids, begun, *rest):
        seeds.extend(rest[-1])
        prompts.append(tokenizer.decode(prompt_ids[0]))
        if len(prompts) == 3:
            raise KeyboardInterrupt
        begun = real(engine, prompt_ids, begun, *rest)
        begun.tokens[0] = tokenizer("a\x1b[31mb" + "c" * 20 * len(prompts)).input_ids
        return begun

    tokenizer = load_model(chat.Args(model=str(chat_model)))[1]
    monkeypatch.setattr(TransformersEngine, "extend", scripted)
    settings = {"model": str(chat_model), "conversation": True, "max_response_tokens": 32, "system_prompt": "Be brief."}
    talk(monkeypatch, "one\ntwo\n", **settings)
    out = capsys.readouterr().out
    assert "a\\x1b[31mb" in out and "\x1b" not in out and "[stopped]" in out
    assert len(set(seeds)) == len(seeds) == 3, "the same random numbers again"
    assert prompts[0].count("<|im_start|>") == 3 and "step by step" not in prompts[0]
    assert prompts[-1].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none<|im_end|>\n")
    assert "<|im_start|>assistant\na\x1b[31mbccc" in prompts[2] and "user\ntwo<|im_end|>" in prompts[2]
    assert "--conversation is for chat models" in ended(capsys, lambda: talk(monkeypatch, "", conversation=True))
    assert "--prompt must contain" in ended(capsys, lambda: talk(monkeypatch, "", prompt="?"))


def test_a_question_that_is_too_long_is_forgotten(chat_model, monkeypatch, capsys):
    """A question beyond the model's context is refused, and the conversation goes on without it."""
    prompts = []
    real = TransformersEngine.extend
    monkeypatch.setattr(
        TransformersEngine, "extend", lambda engine, ids, *rest: (prompts.append(ids[0]), real(engine, ids, *rest))[1]
    )
    settings = {"model": str(chat_model), "conversation": True, "max_response_tokens": 4}
    talk(monkeypatch, "word " * 5000 + "\nTom has 5 apples\n", **settings)
    assert capsys.readouterr().out.count("this cannot be read: a prompt of ") == 1
    tokenizer = load_model(chat.Args(model=str(chat_model)))[1]
    assert prompts and all(tokenizer.decode(ids).count("<|im_start|>user") == 1 for ids in prompts)
