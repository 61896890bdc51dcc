"""Limits on what files and settings may ask for.

A file of a few hundred bytes can ask for hours of work or for more memory than there is. Whatever exceeds a limit is
refused before the work begins, with a message that names the limit. Settings have theirs in the recipe's schema, which
`zofc list settings` shows.
"""

from __future__ import annotations

# recipe files
RECIPE_BYTES = 100_000
RECIPE_VALUES = 10_000  # keys and entries, each as often as aliases repeat it
RECIPE_DEPTH = 20  # keys inside keys
RECIPE_FILES = 100  # that a recipe extends, each as often as it is extended
NAME_BYTES = 200  # of a run's name, which becomes that of a folder: file systems allow 255 for all of it
PATH_LETTERS = 4096
TITLE_LETTERS = 500

# numbers in recipes
BYTES = 2**50
COUNT = 10**9  # of what costs nothing until it is there
FACTOR = 1e38  # rates, weights, scales: what float32 can hold
EPSILON = 1e6
EPOCHS = 100_000
QUERIES = 10_000  # directions of a step
BATCH = 16_384  # images at a time
PER_CLASS = 1_000_000  # images
MODULE_WIDTH = 4096  # rank of a module
PROMPT_TOKENS = 4096  # of a prompt or a prefix
PROMPT_POOL = 10_000
POOL_TOKENS = 100_000  # prompts times their tokens
PROJECTION = 100_000
THREADS = 1024
WORKERS = 128
RANK_WAIT = 10_000  # minutes, a week
RESIZE = 16.0  # short side of the test view over its crop
CROP_ASPECT = 100.0

# images and tables
IMAGE_PIXELS = 150_000_000  # under twice Pillow's own, from which on it refuses them
IMAGE_ASPECT = 100  # long side over short side: the short one is what views resize to their size
GENERATED_PER_CLASS = 10_000  # images that are drawn
CLASSES = 100_000
TABLE_ROWS = 10_000_000
ROW_GROUP_BYTES = 2 * 2**30  # of a parquet file, uncompressed
LIST_BYTES = 500_000_000  # of a file that lists images

# weights
JSON_BYTES = 20_000_000  # of a description beside weights
VIT_BLOCKS = 200
VIT_WIDTH = 16_384
VIT_PIXELS = 4096  # side of an image
VIT_TOKENS = 16_384

# teaching over HTTP
UPLOAD_FILES = 200  # of a request
UPLOAD_FILE_BYTES = 40_000_000
UPLOAD_BYTES = 400_000_000  # of a request in all
UPLOAD_PIXELS = 64_000_000  # decoded, 192 MB
PREDICT_FILES = 32  # of a request
JSON_BODY_BYTES = 20_000
BODIES_AT_ONCE = 8  # uploads that are received and answered; further ones wait
THUMBNAIL_BYTES = 32_000_000  # kept in memory
PICTURES_PER_CLASS = 2000
TAUGHT_CLASSES = 1000
CLASS_NAME_LETTERS = 100
UNDO_LESSONS = 10  # models of so many lessons before the last are kept
