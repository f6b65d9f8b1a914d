"""Similarity finds disguised copies, ranks honest forms below them, and survives any file."""

import os
from itertools import combinations

from notebooks.exercises import similar
from notebooks.exercises.exercises import BY_NAME, functions
from notebooks.exercises.similar import SCRIPT, Args, compare, find_function, similarity
from notebooks.exercises.variants import variant, variants

import pytest
from hand_written import GAE_FORWARD_SUM, MASK_FORM
from solutions import solve, written

PPO, GRPO = "ppo.compute_advantages", "grpo.policy_loss"
# GAE_FORWARD_SUM with new names and comments, reordered statements, and swapped factors.
GAE_DISGUISED = """valid = mask.to(values.dtype)  # my own idea
size, steps = values.shape
later = torch.cat([valid * values, torch.zeros_like(values[:, :1])], dim=1)[:, 1:]
td = (rewards + later * args.gamma - values) * valid
parts = [sum((args.gae_lambda * args.gamma) ** (j - i) * td[:, j] for j in range(i, steps)) for i in range(steps)]
gain = valid * torch.stack(parts, dim=1)
return gain, values + gain"""
GAE_BACKWARD = """keep = mask.double()
advantages, last, after = torch.zeros_like(rewards), torch.zeros(len(values)), torch.zeros(len(values))
for t in range(values.shape[1] - 1, -1, -1):
    error = rewards[:, t] + args.gamma * after - values[:, t]
    last = keep[:, t] * (error + args.gamma * args.gae_lambda * last)
    after = torch.where(mask[:, t], values[:, t], after)
    advantages[:, t] = last
return advantages, (advantages + values) * keep"""
CLIP_FORM = """change = (logp - old_logp).exp()
inside = change.clip(min=1 - args.clip_eps, max=1 + args.clip_eps)
return torch.maximum(-change * advantages, -inside * advantages), {"ratio": change.detach()}"""


def made(name, body):
    return find_function(written(name, body), BY_NAME[name].function)


def test_a_disguised_copy_is_the_same():
    """A disguised copy has similarity 1; the honest forms share a seventh to three fifths of their expressions."""
    assert similarity(made(PPO, GAE_FORWARD_SUM), made(PPO, GAE_DISGUISED)) == 1
    honest = [made(PPO, GAE_FORWARD_SUM), made(PPO, GAE_BACKWARD)]
    honest.append(find_function("\n\n".join(functions("ppo").values()), "compute_advantages"))
    others = [similarity(a, b) for a, b in combinations(honest, 2)]
    others += [similarity(made(GRPO, MASK_FORM), made(GRPO, CLIP_FORM))]
    assert 0.1 < min(others) < 0.2 and max(others) < 0.65


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('def f(a: int) -> int:\n    "A docstring."\n    b = a * 2  # doubled\n    return torch.exp(b) + a', True),
        ("def f(y):\n    x = 2 * y\n    return y + torch.exp(x)", True),
        ("def f(y):\n    x = 2 * y\n    return torch.log(x) + y", False),
        ("def f(y):\n    x = 2 * y\n    return torch.exp(y) + torch.exp(x)", False),
        ("def f(y):\n    x = 3 * y\n    return torch.exp(x) + y", False),
        ("def f(y):\n    x = y / 2\n    return torch.exp(x) + y", False),
    ],
)
def test_what_counts(text, same):
    plain = find_function("def f(x):\n    y = x * 2\n    return torch.exp(y) + x", "f")
    assert (similarity(plain, find_function(text, "f")) == 1) == same


def test_order_of_statements():
    """The order of statements does not count, even inside a loop, but moving one out of the loop does."""
    loop = "def f(x):\n    for i in x:\n        a = g(i)\n        b = h(i, 2)\n    return a"
    moved = "def f(x):\n    for i in x:\n        b = h(i, 2)\n        a = g(i)\n    return a"
    outside = "def f(x):\n    for i in x:\n        a = g(i)\n    b = h(i, 2)\n    return a"
    one, other, different = (find_function(text, "f") for text in (loop, moved, outside))
    assert similarity(one, other) == 1 > similarity(one, different)


def test_helpers_belong_to_the_function_that_calls_them():
    """A function includes the helpers that it calls, except those given in the handout."""
    text = "def f(x):\n    return g(x)\n\ndef g(x):\n    return h(x) * f(x)\n\ndef h(x):\n    return x ** 3\n"
    whole, part = find_function(text, "f"), find_function(text, "f", ["h"])
    assert "def h" in whole.source and "def h" not in part.source and "def g" in part.source
    assert whole.shapes - part.shapes == find_function(text, "h").shapes


def classroom(folder, **bodies):
    """Students' files with their own body for PPO's advantages; all other functions are the script's."""
    for name, body in bodies.items():
        (folder / name).mkdir(parents=True)
        solve(folder / name, ["ppo", "maxrl"])
        if body:
            (folder / name / "ppo.py").write_text(written(PPO, body))
    return folder


def test_the_list(tmp_path, capsys):
    """The copies come first; short functions and those like the script's are not paired."""
    bodies = {"ann": GAE_FORWARD_SUM, "bob": GAE_DISGUISED, "cyd": GAE_BACKWARD, "dee": None, "eli": None}
    folder = classroom(tmp_path / "class", **bodies)
    (folder / "\x1b[2J").mkdir()
    (folder / "\x1b[2J" / "ppo.py").write_text(written(PPO, GAE_FORWARD_SUM + "  # \x1b[2J"))
    similar.main(Args(folder, out=tmp_path / "similar.md", top=4))
    screen, page = capsys.readouterr().out, (tmp_path / "similar.md").read_text()
    pairs, with_script = screen.split("Submissions and the model solutions")
    first = [line.split("  ")[1:] for line in pairs.splitlines()[1:]]
    assert [line[0] for line in first] == ["1.00"] * 3
    assert {line[2] for line in first} == {"ann and bob", r"\x1b[2J and ann", r"\x1b[2J and bob"}
    assert "dee" not in pairs and "maxrl" not in pairs and "token_weights" not in screen
    assert with_script.count(f"1.00  ppo.compute_advantages  dee and {SCRIPT}") == 1
    assert page.count("    gain = valid * torch.stack(parts, dim=1)\n") == 2
    assert "A high similarity proves nothing" in page
    assert all(c.isprintable() or c == "\n" for c in screen + page)


def test_equal_pairs_that_are_not_listed(tmp_path, capsys):
    """Equal pairs beyond the limit are counted, so that the list does not look complete."""
    folder = classroom(tmp_path / "class", ann=None, bob=None, cyd=None)
    similar.main(Args(folder, top=2))
    out = capsys.readouterr().out.splitlines()
    (found,) = (i for i, line in enumerate(out) if line.startswith("Submissions and the model solutions"))
    assert out[1:found] == ["  none"] and [line[:8] for line in out[found + 1 :]] == [
        "  1.00  ",
        "  1.00  ",
        "  7 more",
    ]


def test_functions_of_a_key(tmp_path, capsys):
    """A key's functions are compared only when the key is given."""
    for name in ("ann", "bob"):
        (tmp_path / "class" / name).mkdir(parents=True)
        text = "\n\n".join(made.text for made in variants("secret"))
        (tmp_path / "class" / name / "variants.py").write_text(text + "\nimport math\n" * (name == "bob"))
    for key, function in ((None, None), ("secret", variant("secret", "returns").function)):
        similar.main(Args(tmp_path / "class", key=key))
        out = capsys.readouterr().out
        assert (function is None) == ("variants." not in out)
        assert function is None or f"1.00  variants.{function}  ann and {SCRIPT}" in out


def test_size(tmp_path):
    """`least` applies to the submission's number of expressions, not to the script's."""
    exercise, model = BY_NAME[PPO], find_function("def f(x):\n    return x", "f")
    short = find_function("def f(x):\n    return x + 1", "f")
    size = short.shapes.total()
    assert [pair.names for pair in compare(exercise, {SCRIPT: model, "a": short}, size)] == [("a", SCRIPT)]
    assert compare(exercise, {SCRIPT: model, "a": short}, size + 1) == []
    assert size == 2  # its sum and its return


@pytest.mark.parametrize(
    "text",
    ["def", "\0", "x = 1", *(f"x = {part * 99999}1" for part in ("(", "-", "9", "not ")), "x = x" + "[0]" * 99999],
)
def test_files_that_cannot_be_compared(text, tmp_path, capsys):
    folder = classroom(tmp_path / "class", ann=GAE_FORWARD_SUM, bob=GAE_DISGUISED, cyd=None)
    (folder / "cyd" / "ppo.py").write_text(text)
    (folder / "dee").mkdir()
    os.mkfifo(folder / "dee" / "ppo.py")
    similar.main(Args(folder))
    out = capsys.readouterr()
    assert "1.00  ppo.compute_advantages  ann and bob" in out.out and out.err == ""
    assert "ppo.compute_advantages  cyd" not in out.out and "maxrl.compute_advantages  cyd" in out.out


def test_nothing_is_run(tmp_path):
    folder = classroom(tmp_path / "class", ann=f"open({str(tmp_path / 'ran')!r}, 'w')\n{GAE_FORWARD_SUM}", bob=None)
    (folder / "bob" / "ppo.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    similar.main(Args(folder))
    assert not (tmp_path / "ran").exists()


def test_a_long_file_is_named(tmp_path, capsys):
    """A file too long to compare in reasonable time is named, so that it cannot hide a copy."""
    for name, padding in (("ann", 0), ("bob", 1 << 16)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gmpo.py").write_text(functions("gmpo")["policy_loss"] + "\n#" + "x" * padding)
    similar.main(similar.Args(tmp_path))
    out = capsys.readouterr().out
    assert (
        "bob: gmpo.py is not compared, because it is longer than 64 KiB.\n" in out and "ann" in out.split("64 KiB")[1]
    )
    assert out.count("bob") == 1
