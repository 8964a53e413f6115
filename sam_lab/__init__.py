# SPDX-License-Identifier: Apache-2.0
"""The laboratory: drafting methods on recorded answers, on models and on engines; the planner; the benchmark.

`python -m sam_lab COMMAND`, from the repository's root. The parts, each of which uses those before it:

cli, figures    shared by the commands
recordings      recorded answers; `data` has small ones
replay          score a drafter on recorded answers
methods         drafting methods, and the trees that they draft
score           commands that replay recordings by sam_core's rules and by the methods
tree            verify trees on a model
switch_worlds   switch `auto` in random worlds
routing         ways of routing prompts to replicas
engine_replay   recorded answers drive the patched engine
plan            predict a recipe's rollout
papers          experiments on the claims of the papers
bench           time, memory and acceptance beside other drafters
"""
