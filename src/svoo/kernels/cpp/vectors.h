// Vectors of numbers: how wide they are here, how rows become vectors, powers of two.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

// WIDTH * ROWS sums stay in registers: of 32, 16, or 16 that are narrow.
#if defined(__AVX512F__)
constexpr int LANES = 16, WIDTH = 3, ROWS = 8;
#elif defined(__AVX2__)
constexpr int LANES = 8, WIDTH = 3, ROWS = 4;
#else
constexpr int LANES = 4, WIDTH = 3, ROWS = 4;
#endif
constexpr int TILE = WIDTH * LANES;  // queries that are multiplied with a row together
constexpr float LOG2_E = 1.44269504f, LOG_2 = 0.693147181f;

static_assert(8 % ROWS == 0, "clusters are filled up to a multiple of 8");

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

struct BFloat16 {
    uint16_t bits;
};

inline Vector all(float number) { return number - Vector{}; }

inline Vector larger(Vector x, Vector y) {  // y where either is not a number
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX2__)
    return (Vector)_mm256_max_ps((__m256)x, (__m256)y);
#else
    return x > y ? x : y;
#endif
}

inline bool any_above(Vector x, Vector y) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GT_OQ);
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)y, _CMP_GT_OQ));
#else
    bool found = false;
    for (int lane = 0; lane < LANES; lane++) found |= x[lane] > y[lane];
    return found;
#endif
}

inline Vector square_root(Vector x) {
#if defined(__AVX512F__)
    return (Vector)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (Vector)_mm256_sqrt_ps((__m256)x);
#else
    for (int lane = 0; lane < LANES; lane++) x[lane] = std::sqrt(x[lane]);
    return x;
#endif
}

inline float add_lanes(Vector x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
#endif
}

// 2 to the power of x <= 127, within 2.2e-7 of it (relative, over all floats: `test_cpp.py`);
// 2^-126 below -126. The polynomial is the best one of degree 5 with 2^0 = 1.
inline Vector power_of_two(Vector x) {
    x = larger(all(-126.0f), x);
#if defined(__AVX512F__)
    const Vector whole = (Vector)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
    const Vector shift = all(12582912.0f), shifted = x + shift;  // 1.5 * 2^23 leaves no fraction
    const Vector whole = shifted - shift;
#endif
    const Vector rest = x - whole;
    Vector power = all(1.32647273e-3f);
    power = power * rest + 9.67151299e-3f;
    power = power * rest + 5.55073358e-2f;
    power = power * rest + 2.40222424e-1f;
    power = power * rest + 6.93147004e-1f;
    power = power * rest + 1.0f;
#if defined(__AVX512F__)
    return (Vector)_mm512_scalef_ps((__m512)power, (__m512)whole);
#else
    return power * (Vector)(((Bits)shifted << 23) + 0x3f800000u);
#endif
}

// The logarithm to base 2 of x >= 1, within 3e-7 (of it, or of 1 where it is below).
inline Vector log2_from_one(Vector x) {
    const Bits half = Bits{} + 0x3f3504f3u;  // the square root of 1/2
    const Bits bits = (Bits)x - half, whole = bits & 0xff800000u;
    const Vector rest = (Vector)((bits & 0x007fffffu) + half);  // from there to the root of 2
    const Vector t = (rest - 1.0f) / (rest + 1.0f), square = t * t;
    Vector sum = all(2 * LOG2_E / 9);  // log2 rest = 2 LOG2_E (t + t^3 / 3 + t^5 / 5 + ...)
    sum = sum * square + 2 * LOG2_E / 7;
    sum = sum * square + 2 * LOG2_E / 5;
    sum = sum * square + 2 * LOG2_E / 3;
    sum = sum * square + 2 * LOG2_E;
    return sum * t + __builtin_convertvector((Integers)whole >> 23, Vector);
}

// The nearest bfloat16 in the low half of each lane, ties to even; not a number stays none.
inline Bits round_to_half(Vector x) {
    const Bits bits = (Bits)x, nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return x == x ? nearest : (Bits{} + 0x7fc0u);
}

inline Vector load(const float *numbers) {
    Vector x;
    memcpy(&x, numbers, sizeof x);
    return x;
}

inline Vector load(const BFloat16 *numbers) {
    Halves halves;
    memcpy(&halves, numbers, sizeof halves);
    return (Vector)(__builtin_convertvector(halves, Bits) << 16);
}

inline float as_float(float number) { return number; }

inline float as_float(BFloat16 number) {
    const uint32_t bits = uint32_t(number.bits) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

inline void store(Vector x, float *numbers) { memcpy(numbers, &x, sizeof x); }

inline void store(Vector x, BFloat16 *numbers) {
    const Halves halves = __builtin_convertvector(round_to_half(x), Halves);
    memcpy(numbers, &halves, sizeof halves);
}

// The numbers d .. d + LANES - 1 of a row of `size`, zeros behind its end.
template <typename Number>
inline Vector load_part(const Number *row, int64_t d, int64_t size) {
    if (d + LANES <= size) return load(row + d);
    Number part[LANES] = {};
    if (d < size) memcpy(part, row + d, (size - d) * sizeof *row);
    return load(part);
}

template <typename Number>
inline void store_part(Vector x, Number *row, int64_t d, int64_t size) {
    if (d + LANES <= size) return store(x, row + d);
    Number part[LANES];
    store(x, part);
    if (d < size) memcpy(row + d, part, (size - d) * sizeof *row);
}

// The same past the caches, for much memory that is not read soon.
template <typename Number>
inline void stream_part(Vector x, Number *row, int64_t d, int64_t size) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Number) == 4)
        if (d + LANES <= size && (uintptr_t)(row + d) % sizeof x == 0)
            return _mm512_stream_ps((float *)row + d, (__m512)x);
#elif defined(__AVX2__)
    if constexpr (sizeof(Number) == 4)
        if (d + LANES <= size && (uintptr_t)(row + d) % sizeof x == 0)
            return _mm256_stream_ps((float *)row + d, (__m256)x);
#endif
    store_part(x, row, d, size);
}

// Round float32 numbers as if they were stored as Number.
template <typename Number>
inline void round_row(float *row, int64_t size) {
    for (int64_t d = 0; d < size; d += LANES) {
        Number rounded[LANES];
        store(load_part(row, d, size), rounded);
        store_part(load(rounded), row, d, size);
    }
}

inline void prefetch(const void *memory, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)memory + i);
}

inline float largest_lane(Vector x) {
    float top = x[0];
    for (int lane = 1; lane < LANES; lane++) top = x[lane] > top ? x[lane] : top;
    return top;
}

inline float dot(const float *x, const float *y, int64_t size) {
    Vector sum = all(0);
    for (int64_t d = 0; d < size; d += LANES) sum += load_part(x, d, size) * load_part(y, d, size);
    return add_lanes(sum);
}

inline float add_up(const float *row, int64_t size) {
    Vector sum = all(0);
    for (int64_t d = 0; d < size; d += LANES) sum += load_part(row, d, size);
    return add_lanes(sum);
}

// squares = (x - y)^2, number by number
inline void square_apart(const float *x, const float *y, int64_t size, float *squares) {
    for (int64_t d = 0; d < size; d += LANES) {
        const Vector apart = load_part(x, d, size) - load_part(y, d, size);
        store_part(apart * apart, squares, d, size);
    }
}

// sum += row * factor
inline void add_scaled(const float *row, float factor, int64_t size, float *sum) {
    for (int64_t d = 0; d < size; d += LANES)
        store_part(load_part(sum, d, size) + load_part(row, d, size) * factor, sum, d, size);
}

// sum += row
template <typename Number>
inline void add_row(const Number *row, int64_t size, float *sum) {
    for (int64_t d = 0; d < size; d += LANES)
        store_part(load_part(sum, d, size) + load_part(row, d, size), sum, d, size);
}

// x[first], y[first], x[first + 1], y[first + 1], ... with `first` 0 or the middle
template <int FIRST, int... LANE>
inline Vector interleave(Vector x, Vector y, std::integer_sequence<int, LANE...>) {
#if defined(__clang__)
    return __builtin_shufflevector(x, y, (FIRST + LANE / 2 + LANE % 2 * LANES)...);
#else
    return __builtin_shuffle(x, y, Integers{(FIRST + LANE / 2 + LANE % 2 * LANES)...});
#endif
}

// LANES vectors as a square matrix, transposed: each round interleaves its two halves.
inline void transpose(Vector (&rows)[LANES]) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
    for (int round = 1; round < LANES; round *= 2) {
        Vector next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = interleave<0>(rows[i], rows[i + LANES / 2], lanes);
            next[2 * i + 1] = interleave<LANES / 2>(rows[i], rows[i + LANES / 2], lanes);
        }
        for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
}

// The sum of each row's lanes, the first row's in the first lane.
inline Vector add_columns(Vector (&rows)[LANES]) {
    transpose(rows);
    Vector sum = rows[0];
    for (int i = 1; i < LANES; i++) sum += rows[i];
    return sum;
}
