"""Fuzz target: specifications of augmentations, `augment.spec.grammar`."""

import random

from fuzz_target import Target, refused
from mutations import mutated_text, odd_text

from augment.core.errors import AugmentationError
from augment.spec import grammar
from augment.spec.catalogue import CATALOGUE
from augment.spec.sets import SETS

_READERS = (grammar.needs_text, grammar.needs_parse, grammar.needs_synonyms, grammar.loads_models)
_NAMES = [*CATALOGUE, *SETS, "none"]


class Specifications(Target):
    name = "specification"
    about = "the parser of --aug; what it accepts is written and parsed again as the same"

    def generate(self, chance: random.Random) -> bytes:
        draw = chance.random()
        if draw < 0.02:
            text = odd_text(chance) * chance.choice((1, 3, 2000))
        else:
            stages = ("|".join(self._step(chance) for _ in range(_few(chance))) for _ in range(_few(chance)))
            text = ",".join(stages)
        if draw < 0.6:
            text = mutated_text(chance, text)
        return text.encode("utf-8", "surrogatepass")

    def _step(self, chance: random.Random) -> str:
        name = chance.choice(_NAMES)
        entry = CATALOGUE.get(name)
        parameters = entry.parameters if entry else ()
        if not parameters or chance.random() < 0.4:
            return name
        text = name
        for parameter in chance.sample(parameters, min(len(parameters), _few(chance))):
            low = 0 if parameter.low is None else parameter.low
            high = 10 if parameter.high is None else parameter.high
            if parameter.choices:
                value = chance.choice(parameter.choices)
            elif isinstance(parameter.default, bool):
                value = chance.choice(("true", "false", "True"))
            elif isinstance(parameter.default, str):
                value = chance.choice(("a", "bert-base-uncased", "/a/b", "x=y"))
            else:
                number = low + (high - low) * chance.random() ** 3
                number = type(parameter.default)(number)
                value = str(number) if chance.random() < 0.8 else odd_text(chance)
            text += f":{parameter.name}={value}"
        return text

    def check(self, case: bytes) -> str:
        text = case.decode("utf-8", "surrogatepass")
        try:
            parsed = grammar.parse(text)
        except AugmentationError as error:
            return refused(error)
        written = str(parsed)
        again = grammar.parse(written)
        assert again == parsed, f"{written!r} is parsed as another specification"
        assert str(again) == written
        assert parsed.is_identity == (written == "none")
        for step in parsed.augmentations:
            for parameter in step.entry.parameters:
                value = dict(step.parameters)[parameter.name]
                assert type(value) is type(parameter.default)
                assert parameter.low is None or value >= parameter.low
                assert parameter.high is None or value <= parameter.high
                assert not parameter.choices or value in parameter.choices
        reader = _READERS[len(case) % len(_READERS)]  # one of them, since each parses again
        assert reader(text) is reader(written)
        try:
            assert len(grammar.alternatives(text)) == len(parsed.stages[0])
        except AugmentationError as error:
            refused(error)
            assert len(parsed.stages) != 1
        return "accepted"


def _few(chance: random.Random) -> int:
    return chance.choice((1, 1, 1, 2, 3))
