// Assignment to centroids, and centroids; `core/clustering.py` defines what they compute.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "calls.h"
#include "tiles.h"

// Numbers of a row of weights: even, as `multiply` needs them.
inline int64_t row_size(const Assignment &call) { return (call.size + 1) / 2 * 2; }

// For each token of a tile of USED vectors, the first row of the largest product plus bias.
template <int SIZE, int USED>
__attribute__((noinline)) void assign_tile(
    const Assignment &call, const Vector *tokens, const float *rows, const float *biases,
    int32_t *labels
) {
    const int64_t size = SIZE ? SIZE : row_size(call);
    Vector top[USED];
    Integers best[USED];
    for (int v = 0; v < USED; v++) {
        top[v] = all(-INFINITY);
        best[v] = Integers{};
    }
    for (int64_t row = 0; row < call.clusters; row += ROWS) {
        Vector sums[ROWS][USED];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < USED; v++) sums[r][v] = all(biases[row + r]);
        const float *own[ROWS];
        for (int r = 0; r < ROWS; r++) own[r] = rows + (row + r) * size;
        multiply<Float32Products>(sums, own, tokens, size);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < USED; v++) {
                const auto better = sums[r][v] > top[v];  // strictly: the first of equals wins
                top[v] = better ? sums[r][v] : top[v];
                best[v] = better ? int32_t(row + r) - Integers{} : best[v];
            }
    }
    memcpy(labels, best, sizeof best);
}

template <typename Number, int SIZE>
void assign_as(Assignment &call) {
    const int64_t padded = (call.size + 15) / 16 * 16;
    const std::unique_ptr<Vector, decltype(&free)> tokens(
        static_cast<Vector *>(aligned_alloc(64, padded * SEGMENT * sizeof(float))), free
    );
    if (!tokens) {
        call.failures++;
        return;
    }
    const int64_t segments = (call.count + SEGMENT - 1) / SEGMENT;  // of a head
    const int64_t all_segments = call.batch * call.heads * segments;
    for (int64_t next; (next = call.next_segment++) < all_segments;) {
        const int64_t pair = next / segments, first = next % segments * SEGMENT;
        const int64_t rest = call.count - first;
        const int count = int(rest < SEGMENT ? rest : SEGMENT);
        const auto row_of = [&](int q) {
            return call.tokens.row<const Number>(pair / call.heads, pair % call.heads, first + q);
        };
        load_queries<Float32Products>(count, 1, call.size, padded, row_of, tokens.get());
        const float *rows = call.weights + pair * call.clusters * row_size(call);
        const float *biases = call.bias + pair * call.clusters;
        for_tiles((count + LANES - 1) / LANES, [&](auto used, int tile) {
            int32_t labels[TILE];
            const Vector *own = tokens.get() + tile * padded * WIDTH;
            assign_tile<SIZE, used.value>(call, own, rows, biases, labels);
            for (int q = tile * TILE; q < count && q < (tile + 1) * TILE; q++)
                call.labels[pair * call.count + first + q] = labels[q % TILE];
        });
    }
}

template <typename Number>
void assign(Assignment &call) {
    if (call.size == 16) assign_as<Number, 16>(call);
    else if (call.size == 32) assign_as<Number, 32>(call);
    else if (call.size == 64) assign_as<Number, 64>(call);
    else if (call.size == 128) assign_as<Number, 128>(call);
    else assign_as<Number, 0>(call);
}

template <typename Number>
void update_centroids(Centroids &call) {
    const int64_t heads = call.batch * call.heads, size = call.size;
    const std::unique_ptr<float[]> sums(new (std::nothrow) float[call.clusters * size]);
    if (!sums) {
        call.failures++;
        return;
    }
    for (int64_t pair; (pair = call.next_head++) < heads;) {
        int64_t *sizes = call.sizes + pair * call.clusters;
        memset(sums.get(), 0, call.clusters * size * sizeof(float));
        memset(sizes, 0, call.clusters * sizeof *sizes);
        for (int64_t token = 0; token < call.count; token++) {
            const int64_t label = call.labels[pair * call.count + token];
            const Number *row
                = call.tokens.row<Number>(pair / call.heads, pair % call.heads, token);
            add_row(row, size, sums.get() + label * size);
            sizes[label]++;
        }
        for (int64_t cluster = 0; cluster < call.clusters; cluster++) {
            if (!sizes[cluster]) continue;  // an empty one keeps its centroid
            float *centroid = call.centroids + (pair * call.clusters + cluster) * size;
            for (int64_t d = 0; d < size; d++)
                centroid[d] = sums[cluster * size + d] / sizes[cluster];
        }
    }
}
