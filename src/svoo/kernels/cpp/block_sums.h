// Attention probabilities summed over blocks of tokens; `core/block_sums.py` defines them.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>

#include "calls.h"
#include "tiles.h"

// What a tile of queries has seen of one key block: the sum of 2^(logit - top) for each query.
struct SeenBlock {
    Vector sums[WIDTH], tops[WIDTH];
};

// Let a tile of USED vectors see all keys in one pass. A top is the largest logit so far up to a
// factor of 2^SLACK, so that a sum is rescaled only when one rises by more.
template <int SIZE, int USED>
__attribute__((noinline)) void see_keys(
    const BlockSums &call, const Vector *queries, const float *keys, const float *zeros,
    SeenBlock *seen
) {
    constexpr float SLACK = 16;
    const int64_t padded = SIZE ? SIZE : padded_size(call.size);
    Vector top[USED];
    for (int v = 0; v < USED; v++) top[v] = all(-INFINITY);
    for (int64_t start = 0; start < call.keys; start += call.block, seen++) {
        const int64_t end = start + call.block < call.keys ? start + call.block : call.keys;
        Vector sum[USED] = {};
        for (int64_t row = start; row < end; row += ROWS) {
            const int count = int(end - row < ROWS ? end - row : ROWS);
            const float *own[ROWS];
            for (int r = 0; r < ROWS; r++) own[r] = r < count ? keys + (row + r) * padded : zeros;
            Vector logits[ROWS][USED] = {};
            multiply<Float32Products>(logits, own, queries, padded);
            for (int r = count; r < ROWS; r++)
                for (int v = 0; v < USED; v++) logits[r][v] = all(-INFINITY);
            for (int v = 0; v < USED; v++) {
                Vector largest = logits[0][v];
                for (int r = 1; r < ROWS; r++) largest = larger(largest, logits[r][v]);
                if (any_above(largest, top[v] + SLACK)) {
                    const Vector raised = larger(largest, top[v]);
                    sum[v] *= power_of_two(top[v] - raised);
                    top[v] = raised;
                }
                for (int r = 0; r < ROWS; r++) {
                    const Vector weight = power_of_two(logits[r][v] - top[v]);
                    sum[v] += r < count ? weight : all(0);
                }
            }
        }
        for (int v = 0; v < USED; v++) {
            seen->sums[v] = sum[v];
            seen->tops[v] = top[v];
        }
    }
}

// Divide what a vector of queries has seen by its total, and add it to the sums of its blocks;
// `first` is the first query's number in its head, `count` are real ones.
inline void add_probabilities(
    const BlockSums &call, int64_t pair, int64_t first, int count, int v, int64_t blocks,
    const SeenBlock *seen
) {
    const Vector top = seen[blocks - 1].tops[v];  // they only rise
    Vector total = all(0);
    for (int64_t j = 0; j < blocks; j++)
        total += seen[j].sums[v] * power_of_two(seen[j].tops[v] - top);
    const Vector share = 1.0f / total;
    const int64_t query_blocks = (call.queries + call.block - 1) / call.block;
    float *rows = call.sums + pair * query_blocks * blocks;
    const int64_t block = first / call.block;
    const bool together = count == LANES && (first + LANES - 1) / call.block == block;
    for (int64_t j = 0; j < blocks; j++) {
        const Vector own = seen[j].sums[v] * power_of_two(seen[j].tops[v] - top) * share;
        if (together) rows[block * blocks + j] += add_lanes(own);
        else
            for (int q = 0; q < count; q++) rows[(first + q) / call.block * blocks + j] += own[q];
    }
}

// The pieces of work are whole query blocks of a head that fill whole tiles.
template <typename Number>
void sum_blocks(BlockSums &call) {
    const int64_t padded = padded_size(call.size), blocks = (call.keys + call.block - 1) / call.block;
    const auto memory = [](int64_t bytes) {
        return std::unique_ptr<void, decltype(&free)>(aligned_alloc(64, (bytes + 63) / 64 * 64), free);
    };
    const auto queries = memory(padded * TILE * sizeof(float));
    const auto seen = memory(blocks * sizeof(SeenBlock)), zeros = memory(padded * sizeof(float));
    if (!queries || !seen || !zeros) {
        call.failures++;
        return;
    }
    memset(zeros.get(), 0, padded * sizeof(float));
    Vector *tile = static_cast<Vector *>(queries.get());
    SeenBlock *own = static_cast<SeenBlock *>(seen.get());
    const int64_t piece = std::lcm(call.block, int64_t(TILE));
    const int64_t pieces = (call.queries + piece - 1) / piece;  // of a head
    for (int64_t next; (next = call.next_piece++) < call.pairs * pieces;) {
        const int64_t pair = next / pieces, start = next % pieces * piece;
        const int64_t end = start + piece < call.queries ? start + piece : call.queries;
        const float *keys = call.keys_made + pair * call.keys * padded;
        for (int64_t first = start; first < end; first += TILE) {
            const int count = int(end - first < TILE ? end - first : TILE);
            const auto row_of = [&](int q) {
                return call.query.row<const Number>(
                    pair / call.heads, pair % call.heads, first + q
                );
            };
            const float scale = float(call.scale * LOG2_E);
            load_queries<Float32Products>(count, scale, call.size, padded, row_of, tile);
            const int vectors = (count + LANES - 1) / LANES;
            for_tiles(vectors, [&](auto used, int) {
                with_size(call.size, [&](auto size) {
                    see_keys<size.value, used.value>(
                        call, tile, keys, static_cast<float *>(zeros.get()), own
                    );
                });
            });
            for (int v = 0; v < vectors; v++) {
                const int rest = count - v * LANES;
                const int real = rest < LANES ? rest : LANES;
                add_probabilities(call, pair, first + v * LANES, real, v, blocks, own);
            }
        }
    }
}
