"""What a host inherits from the machine it runs on: tools, mirrors, proxies, indexes, certificates."""

from __future__ import annotations

import configparser
import os
import re
import shutil
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.cell import run
from sandbox.console import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# What has to be on the machine, and the Debian or Ubuntu package that brings it.
TOOLS = {
    "apt-get": "apt",
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ip": "iproute2",
}
# Settings of apt that decide whether a mirror is reached and believed.
APT_SETTINGS = (
    r"Acquire::(Check-Date|Check-Valid-Until|Max-FutureTime|Retries|ForceIPv4"
    r"|https?::Proxy(::[^ ]+)?|https::Verify-(Peer|Host)) "
)
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
INDEXES = {
    "HF_ENDPOINT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_INSECURE_HOST",
}
# Most programs use the system's bundle anyway; these are for the ones that bring their own.
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
DEBIAN = {"bullseye", "bookworm", "trixie", "forky", "oldstable", "stable", "testing"}
ARCHIVE = "http://deb.debian.org/debian"
SECURITY = "http://deb.debian.org/debian-security"


def require() -> None:
    """Raise ``SandboxError`` naming everything that is missing, and how to install it."""
    if os.geteuid() != 0:
        raise SandboxError("it boots containers and mounts file systems: run it as root")
    missing = {tool: package for tool, package in TOOLS.items() if not shutil.which(tool)}
    if not KEYRING.exists():
        missing[KEYRING.name] = "debian-archive-keyring"
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise SandboxError(f"missing: {', '.join(missing)}\n  apt-get install --yes {packages}")


def remote(value: str) -> str:
    """Return the words of an index setting that do not point at this machine's own files."""
    return " ".join(word for word in value.split() if not re.match(r"([^=]*=)?(file:|[./~])", word))


def environment(environ: Mapping[str, str], *, own_certificates: bool) -> dict[str, str]:
    """Return what a host gets in ``/etc/environment``, which ssh sessions read and units do not."""
    proxies = {name: value for name, value in environ.items() if name.upper() in PROXIES}
    indexes = {name: remote(value) for name, value in environ.items() if name in INDEXES}
    trusted = dict.fromkeys(CERTIFICATES, str(BUNDLE)) if own_certificates else {}
    return {name: value for name, value in sorted({**proxies, **indexes, **trusted}.items()) if value}


def pip_configuration(texts: Iterable[str]) -> str:
    """Merge pip's configuration files, later ones winning, into ``/etc/pip.conf`` of a host."""
    merged = configparser.RawConfigParser()
    for text in texts:
        merged.read_string(text)
    kept = configparser.RawConfigParser()
    for option in PIP_OPTIONS:
        if value := remote(merged.get("global", option, fallback="")):
            kept.read_dict({"global": {option: value}})
    output = StringIO()
    kept.write(output)
    return output.getvalue()


def apt_settings(dump: str) -> list[str]:
    """Pick from ``apt-config dump`` what a host needs to reach the same mirrors."""
    return [line for line in dump.splitlines() if re.match(APT_SETTINGS, line) and not line.endswith('"";')]


def sources(targets: str, suite: str) -> list[str]:
    """Return apt's lines for a Debian suite, on the mirrors that the machine itself uses.

    ``targets`` holds a line ``URI release component`` for each index that apt reads; on a machine that is
    not Debian, none fits and Debian's own mirrors are taken.
    """
    archive, security = ARCHIVE, SECURITY
    for line in reversed(targets.splitlines()):  # so that of several mirrors the first counts
        uri, release, *component = line.split()
        base, _, pocket = release.partition("-")
        if component != ["main"] or base not in DEBIAN:
            continue
        if pocket == "security":
            security = uri.rstrip("/")
        elif not pocket:
            archive = uri.rstrip("/")
    return [
        f"deb {archive} {suite} main",
        f"deb {archive} {suite}-updates main",
        f"deb {security} {suite}-security main",
    ]


def certificates(bundle: str) -> list[str]:
    """Split a PEM bundle into its certificates."""
    found = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", bundle, flags=re.DOTALL)
    return [f"{certificate}\n" for certificate in found]


def read_existing(*paths: Path) -> list[str]:
    """Return the text of those files that exist, in this order."""
    return [path.read_text() for path in paths if path.is_file()]


def machine_apt_settings() -> list[str]:
    """Return the machine's apt settings that a host needs."""
    return apt_settings(run(["apt-config", "dump"]).stdout)


def machine_sources(suite: str) -> list[str]:
    """Return apt's lines for a suite from the machine's own configuration."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    return sources(run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).stdout, suite)


def machine_bundle() -> str:
    """Return the certificates that this machine trusts."""
    configured = os.environ.get("SSL_CERT_FILE")
    return "".join(read_existing(Path(configured) if configured else BUNDLE))


def machine_configuration(*, own_certificates: bool) -> dict[str, str]:
    """Return the files, by path, that give a host the machine's proxies and package indexes."""
    home = Path.home()
    variables = environment(os.environ, own_certificates=own_certificates)
    pip = pip_configuration(
        read_existing(Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf")
    )
    uv = read_existing(home / ".config/uv/uv.toml", Path("/etc/uv/uv.toml"))
    files = {
        "etc/environment": "".join(f'{name}="{value}"\n' for name, value in variables.items()),
        "etc/pip.conf": pip,
        "etc/uv/uv.toml": "".join(uv[:1]),
        "etc/hosts": "".join(read_existing(Path("/etc/hosts"))),
    }
    return {path: text for path, text in files.items() if text}
