// The CPU's kernels: block-sparse attention, assignment to centroids, centroids.
// `backends/reference.py` and `clustering.py` define what they compute.
//
// A vector holds one number for each of LANES queries (or tokens). A key then enters as a broadcast
// number, wherever its row came from: kept rows need no sorting, blocks of any size leave no gaps,
// and a softmax or an arg-max never looks across a vector. Kept rows are copied a chunk at a time,
// and all queries of a segment see a chunk before the next one is copied.
//
// Every entry point is called by all threads at once; each takes pieces of work until none is left,
// and one that finds no memory counts itself in `failures`.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace {

// WIDTH * ROWS sums stay in registers: of 32, 16, or 16 that are narrow.
#if defined(__AVX512F__)
constexpr int LANES = 16, WIDTH = 3, ROWS = 8;
#elif defined(__AVX2__)
constexpr int LANES = 8, WIDTH = 3, ROWS = 4;
#else
constexpr int LANES = 4, WIDTH = 3, ROWS = 4;
#endif
constexpr int TILE = WIDTH * LANES;     // queries that are multiplied with a row together
constexpr int TILES = 4;
constexpr int SEGMENT = TILES * TILE;   // queries that share a copy of the kept rows
constexpr int CHUNK = 128;              // rows copied at a time
constexpr int AHEAD = 8;                // rows that memory is asked for before they are copied
constexpr float LOG2_E = 1.44269504f;

static_assert(8 % ROWS == 0, "clusters are filled up to a multiple of 8");

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));

struct BFloat16 {
    uint16_t bits;
};

// `svoo/cpp/calls.py` has the same structures.

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
    float *lse;                              // [batch, heads, queries], or null
    float *means;  // [batch, heads, key blocks, 2 * size + 1], or null: key, value, log2 of size
    const int64_t *query_order, *key_order;  // [batch, heads, tokens], or null
    const int64_t *query_sizes, *key_sizes;  // [batch, heads, blocks]
    const uint8_t *keep;                     // [batch, heads, query blocks, key blocks]
    const uint8_t *compensate;               // [batch, heads, key blocks], or null
    int64_t batch, heads, queries, keys, size, query_blocks, key_blocks;
    double scale;
    std::atomic<int64_t> next_mean, next_segment, failures;
};

struct Assignment {
    Tokens tokens;
    const float *weights;  // [batch, heads, clusters, size]
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

inline float to_float(float number) { return number; }

inline float to_float(BFloat16 number) {
    const uint32_t bits = uint32_t(number.bits) << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

inline void store(float number, float *place) { *place = number; }

inline void store(float number, BFloat16 *place) {  // to the nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    const bool is_nan = number != number;
    place->bits = is_nan ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline Vector all(float number) { return number - Vector{}; }

// 2 to the power of numbers <= 0, to a few units in the last place; below -126 it stays there.
inline Vector power_of_two(Vector x) {
    const Vector lowest = all(-126.0f), shift = all(12582912.0f);  // 1.5 * 2^23 leaves no fraction
    x = x < lowest ? lowest : x;
    const Vector shifted = x + shift;
    const Vector rest = x - (shifted - shift);
    Vector power = all(1.54035304e-4f);  // Taylor: ln(2)^k / k!
    power = power * rest + 1.33335581e-3f;
    power = power * rest + 9.61812911e-3f;
    power = power * rest + 5.55041087e-2f;
    power = power * rest + 2.40226507e-1f;
    power = power * rest + 6.93147181e-1f;
    power = power * rest + 1.0f;
    return power * (Vector)(((Bits)shifted << 23) + 0x3f800000u);
}

// sums[r][v] += <row r, query> for the queries of vector v.
// `queries` is [size, WIDTH], of which the first USED vectors of each row count.
template <int USED>
inline void multiply(
    Vector (&sums)[ROWS][USED], const float *rows, int64_t stride, const Vector *queries,
    int64_t size
) {
    for (int64_t d = 0; d < size; d++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < USED; v++)
                sums[r][v] += rows[r * stride + d] * queries[d * WIDTH + v];
}

// What one thread needs for a segment. Rows of `keys` and `values` are `padded` numbers apart.
class Segment {
public:
    explicit Segment(int64_t size) : size(size), padded((size + ROWS - 1) / ROWS * ROWS) {
        const int64_t tiles = padded * SEGMENT, chunk = padded * CHUNK;
        const int64_t numbers = 2 * tiles + 2 * SEGMENT + CHUNK * TILE + 2 * chunk + CHUNK;
        const int64_t bytes = (numbers * 4 + 63) / 64 * 64;
        memory = static_cast<float *>(aligned_alloc(64, bytes));
        if (!memory) return;
        memset(memory, 0, bytes);
        float *place = memory;
        const auto take = [&place](int64_t count) { return (place += count) - count; };
        queries = (Vector *)take(tiles);
        outputs = (Vector *)take(tiles);
        largest = (Vector *)take(SEGMENT);
        totals = (Vector *)take(SEGMENT);
        weights = (Vector *)take(CHUNK * TILE);
        keys = take(chunk);
        values = take(chunk);
        bias = take(CHUNK);
    }
    ~Segment() { free(memory); }
    Segment(const Segment &) = delete;

    bool has_memory() const { return memory; }

    // Begin with `count` queries; `row_of(q)` points to query q.
    template <typename RowOf>
    void begin(int count, float scale, RowOf row_of) {
        vectors = (count + LANES - 1) / LANES;
        memset((void *)outputs, 0, padded * SEGMENT * 4);
        for (int v = 0; v < vectors; v++) {
            largest[v] = all(-INFINITY);
            totals[v] = all(0);
        }
        float *numbers = (float *)queries;
        for (int q = 0; q < vectors * LANES; q++) {
            const auto *row = row_of(q < count ? q : 0);  // the last vector is filled up
            for (int64_t d = 0; d < size; d++) numbers[place(q, d)] = to_float(row[d]) * scale;
        }
    }

    // Let the queries attend to one more row; its logits, in powers of two, get a bias.
    template <typename Number>
    void add(const Number *key, const Number *value, float row_bias) {
        float *own_keys = keys + filled * padded, *own_values = values + filled * padded;
        for (int64_t d = 0; d < size; d++) own_keys[d] = to_float(key[d]);
        for (int64_t d = 0; d < size; d++) own_values[d] = to_float(value[d]);
        bias[filled] = row_bias;
        if (++filled == CHUNK) attend_chunk();
    }

    // No more rows come: make outputs of the sums.
    void finish() {
        attend_chunk();
        for (int v = 0; v < vectors; v++)
            for (int64_t d = 0; d < size; d++)
                outputs[(v / WIDTH * padded + d) * WIDTH + v % WIDTH] /= totals[v];
    }

    float output(int q, int64_t d) const { return ((const float *)outputs)[place(q, d)]; }

    float lse(int q) const {
        return (((const float *)largest)[q] + std::log2(((const float *)totals)[q])) / LOG2_E;
    }

    // Write for each of `tokens` queries the first row of the largest product plus bias.
    void assign(const Assignment &call, int64_t pair, int tokens, int64_t *labels) {
        const float *rows = call.weights + pair * call.clusters * size;
        const float *biases = call.bias + pair * call.clusters;
        for_tiles([&](auto used, int tile) {
            Integers best[WIDTH];
            assign_tile<used.value>(tile, rows, biases, call.clusters, best);
            for (int q = tile * TILE; q < tokens && q < (tile + 1) * TILE; q++)
                labels[q] = ((const int32_t *)best)[q % TILE];
        });
    }

private:
    const int64_t size, padded;
    float *memory;
    Vector *queries, *outputs;    // [TILES, padded, WIDTH]
    Vector *largest, *totals;     // [TILES, WIDTH]: of the logits seen, and of 2^(logit - largest)
    Vector *weights;              // [CHUNK, WIDTH]
    float *keys, *values, *bias;  // [CHUNK, padded], [CHUNK, padded], [CHUNK]
    int vectors = 0, filled = 0;  // of queries; rows of the chunk

    template <int USED>
    struct Used {
        static constexpr int value = USED;
    };

    int64_t place(int q, int64_t d) const { return (q / TILE * padded + d) * TILE + q % TILE; }

    void attend_chunk() {
        for (int row = filled; row % ROWS; row++) {  // rows that fill up the last piece
            memset(keys + row * padded, 0, size * sizeof *keys);
            bias[row] = -INFINITY;
        }
        for_tiles([this](auto used, int tile) { attend_tile<used.value>(tile); });
        filled = 0;
    }

    // Call `work` with each tile, and how many of its vectors are in use as a constant.
    template <typename Work>
    void for_tiles(Work work) {
        static_assert(WIDTH == 3, "one case for every number of vectors");
        for (int tile = 0; tile * WIDTH < vectors; tile++) {
            const int used = vectors - tile * WIDTH;
            if (used == 1) work(Used<1>(), tile);
            else if (used == 2) work(Used<2>(), tile);
            else work(Used<3>(), tile);
        }
    }

    template <int USED>
    void attend_tile(int tile) {
        const Vector *own = queries + tile * padded * WIDTH;
        Vector top[USED], total[USED], factor[USED];
        for (int v = 0; v < USED; v++) top[v] = largest[tile * WIDTH + v];
        for (int row = 0; row < filled; row += ROWS) {
            Vector sums[ROWS][USED];
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < USED; v++) sums[r][v] = all(bias[row + r]);
            multiply<USED>(sums, keys + row * padded, padded, own, size);
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < USED; v++) {
                    weights[(row + r) * WIDTH + v] = sums[r][v];
                    top[v] = sums[r][v] > top[v] ? sums[r][v] : top[v];
                }
        }

        for (int v = 0; v < USED; v++) {  // what a new largest logit makes of the sums so far
            factor[v] = power_of_two(largest[tile * WIDTH + v] - top[v]);
            total[v] = totals[tile * WIDTH + v] * factor[v];
        }
        for (int row = 0; row < filled; row++)
            for (int v = 0; v < USED; v++) {
                const Vector weight = power_of_two(weights[row * WIDTH + v] - top[v]);
                weights[row * WIDTH + v] = weight;
                total[v] += weight;
            }
        for (int v = 0; v < USED; v++) {
            largest[tile * WIDTH + v] = top[v];
            totals[tile * WIDTH + v] = total[v];
        }

        Vector *sum = outputs + tile * padded * WIDTH;
        for (int64_t d = 0; d < padded; d += ROWS) {
            Vector sums[ROWS][USED];
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < USED; v++) sums[r][v] = sum[(d + r) * WIDTH + v] * factor[v];
            for (int row = 0; row < filled; row++)
                for (int r = 0; r < ROWS; r++)
                    for (int v = 0; v < USED; v++)
                        sums[r][v] += values[row * padded + d + r] * weights[row * WIDTH + v];
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < USED; v++) sum[(d + r) * WIDTH + v] = sums[r][v];
        }
    }

    template <int USED>
    void assign_tile(
        int tile, const float *rows, const float *biases, int64_t clusters, Integers *best
    ) const {
        Vector top[USED];
        for (int v = 0; v < USED; v++) {
            top[v] = all(-INFINITY);
            best[v] = Integers{};
        }
        for (int64_t row = 0; row < clusters; row += ROWS) {
            Vector sums[ROWS][USED];
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < USED; v++) sums[r][v] = all(biases[row + r]);
            multiply<USED>(
                sums, rows + row * size, size, queries + tile * padded * WIDTH, size
            );
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < USED; v++) {
                    const auto better = sums[r][v] > top[v];  // strictly: the first of equals wins
                    top[v] = better ? sums[r][v] : top[v];
                    best[v] = better ? int32_t(row + r) - Integers{} : best[v];
                }
        }
    }
};

template <typename Number>
void average_block(const Attention &call, int64_t pair, int64_t block, int64_t start) {
    const int64_t b = pair / call.heads, h = pair % call.heads, size = call.size;
    const int64_t place = pair * call.key_blocks + block, rows = call.key_sizes[place];
    float *mean = call.means + place * (2 * size + 1);
    memset(mean, 0, 2 * size * sizeof *mean);
    for (int64_t row = start; row < start + rows; row++) {
        const int64_t token = call.key_order ? call.key_order[pair * call.keys + row] : row;
        const Number *key = call.key.row<Number>(b, h, token);
        const Number *value = call.value.row<Number>(b, h, token);
        for (int64_t d = 0; d < size; d++) mean[d] += to_float(key[d]);
        for (int64_t d = 0; d < size; d++) mean[size + d] += to_float(value[d]);
    }
    for (int64_t d = 0; d < 2 * size; d++) mean[d] /= rows ? rows : 1;
    mean[2 * size] = std::log2(float(rows));
}

template <typename Number>
void average(Attention &call) {
    const int64_t blocks = call.batch * call.heads * call.key_blocks;
    int64_t start = 0, next = call.next_mean++;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t pair = block / call.key_blocks, place = block % call.key_blocks;
        if (place == 0) start = 0;
        if (block == next) {
            average_block<Number>(call, pair, place, start);
            next = call.next_mean++;
        }
        start += call.key_sizes[block];
    }
}

// Write what a query block attends to, and return how many rows that is: key tokens, and for the
// mean of key block j the number -1 - j.
int64_t find_rows(const Attention &call, int64_t pair, int64_t block, int64_t *rows) {
    const uint8_t *keep = call.keep + (pair * call.query_blocks + block) * call.key_blocks;
    const int64_t *order = call.key_order ? call.key_order + pair * call.keys : nullptr;
    int64_t start = 0, found = 0;
    for (int64_t j = 0; j < call.key_blocks; j++) {
        const int64_t place = pair * call.key_blocks + j, size = call.key_sizes[place];
        if (keep[j])
            for (int64_t i = start; i < start + size; i++) rows[found++] = order ? order[i] : i;
        else if (size && call.compensate && call.compensate[place])
            rows[found++] = -1 - j;
        start += size;
    }
    return found;
}

// `count` queries of a block, the first of which is number `first` in block order.
template <typename Number>
void attend_segment(
    const Attention &call, Segment &segment, int64_t *rows, int64_t pair, int64_t block,
    int64_t first, int count
) {
    const int64_t b = pair / call.heads, h = pair % call.heads, size = call.size;
    const auto query_token = [&](int q) {
        return call.query_order ? call.query_order[pair * call.queries + first + q] : first + q;
    };
    segment.begin(count, float(call.scale * LOG2_E), [&](int q) {
        return call.query.row<const Number>(b, h, query_token(q));
    });
    const int64_t found = find_rows(call, pair, block, rows);
    for (int64_t i = 0; i < found; i++) {
        if (i + AHEAD < found && rows[i + AHEAD] >= 0) {
            const Number *key = call.key.row<Number>(b, h, rows[i + AHEAD]);
            const Number *value = call.value.row<Number>(b, h, rows[i + AHEAD]);
            for (int64_t d = 0; d < size; d += 64 / sizeof(Number)) {
                __builtin_prefetch(key + d);
                __builtin_prefetch(value + d);
            }
        }
        if (rows[i] >= 0) {
            const Number *key = call.key.row<Number>(b, h, rows[i]);
            segment.add(key, call.value.row<Number>(b, h, rows[i]), 0);
        } else {
            const int64_t place = pair * call.key_blocks - 1 - rows[i];
            const float *mean = call.means + place * (2 * size + 1);
            segment.add(mean, mean + size, mean[2 * size]);
        }
    }
    segment.finish();
    for (int q = 0; q < count; q++) {
        const int64_t token = query_token(q);
        Number *row = call.output.row<Number>(b, h, token);
        for (int64_t d = 0; d < size; d++) store(segment.output(q, d), row + d);
        if (call.lse) call.lse[pair * call.queries + token] = segment.lse(q);
    }
}

template <typename Number>
void attend(Attention &call) {
    Segment segment(call.size);
    const std::unique_ptr<int64_t[]> rows(new (std::nothrow) int64_t[call.keys + call.key_blocks]);
    if (!segment.has_memory() || !rows) {
        call.failures++;
        return;
    }
    const int64_t blocks = call.batch * call.heads * call.query_blocks;
    int64_t start = 0, seen = 0;  // queries of the head, segments of all: those before the block
    int64_t next = call.next_segment++;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t pair = block / call.query_blocks, place = block % call.query_blocks;
        const int64_t size = call.query_sizes[block], segments = (size + SEGMENT - 1) / SEGMENT;
        if (place == 0) start = 0;
        for (; next < seen + segments; next = call.next_segment++) {
            const int64_t offset = (next - seen) * SEGMENT, rest = size - offset;
            const int count = int(rest < SEGMENT ? rest : SEGMENT);
            attend_segment<Number>(call, segment, rows.get(), pair, place, start + offset, count);
        }
        seen += segments;
        start += size;
    }
}

template <typename Number>
void assign(Assignment &call) {
    Segment segment(call.size);
    if (!segment.has_memory()) {
        call.failures++;
        return;
    }
    const int64_t segments = (call.count + SEGMENT - 1) / SEGMENT;  // of a head
    const int64_t all_segments = call.batch * call.heads * segments;
    for (int64_t next; (next = call.next_segment++) < all_segments;) {
        const int64_t pair = next / segments, first = next % segments * SEGMENT;
        const int64_t rest = call.count - first;
        const int count = int(rest < SEGMENT ? rest : SEGMENT);
        segment.begin(count, 1, [&](int q) {
            return call.tokens.row<const Number>(pair / call.heads, pair % call.heads, first + q);
        });
        segment.assign(call, pair, count, call.labels + pair * call.count + first);
    }
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
            for (int64_t d = 0; d < size; d++) sums[label * size + d] += to_float(row[d]);
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

}  // namespace

extern "C" {
void average_float32(Attention *call) { average<float>(*call); }
void average_bfloat16(Attention *call) { average<BFloat16>(*call); }
void attend_float32(Attention *call) { attend<float>(*call); }
void attend_bfloat16(Attention *call) { attend<BFloat16>(*call); }
void assign_float32(Assignment *call) { assign<float>(*call); }
void assign_bfloat16(Assignment *call) { assign<BFloat16>(*call); }
void update_centroids_float32(Centroids *call) { update_centroids<float>(*call); }
void update_centroids_bfloat16(Centroids *call) { update_centroids<BFloat16>(*call); }
}
