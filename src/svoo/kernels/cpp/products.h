// How numbers are multiplied: float32, or pairs of bfloat16 with float32 sums.
#pragma once

#include "vectors.h"

// Both keep DEPTH neighbouring numbers of a product's inner axis in one Element, 4 bytes wide.

struct Float32Products {
    static constexpr int DEPTH = 1;
    typedef float Element;
    typedef Vector Elements;  // one for each lane

    static Elements pack(const Vector *numbers) { return numbers[0]; }

    static Vector add_product(Vector sum, Element x, Elements y) { return sum + x * y; }

    static void store_row(Vector numbers, Element *row) { store(numbers, row); }
};

#if defined(__AVX512BF16__) || defined(EMULATE_BFLOAT16_PRODUCTS)
constexpr bool HAS_BFLOAT16_PRODUCTS = true;
#else
constexpr bool HAS_BFLOAT16_PRODUCTS = false;
#endif

// A product of two rounded numbers is exact in float32. Rounding moves a number by at most 2^-9 of
// itself: queries, keys, values that are bfloat16 not at all, weights always.
struct BFloat16Products {
    static constexpr int DEPTH = 2;
    typedef uint32_t Element;  // the first number in the low half
    typedef Bits Elements;

    static Elements pack(const Vector *numbers) {  // to the nearest, ties away from zero
        const Bits low = (Bits)numbers[0] + 0x8000u, high = (Bits)numbers[1] + 0x8000u;
        return low >> 16 | (high & 0xffff0000u);
    }

    static Vector add_product(Vector sum, Element x, Elements y) {
#if defined(__AVX512BF16__)
        const __m512bh both = (__m512bh)_mm512_set1_epi32(int32_t(x));
        return (Vector)_mm512_dpbf16_ps((__m512)sum, both, (__m512bh)y);
#else  // the same numbers where there is no such instruction: for tests
        float low, high;
        const uint32_t low_bits = x << 16, high_bits = x & 0xffff0000u;
        memcpy(&low, &low_bits, sizeof low);
        memcpy(&high, &high_bits, sizeof high);
        return sum + high * (Vector)(y & 0xffff0000u) + low * (Vector)(y << 16);
#endif
    }

    static void store_row(Vector numbers, Element *row) {
        store(numbers, reinterpret_cast<BFloat16 *>(row));
    }
};
