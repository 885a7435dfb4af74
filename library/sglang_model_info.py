#!/usr/bin/python
"""Verify the model files of a host's instances."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_model_info
short_description: Verify the model files of a host's instances
description:
  - Reads names, sizes and headers of each model directory, never the weights, and finds every file that is
    missing, cut off, or closed to the account of the instances.
  - Returns each C(config.json) for the plan. It does not fail by itself.
options:
  plans:
    description: Plans of the instances; C(name), C(model) and C(draft_model) are read.
    type: list
    elements: dict
    required: true
  user:
    description: The account of the instances.
    type: str
    default: sglang
attributes:
  check_mode: {description: Reads only., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Verify the models
  sglang_model_info:
    plans: [{name: chat, model: /srv/models/qwen}]
  register: sglang_model_info
"""

RETURN = r"""
problems:
  description: Every fault of every model.
  type: list
  elements: str
  returned: always
  sample: ["chat: /srv/models/qwen: has no tokenizer; copy tokenizer.json beside config.json"]
configs:
  description: Each C(config.json), by directory.
  type: dict
  returned: always
  sample: {/srv/models/qwen: {architectures: [Qwen3ForCausalLM]}}
fingerprints:
  description: What tells whether the files of a model were replaced, by directory.
  type: dict
  returned: always
  sample: {/srv/models/qwen: 9f86d081884c7d65.2c26b46b68ffc68f}
weight_bytes:
  description: Bytes of the tensors in safetensors files, by directory; 0 for other formats.
  type: dict
  returned: always
  sample: {/srv/models/qwen: 16381470720}
"""

import os
import pwd

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import model_files

ARGUMENTS = {
    "plans": {"type": "list", "elements": "dict", "required": True},
    "user": {"type": "str", "default": "sglang"},
}
NOBODY: tuple[int, list[int]] = (-1, [])  # a dry run on a new host: what everybody may read will do


def account(name: str) -> tuple[int, list[int]]:
    """User and group numbers of an account."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return NOBODY
    return entry.pw_uid, os.getgrouplist(name, entry.pw_gid)


def main() -> None:
    """Look and judge."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    uid, gids = account(module.params["user"])
    problems: list[str] = []
    configs = {}
    weight_bytes = {}
    fingerprints = {}
    for wanted in model_files.wanted(module.params["plans"]):
        files, faults = model_files.judge(wanted, model_files.look(wanted.path, uid=uid, gids=gids))
        configs[wanted.path] = files.config
        weight_bytes[wanted.path] = files.weight_bytes
        fingerprints[wanted.path] = model_files.fingerprint(wanted.path)
        problems += map(str, faults)
    module.exit_json(
        changed=False,
        problems=problems,
        configs=configs,
        fingerprints=fingerprints,
        weight_bytes=weight_bytes,
    )


if __name__ == "__main__":
    main()
