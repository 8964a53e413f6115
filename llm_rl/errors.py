# SPDX-License-Identifier: Apache-2.0
"""The error that every command of llm_rl reports."""


class UserError(Exception):
    """One sentence: what is wrong, where, and what to do. Commands print it and exit with a non-zero status."""
