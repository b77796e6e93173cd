"""Finding an adapter: by class, by name, by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from torch import nn

import leanwam.models.hosts as hosts
from leanwam.errors import InputError
from leanwam.models.hosts.base import Host


class Mine(Host):
    name, expects = "mine", "MyModel"

    @classmethod
    def recognises(cls, model):
        return type(model).__name__ == "MyModel"

    def describe(self):
        raise NotImplementedError

    def heads(self):
        return {"action": self.model}

    @property
    def n_steps(self):
        return {"action": 4}

    def _attach(self):
        from contextlib import nullcontext

        return nullcontext()


class MyModel(nn.Linear):
    pass


def points(value):
    return lambda group: [EntryPoint("mine", value, group)] if group == "leanwam.hosts" else []


def test_a_third_party_adapter_is_found_and_runs(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "third_party_adapter", sys.modules[__name__])
    monkeypatch.setattr(hosts, "entry_points", points("third_party_adapter:Mine"))
    model = MyModel(2, 2)
    import torch

    with hosts.host(model).execute("sparse_2") as running:
        for _ in range(4):
            model(torch.ones(1, 2))
    assert running.executions == {"action": 2}
    assert "mine" in hosts.adapters()


@pytest.mark.parametrize(
    ("value", "rule"), [("no_such_module_xyz:A", "cannot be loaded"), ("json:loads", "subclass")]
)
def test_a_broken_entry_point_is_named(monkeypatch, value, rule):
    monkeypatch.setattr(hosts, "entry_points", points(value))
    with pytest.raises(InputError, match=rf"leanwam.hosts.mine.*{rule}"):
        hosts.adapters()


def test_a_host_without_caches_refuses_one_by_name():
    with (
        pytest.raises(InputError, match=r"mine: this model runs no cache plans \(got 'first_block"),
        Mine(MyModel(2, 2)).execute("cache:first_block:threshold=0.1"),
    ):
        pass


def test_an_unknown_name_lists_those_known():
    with pytest.raises(InputError, match="xwam, unifolm"):
        hosts.host(nn.Linear(1, 1), "xwan")
