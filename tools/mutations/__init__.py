"""Mutations that the tests must notice: `python -m tools.mutate` tries them."""

from tools.mutations import methods, surroundings

MUTATIONS = [*methods.MUTATIONS, *surroundings.MUTATIONS]
