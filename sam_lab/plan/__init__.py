# SPDX-License-Identifier: Apache-2.0
"""What a rollout will take: a discrete-event model of one DAPO step, without an engine or a model."""
