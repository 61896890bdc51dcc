"""The frozen backbone and what stands beside it: the walk through its blocks, PEFT modules, heads."""

from zofc.model.backbone import Backbone, load_backbone
from zofc.model.heads import CosineHead, Head, LinearHead
from zofc.model.params import Moving, frozen, linear, taken, under
from zofc.model.peft import PEFTS, make_peft
from zofc.model.peft_base import PeftModule
from zofc.model.vit import Insert, Place, State

__all__ = [
    "PEFTS",
    "Backbone",
    "CosineHead",
    "Head",
    "Insert",
    "LinearHead",
    "Moving",
    "PeftModule",
    "Place",
    "State",
    "frozen",
    "linear",
    "load_backbone",
    "make_peft",
    "taken",
    "under",
]
