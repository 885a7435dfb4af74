#!/usr/bin/python
"""Tell what every SGLang instance of a host does, and what else lives there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_status
short_description: Tell what every SGLang instance of a host does, and what else lives there
description:
  - Tells the life of each instance apart from systemd's own properties, from the journal of its current
    invocation, and from what it answers. Nothing of an older invocation is shown.
  - Also finds engines that none of the units runs, services of others on the GPUs, and what fills the disk.
options:
  instances:
    description: Wanted state by instance name.
    type: dict
    required: true
  name:
    description: The one instance to tell of; all of them without it.
    type: str
  reserved_gpus:
    description: GPUs (index or UUID) that belong to other services.
    type: list
    elements: str
    default: []
  root: {description: Directory of the releases., type: path, default: /opt/sglang}
  config_directory: {description: Directory of the plans., type: path, default: /etc/sglang}
  cache_directory: {description: Directory of the compiled kernels., type: path, default: /var/cache/sglang}
  state_directory: {description: Directory of state and evidence., type: path, default: /var/lib/sglang}
  package_cache: {description: Directory of uv's cache., type: path, default: /opt/sglang/uv-cache}
  models_directory: {description: Directory of the models., type: path, default: /srv/models}
  unit_directory: {description: Directory of the units., type: path, default: /etc/systemd/system}
attributes:
  check_mode: {description: Only reads., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Look at a host
  sglang_status:
    instances: {chat: started}
  register: status
"""

RETURN = r"""
as_wanted:
  description: Whether every wanted instance is ready, and no stopped one runs.
  type: bool
  returned: always
  sample: true
instances:
  description: What each instance does.
  type: list
  elements: dict
  returned: always
  sample:
    - name: chat
      wanted: started
      state: ready
      as_wanted: true
      uptime_seconds: 4711
      main_pid: 1234
      concurrency: {asked: 16, effective: 16}
engines:
  description: Processes of SGLang that none of the units runs.
  type: list
  elements: dict
  returned: always
  sample: [{pid: 99, uid: 1000, unit: session-3.scope, command: python3 -m sglang.launch_server}]
foreign:
  description: Who else holds memory of the GPUs.
  type: list
  elements: dict
  returned: always
  sample: [{gpu: 0, reserved: true, pid: 77, unit: train.service, command: train, memory_mib: 4706}]
disk:
  description: What lies on the disk, drop-ins of the units included.
  type: list
  elements: dict
  returned: always
  sample: [{kind: models, path: /srv/models/chat, bytes: 9500000000, size: 8.85 GiB}]
lines:
  description: The same for people.
  type: list
  elements: str
  returned: always
  sample: ["chat  started  ready"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import status
from ansible.module_utils.sglang_kit.problem import ProblemsError

ARGUMENTS = {
    "instances": {"type": "dict", "required": True},
    "name": {"type": "str"},
    "reserved_gpus": {"type": "list", "elements": "str", "default": []},
    "root": {"type": "path", "default": "/opt/sglang"},
    "config_directory": {"type": "path", "default": "/etc/sglang"},
    "cache_directory": {"type": "path", "default": "/var/cache/sglang"},
    "state_directory": {"type": "path", "default": "/var/lib/sglang"},
    "package_cache": {"type": "path", "default": "/opt/sglang/uv-cache"},
    "models_directory": {"type": "path", "default": "/srv/models"},
    "unit_directory": {"type": "path", "default": "/etc/systemd/system"},
}


def main() -> None:
    """Look and report."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = dict(module.params)
    wanted, name, reserved = given.pop("instances"), given.pop("name"), tuple(given.pop("reserved_gpus"))
    seen = status.look(wanted, status.Host(**given, reserved_gpus=reserved))
    try:
        seen = status.only(seen, name) if name else seen
    except ProblemsError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, lines=status.lines(seen), **seen)


if __name__ == "__main__":
    main()
