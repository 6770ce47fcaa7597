from svoo.core.cluster_counts import default_clusters, far_fineness


def test_default_counts_follow_the_tokens() -> None:
    assert default_clusters(75_600) == default_clusters(118_800) == (256, 1024)
    assert default_clusters(7_488) == (25, 101)
    assert default_clusters(1) == (1, 1)
    assert default_clusters(7_488, 4) == (101, 406)
    assert default_clusters(75_600, 0.5) == (128, 512)
    assert default_clusters(40, 1_000) == (40, 40)  # never more than tokens


def test_far_clusters_fill_a_gpus_tiles() -> None:
    assert default_clusters(7488, far_fineness(7488)) == (89, 355)
    assert default_clusters(75_600, far_fineness(75_600)) == (256, 1024)
    assert far_fineness(100) == 3.5 and far_fineness(10**6) == 1
    sizes = [7488, 10_000, 14_400, 32_760, 50_000, 75_600, 118_800]
    blocks = [tokens / default_clusters(tokens, far_fineness(tokens))[0] for tokens in sizes]
    assert blocks == sorted(blocks) and blocks[0] > 80
    assert all(size > 128 for size, tokens in zip(blocks, sizes, strict=True) if tokens > 50_000)
