"""``python -m nnvm.cli`` is the ``nnvm`` command."""

from .main import main

raise SystemExit(main())
