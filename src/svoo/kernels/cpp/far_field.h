// What query means see of each key block, and moments; `core/far_field.py` defines both.
#pragma once

#include <cstdlib>
#include <memory>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "calls.h"
#include "tiles.h"

// Ask for large pages where new memory begins: a small one costs microseconds at its first touch.
inline void ask_for_large_pages(void *memory, int64_t bytes) {
#if defined(__linux__)
    constexpr uintptr_t PAGE = 1 << 12;
    const uintptr_t first = ((uintptr_t)memory + PAGE - 1) / PAGE * PAGE;
    const uintptr_t last = ((uintptr_t)memory + bytes) / PAGE * PAGE;
    if (last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

constexpr int STRETCH = 16;  // clusters that make a piece of work

// Call `work(pair, first cluster, first row)` for the pieces that a thread takes.
template <typename Work>
inline void for_stretches(
    std::atomic<int64_t> &next_stretch, const int64_t *sizes, int64_t pairs, int64_t clusters,
    Work work
) {
    const int64_t stretches = (clusters + STRETCH - 1) / STRETCH;
    for (int64_t next; (next = next_stretch++) < pairs * stretches;) {
        const int64_t pair = next / stretches, first = next % stretches * STRETCH;
        int64_t start = 0;
        for (int64_t j = 0; j < first; j++) start += sizes[pair * clusters + j];
        work(pair, first, start);
    }
}

// Means and variances of the `rows` tokens of a cluster that stand in `order` from `start` on.
template <typename Number>
inline void find_moments_of(
    const Moments &call, int64_t pair, int64_t cluster, int64_t start, int64_t rows
) {
    const int64_t size = call.size;
    float *mean = call.means + (pair * call.clusters + cluster) * size;
    float *variance = call.variances + (pair * call.clusters + cluster) * size;
    const int64_t *order = call.order + pair * call.count;
    const auto row_of = [&](int64_t row) {
        return call.tokens.row<Number>(pair / call.heads, pair % call.heads, order[row]);
    };
    for (int64_t row = start; row < start + rows + STRETCH && row < call.count; row++)
        prefetch(row_of(row), size * sizeof(Number));
    const Vector share = all(1.0f / (rows ? rows : 1));
    for (int64_t d = 0; d < size; d += LANES) {
        Vector sum = all(0), squares = all(0);
        for (int64_t row = start; row < start + rows; row++)
            sum += load_part(row_of(row), d, size);
        sum *= share;
        for (int64_t row = start; row < start + rows; row++) {
            const Vector rest = load_part(row_of(row), d, size) - sum;
            squares += rest * rest;
        }
        store_part(sum, mean, d, size);
        store_part(squares * share, variance, d, size);
    }
}

template <typename Number>
void find_moments(Moments &call) {
    for_stretches(
        call.next_stretch, call.sizes, call.pairs, call.clusters,
        [&](int64_t pair, int64_t first, int64_t start) {
            const int64_t *sizes = call.sizes + pair * call.clusters;
            for (int64_t j = first; j < first + STRETCH && j < call.clusters; j++) {
                find_moments_of<Number>(call, pair, j, start, sizes[j]);
                start += sizes[j];
            }
        }
    );
}

// The query means of a pair, in tiles, and what they saw of a stretch of blocks so far.
template <typename Number>
class Watcher {
    static constexpr int CHUNK = 128;              // rows that are seen at a time
    static constexpr int LOOKERS = LANES == 16 ? 12 : 6;  // queries whose values are summed together
    static_assert(TILE % LOOKERS == 0, "a tile is looked at in whole groups");
    static_assert(STRETCH % LANES == 0, "a stretch is written in whole vectors");

public:
    explicit Watcher(const FarField &call)
        : call(call), padded(padded_size(call.size)),
          tiles((call.query_blocks + TILE - 1) / TILE) {
        const int64_t all_tiles = tiles * TILE;
        const int64_t numbers = 2 * all_tiles * padded + (3 + 3 * STRETCH) * all_tiles
            + (CHUNK + ROWS + 1) * (TILE + padded) + CHUNK * padded + padded;
        memory = static_cast<float *>(aligned_alloc(64, (numbers * 4 + 127) / 64 * 64));
        if (!memory) return;
        float *next = memory;
        const auto take = [&next](int64_t count) { return (next += count) - count; };
        queries = (Vector *)take(all_tiles * padded);
        sums = take(all_tiles * padded);
        tops = (Vector *)take(all_tiles);
        totals = (Vector *)take(all_tiles);
        bases = (Vector *)take(all_tiles);
        weights = (Vector *)take((CHUNK + ROWS + 1) * TILE);
        values = take(CHUNK * padded);
        zeros = take(padded);
        keys = take((CHUNK + ROWS + 1) * padded);
        for (Vector *&part : seen) part = (Vector *)take(STRETCH * all_tiles);
        memset(zeros, 0, padded * sizeof *zeros);
    }
    ~Watcher() { free(memory); }
    Watcher(const Watcher &) = delete;

    bool has_memory() const { return memory; }

    // See the blocks from `first` on, whose rows begin at `start`.
    void see(int64_t of_pair, int64_t first, int64_t start) {
        if (of_pair != pair) begin(of_pair);
        const int64_t *sizes = call.key_sizes + pair * call.key_blocks;
        for (int64_t block = first; block < first + STRETCH && block < call.key_blocks; block++) {
            if (sizes[block]) see_block(block, start, sizes[block]);
            keep_sight(block, int(block - first), sizes[block]);
            start += sizes[block];
        }
        for (int v = 0; v < vectors(); v++)
            for (int64_t slot = 0; slot < STRETCH; slot += LANES) write(v, first, slot);
    }

private:
    enum { SHIFT, TOTAL, LENGTH };  // log2 S = shift + log2 total

    const FarField &call;
    const int64_t padded, tiles;
    int64_t pair = -1;
    float *memory;
    Vector *queries;               // [tiles, padded, WIDTH]
    float *sums;                   // [tiles, TILE, padded]: of weights times values
    Vector *tops, *totals, *bases; // [tiles, WIDTH]
    Vector *weights;               // [CHUNK + 1, WIDTH]
    Vector *seen[3];               // [STRETCH, tiles, WIDTH] each
    float *keys, *values, *zeros;  // [CHUNK + 1, padded], [CHUNK, padded], [padded]

    int vectors() const { return int((call.query_blocks + LANES - 1) / LANES); }

    void begin(int64_t of_pair) {
        pair = of_pair;
        const float *means = call.query_means + pair * call.query_blocks * call.size;
        load_queries<Float32Products>(
            int(call.query_blocks), float(call.scale * LOG2_E), call.size, padded,
            [&](int q) { return means + q * call.size; }, queries
        );
    }

    void see_block(int64_t block, int64_t start, int64_t rows) {
        for (int64_t first = 0; first < rows; first += CHUNK) {
            const int count = int(rows - first < CHUNK ? rows - first : CHUNK);
            copy_rows(start + first, count);
            const float *mean = call.key_means + (pair * call.key_blocks + block) * call.size;
            pack_value(mean, call.size, padded, keys + count * padded);  // the last row: for the base
            for_tiles(vectors(), [&](auto used, int tile) {
                see_chunk<used.value>(tile, count, first == 0);
            });
        }
    }

    void copy_rows(int64_t start, int count) {
        const int64_t b = pair / call.heads, h = pair % call.heads, size = call.size;
        const int64_t *order = call.key_order + pair * call.keys;
        for (int64_t row = start; row < start + count; row++) {
            if (row + STRETCH < call.keys) {
                const int64_t ahead = order[row + STRETCH];
                prefetch(call.key.row<Number>(b, h, ahead), size * sizeof(Number));
                prefetch(call.value.row<Number>(b, h, ahead), size * sizeof(Number));
            }
            const int64_t at = (row - start) * padded;
            pack_value(call.key.row<Number>(b, h, order[row]), size, padded, keys + at);
            pack_value(call.value.row<Number>(b, h, order[row]), size, padded, values + at);
        }
    }

    template <int USED>
    __attribute__((noinline)) void see_chunk(int tile, int rows, bool is_first) {
        Vector *own_tops = tops + tile * WIDTH, *own_totals = totals + tile * WIDTH;
        for (int row = 0; row <= rows; row += ROWS) {
            const float *own[ROWS];
            Vector logits[ROWS][USED] = {};
            for (int r = 0; r < ROWS; r++)
                own[r] = row + r <= rows ? keys + (row + r) * padded : zeros;
            multiply<Float32Products>(logits, own, queries + tile * padded * WIDTH, padded);
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < USED; v++) weights[(row + r) * WIDTH + v] = logits[r][v];
        }
        Vector factor[WIDTH] = {};
        for (int v = 0; v < USED; v++) {
            if (is_first) bases[tile * WIDTH + v] = weights[rows * WIDTH + v];
            Vector top = is_first ? weights[v] : own_tops[v], total = all(0);
            for (int row = 0; row < rows; row++) top = larger(top, weights[row * WIDTH + v]);
            for (int row = 0; row < rows; row++) {
                const Vector weight = power_of_two(weights[row * WIDTH + v] - top);
                weights[row * WIDTH + v] = weight;
                total += weight;
            }
            if (!is_first) {
                factor[v] = power_of_two(own_tops[v] - top);
                total += own_totals[v] * factor[v];
            }
            own_tops[v] = top;
            own_totals[v] = total;
        }
        for (int q = 0; q < USED * LANES; q += LOOKERS)
            add_values(tile, q, rows, is_first ? nullptr : (const float *)factor + q);
    }

    // Add the weighted values of some queries of a tile to what they saw before, times a factor.
    void add_values(int tile, int q, int rows, const float *factor) {
        const float *own = (const float *)weights + q;
        for (int64_t d = 0; d < padded; d += 2 * LANES) {
            float *own_sums = sums + (tile * TILE + q) * padded + d;
            Vector sum[LOOKERS][2] = {};
            if (factor)
                for (int i = 0; i < LOOKERS; i++)
                    for (int part = 0; part < 2; part++)
                        sum[i][part] = load(own_sums + i * padded + part * LANES) * factor[i];
            for (int row = 0; row < rows; row++) {
                const Vector low = load(values + row * padded + d);
                const Vector high = load(values + row * padded + d + LANES);
                for (int i = 0; i < LOOKERS; i++) {
                    sum[i][0] += own[row * TILE + i] * low;
                    sum[i][1] += own[row * TILE + i] * high;
                }
            }
            for (int i = 0; i < LOOKERS; i++)
                for (int part = 0; part < 2; part++)
                    store(sum[i][part], own_sums + i * padded + part * LANES);
        }
    }

    // Write the values of a block, and keep the rest of what was seen until the stretch is over.
    void keep_sight(int64_t block, int slot, int64_t rows) {
        for (int v = 0; v < vectors(); v++) {
            const Vector total = rows ? totals[v] : all(0);
            Vector squares[LANES] = {};
            for (int lane = 0; lane < LANES; lane++) {
                const int64_t i = v * LANES + lane;
                if (i >= call.query_blocks) break;
                const int64_t index = (pair * call.query_blocks + i) * call.key_blocks + block;
                Number *value = static_cast<Number *>(call.values) + index * call.size;
                const float share = rows ? 1 / total[lane] : 0;
                for (int64_t d = 0; d < padded && d < call.size; d += LANES) {
                    const Vector own = rows ? load(sums + i * padded + d) * share : all(0);
                    stream_part(own, value, d, call.size);
                    squares[lane] += own * own;
                }
            }
            const int64_t vector = slot * tiles * WIDTH + v;
            seen[SHIFT][vector] = rows ? tops[v] - bases[v] : all(0);
            seen[TOTAL][vector] = total;
            seen[LENGTH][vector] = square_root(add_columns(squares));
        }
    }

    // Write what the queries of vector v saw of LANES blocks.
    void write(int v, int64_t first, int64_t slot) {
        if (first + slot >= call.key_blocks) return;
        Vector square[3][LANES];
        for (int part : {SHIFT, TOTAL, LENGTH}) {
            for (int lane = 0; lane < LANES; lane++)
                square[part][lane] = seen[part][(slot + lane) * tiles * WIDTH + v];
            transpose(square[part]);
        }
        for (int64_t lane = 0; lane < LANES && v * LANES + lane < call.query_blocks; lane++) {
            const int64_t row = (pair * call.query_blocks + v * LANES + lane) * call.key_blocks;
            const Vector total = square[TOTAL][lane];
            const Vector bias = LOG_2 * (square[SHIFT][lane] + log2_from_one(total));
            // A total that is no number stays none: an empty block has 0.
            store_part(total == all(0) ? all(-INFINITY) : bias + (total - total), call.bias + row, first + slot, call.key_blocks);
            store_part(square[LENGTH][lane], call.lengths + row, first + slot, call.key_blocks);
        }
    }
};

template <typename Number>
void see_blocks(FarField &call) {
    Watcher<Number> watcher(call);
    if (!watcher.has_memory()) {
        call.failures++;
        return;
    }
    const int64_t numbers = call.pairs * call.query_blocks * call.key_blocks * call.size;
    ask_for_large_pages(call.values, numbers * sizeof(Number));
    for_stretches(
        call.next_stretch, call.key_sizes, call.pairs, call.key_blocks,
        [&](int64_t pair, int64_t first, int64_t start) { watcher.see(pair, first, start); }
    );
}
