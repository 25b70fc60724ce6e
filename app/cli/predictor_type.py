"""Who drafts, as an option of a command."""

import click


class PredictorType(click.ParamType[str]):
    """A predictor as `engine.speculation.registry` reads it, checked when the command is read."""

    name = "predictor"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Give the text that was typed, if it spells a predictor."""
        from engine.configuration import SpeculationSettings
        from engine.errors import PresetError
        from engine.speculation.registry import with_predictor

        spelled = str(value)
        try:
            with_predictor(SpeculationSettings(), spelled)
        except PresetError as error:
            self.fail(str(error), param, ctx)
        return spelled
