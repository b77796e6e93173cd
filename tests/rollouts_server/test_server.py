"""Requests through the real protocols: X-WAM's broker over ZeroMQ, openpi's websocket."""

from __future__ import annotations

import gc
import io
import pickle
import threading
import urllib.request
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest
import torch
import zmq
from torch import nn

from leanwam.errors import InputError
from leanwam.models.hosts import host
from leanwam.rollouts.server import (
    Broker,
    PolicyService,
    WebsocketServer,
    XWAMPolicy,
    request_seed,
    serve_broker,
)
from leanwam.rollouts.server.broker import check_address
from leanwam.rollouts.server.pickles import read_message, write_message
from leanwam.rollouts.server.websocket import pack, unpack
from leanwam.rollouts.server.xwam_policy import Quantiles


class FlowCore(nn.Module):
    """A flow policy with LeRobot's method names: ten Euler steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(num_inference_steps=10)
        self.net, self.n_runs, self.broken = nn.Linear(7, 7), 0, False

    def denoise_step(self, x_t, timestep):
        self.n_runs += 1
        if self.broken and self.n_runs % 3 == 0:
            raise ValueError("broken")
        return torch.tanh(self.net(x_t)) * timestep.view(-1, 1, 1)

    def sample_actions(self, seed):
        x = torch.randn(1, 4, 7, generator=torch.Generator().manual_seed(seed))
        for i in range(10):
            x = x - self.denoise_step(x_t=x, timestep=torch.full((1,), 1 - i / 10)) / 10
        return x


@pytest.fixture
def core():
    return FlowCore()


def policy_of(core):
    def answer(request):
        seed = request_seed(request["env_rank"], request["rollout_id"], request["step_id"])
        with torch.no_grad():
            actions = core.sample_actions(seed)[0].numpy()
        return {"actions": actions, "proprios": np.asarray(request["proprios"])}

    return answer


def request(n):
    return {
        "env_rank": n % 24, "rollout_id": n // 24, "step_id": 32 * n,
        "video": np.zeros((3, 8, 8, 3), np.float32), "proprios": np.arange(16.0), "prompt": ["go"], "cfg": 0.0,
    }  # fmt: skip


class Client:
    """What upstream's clients do: a DEALER, one pickled dict out, one back."""

    def __init__(self, port, kind=zmq.DEALER):
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 30_000)
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def __call__(self, message):
        self.socket.send(message if isinstance(message, bytes) else pickle.dumps(message))
        return pickle.loads(self.socket.recv())

    def close(self):
        self.socket.close()
        self.context.term()


class Serving:
    def __init__(self, service, port):
        self.stop, self.answered = threading.Event(), 0
        self.thread = threading.Thread(target=self.run, args=(service, port))

    def run(self, service, port):
        self.answered = serve_broker(service, port=port, stop=self.stop)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()


def test_200_requests_through_the_broker_under_a_plan(core):
    """Counted executions are right for every request, two clients at once, and nothing grows."""
    n, wrong = 200, []
    service = PolicyService(policy_of(core), host(core), "sparse_5", keep=50)
    with (
        service,
        Broker(client_port=0, server_port=0) as broker,
        Serving(service, broker.server_port) as serving,
    ):
        client = Client(broker.client_port)
        sizes = []

        def other():
            second = Client(broker.client_port)
            for k in range(n // 2, n):
                if second(request(k))["actions"].shape != (4, 7):
                    wrong.append(k)
            second.close()

        thread = threading.Thread(target=other)
        thread.start()
        for k in range(n // 2):
            answer = client(request(k))
            if answer["actions"].shape != (4, 7) or not np.array_equal(answer["proprios"], np.arange(16.0)):
                wrong.append(k)
            if k in (30, 95):
                gc.collect()
                sizes.append(sum(type(o) is torch.Tensor for o in gc.get_objects()))
        thread.join()
        client.close()
    assert not wrong
    assert serving.answered == n
    assert core.n_runs == 5 * n
    assert service.totals()["executions"] == {"action": 5 * n}
    assert (service.totals()["n_requests"], service.totals()["n_errors"]) == (n, 0)
    assert len(service.answered) == 50
    assert all(a.executions == {"action": 5} and a.plan == "sparse_5" for a in service.answered)
    assert [a.number for a in service.answered] == list(range(150, 200))
    assert abs(sizes[1] - sizes[0]) < 40  # a handful may be in flight in the other thread
    assert "denoise_step" not in core.__dict__


def test_a_dense_plan_answers_as_the_bare_policy(core):
    bare = [policy_of(core)(request(k))["actions"] for k in range(3)]
    with PolicyService(policy_of(core), host(core)) as service:
        for k, wanted in enumerate(bare):
            np.testing.assert_array_equal(service.answer(request(k))["actions"], wanted)


def test_the_plan_is_changed_between_requests(core):
    with PolicyService(policy_of(core), host(core)) as service:
        dense = service.answer(request(0))["actions"]
        service.set_plan("sparse_2")
        assert not np.array_equal(service.answer(request(0))["actions"], dense)
        with pytest.raises(InputError, match="unknown plan"):
            service.set_plan("sprase_2")
        assert service.plan_name == "sparse_2"
        service.answer(request(0))
        service.set_plan("dense")
        np.testing.assert_array_equal(service.answer(request(0))["actions"], dense)
    assert [a.executions["action"] for a in service.answered] == [10, 2, 2, 10]
    with pytest.raises(InputError, match="give host="):
        PolicyService(policy_of(core), None, "sparse_2")
    with pytest.raises(InputError, match="not open"):
        service.answer(request(0))


def test_a_cache_plan_is_in_force_and_counted(core):
    """A diffusers model behind the server: caches per request, nothing left behind when the plan changes."""
    from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

    torch.manual_seed(0)
    net = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    ).eval()  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)

    @torch.no_grad()
    def answer(message):
        x = torch.randn(1, 4, 1, 8, 8, generator=torch.Generator().manual_seed(message["step_id"]))
        scheduler.set_timesteps(6)
        for t in scheduler.timesteps:
            out = net(x, t.expand(1), torch.ones(1, 2, 16), return_dict=False)[0]
            x = scheduler.step(out, t, x, return_dict=False)[0]
        return {"actions": x.flatten().numpy()}

    cache = "cache:first_block:threshold=0.5"
    with PolicyService(answer, host(net, scheduler=scheduler), options={"n_steps": 6}, keep=4) as service:
        dense = service.answer(request(0))["actions"]
        service.set_plan(cache)
        lean = service.answer(request(0))["actions"]
        for k in range(1, 7):  # beyond keep: opened anew in between
            service.answer(request(k))
        np.testing.assert_array_equal(service.answer(request(0))["actions"], lean)
        assert not np.array_equal(lean, dense)
        with pytest.raises(InputError, match="no such parameter"):
            service.set_plan("cache:first_block:treshold=0.5")
        assert service.plan_name == cache
        assert all(6 < a.counters["blocks"] < 12 and a.plan == cache for a in service.answered)
        assert all(a.executions == {"video": 6} for a in service.answered)
        service.set_plan("dense")
        np.testing.assert_array_equal(service.answer(request(0))["actions"], dense)
        assert service.answered[-1].counters["blocks"] == 12
    assert all("forward" not in module.__dict__ for module in net.modules())
    with pytest.raises(InputError, match="LeRobot flow policy: this model runs no cache plans"):
        PolicyService(policy_of(core), host(core), cache).__enter__()


def test_a_failing_request_is_answered_and_the_next_one_is_whole(core):
    core.broken = True
    service = PolicyService(policy_of(core), host(core), "sparse_5")
    with service, Broker(client_port=0, server_port=0) as broker, Serving(service, broker.server_port):
        client = Client(broker.client_port)
        assert client(request(0)) == {"error": "ValueError: broken"}
        core.broken = False
        assert client(request(1))["actions"].shape == (4, 7)
        assert "prompt" in client({k: v for k, v in request(2).items() if k != "prompt"})["error"]
        assert "a request is a dict" in client([1, 2])["error"]
        client.close()
    assert [a.executions["action"] for a in service.answered] == [2, 5]
    assert service.totals()["n_errors"] == 1


def test_a_message_that_names_code_is_not_run(core, tmp_path):
    class Evil:
        def __reduce__(self):
            import pathlib

            return pathlib.Path.touch, (tmp_path / "ran",)

    service = PolicyService(policy_of(core), host(core))
    with service, Broker(client_port=0, server_port=0) as broker, Serving(service, broker.server_port):
        client = Client(broker.client_port, zmq.REQ)
        assert "NumPy arrays only" in client({**request(0), "prompt": Evil()})["error"]
        assert "not a message" in client(b"not a pickle")["error"]
        assert client(request(1))["actions"].shape == (4, 7)
        client.close()
    assert not (tmp_path / "ran").exists()


def test_messages_survive_in_every_pickle_protocol_and_name_no_numpy_2():
    value = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.float64(2.5),
        "c": ["x", 1, None, True],
    }
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        read = read_message(pickle.dumps(value, protocol=protocol))
        np.testing.assert_array_equal(read["a"], value["a"])
        assert (read["b"], read["c"]) == (2.5, value["c"])
    written = write_message(value)
    assert b"numpy._core" not in written
    np.testing.assert_array_equal(pickle.Unpickler(io.BytesIO(written)).load()["a"], value["a"])


def test_remote_addresses_need_leave(caplog):
    for local in ("127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"):
        check_address(local, False)
    for remote in ("0.0.0.0", "*", "10.0.0.4", "gpu-box"):
        with pytest.raises(InputError, match="allow_remote"):
            check_address(remote, False)
        check_address(remote, True)
    assert "trusted network" in caplog.text
    with pytest.raises(InputError, match="allow_remote"):
        Broker("0.0.0.0", 0, 0)


def test_openpis_protocol(core):
    from websockets.sync.client import connect

    service = PolicyService(policy_of(core), host(core), "sparse_5")
    with service, WebsocketServer(service, port=0, metadata={"robot": "panda"}) as server:
        where = f"127.0.0.1:{server.port}"
        assert urllib.request.urlopen(f"http://{where}/healthz").read() == b"OK\n"
        with connect(f"ws://{where}", compression=None, max_size=None) as client:
            assert unpack(client.recv()) == {"robot": "panda", "plan": "sparse_5"}
            for k in range(3):
                client.send(pack(request(k)))
                answer = unpack(client.recv())
                np.testing.assert_array_equal(answer["proprios"], np.arange(16.0))
                assert answer["actions"].dtype == np.float32
                assert answer["server_timing"]["infer_ms"] > 0
                assert ("prev_total_ms" in answer["server_timing"]) == (k > 0)
            client.send(pack({"env_rank": 0}))
            assert "KeyError" in client.recv()
        with connect(f"ws://{where}") as client:  # another connection goes on
            client.recv()
            client.send(pack(request(0)))
            assert unpack(client.recv())["actions"].shape == (4, 7)
    assert [a.executions["action"] for a in service.answered] == [5, 5, 5, 0, 5]
    with PolicyService(policy_of(core)) as service, WebsocketServer(service, port=0) as server:
        second = WebsocketServer(service, port=server.port)
        with pytest.raises(InputError, match="cannot listen"):
            second.__enter__()


def test_the_wire_format_is_openpis():
    """Bytes as its client packs them: byte keys, dtype text, C order."""
    array = np.arange(4, dtype="<i2").reshape(2, 2)
    raw = msgpack.unpackb(pack({"x": array, "n": np.float32(1.5)}))
    assert raw["x"] == {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": "<i2", b"shape": [2, 2]}
    assert raw["n"] == {b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f4"}
    with pytest.raises(InputError, match="numbers and text"):
        unpack(msgpack.packb({b"__ndarray__": True, b"data": b"", b"dtype": "|O", b"shape": [0]}))
    with pytest.raises(InputError, match="only numbers"):
        pack({"x": np.array([object()])})


class Runner(nn.Module):
    """Returns what it was given, so that the scaling can be checked by hand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def generate(self, rgb, proprio, prompt, seeds, early_stop, cfg, run_depth):
        self.given = (rgb, proprio, prompt, seeds, early_stop, cfg, run_depth)
        return None, torch.zeros(1, 32, 14), proprio[:, None].expand(1, 9, 16), None


@pytest.mark.parametrize("arms", [1, 2])
def test_xwams_conventions(arms):
    n = 7 * arms
    quantiles = Quantiles(np.full(16, -2.0), np.full(16, 4.0), np.full(n, -1.0), np.full(n, 3.0))
    runner = Runner()
    policy = XWAMPolicy(runner, quantiles, (32, 40))
    video = np.random.default_rng(0).uniform(-1, 1, (3, 64, 64, 3)).astype(np.float32)
    answer = policy({**request(7), "video": video, "proprios": np.full(16, 1.9)})
    rgb, proprio, prompt, seeds, early_stop, cfg, run_depth = runner.given
    assert (prompt, early_stop, cfg, run_depth) == (["go"], True, 0.0, False)
    assert seeds == [request_seed(7, 0, 224)]
    assert rgb.shape == (1, 3, 3, 32, 40)
    scaled = 2 * (1.9 + 2) / 6 - 1
    np.testing.assert_allclose(
        proprio[0].numpy(), [scaled] * 8 + [0.0 if arms == 1 else scaled] * 8, atol=1e-6
    )
    wanted = np.ones((32, n))  # the middle of -1 … 3
    if arms == 1:
        wanted[:, 6] = -1
    np.testing.assert_allclose(answer["actions"], wanted, atol=1e-6)
    np.testing.assert_allclose(answer["proprios"][:, :8], 1.9, atol=1e-6)
    with pytest.raises(InputError, match="16 entries"):
        policy({**request(7), "video": video, "proprios": np.zeros(8)})


def test_the_seed_is_the_md5_of_rank_rollout_and_step():
    # echo -n 3_1_64 | md5sum, the last eight hexadecimal digits
    assert request_seed(3, 1, 64) == int("04aba67f", 16)
