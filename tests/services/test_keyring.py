"""Keys and join files on the disk: private, whole, and said clearly where they are not."""

import json
import os
import stat
from pathlib import Path

import pytest

from parl_mq.errors import ConfigError, RecordError
from parl_mq.net.curve import Verdict, new_key_pair
from parl_mq.services import keyring as keyring_module
from parl_mq.services.attachment import GUEST, Attachment, PublicPlace, invite, invite_guest
from parl_mq.services.join_file import read_join_file
from parl_mq.services.keyring import ALLOWED, MAX_GRANTS, SERVER, Grant, Keyring, read_pair, write_pair
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import KeysAllowed


@pytest.fixture
def keyring(tmp_path):
    return Keyring.open_or_make(tmp_path / "keys")


def grant(name="far", role="actor"):
    return Grant(name=name, role=role, public=new_key_pair().public)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_made_once_and_nobody_else_can_read_them(tmp_path, keyring):
    assert Keyring.open_or_make(tmp_path / "keys").pair == keyring.pair
    keyring.allow(grant())
    assert mode_of(keyring.folder) == 0o700
    assert {path.name: mode_of(path) for path in keyring.folder.iterdir()} == dict.fromkeys(
        (SERVER, ALLOWED, "lock"), 0o600
    )


def test_a_key_is_welcome_from_when_another_process_allows_it_until_one_revokes_it(keyring):
    other, one = Keyring(keyring.folder), grant()
    assert keyring.admit(one.public) is Verdict.DENIED
    other.allow(one)
    assert keyring.admit(one.public) is Verdict.WELCOME
    other.revoke(one.name)
    keyring.refresh()
    assert keyring.version == 2
    keyring.refresh()
    assert keyring.version == 2
    assert keyring.admit(one.public) is Verdict.DENIED


def test_a_name_and_a_key_are_given_once(keyring):
    one = grant()
    keyring.allow(one)
    with pytest.raises(ConfigError, match="the name far has a key already"):
        keyring.allow(grant())
    with pytest.raises(ConfigError, match="this key is that of far already"):
        keyring.allow(one.model_copy(update={"name": "other"}))
    with pytest.raises(ConfigError, match=r"no key in .* is for nobody; there are: far"):
        keyring.revoke("nobody")


def test_a_folder_without_keys_is_opened_by_those_alone_who_make_them(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"holds no keys; a hub .* `parl-mq keys allow`"):
        Keyring(tmp_path)
    assert list(tmp_path.iterdir()) == []

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ConfigError, match=r"the keys in .* cannot be read: Permission denied"):
        Keyring(tmp_path)


def test_keys_that_others_can_read_are_refused_with_the_cure(keyring):
    (keyring.folder / SERVER).chmod(0o640)
    with pytest.raises(ConfigError, match=r"mode 640\); `chmod 600"):
        Keyring(keyring.folder)


def test_a_list_that_was_refused_is_read_again_once_it_is_mended(keyring):
    reader = Keyring(keyring.folder)
    keyring.allow(Grant(name="lab", role="actor", public="k" * 40))
    (keyring.folder / ALLOWED).chmod(0o644)
    for _ in range(2):
        with pytest.raises(ConfigError, match="chmod 600"):
            reader.refresh()
    (keyring.folder / ALLOWED).chmod(0o600)
    reader.refresh()
    assert reader.grant_of("k" * 40).name == "lab"


def test_a_credential_of_the_service_manager_is_taken_as_it_lies(keyring, monkeypatch):
    (keyring.folder / SERVER).chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(keyring.folder))
    assert Keyring(keyring.folder).pair == keyring.pair


def test_a_damaged_file_is_named_and_its_secrets_are_not_told(keyring):
    secret = keyring.pair.secret
    (keyring.folder / SERVER).write_text(json.dumps({"public": "short", "secret": secret}))
    with pytest.raises(ConfigError, match=r"server.json is damaged: public") as told:
        Keyring(keyring.folder)
    assert secret not in str(told.value)


def test_a_join_file_holds_all_and_only_its_owner_can_read_it(tmp_path, keyring):
    path, pair = tmp_path / "far.join", new_key_pair()
    invite(keyring, path, hub="tcp://10.0.0.1:29700", run_id="run", name="far", role="actor", pair=pair)
    assert mode_of(path) == 0o600
    join = read_join_file(path)
    assert (join.pair, join.server_key, join.hub, join.run_id) == (
        pair,
        keyring.pair.public,
        "tcp://10.0.0.1:29700",
        "run",
    )
    assert keyring.admit(pair.public) is Verdict.WELCOME
    assert pair.secret not in repr(join)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_join_file(path)


def test_a_file_that_is_there_is_not_replaced_and_nothing_is_allowed(tmp_path, keyring):
    path = tmp_path / "far.join"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="exists already"):
        invite(keyring, path, hub="tcp://h:1", run_id=None, name="far", role="actor", pair=new_key_pair())
    assert (path.read_text(), keyring.grants) == ("precious", [])


def test_a_secret_key_need_not_leave_its_machine(tmp_path, keyring):
    pair, own, path = new_key_pair(), tmp_path / "own.key", tmp_path / "far.join"
    write_pair(own, pair)
    assert read_pair(own) == pair
    invite(keyring, path, hub="tcp://h:1", run_id=None, name="far", role="actor", pair=pair.public)
    assert pair.secret not in path.read_text()
    with pytest.raises(ConfigError, match="--key FILE"):
        read_join_file(path)
    assert read_join_file(path, own).pair == pair
    write_pair(own, new_key_pair())
    with pytest.raises(ConfigError, match="another key than the one"):
        read_join_file(path, own)


def test_a_run_invites_one_guest_and_again_only_when_that_key_is_gone(tmp_path, keyring):
    Attachment(hub="tcp://h:1", run_id="run", server_key=keyring.pair.public).write(tmp_path)
    path, join = invite_guest(tmp_path, keyring.folder)
    assert invite_guest(tmp_path, keyring.folder) == (path, join)
    keyring.revoke(GUEST)
    again = invite_guest(tmp_path, keyring.folder)[1]
    assert again.public != join.public
    assert again == read_join_file(path)


def test_a_run_that_lets_nobody_in_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"start it with --bind tcp://ADDRESS"):
        Attachment.read(tmp_path)


def test_the_place_of_a_run_has_a_port_that_others_can_know_and_an_address():
    assert PublicPlace.of("tcp://10.0.0.1", None) == PublicPlace("10.0.0.1", 29_700)
    assert PublicPlace.of("tcp://10.0.0.1:7000", None).arguments(2) == ["--bind", "tcp://10.0.0.1:7002"]
    place = PublicPlace.of("tcp://0.0.0.0:7000", "box")
    assert place.arguments(0) == ["--bind", "tcp://0.0.0.0:7000", "--advertise", "box"]
    for text, told in (
        ("tcp://0.0.0.0", "--advertise"),
        ("tcp://h:0", "port"),
        ("ipc://x", "tcp://HOST"),
        ("", "tcp://"),
    ):
        with pytest.raises(ConfigError, match=told):
            PublicPlace.of(text, None)


def test_a_temporary_file_that_another_user_has_laid_out_is_not_written_to(tmp_path, monkeypatch):
    own, elsewhere = tmp_path / "own.key", tmp_path / "elsewhere"
    trap = tmp_path / f".own.key.{os.getpid()}"
    trap.symlink_to(elsewhere)
    write_pair(own, new_key_pair())
    assert (elsewhere.exists(), own.is_symlink(), mode_of(own)) == (False, False, 0o600)
    trap.symlink_to(elsewhere)
    monkeypatch.setattr(Path, "unlink", lambda *args, **options: None)  # as in a folder where it may not be removed
    with pytest.raises(RecordError, match=r"own\.key cannot be written: File exists"):
        write_pair(own, new_key_pair())
    assert not elsewhere.exists()


def test_a_key_that_may_not_be_allowed_leaves_no_file(tmp_path, keyring):
    keyring.allow(grant("far"))
    path, pair = tmp_path / "far.join", new_key_pair()
    with pytest.raises(ConfigError, match="has a key already"):
        invite(keyring, path, hub="tcp://h:1", run_id=None, name="far", role="actor", pair=pair)
    for hub in ("tcp://0.0.0.0:1", "tcp://*:1", "tcp://[::]:1", "tcp://h:0"):
        with pytest.raises(ConfigError, match=r"hub of the join file: .*names no address and port"):
            invite(keyring, path, hub=hub, run_id=None, name="lab", role="actor", pair=pair)
    with pytest.raises(RecordError, match="cannot be written"):
        invite(keyring, tmp_path / "no" / "x", hub="tcp://h:1", run_id=None, name="lab", role="actor", pair=pair)
    assert (path.exists(), [one.name for one in keyring.grants]) == (False, ["far"])


def test_a_folder_holds_as_many_keys_as_one_message_can_tell_of(monkeypatch, keyring):
    keys = [(new_key_pair().public, f"{number:064}", "evaluator") for number in range(MAX_GRANTS)]
    encode(KeysAllowed(keys=keys))
    monkeypatch.setattr(keyring_module, "MAX_GRANTS", 1)
    keyring.allow(grant("far"))
    with pytest.raises(ConfigError, match="holds 1 keys, as many as it may"):
        keyring.allow(grant("lab"))
