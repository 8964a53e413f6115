#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in the image's environment.
. /opt/sam-rl-build/variables.sh
exec "$@"
