"""Bit-identical steps of Gymnasium's MuJoCo tasks at the simulator's own speed.

Around each `mj_step` Gymnasium copies the state several times, computes unused contact forces, looks up bodies by name
and fills a dictionary. A lean step computes only what observation, reward and termination need, in the order that gives
the same rounding. It is used only for a task with default options, and only after its first steps agreed with the
task's own to the last bit; everything else is stepped by Gymnasium.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

LeanStep = Callable[[np.ndarray], tuple[np.ndarray, float, bool]]  # action -> observation, reward, terminated

NUM_COMPARED = 8  # steps compared before a lean step is used
add_reduce, concatenate, maximum, minimum, square = np.add.reduce, np.concatenate, np.maximum, np.minimum, np.square


def lean_step(env: gym.Env) -> LeanStep | None:
    """Return the lean step of an environment without wrappers, or None if there is no bit-identical one.

    The comparison resets the environment: seed it afterwards.
    """
    make = TASKS.get((type(env).__module__, type(env).__qualname__))
    spec = env.spec
    if make is None or spec is None or spec.kwargs or env.render_mode is not None or "step" in vars(env):
        return None
    step = make(env)
    return step if _agrees(env, step) else None


def _agrees(env: gym.Env, step: LeanStep) -> bool:
    """Compare the first steps of an episode bit by bit."""
    assert isinstance(env.action_space, gym.spaces.Box)
    low, high = env.action_space.low, env.action_space.high
    actions = 1.5 * np.random.default_rng(0).uniform(low, high, (NUM_COMPARED, *low.shape))
    actions = actions.astype(env.action_space.dtype)
    env.reset(seed=0)
    plain = [env.step(action)[:3] for action in actions]
    env.reset(seed=0)
    return all(
        observation.tobytes() == other.tobytes() and reward == other_reward and terminated == other_terminated
        for (observation, reward, terminated), (other, other_reward, other_terminated) in zip(
            plain, map(step, actions), strict=True
        )
    )


def _simulation(env: Any, *, contact_forces: bool) -> Callable[[np.ndarray], None]:
    """Make a function that steps the simulator, with contact forces if the task needs them."""
    import mujoco

    model, data, num_substeps = env.model, env.data, env.frame_skip
    control, mj_step = data.ctrl, mujoco.mj_step  # type: ignore[attr-defined]
    forces = mujoco.mj_rnePostConstraint  # type: ignore[attr-defined]

    def simulate(action: np.ndarray) -> None:
        control[:] = action
        mj_step(model, data, num_substeps)

    def simulate_with_forces(action: np.ndarray) -> None:
        simulate(action)
        forces(model, data)

    return simulate_with_forces if contact_forces else simulate


def _half_cheetah(env: Any) -> LeanStep:
    simulate, seconds = _simulation(env, contact_forces=False), env.dt
    position, posture, velocity = env.data.qpos, env.data.qpos[1:], env.data.qvel
    forward_weight, control_weight = env._forward_reward_weight, env._ctrl_cost_weight

    def step(action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        before = position.item(0)
        simulate(action)
        forward = forward_weight * ((position.item(0) - before) / seconds)
        cost = control_weight * add_reduce(square(action))
        return concatenate((posture, velocity)), forward - float(cost), False

    return step


def _walker(env: Any, *, alive_always: bool, healthy_state: Callable[[], bool] | None = None) -> LeanStep:
    """Make the step of Walker2d and Hopper, whose final rewards differ between v4 (`alive_always`) and v5."""
    simulate, seconds = _simulation(env, contact_forces=False), env.dt
    position, posture, velocity = env.data.qpos, env.data.qpos[1:], env.data.qvel
    forward_weight, control_weight, alive = env._forward_reward_weight, env._ctrl_cost_weight, env._healthy_reward
    (least_z, most_z), (least_angle, most_angle) = env._healthy_z_range, env._healthy_angle_range
    fastest, slowest = np.array(10.0), np.array(-10.0)

    def step(action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        before = position.item(0)
        simulate(action)
        forward = forward_weight * ((position.item(0) - before) / seconds)
        healthy = least_z < position.item(1) < most_z and least_angle < position.item(2) < most_angle
        if healthy_state is not None and healthy:
            healthy = healthy_state()
        cost = control_weight * add_reduce(square(action))
        reward = forward + (alive if healthy or alive_always else 0.0) - float(cost)
        return concatenate((posture, minimum(maximum(velocity, slowest), fastest))), reward, not healthy

    return step


def _hopper(env: Any, *, alive_always: bool) -> LeanStep:
    rest, velocity = env.data.qpos[2:], env.data.qvel
    least, most = env._healthy_state_range
    surely = min(-least, most) ** 2 if least < 0.0 < most else 0.0

    def healthy_state() -> bool:
        if rest.dot(rest) + velocity.dot(velocity) < surely:  # then each entry is within the range
            return True
        state = concatenate((rest, velocity))
        return bool(least < state.min() and state.max() < most)

    return _walker(env, alive_always=alive_always, healthy_state=healthy_state)


def _ant(env: Any) -> LeanStep:
    """Make the step of Ant-v4, without contact forces."""
    simulate, seconds = _simulation(env, contact_forces=False), env.dt
    posture, velocity, torso = env.data.qpos[2:], env.data.qvel, env.data.body("torso").xpos
    control_weight, alive, (least_z, most_z) = env._ctrl_cost_weight, env._healthy_reward, env._healthy_z_range

    def step(action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        before = torso.item(0)
        simulate(action)
        forward = (torso.item(0) - before) / seconds
        cost = control_weight * add_reduce(square(action))
        healthy = least_z <= posture.item(0) <= most_z
        return concatenate((posture, velocity)), forward + alive - float(cost), not healthy

    return step


def _ant_with_forces(env: Any) -> LeanStep:
    """Make the step of Ant-v5, with contact forces in observation and reward."""
    simulate, seconds = _simulation(env, contact_forces=True), env.dt
    posture, velocity, torso = env.data.qpos[2:], env.data.qvel, env.data.body(env._main_body).xpos
    forward_weight, control_weight, alive = env._forward_reward_weight, env._ctrl_cost_weight, env._healthy_reward
    force_weight, forces = env._contact_cost_weight, env.data.cfrc_ext
    (least_z, most_z), (least_force, most_force) = env._healthy_z_range, map(np.array, env._contact_force_range)

    def step(action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        before = torso.item(0)
        simulate(action)
        forward = (torso.item(0) - before) / seconds * forward_weight
        healthy = least_z <= posture.item(0) <= most_z
        clipped = minimum(maximum(forces, least_force), most_force)
        cost = float(control_weight * add_reduce(square(action)))
        cost += force_weight * float(add_reduce(square(clipped), axis=None))
        observation = concatenate((posture, velocity, clipped[1:].reshape(-1)))
        return observation, forward + (alive if healthy else 0.0) - cost, not healthy

    return step


def _centre(env: Any) -> Callable[[], float]:
    """Make a function for the centre of mass's x, which sums over bodies in Gymnasium's order for the same rounding."""
    mass, places = np.expand_dims(env.model.body_mass, axis=1), env.data.xipos
    total = np.sum(mass)
    return lambda: (add_reduce(mass * places, axis=0) / total).item(0)


def _humanoid_step(
    env: Any, parts: Sequence[np.ndarray], cost: Callable[[], float], *, contact_forces: bool, alive_always: bool
) -> LeanStep:
    """Make the step of Humanoid, whose versions differ in their observations `parts` and in the cost of a step.

    A step starts where the one before ended, unless there was a reset, which sets the simulator's time to 0.
    """
    simulate, centre, data = _simulation(env, contact_forces=contact_forces), _centre(env), env.data
    weight, alive, seconds = env._forward_reward_weight, env._healthy_reward, env.dt
    position, (least_z, most_z) = data.qpos, env._healthy_z_range
    reached = when = float("nan")

    def step(action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        nonlocal reached, when
        before = reached if data.time == when else centre()
        simulate(action)
        reached, when = centre(), data.time
        forward = weight * ((reached - before) / seconds)
        healthy = least_z < position.item(2) < most_z
        reward = forward + (alive if healthy or alive_always else 0.0) - cost()
        return concatenate(parts), reward, not healthy

    return step


def _humanoid(env: Any) -> LeanStep:
    """Make the step of Humanoid-v4."""
    data, control, weight = env.data, env.data.ctrl, env._ctrl_cost_weight
    parts = (data.qpos[2:], data.qvel, *map(_flat, (data.cinert, data.cvel, data.qfrc_actuator, data.cfrc_ext)))

    def cost() -> float:
        return weight * float(add_reduce(square(control)))

    return _humanoid_step(env, parts, cost, contact_forces=True, alive_always=True)


def _paper_humanoid(env: Any) -> LeanStep:
    """Make the step of trpl/HumanoidPaper-v4, without contact forces and with the cost of the clamped control."""
    data, control, no_forces = env.data, env.data.ctrl, np.zeros(env.data.cfrc_ext.size)
    parts = (data.qpos[2:], data.qvel, *map(_flat, (data.cinert, data.cvel, data.qfrc_actuator)), no_forces)

    def cost() -> float:
        return float(env.control_cost(control))

    return _humanoid_step(env, parts, cost, contact_forces=False, alive_always=True)


def _humanoid_with_forces(env: Any) -> LeanStep:
    """Make the step of Humanoid-v5, with contact forces in the reward and no observations of the world body."""
    data, control, forces = env.data, env.data.ctrl, env.data.cfrc_ext
    weight, force_weight, (least, most) = env._ctrl_cost_weight, env._contact_cost_weight, env._contact_cost_range
    by_body = map(_flat, (data.cinert[1:], data.cvel[1:], data.qfrc_actuator[6:], forces[1:]))

    def cost() -> float:
        contact = min(max(force_weight * float(add_reduce(square(forces), axis=None)), least), most)
        return weight * float(add_reduce(square(control))) + contact

    parts = (data.qpos[2:], data.qvel, *by_body)
    return _humanoid_step(env, parts, cost, contact_forces=True, alive_always=False)


def _flat(array: np.ndarray) -> np.ndarray:
    """Return a flat view, which follows the simulation."""
    flat = array.reshape(-1)
    assert np.shares_memory(flat, array)
    return flat


def _gymnasium(task: str) -> str:
    return f"gymnasium.envs.mujoco.{task}"


TASKS: dict[tuple[str, str], Callable[[Any], LeanStep]] = {
    (_gymnasium("half_cheetah_v4"), "HalfCheetahEnv"): _half_cheetah,
    (_gymnasium("half_cheetah_v5"), "HalfCheetahEnv"): _half_cheetah,
    (_gymnasium("hopper_v4"), "HopperEnv"): lambda env: _hopper(env, alive_always=True),
    (_gymnasium("hopper_v5"), "HopperEnv"): lambda env: _hopper(env, alive_always=False),
    (_gymnasium("walker2d_v4"), "Walker2dEnv"): lambda env: _walker(env, alive_always=True),
    (_gymnasium("walker2d_v5"), "Walker2dEnv"): lambda env: _walker(env, alive_always=False),
    (_gymnasium("ant_v4"), "AntEnv"): _ant,
    (_gymnasium("ant_v5"), "AntEnv"): _ant_with_forces,
    (_gymnasium("humanoid_v4"), "HumanoidEnv"): _humanoid,
    (_gymnasium("humanoid_v5"), "HumanoidEnv"): _humanoid_with_forces,
    ("trpl.rollouts.humanoid", "PaperHumanoid"): _paper_humanoid,
}
