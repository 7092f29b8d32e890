"""The TorchRL adapter: the loss is the paper's, the keys are TorchRL's, the usual loop runs."""

import warnings

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import CompositeDistribution, TensorDictModule, set_composite_lp_aggregate
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchrl.collectors import Collector
    from torchrl.data import Bounded
    from torchrl.envs import GymEnv
    from torchrl.modules import (
        IndependentNormal,
        NormalParamExtractor,
        OneHotCategorical,
        ProbabilisticActor,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.utils import ValueEstimators
    from torchrl.objectives.value import GAE

from trpl import Categorical, DiagGaussian, Product, entropy, kl, kl_parts
from trpl.integrations.distributions import project
from trpl.integrations.torchrl import ProjectionModule, SharedScale, TRPLLoss
from trpl.torch import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

pytestmark = [pytest.mark.filterwarnings("ignore:::torchrl"), pytest.mark.filterwarnings("ignore:::tensordict")]
LAYERS = {
    "kl": KLProjection(0.03, 1e-3),
    "w2": WassersteinProjection(0.03, 1e-3),
    "frobenius": FrobeniusProjection(0.03, 1e-3),
    "kl-joint": JointKLProjection(0.031),
}


def contextual_actor(distribution_class=IndependentNormal, **kwargs):
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4), NormalParamExtractor())
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"])
    return ProbabilisticActor(
        module,
        in_keys=["loc", "scale"],
        spec=Bounded(-1.0, 1.0, (2,)),
        distribution_class=distribution_class,
        return_log_prob=True,
        **kwargs,
    )


def shared_actor():
    head = SharedScale(2)
    module = TensorDictModule(nn.Sequential(nn.Linear(3, 2), head), in_keys=["observation"], out_keys=["loc", "scale"])
    return head, ProbabilisticActor(
        module,
        in_keys=["loc", "scale"],
        spec=Bounded(-1.0, 1.0, (2,)),
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )


def collected(actor, count=64):
    """What a collector and GAE leave behind."""
    data = TensorDict({"observation": torch.randn(count, 3)}, [count])
    with torch.no_grad():
        actor(data)
    data["advantage"], data["value_target"] = torch.randn(count, 1), torch.randn(count, 1)
    return data


def critic():
    return ValueOperator(nn.Linear(3, 1), in_keys=["observation"])


def move(actor, amount=0.3):
    """Another policy than the one that collected."""
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(amount * torch.randn_like(parameter))


@pytest.mark.parametrize("name", LAYERS)
def test_the_loss_is_the_papers(name):
    torch.manual_seed(0)
    actor, value = contextual_actor(), critic()
    data = collected(actor)
    move(actor)
    layer = LAYERS[name]
    loss = TRPLLoss(actor, value, layer=layer, regression_weight=3.0)
    found = loss(data)
    predicted = actor.get_dist(data.select("observation"))
    predicted = DiagGaussian(predicted.base_dist.loc, predicted.base_dist.scale)
    old = DiagGaussian(data["loc"], data["scale"])
    projected = layer(predicted, old)
    normal = torch.distributions.Independent(torch.distributions.Normal(*projected), 1)
    ratio = torch.exp(normal.log_prob(data["action"]) - data["action_log_prob"])
    advantage = data["advantage"][:, 0]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    kl = kl_parts(predicted, old)
    assert found["loss_objective"].item() == pytest.approx(-(ratio * advantage).mean().item(), rel=1e-5)
    assert found["loss_penalty"].item() == pytest.approx(
        3.0 * layer.penalty(predicted, projected).mean().item(), rel=1e-5
    )
    assert found["kl"].item() == pytest.approx((kl.mean + kl.cov).mean().item(), rel=1e-5)
    errors = value(data.select("observation"))["state_value"] - data["value_target"]
    assert found["loss_critic"].item() == pytest.approx(errors.square().mean().item(), rel=1e-5)


def test_gradients_reach_actor_and_critic_apart():
    actor, value = contextual_actor(), critic()
    data = collected(actor)
    move(actor)
    loss = TRPLLoss(actor, value, layer=LAYERS["kl"])
    found = loss(data)
    (found["loss_objective"] + found["loss_penalty"]).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in actor.parameters())
    assert all(parameter.grad is None for parameter in value.parameters())
    found["loss_critic"].backward()
    assert all(parameter.grad is not None for parameter in value.parameters())
    assert not data["loc"].requires_grad  # what the collector wrote is left alone


@pytest.mark.parametrize("kind", ["GAE", "TD0", "TD1", "TDLambda"])
def test_advantages_that_are_missing_are_computed_as_in_torchrls_ppo(kind):
    torch.manual_seed(0)
    actor, value = contextual_actor(), critic()
    data = collected(actor).reshape(8, 8).exclude("advantage", "value_target")
    later = {"observation": torch.randn(8, 8, 3), "reward": torch.randn(8, 8, 1)}
    endings = {name: torch.zeros(8, 8, 1, dtype=torch.bool) for name in ("done", "terminated")}
    data["next"] = TensorDict(later | endings, [8, 8])
    move(actor)
    ours, theirs = TRPLLoss(actor, value, layer=LAYERS["kl"]), ClipPPOLoss(actor, value)
    for loss in (ours, theirs):
        loss.make_value_estimator(ValueEstimators[kind], gamma=0.9)
    given = data.copy()
    theirs.value_estimator(given, params=theirs.critic_network_params.data, target_params=theirs.critic_network_params)
    found, wanted = ours(data), ours(given)
    assert data.get("advantage", None) is None
    for name in ("loss_objective", "loss_critic"):
        assert found[name].item() == pytest.approx(wanted[name].item(), rel=1e-6)


def test_what_a_minibatch_lacks_is_said():
    actor = contextual_actor()
    data = collected(actor)
    loss = TRPLLoss(actor, critic(), layer=LAYERS["kl"])
    with pytest.raises(ValueError, match="no 'action_log_prob': make the actor with return_log_prob=True"):
        loss(data.exclude("action_log_prob"))
    with pytest.raises(ValueError, match="no 'scale' of the policy that acted"):
        loss(data.exclude("scale"))
    with pytest.raises(ValueError, match=r"shapes are \(64, 64\) and \(64,\)"):
        loss(data.copy().set("action_log_prob", data["action_log_prob"][:, None]))
    with pytest.raises(ValueError, match=r"values \(64, 1\) and value targets \(64,\)"):
        loss.loss_critic(data.copy().set("value_target", data["value_target"][:, 0]))


def test_a_shared_scale_is_solved_once_and_set():
    torch.manual_seed(0)
    head, actor = shared_actor()
    data = collected(actor)
    with torch.no_grad():
        head.raw.sub_(1.0)
    loss = TRPLLoss(actor, critic(), layer=LAYERS["kl"], shared_covariance=True)
    projected = loss.projected(data)
    assert projected.shares_covariance
    assert kl_parts(projected, DiagGaussian(data["loc"], torch.ones(2))).cov.item() == pytest.approx(1e-3, rel=1e-2)
    assert loss(data)["loss_penalty"].item() == pytest.approx(0.0, abs=1e-9)  # the mean has not moved
    head.set_(projected.std)
    assert torch.allclose(actor.get_dist(data.select("observation")).base_dist.scale[0], projected.std)


def test_a_scale_that_is_not_shared_is_refused():
    actor = contextual_actor()
    with pytest.raises(ValueError, match="scales of these states differ"):
        TRPLLoss(actor, critic(), layer=LAYERS["kl"], shared_covariance=True)(collected(actor))
    head, actor = shared_actor()
    first = collected(actor)
    head.set_(torch.full((2,), 0.7))
    loss = TRPLLoss(actor, critic(), layer=LAYERS["kl"], shared_covariance=True)
    with pytest.raises(ValueError, match="from one rollout"):
        loss(torch.cat([first, collected(actor)]))


def test_squashed_policies():
    torch.manual_seed(0)
    actor = contextual_actor(TanhNormal, distribution_kwargs={"tanh_loc": False})
    data = collected(actor)
    loss = TRPLLoss(actor, critic(), layer=LAYERS["kl"], normalize_advantage=False)
    unmoved = -data["advantage"].mean().item()  # ratio 1 everywhere
    assert loss(data)["loss_objective"].item() == pytest.approx(unmoved, abs=1e-3)
    move(actor)
    assert loss(data)["loss_penalty"].item() > 0.0


def test_entropy_may_be_held():
    actor = contextual_actor()
    data = collected(actor)
    loss = TRPLLoss(actor, critic(), layer=LAYERS["kl"])
    loss.entropy = 2.5
    assert entropy(loss.projected(data)) == pytest.approx(2.5, abs=1e-5)


def test_projection_module_on_keys():
    torch.manual_seed(0)
    data = TensorDict(
        {
            "loc": torch.randn(4, 2), "scale": torch.rand(4, 2) + 0.5,
            "before": {"loc": torch.randn(4, 2), "scale": torch.rand(4, 2) + 0.5},
        },
        [4],
    )  # fmt: skip
    module = ProjectionModule(LAYERS["kl"], in_keys=["loc", "scale", ("before", "loc"), ("before", "scale")])
    module(data)
    wanted = LAYERS["kl"](DiagGaussian(data["loc"], data["scale"]), DiagGaussian(*data["before"].values()))
    assert torch.equal(data["projected_loc"], wanted.mean)
    assert torch.equal(data["projected_scale"], wanted.std)
    full = ProjectionModule(LAYERS["w2"], out_keys=["a", "b"])
    eye = torch.eye(2).expand(4, 2, 2).contiguous()
    a, b = full(loc=data["loc"], scale=2.0 * eye, old_loc=data["loc"] + 1.0, old_scale=eye)
    assert (a.shape, b.shape) == ((4, 2), (4, 2, 2))


@pytest.mark.filterwarnings("ignore")  # gymnasium's and torchrl's own
def test_collector_gae_and_loss_in_a_loop():
    torch.manual_seed(0)
    env = GymEnv("Pendulum-v1")
    head = SharedScale(1)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), head)
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    value = critic()
    loss = TRPLLoss(actor, value, layer=KLProjection(0.03, 1e-3, check=False), shared_covariance=True)
    loss.make_value_estimator(gamma=0.9, lmbda=0.95)
    outside = GAE(gamma=0.9, lmbda=0.95, value_network=value)
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.05)
    for data in Collector(env, actor, frames_per_batch=64, total_frames=128):
        with torch.no_grad():
            loss.value_estimator(
                data, params=loss.critic_network_params, target_params=loss.target_critic_network_params
            )
            assert torch.allclose(data["advantage"], outside(data.exclude("advantage"))["advantage"], atol=1e-5)
        for _ in range(5):
            found = loss(data)
            optimiser.zero_grad()
            sum(found[key] for key in found.keys() if key.startswith("loss_")).backward()  # noqa: SIM118
            optimiser.step()
        assert found["kl"].item() > 0.0
        assert np.isfinite([found[key].item() for key in loss.out_keys]).all()
        head.set_(loss.projected(data.reshape(-1)).std)


def class_actor(distribution_class, **kwargs):
    module = TensorDictModule(nn.Linear(3, 4), in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(
        module, in_keys=["logits"], distribution_class=distribution_class, return_log_prob=True, **kwargs
    )


@pytest.mark.parametrize("one_hot", [False, True])
def test_classes_as_numbers_or_one_hot(one_hot):
    torch.manual_seed(0)
    actor = class_actor(OneHotCategorical if one_hot else torch.distributions.Categorical)
    data = collected(actor)
    move(actor, 1.0)
    layer = JointKLProjection(0.02)
    found = TRPLLoss(actor, critic(), layer=layer, normalize_advantage=False)(data)
    predicted, old = Categorical(actor(data.select("observation"))["logits"]), Categorical(data["logits"])
    projected = layer(predicted, old)
    assert kl(projected, old).max() <= 0.02 * (1 + 1e-4) < kl(predicted, old).max()
    index = data["action"].int().argmax(-1) if one_hot else data["action"]
    chosen = torch.distributions.Categorical(logits=projected.logits).log_prob(index)
    ratio = torch.exp(chosen - data["action_log_prob"])
    assert found["loss_objective"].item() == pytest.approx(-(ratio * data["advantage"][:, 0]).mean().item(), rel=1e-5)
    assert found["kl"].item() == pytest.approx(kl(predicted, old).mean().item(), rel=1e-5)
    found["loss_objective"].backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in actor.parameters())


def test_a_shared_covariance_is_for_gaussians():
    actor = class_actor(torch.distributions.Categorical)
    loss = TRPLLoss(actor, critic(), layer=JointKLProjection(0.02), shared_covariance=True)
    with pytest.raises(ValueError, match="a Gaussian is needed here, not a Categorical"):
        loss(collected(actor))


class HybridNetwork(nn.Module):
    """Two joints and a gripper of three positions."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 7)

    def forward(self, observation):
        found = self.last(observation)
        return found[..., :2], found[..., 2:4].exp(), found[..., 4:]


def hybrid_actor(arm=IndependentNormal):
    out = [("params", "arm", "loc"), ("params", "arm", "scale"), ("params", "gripper", "logits")]
    return ProbabilisticActor(
        TensorDictModule(HybridNetwork(), in_keys=["observation"], out_keys=out),
        in_keys=["params"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={
            "distribution_map": {"arm": arm, "gripper": torch.distributions.Categorical},
            "name_map": {"arm": ("action", "arm"), "gripper": ("action", "gripper")},
        },
        return_log_prob=True,
    )


@pytest.mark.parametrize("aggregate", [False, True], ids=["a log-density per part", "their sum"])
def test_hybrid_actions_of_a_composite_distribution(aggregate):
    torch.manual_seed(0)
    with set_composite_lp_aggregate(aggregate):
        actor, value = hybrid_actor(), critic()
        data = collected(actor)
        stored = data["params"].clone()
        move(actor)
        loss = TRPLLoss(actor, value, layer=JointKLProjection(0.05), regression_weight=2.0)
        found = loss(data)
    assert all((data["params"][key] == stored[key]).all() for key in stored.keys(True, True)), "the old policy moved"

    mean, std, logits = actor[0].module(data["observation"])
    predicted = Product((DiagGaussian(mean, std), Categorical(logits)))
    old = Product(
        (DiagGaussian(*(stored["arm", key] for key in ("loc", "scale"))), Categorical(stored["gripper", "logits"]))
    )
    layer = JointKLProjection(0.05)
    projected = layer(predicted, old)
    assert float(kl(projected, old).detach().max()) == pytest.approx(0.05, rel=1e-4)

    def density(p):  # PyTorch's own
        arm, gripper = p.parts
        normal = torch.distributions.Normal(arm.mean, arm.std).log_prob(data["action", "arm"]).sum(-1)
        return normal + torch.distributions.Categorical(logits=gripper.logits).log_prob(data["action", "gripper"])

    advantage = data["advantage"].squeeze(-1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (density(projected) - density(old)).exp()
    torch.testing.assert_close(found["loss_objective"], -(ratio * advantage).mean(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["loss_penalty"], 2.0 * layer.penalty(predicted, projected).mean())
    (found["loss_objective"] + found["loss_penalty"]).backward()
    assert all(torch.isfinite(p.grad).all() and (p.grad != 0).any() for p in actor.parameters() if p.grad is not None)


def test_a_composite_distribution_comes_back_as_one():
    """Also with a squashed part: a bijection leaves the KL as it is."""
    torch.manual_seed(0)
    actor = hybrid_actor(arm=TanhNormal)
    data = collected(actor)
    old = actor.build_dist_from_params(data.clone())
    move(actor)
    predicted = actor.get_dist(data.select("observation"))
    projected = project(JointKLProjection(0.05), predicted, old)
    assert type(projected) is CompositeDistribution
    assert {key: type(part) for key, part in projected.dists.items()} == {
        ("action", "arm"): torch.distributions.TransformedDistribution,
        ("action", "gripper"): torch.distributions.Categorical,
    }
    assert projected.sample()["action", "arm"].shape == (64, 2)
