"""A run: its folder, log and checkpoints, seeds and learning rates, evaluations, and how it ends."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from common import distributed, ending, folders
from common.card import model_card
from common.checkpoints import CARD, checkpoints, drop_old, load_newest, save_checkpoint, step_of
from common.cli import fail, first_line, flag, say
from common.clock import clock, stopwatch
from common.data import settings_of_each
from common.distributed import gather, local, local_world_size, rank, whole, world_size
from common.folders import flush, remove_if_empty, write_whole
from common.lora import Adapters, whole_weights
from common.metrics import StepMetrics, cut_logs, mismatch_metrics, rollout_metrics
from common.notes import Notes
from common.records import Problem, Rollouts, Sample
from common.saved_rollouts import SavedRollouts
from common.schedule import learning_rate, seed_step
from common.settings import SAME_RESULT, Settings
from common.terminal import SHOWN_SAMPLES, Terminal, write_samples
from common.trackers import Tracker
from common.verification.rewards import rehearse_rewards

import torch
from torch import Tensor

Closable = TypeVar("Closable")


class Run:
    """One run and its folder, as a context: at the end, what it opened is closed and what it changed is restored."""

    MAY_CHANGE = ("steps", "eval_every", "eval_samples", "save_every", "keep", *SAME_RESULT)  # together with --resume

    def __init__(self, args: Settings, script: str) -> None:
        self.script = Path(script).resolve()
        self.method = self.script.stem
        self.given = args
        self.changed: list[str] = []  # settings that differ from those of the resumed run
        self.state: dict[str, Any] = {}  # the method's own state, saved in every checkpoint
        self.evaluations: dict[int, dict[str, Any]] = {}  # held-out metrics by step
        self.stop_requested = 0.0  # when this process was asked to stop
        self.interrupted = False  # whether any process was; agreed by all after each step
        self.must_save = False  # after this step, even if --save-every does not ask for it
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        try:
            self.args = (self.given if self.given.resume is None else self.saved_settings()).checked()
            if torch.cuda.is_available() and local_world_size() > (count := torch.cuda.device_count()):
                fail(f"--nproc-per-node {local_world_size()}: this machine has {count} GPUs.")
            if distributed.start():  # False within a run of several stages, which has done this
                self.closing(distributed)
            ending.take_signals(self)
            self.terminal = self.closing(Terminal(self.stop_soon))
            if rank() == 0:
                self.tracker = self.closing(Tracker(self.args))
                first = settings_of_each(self.args, 1)[0]
                rehearse_rewards(first, first.dataset, "train")
            name = f"{self.method}-seed{self.args.seed}"
            self.dir = gather(folders.open_folder(self.args, name, self.stack) if rank() == 0 else None)[0]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is not None:
                ending.report_crash(self, error)
            elif rank() == 0:
                self.summarize()
        except SystemExit as end:
            error = end
            raise
        finally:
            if error is not None and world_size() > 1:
                if rank() == 0 and hasattr(self, "dir"):
                    remove_if_empty(self.dir)
                ending.exit_now(error)
            self.stack.close()

    def closing(self, thing: Closable) -> Closable:
        """Close `thing` at the end of the run, however it ends."""
        self.stack.callback(thing.close)
        return thing

    def summarize(self) -> None:
        ending.summarize(self)

    def stop_soon(self) -> None:
        self.stop_requested = self.stop_requested or time.monotonic()

    # Folder

    def write_config(self) -> None:
        folders.write_config(self.dir, self.method, self.args)

    def saved_settings(self) -> Settings:
        """The settings of the run to resume, which other flags may extend but not contradict."""
        saved, self.changed = folders.saved_settings(self.given, self.method, self.MAY_CHANGE)
        if "steps" in self.changed:
            self.check_extension(saved)
        return saved

    def check_extension(self, args: Settings) -> None:
        """End the program if the new --steps would have changed the steps already taken."""
        for last in checkpoints(args.resume)[-1:]:
            start_step = step_of(last)
            if args.steps < start_step:
                fail(f"--steps {args.steps}: {args.resume} has finished {start_step} steps already.")
        for name, neutral in (("lr_schedule", "constant"), ("value_pretraining", 0.0)):
            if (value := getattr(args, name, neutral)) != neutral:
                fail(
                    f"--steps cannot extend this run: with {flag(name)} {value} its past steps depended on their "
                    f"total number. Start a new run, or one from its weights with --model."
                )

    # The loop

    def steps(
        self,
        model: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        engine: Any,
        verifier: Any,
        held_out: list[Problem],
        **objects: Any,
    ) -> Iterator[int]:
        """The numbers of the remaining steps, from 1 for a new run.

        Before each step it sets the seed and the learning rates; after each it logs, saves and evaluates.
        `objects` have a `state_dict` and a `load_state_dict`, and are saved in every checkpoint.
        """
        self.engine, self.verifier, self.held_out = engine, verifier, held_out
        self.notes = Notes(self.args, verifier)
        start_step = self.restore(model, tokenizer, optimizer, history=engine.history, **objects)
        self.evaluate(start_step)
        for step in range(start_step + 1, self.args.steps + 1):
            self.step, self.metrics, self.numbers = step, StepMetrics(), {}
            self.saved_rollouts = SavedRollouts(step, self.args)
            seed_step(self.args.seed, step)
            self.set_learning_rates(step)
            stopwatch.restart()
            yield step
            self.log_step(step)
            every = self.args.save_every
            last = step == self.args.steps or self.interrupted or self.must_save
            if last or (every > 0 and step % every == 0):
                self.save(step)
            if self.interrupted:
                break
            self.evaluate(step)

    def set_learning_rates(self, step: int) -> None:
        """Set the scheduled rate for the policy; a critic has the same schedule with its own peak."""
        rate = learning_rate(step, self.args)
        for name, optimizer in self.objects.items():
            if isinstance(optimizer, torch.optim.Optimizer):
                own = rate if name == "optimizer" else rate * optimizer.defaults["lr"] / self.args.lr
                for group in optimizer.param_groups:
                    group["lr"] = own

    # State

    def restore(self, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, **objects: Any) -> int:
        """Write the config or load the checkpoint to resume from; returns the number of finished steps."""
        self.model, self.tokenizer, self.objects = model, tokenizer, {"optimizer": optimizer, **objects}
        if self.args.lora_rank:
            self.objects["adapters"] = Adapters(model)
        if hasattr(model, "loss_scale"):
            self.objects["loss_scale"] = model.loss_scale
        seed_step(self.args.seed, 0)
        if rank() == 0 and (self.changed or not (self.dir / "config.json").exists()):
            self.write_config()
        if self.args.resume is None:
            return 0
        state = load_newest(self.dir, model, self.objects) or {}
        start_step = state.pop("step", -1)
        self.state |= state
        if start_step >= 0:
            say(f"resuming {self.dir} after step {start_step}")
        else:
            say(f"{self.dir} holds no complete checkpoint: the run starts from the beginning.")
        if rank() == 0:
            self.evaluations = cut_logs(self.dir, start_step)
            drop_old(self.dir, start_step, self.args.keep)  # the last step may have been killed before it did so
        self.evaluations = gather(self.evaluations)[0]
        return max(0, start_step)

    def save(self, step: int, name: str = "") -> Path:
        """Write a checkpoint with everything needed to resume; one with a name holds the weights only."""
        folder = self.dir / (name or f"checkpoint-{step:06d}")
        state, objects = (None, {}) if name else ({"step": step, **self.state}, self.objects)
        sharded = self.args.sharded_checkpoints and not name
        card = self.card() if rank() == 0 else ""
        if rank() == 0 and not name:
            flush(self.dir / "metrics.jsonl")  # a checkpoint is never newer than the log
        try:
            dtype = torch.bfloat16 if self.args.save_dtype == "bf16" else torch.float32
            save_checkpoint(folder, self.model, self.tokenizer, state, objects, sharded, card, dtype)
        except Exception as error:  # safetensors, tokenizers and torch each raise their own, also for a full disk
            reason = "the disk is full" if re.search("enforce fail|No space left", str(error)) else first_line(error)
            fail(f"the checkpoint of step {step} cannot be written: {reason}. {ending.resume_hint(self)}", code=1)
        drop_old(self.dir, step, self.args.keep)
        return folder

    def card(self) -> str:
        return model_card(self.dir, self.args, self.evaluations)

    def require_finite(self, **values: Tensor | float) -> None:
        """Save the weights and end the run if a value is not finite."""
        broken = [name for name, value in values.items() if not whole(torch.as_tensor(value)).isfinite().all()]
        broken = list(dict.fromkeys(name for part in gather(broken) for name in part))
        if broken:
            folder = self.save(self.step, name=f"nonfinite-step-{self.step:06d}")
            fail(
                f"step {self.step}: not finite: {', '.join(broken)}. The update was not applied; the weights before it "
                f"are in {folder}. Start from them with a lower --lr or --max-grad-norm: --model {folder}",
                code=1,
            )

    def require_finite_weights(self) -> None:
        """End the run if the updates of a step broke the weights: the last checkpoint stays the newest."""
        broken = [name for name, weight in self.model.named_parameters() if not local(weight).isfinite().all()]
        broken = [name for part in gather(broken) for name in part]
        if broken:
            fail(
                f"step {self.step}: its updates left weights that are not finite ({broken[0]}); they are not saved. "
                f"Start from an earlier checkpoint with a lower --lr or --max-grad-norm. {ending.resume_hint(self)}",
                code=1,
            )

    # Log

    def write_line(self, text: str) -> None:
        self.terminal.write_line(text)

    def log(self, **numbers: float | None) -> None:
        """Log method-specific numbers of this step."""
        self.numbers |= numbers

    def log_rollouts(
        self,
        problems: list[Problem],
        rollouts: Rollouts,
        rewards: Tensor,
        advantages: Tensor | None,
        old_logp: Tensor,
        rollout_logp: Tensor,
        mask: Tensor,
    ) -> None:
        """Rewards (P, G); advantages if they are known, log-probs of learner and engine, and the mask, all (B, T)."""
        self.require_finite(rollout_logp=rollout_logp, old_logp=old_logp, rewards=rewards)
        self.log(**rollout_metrics(rewards, rollouts), **mismatch_metrics(old_logp, rollout_logp, mask))
        values = {"advantage": advantages, "old_logp": old_logp, "rollout_logp": rollout_logp}
        self.saved_rollouts.add_rollouts(problems, rollouts, rewards, values)

    def log_tokens(self, values: dict[str, Tensor], weights: Tensor, mask: Tensor) -> None:
        """Per-token values of the rollout batch, averaged with the weights of the loss; all (B, T)."""
        self.saved_rollouts.add_tokens(values)
        if "tis_weight" in values:
            truncated = (values["tis_weight"] == self.args.tis_cap) & (values["tis_weight"] > 0)  # (B, T)
            values = values | {"tis_truncated": truncated}
        self.metrics.add(values, weights, mask)

    def log_loss(self, loss: Tensor, values: dict[str, Tensor], weights: Tensor, mask: Tensor, rows: Tensor) -> None:
        """A micro-batch's part of the loss, per-token values and weights (m, T), the mask (B, T), and its rows (m,)."""
        self.metrics.add(values, weights, mask[rows])
        self.metrics.add_loss(loss)
        self.saved_rollouts.add_update(values, rows)

    def check_update(self, **values: Tensor | float) -> None:
        """Log the gradient norm and other values of an update, or end the run if they or the loss are not finite."""
        values = self.model.loss_scale.after_gradients(**values) if hasattr(self.model, "loss_scale") else values
        self.require_finite(loss=self.metrics.loss, **values)
        self.metrics.add_update(**values)

    def log_step(self, step: int) -> None:
        """Record a step: a line in the file and one on the terminal."""
        self.require_finite_weights()
        self.interrupted = any(gather(self.stop_requested > 0))
        if "accuracy" in self.numbers:
            self.numbers |= self.verifier.take_numbers()
        numbers = self.numbers | self.metrics.result() | stopwatch.result()
        tokens = numbers["response_tokens"]
        # With dynamic sampling, these tokens are not those that this step generated.
        if "seconds/generate" in numbers and "sampled_prompts" not in numbers:
            numbers["tokens_per_second/generate"] = tokens / numbers["seconds/generate"]
        numbers["tokens_per_second/train"] = tokens * self.args.update_epochs / numbers["seconds/train"]
        seconds = sum(value for name, value in numbers.items() if name.startswith("seconds/"))
        shown = {k: v for k, v in numbers.items() if self.args.show_rewards or not k.startswith("reward/")}
        self.terminal.print_step(step, self.args.steps, shown, seconds)
        self.write_metrics(step, numbers)
        self.saved_rollouts.write(self.dir, self.tokenizer)
        if note := self.notes.of_step(numbers):
            self.write_line(note)

    def write_metrics(self, step: int, numbers: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        if rank() > 0:
            return
        if samples:
            write_samples(self.dir / "samples" / f"step-{step:06d}.md", samples)
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
        self.tracker.log(self.dir, step, numbers, samples)

    def evaluate(self, step: int) -> None:
        """Evaluate on held-out problems before the first step, after the last, and every --eval-every steps.

        It comes after the checkpoint, so an interrupted evaluation is repeated when the run is resumed.
        """
        args, first_or_last = self.args, step in (0, self.args.steps)
        due = first_or_last or (args.eval_every > 0 and step % args.eval_every == 0)
        n = args.eval_samples if first_or_last else max(1, args.eval_samples // 4)
        if not due or self.interrupted or self.evaluations.get(step, {"eval/n": 0})["eval/n"] >= n:
            return
        from common.evaluation import evaluate

        stopwatch.restart()
        with clock("evaluate"):
            self.engine.update(whole_weights(self.model))
            metrics, samples = evaluate(self.engine, self.verifier, self.held_out, n, args)
        if step == 0:
            self.terminal.print_first_sample(samples[0])
        self.terminal.print_evaluation(step, metrics)
        if step == 0 and (note := self.notes.of_first_evaluation(metrics, samples)):
            self.write_line(note)
        best = max((row["eval/avg"] for row in self.evaluations.values()), default=0.0)
        self.evaluations[step] = metrics
        if step > 0 and metrics["eval/avg"] > best:
            self.save(step, "best")
        if rank() == 0 and (saved := self.dir / f"checkpoint-{step:06d}").exists():
            write_whole(saved / CARD, self.card())
        resources = {name: value for name, value in stopwatch.result().items() if name.endswith("/evaluate")}
        self.write_metrics(step, metrics | resources, samples[:SHOWN_SAMPLES])
        if rank() == 0 and not first_or_last:
            ending.draw(self)
