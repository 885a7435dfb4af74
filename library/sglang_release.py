#!/usr/bin/python
"""Install a locked release of SGLang beside those that are there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Install a locked release of SGLang beside those that are there
description:
  - Builds a venv from a lock with hashes, under another name; imports the engine in it, checks its version,
    marks it complete and renames it. Only then the link C(current) is pointed to it.
  - A release that is not complete is never taken for one; a build that was interrupted begins anew.
  - Releases that are there already stay. Downloads follow the task's environment.
  - An action plugin of the same name shows what a build is doing while it lasts.
options:
  version:
    description: SGLang version that the lock must install.
    type: str
    required: true
  lock_sha256:
    description: SHA-256 of the lock, in hexadecimal digits.
    type: str
    required: true
  lock_file:
    description:
      - The lock on the host. Without it nothing is built, and RV(complete) says whether a build is due;
        so the lock travels only when it is needed.
    type: path
  root:
    description: Directory of the product on the host.
    type: path
    default: /opt/sglang
  python:
    description: Interpreter of a new release.
    type: path
    default: /usr/bin/python3
  uv:
    description: The uv that builds, as a requirement with the hash of its wheel.
    type: str
  uv_cache:
    description: Cache of uv; on the mount of O(root) packages are linked from it instead of copied.
    type: path
    default: /opt/sglang/uv-cache
  unit_environment:
    description: What units get as E(PATH), E(CUDA_HOME) and E(LD_LIBRARY_PATH); the import test runs with it.
    type: dict
    default: {}
  packages:
    description: A directory of wheels on the host that is looked into, too.
    type: path
  bundle:
    description: A bundle of wheels on the host (C(make bundle)), checked file by file.
    type: path
  index:
    description: Whether the package index is asked; otherwise O(packages) or O(bundle) holds everything.
    type: bool
    default: true
  probe:
    description: Whether this is a build of one's own, whose flags and algorithms are read from the package.
    type: bool
    default: false
  progress:
    description: Only says what a build that runs is doing; the action plugin sets it.
    type: bool
    default: false
attributes:
  check_mode: {description: Predicts the same change; nothing is built., support: full}
  diff_mode: {description: Shows C(current) and the release before and after., support: full}
  idempotent: {description: A second run changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Install the release
  sglang_release:
    version: "0.5.23"
    lock_sha256: "{{ lookup('ansible.builtin.file', 'locks/0.5.23.txt', rstrip=false) | hash('sha256') }}"
    lock_file: /opt/sglang/locks/0.5.23.txt
    uv: "{{ lookup('ansible.builtin.file', 'uv.txt') }}"
"""

RETURN = r"""
path:
  description: Directory of the release.
  type: str
  returned: always
  sample: /opt/sglang/releases/0.5.23-52d6472cc106
complete:
  description: Whether the release stands there, whole.
  type: bool
  returned: always
  sample: true
progress:
  description: What a build that runs is doing; empty where none runs.
  type: str
  returned: with O(progress)
  sample: "has fetched 12 large packages; under way: torch (1.2GiB)"
build:
  description: With O(probe), the flags and speculative algorithms that were found; empty before that.
  type: dict
  returned: always
  sample:
    flags: [[--page-size, value, int, page_size, ""]]
    algorithms: [DDTREE, EAGLE]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import release
from ansible.module_utils.sglang_kit.problem import ProblemsError

ARGUMENTS = {
    "version": {"type": "str", "required": True},
    "lock_sha256": {"type": "str", "required": True},
    "lock_file": {"type": "path"},
    "root": {"type": "path", "default": "/opt/sglang"},
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "uv": {"type": "str"},
    "uv_cache": {"type": "path", "default": "/opt/sglang/uv-cache"},
    "unit_environment": {"type": "dict", "default": {}},
    "packages": {"type": "path"},
    "bundle": {"type": "path"},
    "index": {"type": "bool", "default": True},
    "probe": {"type": "bool", "default": False},
    "progress": {"type": "bool", "default": False},
}


def main() -> None:
    """Compare, build, switch."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_by={"lock_file": ["uv"]},
        mutually_exclusive=[("packages", "bundle")],
        supports_check_mode=True,
    )
    wanted = module.params
    root = wanted["root"]
    if wanted["progress"]:
        module.exit_json(changed=False, progress=release.progress(root))
    this = release.Release(wanted["version"], wanted["lock_sha256"])
    before = release.state(root, this)
    if wanted["lock_file"] and not before.complete and not module.check_mode:
        how = release.Build(
            lock_file=wanted["lock_file"],
            python=wanted["python"],
            uv=wanted["uv"],
            uv_cache=wanted["uv_cache"],
            unit=wanted["unit_environment"],
            packages=wanted["packages"] or "",
            bundle=wanted["bundle"] or "",
            index=wanted["index"],
            probe=wanted["probe"],
        )
        try:
            release.build(root=root, release=this, how=how)
        except ProblemsError as error:
            module.fail_json(msg=f"{error}\nNothing was switched: current is {before.current or 'not set'}.")
    due = wanted["lock_file"] or before.complete
    if due and before.current != this.name and not module.check_mode:
        release.switch(root, this)
    after = release.State(current=this.name, complete=True) if due else before
    module.exit_json(
        changed=before != after,
        path=release.path(root, this),
        complete=after.complete,
        build=release.found(root, this) if wanted["probe"] else {},
        diff={"before": before.text(this), "after": after.text(this)},
    )


if __name__ == "__main__":
    main()
