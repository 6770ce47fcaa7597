// Which blocks a query block keeps, gives a term, or lets share one; `core/far_field.py` and
// `core/far_groups.py` define it.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "calls.h"
#include "tiles.h"

// Mean keys and values of a pair in groups; `group_keys` in Python defines them.
inline void group_pair(const Groups &call, int64_t pair, float *counts) {
    const int64_t size = call.size, blocks = call.blocks, groups = call.groups;
    const float *keys = call.key_means + pair * blocks * size;
    const float *values = call.value_means + pair * blocks * size;
    const int64_t *sizes = call.sizes + pair * blocks;
    int64_t *labels = call.labels + pair * blocks;
    float *group_keys = call.group_keys + pair * groups * size;
    float *group_values = call.group_values + pair * groups * size;
    float *halves = counts + groups;
    for (int64_t group = 0; group < groups; group++) {
        const int64_t first = group * blocks / groups;
        memcpy(group_keys + group * size, keys + first * size, size * sizeof(float));
        memcpy(group_values + group * size, values + first * size, size * sizeof(float));
    }
    for (int64_t step = 0; step < call.steps; step++) {
        for (int64_t group = 0; group < groups; group++)
            halves[group] = 0.5f * dot(group_keys + group * size, group_keys + group * size, size);
        for (int64_t j = 0; j < blocks; j++) {
            float top = -INFINITY;
            labels[j] = 0;
            for (int64_t group = 0; group < groups; group++) {
                const float score
                    = dot(keys + j * size, group_keys + group * size, size) - halves[group];
                if (score > top) top = score, labels[j] = group;  // the first of equals
            }
        }
        memset(counts, 0, groups * sizeof *counts);
        for (int64_t j = 0; j < blocks; j++) counts[labels[j]] += sizes[j];
        for (int64_t group = 0; group < groups; group++) {
            if (counts[group] == 0) continue;  // an empty one stays
            memset(group_keys + group * size, 0, size * sizeof(float));
            memset(group_values + group * size, 0, size * sizeof(float));
        }
        for (int64_t j = 0; j < blocks; j++) {
            if (!sizes[j]) continue;
            const float share = sizes[j] / counts[labels[j]];
            add_scaled(keys + j * size, share, size, group_keys + labels[j] * size);
            add_scaled(values + j * size, share, size, group_values + labels[j] * size);
        }
    }
}

inline void group_blocks(Groups &call) {
    const std::unique_ptr<float[]> counts(new (std::nothrow) float[2 * call.groups]);
    if (!counts) {
        call.failures++;
        return;
    }
    for (int64_t pair; (pair = call.next_pair++) < call.pairs;) group_pair(call, pair, counts.get());
}

// ROWS query blocks at a time; vectors run along key blocks.
template <typename Number>
class Chooser {
    enum { LOGIT, SPREAD, GROUP_SPREAD, PRODUCTS };  // q.c, variances of logits

public:
    explicit Chooser(const Tiers &call)
        : call(call), blocks(call.key_blocks), padded(padded_size(call.size)),
          tiles((blocks + TILE - 1) / TILE), products(call.groups ? PRODUCTS : GROUP_SPREAD) {
        const int64_t all_blocks = tiles * TILE;
        const int64_t numbers = products * all_blocks * (padded + ROWS) + 6 * all_blocks
            + blocks * (call.size + 1) + 2 * ROWS * padded + 2 * call.size + call.groups + 1;
        memory = static_cast<float *>(aligned_alloc(64, (numbers * 4 + 127) / 64 * 64));
        if (!memory) return;
        float *next = memory;
        const auto take = [&next](int64_t count) { return (next += count) - count; };
        for (int part = 0; part < products; part++) {
            sides[part] = (Vector *)take(all_blocks * padded);
            found[part] = take(all_blocks * ROWS);
        }
        for (float **part : {&shares, &rates, &scores, &deviations, &value_lengths, &value_distances})
            *part = take(all_blocks);
        for (float *&part : rows) part = take(ROWS * padded);
        sum = take(2 * call.size);
        apart = take(blocks * call.size);
        members = (int32_t *)take(blocks);
        ends = (int32_t *)take(call.groups + 1);
    }
    ~Chooser() { free(memory); }
    Chooser(const Chooser &) = delete;

    bool has_memory() const { return memory; }

    // Choose for `count` <= ROWS query blocks of a pair.
    void choose(int64_t of_pair, int64_t first, int count) {
        if (of_pair != pair) begin(of_pair);
        multiply_rows(pair * call.query_blocks + first, count);
        for (int r = 0; r < count; r++) {
            const int64_t row = pair * call.query_blocks + first + r;
            find_shares(row, r);
            keep_blocks(row, r);
            uint8_t *keep = call.keep + row * blocks, *middle = call.middle + row * blocks;
            for (int64_t j = 0; j < blocks; j++) middle[j] = !keep[j] & (rates[j] > 0);
            if (call.groups) share_terms(row, r);
        }
    }

private:
    const Tiers &call;
    const int64_t blocks, padded, tiles;
    const int products;
    int64_t pair = -1;
    float *memory;
    Vector *sides[PRODUCTS];  // [tiles, padded, WIDTH]: what key blocks bring into each product
    float *found[PRODUCTS];   // [ROWS, tiles * TILE]
    float *rows[2];           // [ROWS, padded]: means and variances of queries
    float *shares, *rates, *scores;  // [tiles * TILE]: w before it is divided; 1 / size or 0; scores
    float *deviations, *value_lengths, *value_distances;
    float *sum;               // [2, size]
    float *apart;             // [blocks, size]: squares of what a mean key is from its group's
    int32_t *members, *ends;  // [blocks], by group; [groups + 1]: where each group begins
    float top = 0, total = 1;  // of the logits; of the shares

    void begin(int64_t of_pair) {
        pair = of_pair;
        const int64_t size = call.size, start = pair * blocks;
        const float scale = float(call.scale);
        const auto load_side = [&](int part, const float *from, float factor) {
            load_queries<Float32Products>(
                int(blocks), factor, size, padded, [&](int j) { return from + j * size; },
                sides[part]
            );
        };
        load_side(LOGIT, call.key_means + start * size, scale);
        load_side(SPREAD, call.key_variances + start * size, scale * scale);
        memset(shares, 0, 6 * tiles * TILE * sizeof(float));
        for (int64_t j = 0; j < blocks; j++) {
            const float *value = call.value_means + (start + j) * size;
            const float *variance = call.value_variances + (start + j) * size;
            rates[j] = call.sizes[start + j] ? 1.0f / call.sizes[start + j] : 0;
            deviations[j] = std::sqrt(add_up(variance, size));
            if (!call.groups) continue;
            const int64_t group = pair * call.groups + call.labels[start + j];
            value_lengths[j] = std::sqrt(dot(value, value, size));
            float *own = apart + j * size;
            square_apart(value, call.group_values + group * size, size, own);
            value_distances[j] = std::sqrt(add_up(own, size));
            square_apart(
                call.key_means + (start + j) * size, call.group_keys + group * size, size, own
            );
        }
        if (!call.groups) return;
        load_side(GROUP_SPREAD, apart, scale * scale);
        int32_t *next = members;
        for (int64_t group = 0; group < call.groups; group++) {
            ends[group] = int32_t(next - members);
            for (int64_t j = 0; j < blocks; j++)
                if (call.labels[start + j] == group) *next++ = int32_t(j);
        }
        ends[call.groups] = int32_t(next - members);
    }

    void multiply_rows(int64_t first, int count) {
        for (int r = 0; r < ROWS; r++) {  // the last one again where there are fewer
            const int64_t row = first + (r < count ? r : count - 1);
            pack_value(call.query_means + row * call.size, call.size, padded, rows[0] + r * padded);
            pack_value(
                call.query_variances + row * call.size, call.size, padded, rows[1] + r * padded
            );
        }
        for (int part = 0; part < products; part++)
            for_tiles(int((blocks + LANES - 1) / LANES), [&](auto used, int tile) {
                multiply_tile<used.value>(part, tile);
            });
    }

    template <int USED>
    __attribute__((noinline)) void multiply_tile(int part, int tile) {
        const float *own[ROWS];
        for (int r = 0; r < ROWS; r++) own[r] = rows[part != LOGIT] + r * padded;
        Vector sums[ROWS][USED] = {};
        multiply<Float32Products>(sums, own, sides[part] + tile * padded * WIDTH, padded);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < USED; v++)
                store(sums[r][v], found[part] + (r * tiles + tile) * TILE + v * LANES);
    }

    const float *row_of(int part, int r) const { return found[part] + r * tiles * TILE; }

    void find_shares(int64_t row, int r) {
        const float *logits = row_of(LOGIT, r), *bias = call.bias + row * blocks;
        Vector tops = all(-INFINITY), sums = all(0);
        for (int64_t j = 0; j < blocks; j += LANES) {
            const Vector logit = load(logits + j) + load_part(bias, j, blocks);
            const Vector own = load(rates + j) > all(0) ? logit : all(-INFINITY);
            store(own, shares + j);
            tops = larger(own, tops);
        }
        top = largest_lane(tops);
        for (int64_t j = 0; j < blocks; j += LANES) {
            const Vector share = power_of_two((load(shares + j) - top) * LOG2_E);
            const Vector own = load(rates + j) > all(0) ? share : all(0);
            store(own, shares + j);
            sums += own;
        }
        total = add_lanes(sums);
    }

    // share * (sqrt(spread) * deviation + spread / 2 * length), weighted
    Vector error(Vector share, Vector spread, Vector deviation, Vector length) const {
        const float weight = call.weights[pair % call.heads] / total;
        return weight * share * (square_root(spread) * deviation + 0.5f * spread * length);
    }

    void keep_blocks(int64_t row, int r) {
        const float *spreads = row_of(SPREAD, r);
        Vector tops = all(-INFINITY);
        for (int64_t j = 0; j < blocks; j += LANES) {
            const Vector length = load_part(call.lengths + row * blocks, j, blocks);
            const Vector rate = load(rates + j);
            const Vector wrong
                = error(load(shares + j), load(spreads + j), load(deviations + j), length);
            const Vector score = rate > all(0) ? wrong * rate : all(-1);
            store(score, scores + j);
            tops = larger(score, tops);
        }
        uint8_t *keep = call.keep + row * blocks;
        for (int64_t j = 0; j < blocks; j++) keep[j] = scores[j] > float(call.tolerance);
        const float best = largest_lane(tops);
        int64_t first = 0;
        while (first < blocks - 1 && scores[first] != best) first++;
        keep[first] = 1;
    }

    void share_terms(int64_t row, int r) {
        const float *spreads = row_of(GROUP_SPREAD, r);
        for (int64_t j = 0; j < blocks; j += LANES) {
            const Vector distance = load(value_distances + j), length = load(value_lengths + j);
            const Vector wrong = error(load(shares + j), load(spreads + j), distance, length);
            store(wrong, scores + j);
        }
        uint8_t *middle = call.middle + row * blocks;
        for (int64_t j = 0; j < blocks; j++) {  // what does not join has no share from here on
            const bool joins = middle[j] & (scores[j] < float(call.tolerance));
            middle[j] &= !joins;
            scores[j] = joins ? shares[j] : 0;
        }
        for (int64_t group = 0; group < call.groups; group++)
            write_group(row, group, add_members(group));
    }

    // Add up keys and values of a group's blocks, each times its share; return the shares' sum.
    float add_members(int64_t group) {
        const int64_t size = call.size, start = pair * blocks;
        const int32_t *own = members + ends[group], *end = members + ends[group + 1];
        float share = 0;
        for (const int32_t *j = own; j < end; j++) share += scores[*j];
        for (int64_t d = 0; d < size; d += LANES) {
            Vector key = all(0), value = all(0);
            for (const int32_t *next = own; next < end; next++) {
                const int64_t j = *next;
                if (scores[j] == 0) continue;
                key += load_part(call.key_means + (start + j) * size, d, size) * scores[j];
                value += load_part(call.value_means + (start + j) * size, d, size) * scores[j];
            }
            store_part(key, sum, d, size);
            store_part(value, sum + size, d, size);
        }
        return share;
    }

    void write_group(int64_t row, int64_t group, float share) {
        const int64_t index = row * call.groups + group, size = call.size;
        Number *key = static_cast<Number *>(call.shared_keys) + index * size;
        Number *value = static_cast<Number *>(call.shared_values) + index * size;
        for (int64_t d = 0; d < 2 * size; d++) sum[d] *= share > 0 ? 1 / share : 0;
        round_row<Number>(sum, size);  // before the bias is made
        for (int64_t d = 0; d < size; d += LANES) {
            store_part(load_part(sum, d, size), key, d, size);
            store_part(load_part(sum + size, d, size), value, d, size);
        }
        const float product = dot(sum, call.query_means + row * size, size) * float(call.scale);
        call.shared_bias[index] = share > 0 ? top + std::log(share) - product : -INFINITY;
    }
};

template <typename Number>
void choose_tiers(Tiers &call) {
    Chooser<Number> chooser(call);
    if (!chooser.has_memory()) {
        call.failures++;
        return;
    }
    const int64_t pieces = (call.query_blocks + ROWS - 1) / ROWS;  // of a pair
    for (int64_t next; (next = call.next_piece++) < call.pairs * pieces;) {
        const int64_t first = next % pieces * ROWS, rest = call.query_blocks - first;
        chooser.choose(next / pieces, first, int(rest < ROWS ? rest : ROWS));
    }
}
