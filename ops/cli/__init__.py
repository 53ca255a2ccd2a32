"""The operator's command line: `line` declares its verbs, `show` prints, `app` runs them."""
