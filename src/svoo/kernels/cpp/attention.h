// Block-sparse attention as a plan says; `backends/reference.py` defines what it computes.
#pragma once

#include <memory>
#include <new>

#include "calls.h"
#include "segment.h"

constexpr int AHEAD = 16;  // rows that memory is asked for before they are read

// Where the packed rows of a pair of batch and head are: those of its tokens, if these are packed,
// then the means of its blocks.
template <typename Products>
struct Packed {
    typedef typename Products::Element Element;
    const int64_t padded, tokens;
    Element *keys;
    float *values;

    Packed(const Attention &call, int64_t pair)
        : padded(padded_size(call.size)), tokens(call.packs_rows ? call.keys : 0) {
        const int64_t first = (pair - call.first_pair) * (tokens + call.key_blocks) * padded;
        keys = static_cast<Element *>(call.packed_keys) + first / Products::DEPTH;
        values = call.packed_values + first;
    }
    Element *key(int64_t row) const { return keys + row * (padded / Products::DEPTH); }
    float *value(int64_t row) const { return values + row * padded; }
    Element *mean_key(int64_t block) const { return key(tokens + block); }
    float *mean_value(int64_t block) const { return value(tokens + block); }
};

template <typename Number, typename Products>
void pack_block(
    const Attention &call, int64_t pair, int64_t block, int64_t start, int64_t rows, float *mean
) {
    const int64_t b = pair / call.heads, h = pair % call.heads, size = call.size;
    const Packed<Products> packed(call, pair);
    const int64_t *order = call.key_order ? call.key_order + pair * call.keys : nullptr;
    const bool reads_values = call.packs_rows || call.compensate;
    memset(mean, 0, 2 * size * sizeof *mean);
    for (int64_t row = start; row < start + rows; row++) {
        if (order && row + AHEAD < call.keys) {
            const int64_t ahead = order[row + AHEAD];
            prefetch(call.key.row<Number>(b, h, ahead), size * sizeof(Number));
            if (reads_values) prefetch(call.value.row<Number>(b, h, ahead), size * sizeof(Number));
        }
        const int64_t token = order ? order[row] : row;
        const Number *key = call.key.row<Number>(b, h, token);
        const Number *value = call.value.row<Number>(b, h, token);
        if (call.packs_rows) {
            pack_key<Products>(key, size, packed.padded, packed.key(row));
            pack_value(value, size, packed.padded, packed.value(row));
        }
        if (call.compensate || call.middle) add_row(key, size, mean);
        if (call.compensate) add_row(value, size, mean + size);
    }
    for (int64_t d = 0; d < 2 * size; d++) mean[d] /= rows ? rows : 1;
    if (call.middle) round_row<Number>(mean, size);  // as whoever made the biases did
    pack_key<Products>(mean, size, packed.padded, packed.mean_key(block));
    pack_value(mean + size, size, packed.padded, packed.mean_value(block));
}

// Bring keys and values into block order as they are multiplied, if that is needed, and average the
// blocks.
template <typename Number>
void pack(Attention &call) {
    const std::unique_ptr<float[]> mean(new (std::nothrow) float[2 * call.size]);
    if (!mean) {
        call.failures++;
        return;
    }
    int64_t start = 0, next = call.next_block++;
    for (int64_t i = 0; i < call.pairs * call.key_blocks; i++) {
        const int64_t pair = call.first_pair + i / call.key_blocks, block = i % call.key_blocks;
        const int64_t rows = call.key_sizes[pair * call.key_blocks + block];
        if (block == 0) start = 0;
        if (i == next) {
            if (HAS_BFLOAT16_PRODUCTS && call.round_products)
                pack_block<Number, BFloat16Products>(call, pair, block, start, rows, mean.get());
            else pack_block<Number, Float32Products>(call, pair, block, start, rows, mean.get());
            next = call.next_block++;
        }
        start += rows;
    }
}

// Up to SEGMENT queries of one head: whole query blocks, or a piece of one.
template <typename Number, int SIZE, typename Products>
class Group {
    typedef Segment<SIZE, Products> Own;

public:
    explicit Group(const Attention &call) : call(call), segment(call.size) {}

    bool has_memory() const { return segment.has_memory(); }

    // Take `count` queries of a block, the first of which is number `first` in block order; say
    // no if the group has no room for them, or is of another head.
    bool take(int64_t of_pair, int64_t block, int64_t first, int count) {
        const int vectors = (count + LANES - 1) / LANES;
        if (used && (of_pair != pair || used == Own::PARTS || taken + vectors > SEGMENT / LANES))
            return false;
        pair = of_pair;
        taken += vectors;
        pieces[used++] = {block, first, count};
        return true;
    }

    void run() {
        segment.clear();
        for (int i = 0; i < used; i++)
            segment.begin(pieces[i].count, float(call.scale * LOG2_E), [&](int q) {
                return call.query.row<const Number>(batch(), head(), query_token(i, q));
            });
        add_tokens();
        if (call.compensate) add_means();
        if (call.middle)
            for (int i = 0; i < used; i++) add_far(i);
        for (int i = 0; i < used; i++) finish(i);
        drop();
    }

    void drop() { used = taken = 0; }

private:
    struct Piece {
        int64_t block, first;
        int count;
    };
    const Attention &call;
    Own segment;
    Piece pieces[Own::PARTS] = {};
    int64_t pair = 0;
    int used = 0, taken = 0;  // pieces; vectors of queries

    int64_t batch() const { return pair / call.heads; }
    int64_t head() const { return pair % call.heads; }

    int64_t query_token(int i, int q) const {
        const int64_t row = pieces[i].first + q;
        return call.query_order ? call.query_order[pair * call.queries + row] : row;
    }

    bool keeps(int i, int64_t j) const {
        return call.keep[(pair * call.query_blocks + pieces[i].block) * call.key_blocks + j];
    }

    void add_tokens() {
        const Packed<Products> packed(call, pair);
        const int64_t *sizes = call.key_sizes + pair * call.key_blocks;
        int64_t start = 0;
        for (int64_t j = 0; j < call.key_blocks; j++) {
            for (int i = 0; i < used; i++) {
                if (!keeps(i, j)) continue;
                if (call.packs_rows)
                    segment.add_rows(i, packed.key(start), packed.value(start), sizes[j]);
                else add_unpacked(i, start, sizes[j]);
            }
            start += sizes[j];
        }
    }

    // Rows of tokens as they are: float32, and as long as packed ones.
    void add_unpacked(int i, int64_t start, int64_t rows) {
        if constexpr (std::is_same_v<Number, float> && Products::DEPTH == 1)
            for (int64_t row = start; row < start + rows; row++) {
                const int64_t token
                    = call.key_order ? call.key_order[pair * call.keys + row] : row;
                segment.add(
                    i, call.key.row<const float>(batch(), head(), token),
                    call.value.row<const float>(batch(), head(), token), 0
                );
            }
    }

    // The means of the compensated blocks that a query block leaves out.
    void add_means() {
        const Packed<Products> packed(call, pair);
        for (int64_t j = 0; j < call.key_blocks; j++) {
            const int64_t rows = call.key_sizes[pair * call.key_blocks + j];
            if (!rows || !call.compensate[pair * call.key_blocks + j]) continue;
            const float bias = std::log2(float(rows));
            for (int i = 0; i < used; i++)
                if (!keeps(i, j))
                    segment.add(i, packed.mean_key(j), packed.mean_value(j), bias);
        }
    }

    // The terms of the blocks that a query block has in the middle, and of its groups.
    void add_far(int i) {
        const Packed<Products> packed(call, pair);
        const int64_t block = pair * call.query_blocks + pieces[i].block, size = call.size;
        for (int64_t j = 0; j < call.key_blocks; j++) {
            const int64_t index = block * call.key_blocks + j;
            if (!call.middle[index] || !call.key_sizes[pair * call.key_blocks + j]) continue;
            if (call.bias[index] == -INFINITY) continue;
            const Number *value = static_cast<const Number *>(call.far_values) + index * size;
            segment.add_value(i, packed.mean_key(j), value, call.bias[index] * LOG2_E);
        }
        for (int64_t index = block * call.groups; index < (block + 1) * call.groups; index++) {
            if (call.group_bias[index] == -INFINITY) continue;
            const Number *key = static_cast<const Number *>(call.group_keys) + index * size;
            const Number *value = static_cast<const Number *>(call.group_values) + index * size;
            segment.add_copy(i, key, value, call.group_bias[index] * LOG2_E);
        }
    }

    void finish(int i) {
        segment.finish(i, pieces[i].count, [&](int q) {
            return call.output.row<Number>(batch(), head(), query_token(i, q));
        });
        if (call.lse)
            for (int q = 0; q < pieces[i].count; q++)
                call.lse[pair * call.queries + query_token(i, q)] = segment.lse(i, q);
    }
};

template <typename Number, int SIZE, typename Products>
void attend_as(Attention &call) {
    Group<Number, SIZE, Products> group(call);
    if (!group.has_memory()) {
        call.failures++;
        return;
    }
    // All threads make the same groups; each runs those whose number it drew.
    int64_t next = call.next_group++, number = 0;
    const auto close = [&] {
        if (number++ == next) {
            group.run();
            next = call.next_group++;
        } else group.drop();
    };
    for (int64_t pair = call.first_pair; pair < call.first_pair + call.pairs; pair++) {
        int64_t first = 0;
        for (int64_t block = 0; block < call.query_blocks; block++) {
            const int64_t size = call.query_sizes[pair * call.query_blocks + block];
            for (int64_t offset = 0; offset < size; offset += SEGMENT) {
                const int count = int(size - offset < SEGMENT ? size - offset : SEGMENT);
                if (group.take(pair, block, first + offset, count)) continue;
                close();
                group.take(pair, block, first + offset, count);
            }
            first += size;
        }
    }
    close();
}

template <typename Number>
void attend(Attention &call) {
    with_size(call.size, [&](auto size) {
        constexpr int SIZE = size.value;
        if constexpr (HAS_BFLOAT16_PRODUCTS)
            if (call.round_products) return attend_as<Number, SIZE, BFloat16Products>(call);
        attend_as<Number, SIZE, Float32Products>(call);
    });
}
