"""Names of settings in other libraries and papers: Stable-Baselines3, rl_zoo3, CleanRL."""

from __future__ import annotations

from collections.abc import Iterable

from trpl.messages import closest

# name elsewhere → setting here, or (in WORDS) an explanation of what replaces it
SETTINGS: dict[str, str] = {
    "gamma": "discount",
    "lam": "gae_lambda",
    "lambda": "gae_lambda",
    "lr": "learning_rate",
    "n_steps": "rollout_size",
    "num_steps": "rollout_size",
    "steps_per_epoch": "rollout_size",
    "batch_size": "minibatch_size",
    "n_epochs": "policy_epochs",
    "update_epochs": "policy_epochs",
    "n_timesteps": "total_steps",
    "total_timesteps": "total_steps",
    "timesteps": "total_steps",
    "max_steps": "total_steps",
    "n_envs": "num_envs",
    "ent_coef": "entropy_weight",
    "entropy_coef": "entropy_weight",
    "clip_range": "ratio_clip",
    "clip_coef": "ratio_clip",
    "clip_range_vf": "value_clip",
    "clip_vloss": "value_clip",
    "max_grad_norm": "gradient_clip",
    "net_arch": "hidden_sizes",
    "hidden_dim": "hidden_sizes",
    "anneal_lr": "learning_rate_decay",
    "vf_lr": "learning_rate_vf",
    "log_std_init": "initial_std",
    "normalize": "normalise_observations",
    "norm_obs": "normalise_observations",
    "norm_reward": "normalise_rewards",
    "clip_obs": "observation_clip",
    "clip_reward": "reward_clip",
    "eval_freq": "eval_every",
    "n_eval_episodes": "eval_episodes",
    "save_freq": "checkpoint_every",
    "epsilon": "bound",
    "delta": "bound",
    "max_kl": "bound",
    "env_id": "env_id",
}
WORDS: dict[str, str] = {
    "target_kl": "the bounds limit the KL in every state: mean_bound and cov_bound, or bound",
    "vf_coef": "the value function has its own optimiser: learning_rate_vf and value_epochs",
    "num_minibatches": "the size of minibatches is set instead: minibatch_size",
    "device": "JAX uses the devices it finds; JAX_PLATFORMS=cpu in the environment keeps it off a GPU",
    "cuda": "JAX uses the devices it finds; JAX_PLATFORMS=cpu in the environment keeps it off a GPU",
    "norm_adv": "advantages are always normalised, in each minibatch",
    "normalize_advantage": "advantages are always normalised, in each minibatch",
    "tensorboard_log": "events are always written, to tensorboard/ in the run folder",
    "tensorboard": "events are always written, to tensorboard/ in the run folder",
    "verbose": "progress is shown unless --quiet",
    "algo": "the method is the first word: trpl train METHOD ENV",
    "env": "the task is the second word: trpl train METHOD ENV",
    "use_sde": "there is no state-dependent noise; contextual gives a covariance per state",
    "exp_name": "--out names the run folder",
    "wandb_project_name": "--track wandb, and WANDB_PROJECT in the environment",
    "activation_fn": "hidden layers are tanh",
    "lr_schedule": "learning_rate_decay decays the learning rates linearly to 0",
}


def suggestion(name: str, known: Iterable[str], *, shown: str = "{}") -> str:
    """Suggest a setting for an unknown name: one with the same meaning, or else with similar spelling.

    Args:
        name: The unknown name, with dashes or underscores.
        known: The existing names, as settings are written in Python.
        shown: The format of a setting for the caller, "--{}" on the command line.

    Returns:
        Words to append to the unknown name; empty if nothing is similar.
    """
    known, plain = list(known), name.strip("-").replace("-", "_").lower()
    if plain in WORDS:
        return f": {WORDS[plain]}"
    if SETTINGS.get(plain) in known:
        setting = SETTINGS[plain]
        return f"; here it is {shown.format(setting.replace('_', '-') if '-' in shown else setting)!r}"
    found = closest(plain, known)
    if found is None:
        return ""
    return f"; did you mean {shown.format(found.replace('_', '-') if '-' in shown else found)!r}?"
