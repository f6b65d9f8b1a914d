"""Functions of scripts take only what they use, and docstrings give the shapes and the TIS weight."""

import ast

from tools.scripts import parents, script_path

import pytest

SCRIPTS = list(parents())


def top_level_functions(name):
    """A script's functions except `main`."""
    nodes = ast.parse(script_path(name).read_text()).body
    return [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name != "main"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_functions_use_what_they_take(name):
    for function in top_level_functions(name):
        used = {node.id for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
        for parameter in ast.walk(function.args):
            if isinstance(parameter, ast.arg):
                assert parameter.arg in used, f"{name}.py: {function.name} does not use its parameter {parameter.arg}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_shapes_are_those_of_the_call(name):
    """The loss functions state shapes (m, T) of a micro-batch, never (B, T) of a rollout batch."""
    text = script_path(name).read_text()
    for function in top_level_functions(name):
        if function.name in ("policy_loss", "kl_penalty", "value_loss"):
            source = ast.get_source_segment(text, function)
            assert "(m, T)" in source and "(B, T" not in source, f"{name}.py: {function.name} gets (m, T)"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_docstring_names_the_tis_weight(name):
    """A docstring mentions TIS in its formula as min(ρ, C), or in a sentence that all scripts share."""
    text, tree = script_path(name).read_text(), ast.parse(script_path(name).read_text())
    docstring = ast.get_docstring(tree)
    in_formula = name in ("olmo3", "pipeline_rl")
    named = "Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`)." in docstring
    assert named == ("loss = tis[rows] * loss" in text and not in_formula), f"{name}.py: TIS in the docstring"
    assert not in_formula or "min(ρ_it, C)" in docstring, f"{name}.py: TIS in the formula"
