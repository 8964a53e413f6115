# SPDX-License-Identifier: Apache-2.0
"""Commands that score drafters on recorded answers: sam_core's rules, the papers' methods, answers of another kind."""
