#!/usr/bin/python
"""Remove the releases that nothing needs any more."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_prune
short_description: Remove the releases of SGLang that nothing needs any more
description:
  - Keeps the newest releases, and any that an installed unit, a wanted or known-good state of an instance, or
    a running process needs.
  - Removes what interrupted builds have left, and unpacked packages in uv's cache that no release links to.
options:
  keep:
    description: Number of the newest releases that stay, needed or not.
    type: int
    default: 2
  root:
    description: Directory of the product on the host.
    type: path
    default: /opt/sglang
  uv_cache:
    description: Cache of uv.
    type: path
    default: /opt/sglang/uv-cache
attributes:
  check_mode: {description: Predicts the same change., support: full}
  diff_mode: {description: Shows the releases before and after., support: full}
  idempotent: {description: A second run changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Keep three releases
  sglang_prune:
    keep: 3
"""

RETURN = r"""
removed:
  description: Names of the releases that are gone.
  type: list
  elements: str
  returned: always
  sample: [0.5.11-1c9f6a0b7d52]
kept:
  description: Names of the releases that stay, the newest first.
  type: list
  elements: str
  returned: always
  sample: [0.5.23-52d6472cc106, 0.5.15.post1-8a3f0c5be1d4]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import retention
from ansible.module_utils.sglang_kit.problem import ProblemsError
from ansible.module_utils.sglang_kit.state import Store

ARGUMENTS = {
    "keep": {"type": "int", "default": 2},
    "root": {"type": "path", "default": "/opt/sglang"},
    "uv_cache": {"type": "path", "default": "/opt/sglang/uv-cache"},
}


def main() -> None:
    """Look, and remove what may go."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    wanted = module.params
    try:
        found = retention.look(wanted["root"], Store())
    except ProblemsError as error:
        module.fail_json(msg=f"No release was removed: {error}")
    old = retention.removable(found, wanted["keep"])
    changed = bool(old or found.leftovers)
    if changed and not module.check_mode:
        retention.remove(wanted["root"], old, wanted["uv_cache"])
    kept = [name for name in found.releases if name not in old]
    module.exit_json(
        changed=changed,
        removed=old,
        kept=kept,
        diff={
            "before": "".join(f"{name}\n" for name in [*found.releases, *found.leftovers]),
            "after": "".join(f"{name}\n" for name in kept),
        },
    )


if __name__ == "__main__":
    main()
