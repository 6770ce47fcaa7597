// The CPU's kernels: what Python calls, for each kind of number.
//
// A kernel is called by all threads at once (`run_together`); each takes pieces of work until none is
// left, and one that finds no memory counts itself in `failures`.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "calls.h"
#include "crew.h"

#pragma GCC visibility push(hidden)  // what is not exported is inlined and called directly
#include "attention.h"
#include "block_sums.h"
#include "clusters.h"
#include "far_field.h"
#include "features.h"
#include "tiers.h"
#pragma GCC visibility pop

extern "C" {
void run_together(Kernel kernel, void *call, int64_t threads) {
    own_crew().run(kernel, call, threads);
}
int has_bfloat16_products() { return HAS_BFLOAT16_PRODUCTS; }
void powers_of_two(float *numbers, int64_t vectors) {  // for tests, in place
    for (int64_t i = 0; i < vectors * LANES; i += LANES)
        store(power_of_two(load(numbers + i)), numbers + i);
}
void logarithms(float *numbers, int64_t vectors) {  // for tests, in place
    for (int64_t i = 0; i < vectors * LANES; i += LANES)
        store(log2_from_one(load(numbers + i)), numbers + i);
}
void pack_float32(Attention *call) { pack<float>(*call); }
void pack_bfloat16(Attention *call) { pack<BFloat16>(*call); }
void attend_float32(Attention *call) { attend<float>(*call); }
void attend_bfloat16(Attention *call) { attend<BFloat16>(*call); }
void assign_float32(Assignment *call) { assign<float>(*call); }
void assign_bfloat16(Assignment *call) { assign<BFloat16>(*call); }
void update_centroids_float32(Centroids *call) { update_centroids<float>(*call); }
void update_centroids_bfloat16(Centroids *call) { update_centroids<BFloat16>(*call); }
void find_features_float32(Features *call) { find_features<float>(*call); }
void find_features_bfloat16(Features *call) { find_features<BFloat16>(*call); }
void find_moments_float32(Moments *call) { find_moments<float>(*call); }
void find_moments_bfloat16(Moments *call) { find_moments<BFloat16>(*call); }
void group_blocks_float32(Groups *call) { group_blocks(*call); }
void choose_tiers_float32(Tiers *call) { choose_tiers<float>(*call); }
void choose_tiers_bfloat16(Tiers *call) { choose_tiers<BFloat16>(*call); }
void see_blocks_float32(FarField *call) { see_blocks<float>(*call); }
void see_blocks_bfloat16(FarField *call) { see_blocks<BFloat16>(*call); }
void sum_blocks_float32(BlockSums *call) { sum_blocks<float>(*call); }
void sum_blocks_bfloat16(BlockSums *call) { sum_blocks<BFloat16>(*call); }
}
