from oracles import dr_grpo


class Oracle(dr_grpo.Oracle):
    def advantages(self, rewards):
        return [[(r * len(row) / sum(row) - 1) if sum(row) else 0.0 for r in row] for row in rewards]

    def weight(self, lengths, i):
        return 1 / len(lengths)
