#!/usr/bin/python
"""Let one deploy at a time change a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_lock
short_description: Let one deploy at a time change a host
description:
  - Takes or renews the lock of a host, and fails where another run holds it.
  - A holder that is dead does not block; it is alive as long as the ssh connection by which it took or
    renewed the lock, and on one and the same controller as long as its process.
  - An action plugin of the same name says who the holder is.
options:
  state:
    description: V(held) takes or renews the lock, V(free) gives it back.
    type: str
    choices: [held, free]
    default: held
  holder:
    description:
      - Who holds it, by a C(token) of its own, and what people are told of it; the action plugin sets it.
    type: dict
  dead:
    description: Token of a holder that is known to be dead; the action plugin sets it.
    type: str
    default: ""
  path:
    description: Where the lock lies.
    type: path
    default: /run/sglang-deploy.lock
attributes:
  check_mode: {description: Takes nothing., support: full}
  diff_mode: {description: Changes nothing that lasts., support: none}
  idempotent: {description: A lock that is held is renewed., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Keep others away
  sglang_lock:
  register: lock
"""

RETURN = r"""
by:
  description: Who deploys, and from which commit.
  type: dict
  returned: always
  sample: {user: ann, controller: desk, commit: 0123abcd4567}
other:
  description: Who holds it, where that is somebody else; empty otherwise.
  type: dict
  returned: always
  sample: {user: bob, controller: lab, playbook: deploy.yml, since: "2026-11-29T18:15:02+00:00"}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import lock

ARGUMENTS = {
    "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
    "holder": {"type": "dict"},
    "dead": {"type": "str", "default": ""},
    "path": {"type": "path", "default": lock.PATH},
}


def main() -> None:
    """Take, renew or give back."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    path, holder = module.params["path"], module.params["holder"]
    other = None
    if not module.check_mode:
        if module.params["state"] == "held":
            other = lock.take(path, holder, dead=module.params["dead"])
        else:
            lock.release(path, holder["token"])
    module.exit_json(changed=False, other=other or {})


if __name__ == "__main__":
    main()
