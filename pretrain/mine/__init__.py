"""Find hard negatives for labelled pairs by a trained encoder: `clearly mine`."""
