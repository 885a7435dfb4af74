#!/usr/bin/python
"""Let another host have a model."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_model_share
short_description: Let another host have a model
description:
  - Serves a model that was downloaded here, to whoever has a token, as a hub would. The module
    C(sglang_model) on another host takes it from there.
  - The service is a transient unit; it ends with O(state=stopped), and by itself when nobody asks any more.
options:
  path:
    description: Directory of the model.
    type: path
    required: true
  token:
    description: A secret that both hosts know.
    type: str
    required: true
  state:
    description: Whether the model is served.
    type: str
    choices: [started, stopped]
    default: started
  idle_seconds:
    description: The service ends when nobody has asked for so long.
    type: int
    default: 300
attributes:
  check_mode: {description: Does nothing., support: none}
  diff_mode: {description: Changes no file that stays., support: none}
  idempotent: {description: A second run starts nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Let another host have a model
  sglang_model_share:
    path: /srv/models/qwen3-8b
    token: "{{ secret }}"
  register: share
"""

RETURN = r"""
port:
  description: Port on which it is served, on every address; 0 where it is stopped.
  type: int
  returned: always
  sample: 41873
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import model_peer
from ansible.module_utils.sglang_kit.problem import ProblemsError

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "token": {"type": "str", "required": True, "no_log": True},
    "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
    "idle_seconds": {"type": "int", "default": 300},
}


def main() -> None:
    """Start or stop."""
    module = AnsibleModule(argument_spec=ARGUMENTS)
    given = module.params
    peer = model_peer.Peer(given["path"], given["token"])
    try:
        if given["state"] == "started":
            changed, port = model_peer.start(peer, given["idle_seconds"])
        else:
            changed, port = model_peer.stop(peer), 0
    except ProblemsError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, port=port)


if __name__ == "__main__":
    main()
