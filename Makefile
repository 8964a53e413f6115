# SPDX-License-Identifier: Apache-2.0
PINSETS := $(notdir $(patsubst %/pins.toml,%,$(wildcard patches/*/pins.toml)))
DEFAULT := vllm-0.23
PIN ?= $(firstword $(filter $(DEFAULT),$(PINSETS)) $(PINSETS))
TOOLS := .venvs/tools/bin
ENV := .venvs/$(PIN)/bin

DEMO_PINSETS := $(notdir $(patsubst %/pins.toml,%,$(shell grep -l '^demo = true' patches/*/pins.toml)))

# Tests that need .venvs/tools alone, those that need torch but no engine and run in the environment of PIN, and those
# that a pin set's pins.toml lists.
QUICK_TESTS := tests/sam_core tests/ci tests/replay tests/patches tests/accuracy tests/reports
TORCH_TESTS := tests/verify
$(foreach pinset,$(PINSETS),$(eval TESTS_$(pinset) := $(shell patches/patchset pin $(pinset) tests)))
tests-of = $(TESTS_$(1)) $(if $(filter $(PIN),$(1)),$(TORCH_TESTS))
COMPILE := $(TOOLS)/uv pip compile --quiet --generate-hashes --no-annotate --no-header \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28

.PHONY: help demo evidence docs test test-all test-quick test-wheels test-ansible test-bed test-bed-long test-image wheels bench bench-asynchronous bench-sampler device-costs test-mutants site lint lock clean

help: ## print this list
	@echo "make TARGET [PIN=$(PIN)]   (pin sets: $(PINSETS))"
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 16

.PHONY: known-pin-set
known-pin-set:
	@[ -n "$(filter $(PIN),$(PINSETS))" ] || { echo "make: there is no pin set $(PIN): choose from $(PINSETS)" >&2; exit 2; }

demo: ## train a tiny Qwen3 on this machine, with and without speculation
	@[ -n "$(filter $(PIN),$(DEMO_PINSETS))" ] || \
		{ echo "make demo: $(PIN) is no pin set with a recipe for a CPU: choose from $(DEMO_PINSETS)" >&2; exit 2; }
	ci/setup-env $(PIN)
	$(ENV)/python -m llm_rl.demo

# A folder of tests in an environment is a job, run/ENVIRONMENT/FOLDER; JOBS of them run at a time, the long ones first.
# Three keep two cores busy, because engines often wait; the slow tests need more memory. Environments are created one
# at a time (setup-env takes a lock), mostly on one core; FIRST_JOBS, which read no pin set's environment, run on the
# other cores meanwhile. Then the environments are marked as up to date (-o): make would postpone a job that waits for
# one.
JOBS ?= $(if $(ALL_TESTS),2,3)
ENVIRONMENTS := environment/tools $(PINSETS:%=environment/%)
QUICK_JOBS := $(QUICK_TESTS:%=run/tools/%)
FIRST_JOBS := $(filter-out %/tests/ci,$(QUICK_JOBS))
SLOW_JOBS := $(if $(ALL_TESTS),test-bed test-wheels)
jobs-of = $(addprefix run/$(1)/,$(call tests-of,$(1)))
PINSET_JOBS = $(foreach pinset,$(PIN) $(filter-out $(PIN),$(PINSETS)),$(call jobs-of,$(pinset)))
LONG_JOBS = $(filter %/recipes %/runner2 %/ascend,$(PINSET_JOBS))
ifeq ($(origin PIN),file)
test: ## lint and all tests but the slow ones; with PIN=... those of that pin set's environment
	+$(MAKE) --no-print-directory -j$(JOBS) environments lint $(FIRST_JOBS)
	+$(MAKE) --no-print-directory -j$(JOBS) $(ENVIRONMENTS:%=-o %) $(SLOW_JOBS) \
		$(LONG_JOBS) test-ansible $(filter-out $(FIRST_JOBS),$(QUICK_JOBS)) $(filter-out $(LONG_JOBS),$(PINSET_JOBS))
else
test: known-pin-set
	+$(MAKE) --no-print-directory -j$(JOBS) $(call jobs-of,$(PIN))
endif

test-all: ## all tests, also the slow ones, the test bed and the wheels
	+ALL_TESTS=1 $(MAKE) --no-print-directory test

test-quick: ## the tests that need neither torch nor an engine
	+$(MAKE) --no-print-directory -j$(JOBS) $(QUICK_JOBS)

run/%:
	@job=$* && bash -o pipefail -c '.venvs/$$0/bin/python -m pytest --durations=25 $$1 2>&1 | sed -u "s|^|$*: |"' $${job%%/*} $${job#*/}

.PHONY: environments
environments: environment/tools
	$(foreach pinset,$(PINSETS),$(MAKE) --no-print-directory environment/$(pinset) &&) true

environment/tools:
	ci/setup-env tools

environment/%:
	ci/setup-env $*
	$(TOOLS)/python patches/patchset check $*

$(foreach job,$(QUICK_JOBS),$(eval $(job): environment/tools))
$(foreach pinset,$(PINSETS),$(eval $(call jobs-of,$(pinset)): environment/$(pinset)))

test-wheels: ## builds the wheels and tests them in clean environments, aarch64 under an emulator if qemu-user is installed
	ci/test-wheels

test-ansible: ## the playbooks' plugins, syntax and style; contacts no host (about a minute)
	ci/setup-env ansible
	ci/lint ansible
	.venvs/ansible/bin/python -m pytest -p no:cacheprovider ansible/tests/unit

test-bed: ## the playbooks on systemd-nspawn hosts; skipped without root and Debian's debootstrap (minutes)
	ci/test-bed

test-bed-long: ## the bed with monitoring, a host and a folder lost in a run, and an upgrade and back too (minutes more)
	SAM_BED_LONG=1 ci/test-bed

test-image: ## the playbooks' image, built by podman on a stand-in base and run; skipped without root, podman and a registry (minutes)
	ci/test-image

wheels: ## dist/: source archive and manylinux wheels of sam_core, for x86-64 and aarch64
	ci/build-wheels

bench: ## time, memory and acceptance of sam_core and four other drafters, against the targets (a quarter of an hour)
	ci/setup-env bench
	.venvs/bench/bin/python -m sam_lab bench $(BENCH)

evidence: ## gain of all ways to speculate on the shipped answers, with cost models of devices (about 10 minutes on two quiet cores)
	ci/setup-env bench
	.venvs/bench/bin/python -m sam_lab evidence $(EVIDENCE)

bench-asynchronous: ## acceptance of drafts made one step late and completed on the device, against the targets (minutes)
	ci/setup-env bench
	.venvs/bench/bin/python -m sam_lab bench-asynchronous $(BENCH)

bench-sampler: ## time, operations and synchronisations of our verification and vllm-ascend's, against the targets (minutes)
	ci/setup-env vllm-0.11
	.venvs/vllm-0.11/bin/python -m sam_lab bench-sampler $(BENCH)

device-costs: known-pin-set ## waits, slow operators and launches of a step on a 910C, with drafts and without (minutes)
	ci/setup-env $(PIN)
	$(ENV)/python testing/engines/device_costs.py $(COSTS)

test-mutants: known-pin-set ## remove each patch in turn; every test that it names must fail (about half an hour)
	ci/setup-env $(PIN)
	ci/test-mutants $(PIN)

site: ## the documentation as a site, in build/site; a broken link is an error
	ci/setup-env tools
	$(TOOLS)/python ci/build-site

lint: environment/tools ## formats, linters, and the stored patches against their records
	ci/lint

docs: ## write the generated tables of docs/ and README anew
	ci/setup-env tools
	$(TOOLS)/python docs/generate.py

lock: known-pin-set ## resolve the requirements again; locked versions stay unless UPGRADE=--upgrade
	ci/setup-env tools
	$(COMPILE) $(UPGRADE) ci/tools.in -o ci/tools.lock >/dev/null
	$(COMPILE) $(UPGRADE) ci/wheels.in -o ci/wheels.lock >/dev/null
	$(COMPILE) $(UPGRADE) ansible/requirements.in -o ansible/requirements.lock >/dev/null
	$(COMPILE) $(UPGRADE) sam_lab/bench/requirements.in -o sam_lab/bench/requirements.lock >/dev/null
	$(COMPILE) $(UPGRADE) patches/$(PIN)/requirements.in --override patches/$(PIN)/overrides.txt \
		-o patches/$(PIN)/requirements.lock >/dev/null
	[ ! -f patches/$(PIN)/image.in ] || $(TOOLS)/python ci/lock-image $(PIN) $(UPGRADE)

clean: ## remove the environments and the files of builds and tests (uv's cache stays)
	rm -rf .venvs .cache/sam_core .pytest_cache .hypothesis .ruff_cache build dist sam_core/build sam_core/dist *.egg-info
