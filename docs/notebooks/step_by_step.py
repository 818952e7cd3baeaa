# %% [markdown]
# # OAPL step by step
#
# The whole algorithm on a policy that fits in the head: one prompt, four possible answers, a softmax over four
# numbers. Each quantity is computed twice: as the paper writes it (arXiv 2602.19362), and by the function that `oapl
# run` calls. Equation numbers are those of [docs/objectives.md](../objectives.md). To try it:
# `.venv/bin/jupytext --to ipynb docs/notebooks/step_by_step.py`, or any editor with cells.

# %%
import matplotlib.pyplot as plt
import torch

from oapl_core import Inputs, Oapl, StepSizes
from oapl_core.objectives.values import log_mean_exp_values

torch.manual_seed(0)
ANSWERS = ["right", "right, but odd", "wrong", "wrong, and common"]
REWARD = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)

# %% [markdown]
# ## 1. Sample
#
# `b`, the behaviour policy, samples a group of `n` answers to the prompt. Their log-probs are recorded as they are
# drawn; nothing computes them again.

# %%
behaviour = torch.tensor([0.15, 0.05, 0.30, 0.50], dtype=torch.float64)
n = 64
sampled = torch.multinomial(behaviour, n, replacement=True)
ln_b = behaviour.log()[sampled]
counts = torch.bincount(sampled, minlength=4)
for answer, count in zip(ANSWERS, counts, strict=True):
    print(f"{count:3} x {answer}")

# %% [markdown]
# ## 2. Judge
#
# A verdict gives each answer a reward, here 1 or 0.

# %%
reward = REWARD[sampled]
print(f"mean reward {reward.mean():.3f}")

# %% [markdown]
# ## 3. Values and advantages (eq. 2)
#
#     V = beta1 ln( (1/n) sum_i exp(r_i / beta1) ),     A_i = r_i - V
#
# V lies between the mean reward (large beta1) and the best one (small beta1).

# %%
beta1, beta2 = 1.0, 0.5
V = beta1 * torch.log(torch.exp(reward / beta1).mean())
group = torch.zeros(n, dtype=torch.long)  # all answers belong to one prompt
assert torch.allclose(V, log_mean_exp_values(reward, group, beta1))

oapl = Oapl(value_temperature=beta1, regression_temperature=beta2)
A = oapl.advantages(reward, group)
assert torch.allclose(A, reward - V)
print(f"V = {V:.4f}; advantage of a right answer {A.max():+.4f}, of a wrong one {A.min():+.4f}")

# %% [markdown]
# ## 4. The loss (eq. 3)
#
#     L = (1/N) sum_i ( beta2 s_i - A_i )^2,     s_i = sum_t ( ln pi(y_it) - ln b(y_it) )
#
# An answer is a single token here, so the sum over tokens has one term. There is no importance ratio and no clipping.

# %%
logits = behaviour.log().clone().requires_grad_()  # the policy starts as b


def inputs() -> Inputs:
    """What an objective gets in a training step: log-ratios [sequences, tokens], and what is known of the answers."""
    log_ratio = (logits.log_softmax(0)[sampled] - ln_b)[:, None]
    sizes = StepSizes(sequences=n, groups=1, tokens=n)
    return Inputs(log_ratio, torch.ones(n, 1, dtype=torch.bool), A, reward, group, sizes)


s = logits.log_softmax(0)[sampled] - ln_b
by_hand = (beta2 * s - A).square().mean()
loss = oapl.loss_of_step(inputs()).value
assert torch.allclose(loss, by_hand)
assert torch.allclose(loss, A.square().mean()), "where the policy is b, only A is left"
print(f"loss {loss.item():.4f}")

# %% [markdown]
# ## 5. One update
#
# At pi = b the gradient is -2 beta2 times that of REINFORCE with the baseline V: the first step is a policy gradient.
# Later steps differ, since beta2 s_i grows towards A_i, where the pull ends.

# %%
(gradient,) = torch.autograd.grad(loss, logits)
(reinforce,) = torch.autograd.grad((A * logits.log_softmax(0)[sampled]).mean(), logits)
assert torch.allclose(gradient, -2 * beta2 * reinforce)

with torch.no_grad():
    logits -= 1.0 * gradient
print("before", behaviour.numpy().round(3))
print("after ", logits.softmax(0).detach().numpy().round(3))
assert (REWARD * logits.softmax(0)).sum() > (REWARD * behaviour).sum()

# %% [markdown]
# ## 6. Many updates on the same answers
#
# The answers may be old: b stays what it was. Loss and gradient are 0 where ln pi = ln b + A / beta2, which is a
# distribution for beta1 = beta2 only; for others the policy ends as near as one can be. It stays spread over both
# right answers: nothing but the reward tells them apart.

# %% alt="Probability of each answer over 200 updates: both right answers rise, both wrong ones fall"
optimizer = torch.optim.Adam([logits], lr=0.05)
history = []
for _ in range(200):
    history.append(logits.softmax(0).detach())
    optimizer.zero_grad()
    oapl.loss_of_step(inputs()).value.backward()
    optimizer.step()

figure, axes = plt.subplots(figsize=(7, 3.5))
for answer, line, style in zip(ANSWERS, torch.stack(history).T, ("-", "--", "-.", ":"), strict=True):
    axes.plot(line, style, label=answer)
axes.set(xlabel="update", ylabel="probability", ylim=(0, None))
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# With equal temperatures the end is known exactly. The weights below are those of the answers that were sampled:

# %%
equal = Oapl(value_temperature=beta2, regression_temperature=beta2)
advantage = equal.advantages(reward, group)
optimum = ln_b + advantage / beta2
empirical = torch.full((n,), 1 / n, dtype=torch.float64)
weights = empirical * torch.exp(advantage / beta2)
assert torch.allclose(weights.sum(), torch.tensor(1.0, dtype=torch.float64)), "eq. 2 is what makes it a distribution"
solved = Inputs((optimum - ln_b)[:, None], torch.ones(n, 1, dtype=torch.bool), advantage, reward, group, inputs().sizes)
assert equal.loss_of_step(solved).value < 1e-20
print(f"share of right answers: sampled {reward.mean():.3f}, at the optimum {(weights * reward).sum():.3f}")
