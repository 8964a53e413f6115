# SPDX-License-Identifier: Apache-2.0
"""The methods of the papers that this project grew from, runnable, on recordings and on models.

`python -m research COMMAND`, from the repository's root; `make research` runs the tests. The parts:

methods       the methods by name
pool, exact   SuffixDecoding: on sam_core's pool, and as its paper has it
rest          REST
draft_model   GSD: a draft model's chains, trees and graphs; `hybrid`: SAM's trees where it is sure of them
tree_model    a transformers model that is fed trees; `decoder` and `verify` decode with it
models        target and draft model
compare       the methods that need no model, on recordings
tree          all methods on a model
papers        what the papers measure
article       the planner fitted to the article's figures, and what it predicts of other published runs (`quoted`)
"""
