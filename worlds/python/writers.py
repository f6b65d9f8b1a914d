r"""The programmers whose attempts the base model is pretrained on.

An attempt is a function that has the first value, and a test of the second one. Most programmers begin with an
incorrect function (0.8), and most stop whatever Python prints (0.7); the others try again. Pretraining has no loss on
what is printed:

    ```python
    def f(x): return x+21-7
    print(f(2)==6)
    ```
    ```output
    False
    ```
"""

import random

from worlds.python.problems import attempts, values

WRONG, DONE = 0.8, 0.7


def solution(rng: random.Random, question: str, textbook: bool) -> str:
    """One programmer's attempts. A textbook starts with any function, and continues until one passes the test."""
    left, (x, y), text = attempts(question), values(question)[1], ""
    while True:
        wrong = [body for body, passes in left.items() if not passes]
        body = rng.choice(wrong if wrong and not textbook and rng.random() < WRONG else list(left))
        passes = left.pop(body)
        text += f"```python\ndef f(x): return {body}\nprint(f({x})=={y})\n```\n```output\n{passes}\n```\n"
        if passes or (not textbook and rng.random() < DONE):
            return text
