"""Run SentEval (Conneau and Kiela 2018) for any encoder: the same numbers, in a fraction of the time.

`tasks` reads the files, `classifier` runs all fits of a task as one batched optimisation, `protocol` chooses
hyper-parameters by cross-validation as SentEval does, and has its supervised similarity, `evaluate` puts them
together; `clearly senteval` is the command. Similarity without training is
`finetune.sts`.
"""
