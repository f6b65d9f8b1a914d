"""Only numbers earn points: whatever else a submission prints or writes earns none."""

import json
import math
import platform

from notebooks.exercises.exercises import BY_NAME, EXERCISES, FILES, functions, solution_path
from notebooks.exercises.grade import grade_function
from notebooks.exercises.sandbox import ALLOWED, Sandbox, readable
from notebooks.exercises.verdict import passed, verdict
from tools.scripts import ROOT

import pytest
from solutions import HEAD, answers, solve, solved_loop

NAME = "dr_grpo.compute_advantages"
ANY = "def cheat(*a, **k):\n    {}\nglobals().update(dict.fromkeys({names!r}, cheat))\n"
NAMES = sorted({exercise.function for exercise in EXERCISES})
COUNT = len(answers(NAME)["cases"])


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(seconds=10) as made:
        yield made


def raw(data):
    """Code that writes to every open file and exits."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (
        f"import os\n    for fd in range(3, 64):\n        try: os.write(fd, {text.encode()!r})\n"
        "        except OSError: pass\n    os._exit(0)"
    )


def one(values, shape, dtype="float64"):
    return {"outputs": [{"values": values, "shape": shape, "dtype": dtype}]}


PATCH = "import sys\n    sys.modules['runner'].{}\n    return a[0]"
# Function bodies, used for every function that an exercise asks for.
CHEATS = {
    "an empty problem": "from runner import WrongResult\n    raise WrongResult('')",
    "a problem of spaces": "from runner import WrongResult\n    raise WrongResult(' ')",
    "an empty error": "raise type('', (Exception,), {'__str__': lambda self: ''})()",
    "an empty exit": "raise SystemExit('')",
    "an interrupt": "raise KeyboardInterrupt",
    "no body": "pass",
    "a generator": "yield a[0]",
    "the input": "return a[0], {}",
    "not a number": "return a[0] * float('nan'), {}",
    "infinite": "return a[0] / 0, {}",
    "zeros": "return a[0] * 0, {}",
    "an empty tensor": "import torch\n    return torch.zeros(0), {}",
    "complex numbers": "return a[0] * 1j, {}",
    "a sparse tensor": "return (a[0] * 1.0).to_sparse(), {}",
    "an object that equals everything": "return type('E', (), {'__eq__': lambda *a: True})()",
    "the cases emptied": "import sys\n    f = sys._getframe(1)\n    f.f_locals['case'].clear()\n    return a[0]",
    "the weights zero": "import sys\n    c = sys._getframe(1).f_locals['case']\n"
    "    if 'weights' in c: c['weights'] = {'float64': [[0.0]]}\n    return a[0] * 0, {}",
    "the list of cases emptied": "import sys\n    sys._getframe(2).f_locals['cases'].clear()\n    return a[0]",
    "the results emptied": "import sys\n    sys._getframe(2).f_locals['results'].clear()\n    return a[0]",
    "run_case patched": PATCH.format("run_case = lambda *a: {'outputs': []}"),
    "run patched": PATCH.format("run = lambda *a: []"),
    "plain patched": PATCH.format("plain = lambda x: {'dtype': 'float64', 'shape': [], 'values': [float('nan')]}"),
    "JSON patched": "import json\n    json.dumps = lambda x: '[{\"problem\": \"\"}]'\n    return a[0]",
    "JSON of nothing": "import json\n    json.dumps = lambda x: ''\n    return a[0]",
    "gradients patched": "import torch\n    torch.autograd.grad = lambda *a, **k: (a[0],)\n    return a[0]",
    **{
        f"written: {str(data)[:40]}": raw(data)
        for data in (
            [], {}, None, True, 0, "", "[]", [{}], [None], [[]], ["problem"], "[NaN]", "+[]",
            [{"problem": ""}], [{"problem": None}], [{"problem": False}], [{"problem": []}], [{"problem": ""}] * COUNT,
            [{"outputs": []}] * COUNT, [{"outputs": {}}] * COUNT, [{"outputs": None}] * COUNT,
            [{"passed": True}] * COUNT,
            [one([math.nan] * 60, [6, 10])] * COUNT, [one([], [0])] * COUNT, [one([], [10**30, 0])] * COUNT,
            [one("", [0])] * COUNT, [one([1], [-1, -1])] * COUNT, [one([1], [True])] * COUNT, "[" + "1" * 5000 + "]",
        )
    },
}  # fmt: skip


# More cheats: lying tensors, patched modules, forged endings, other processes' memory.
SUBCLASS = "import torch\n    class T(torch.Tensor):\n        {}\n    return torch.zeros_like(a[0]).as_subclass(T)"
CALLER = "import sys\n    f = sys._getframe({})\n    {}\n    return a[0] * 0"
CHEATS |= {
    "a lying __torch_function__": SUBCLASS.format("__torch_function__ = classmethod(lambda *a, **k: True)"),
    "a lying __eq__": SUBCLASS.format("__eq__ = __ne__ = __lt__ = __gt__ = lambda *a: True"),
    "a lying tolist": SUBCLASS.format("tolist = lambda s: [0.0] * 60\n        double = flatten = detach = lambda s: s"),
    "a lying shape": SUBCLASS.format("shape = property(lambda s: (6, 10))\n        dtype = property(str)"),
    "a lying product": SUBCLASS.format("__mul__ = __rmul__ = lambda self, other: other"),
    "a lying class": "import torch\n    return type('N', (), {'__class__': property(lambda s: torch.Tensor)})()",
    "comparisons patched": "import sys\n    for m in list(sys.modules.values()):\n"
    "        for n in ('allclose', 'equal', 'isclose', 'isfinite'):\n"
    "            if hasattr(m, n): setattr(m, n, lambda *a, **k: True)\n    return a[0]",
    "builtins patched": "import builtins\n    builtins.all = builtins.any = lambda *a: True\n    return a[0]",
    "numbers patched": "import builtins\n    builtins.float = builtins.int = lambda *a: 0\n    return a[0]",
    "modules replaced": "import sys, types\n    for n in ('verdict', 'answers', 'grade', 'runner', 'json'):\n"
    "        sys.modules[n] = types.ModuleType(n)\n    return a[0]",
    "the encoder patched": "import json.encoder\n    json.JSONEncoder.encode = lambda *a: '[]'\n    return a[0]",
    "written at exit": "import atexit, os\n    atexit.register(os.write, 1, b'+[]')\n    return a[0]",
    "a finalizer": "import os\n    class F:\n        def __del__(self): os.write(3, b'[]')\n    F()\n    return a[0]",
    "a thread": "import threading\n    threading.Thread(target=int).start()\n    return a[0]",
    "exit code 0": "import ctypes\n    ctypes.CDLL(None)._exit(0)",
    "a signal handler": "import signal\n    signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n    return a[0]",
    "the environment": "import os\n    os.environ.update(GRADER='passed', PYTHONPATH='.')\n    return a[0]",
    "deep recursion": "import sys\n    sys.setrecursionlimit(10**9)\n    return cheat(*a)",
    "many numbers": "import torch\n    return torch.zeros(1 << 18)",
    "many dimensions": "return a[0][(None,) * 60]",
    "a tensor without storage": "import torch\n    return torch.empty(6, 10, device='meta', dtype=torch.double)",
    "a nested tensor": "import torch\n    return torch.nested.nested_tensor([a[0][0], a[0][1]])",
    "a parameter": "import torch\n    return torch.nn.Parameter(a[0] * 0)",
    "found by gc": "import gc\n    for x in gc.get_objects():\n"
    "        if isinstance(x, dict) and 'right' in x: return x['right']\n    return a[0]",
    "found in frames": "import sys\n    f = sys._getframe()\n    while f:\n        for v in f.f_locals.values():\n"
    "            if isinstance(v, dict) and 'outputs' in v: return v\n        f = f.f_back\n    return a[0]",
    "a trace": "import sys\n    sys.settrace(lambda f, *a: f.f_locals.clear())\n    return a[0]",
    "another case": CALLER.format(1, "f.f_locals['case'].update(inputs=[], kind='token_weights')"),
    "one case": CALLER.format(2, "del f.f_locals['cases'][1:]"),
    "results in results": CALLER.format(2, "f.f_locals['results'].append(f.f_locals['results'])"),
    "correct once": "cheat.n = getattr(cheat, 'n', 0) + 1\n"
    "    return a[0] - (a[0].mean(1, keepdim=True) if cheat.n == 1 else 0)",
    "in half precision": "return (a[0] - a[0].mean(1, keepdim=True)).half()",
    "memory overwritten": "import ctypes\n    ctypes.memset(id(a[0]), 0, 64)\n    return a[0]",
    "the pipe closed": "import os\n    os.closerange(3, 64)\n    return a[0]",
    "the parent ended": "import os, signal\n    os.kill(os.getppid(), signal.SIGKILL)\n    return a[0]",
    "a word": "return 'correct'",
    "numbers as text": PATCH.format("plain = lambda x: {'dtype': 'float64', 'shape': [1], 'values': ['nan']}"),
}  # fmt: skip


# More cheats: faked torch results, forged and huge outputs, code that breaks the compiler, sleeping.
NUMBERS = "[" + ", ".join(["1e999"] * 60) + "]"
CHEATS |= {
    "tolist patched": "import torch\n    torch.Tensor.tolist = lambda s: [0.0] * s.numel()\n    return a[0] * 0",
    "torch.tensor patched": "import torch, sys\n"
    "    sys.modules['runner'].tensor = lambda v: torch.zeros(6, 10, dtype=torch.double)\n    return a[0] * 0, {}",
    "double patched": "import torch\n    torch.Tensor.double = lambda s: torch.ones_like(s)\n    return a[0]",
    "the sandbox patched": "import sys\n    m = sys.modules['__main__']\n"
    "    m.run_request = m.collect = m.answer = lambda *x: '[]'\n    return a[0]",
    "an earlier reply": "import sys\n    f = sys._getframe()\n    while f:\n"
    "        if 'reply' in f.f_locals: return 1\n        f = f.f_back\n    return a[0]",
    "infinite numbers": raw('[' + ', '.join([f'{{"outputs": [{{"values": {NUMBERS}, "shape": [6, 10], '
                                             '"dtype": "float64"}]}'] * COUNT) + ']'),
    "half a result": raw('[{"outputs": ['),
    "a result before the result": "import os\n    for fd in range(3, 64):\n        try: os.write(fd, b'[]')\n"
    "        except OSError: pass\n    return a[0]",
    "vmap": "import torch\n    return torch.vmap(lambda x: x)(a[0])",
    "a float that equals everything": "import torch\n    X = type('X', (float,), {'__eq__': lambda *x: True})\n"
    "    return torch.full_like(a[0] * 1.0, X(0))",
    "an instance of everything": "M = type('M', (type,), {'__instancecheck__': lambda *x: True})\n"
    "    return M('D', (dict,), {})()",
    "isinstance patched": "import builtins\n    builtins.isinstance = lambda *x: True\n"
    "    return type('O', (), {'dtype': 'float64', 'shape': (6, 10)})()",
    "gradients off": "import torch\n    torch.set_grad_enabled(False)\n"
    "    torch.Tensor.requires_grad = property(lambda s: True)\n    return a[0]",
    "a raw thread": "import _thread\n    _thread.start_new_thread(int, ())\n    return a[0]",
    "asleep": "import time\n    time.sleep(1e9)",
    "limits raised": "import resource\n    resource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))\n    return a[0]",
    "a surrogate": "raise ValueError('\\ud800' * 9 + chr(0x202e) + 'correct')",
    "megabytes of praise": raw(json.dumps([{"problem": "correct " * 4000}])),
    "a type of megabytes": PATCH.format(
        "plain = lambda x: {'dtype': 'f' * 300000, 'shape': [6, 10], 'values': [0.0] * 60}"
    ),
}  # fmt: skip
# Whole files.
FILES_OF_CHEATS = {
    "the repository": f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom notebooks.exercises import exercises\n",
    "a module in memory": "import sys, types\nsys.modules['dr_grpo'] = types.ModuleType('dr_grpo')\n",
    "every name": "def __getattr__(name):\n    return lambda *a, **k: a[0]\n",
    "deep code": f"x = {'-' * 100_000}1\n",
    "a long sum": f"x = {'+'.join('1' * 100_000)}\n",
}


@pytest.mark.parametrize("cheat", FILES_OF_CHEATS)
def test_files_of_cheats_get_nothing(cheat, sandbox, tmp_path):
    (tmp_path / "dr_grpo.py").write_text(FILES_OF_CHEATS[cheat])
    mark = grade_function(BY_NAME[NAME], tmp_path, sandbox, 3)
    assert mark.points == 0 and mark.reason


def test_a_reason_is_short_and_printable(sandbox, tmp_path):
    """Whatever a process writes, the reason is short and printable, because it goes into all of the grader's files."""
    for cheat in ("megabytes of praise", "a type of megabytes", "a surrogate"):
        (tmp_path / "dr_grpo.py").write_text(ANY.format(CHEATS[cheat], names=NAMES))
        reason = grade_function(BY_NAME[NAME], tmp_path, sandbox, 3).reason
        assert reason.isprintable() and len(reason.encode()) < 4000


SEARCH = """
import ctypes
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
def compute_advantages(rewards):
    page, old, seen, found = libc.sbrk(0) & ~4095, ctypes.create_string_buffer(8), 0, 0
    while True:  # down the heap, until the kernel cannot read a signal mask there
        page -= 4096
        if libc.syscall({call}, 0, ctypes.c_void_p(page), old, 8):
            raise ValueError(f"{{seen > 1 << 20}} {{found}}")
        libc.syscall({call}, 2, old, None, 8)
        seen, found = seen + 4096, found + (b"written by " + b"ann" in ctypes.string_at(page, 4096))
"""


def test_no_memory_of_another_student(tmp_path):
    """A submission that searches all inherited memory finds nothing of the file graded before it."""
    text = HEAD + "# a long comment\n" * 5000 + "# written by ann\n" + functions("dr_grpo")["compute_advantages"]
    call = ALLOWED[platform.machine()][1]["rt_sigprocmask"]
    with Sandbox() as fresh:
        cases = answers(NAME)["cases"]
        for _ in range(3):
            assert passed(fresh.run({"dr_grpo": text}, "dr_grpo", "compute_advantages", cases), answers(NAME))
        (result,) = fresh.run({"dr_grpo": SEARCH.format(call=call)}, "dr_grpo", "compute_advantages", cases[:1])
    assert result["problem"] == "it ends with ValueError: True 0"


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_get_nothing(cheat, sandbox):
    files = {"dr_grpo": ANY.format(CHEATS[cheat], names=NAMES)}

    results = sandbox.run(files, "dr_grpo", "compute_advantages", answers(NAME)["cases"])
    assert not passed(results, answers(NAME)) and verdict(results, answers(NAME))


FORGED = "optimizer.gradients += [{} for _ in range(args.steps * args.update_epochs * args.num_minibatches)" + (
    " for p in policy.parameters()]\n    return torch.zeros(args.steps)"
)
# Bodies of a whole loop.
TRAIN = "return solution.train(policy, engine, data, optimizer, args)"
FRAME = "import sys\n    sys._getframe({}).f_locals{}.clear()\n    return torch.zeros(2)"
LOOP_CHEATS = {
    "no updates": "return torch.zeros(args.steps)",
    "no step": "args.steps = 0\n    return torch.zeros(0)",
    "gradients of zeros": FORGED.format("torch.zeros_like(p)"),
    "gradients that are no numbers": FORGED.format("p * float('nan')"),
    "gradients that are no tensors": "optimizer.gradients += ['right'] * 32\n    return torch.zeros(args.steps)",
    "weights for gradients": FORGED.format("p"),
    "nothing recorded": f"optimizer.step = lambda: None\n    {TRAIN}",
    "the policy zeroed": f"for p in policy.parameters(): p.data.zero_()\n    {TRAIN}",
    "easier data": f"data.sample = lambda step: [type(data).sample(data, 1)[0]] * data.P\n    {TRAIN}",
    "the world patched": "import runner\n    runner.run_loop = lambda *a: (torch.zeros(2), [])\n    return 0",
    "no parameters": FRAME.format(1, "['weights']"),
    "no world": FRAME.format(2, "['case']['world']"),
}
LOOP = "import torch\nimport solution\ndef train(policy, engine, data, optimizer, args):\n    {}\n"


def loop_files(body):
    """Files with this loop body and a correct loop."""
    grpo = HEAD + "\n\n".join(functions("grpo").values())
    return {
        "loop": LOOP.format(body),
        "solution": solution_path("loop").read_text(),
        "grpo": "from __future__ import annotations\n" + grpo,
    }


@pytest.mark.parametrize("cheat", LOOP_CHEATS)
def test_cheats_in_a_loop_get_nothing(cheat, sandbox):
    known = answers("loop.train")
    results = sandbox.run(loop_files(LOOP_CHEATS[cheat]), "loop", "train", known["cases"])
    assert not passed(results, known) and verdict(results, known)


def test_loops_in_other_forms_pass(sandbox):
    """Loops with one-row micro-batches and a hand-written clip, or that call another file's loop, pass."""
    known, text = answers("loop.train"), solution_path("loop").read_text()
    whole = text[text.index("                logp = response_logps") : text.index("                optimizer.step()")]
    parts = """                for row, w in zip(rows, token_weights(mask[rows])):
                    one = row[None]
                    logp = response_logps(policy(tokens[one]), tokens[one], prompt_lengths[one], mask[one])
                    ratio = (logp - old_logp[one]).exp()
                    bounded = ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)
                    A = advantages[one]
                    (-(w * tis[one] * torch.minimum(ratio * A, bounded * A)).sum()).backward()
                norm = sum((p.grad**2).sum() for p in policy.parameters()) ** 0.5
                for p in policy.parameters():
                    p.grad *= min(1.0, args.max_grad_norm / norm)
"""
    files = loop_files("return solution.train(policy, engine, data, optimizer, args)")
    for loop in (files["loop"], text.replace(whole, parts)):
        assert verdict(sandbox.run(files | {"loop": loop}, "loop", "train", known["cases"]), known) is None


@pytest.mark.parametrize(
    ("line", "points"), [('CHANGE = "gspo"', 3), ('CHANGE = "maxrl"', 0), ('CHANGE = "ppo"', 0), ("", 0)]
)
def test_the_method_of_a_changed_loop_is_read_from_the_file(line, points, sandbox, tmp_path):
    """CHANGE is read without running the file, and the loop must train the method that it names."""
    solve(tmp_path, ["grpo", "gspo", "maxrl"])
    (tmp_path / "loop.py").write_text(solved_loop("gspo").replace('CHANGE = "gspo"', line))
    mark = grade_function(BY_NAME["loop.changed"], tmp_path, sandbox, 3)
    assert mark.points == points
    assert bool(mark.reason) == (points == 0) and ("CHANGE does not name one of" in mark.reason) == (
        line[10:13] in ("ppo", "")
    )


@pytest.mark.parametrize("cheat", ["an empty problem", "no body", "the input", "the weights zero"])
def test_a_folder_of_cheats_gets_nothing(cheat, sandbox, tmp_path):
    """Every cheating function gets 0 points and a reason from the grader."""
    for script in FILES:
        (tmp_path / f"{script}.py").write_text(ANY.format(CHEATS[cheat], names=NAMES) + 'CHANGE = "gspo"\n')
    marks = [grade_function(exercise, tmp_path, sandbox, 3) for exercise in EXERCISES]
    assert not any(mark.points for mark in marks) and all(mark.reason.strip() for mark in marks)


def test_a_pass_needs_all_numbers():
    """Missing results and wrong shapes, types or numbers do not pass, and get a reason."""
    known = answers(NAME)
    right = known["right"]
    assert passed(right, known) and verdict(right, known) is None
    (first,) = right[0]["outputs"]
    for wrong in (
        [], right[:-1], [*right, right[0]], [{}] * len(right), [{"outputs": []}] * len(right),
        [{"outputs": [first, first]}, *right[1:]],
        *([{"outputs": [first | part]}, *right[1:]]
          for part in ({"dtype": "float16"}, {"shape": [10, 6]}, {"values": [math.nan, *first["values"][1:]]},
                       {"values": [first["values"][0] + 0.01, *first["values"][1:]]})),
        [*right[:-1], {"problem": ""}],
    ):  # fmt: skip
        assert not passed(wrong, known) and verdict(wrong, known)
    assert not passed([], known | {"right": [], "cases": []})


def test_what_the_process_writes_is_parsed_or_refused():
    """Only typed numbers or a problem's text are read; anything else is refused, and extra keys are dropped."""
    result = one(["1", 2.5], [2.0], 7) | {"passed": True}
    assert readable(json.dumps([result]), 1) == [one([1.0, 2.5], [2], "7")]
    assert readable('[{"problem": null, "outputs": []}]', 4) == [{"problem": "None"}]
    for text in ("", "null", "[]", "[1]", '{"a": 1}', '[{"outputs": [1]}]', "[" * 99_999, '[{"outputs": 1e999}]'):
        assert readable(text, 1) == [{"problem": "its process wrote something that is not a result."}]
    assert "not a result" in readable(json.dumps([result]), 2)[0]["problem"], "a case without a result"
