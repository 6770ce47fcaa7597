// What Python hands over; `bindings.py` has the same structures.
#pragma once

#include <atomic>
#include <cstdint>

struct Tokens {  // [batch, heads, tokens, size]; strides in numbers, the last one is 1
    void *data;
    int64_t batch_stride, head_stride, token_stride;

    template <typename Number>
    Number *row(int64_t batch, int64_t head, int64_t token) const {
        return static_cast<Number *>(data) + batch * batch_stride + head * head_stride
            + token * token_stride;
    }
};

struct Attention {
    Tokens query, key, value, output;
    float *lse;           // [batch, heads, queries], or null
    void *packed_keys;     // [pairs, keys + key blocks, padded size] of the pairs of this call:
    float *packed_values;  //     rows in block order, if rows are packed, then means of the blocks
    const int64_t *query_order, *key_order;  // [batch, heads, tokens], or null
    const int64_t *query_sizes, *key_sizes;  // [batch, heads, blocks]
    const uint8_t *keep;                     // [batch, heads, query blocks, key blocks]
    const uint8_t *compensate;               // [batch, heads, key blocks], or null
    const uint8_t *middle;     // [batch, heads, query blocks, key blocks], or null
    const float *bias;         // the same shape
    const void *far_values;    // the same shape, size: numbers as the tokens are
    const float *group_bias;   // [batch, heads, query blocks, groups]
    const void *group_keys, *group_values;  // the same shape, size
    int64_t heads, queries, keys, size, query_blocks, key_blocks, groups;
    int64_t first_pair, pairs;  // of batch and head
    int64_t round_products;     // to bfloat16
    int64_t packs_rows;         // 0: keys and values are float32 and fill padded rows as they are
    double scale;
    std::atomic<int64_t> next_block, next_group, failures;
};

struct Assignment {
    Tokens tokens;
    const float *weights;  // [batch, heads, clusters, size], a zero behind each row of odd size
    const float *bias;     // [batch, heads, clusters]
    int64_t *labels;       // [batch, heads, tokens]
    int64_t batch, heads, count, size, clusters;  // clusters: a multiple of 8
    std::atomic<int64_t> next_segment, failures;
};

struct Centroids {
    Tokens tokens;
    const int64_t *labels;  // [batch, heads, tokens]
    float *centroids;       // [batch, heads, clusters, size]: old ones become new ones
    int64_t *sizes;         // [batch, heads, clusters]
    int64_t batch, heads, count, size, clusters;
    std::atomic<int64_t> next_head, failures;
};

struct Features {
    Tokens query, key, value;
    const float *start;            // [features, size]: where the search for axes begins
    float *query_made, *key_made;  // [batch, heads, tokens, features]
    int64_t pairs, heads, queries, keys, size;
    int64_t key_features;  // of a key's features, those of the key itself
    int64_t query_every, key_every, rounds;  // every which token is looked at to find axes
    double value_share;
    std::atomic<int64_t> next_side, failures;
};

struct Moments {
    Tokens tokens;
    const int64_t *order;      // [batch, heads, tokens]
    const int64_t *sizes;      // [batch, heads, clusters]
    float *means, *variances;  // [batch, heads, clusters, size]
    int64_t pairs, heads, count, size, clusters;
    std::atomic<int64_t> next_stretch, failures;
};

struct FarField {
    Tokens key, value;
    const float *query_means;  // [batch, heads, query blocks, size]
    const float *key_means;    // [batch, heads, key blocks, size]
    const int64_t *key_order;  // [batch, heads, keys]
    const int64_t *key_sizes;  // [batch, heads, key blocks]
    float *bias;               // [batch, heads, query blocks, key blocks]: log S
    void *values;              // the same shape, size: numbers as the tokens are
    float *lengths;            // of the values
    int64_t pairs, heads, keys, size, query_blocks, key_blocks;
    double scale;
    std::atomic<int64_t> next_stretch, failures;
};

struct Groups {
    const float *key_means, *value_means;  // [batch, heads, key blocks, size]
    const int64_t *sizes;                  // [batch, heads, key blocks]
    int64_t *labels;                       // the same shape: the group of each block
    float *group_keys, *group_values;      // [batch, heads, groups, size]
    int64_t pairs, size, blocks, groups, steps;
    std::atomic<int64_t> next_pair, failures;
};

struct Tiers {
    const float *bias, *lengths;  // [batch, heads, query blocks, key blocks]: log S, |V|
    const float *query_means, *query_variances;  // [batch, heads, query blocks, size]
    const float *key_means, *key_variances, *value_means, *value_variances;  // of key blocks
    const int64_t *sizes, *labels;               // [batch, heads, key blocks]; their groups, or null
    const float *group_keys, *group_values;      // [batch, heads, groups, size], or null
    const float *weights;                        // [heads]
    uint8_t *keep, *middle;           // [batch, heads, query blocks, key blocks]
    float *shared_bias;               // [batch, heads, query blocks, groups]
    void *shared_keys, *shared_values;  // the same shape, size: numbers as the tokens are
    int64_t pairs, heads, size, query_blocks, key_blocks, groups;
    double scale, tolerance;
    std::atomic<int64_t> next_piece, failures;
};

struct BlockSums {
    Tokens query;
    const float *keys_made;  // [batch, heads, keys, padded size], zeros behind each row
    float *sums;             // [batch, heads, query blocks, key blocks], zeros at first
    int64_t pairs, heads, queries, keys, size, block;
    double scale;
    std::atomic<int64_t> next_piece, failures;
};
