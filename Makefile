# make demo: install and run the main job, no network data needed.   make test: install, lint, types, tests.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: demo test docs audit results clean

demo: $(STAMP)
	$(BIN)/supsup demo

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/words.py
	$(BIN)/mypy
	$(BIN)/pytest -q --numprocesses auto --dist loadfile

# The documentation site, in site/; a link that leads nowhere fails.
docs: $(STAMP)
	$(BIN)/mkdocs build

# Every file is held to the hashes in the lock files (.ci/lock.py writes them). torch.lock knows several builds of torch:
# one that lies at hand (pip's find-links) is taken first, since pip itself prefers the registry's, whose hash it knows
# beforehand. `pip check` finds that the registry's build for Linux asks for CUDA, and only then cuda.lock is installed.
HASHED := $(BIN)/pip install --quiet --require-hashes --no-deps
$(STAMP): pyproject.toml requirements.lock torch.lock cuda.lock
	$(PYTHON) -m venv .venv
	$(HASHED) --requirement requirements.lock
	$(HASHED) --no-index --requirement torch.lock 2> /dev/null || $(HASHED) --requirement torch.lock
	$(BIN)/pip check > /dev/null || $(HASHED) --requirement cuda.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/pip check
	touch $@

# Are there known vulnerabilities in what is locked? Asks a public database; says so where that cannot be reached.
audit:
	$(PYTHON) .ci/audit.py

# The figures of the core on the real MNIST (SUPSUP_DATA names the folder that holds mnist/), about 10 minutes on 2 cores.
results: $(STAMP)
	$(BIN)/supsup demo --fresh --data mnist --stream permuted --tasks 10 --steps 1000 --out results/core --name permuted-lenet-H
	$(BIN)/supsup demo --fresh --data mnist --stream permuted --tasks 10 --steps 1000 --objective G --no-compare --out results/core --name permuted-lenet-G
	$(BIN)/supsup demo --fresh --data mnist --stream permuted --tasks 3 --steps 1000 --net fc_1024 --outputs 200 --no-compare --out results/core --name permuted-fc
	$(BIN)/supsup demo --fresh --data mnist --stream rotated --tasks 6 --steps 1000 --net fc_1024 --outputs 200 --method binary --protocol paper-full-batch --no-strict --no-compare --out results/core --name rotated-fc
	$(BIN)/supsup demo --fresh --data mnist --stream permuted --tasks 10 --steps 1000 --unannounced --outputs 500 --no-compare --out results/core --name unannounced-lenet
	$(BIN)/python -m benchmarks mask_bytes
	$(BIN)/python -m benchmarks model_file

clean:
	rm -rf .venv runs site
