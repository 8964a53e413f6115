# SPDX-License-Identifier: Apache-2.0
"""The laboratory: recorded answers replayed by drafters and engines, the planner, the evidence, the benchmark.

`python -m sam_lab COMMAND`, from the repository's root. The parts, each of which uses those before it:

cli, figures, workers       shared by the commands
recordings                  recorded answers; `data` has small ones; `export` writes them
cost                        what an engine step takes: a roofline, fitted, or measured
replay                      score a drafter on recorded answers; `replay_command` is the command
drafters, automaton         drafters: sam_core's pool, the article's automaton in Python
completion, suffix_device   in numpy: the device's part of late drafts, and vLLM's suffix decoding on the device
engine_replay               recorded answers drive the real engine
plan                        predict a recipe's rollout
bench                       time, memory and acceptance compared with other drafters
evidence                    every way to speculate on recorded answers, with cost models of several devices
papers                      SuffixDecoding, REST and GSD: their claims on recorded answers
switch_worlds               switch `auto` in random worlds
"""
