"""Decisions and renderings of the sandbox; booting real hosts is in tests/integration."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox import cell, image, machine, plan, ssh
from sandbox.__main__ import parser, wishes
from sandbox.console import SandboxError
from sandbox.plan import Place, Wish
from sandbox.state import Host, State

if TYPE_CHECKING:
    from collections.abc import Iterator

ALPHA = Host(
    "alpha", "bookworm-1f2e3d4c", overlay=True, address="127.0.0.1", ssh_port=2201, host_key="ssh-ed25519 A"
)
BETA = Host(
    "beta",
    "trixie-99887766",
    overlay=False,
    address="10.213.3.2",
    ssh_port=22,
    host_key="ssh-ed25519 B",
    network=3,
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    box = State(tmp_path / "box")
    with box.shared():
        yield box


def record(state: State, host: Host) -> None:
    directory = state.directory(host.name)
    directory.mkdir()
    state.record(host, directory)


class TestCommandLine:
    def test_ports_of_several_hosts_count_up(self) -> None:
        arguments = parser().parse_args(["up", "a", "b", "--suite", "trixie", "--ssh-port", "2210"])
        assert wishes(arguments) == [("a", Wish("trixie", 2210)), ("b", Wish("trixie", 2211))]

    def test_nothing_is_asked_for_by_default(self) -> None:
        assert wishes(parser().parse_args(["up", "a"])) == [("a", Wish())]

    @pytest.mark.parametrize("verb", ["ssh", "exec"])
    def test_a_command_keeps_its_own_options(self, verb: str) -> None:
        arguments = parser().parse_args([verb, "a", "--", "ls", "-la", "--suite"])
        assert (arguments.name, arguments.argv) == ("a", ["ls", "-la", "--suite"])

    @pytest.mark.parametrize(
        "words", [[], ["up"], ["up", "a", "--suite", "sid"], ["up", "a", "--ssh-port", "x"]]
    )
    def test_what_it_does_not_know_ends_in_usage(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit, match="2"):
            parser().parse_args(words)
        assert "usage: python3 -m sandbox" in capsys.readouterr().err


class TestState:
    def test_sandbox_dir_moves_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("SANDBOX_DIR", str(tmp_path / "x/../y"))
        assert State.default().root == tmp_path / "y"

    def test_it_lies_in_the_checkout_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SANDBOX_DIR", raising=False)
        assert State.default().root == Path(__file__).parents[2].resolve() / ".sandbox"

    def test_records_are_read_back(self, state: State) -> None:
        for host in (BETA, ALPHA):
            record(state, host)
        (state.hosts / ".gamma.partial").mkdir()  # of an interrupted `up`
        assert state.recorded() == [ALPHA, BETA]
        assert state.get("beta") == BETA
        assert [host.suite for host in state.recorded()] == ["bookworm", "trixie"]

    def test_an_unknown_host_is_told_with_the_known_ones(self, state: State) -> None:
        record(state, ALPHA)
        assert state.find("gamma") is None
        with pytest.raises(SandboxError, match=r"no host 'gamma' in .*\(known: alpha\)"):
            state.get("gamma")

    @pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a/b", "1a", "..", "a" * 32])
    def test_names_are_host_names(self, state: State, name: str) -> None:
        with pytest.raises(SandboxError, match="begins with a letter"):
            state.directory(name)

    def test_two_sandboxes_have_different_cells(self, tmp_path: Path) -> None:
        first, second = State(tmp_path / "a"), State(tmp_path / "b")
        assert first.prefix != second.prefix
        assert first.cell_name("x").startswith(f"{first.prefix}-")

    def test_somebody_elses_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(SandboxError, match="not empty and not a sandbox"), State(tmp_path).shared():
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    @pytest.mark.parametrize("character", [*":,\\\"'"])
    def test_paths_that_mount_options_cannot_hold_are_refused(self, tmp_path: Path, character: str) -> None:
        with pytest.raises(SandboxError, match="set SANDBOX_DIR"), State(tmp_path / character).shared():
            pass

    def test_a_second_change_of_the_same_host_is_refused(self, state: State) -> None:
        with (
            state.lock("host-a"),
            state.lock("host-b"),
            pytest.raises(SandboxError, match="host-a is being changed"),
            state.lock("host-a"),
        ):
            pass
        with state.lock("host-a", wait=True):
            pass

    def test_clean_and_other_commands_keep_apart(self, state: State) -> None:
        with state.shared(), pytest.raises(SandboxError, match="another command uses"), state.exclusive():
            pass

    def test_no_command_starts_while_it_is_cleaned(self, tmp_path: Path) -> None:
        box = State(tmp_path / "box")
        with box.shared():
            pass
        with box.exclusive(), pytest.raises(SandboxError, match="is being cleaned"), box.shared():
            pass

    def test_a_lock_on_a_deleted_file_does_not_count(
        self, state: State, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def delete_first(_descriptor: int, _mode: int) -> None:
            (state.locks / "a").unlink()

        monkeypatch.setattr("fcntl.flock", delete_first)
        with pytest.raises(SandboxError, match="is being changed"), state.lock("a"):
            pass

    def test_delete_leaves_what_others_put_there(self, tmp_path: Path) -> None:
        box = State(tmp_path / "box")
        with box.shared():
            (box.store / "uv-cache").mkdir()
        (box.root / "notes").touch()
        box.delete()
        assert [path.name for path in box.root.iterdir()] == ["notes"]

    def test_delete_removes_the_directory(self, tmp_path: Path) -> None:
        box = State(tmp_path / "box")
        with box.shared():
            pass
        box.delete()
        assert list(tmp_path.iterdir()) == []


def place(recorded: list[Host], wish: Wish, *, networks: set[int] | None = None, busy: int = 0) -> Place:
    return plan.place(recorded, wish, networks=networks or set(), is_free=lambda port: port != busy)


class TestPlace:
    def test_the_first_free_port(self) -> None:
        assert place([], Wish()) == Place("127.0.0.1", 2201)
        assert place([ALPHA, BETA], Wish()) == Place("127.0.0.1", 2202)
        assert place([ALPHA], Wish(), busy=2202) == Place("127.0.0.1", 2203)

    def test_the_port_that_is_asked_for(self) -> None:
        assert place([ALPHA], Wish(ssh_port=2299)) == Place("127.0.0.1", 2299)

    def test_a_port_of_another_host_is_refused(self) -> None:
        with pytest.raises(SandboxError, match="port 2201 belongs to host alpha"):
            place([ALPHA], Wish(ssh_port=2201))

    def test_a_port_of_another_program_is_refused(self) -> None:
        with pytest.raises(SandboxError, match="port 2201 is taken on this machine"):
            place([], Wish(ssh_port=2201), busy=2201)

    def test_a_network_of_its_own(self) -> None:
        assert place([ALPHA], Wish(netns=True), networks={1, 2}) == Place("10.213.3.2", 22, 3)
        assert place([], Wish(netns=True, ssh_port=2201), busy=2201) == Place("10.213.1.2", 2201, 1)

    def test_no_network_left(self) -> None:
        with pytest.raises(SandboxError, match="no network"):
            place([], Wish(netns=True), networks=set(plan.NETWORKS))

    def test_networks_of_stopped_hosts_and_of_other_sandboxes_are_in_use(self) -> None:
        addresses = [
            {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}, {"local": "::1"}]},
            {"ifname": "down"},
            {"ifname": "sb12345678-9", "addr_info": [{"local": "10.213.9.1"}]},
        ]
        assert plan.networks_in_use([ALPHA, BETA], json.dumps(addresses)) == {3, 9}

    def test_what_exists_may_be_asked_for_again(self) -> None:
        assert plan.contradictions(ALPHA, Wish()) == ""
        assert plan.contradictions(ALPHA, Wish("bookworm", 2201)) == ""
        assert plan.contradictions(BETA, Wish("trixie", netns=True)) == ""

    def test_every_contradiction_is_told(self) -> None:
        told = plan.contradictions(ALPHA, Wish("trixie", 2299, netns=True))
        assert told == "it has --suite bookworm, it has --ssh-port 2201, it shares the machine's network"


class TestBootScript:
    def test_an_overlay_is_mounted_first(self, state: State) -> None:
        mount, boot = plan.boot_script(state, ALPHA, machine_pid=7).splitlines()
        assert mount.startswith("mount -t overlay overlay -o lowerdir=../../images/bookworm-1f2e3d4c,")
        assert boot.startswith("exec systemd-nspawn ")
        assert "--network-namespace-path" not in boot

    def test_a_copy_needs_no_mount(self, state: State) -> None:
        assert plan.boot_script(state, replace(ALPHA, overlay=False), machine_pid=7).startswith(
            "exec systemd-"
        )

    def test_a_network_of_its_own_has_a_cable_to_the_machine(self, state: State) -> None:
        script = plan.boot_script(state, BETA, machine_pid=7)
        cable = plan.cable(state, 3)
        assert script.startswith("exec unshare --net ")
        assert f"ip link add eth0 type veth peer name {cable} netns 7" in script
        assert f"nsenter --net=/proc/7/ns/net ip address add 10.213.3.1/30 dev {cable}" in script
        assert "ip route" not in script

    def test_an_interface_name_fits_the_kernel(self, state: State) -> None:
        assert len(plan.cable(state, max(plan.NETWORKS))) <= 15


class TestSsh:
    def test_a_port_is_part_of_the_known_name(self) -> None:
        assert ssh.known_hosts([ALPHA, BETA]) == "[127.0.0.1]:2201 ssh-ed25519 A\n10.213.3.2 ssh-ed25519 B\n"

    def test_the_client_checks_host_keys(self) -> None:
        text = ssh.client_configuration([ALPHA], Path("/a b/ssh"))
        assert text.startswith("Host alpha\n  HostName 127.0.0.1\n  Port 2201\nHost *\n")
        assert '  UserKnownHostsFile "/a b/ssh/known_hosts"\n' in text
        assert "  StrictHostKeyChecking yes\n" in text

    def test_the_server_takes_keys_only(self) -> None:
        lines = ssh.server_configuration("127.0.0.1", 2201).splitlines()
        assert {"Port 2201", "ListenAddress 127.0.0.1", "PasswordAuthentication no"} <= set(lines)

    def test_refresh_forgets_removed_hosts(self, state: State) -> None:
        record(state, ALPHA)
        ssh.refresh(state)
        assert "2201" in (state.ssh / "known_hosts").read_text()
        (state.hosts / "alpha/host.json").unlink()
        ssh.refresh(state)
        assert (state.ssh / "known_hosts").read_text() == ""

    def test_the_client_key_is_made_once(self, state: State) -> None:
        key = ssh.client_key(state)
        assert key.startswith("ssh-ed25519 ")
        assert ssh.client_key(state) == key
        assert (state.ssh / "id_ed25519").stat().st_mode & 0o777 == 0o600

    def test_command(self, state: State) -> None:
        command = ["ssh", "-F", str(state.ssh / "config"), "alpha", "uname", "-a"]
        assert ssh.client_command(state, ALPHA, ["uname", "-a"]) == command


class TestMachine:
    TARGETS = """\
http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/security/ bookworm-security main
https://vendor.example/debian/12/ bookworm main
https://vendor.example/docker/ bookworm stable
file:/srv/local ./
"""

    def test_the_machines_mirrors_serve_every_suite(self) -> None:
        assert machine.sources(self.TARGETS, "trixie") == [
            "deb http://mirror.example/debian trixie main",
            "deb http://mirror.example/debian trixie-updates main",
            "deb http://mirror.example/security trixie-security main",
        ]

    def test_another_distribution_has_no_debian_mirror(self) -> None:
        lines = machine.sources("http://archive.example/ubuntu/ noble main\n", "bookworm")
        assert lines[0] == f"deb {machine.ARCHIVE} bookworm main"
        assert lines[2] == f"deb {machine.SECURITY} bookworm-security main"

    def test_apt_keeps_what_reaches_a_mirror(self) -> None:
        dump = """\
APT::Architecture "amd64";
Acquire::AllowInsecureRepositories "1";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::http::Proxy::mirror.example "DIRECT";
Acquire::http::Proxy-Auto-Detect "/usr/local/bin/detect";
Acquire::https::Proxy "";
Acquire::https::Verify-Peer "false";
Acquire::Check-Valid-Until "false";
"""
        assert machine.apt_settings(dump) == [
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'Acquire::http::Proxy::mirror.example "DIRECT";',
            'Acquire::https::Verify-Peer "false";',
            'Acquire::Check-Valid-Until "false";',
        ]

    def test_proxies_and_indexes_are_passed_on(self) -> None:
        environ = {
            "HOME": "/home/ada",
            "https_proxy": "http://proxy.example:3128",
            "NO_PROXY": ".example,127.0.0.1",
            "PIP_INDEX_URL": "https://index.example/simple",
            "PIP_EXTRA_INDEX_URL": "file:///srv/index https://extra.example/simple",
            "UV_INDEX": "local=/srv/index",
        }
        assert machine.environment(environ, own_certificates=False) == {
            "NO_PROXY": ".example,127.0.0.1",
            "PIP_EXTRA_INDEX_URL": "https://extra.example/simple",
            "PIP_INDEX_URL": "https://index.example/simple",
            "https_proxy": "http://proxy.example:3128",
        }

    def test_a_companys_certificates_reach_programs_with_a_bundle_of_their_own(self) -> None:
        passed = machine.environment({"SSL_CERT_FILE": "/srv/company.pem"}, own_certificates=True)
        assert set(passed) == {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"}
        assert set(passed.values()) == {"/etc/ssl/certs/ca-certificates.crt"}

    def test_pips_files_are_merged(self) -> None:
        system = "[global]\nindex-url = https://old.example/simple\ncert = /srv/company.pem\n"
        user = "[global]\nindex-url = https://index.example/simple\nextra-index-url =\n  file:///srv/a\n"
        assert machine.pip_configuration([system, user]) == (
            "[global]\nindex-url = https://index.example/simple\n\n"
        )
        assert machine.pip_configuration(["[install]\nno-warn = 1\n"]) == ""

    def test_a_bundle_is_split(self) -> None:
        def pem(body: str) -> str:
            return f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----"

        assert machine.certificates(f"# A\n{pem('A')}\n\n{pem('B')}") == [f"{pem('A')}\n", f"{pem('B')}\n"]

    def test_everything_missing_is_named_at_once(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(machine, "KEYRING", tmp_path / "debian-archive-keyring.gpg")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SandboxError) as caught:
            machine.require()
        message = str(caught.value)
        assert all(tool in message for tool in machine.TOOLS)
        assert message.endswith(
            "apt-get install --yes "
            "apt debian-archive-keyring iproute2 mmdebstrap openssh-client systemd-container util-linux"
        )

    def test_root_is_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(SandboxError, match="run it as root"):
            machine.require()


class TestImage:
    RECIPE = image.Recipe("bookworm", ("deb http://mirror.example/debian bookworm main",), (), ())

    def test_another_recipe_is_another_image(self) -> None:
        assert self.RECIPE.name == replace(self.RECIPE).name
        assert self.RECIPE.name.startswith("bookworm-")
        assert self.RECIPE.name != replace(self.RECIPE, certificates=("A",)).name

    def test_mmdebstrap_gets_the_machines_settings(self) -> None:
        recipe = replace(self.RECIPE, apt_settings=('Acquire::Check-Date "false";',))
        command = recipe.command(Path("/box/images/.partial"))
        assert '--aptopt=Acquire::Check-Date "false";' in command
        assert command[-3:] == ["bookworm", "/box/images/.partial", *recipe.sources]

    def test_tail_shows_the_end(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"\n".join(b"line %d \xff" % number for number in range(100)))
        assert image.tail(log).splitlines()[-1] == "  line 99 \N{REPLACEMENT CHARACTER}"
        assert len(image.tail(log).splitlines()) == image.LOG_LINES


class TestCell:
    def test_cgroup_v2_is_found_beside_v1(self) -> None:
        mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        assert cell.cgroup_mount(mounts) == Path("/sys/fs/cgroup/unified")

    def test_no_cgroup_v2(self) -> None:
        with pytest.raises(SandboxError, match="cgroup v2 is not mounted"):
            cell.cgroup_mount("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n")

    def test_the_pid_in_the_innermost_namespace(self) -> None:
        assert cell.last_pid("Name:\tsystemd\nNSpid:\t22236\t44\t1\nThreads:\t1\n") == 1

    def test_a_machine_without_systemd_hands_out_the_cgroup_itself(self) -> None:
        command = cell.Cell("x", Path("/sys/fs/cgroup/x"), systemd=False).command("exec true")
        assert command[-5:] == ["--mount", "--propagation=private", "sh", "-euc", "exec true"]
        assert "/sys/fs/cgroup/x" in command

    def test_systemd_is_asked_for_a_delegated_scope(self) -> None:
        command = cell.Cell("x", Path("/sys/fs/cgroup/system.slice/x.scope"), systemd=True).command(
            "exec true"
        )
        assert command[:2] == ["systemd-run", "--scope"]
        assert {"--unit=x", "--property=Delegate=yes"} <= set(command)

    def test_a_cell_that_does_not_exist_is_empty(self, tmp_path: Path) -> None:
        absent = cell.Cell("absent", tmp_path / "absent", systemd=False)
        assert absent.pids() == []
        assert absent.leader() is None
        absent.kill()

    def test_a_tool_that_fails_is_told_with_its_message(self) -> None:
        with pytest.raises(SandboxError, match=r"^sh failed \(3\): no such thing$"):
            cell.run(["sh", "-c", "echo no such thing >&2; exit 3"])
