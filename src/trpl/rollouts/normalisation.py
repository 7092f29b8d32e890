"""Running normalisation of observations and rewards, in NumPy, with a state for checkpoints.

Statistics are those of all values seen so far (no forgetting), kept in float64 by Welford's update and Chan's for
batches. An observation is normalised with the statistics that already include it. Environments side by side update
copies, which are merged after each rollout.

With `released` the variance is that of the authors' release, which is not a variance: M2 = var·n + ..., var =
M2/(n − 1), so single values give var_n = var_{n−1} + (x_n − mean_{n−1})²/n. It grows like ln n: the deviation is too
large by a factor of 2.5 to 3 after 2,048 steps and of 3.3 to 3.7 after 300,000.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from trpl.policies.normaliser import clipped, standardise

add, divide, multiply, sqrt, subtract = np.add, np.divide, np.multiply, np.sqrt, np.subtract  # bound once
add_reduce, square = np.add.reduce, np.square
VARIANCE_FLOOR = 1e-8  # added to the variance: a constant observation becomes 0, not NaN
INHERITED_COUNT = 2048  # observations that another run's statistics count for: one rollout's, so that they adapt


class ObservationNormaliser:
    """(x − mean)/√(variance + 1e-8), optionally clipped to ±clip; float32 out.

    With `enabled=False` observations pass through (cast to float32) and nothing is learned.
    """

    def __init__(self, size: int, *, clip: float | None = None, enabled: bool = True, released: bool = False):
        self.enabled, self.clip, self.released = enabled, clip, released
        self.count = 0
        self.mean, self._sum_squares = np.zeros(size), np.zeros(size)
        self._shift, self._work, self._centred = np.empty(size), np.empty(size), np.empty(size)
        # zero-dimensional arrays: NumPy multiplies by them at half the cost of a Python float
        self._weight, self._floor = np.zeros(()), np.array(VARIANCE_FLOOR)

    @property
    def variance(self) -> np.ndarray:
        return self._sum_squares / self.count if self.count else np.ones_like(self.mean)

    @property
    def scale(self) -> np.ndarray:
        """The divisor of observations."""
        return np.sqrt(self.variance + VARIANCE_FLOOR)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """Normalise with the current statistics."""
        return self.frozen()(observation)

    def frozen(self) -> Callable[[np.ndarray], np.ndarray]:
        """Take the normalisation with the current statistics, to use before they change.

        Returns:
            A function from observations to the same, normalised.
        """
        if not self.enabled:
            return lambda observation: observation.astype(np.float32)
        mean, scale, clip = self.mean, self.scale, self.clip
        return lambda observation: standardise(observation, mean, scale, clip)

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Update the statistics with observations, then normalise them.

        Args:
            observation: One [obs] or a batch [N, obs].

        Returns:
            The same, normalised.
        """
        if not self.enabled:
            return observation.astype(np.float32)
        if observation.ndim > 1:
            self._include_batch(observation)
            return self(observation)
        return self._observe_one(observation)

    def _observe_one(self, observation: np.ndarray) -> np.ndarray:
        """Do Welford's update and normalise in ten array operations: this runs at every environment step."""
        self.count += 1
        mean, sum_squares, weight = self.mean, self._sum_squares, self._weight
        shift, work, centred = self._shift, self._work, self._centred
        weight[()] = 1.0 / self.count
        subtract(observation, mean, shift)
        multiply(shift, weight, work)
        add(mean, work, mean)
        subtract(observation, mean, centred)
        multiply(shift, centred, shift)
        add(sum_squares, shift, sum_squares)
        if self.released and self.count > 1:
            multiply(sum_squares, self.count / (self.count - 1), sum_squares)
        multiply(sum_squares, weight, work)
        add(work, self._floor, work)
        sqrt(work, work)
        divide(centred, work, centred)
        return clipped(centred, self.clip)

    def _include_batch(self, batch: np.ndarray) -> None:
        """Do Chan's update (Chan, Golub and LeVeque 1979) of mean and Σ(x − mean)² with a batch."""
        total = self.count + len(batch)
        batch_mean = add_reduce(batch, axis=0) / len(batch)  # as `mean` and `sum`, without their checks in Python
        shift = batch_mean - self.mean
        self._sum_squares += add_reduce(square(batch - batch_mean), axis=0)
        self._sum_squares += square(shift) * (self.count * len(batch) / total)
        if self.released and self.count:
            self._sum_squares *= total / (total - 1)
        self.mean += shift * (len(batch) / total)
        self.count = total

    @contextmanager
    def copies(self, number: int) -> Iterator[Sequence["ObservationNormaliser"]]:
        """Provide copies that observe independently; take in what they have observed at the end.

        With n₀, m₀ and S₀ the count, mean and sum of squares of this normaliser, nᵢ, mᵢ and Sᵢ those of a copy, and
        k copies, counts, sums and squares about any point add up:

            n = Σ nᵢ − (k − 1) n₀,   m = (Σ nᵢ mᵢ − (k − 1) n₀ m₀)/n
            S = Σ (Sᵢ + nᵢ (mᵢ − m)²) − (k − 1)(S₀ + n₀ (m₀ − m)²)

        Args:
            number: How many, k. A single copy is this normaliser itself.

        Yields:
            The copies. Nothing is taken in if the block raises.
        """
        if number == 1 or not self.enabled:
            yield [self] * number
            return
        copies = [copy.deepcopy(self) for _ in range(number)]
        yield copies
        others = number - 1
        origin = self.mean if self.count else copies[0].mean  # sums about it: a large mean does not cost digits
        count = sum(each.count for each in copies) - others * self.count
        shift = sum(each.count * (each.mean - origin) for each in copies) / count
        mean = origin + shift
        sum_squares = sum(each._sum_squares + each.count * square(each.mean - mean) for each in copies)
        sum_squares = sum_squares - others * (self._sum_squares + self.count * square(self.mean - mean))
        self.count, self.mean, self._sum_squares = count, mean, np.maximum(sum_squares, 0.0)

    def state(self) -> dict[str, np.ndarray]:
        """Return the statistics.

        Returns:
            Named arrays.
        """
        return {"count": np.array(self.count), "mean": self.mean.copy(), "sum_squares": self._sum_squares.copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the statistics.

        Args:
            arrays: The output of `state`.
        """
        self.count = int(arrays["count"])
        self.mean = np.array(arrays["mean"], dtype=np.float64)
        self._sum_squares = np.array(arrays["sum_squares"], dtype=np.float64)

    def start_from(self, mean: np.ndarray, scale: np.ndarray) -> None:
        """Start from the statistics of another run.

        Args:
            mean: The mean of its observations.
            scale: Their standard deviation.
        """
        if self.enabled:
            self.count = INHERITED_COUNT
            self.mean = np.array(mean, dtype=np.float64)
            self._sum_squares = INHERITED_COUNT * np.maximum(np.square(scale) - VARIANCE_FLOOR, 0.0)


class RewardNormaliser:
    """Rewards divided by the running standard deviation of the discounted return, clipped to ±clip.

    R_t = γ R_{t−1} + r_t per environment, started at 0 in each episode; r_t is divided by √(variance of all R so far,
    R_t included, + 1e-8). Rewards do not influence data collection, so a whole rollout is processed at once.
    With `enabled=False` rewards pass through.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        discount: float,
        clip: float | None = None,
        enabled: bool = True,
        released: bool = False,
    ):
        self.enabled, self.discount, self.clip, self.num_envs = enabled, discount, clip, num_envs
        self.released = released
        self.count = 0
        self.mean, self._sum_squares = np.float64(0), np.float64(0)
        self.discounted = np.zeros(num_envs)

    def __call__(self, rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Normalise rewards [T, N] in order of time; `ended` [T, N] marks the last step of an episode."""
        if not self.enabled:
            return rewards.astype(np.float32)
        discounted = np.array([self._discount(n, rewards[:, n], ended[:, n]) for n in range(self.num_envs)]).T
        variances = self._released_variances(discounted) if self.released else self._variances(discounted)
        return clipped(rewards / np.sqrt(variances + VARIANCE_FLOOR)[:, None], self.clip)

    def _variances(self, discounted: np.ndarray) -> np.ndarray:
        """Compute the variance of all R [T, N] so far, after each step.

        From sums about the mean so far: Σ(x − c)² = Σ(x − mean)² + count (mean − c)².
        """
        shifted = discounted - self.mean
        counts = self.count + self.num_envs * np.arange(1, len(discounted) + 1)
        sums = np.cumsum(shifted.sum(axis=1))
        sums_squares = self._sum_squares + np.cumsum(np.square(shifted).sum(axis=1)) - np.square(sums) / counts
        self.mean, self._sum_squares = self.mean + sums[-1] / counts[-1], sums_squares[-1]
        self.count = int(counts[-1])
        return sums_squares / counts

    def _released_variances(self, discounted: np.ndarray) -> np.ndarray:
        """Compute the same by the release's formula, step by step."""
        found = np.empty(len(discounted))
        for t, values in enumerate(discounted):
            total, shift = self.count + len(values), values.mean() - self.mean
            self._sum_squares += values.var() * len(values) + shift**2 * (self.count * len(values) / total)
            if self.count:
                self._sum_squares *= total / (total - 1)
            self.mean += shift * (len(values) / total)
            self.count = total
            found[t] = self._sum_squares / total
        return found

    def _discount(self, n: int, rewards: np.ndarray, ended: np.ndarray) -> list[float]:
        """Compute R_t of one environment, in Python numbers: ten times as fast as arrays with one element."""
        running, discounted = float(self.discounted[n]), []
        for reward, end in zip(rewards.tolist(), ended.tolist(), strict=True):
            running = self.discount * running + reward
            discounted.append(running)
            if end:
                running = 0.0
        self.discounted[n] = running
        return discounted

    def state(self) -> dict[str, np.ndarray]:
        """Return the statistics.

        Returns:
            Named arrays.
        """
        return {
            "count": np.array(self.count),
            "mean": np.array(self.mean),
            "sum_squares": np.array(self._sum_squares),
            "discounted": self.discounted.copy(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the statistics.

        Args:
            arrays: The output of `state`.
        """
        self.count = int(arrays["count"])
        self.mean, self._sum_squares = np.float64(arrays["mean"]), np.float64(arrays["sum_squares"])
        self.discounted = np.array(arrays["discounted"], dtype=np.float64)
