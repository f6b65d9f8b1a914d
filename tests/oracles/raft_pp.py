from oracles import reinforce_rej


class Oracle(reinforce_rej.Oracle):
    LEARNS_WHEN_ALL_IS_CORRECT = True

    def advantages(self, rewards):
        return [[1.0 if r == 1 else 0.0 for r in row] for row in rewards]
