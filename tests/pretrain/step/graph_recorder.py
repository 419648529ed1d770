"""Stands for what records CUDA graphs, on a CPU; on a GPU it counts what is recorded."""


class Recorder:
    """Record functions by keeping them: `bodies`; `repeats` counts how often each was repeated.

    record: what records them in truth; None: they are called again.
    """

    def __init__(self, record=None):
        self.record = record
        self.repeats: list[int] = []
        self.bodies: list = []

    def __call__(self, function):
        if self.record is None:
            function()
        again = function if self.record is None else self.record(function)
        number = len(self.repeats)
        self.repeats.append(0)
        self.bodies.append(function)

        def repeat():
            self.repeats[number] += 1
            again()

        return repeat
