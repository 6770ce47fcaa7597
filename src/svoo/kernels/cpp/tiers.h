// Which blocks a query block keeps, gives a term, or lets share one; `core/far_field.py` defines it.
#pragma once

#include <memory>
#include <new>

#include "calls.h"
#include "vectors.h"

// One query block at a time; vectors run along key blocks.
template <typename Number>
class Chooser {
public:
    explicit Chooser(const Tiers &call)
        : call(call), blocks(call.key_blocks), padded((blocks + LANES - 1) / LANES * LANES) {
        const int64_t numbers = 3 * padded + call.groups * (2 * call.size + 1);
        memory.reset(new (std::nothrow) float[numbers]);
        if (!memory) return;
        shares = memory.get();
        rates = shares + padded;
        scores = rates + padded;
        group_shares = scores + padded;
        group_sums = group_shares + call.groups;
    }

    bool has_memory() const { return bool(memory); }

    void choose(int64_t row) {
        if (row / call.query_blocks != pair) begin(row / call.query_blocks);
        find_shares(row);
        keep_blocks(row);
        uint8_t *keep = call.keep + row * blocks, *middle = call.middle + row * blocks;
        for (int64_t j = 0; j < blocks; j++) middle[j] = !keep[j] && rates[j] > 0;
        if (call.groups) share_terms(row);
    }

private:
    const Tiers &call;
    const int64_t blocks, padded;
    std::unique_ptr<float[]> memory;
    float *shares, *rates, *scores;     // [padded]: w before it is divided; 1 / size or 0; scores
    float *group_shares, *group_sums;   // [groups], [groups, 2, size]
    int64_t pair = -1;
    float top = 0, total = 1;           // of the logits; of the shares

    void begin(int64_t of_pair) {
        pair = of_pair;
        for (int64_t j = 0; j < padded; j++) {
            const int64_t size = j < blocks ? call.sizes[pair * blocks + j] : 0;
            rates[j] = size ? 1.0f / size : 0;
        }
    }

    void find_shares(int64_t row) {
        const float *logits = call.logits + row * blocks, *bias = call.bias + row * blocks;
        top = -INFINITY;
        for (int64_t j = 0; j < blocks; j++)
            if (rates[j] > 0 && logits[j] + bias[j] > top) top = logits[j] + bias[j];
        Vector sum = all(0);
        for (int64_t j = 0; j < padded; j += LANES) {
            const Vector logit = load_part(logits, j, blocks) + load_part(bias, j, blocks);
            const Vector share = power_of_two((logit - top) * LOG2_E);
            const Vector own = load(rates + j) > all(0) ? share : all(0);
            store(own, shares + j);
            sum += own;
        }
        total = add_lanes(sum);
    }

    // share * (sqrt(spread) * deviation + spread / 2 * length), weighted
    Vector error(Vector share, Vector spread, Vector deviation, Vector length) const {
        const float weight = call.weights[pair % call.heads] / total;
        return weight * share * (square_root(spread) * deviation + 0.5f * spread * length);
    }

    void keep_blocks(int64_t row) {
        for (int64_t j = 0; j < padded; j += LANES) {
            const Vector spread = load_part(call.spreads + row * blocks, j, blocks);
            const Vector length = load_part(call.lengths + row * blocks, j, blocks);
            const Vector deviation = load_part(call.deviations + pair * blocks, j, blocks);
            const Vector rate = load(rates + j);
            const Vector score = error(load(shares + j), spread, deviation, length) * rate;
            store(rate > all(0) ? score : all(-1), scores + j);
        }
        uint8_t *keep = call.keep + row * blocks;
        int64_t best = 0;
        for (int64_t j = 0; j < blocks; j++) {
            keep[j] = scores[j] > float(call.tolerance);
            if (scores[j] > scores[best]) best = j;  // strictly: the first of equals
        }
        keep[best] = 1;
    }

    void share_terms(int64_t row) {
        const int64_t size = call.size;
        for (int64_t j = 0; j < padded; j += LANES) {
            const Vector spread = load_part(call.group_spreads + row * blocks, j, blocks);
            const Vector distance = load_part(call.value_distances + pair * blocks, j, blocks);
            const Vector length = load_part(call.value_lengths + pair * blocks, j, blocks);
            store(error(load(shares + j), spread, distance, length), scores + j);
        }
        memset(group_shares, 0, call.groups * (2 * size + 1) * sizeof(float));
        uint8_t *middle = call.middle + row * blocks;
        for (int64_t j = 0; j < blocks; j++) {
            if (!middle[j] || !(scores[j] < float(call.tolerance))) continue;
            middle[j] = 0;
            const int64_t group = call.labels[pair * blocks + j];
            float *sum = group_sums + group * 2 * size;
            group_shares[group] += shares[j];
            add_scaled(call.key_means + (pair * blocks + j) * size, shares[j], sum);
            add_scaled(call.value_means + (pair * blocks + j) * size, shares[j], sum + size);
        }
        for (int64_t group = 0; group < call.groups; group++)
            write_group(row, group, group_sums + group * 2 * size);
    }

    void add_scaled(const float *row, float factor, float *sum) const {
        for (int64_t d = 0; d < call.size; d += LANES) {
            const Vector x = load_part(row, d, call.size) * factor;
            store_part(load_part(sum, d, call.size) + x, sum, d, call.size);
        }
    }

    void write_group(int64_t row, int64_t group, float *sum) const {
        const int64_t index = row * call.groups + group, size = call.size;
        Number *key = static_cast<Number *>(call.group_keys) + index * size;
        Number *value = static_cast<Number *>(call.group_values) + index * size;
        const float share = group_shares[group];
        for (int64_t d = 0; d < 2 * size; d++) sum[d] *= share > 0 ? 1 / share : 0;
        round_row<Number>(sum, size);  // before the bias is made
        Vector products = all(0);
        for (int64_t d = 0; d < size; d += LANES) {
            const Vector part = load_part(sum, d, size);
            store_part(part, key, d, size);
            store_part(load_part(sum + size, d, size), value, d, size);
            products += part * load_part(call.query_means + row * size, d, size);
        }
        const float product = add_lanes(products) * float(call.scale);
        call.group_bias[index] = share > 0 ? top + std::log(share) - product : -INFINITY;
    }
};

template <typename Number>
void choose_tiers(Tiers &call) {
    Chooser<Number> chooser(call);
    if (!chooser.has_memory()) {
        call.failures++;
        return;
    }
    constexpr int TOGETHER = 8;  // rows, so that threads stay with a head
    const int64_t rows = call.pairs * call.query_blocks;
    for (int64_t next; (next = TOGETHER * call.next_row++) < rows;)
        for (int64_t row = next; row < next + TOGETHER && row < rows; row++) chooser.choose(row);
}
