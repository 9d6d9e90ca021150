// What the kernels here offer each other. Template parameter T is the activations' type, float or Bfloat16.

#pragma once

#include "multiply.h"

namespace radixkv {

// Weights [num_outputs, num_inputs] in int8 as int8_linear.py packs them, and what is added to a row's products: [num_outputs] or
// null.
struct Int8Weight {
  const uint8_t* packed;
  const float* scales;
  const float* bias;
  int64_t num_inputs, num_outputs;
};

// out [num_rows, num_outputs] = x [num_rows, num_inputs] x weight + bias; with `adds`, that is added to what `out` holds.
template <class T, class Out>
void linear_int8(const T* x, int64_t num_rows, const Int8Weight& weight, Out* out, bool adds, int num_threads);

// One layer's shapes and what its attention computes. `softcap` 0: none. `sinks`: [Hq] or null.
struct Layer {
  int32_t num_heads, num_kv_heads, head_dim, v_head_dim, block_size;
  float scale, softcap;
  const float* sinks;
};

// A step's attention. Entries are query rows of q in an order in which every item's are adjacent.
struct Work {
  const int32_t* tokens;      // [entries] row of q and out
  const int32_t* positions;   // [entries] of the query
  const int32_t* first_keys;  // [entries] the first position that it sees
  const int32_t* items;       // [num_items, 5] first entry, past the last, first block in `blocks`, first key, past the last
  const int32_t* parts;       // [num_items] row of `part_out` of its first entry, or -1: what it finds is the answer
  const int32_t* blocks;      // block ids; an item's are those of its keys, in order
  const int32_t* merges;      // [num_merges, 3] entry, first and past the last in `merge_parts`
  const int32_t* merge_parts; // rows of `part_out`
  float* part_out;            // [part rows, Hq, Dv]
  float* part_lse;            // [part rows, Hq]
  int32_t num_items, num_merges, num_threads;
};

// out [tokens, Hq, Dv] from q [tokens, Hq, D] with strides in elements, and caches [blocks, block_size, Hkv, D or Dv].
template <class T>
void attend(const Layer& layer, const Work& work, const T* q, int64_t q_token, int64_t q_head, const T* k_cache,
            const T* v_cache, T* out);

}  // namespace radixkv
