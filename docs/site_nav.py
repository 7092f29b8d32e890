"""A hook of the site's build: pages that need not be there are in the navigation when they are."""

from pathlib import Path

OPTIONAL = {"Reliability": "reliability.md"}


def on_config(config):
    at = next(i for i, entry in enumerate(config["nav"]) if "When it fails" in entry)
    for title, page in OPTIONAL.items():
        if (Path(config["docs_dir"]) / page).exists():
            config["nav"].insert(at, {title: page})
    return config
