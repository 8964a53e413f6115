# SPDX-License-Identifier: Apache-2.0
"""How fast speculation is on recorded answers: every arm, on the same batches, with cost models of several devices."""
