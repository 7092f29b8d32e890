"""Names of settings in other libraries: Stable-Baselines3, rl_zoo3, CleanRL, rsl_rl, skrl, rl_games, Brax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trpl.messages import closest


def _by_name(grouped: Mapping[str, str]) -> dict[str, str]:
    return {name: meaning for names, meaning in grouped.items() for name in names.split()}


# names elsewhere → setting here, or (in WORDS) an explanation of what replaces it
SETTINGS = _by_name(
    {
        "gamma discounting discount_factor": "discount",
        "lam lambda": "gae_lambda",
        "lr": "learning_rate",
        "n_steps num_steps steps_per_epoch num_steps_per_env rollouts horizon_length unroll_length": "rollout_size",
        "batch_size": "minibatch_size",
        "n_epochs update_epochs epochs num_learning_epochs learning_epochs mini_epochs num_updates_per_batch": (
            "policy_epochs"
        ),
        "n num_timesteps n_timesteps total_timesteps timesteps max_steps": "total_steps",
        "n_envs workers num_workers num_actors": "num_envs",
        "ent_coef entropy_coef entropy_cost entropy_loss_scale": "entropy_weight",
        "max_grad_norm grad_norm grad_norm_clip": "gradient_clip",
        "std init_std init_noise_std sigma": "initial_std",
        "vec_env vec_env_type": "vectorisation",
        "net_arch hidden_dim hidden layers": "hidden_sizes",
        "anneal_lr": "learning_rate_decay",
        "vf_lr": "learning_rate_vf",
        "normalize normalise norm_obs": "normalise_observations",
        "norm_reward reward_scale": "normalise_rewards",
        "clip_obs": "observation_clip",
        "clip_reward": "reward_clip",
        "eval_freq": "eval_every",
        "n_eval_episodes": "eval_episodes",
        "save_freq": "checkpoint_every",
        "eval_env_kwargs": "env_kwargs",
        "trained_agent pretrained load": "warm_start",
    }
)
WORDS = _by_name(
    {
        "epsilon eps delta max_kl desired_kl kl_threshold target_kl kl_coef": (
            "mean_bound and cov_bound limit every state's update; bound does where there is one for the whole KL"
            " (kl-joint, papi, trpo, and kl with a policy that is not Gaussian)"
        ),
        "clip_range clip_coef clip clip_param e_clip clipping_epsilon": (
            "ratio_clip of ppo, ppo-m and papi; bounds take its place elsewhere: mean_bound and cov_bound, or bound"
        ),
        "clip_range_vf clip_vloss": "value_clip of ppo, ppo-m and papi; elsewhere the value function is not clipped",
        "vf_coef": "the value function has its own optimiser: learning_rate_vf and value_epochs",
        "num_minibatches num_mini_batches mini_batches": "the size of minibatches is set instead: minibatch_size",
        "device cuda gpu cpu": "JAX uses the devices it finds; JAX_PLATFORMS=cpu in the environment keeps it off a GPU",
        "norm_adv normalize_advantage": "advantages are always normalised, in each minibatch",
        "tensorboard_log tensorboard": "events are always written, to tensorboard/ in the run folder",
        "log_interval": "every epoch is a line of metrics.jsonl in the run folder",
        "verbose progress progress_bar": "progress is shown unless --quiet (progress=False in Python)",
        "callback on_epoch_end": "callbacks=[f] in Python calls f(steps, scalars) after every epoch",
        "algo": "the method is the first word: trpl train METHOD ENV",
        "env env_id env_name task": "the task is the second word: trpl train METHOD ENV",
        "use_sde": "there is no state-dependent noise; contextual gives a covariance per state",
        "log_std_init": "initial_std is its exponential",
        "policy_kwargs": "hidden_sizes, covariance, contextual and initial_std describe the network",
        "exp_name run_name name log_folder log_dir logdir output output_dir save_dir save_path": (
            "--out (out= in Python) names the run folder"
        ),
        "save_model": "checkpoints are always written; checkpoint_every says how often",
        "resume": "use trpl resume RUN",
        "seeds": "a run has one seed; trpl sweep PLAN --seeds N trains several",
        "wandb_project_name": "--track wandb, and WANDB_PROJECT in the environment",
        "wandb_entity": "--track wandb, and WANDB_ENTITY in the environment",
        "activation_fn activation": "hidden layers are tanh",
        "optimizer": "every method but trpo learns with Adam",
        "lr_schedule": "learning_rate_decay decays the learning rates linearly to 0",
        "torch_deterministic": "a seed replays a run to the bit, always",
        "no_eval": "eval_every 0 switches evaluation off",
        "buffer_size learning_starts train_freq gradient_steps tau": (
            "on-policy methods have no replay buffer: rollout_size, policy_epochs and value_epochs"
        ),
        "hyperparams hyperparameters conf_file yaml_file config": (
            "give each setting by its name, or --preset FILE.toml"
        ),
        "optimize optimize_hyperparameters n_trials": "use trpl tune METHOD ENV --trials N",
        "render capture_video record_video video": "use trpl play RUN --video FILE after training",
        "max_episode_steps": "the environment's registration has its time limit",
    }
)


def suggestion(name: str, known: Iterable[str], *, as_flags: bool = False) -> str:
    """Suggest a setting for an unknown name: one with the same meaning, or else with similar spelling.

    Args:
        name: The unknown name, with dashes or underscores.
        known: The existing names, as settings are written in Python.
        as_flags: Whether to write the suggested setting as on the command line: `--mean-bound`.

    Returns:
        Words to append to the unknown name; empty if nothing is similar.
    """

    def shown(setting: str) -> str:
        return f"--{setting.replace('_', '-')}" if as_flags else setting

    known, plain = list(known), name.strip("-").replace("-", "_").lower()
    if plain in WORDS:
        return f": {WORDS[plain]}"
    if SETTINGS.get(plain) in known:
        return f"; here it is {shown(SETTINGS[plain])!r}"
    found = closest(plain, known)
    return "" if found is None else f"; did you mean {shown(found)!r}?"
