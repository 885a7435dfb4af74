"""The command line: ``python3 -m sandbox VERB``."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from sandbox import host, image, machine
from sandbox.console import SandboxError, say
from sandbox.plan import Wish
from sandbox.ssh import client_command
from sandbox.state import State


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python3 -m sandbox", description="Local systemd hosts, reached by ssh."
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str, names: str | None = None) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        if names:
            sub.add_argument("names", metavar="NAME", nargs=names)
        return sub

    up = verb("up", "make and boot hosts; those that run are left alone", "+")
    up.add_argument("--suite", choices=image.SUITES, help=f"Debian release (new hosts: {image.SUITES[0]})")
    up.add_argument("--ssh-port", type=int, metavar="N", help="port of the first host's sshd, N+1 the next's")
    up.add_argument("--netns", action="store_true", help="a network of its own: 10.213.N.2, no way out")
    verb("down", "stop hosts as systemctl poweroff does", "+")
    verb("remove", "stop hosts and delete them", "+")
    verb("list", "show the hosts and what their systemd says")
    for name, text in (("ssh", "log in to a host"), ("exec", "run a command in a host without ssh")):
        sub = verb(name, text)
        sub.add_argument("name", metavar="NAME")
        sub.add_argument("argv", metavar="CMD", nargs="*", help="after --")
    verb("power-off", "kill a host at once, as a power cut does", "+")
    verb("clean", "stop and delete everything of this checkout's sandbox")
    return top


def become(argv: list[str]) -> NoReturn:
    """Replace this process by a command."""
    sys.stderr.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - no shell


def wishes(arguments: argparse.Namespace) -> list[tuple[str, Wish]]:
    """Return each name of ``up`` with what is asked for it: ports count up from the first."""
    port: int | None = arguments.ssh_port
    return [
        (name, Wish(arguments.suite, None if port is None else port + offset, arguments.netns))
        for offset, name in enumerate(arguments.names)
    ]


def dispatch(state: State, arguments: argparse.Namespace) -> None:
    """Do what the command line says; ``ssh`` and ``exec`` do not return."""
    machine.require()
    if arguments.verb == "clean":
        host.clean(state)
        return
    with state.shared():
        if arguments.verb == "up":
            for name, wish in wishes(arguments):
                host.up(state, name, wish)
        elif arguments.verb == "list":
            for row in host.describe(state):
                sys.stdout.write("{:<32}{:<10}{:<12}{:<20}{}\n".format(*row))
        elif arguments.verb == "ssh":
            become(client_command(state, state.get(arguments.name), arguments.argv))
        elif arguments.verb == "exec":
            cell = host.cell_of(state, state.get(arguments.name).name)
            become(host.enter(cell, arguments.argv or ["bash"]))
        else:
            change = {"down": host.down, "remove": host.remove, "power-off": host.power_off}[arguments.verb]
            for name in arguments.names:
                change(state, name)


def main() -> int:
    """Run one verb; a message and 1 where it cannot be done."""
    os.umask(0o022)
    try:
        dispatch(State.default(), parser().parse_args())
    except SandboxError as error:
        say(f"sandbox: {error}")
        return 1
    except KeyboardInterrupt:
        say("sandbox: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
