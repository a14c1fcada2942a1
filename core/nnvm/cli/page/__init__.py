"""The page of ``nnvm show -o page.html``: a graph before and after the passes, its kernels, memory and passes."""
