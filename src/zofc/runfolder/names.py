"""The names of the files in a run folder and beside run folders; no module outside this package spells them."""

RECIPE_FILE = "recipe.yaml"  # makes a folder a run folder
ENVIRONMENT_FILE = "environment.json"
EVENTS_FILE = "events.jsonl"
JOURNAL_FILE = "journal.bin"
MATRIX_FILE = "matrix.json"
METRICS_FILE = "metrics.json"
SKIPPED_FILE = "skipped.json"
LOCK_FILE = ".lock"
PAGE_FILE = "report.html"

CHECKPOINT_FOLDER = "checkpoint"
STATE_FILE = "state.json"  # in the checkpoint folder; names the tensor file that belongs to it
CHECKPOINT_TENSORS = "tensors-{:06d}.safetensors"
LARGE_TENSOR = "tensor-{}.safetensors"  # by its content
FEATURES_FOLDER = "features"
FEATURES_FILE = "{:02d}.safetensors"  # of a group of test images
TASKS_FOLDER = "tasks"
TASK_TENSORS = "{:02d}.safetensors"

TAUGHT_FOLDER = "taught"  # what `zofc teach` was given
TAUGHT_FILE = "taught.json"  # in it: classes, pictures and lessons
PICTURES_FOLDER = "pictures"  # in it: files named by their content
LESSONS_FOLDER = "lessons"  # in it: the models of the last lessons, each a run folder
LESSON_MODEL = "{:06d}"

COST_SUFFIX = ".cost.json"  # beside run folders: what a step of a recipe costs
KEPT_RUNS_FOLDER = "kept"  # beside run folders: runs trained again because their tasks were needed
