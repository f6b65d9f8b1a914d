"""The list of mutations fits the code; running them takes longer, see tools/mutate.py."""

from tools import mutate
from tools.mutations import MUTATIONS


def test_every_mutation_has_its_line_and_its_test():
    assert not (lines := mutate.stale()), "\n".join(lines)


def test_no_mutation_stands_twice():
    keys = [(m.file, m.old, m.new) for m in MUTATIONS]
    assert len(set(keys)) == len(keys), [key for key in keys if keys.count(key) > 1]


def test_a_mutation_changes_the_code():
    assert not [m.what for m in MUTATIONS if m.old == m.new]
