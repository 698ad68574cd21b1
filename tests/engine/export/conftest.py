from projectors import awake  # noqa: F401
