"""The site says about the scripts what they say: docstrings, settings, differences, recorded tensors."""

import re
from html import unescape

from benchmarks.effects import EFFECTS
from tools import compare
from tools.scripts import load, parents, script_path
from tools.site import lines, reading, scripts

import pytest
import torch

SCRIPTS = list(parents())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_docstring_is_taken_apart_without_loss(name):
    parts = scripts.parts(name)
    assert parts["title"] and parts["differs"] and scripts.change(name).endswith(".")
    assert re.fullmatch(r"(19|20)\d\d", scripts.year(name)), f"{name} has no year"
    texts = [parts["title"], parts["where"], parts["head"], parts["formula"], *parts["before"], *parts["differs"]]
    kept = set(" ".join([*texts, *parts["details"]]).split())
    # Without formulas, commands and tables, which are elsewhere on the page.
    prose = re.sub(r"^(    .*|\|.*)$", "", compare.docstring(script_path(name)), flags=re.M)
    lost = [w for w in prose.split() if w not in kept | {"-"} and w.rstrip(".:") not in kept]
    assert not lost, f"{name} loses {lost}"


def test_parts_of_one_docstring():
    parts = scripts.parts("dr_grpo")
    assert parts["title"] == "Dr. GRPO, GRPO Done Right" and "2503.20783 (Mar 2025)" in parts["where"]
    assert len(parts["differs"]) == 2 and parts["differs"][0].startswith("no division by |o_i|: with it, a long")
    assert any(text.startswith("Some code drops only the std") for text in parts["details"])
    assert scripts.change("dr_grpo") == "No division by |o_i|; no division by the group's std."
    assert scripts.papers("ppo") == ["1707.06347", "1506.02438"] and scripts.year("ppo") == "2017"
    assert parts["command"] == "python dr_grpo.py"
    assert scripts.parts("opd")["command"].count("\n") == 1, "a teacher, then the student"


def test_citations_have_the_papers_titles_and_years():
    def title(name):
        return re.findall(r"title = {(.+?)},", scripts.citation(name))

    assert "eprint = {2503.20783}" in scripts.citation("dr_grpo") and "year = {2025}" in scripts.citation("dr_grpo")
    assert title("dr_grpo") == ["Understanding R1-Zero-Like Training"] and title("opd") == ["GKD"]
    assert title("ppo") == ["PPO, Proximal Policy Optimization", "GAE"]
    assert title("raft") == ["RAFT, Reward-ranked Fine-Tuning", "A Minimalist Approach"]
    assert title("calculator")[:2] == ["Search-R1", "ToRL"]
    assert scripts.citation("reinforce").startswith("@article{reinforce1992,\n  author = {Williams}")
    for name in SCRIPTS:
        assert scripts.citation(name) and len(title(name)) == len(set(title(name))), f"{name} has a title twice"


@pytest.mark.parametrize("name", SCRIPTS)
def test_implementation_details_are_more_than_the_tis_sentence(name):
    details = [text for text in scripts.parts(name)["details"] if text]
    said = " ".join(details).replace("Not in the formula: each token's policy loss is multiplied by its TIS weight", "")
    assert len(said) > 40, f"{name} has no implementation details"


def test_remarks_are_what_the_code_says_at_that_line():
    found = scripts.remarks("dapo")
    lines_of = script_path("dapo").read_text().splitlines()
    comments = [
        (function, line, text) for function, line, text in found if lines_of[line - 1].lstrip().startswith("# ")
    ]
    assert len(comments) >= 4
    for _, line, text in comments:
        assert text.startswith(lines_of[line - 1].strip("# "))
    said = " ".join(text for function, _, text in found if function == "main")
    assert "DAPO: dynamic sampling." in said and "until there are P of them. Only correctness counts" in said
    assert "Before each step" not in said, "grpo.py says it too"
    assert any(f == "policy_loss" and text.startswith("On-policy, every ratio is 1") for f, _, text in found)
    assert ("compute_advantages", "The paper has no ε; 1e-6 ") in {(f, text[:25]) for f, _, text in found}


def test_sentences():
    text = "As in Eq. 3 (Sec. 4 and App. D). The std is G's: verl has it, Dr. GRPO has none. methods/a.py is b."
    assert [len(part) for part in scripts.sentences(text)] == [32, 47, 18]


@pytest.mark.parametrize("name", ["grpo", "r1", "spin"])
def test_differences_turn_one_script_into_another(name):
    before = [*SCRIPTS[: SCRIPTS.index(name)]]
    assert list(lines.differences(name)) == before, "each pair is stored once"
    for other, ops in lines.differences(name).items():
        text, target = list(compare.body(other)), list(compare.body(name))
        for i1, i2, j1, j2 in reversed(ops):
            text[i1:i2] = target[j1:j2]
        assert text == target, f"{other} {name}"


def test_a_comparison_is_the_mirror_image_of_its_reverse():
    for a, b in (("grpo", "dapo"), ("r1", "spin"), ("vapo", "reinforce")):
        there, back = ([op[1:] for group in compare.hunks(*pair) for op in group] for pair in ((a, b), (b, a)))
        assert there and there == [(*op[2:], *op[:2]) for op in back]
    assert (
        compare.spans("x = a + 1", "x = b + 1") == compare.spans("x = b + 1", "x = a + 1")[::-1] == ([(4, 5)], [(4, 5)])
    )


def test_lines_are_stored_once_and_numbers_give_them_back():
    html = [*lines.numbers()]
    assert len(html) < sum(len(lines.code(name)) for name in SCRIPTS) / 3
    for name in ("grpo", "spin"):
        text = script_path(name).read_text().splitlines()
        shown = [re.sub(r"<[^>]+>", "", html[i]) for i in lines.numbered(name)]
        assert [unescape(line) for line in shown] == text
        assert text[lines.below(name) - 1].endswith('"""'), "the docstring's last line"


def test_marks_cover_the_words_that_differ():
    mine, other = "    return mask / len(mask)", "    return mask / (len(mask) * args.max_response_tokens)"
    left, right = compare.spans(mine, other)
    kept = [line for line, parts in ((mine, left), (other, right))]
    for k, parts in enumerate((left, right)):
        for start, end in reversed(parts):
            kept[k] = kept[k][:start] + kept[k][end:]
    assert kept[0].split() == kept[1].split(), f"beside the marks the lines are {kept}"
    assert compare.spans(mine, "") == ([], []) and compare.spans("abc", "x = y(z)") == ([], [])


def test_settings_have_range_default_and_help():
    (title, own), *shared = scripts.settings("gspo")
    assert title == "GSPO" and shared[0][0] == "Training" and len(shared) == 4
    (low,) = [item for item in own if item["flag"].startswith("--clip-eps-low")]
    assert low["default"] == "0.0003" and low["range"] == "> 0" and "ε_low" in low["help"]
    flags = {item["flag"].split()[0] for _, items in scripts.settings("gspo") for item in items}
    assert {"--lr", "--model", "--clip-eps-high", "--eval-every"} <= flags
    assert len(flags) == len(vars(load("gspo").Args())), "a setting is missing or twice"


@pytest.mark.slow
def test_shared_settings_have_the_scripts_own_defaults():
    usual = {item["name"]: item for _, items in scripts.shared_settings() for item in items}
    for name in SCRIPTS:
        shown, args = {item["name"]: item["default"] for item in scripts.shared_of_its_own(name)}, load(name).Args()
        assert set(scripts.ALWAYS) <= set(shown) and shown["num_minibatches"] == str(args.num_minibatches)
        own = {item["name"]: item["default"] for _, items in scripts.settings(name)[1:] for item in items}
        for key, item in usual.items():
            assert shown.get(key, item["default"]) == own[key], f"{name} --{key}: a reader takes it for another"
            assert own[key] == item["default"] or item["most"], f"{key} is not the same in {name}"
    assert usual["num_minibatches"]["default"] == "4" and usual["num_minibatches"]["most"]
    assert "uncorrected" not in usual["num_minibatches"]["help"], "the help of reinforce.py"
    assert usual["eval_every"]["most"] == "" and usual["seed"]["default"] == "1"


@pytest.mark.parametrize(
    "text,value",
    [
        ("ε: a bound. Paper 0.28.", "0.28"),
        ("G: responses. Papers: 8 to 64.", "8 to 64"),
        ("β: weight. Paper 0.03 (TL;DR), 0.10 (HH).", "0.03 (TL;DR), 0.10 (HH)"),
        ("L_cache: tokens. Paper 4096 of 20480; 0 disables it.", "4096 of 20480"),
        ("ε. Usual 0.2 to 0.5.", "usual 0.2 to 0.5"),
        ("β. The authors' code 0.001.", "authors' code 0.001"),
        ("Rounds. The authors' code stops with an error.", ""),
        ("Gradients are scaled down to this norm.", ""),
    ],
)
def test_the_papers_value_is_read_from_the_help(text, value):
    assert scripts.paper_value(text) == value


@pytest.mark.parametrize(
    "name,setting,value",
    [
        ("grpo", "clip_eps", "usual 0.2"),
        ("dapo", "overlong_cache", "4096 of 20480, a fifth"),
        ("ppo", "kl_beta", "usual 0 to 0.05"),
    ],
)
def test_the_scripts_help_has_the_papers_value(name, setting, value):
    shown = {row["name"]: row["paper"] for _, rows in scripts.settings(name) for row in rows}
    assert shown[setting] == value


def test_traits_are_filtered_by_what_several_scripts_share():
    some = [scripts.traits(name) for name in ("reinforce", "grpo", "gmpo", "cispo", "sapo", "scalerl")]
    found = {key: {scripts.coarse(key, traits[key]) for traits in some} for key in scripts.FILTERS}
    assert found["stops"] == {"nothing", "no gradient", "capped", "fades"}
    assert found["updates"] == {"on-policy", "off-policy"}
    assert scripts.coarse("baseline", "group mean") == "group mean"
    assert scripts.coarse("stops", "not computed") == "not computed"


def test_numbers_and_claims_and_lessons_are_found_by_name():
    assert any("gate" in names for names, _ in scripts.metrics("sapo"))
    assert not any("gate" in names for names, _ in scripts.metrics("grpo"))
    assert any("clip_pos" in names for names, _ in scripts.metrics("grpo"))
    assert any(table["page"] == "methods.md" and len(table["rows"]) == 1 for table in scripts.measured("grpo"))
    assert "small_groups_suffice" in scripts.claims_naming("grpo")
    assert "small_groups_suffice" not in scripts.claims_naming("dapo")
    assert ("05_pass_at_k.ipynb", "5. pass@1 or pass@k") in scripts.lessons_naming("maxrl")
    for claim in ("cispo_is_twice_as_fast", "covariance_control_keeps_entropy"):
        assert claim in scripts.claims_naming("dapo"), f"{claim} says DAPO, or takes a function of dapo.py"
    names = ["rloo.compute_advantages", "reinforce.token_weights", "reinforce.policy_loss", "grpo.tis_weight"]
    assert [e.name for e in scripts.exercises("rloo")] == names, "its own, then those of the functions that it inherits"
    assert [e.name for e in scripts.exercises("spin")] == ["reinforce.policy_loss"]
    assert set(scripts.runs()["grpo"]["eval/avg"][0][1:]) == {0.2539}


def test_the_page_of_a_script_shows_its_effect():
    """A script's page has its row of reports/effects.md."""
    for name in EFFECTS:
        pages = [table["page"] for table in scripts.measured(name.split()[0]) if "difference" in table["header"]]
        assert "effects.md" in pages, name


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_line_is_read_once(name, monkeypatch):
    monkeypatch.setattr(reading, "recorded", lambda name: {})
    pieces = reading.segments(name)
    shown = sum(len(piece["code"]) for piece in pieces)
    text = script_path(name).read_text()
    said = reading.notes(text)
    lines = [line for i, line in enumerate(text.splitlines(), 1) if line.strip() and i not in said]
    assert shown == len(lines) and sum(len(p["notes"]) for p in pieces) == sum(map(bool, said.values()))


@pytest.mark.slow
def test_recorded_values_are_those_of_the_run():
    """The page's advantages follow from the rewards that it shows."""
    values = {key: value for line in reading.recorded("grpo").values() for key, value in line.items()}
    rewards = torch.tensor([[float(x) for x in row] for row in values["rewards"]["rows"]])
    expected = load("grpo").compute_advantages(rewards, load("grpo").Args()).flatten().tolist()
    shown = [float(row[0]) for row in values["advantages"]["rows"]]
    assert shown == pytest.approx(expected, abs=6e-3) and values["advantages"]["shape"].startswith("(8, ")
    assert len(values["rollouts"]["list"]) == 8 and len(values["problems"]["list"]) == 2
    assert any(float(x) != 1 for row in values["ratio"]["rows"] for x in row if x != "…"), (
        "the last minibatch is off-policy"
    )
