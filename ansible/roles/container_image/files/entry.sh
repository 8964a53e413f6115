#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in the image's environment.
# shellcheck source=/dev/null
. /opt/sam-rl-build/variables.sh
exec "$@"
