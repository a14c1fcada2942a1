"""For tests: equality of graphs, the reference executor, and networks built from symbols with their weights.

>>> net, params = nnvm.testing.resnet.get_workload(num_layers=18, image_shape=(3, 32, 32))
"""

from nnvm.testing.assert_graph_equal import assert_graph_equal as assert_graph_equal

__all__ = ["assert_graph_equal"]
