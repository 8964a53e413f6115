# SPDX-License-Identifier: Apache-2.0
"""How fast speculation is on recorded answers: every arm, on the same batches, by the clocks of several devices."""
