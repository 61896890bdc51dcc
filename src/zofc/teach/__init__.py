"""Teaching over HTTP: a server on one's own machine, its API and its page, over one `Learner` in one run folder."""
