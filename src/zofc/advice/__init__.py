"""What to use: defaults for a user's own images, each with its reason, and a comparison on the images themselves."""
