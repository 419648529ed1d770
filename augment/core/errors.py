"""The one kind of error that a user of the augmentations is meant to read."""


class AugmentationError(ValueError):
    """Bad specification, table or input: the message says what was wrong, where, and what to do about it."""


class CannotLoad(AugmentationError):
    """A model or tokenizer cannot be loaded (`augment.core.pretrained`)."""
