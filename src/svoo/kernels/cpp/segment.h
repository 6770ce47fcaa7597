// Attention of up to SEGMENT queries over any number of rows.
#pragma once

#include <cstdlib>
#include <type_traits>

#include "tiles.h"

// The queries fall into parts, each of which has its own list of rows: small query blocks go over
// the keys side by side, so that a row which several of them keep is near when the next one comes.
// Rows are noted one by one; when a part has CHUNK of them, its queries see them. A weight is
// 2^(logit - top): top is the largest logit up to a factor of 2^SLACK, so that sums are rescaled
// only when one rises by more. SIZE is the head size, which smaller ones are filled up to; 0: any,
// filled up to a multiple of 32.
template <int SIZE, typename Products>
class Segment {
    typedef typename Products::Element Element;
    typedef typename Products::Elements Elements;
    static constexpr int DEPTH = Products::DEPTH;
    static constexpr int CHUNK = 64;  // rows: their keys, values and weights fit the cache
    static constexpr float SLACK = 16;

    struct Part {
        int first_tile, vectors, filled;  // vectors of queries, rows of the chunk
        const Element *keys[CHUNK + ROWS];
        const float *values[CHUNK];
        float bias[CHUNK];
    };

public:
    static constexpr int PARTS = SEGMENT / LANES;

    explicit Segment(int64_t size) : size(size), any_size(padded_size(size)) {
        const int64_t tiles = padded() * PARTS * TILE, chunk = padded() * CHUNK;
        const int64_t numbers = 2 * tiles + 2 * PARTS * TILE + CHUNK * TILE
            + (2 * PARTS + 1) * chunk + padded();
        memory = static_cast<float *>(aligned_alloc(64, (numbers * 4 + 63) / 64 * 64));
        if (!memory) return;
        float *next = memory;
        const auto take = [&next](int64_t count) { return (next += count) - count; };
        queries = (Elements *)take(tiles);
        outputs = (Vector *)take(tiles);
        tops = (Vector *)take(PARTS * TILE);
        totals = (Vector *)take(PARTS * TILE);
        weights = (Vector *)take(CHUNK * TILE);
        own_keys = (Element *)take(PARTS * chunk);
        own_values = take(PARTS * chunk);
        packed_values = (Element *)take(chunk);
        zeros = take(padded());
        memset(zeros, 0, padded() * sizeof *zeros);
    }
    ~Segment() { free(memory); }
    Segment(const Segment &) = delete;

    bool has_memory() const { return memory; }

    void clear() { parts_used = tiles_used = 0; }

    // Begin a part of `count` queries; `row_of(q)` points to query q of the part.
    template <typename RowOf>
    void begin(int count, float scale, RowOf row_of) {
        Part &part = parts[parts_used++];
        part.first_tile = tiles_used;
        part.vectors = (count + LANES - 1) / LANES;
        part.filled = 0;
        const int tiles = (part.vectors + WIDTH - 1) / WIDTH;
        tiles_used += tiles;
        logit_scale = DEPTH == 1 ? 1 : scale;  // bfloat16 queries are exact as long as unscaled
        const float query_scale = DEPTH == 1 ? scale : 1;
        Elements *own = queries + part.first_tile * (padded() / DEPTH) * WIDTH;
        load_queries<Products>(count, query_scale, size, padded(), row_of, own);
        Vector *sums = outputs + part.first_tile * padded() * WIDTH;
        memset((void *)sums, 0, tiles * padded() * TILE * sizeof(float));
        for (int v = part.first_tile * WIDTH; v < tiles_used * WIDTH; v++) {
            tops[v] = all(-INFINITY);
            totals[v] = all(0);
        }
    }

    // Let a part attend to one more row, as long as packed ones; its logits, in powers of two, get a
    // bias.
    void add(int number, const Element *key, const float *value, float row_bias) {
        Part &part = parts[number];
        part.keys[part.filled] = key;
        part.values[part.filled] = value;
        part.bias[part.filled] = row_bias;
        if (++part.filled == CHUNK) attend_chunk(part);
    }

    // The same with `count` rows that follow one another in memory, without a bias.
    __attribute__((noinline)) void add_rows(
        int number, const Element *keys, const float *values, int64_t count
    ) {
        Part &part = parts[number];
        while (count) {
            const int room = CHUNK - part.filled, taken = int(count < room ? count : room);
            for (int row = part.filled; row < part.filled + taken; row++) {
                part.keys[row] = keys;
                part.values[row] = values;
                part.bias[row] = 0;
                keys += padded() / DEPTH;
                values += padded();
            }
            count -= taken;
            part.filled += taken;
            if (part.filled == CHUNK) attend_chunk(part);
        }
    }

    // The same with a value of any numbers, which is copied unless it is as rows are packed: then
    // it is on its way from memory while others are added.
    template <typename Value>
    void add_value(int number, const Element *key, const Value *value, float row_bias) {
        if constexpr (std::is_same_v<Value, float>)
            if (size == padded()) {
                prefetch(value, size * sizeof *value);
                return add(number, key, value, row_bias);
            }
        float *own_value = own_values + (number * CHUNK + parts[number].filled) * padded();
        pack_value(value, size, padded(), own_value);
        add(number, key, own_value, row_bias);
    }

    // The same with a key of any numbers too.
    template <typename Key, typename Value>
    void add_copy(int number, const Key *key, const Value *value, float row_bias) {
        const int64_t row = number * CHUNK + parts[number].filled;
        Element *own_key = own_keys + row * (padded() / DEPTH);
        pack_key<Products>(key, size, padded(), own_key);
        add_value(number, own_key, value, row_bias);
    }

    // No more rows come for a part: write the output of its query q to `row_of(q)`.
    template <typename RowOf>
    void finish(int number, int count, RowOf row_of) {
        Part &part = parts[number];
        attend_chunk(part);
        for (int v = 0; v < part.vectors; v++) {
            const int vector = part.first_tile * WIDTH + v;
            const Vector share = 1.0f / totals[vector];
            const Vector *own = outputs + vector / WIDTH * padded() * WIDTH + vector % WIDTH;
            for (int64_t d = 0; d < size; d += LANES) {
                Vector square[LANES];
                for (int i = 0; i < LANES; i++) square[i] = own[(d + i) * WIDTH] * share;
                transpose(square);
                for (int lane = 0; lane < LANES && v * LANES + lane < count; lane++)
                    store_part(square[lane], row_of(v * LANES + lane), d, size);
            }
        }
    }

    float lse(int number, int q) const {  // natural, of the logits with their biases
        const int64_t query = parts[number].first_tile * TILE + q;
        const float top = ((const float *)tops)[query];
        return (top + std::log2(((const float *)totals)[query])) / LOG2_E;
    }

private:
    const int64_t size, any_size;
    float *memory, logit_scale = 1;
    Elements *queries;        // [PARTS, padded / DEPTH, WIDTH]: no more tiles than parts
    Vector *outputs;          // [PARTS, padded, WIDTH]
    Vector *tops, *totals;    // [PARTS, WIDTH]: totals are sums of 2^(logit - top)
    Vector *weights;          // [CHUNK, WIDTH]; packed, [CHUNK / DEPTH, WIDTH] elements
    Element *own_keys;        // [PARTS, CHUNK, padded / DEPTH]: of the rows that were copied
    float *own_values;        // [PARTS, CHUNK, padded]
    Element *packed_values;   // [CHUNK / DEPTH, padded], where values are multiplied in pairs
    float *zeros;             // [padded]
    const Element *value_rows[CHUNK];  // [CHUNK / DEPTH]
    Part parts[PARTS] = {};
    int parts_used = 0, tiles_used = 0;

    int64_t padded() const { return SIZE ? SIZE : any_size; }

    void attend_chunk(Part &part) {
        if (!part.filled) return;
        const int rows = part.filled;
        for (; part.filled % ROWS; part.filled++) {  // rows that fill up the last piece: no weight
            part.keys[part.filled] = (const Element *)zeros;
            part.values[part.filled] = zeros;
            part.bias[part.filled] = -INFINITY;
        }
        for (int row = 0; row < part.filled; row += DEPTH) take_values(part, row);
        for_tiles(part.vectors, [&](auto used, int tile) {
            attend_tile<used.value>(part, part.first_tile + tile, rows);
        });
        part.filled = 0;
    }

    // Note where the values of DEPTH rows are, as elements.
    void take_values(const Part &part, int row) {
        if constexpr (DEPTH == 1) {
            value_rows[row] = part.values[row];
        } else {
            Element *pair = packed_values + row / DEPTH * padded();
            for (int64_t d = 0; d < padded(); d += LANES) {
                const Vector both[2] = {load(part.values[row] + d), load(part.values[row + 1] + d)};
                *(Elements *)(pair + d) = Products::pack(both);
            }
            value_rows[row / DEPTH] = pair;
        }
    }

    template <int USED>
    __attribute__((noinline)) void attend_tile(const Part &part, int tile, int rows) {
        Vector top[USED];
        for (int v = 0; v < USED; v++) top[v] = tops[tile * WIDTH + v];
        find_logits<USED>(part, tile, rows, top);
        bool rises = false;
        for (int v = 0; v < USED; v++) rises |= any_above(top[v], tops[tile * WIDTH + v] + SLACK);
        if (rises) raise_tops<USED>(tile, top);
        weigh<USED>(tile, rows);
        add_values<USED>(tile, (rows + DEPTH - 1) / DEPTH);
    }

    // Write the logits into `weights`, and raise `top` to the largest.
    template <int USED>
    void find_logits(const Part &part, int tile, int rows, Vector (&top)[USED]) {
        const Elements *own = queries + tile * (padded() / DEPTH) * WIDTH;
        for (int row = 0; row < rows; row += ROWS)
            find_rows<USED>(part.keys + row, part.bias + row, own, weights + row * WIDTH);
        for (int row = 0; row < rows; row++)
            for (int v = 0; v < USED; v++) top[v] = larger(top[v], weights[row * WIDTH + v]);
    }

    // The logits of ROWS rows; alone, so that nothing else takes the registers of their sums.
    template <int USED>
    __attribute__((noinline)) void find_rows(
        const Element *const *keys, const float *bias, const Elements *own, Vector *logits
    ) const {
        const int64_t depth = padded() / DEPTH;
        Vector sums[ROWS][USED];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < USED; v++) sums[r][v] = all(DEPTH == 1 ? bias[r] : 0);
        for (int r = 0; r < ROWS; r++) prefetch(keys[ROWS + r], depth * 4);
        multiply<Products>(sums, keys, own, depth);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < USED; v++) {
                if (DEPTH == 2) sums[r][v] = sums[r][v] * logit_scale + bias[r];
                logits[r * WIDTH + v] = sums[r][v];
            }
    }

    template <int USED>
    void raise_tops(int tile, const Vector (&top)[USED]) {
        Vector factor[USED];
        for (int v = 0; v < USED; v++) {
            factor[v] = power_of_two(tops[tile * WIDTH + v] - top[v]);
            totals[tile * WIDTH + v] *= factor[v];
            tops[tile * WIDTH + v] = top[v];
        }
        Vector *sums = outputs + tile * padded() * WIDTH;
        for (int64_t d = 0; d < padded(); d++)
            for (int v = 0; v < USED; v++) sums[d * WIDTH + v] *= factor[v];
    }

    // Make weights of the logits, in place.
    template <int USED>
    void weigh(int tile, int rows) {
        Vector top[USED], total[USED];
        for (int v = 0; v < USED; v++) {
            top[v] = tops[tile * WIDTH + v];
            total[v] = totals[tile * WIDTH + v];
        }
        for (int row = 0; row < rows; row += DEPTH) {
            prefetch(value_rows[row / DEPTH], padded() * 4);
            for (int v = 0; v < USED; v++) {
                Vector both[DEPTH];
                for (int i = 0; i < DEPTH; i++) {
                    both[i] = power_of_two(weights[(row + i) * WIDTH + v] - top[v]);
                    total[v] += both[i];
                }
                ((Elements *)weights)[row / DEPTH * WIDTH + v] = Products::pack(both);
            }
        }
        for (int v = 0; v < USED; v++) totals[tile * WIDTH + v] = total[v];
    }

    template <int USED>
    void add_values(int tile, int rows) {
        constexpr int AT_A_TIME = USED == 1 ? 2 * ROWS : ROWS;
        Vector *own = outputs + tile * padded() * WIDTH;
        for (int64_t d = 0; d < padded(); d += AT_A_TIME) {
            Vector sums[AT_A_TIME][USED];
            for (int r = 0; r < AT_A_TIME; r++)
                for (int v = 0; v < USED; v++) sums[r][v] = own[(d + r) * WIDTH + v];
#pragma GCC unroll 2
            for (int row = 0; row < rows; row++) {
                const Element *numbers = value_rows[row] + d;
                Elements weight[USED];
                for (int v = 0; v < USED; v++)
                    weight[v] = ((const Elements *)weights)[row * WIDTH + v];
                for (int r = 0; r < AT_A_TIME; r++)
                    for (int v = 0; v < USED; v++)
                        sums[r][v] = Products::add_product(sums[r][v], numbers[r], weight[v]);
            }
            for (int r = 0; r < AT_A_TIME; r++)
                for (int v = 0; v < USED; v++) own[(d + r) * WIDTH + v] = sums[r][v];
        }
    }
};
