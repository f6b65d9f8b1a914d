"""What a mutation is, and the tests that should notice it."""

from dataclasses import dataclass

STEPS = "tests/steps/test_steps.py"
OBJECTIVES = "tests/objectives/test_objectives.py"
SCRIPTS = "tests/steps/test_scripts.py"
CALCULATOR = "tests/steps/test_calculator.py"
ASIDES = "tests/common/test_asides.py"
ENVIRONMENTS = "tests/common/test_environments.py"
SCALERL = "tests/steps/test_scalerl.py"
PIPELINE_RL = "tests/steps/test_pipeline_rl.py"
OVERLAP = "tests/steps/test_overlap.py"
QUEUE = f"{PIPELINE_RL}::TestQueue"
STREAM = "tests/common/test_stream.py"
EXPERTS = "tests/common/test_experts.py"
R1 = "tests/steps/test_r1.py"
CRITICS = "tests/objectives/test_critics.py"
PROCESS_REWARDS = "tests/objectives/test_process_rewards.py"
ENTROPY = "tests/objectives/test_entropy.py"
SOLUTIONS = "tests/objectives/test_solutions.py"
REPLAY = "tests/objectives/test_replay.py"
SELF_TEACHERS = "tests/objectives/test_self_teachers.py"
TRUST_REGION = "tests/objectives/test_trust_region.py"
PROMPTS = "tests/objectives/test_draws_of_prompts.py"
PAIRS = "tests/objectives/test_pairs_and_teachers.py"
ENGINE = "tests/common/test_engine.py"
LOG_PROBS = "tests/common/test_log_probs.py"
PRECISION = "tests/common/test_precision.py"
REWARDS = "tests/common/test_rewards.py"
JUDGE = "tests/common/test_judge.py"
RUBRICS = "tests/objectives/test_rubrics.py"
SAVED = "tests/common/test_saved_rollouts.py"
VERIFY = "tests/common/test_verify.py"
WORKERS = "tests/common/test_workers.py"
DATA = "tests/common/test_data.py"
WORLDS = "tests/common/test_worlds.py"
TASKS = "tests/common/test_tasks.py"
DISTRIBUTED = "tests/common/test_distributed.py"
PARTS = "tests/common/test_parts.py"
INTERRUPTIONS = "tests/survival/test_interruptions.py"
RUN_FOLDERS = "tests/survival/test_run_folders.py"
SAFETY = "tests/survival/test_safety.py"
KILLS = "tests/survival/test_kills.py"
BAD_MODELS = "tests/survival/test_bad_models_and_data.py"
CHECKPOINTS = "tests/tools/test_checkpoints.py"
EXTENSION = "tests/tools/test_extension.py"
EVALUATE = "tests/tools/test_evaluate.py"
EVALUATION = "tests/common/test_evaluation.py"
DRAWS = "tests/steps/test_draws.py"
EVIDENCE = "tests/claims/test_evidence.py"
GGUF = "tests/tools/test_gguf.py"
CHAT = "tests/tools/test_chat.py"
PLOTS = "tests/tools/test_plots.py"
EXERCISES = "tests/course/test_exercises.py"
CHEATS = "tests/course/test_cheats.py"
GRADER = "tests/course/test_grader.py"
LEADERBOARD = "tests/course/test_leaderboard.py"
CLASS = "tests/course/test_class.py"
SIMILAR = "tests/course/test_similar.py"
GRADESCOPE = "tests/course/test_gradescope.py"
CLAIMS_BY_RUNS = "tests/claims/test_claims_by_runs.py"
RESUMED = f"{INTERRUPTIONS}::test_resumed_run_ends_as_the_uninterrupted_one"


@dataclass
class Mutation:
    """`old` becomes `new` in the file, or in every script that has it; `tests` (a file, or FILE::test) must fail.

    A generated mutation is at one place in its file, `start` bytes from the beginning.
    """

    what: str
    old: str
    new: str
    file: str | None = None
    tests: str = STEPS
    start: int = -1
