"""The other side of `benchmarks/peers.py`: losses of TRL, verl and SkyRL, in the environment that has them.

    PYTHON_OF_THE_PEER -P benchmarks/peers_worker.py trl|verl|skyrl

It imports nothing from this repository. Each line on standard input is the path of a file with a point and what to
compute there; the worker writes the gradient next to the file and answers with a line. Tensors are (B, T), in float64.
"""

import sys
from collections import defaultdict
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor


def groups(point: dict[str, Any], signed: bool) -> tuple[Tensor, np.ndarray]:
    """Rewards (B, T), each at its response's last token, and the group number of each response."""
    P, G = point["rewards"].shape
    values = 2 * point["rewards"] - 1 if signed else point["rewards"]
    lengths = point["mask"].sum(1).long()
    rewards = torch.zeros_like(point["logp"])
    rewards[torch.arange(P * G), lengths - 1] = values.flatten()
    return rewards, np.repeat(np.arange(P), G)


def pairs(point: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The rows of every pair of a correct and an incorrect response to the same prompt."""
    right = point["rewards"] > 0.5
    g, w, x = (right[:, :, None] & ~right[:, None, :]).nonzero(as_tuple=True)
    return g * right.shape[1] + w, g * right.shape[1] + x


def of_self_distillation(kind: str, point: dict[str, Any], trainer: Any, **settings: Any) -> Tensor:
    """TRL's SDPO or SDFT over a vocabulary of two tokens, the first of which was sampled."""
    from trl.experimental.sdft import SDFTTrainer
    from trl.experimental.sdpo import SDPOTrainer

    trainer_class = {"sdpo": SDPOTrainer, "sdft": SDFTTrainer}[kind]
    mask, rewards = point["mask"], point["rewards"]
    ids = torch.zeros_like(mask).long()
    student, teacher = (
        torch.stack([logp, torch.log1p(-logp.exp())], -1)
        for logp in (torch.where(mask > 0, point[name], -1.0) for name in ("logp", "teacher"))
    )
    others = rewards.sum(1, keepdim=True) - rewards  # (P, G), the number of other correct responses
    told = (others > 0).double() if kind == "sdpo" else torch.ones_like(rewards)
    logits = SimpleNamespace(student_logits=student, teacher_logits=teacher, completion_ids=ids, completion_mask=mask)
    logits.loss_mask = mask * told.view(-1, 1)
    trainer._compute_teacher_student_logits = lambda *_: logits
    trainer.use_teacher_server, trainer.current_gradient_accumulation_steps = False, 1
    trainer.epsilon_low = trainer.epsilon_high = 1e9
    trainer.importance_sampling_level, trainer.loss_type = "token", "grpo"
    trainer.args = SimpleNamespace(
        distillation_weight=settings.get("weight", 1.0),
        distillation_mode=settings["mode"],
        distillation_alpha=1.0,
        distillation_is_clip=None,
    )
    for name in ("_compute_policy_loss", "_compute_self_distillation_loss"):
        if hasattr(trainer_class, name):
            setattr(trainer, name, partial(getattr(trainer_class, name), trainer))
    inputs = {"completion_ids": ids, "completion_mask": mask, "old_per_token_logps": point["old_logp"]}
    inputs["advantages"] = (rewards - rewards.mean(1, keepdim=True)).flatten()
    return trainer_class.compute_loss(trainer, trainer.model, inputs)


def of_trl(kind: str, point: dict[str, Any], **settings: Any) -> Tensor:
    """The trainers' own `_compute_loss`, with given log-probs where the model would compute them."""
    logp, mask = point["logp"], point["mask"]
    trainer = MagicMock()
    trainer.model.training, trainer._metrics = True, defaultdict(lambda: defaultdict(list))
    trainer.aux_loss_enabled = False
    trainer.accelerator.gather = trainer.accelerator.gather_for_metrics = lambda tensor: tensor
    trainer.accelerator.reduce = lambda tensor, reduction: tensor
    if kind == "dpo":
        from trl import DPOTrainer

        rows = torch.cat(pairs(point))
        seen, ref = ((point[name] * mask)[rows] for name in ("logp", "ref"))
        chosen, rejected = ref.sum(1).chunk(2)
        trainer.precompute_ref_logps, trainer.ld_alpha, trainer.f_divergence_type = True, None, "reverse_kl"
        trainer.loss_types, trainer.loss_weights, trainer.beta = ["sigmoid"], [1.0], settings["beta"]
        trainer.use_weighting = False
        nothing = torch.zeros_like(seen)
        output = SimpleNamespace(log_probs=seen, entropy=nothing, mean_logits=nothing, is_top1=nothing > 0)
        completion_mask = torch.nn.functional.pad(mask[rows], (1, 0)).long()
        ids = torch.zeros_like(completion_mask)
        inputs = {"completion_mask": completion_mask, "input_ids": ids, "attention_mask": ids + 1}
        inputs |= {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        return DPOTrainer._compute_loss(trainer, lambda **_: output, inputs, return_outputs=False)
    if kind in ("sdpo", "sdft"):
        return of_self_distillation(kind, point, trainer, **settings)
    from trl import GRPOTrainer, RLOOTrainer
    from trl.experimental.gmpo import GMPOTrainer

    trainer.top_entropy_quantile, trainer.off_policy_mask_threshold, trainer.beta = 1.0, None, settings.get("beta", 0.0)
    trainer.importance_sampling_level, trainer.loss_type = settings.get("level", "token"), kind
    trainer.epsilon_low, trainer.epsilon_high = settings.get("low"), settings.get("high")
    trainer._entropy_bonus_enabled = False
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = "tis" in settings
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
    trainer.accelerator.num_processes, trainer.max_completion_length = 1, settings.get("length")
    trainer.args.use_bias_correction_kl, trainer.args.delta = False, None
    trainer.args.sapo_temperature_pos, trainer.args.sapo_temperature_neg = settings.get("tau", (None, None))
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp, torch.zeros_like(logp), None)
    ids = torch.zeros_like(mask).long()
    inputs = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask}
    inputs |= {"advantages": point["advantages"], "num_items_in_batch": mask.sum(), "ref_per_token_logps": point["ref"]}
    inputs |= {"old_per_token_logps": point["old_logp"], "old_logps": (point["old_logp"] * mask).sum(1)}
    if "tis" in settings:  # the trainer computes them with the advantages
        inputs["importance_sampling_ratio"] = (
            (point["old_logp"] - point["rollout_logp"]).exp().clamp(max=settings["tis"])
        )
    trainer_class = {"gmpo": GMPOTrainer, "rloo": RLOOTrainer}.get(kind, GRPOTrainer)
    return trainer_class._compute_loss(trainer, None, inputs)


def of_functions(point: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings for verl's GDPO, and the reward data that its estimator reads per function."""
    values = {f"function {i}": of_one.numpy() for i, of_one in enumerate(point["function_rewards"].flatten(1))}
    whole = torch.cat([point["mask"][:, :1], point["mask"]], 1).long()  # with a one-token prompt
    config = {"gdpo_reward_keys": [*values], "gdpo_reward_weights": point["reward_weights"].tolist()}
    return config, {"non_tensor_batch": values, "batch": {"prompts": whole[:, :1], "attention_mask": whole}}


def of_verl(
    kind: str, point: dict[str, Any], advantage: str | None = None, average: str = "token-mean", **settings: Any
) -> Tensor:
    """An advantage estimator and a policy loss from verl's registries."""
    from tensordict import TensorDict
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.workers.config import ActorConfig, PolicyLossConfig

    logp, mask, of = point["logp"], point["mask"], SimpleNamespace(**settings)
    rewards, index = groups(point, "signed" in settings)
    if "kl_in_reward" in settings:
        batch = TensorDict({"response_mask": mask, "token_level_scores": rewards}, batch_size=[len(mask)])
        batch["old_log_probs"], batch["ref_log_prob"] = point["old_logp"], point["ref"]
        control = core_algos.FixedKLController(settings["kl_in_reward"])
        rewards = apply_kl_penalty(SimpleNamespace(batch=batch), control)[0].batch["token_level_rewards"]
    if advantage == "gae":
        advantages, returns = core_algos.compute_gae_advantage_return(rewards, point["values"], mask, of.gamma, of.lam)
        if kind == "value":
            clip = settings["clip"]
            return core_algos.compute_value_loss(point["new_values"], returns, point["values"], mask, clip)[0]
    elif advantage is not None:
        more = {"norm_adv_by_std_in_grpo": settings.get("std", True)} if advantage == "grpo" else {}
        config = AlgoConfig(gamma=1.0)
        if advantage == "gdpo":
            config, more = of_functions(point)
        estimate = core_algos.get_adv_estimator_fn(advantage)
        advantages, _ = estimate(token_level_rewards=rewards, response_mask=mask, index=index, config=config, **more)
    else:
        advantages = point["advantages"][:, None] * mask
    more = {"tau_pos": of.tau[0], "tau_neg": of.tau[1]} if "tau" in settings else {}
    low, high = settings.get("low", 0.2), settings.get("high", 0.2)
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=high,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=1e9,  # no dual clip
        policy_loss=PolicyLossConfig(**settings.get("policy_loss", {})),
        global_batch_info={"loss_scale_factor": settings["length"]} if "length" in settings else {},
        **more,
    )
    old = point[settings.get("anchor", "old_logp")]
    loss = core_algos.compute_policy_loss_reinforce if kind == "reinforce" else core_algos.get_policy_loss_fn(kind)
    more = {}
    if "tis" in settings:
        ratio = point["old_logp"] - point["rollout_logp"]
        more["rollout_is_weights"] = compute_rollout_correction_weights(ratio, mask, "token", settings["tis"])[0]
    total, _ = loss(old, logp, advantages, mask, loss_agg_mode=average, config=config, **more)
    if "kl" in settings:
        kl = core_algos.kl_penalty(logp, point["ref"], settings["kl_type"])
        total = total + settings["kl"] * core_algos.agg_loss(kl, mask, average)
    return total


def of_skyrl(
    kind: str, point: dict[str, Any], advantage: str | None = None, average: str = "token_mean", **settings: Any
) -> Tensor:
    """An advantage estimator and a policy loss of SkyRL, which averages by scaling the advantages."""
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # pydantic requires this before Python 3.12
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config.config import OffPolicyCorrectionConfig

    logp, mask = point["logp"], point["mask"]
    rewards, index = groups(point, "signed" in settings)
    if advantage is not None:
        given = {"values": point["values"], "gamma": 1.0, "lambd": settings.get("lam"), "index": index}
        given |= {"grpo_norm_by_std": settings.get("std", True), "epsilon": settings.get("epsilon", 1e-6)}
        estimate = ppo_utils.AdvantageEstimatorRegistry.get(advantage)
        advantages, _ = estimate(token_level_rewards=rewards, response_mask=mask, **given)
    elif "advantages" in point:
        advantages = point["advantages"].reshape(len(mask), -1) * mask
    scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        advantages, mask, average, len(mask), settings.get("length", mask.shape[1])
    )
    low, high = settings.get("low"), settings.get("high")
    tis = {"tis_ratio_type": "token", "token_tis_ratio_clip_high": settings["tis"]} if "tis" in settings else {}
    config = SimpleNamespace(
        policy_loss_type=kind,
        loss_reduction=average,
        eps_clip_low=low,
        eps_clip_high=high,
        off_policy_correction=OffPolicyCorrectionConfig(**tis),
        cispo=SimpleNamespace(cispo_eps_clip_low=low, cispo_eps_clip_high=high),
        dppo=SimpleNamespace(dppo_type=settings.get("divergence"), delta_low=low, delta_high=high),
        clip_cov=SimpleNamespace(**settings.get("clip_cov", {})),
        kl_cov=SimpleNamespace(**settings.get("kl_cov", {})),
    )
    if "tau" in settings:
        config.sapo = SimpleNamespace(tau_pos=settings["tau"][0], tau_neg=settings["tau"][1])
    old = point[settings.get("anchor", "old_logp")]
    loss = ppo_utils.PolicyLossRegistry.get(kind)
    total, _ = loss(logp, old, scaled, config, loss_mask=mask, rollout_logprobs=point["rollout_logp"])
    return total


def main(peer: str) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        path = line.strip()
        try:
            job = torch.load(path, weights_only=False)
            point = job["point"]
            variable = point[job["variable"]].requires_grad_()
            loss = {"trl": of_trl, "verl": of_verl, "skyrl": of_skyrl}[peer](job["kind"], point, **job["settings"])
            torch.save(torch.autograd.grad(loss, variable)[0], f"{path}.gradient")
            print("done", flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
