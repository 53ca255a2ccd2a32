"""The operator's command line: `verbs` has the registry of verbs, `show` prints what they return, `app` runs them."""
