// Tiles of queries (or tokens): a vector holds one number for each of LANES of them.
//
// A key then enters as a broadcast number: kept rows of many blocks make one list, blocks of any
// size leave no gaps, and a softmax or an arg-max never looks across a vector.
#pragma once

#include "products.h"

constexpr int TILES = 4;
constexpr int SEGMENT = TILES * TILE;  // queries that one thread has at a time

template <int NUMBER>
struct Constant {
    static constexpr int value = NUMBER;
};

// Call `work` with each tile, and how many of its vectors are in use as a constant.
template <typename Work>
inline void for_tiles(int vectors, Work work) {
    static_assert(WIDTH == 3, "one case for every number of vectors");
    for (int tile = 0; tile * WIDTH < vectors; tile++) {
        const int used = vectors - tile * WIDTH;
        if (used == 1) work(Constant<1>(), tile);
        else if (used == 2) work(Constant<2>(), tile);
        else work(Constant<3>(), tile);
    }
}

// Call `work` with the head size as a constant if it is one of the usual ones, else with 0.
template <typename Work>
inline void with_size(int64_t size, Work work) {
    if (size <= 32) work(Constant<32>());
    else if (size <= 64) work(Constant<64>());
    else if (size <= 96) work(Constant<96>());
    else if (size <= 128) work(Constant<128>());
    else work(Constant<0>());
}

// What a head size is filled up to where it is no constant.
constexpr int64_t padded_size(int64_t size) { return (size + 31) / 32 * 32; }

// sums[r][v] += <row r, query> for the queries of vector v, over `depth` elements, an even number.
// `queries` is [depth, WIDTH], of which the first USED vectors of each row count.
template <typename Products, int COUNT, int USED, typename Element>
inline __attribute__((always_inline)) void multiply(
    Vector (&sums)[COUNT][USED], const Element *const *rows,
    const typename Products::Elements *queries, int64_t depth
) {
    const Element *own_rows[COUNT];
    for (int r = 0; r < COUNT; r++) own_rows[r] = rows[r];
    // A single vector has too few sums to hide how long a product takes: it gets two of each.
    constexpr int PARTS = USED == 1 ? 2 : 1;
    Vector more[COUNT] = {};
#pragma GCC unroll 2
    for (int64_t d = 0; d < depth; d += PARTS) {
        typename Products::Elements own[USED];
        for (int v = 0; v < USED; v++) own[v] = queries[d * WIDTH + v];
        for (int r = 0; r < COUNT; r++)
            for (int v = 0; v < USED; v++)
                sums[r][v] = Products::add_product(sums[r][v], own_rows[r][d], own[v]);
        if constexpr (PARTS == 2) {
            own[0] = queries[(d + 1) * WIDTH];
            for (int r = 0; r < COUNT; r++)
                more[r] = Products::add_product(more[r], own_rows[r][d + 1], own[0]);
        }
    }
    if constexpr (PARTS == 2)
        for (int r = 0; r < COUNT; r++) sums[r][0] += more[r];
}

// Bring `count` queries, of which `row_of(q)` points to number q, into tiles of [padded, WIDTH]
// vectors, times `scale`. The last vector is filled up with the first query, the last numbers of a
// row with zeros.
template <typename Products, typename RowOf>
inline void load_queries(
    int count, float scale, int64_t size, int64_t padded, RowOf row_of,
    typename Products::Elements *queries
) {
    constexpr int DEPTH = Products::DEPTH;
    for (int v = 0; v * LANES < count; v++) {
        auto *own = queries + v / WIDTH * (padded / DEPTH) * WIDTH + v % WIDTH;
        for (int64_t d = 0; d < padded; d += LANES) {
            Vector square[LANES];
            for (int lane = 0; lane < LANES; lane++) {
                const int q = v * LANES + lane;
                square[lane] = load_part(row_of(q < count ? q : 0), d, size) * scale;
            }
            transpose(square);
            for (int lane = 0; lane < LANES; lane += DEPTH)
                own[(d + lane) / DEPTH * WIDTH] = Products::pack(square + lane);
        }
    }
}

// Rows as they are multiplied: filled up with zeros, keys as elements, values as float32.

template <typename Products, typename Number>
inline void pack_key(
    const Number *row, int64_t size, int64_t padded, typename Products::Element *packed
) {
    for (int64_t d = 0; d < padded; d += LANES)
        Products::store_row(load_part(row, d, size), packed + d / Products::DEPTH);
}

template <typename Number>
inline void pack_value(const Number *row, int64_t size, int64_t padded, float *packed) {
    for (int64_t d = 0; d < padded; d += LANES) store(load_part(row, d, size), packed + d);
}
