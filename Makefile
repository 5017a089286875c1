# make deploy TARGET=homelab   deploys inventories/homelab.py; DATA="llama_port=8911 …" overrides host data
.DEFAULT_GOAL := help
.PHONY: help up down plan deploy verify status doctor logs drift drift-timer switch rollback bench compare tune report prune idempotent pod-up pod-list pod-down pod-demo render unit image images image-try publish newest lock-images image-test presets tiny check test test-offline test-testbed \
	testbed testbed-down lock-python
TARGET ?= local
VARIANT ?=
DATA ?=
CLOUD ?= runpod
BIN := .venv/bin
OVERRIDES := $(foreach item,$(DATA),$(if $(findstring =,$(item)),--data '$(item)',\
	$(error DATA holds '$(item)', which sets nothing. Fix: write it as KEY=VALUE, as in DATA="llama_port=8911")))
INVENTORY = $(or $(wildcard inventories/$(TARGET).py),$(error There is no inventories/$(TARGET).py. \
	Fix: TARGET is one of $(notdir $(basename $(wildcard inventories/*.py)))))
PYINFRA = $(BIN)/pyinfra $(OVERRIDES) $(INVENTORY)
SH_FILES = $(shell git ls-files '*.sh' .ci)
WORKFLOWS = $(wildcard .github/workflows/*.yaml)
DOCKERFILES = $(shell git ls-files '*Dockerfile*' | grep -v dockerignore)

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

up: run-env  ## Serve on this machine (no GPU, no root, no account needed) and show an answer
	@$(BIN)/python -m beeyard.up $(OVERRIDES)

down: run-env  ## Stop what `up` or `deploy` started on TARGET (default: local); files stay
	@$(PYINFRA) down.py -y

plan: run-env  ## Show what `deploy` would change on TARGET
	@$(PYINFRA) deploy.py --dry --diff

deploy: run-env  ## Bring the hosts of TARGET to their spec
	@$(PYINFRA) deploy.py -y

switch: run-env  ## Switch TARGET to VARIANT, under the gate
	@$(PYINFRA) --data llama_variant=$(or $(VARIANT),$(error name a variant, as in VARIANT=baseline)) deploy.py -y

rollback: run-env  ## Return TARGET to the server and engine before; once more goes forward again
	@$(PYINFRA) rollback.py -y

verify: dev-env  ## Check that what runs on TARGET is what the spec says; kills it once (KILL=0: not)
	@TARGET=$(notdir $(basename $(INVENTORY))) DATA='$(DATA)' $(BIN)/pytest tests/host

status: run-env  ## One screen: how the hosts of TARGET and their servers do; WATCH=1 JSON=1
	@$(BIN)/python -m beeyard.cli status $(OVERRIDES) $(notdir $(basename $(INVENTORY))) $(if $(WATCH),--watch) $(if $(JSON),--json)

doctor: run-env  ## Check the hosts of TARGET and their servers, each fault with its Fix; BUNDLE=FILE for whoever helps
	@$(BIN)/python -m beeyard.cli doctor $(OVERRIDES) $(notdir $(basename $(INVENTORY))) $(if $(BUNDLE),--bundle '$(BUNDLE)')

drift: dev-env  ## What of TARGET is no longer as its spec says, by a dry run and by looking; 6 if anything. Changes nothing
	@$(BIN)/python -m beeyard.cli drift $(OVERRIDES) $(notdir $(basename $(INVENTORY)))

drift-timer: run-env  ## Write units that run `drift` on TARGET every night here; OUT=FOLDER TELL=COMMAND WEBHOOK=FILE
	@$(BIN)/python -m beeyard.cli drift-timer $(notdir $(basename $(INVENTORY))) --out '$(or $(OUT),.beeyard/units)' $(if $(TELL),--tell '$(TELL)') $(if $(WEBHOOK),--webhook-file '$(WEBHOOK)')

logs: run-env  ## The servers' logs of TARGET; LINES=100, FOLLOW=1: and what comes
	@$(BIN)/python -m beeyard.cli logs $(OVERRIDES) $(notdir $(basename $(INVENTORY))) $(if $(LINES),--lines $(LINES)) $(if $(FOLLOW),--follow)

# What bench and compare ask, and where its record goes.
ASKED_OF = $(foreach name,$(WORKLOAD),--workload '$(name)') $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(URL),--url '$(URL)')
ASKED = $(ASKED_OF) $(if $(OUT),--out '$(OUT)') $(if $(PRICE),--price $(PRICE))

bench: run-env  ## Measure the server that runs on TARGET (default: local); WORKLOAD= ROUNDS= URL= OUT=
	@$(BIN)/python -m beeyard.cli bench $(OVERRIDES) $(notdir $(basename $(INVENTORY))) $(ASKED)

compare: run-env  ## Measure VARIANTS=baseline,dflash of TARGET in turns, under the gate; WORKLOAD= ROUNDS= URL= OUT= HTML= THEN_DOWN=1
	@$(BIN)/python -m beeyard.cli compare $(OVERRIDES) $(notdir $(basename $(INVENTORY))) $(if $(VARIANTS),--variants '$(VARIANTS)') $(ASKED) $(if $(HTML),--html '$(HTML)') $(if $(THEN_DOWN),--then-down)

tune: run-env  ## Search what makes VARIANT= of TARGET fastest, within MINUTES=60 or COST= at PRICE= an hour; goes on where it was stopped
	@$(BIN)/python -m beeyard.cli tune $(OVERRIDES) $(notdir $(basename $(INVENTORY))) $(if $(VARIANT),--variant '$(VARIANT)') $(if $(MINUTES),--minutes $(MINUTES)) $(if $(COST),--cost $(COST)) $(if $(PRICE),--price $(PRICE)) $(ASKED_OF)

report: run-env  ## Report on RECORDS=; AGAINST= an older one; HTML= and MARKDOWN= files
	@$(BIN)/python -m beeyard.cli report $(or $(RECORDS),$(error name records, as in RECORDS=.beeyard/bench/a.json)) $(foreach file,$(AGAINST),--against '$(file)') $(if $(HTML),--html '$(HTML)') $(if $(MARKDOWN),--markdown '$(MARKDOWN)')

prune: run-env  ## Remove model files of TARGET that neither its presets nor its last two servers name; asks (YES=1: not)
	@$(PYINFRA) prune.py $(if $(YES),-y)

idempotent: run-env  ## Deploy TARGET again, and fail if that changes anything
	@$(BIN)/python -m beeyard.idempotent $(OVERRIDES) $(INVENTORY)

pod-up: run-env  ## Rent a pod for PRESET= (gemma-4-31b) at CLOUD= (runpod), asks; NAME= HOURS= MAX_PRICE= IMAGE= YES=1
	@$(BIN)/python -m beeyard.cli pods up $(CLOUD) $(PRESET) $(if $(NAME),--name '$(NAME)') $(if $(VARIANT),--variant '$(VARIANT)') $(if $(HOURS),--hours '$(HOURS)') $(if $(MAX_PRICE),--max-price '$(MAX_PRICE)') $(if $(IMAGE),--image '$(IMAGE)') $(if $(YES),--yes)

pod-list: run-env  ## List our rented pods: price, money spent, time left
	@$(BIN)/python -m beeyard.cli pods list

pod-down: run-env  ## End the pod NAME= (or the only one) at CLOUD= (runpod), and prove that it is gone; asks (YES=1: not)
	@$(BIN)/python -m beeyard.cli pods down $(CLOUD) $(NAME) $(if $(YES),--yes)

pod-demo: dev-env tiny testbed  ## Rent, deploy, ask and end, with a stand-in of RunPod and a pod of the test bed (needs root)
	@$(BIN)/python -m tests.pod_demo

render: run-env  ## Write compose.yaml and docker-bake.hcl anew, after a change of presets/ or templates/
	@$(BIN)/python -m beeyard.cli render

unit: run-env  ## Print the unit of PRESET and VARIANT, as in PRESET=tiny VARIANT=dflash
	@$(BIN)/python -m beeyard.cli unit $(or $(PRESET),$(error name a preset, as in PRESET=tiny)) $(or $(VARIANT),$(error name a variant, as in VARIANT=dflash))

image: run-env  ## Build the image for this machine's card; or CARD=rtx-4090, or IMAGE=cpu; ENGINE= JOBS= SOURCE= POD=1
	@$(BIN)/python -m beeyard.cli image $(IMAGE) $(if $(ENGINE),--engine $(ENGINE)) $(if $(CARD),--card $(CARD)) $(if $(CUDA_ARCHITECTURES),--architectures '$(CUDA_ARCHITECTURES)') $(if $(JOBS),--jobs $(JOBS)) $(if $(SOURCE),--source '$(SOURCE)') $(if $(POD),--pod)

images: run-env  ## Build every image: cuda12, cuda13, cpu
	@$(BIN)/python -m beeyard.cli image --all $(if $(ENGINE),--engine $(ENGINE)) $(if $(JOBS),--jobs $(JOBS))

image-try: dev-env  ## Try the image IMAGE= that `make image` built: user, files, flags, health, stop
	@BEEYARD_IMAGE=$(or $(IMAGE),$(error name a variant, as in IMAGE=cpu)) BEEYARD_ENGINE=$(ENGINE) $(BIN)/pytest tests/image/test_image.py -m any_image

publish: run-env  ## Build IMAGE= and push it to TO=ghcr.io/OWNER/NAME with SBOM and provenance; VERSION= ENGINE= POD=1
	@$(BIN)/python -m beeyard.cli publish $(or $(IMAGE),$(error name a variant, as in IMAGE=cpu)) --to $(or $(TO),$(error name a repository, as in TO=ghcr.io/OWNER/NAME)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(VERSION),--version $(VERSION)) $(if $(JOBS),--jobs $(JOBS)) $(if $(POD),--pod)

newest: run-env  ## Try the newest commit of ENGINE= on the CPU; without, list the engines that have one
	@$(BIN)/python -m beeyard.cli newest $(ENGINE) $(if $(JOBS),--jobs $(JOBS))

lock-images: run-env  ## Ask the registries for the digests of the images' bases, and lock them; FROM=ghcr.io/OWNER/NAME: of published images
	@$(BIN)/python -m beeyard.cli lock-images $(if $(FROM),--from $(FROM))

presets: run-env  ## List presets, variants, engines
	@$(BIN)/python -m beeyard.cli presets

tiny: run-env  ## Generate the tiny models, for tests and trials
	@$(BIN)/python -m beeyard.tiny .beeyard/tiny

check: dev-env  ## Lint, types, templates
	$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy
	$(BIN)/yamllint --strict . && $(BIN)/shellcheck --external-sources $(SH_FILES)
	$(BIN)/hadolint $(DOCKERFILES)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	$(BIN)/zizmor --offline --quiet --no-progress $(WORKFLOWS)
	@# No Python package brings actionlint itself, so it cannot be locked: it runs where it is installed.
	@if command -v actionlint >/dev/null; then actionlint $(WORKFLOWS); else echo "left out: actionlint, which is not installed" >&2; fi
	@tests/image/check.sh $(DOCKERFILES)
	$(BIN)/docker-compose --profile '*' config --quiet
	$(BIN)/docker-compose --file compose.yaml --file compose.cdi.yaml --profile '*' config --quiet
	HF_TOKEN=x $(BIN)/docker-compose --file compose.yaml --file compose.token.yaml --profile '*' config --quiet

test: dev-env  ## Everything: check, unit and plan tests, real servers on real test hosts (needs root)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check testbed
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target test-hosts image-test test-pod test-light test-alone

test-offline: check  ## check, and the tests that need no hosts
	@$(MAKE) --no-print-directory test-alone

# Behind the test bed none of these is left out for want of a program: it brings them.
.PHONY: test-alone
test-alone: dev-env tiny
	@$(BIN)/pytest tests/unit tests/plan

.PHONY: test-export
test-export: dev-env  ## What `beeyard export` writes, read by SkyPilot, dstack, LiteLLM, Aider, kubectl … (each installed by itself, 1.2 GB; not part of test)
	@$(BIN)/pytest tests/export

test-testbed: dev-env tiny  ## Tests on the test hosts, which are started and left running for the next time
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target test-hosts image-test test-pod test-light

# These and image-test mostly have hosts of their own, and wait most of their time: they run beside each other. Where two
# want the same host, one waits (pytest.mark.hosts): the two files that want several come last.
.PHONY: test-hosts test-light test-pod
LIGHT = tests/testbed/test_bad_input.py tests/testbed/test_engines.py tests/testbed/test_limits.py
POD = tests/testbed/test_life.py tests/testbed/test_operate.py tests/testbed/test_pod_front.py
BOTH = tests/testbed/test_models.py tests/testbed/test_gateway.py
test-hosts: dev-env tiny testbed
	@$(BIN)/pytest tests/testbed -k "not compose and not ((test_life or test_operate or test_pod_front) and pod)" $(LIGHT:%=--ignore=%) $(BOTH:%=--ignore=%)
	@$(BIN)/pytest $(BOTH)

test-light: dev-env tiny testbed
	@$(BIN)/pytest $(LIGHT)

test-pod: dev-env tiny testbed
	@$(BIN)/pytest $(POD) -k pod

image-test: dev-env tiny testbed  ## Build a real engine's CPU image (10 minutes, once a machine) and try it, alone and deployed
	@$(BIN)/pytest tests/image tests/testbed/test_compose.py tests/testbed/test_compose_gpu.py

.PHONY: bench-image bench-download bench-converge
bench-converge: dev-env tiny testbed  ## What a deploy costs beside the least it can cost and Ansible; 20 minutes, as root; ROUNDS=
	@$(BIN)/python -m benchmarks.converge $(if $(ROUNDS),--rounds $(ROUNDS))

bench-download: run-env  ## How fast a model file comes over, by transport, beside curl; takes minutes and 4 GB of disk
	@$(BIN)/python -m benchmarks.download

bench-image: run-env  ## What a container costs: start and tokens/s beside the same binary; IMAGE=TAG MODEL=FILE, as root
	@$(BIN)/python benchmarks/container.py $(or $(IMAGE),$(error name an image, as in IMAGE=beeyard:llama.cpp-b11434-cpu)) $(or $(MODEL),$(error name a GGUF file, as in MODEL=models/x.gguf))

testbed:  ## Start the test hosts: a Docker Engine, a systemd host, pods, a Hub
	@tests/testbed/up.sh

testbed-down:  ## Stop what `testbed` started
	@tests/testbed/down.sh

lock-python: dev-env  ## Lock the Python packages anew, with hashes
	$(BIN)/uv pip compile -q --upgrade --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock-python" pyproject.toml -o requirements/run.txt
	$(BIN)/uv pip compile -q --upgrade --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock-python" --extra dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile -q --upgrade --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock-python" benchmarks/ansible/requirements.in -o benchmarks/ansible/requirements.txt
	grep -A 1000 '^uv==' requirements/run.txt | awk 'NR > 1 && !/^ / { exit } { print }' >requirements/uv.txt

.PHONY: run-env dev-env
run-env:
	@sh requirements/bootstrap.sh run
dev-env:
	@sh requirements/bootstrap.sh dev
