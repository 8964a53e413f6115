# SPDX-License-Identifier: Apache-2.0
"""The benchmark: time, memory and acceptance of sam_core and other drafters in one run, against its targets."""
