"""nnvm for PyTorch: ``torch.compile(model, backend="nnvm")``."""

from nnvm_torch import call_json as call_json  # registers how calls are written as JSON
from nnvm_torch.backend import StrictError, nnvm
from nnvm_torch.capture import CaptureError
from nnvm_torch.exported import ExportedModule, from_exported
from nnvm_torch.module import compile, refresh
from nnvm_torch.onnx_module import OnnxModule, from_onnx
from nnvm_torch.options import Options
from nnvm_torch.report import Report, report, reset

__all__ = [
    "CaptureError", "ExportedModule", "OnnxModule", "Options", "Report", "StrictError", "compile", "from_exported",
    "from_onnx", "nnvm", "refresh", "report", "reset",
]  # fmt: skip
