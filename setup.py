"""Packaging of nnvm-torch. ``nnvm`` (the compiler, no torch) lives in ``core/nnvm``; ``nnvm_torch`` beside it."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
TEST = ["pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "expecttest>=0.2", "transformers>=4.50", "onnx>=1.17",
        "triton>=3.2; platform_system == 'Linux' and platform_machine == 'x86_64'"]  # fmt: skip
BENCH = ["transformers>=4.50"]

setup(
    name="nnvm-torch",
    version="0.1.0",
    description="torch.compile(model, backend='nnvm'): the same answers as eager PyTorch, sooner",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    package_dir={"nnvm": "core/nnvm", "nnvm_torch": "nnvm_torch"},
    packages=[
        *("nnvm" + p for p in ["", *(f".{q}" for q in find_packages("core/nnvm"))]),
        *("nnvm_torch" + p for p in ["", *(f".{q}" for q in find_packages("nnvm_torch"))]),
    ],
    package_data={"nnvm": ["py.typed", "cli/page/page.css", "cli/page/page.js"], "nnvm_torch": ["py.typed"]},
    install_requires=[
        "torch>=2.10",
        "numpy>=1.24",
        "llvmlite>=0.44",
        "filelock>=3.12",
        "platformdirs>=4",
        "rich>=13",
        "tqdm>=4.65",
        "safetensors>=0.4",
    ],
    extras_require={
        "bench": BENCH,
        "gpu": ["triton>=3.2"],
        "onnx": ["onnx>=1.17"],
        "test": TEST,
        "dev": [*TEST, *BENCH, "ruff>=0.9", "mypy>=1.13"],
    },
    entry_points={
        "torch_dynamo_backends": ["nnvm = nnvm_torch.backend:nnvm"],
        "console_scripts": ["nnvm = nnvm.cli.main:main"],
    },
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Topic :: Software Development :: Compilers",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
