"""The names of the files in a run folder and beside run folders; no module outside this package spells them."""

RECIPE = "recipe.yaml"  # makes a folder a run folder
ENVIRONMENT = "environment.json"
EVENTS = "events.jsonl"
MATRIX = "matrix.json"
METRICS = "metrics.json"
LOCK = ".lock"
PAGE = "report.html"

CHECKPOINT = "checkpoint"
STATE = "state.json"  # in the checkpoint folder; names the tensor file that belongs to it
CHECKPOINT_TENSORS = "tensors-{:06d}.safetensors"
TASKS = "tasks"
TASK_TENSORS = "{:02d}.safetensors"

COST_SUFFIX = ".cost.json"  # beside run folders: what a step of a recipe costs
RUNS_WITH_TASKS = "kept"  # beside run folders: runs trained again because their tasks were needed
