"""What can be measured of a recipe's model and data without training it."""

from zofc.analysis.diagnose import diagnose
from zofc.analysis.diagnosis import Diagnosis, SetDiagnosis

__all__ = ["Diagnosis", "SetDiagnosis", "diagnose"]
