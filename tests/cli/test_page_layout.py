"""The layered drawing: nothing overlaps, edges go down and end at their boxes."""

import itertools
import random

import pytest

from nnvm.cli.page.layout import layered


def random_graph(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 40)
    sizes = [(rng.uniform(20, 200), rng.uniform(10, 80)) for _ in range(n)]
    edges = {(u, v) for v in range(1, n) for u in rng.sample(range(v), k=min(v, rng.choice([0, 1, 1, 2, 4])))}
    return sizes, sorted(edges)


@pytest.mark.parametrize("seed", range(25))
def test_boxes_do_not_touch_and_edges_go_down(seed):
    sizes, edges = random_graph(seed)
    drawing = layered(sizes, edges)
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(drawing.centers, sizes)]
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], "two boxes overlap"
    for left, top, right, bottom in boxes:
        assert left >= -1e-6 and top >= -1e-6 and right <= drawing.width + 1e-6 and bottom <= drawing.height + 1e-6
    for (u, v), path in zip(edges, drawing.paths, strict=True):
        assert path[0] == pytest.approx((drawing.centers[u][0], boxes[u][3]))
        assert path[-1] == pytest.approx((drawing.centers[v][0], boxes[v][1]))
        assert all(a[1] <= b[1] + 1e-6 for a, b in itertools.pairwise(path))
        for x, y in path[1:-1]:
            for left, top, right, bottom in boxes:
                assert not (left < x < right and top < y < bottom), "an edge runs through a box"


def test_a_chain_is_straight_and_a_diamond_symmetric():
    chain = layered([(50, 20)] * 5, [(i, i + 1) for i in range(4)])
    assert len({x for x, _ in chain.centers}) == 1 and chain.width == 50
    top, left, right, bottom = layered([(40, 20)] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)]).centers
    assert top[0] == pytest.approx(bottom[0]) == pytest.approx((left[0] + right[0]) / 2) and left[1] == right[1]


def test_what_can_be_drawn_without_crossings_is():
    # two chains given alternately: side by side, not entangled
    edges = [(i, i + 2) for i in range(8)]
    drawing = layered([(30, 10)] * 10, edges)
    assert len({x for x, _ in drawing.centers[::2]}) == len({x for x, _ in drawing.centers[1::2]}) == 1


def test_late_sources_stand_above_their_reader():
    drawing = layered([(30, 10)] * 5, [(0, 1), (1, 3), (2, 3), (3, 4)])
    assert drawing.centers[2][1] == drawing.centers[1][1]


def test_nothing_and_what_is_wrong():
    assert layered([], []).centers == ()
    with pytest.raises(ValueError, match="edge 1 -> 0"):
        layered([(1, 1)] * 2, [(1, 0)])
