"""Frameworks that go wrong, for the tests of the comparison."""

import os
import resource
import signal
import time

import torch

from ddp_bench.comparative.frameworks.pytorch import DataParallel
from ddp_bench.comparative.frameworks.task import own_rows
from ddp_bench.toolbox import token_loss

AT = 2  # step at which something happens


class Odd(DataParallel):
    """Data parallel, and something of its own at step AT."""

    done = 0

    def step(self, tokens, targets):
        self.done += 1
        loss = super().step(tokens, targets)
        return self.odd(loss) if self.done > AT else loss

    def odd(self, loss):
        raise NotImplementedError


class NotFinite(Odd):
    """Its losses become NaN."""

    def odd(self, loss):
        return loss * float("nan")


class Dies(Odd):
    """Its last rank is killed."""

    def odd(self, loss):
        if self.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss


class DiesLater(Dies):
    """Its last rank is killed after the losses have been compared."""

    def odd(self, loss):
        return super().odd(loss) if self.done > 2 * AT else loss


class Raises(Odd):
    """A rank raises."""

    def odd(self, loss):
        raise ValueError("three is too many\nand more")


class Stalls(Odd):
    """A rank is silent."""

    def odd(self, loss):
        time.sleep(3600 * self.ranks.rank)
        return loss


class Summed(DataParallel):
    """Gradients are summed over ranks, and should be averaged."""

    def step(self, tokens, targets):
        own = (own_rows(part, self.ranks.rank, self.ranks.ranks) for part in (tokens, targets))
        loss = token_loss(self.model(next(own)), next(own))
        (loss * self.ranks.ranks).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Forgets(DataParallel):
    """It loads weights, and no optimizer state."""

    def load(self, folder):
        state = self.optimizer.state_dict()
        super().load(folder)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=state["param_groups"][0]["lr"]
        )


class FullDisk(DataParallel):
    """No file can grow while it saves."""

    def save(self, folder):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, before[1]))
        try:
            super().save(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


class NotFiniteGradient(DataParallel):
    """From step AT on a gradient of its last rank is NaN."""

    done = 0

    def step(self, tokens, targets):
        self.done += 1
        if self.done == AT and self.ranks.rank == 1:
            weight = next(self.model.parameters())
            weight.register_hook(lambda gradient: gradient * float("nan"))
        return super().step(tokens, targets)


class HookRaises(DataParallel):
    """From step AT on a hook of its last rank raises in backward."""

    done = 0

    def step(self, tokens, targets):
        self.done += 1
        if self.done == AT and self.ranks.rank == 1:
            next(self.model.parameters()).register_hook(self.refuse)
        return super().step(tokens, targets)

    def refuse(self, gradient):
        raise ValueError("three is too many")


class StartsOnce(DataParallel):
    """It starts once; a file in the folder STARTED says so."""

    def __init__(self, *given, **settings):
        super().__init__(*given, **settings)
        self.ours = os.path.join(os.environ["STARTED"], f"rank-{self.ranks.rank}")
        if os.path.exists(self.ours):
            raise ValueError("it has been started before")
        with open(self.ours, "w", encoding="utf-8"):
            pass
