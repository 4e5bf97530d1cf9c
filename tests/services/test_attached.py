"""Nodes that join a hub over an encrypted connection, and those that may not: what each end is told, and exit codes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import asynccontextmanager

import pytest

from parl_mq.errors import EXIT_CONFIG, EXIT_NOT_ALLOWED, Refused, exit_code_of
from parl_mq.net.curve import Guard, new_key_pair
from parl_mq.net.zmq_channel import Network
from parl_mq.services import hub_link
from parl_mq.services.addresses import PublicSocket
from parl_mq.services.attachment import Attachment, invite
from parl_mq.services.connection_check import check_connection
from parl_mq.services.hub import Hub, HubOptions
from parl_mq.services.join_file import JoinFile
from parl_mq.services.joining import joined, offer_spec
from parl_mq.services.keyring import Keyring, write_private
from parl_mq.services.network import network_of
from parl_mq.services.run_directory import RunDirectory
from parl_mq.services.runtime import NodeOptions, StopSignal, first_cause
from parl_mq.wire.messages import TableOpened
from tests.services.builders import SPEC, small_config, soon, until


class Scene:
    """A hub that lets other machines in, at work."""

    def __init__(self, tmp_path, sockets):
        self.folder = tmp_path
        self.keyring = Keyring.open_or_make(tmp_path / "keys")
        guard = Guard(self.keyring.pair, self.keyring.admit)
        self.network = Network(guard=guard)
        self.directory = RunDirectory.create(tmp_path / "run", small_config())
        options = HubOptions(
            small_config(), self.directory.path, time.monotonic(), public="tcp://127.0.0.1:0", keyring=self.keyring
        )
        self.private = f"ipc://{sockets}/hub"
        self.hub = Hub(self.network, self.private, options, StopSignal())
        self.attachment = Attachment.read(self.directory.path)

    def invited(self, role="actor", name="far", **changes) -> NodeOptions:
        """What the command line of a node with a join file says."""
        join = invite(
            self.keyring,
            self.folder / f"{name}.join",
            hub=self.attachment.hub,
            run_id=self.attachment.run_id,
            name=name,
            role=role,
            pair=new_key_pair(),
        )
        return NodeOptions(changes.pop("as_name", name), join.hub, join=join.model_copy(update=changes))

    def with_join(self, options: NodeOptions, **changes) -> NodeOptions:
        return NodeOptions(options.name, options.hub, join=options.join.model_copy(update=changes))


@pytest.fixture
async def scene(tmp_path):
    with tempfile.TemporaryDirectory(prefix="pmq-", dir="/tmp") as sockets:  # paths shorter than pytest's
        made = Scene(tmp_path, sockets)
        serving = asyncio.create_task(made.hub.run())
        yield made
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        made.network.close(linger_s=0)


@asynccontextmanager
async def node(options, role="actor", **more):
    network = network_of(options)
    try:
        async with joined(network, options, role, StopSignal(), **more) as (link, welcome):
            yield link, welcome
    finally:
        network.close(linger_s=0)


async def refusal(options, role="actor"):
    """Why a node may not join, and the code with which it ends."""

    async def join():
        async with node(options, role):
            raise AssertionError("it was let in")

    with pytest.raises((BaseExceptionGroup, Refused)) as raised:
        await soon(join())
    error = first_cause(raised.value)
    return str(error), exit_code_of(error)


async def test_a_node_of_another_machine_needs_nothing_but_its_join_file(scene):
    async with node(scene.invited()) as (link, welcome):
        assert welcome.run_id == scene.attachment.run_id
        assert welcome.weights_endpoint == scene.hub._weights.endpoints[1]
        offer_spec(link, SPEC)
        await soon(link.table_spec())


async def test_each_node_is_told_of_the_replay_nodes_where_it_can_reach_them(scene):
    public = PublicSocket("tcp://10.0.0.1:7002", scene.keyring.pair.public)
    here = NodeOptions("replay-0", scene.private)
    async with (
        node(here, "replay", data_endpoint="ipc:///tmp/replay", public=public) as (replay, _),
        node(scene.invited()) as (far, _),
        node(NodeOptions("actor-0", scene.private)) as (near, _),
    ):
        offer_spec(far, SPEC)
        replay.deliver(TableOpened(table="main", num_bytes=1, num_rows=1))
        assert await soon(far.replay_endpoints(1)) == [public.endpoint]
        assert await soon(near.replay_endpoints(1)) == ["ipc:///tmp/replay"]
        assert far.run_state.server_keys == {public.endpoint: public.key}
        assert near.run_state.server_keys == {}


async def test_a_replay_node_is_told_which_keys_to_let_in_now_and_whenever_they_change(scene):
    told = []
    async with node(NodeOptions("replay-0", scene.private), "replay", data_endpoint="ipc://r", on_keys=told.append):
        await until(lambda: told)
        assert told[-1].keys == []
        join = scene.invited().join
        await until(lambda: told[-1].keys == [(join.public, "far", "actor")])
        scene.keyring.revoke("far")
        await until(lambda: told[-1].keys == [])


async def test_a_node_whose_key_is_revoked_ends_and_its_rows_are_not_waited_for(scene):
    options = scene.invited()

    async def stay():
        async with node(options):
            await asyncio.sleep(60)

    staying = asyncio.create_task(stay())
    await until(lambda: [one.name for one in scene.hub._state._roster.living()] == ["far"])
    scene.keyring.revoke("far")
    with pytest.raises(BaseExceptionGroup) as raised:
        await soon(staying)
    assert exit_code_of(first_cause(raised.value)) == EXIT_NOT_ALLOWED
    await until(lambda: scene.hub._state._roster.living() == [])


async def test_a_key_that_was_never_allowed_is_refused_at_both_ends(scene, caplog):
    pair = new_key_pair()
    options = scene.with_join(scene.invited(), public=pair.public, secret=pair.secret)
    told, code = await refusal(options)
    assert code == EXIT_NOT_ALLOWED
    assert "not allowed" in told
    assert [pair.public in record.message for record in caplog.records if "refused" in record.message] == [True]


async def test_a_hub_with_another_key_than_the_files_is_not_joined(scene):
    told, code = await refusal(scene.with_join(scene.invited(), server_key=new_key_pair().public))
    assert code == EXIT_NOT_ALLOWED
    assert "another key" in told


async def test_a_node_without_a_key_is_refused(scene):
    assert (await refusal(NodeOptions("far", scene.attachment.hub)))[1] == EXIT_NOT_ALLOWED


@pytest.mark.parametrize(("role", "as_name"), [("learner", "far"), ("actor", "actor-0")])
async def test_another_role_or_name_than_the_keys_is_refused_at_both_ends(scene, caplog, role, as_name):
    told, code = await refusal(scene.invited(as_name=as_name), role)
    assert code == EXIT_NOT_ALLOWED
    assert "key" in told
    assert len([record for record in caplog.records if "refused on the control socket" in record.message]) == 1


async def test_a_file_of_another_run_is_refused_at_both_ends(scene, caplog):
    told, code = await refusal(scene.with_join(scene.invited(), run_id="another"))
    assert code == EXIT_CONFIG
    assert "belongs to run another" in told
    assert len([record for record in caplog.records if "refused on the control socket" in record.message]) == 1


async def test_another_version_is_refused_at_both_ends_though_its_hello_has_another_form(scene, caplog, monkeypatch):
    class OtherHello(hub_link.Hello):
        shoe_size: int = 43

    monkeypatch.setattr(hub_link, "Hello", OtherHello)
    monkeypatch.setattr(hub_link, "PROTOCOL_VERSION", 99)
    told, code = await refusal(scene.invited())
    assert code == EXIT_CONFIG
    assert "protocol 99" in told
    assert len([record for record in caplog.records if "protocol 99" in record.message]) == 1


async def test_doctor_finds_a_good_connection_good(scene):
    options = scene.invited()
    found = await asyncio.to_thread(check_connection, None, scene.folder / "far.join")
    assert [one for one in found if one.verdict != "ok"] == []
    assert {"join file", "hub", "handshake", "run", "versions", "clock", "weights"} == {one.about for one in found}
    assert options.join is not None


async def test_doctor_names_what_is_wrong_with_a_connection(scene):
    scene.invited()
    path = scene.folder / "far.join"
    scene.keyring.revoke("far")
    (fault,) = [one for one in await asyncio.to_thread(check_connection, None, path) if one.verdict == "fault"]
    assert (fault.about, "does not allow the key" in fault.what) == ("handshake", True)
    path.chmod(0o604)
    (fault,) = await asyncio.to_thread(check_connection, None, path)
    assert (fault.about, "chmod 600" in fault.what) == ("join file", True)
    (fault,) = await asyncio.to_thread(check_connection, "tcp://127.0.0.1:1", None)
    assert (fault.about, fault.verdict) == ("hub", "fault")


async def test_doctor_needs_no_keys_on_the_hubs_machine(scene):
    found = await asyncio.to_thread(check_connection, scene.private, None)
    assert [one.verdict for one in found] == ["ok"] * len(found)


def test_a_join_file_names_a_hub_that_others_can_reach(tmp_path):
    pair = new_key_pair()
    fields = {"server_key": pair.public, "name": "far", "role": "actor", "public": pair.public, "secret": pair.secret}
    for hub in ("ipc:///tmp/hub", "tcp://h", "http://h:1"):
        with pytest.raises(ValueError, match="tcp://HOST:PORT"):
            JoinFile(hub=hub, **fields)
    write_private(tmp_path / "x", fields)
