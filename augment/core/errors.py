"""Define the errors that a user of the augmentations is meant to read."""


class AugmentationError(ValueError):
    """Report a bad specification, table or input: what is wrong, where, and what to do about it."""


class CannotLoad(AugmentationError):
    """Report a model or tokenizer that cannot be loaded (`augment.core.pretrained`)."""
