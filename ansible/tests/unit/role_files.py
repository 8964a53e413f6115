# SPDX-License-Identifier: Apache-2.0
"""Read files of the roles, and render their templates and expressions with Ansible."""

from pathlib import Path

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLES = Path(__file__).resolve().parents[2] / "roles"


def read(path):
    """The content of a role's YAML file."""
    return DataLoader().load_from_file(str(ROLES / path), trusted_as_template=True)


def tasks(path):
    """The tasks of a role's file by name."""
    return {task["name"]: task for task in read(path)}


def rendered(text, **values):
    """Return a role's template (a path that ends in .j2), expression or variable as Ansible renders it."""
    if str(text).endswith(".j2"):
        text = trust_as_template((ROLES / text).read_text())
    elif isinstance(text, str) and "{{" not in text:
        text = trust_as_template(f"{{{{ {text} }}}}")
    return Templar(DataLoader(), variables=values).template(text)
