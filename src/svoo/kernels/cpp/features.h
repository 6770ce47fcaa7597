// A few numbers that stand for each token; `core/features.py` defines them.
#pragma once

#include <cstdlib>

#include "calls.h"
#include "vectors.h"

constexpr int FEATURES = 16, PARTS = FEATURES / LANES, TOGETHER = 8;  // tokens at a time

// The axes that some tokens of a pair vary on most.
template <typename Number>
class Axes {
public:
    Axes(const Features &call, float *memory) : call(call), size(call.size) {
        const auto take = [&memory](int64_t count) { return (memory += count) - count; };
        spread = take(size * size);
        axes = take(FEATURES * size);
        next = take(FEATURES * size);
        mean = take(size);
        rest = take(TOGETHER * size);
    }

    static int64_t numbers(int64_t size) { return size * (size + 2 * FEATURES + 1 + TOGETHER); }

    // Find axes of tokens `row_of(0)`, `row_of(every_token)`, ...
    template <typename RowOf>
    void find(int64_t tokens, int64_t every_token, int wanted, RowOf row_of) {
        every = every_token;
        count = int(wanted < size ? wanted : size);
        samples = (tokens + every - 1) / every;
        measure(tokens, row_of);
        memcpy(axes, call.start, count * size * sizeof(float));
        for (int64_t round = 0; round < call.rounds; round++) {
            for (int a = 0; a < count; a++) multiply_spread(axes + a * size, next + a * size);
            std::swap(axes, next);
            for (int a = 0; a < count; a++) straighten(a);
        }
    }

    // The variance along all axes together.
    float variance() const {
        float sum = 0;
        for (int a = 0; a < count; a++) {
            multiply_spread(axes + a * size, next);
            sum += dot(axes + a * size, next, size);
        }
        return sum / samples;
    }

    // Write the axes times `factor` as columns from `first` on: `columns` is [size, FEATURES], and
    // what the mean has along them is subtracted from `offset`.
    void write(int first, float factor, float *columns, float *offset) const {
        for (int a = 0; a < count; a++) {
            offset[first + a] -= factor * dot(mean, axes + a * size, size);
            for (int64_t d = 0; d < size; d++)
                columns[d * FEATURES + first + a] = factor * axes[a * size + d];
        }
    }

private:
    const Features &call;
    const int64_t size;
    int count = 0;
    int64_t samples = 1, every = 1;
    float *spread;        // [size, size]: sum of (x - mean) (x - mean)^T
    float *axes, *next;   // [count, size]
    float *mean, *rest;   // [size], [TOGETHER, size]

    template <typename RowOf>
    void measure(int64_t tokens, RowOf row_of) {
        memset(mean, 0, size * sizeof *mean);
        memset(spread, 0, size * size * sizeof *spread);
        for (int64_t n = 0; n < tokens; n += every) add_row<Number>(row_of(n), size, mean);
        for (int64_t d = 0; d < size; d++) mean[d] /= samples;
        for (int64_t n = 0; n < tokens; n += TOGETHER * every) {
            for (int i = 0; i < TOGETHER; i++) {
                const int64_t own = n + i * every;
                for (int64_t d = 0; d < size; d += LANES) {
                    const Vector x = load_part(row_of(own < tokens ? own : n), d, size);
                    const Vector apart = own < tokens ? x - load_part(mean, d, size) : all(0);
                    store_part(apart, rest + i * size, d, size);
                }
            }
            for (int64_t row = 0; row < size; row++)
                for (int64_t d = 0; d < size; d += LANES) {
                    Vector sum = load_part(spread + row * size, d, size);
                    for (int i = 0; i < TOGETHER; i++)
                        sum += rest[i * size + row] * load_part(rest + i * size, d, size);
                    store_part(sum, spread + row * size, d, size);
                }
        }
    }

    // product = spread * axis; the spread is symmetric.
    void multiply_spread(const float *axis, float *product) const {
        for (int64_t d = 0; d < size; d += LANES) {
            Vector sum = all(0);
            for (int64_t row = 0; row < size; row++)
                sum += axis[row] * load_part(spread + row * size, d, size);
            store_part(sum, product, d, size);
        }
    }

    // Make axis a unit vector at right angles to those before it, or 0 if there is nothing left.
    void straighten(int a) {
        float *own = axes + a * size;
        const float before = dot(own, own, size);
        for (int pass = 0; pass < 2; pass++)  // once would leave what rounding puts in
            for (int b = 0; b < a; b++)
                add_scaled(axes + b * size, -dot(own, axes + b * size, size), size, own);
        const float length = dot(own, own, size);
        const float factor = length > 1e-12f * before ? 1 / std::sqrt(length) : 0;
        for (int64_t d = 0; d < size; d++) own[d] *= factor;
    }
};

// The features of one side of a pair: of queries, or of keys and their values.
template <typename Number>
void find_side(const Features &call, int64_t pair, bool is_query, float *memory) {
    const int64_t size = call.size, tokens = is_query ? call.queries : call.keys;
    const int64_t every = is_query ? call.query_every : call.key_every;
    float *columns[2] = {memory, memory + size * FEATURES};
    float *offset = memory + 2 * size * FEATURES;
    Axes<Number> axes(call, offset + FEATURES);
    memset(memory, 0, (2 * size + 1) * FEATURES * sizeof(float));
    const auto row_in = [&](const Tokens &side) {
        return [&call, &side, pair](int64_t n) {
            return side.row<const Number>(pair / call.heads, pair % call.heads, n);
        };
    };
    const auto own = row_in(is_query ? call.query : call.key), value = row_in(call.value);
    axes.find(tokens, every, is_query ? FEATURES : int(call.key_features), own);
    axes.write(0, 1, columns[0], offset);
    if (!is_query) {
        const float wide = axes.variance();
        axes.find(tokens, every, FEATURES - int(call.key_features), value);
        const float narrow = axes.variance();
        const float factor = narrow > 0 ? float(call.value_share) * std::sqrt(wide / narrow) : 0;
        axes.write(int(call.key_features), factor, columns[1], offset);
    }
    float *made = (is_query ? call.query_made : call.key_made) + pair * tokens * FEATURES;
    for (int64_t first = 0; first < tokens; first += TOGETHER) {
        const Number *rows[2][TOGETHER];
        Vector sums[TOGETHER][PARTS];
        for (int i = 0; i < TOGETHER; i++) {
            const int64_t n = first + i < tokens ? first + i : tokens - 1;
            rows[0][i] = own(n);
            rows[1][i] = is_query ? nullptr : value(n);
            if (n + TOGETHER < tokens) {
                prefetch(own(n + TOGETHER), size * sizeof(Number));
                if (!is_query) prefetch(value(n + TOGETHER), size * sizeof(Number));
            }
            for (int part = 0; part < PARTS; part++) sums[i][part] = load(offset + part * LANES);
        }
        for (int side = 0; side < (is_query ? 1 : 2); side++)
            for (int64_t d = 0; d < size; d++)
                for (int part = 0; part < PARTS; part++) {
                    const Vector column = load(columns[side] + d * FEATURES + part * LANES);
                    for (int i = 0; i < TOGETHER; i++)
                        sums[i][part] += as_float(rows[side][i][d]) * column;
                }
        for (int i = 0; i < TOGETHER && first + i < tokens; i++)
            for (int part = 0; part < PARTS; part++)
                store(sums[i][part], made + (first + i) * FEATURES + part * LANES);
    }
}

template <typename Number>
void find_features(Features &call) {
    const int64_t numbers = (2 * call.size + 1) * FEATURES + Axes<Number>::numbers(call.size);
    const std::unique_ptr<float[]> memory(new (std::nothrow) float[numbers]);
    if (!memory) {
        call.failures++;
        return;
    }
    // Keys first, which take longer: threads that end with queries end together.
    for (int64_t next; (next = call.next_side++) < 2 * call.pairs;)
        find_side<Number>(call, next % call.pairs, next >= call.pairs, memory.get());
}
