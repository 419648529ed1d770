"""Stands for what records CUDA graphs, on a CPU."""


class Recorder:
    """Record functions by keeping them: `bodies`; `repeats` counts how often each was repeated."""

    def __init__(self):
        self.repeats: list[int] = []
        self.bodies: list = []

    def __call__(self, function):
        function()
        number = len(self.repeats)
        self.repeats.append(0)
        self.bodies.append(function)

        def repeat():
            self.repeats[number] += 1
            function()

        return repeat
