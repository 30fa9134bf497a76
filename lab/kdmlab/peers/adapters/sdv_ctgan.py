"""SDV: CTGAN, with its defaults."""

from __future__ import annotations

from sdv.single_table import CTGANSynthesizer

from kdmlab.peers.adapters.sdv import Model as Synthesizer


class Model(Synthesizer):
    """A generative adversarial network; draws given values are by rejection."""

    synthesizer_class = CTGANSynthesizer
