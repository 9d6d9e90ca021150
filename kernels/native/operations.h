// Functions shared by the kernels here. Template parameter T is the activations' type, float or Bfloat16.

#pragma once

#include "cache.h"
#include "multiply.h"

namespace radixkv {

// Weights [num_outputs, num_inputs] as packed by rounded_linear.py, and `bias`, added to a row's products: [num_outputs] or null.
struct RoundedWeight {
  const uint8_t* packed;
  const void* scales;          // float per 64 inputs for 8 bits, float16 per 32 for 4 bits
  const uint16_t* minimums;    // for 4 bits, float16 like the scales; null: -8 times the scale
  const float* bias;
  const RoundedWeight* next;   // of the same inputs: the outputs after these, which are then whole panels; or null
  int64_t num_inputs, num_outputs;
  int32_t bits;
};

constexpr int kRoundedInputs = 64;

// 64 activations as integers times a scale: x ~ digits * scale. The order in `digits` is private to rounded_linear.cpp, which reads them
// by whole lines of the memory.
struct alignas(64) RoundedGroup {
  int16_t digits[kRoundedInputs];
  float scale;
  int32_t sums[2];  // of the first 32, and of the others
};

// `from` [count], a multiple of 64, to [count / 64] groups. An infinity or NaN makes its whole group NaN.
template <class T>
void round_row(const T* from, int64_t count, RoundedGroup* to);

// out [num_rows, outputs] = x [num_rows, num_inputs] x weight + bias, of the weight and its `next`; with `adds`, the result is added
// to `out`. Called by all threads of a team; done when they return.
template <class Out>
void linear_rounded(const RoundedGroup* x, int64_t num_rows, const RoundedWeight& weight, Out* out, bool adds);

// Attention of one layer. `softcap` 0: none. `sinks`: [Hq] or null.
struct Layer {
  int32_t num_heads;
  float scale, softcap;
  const float* sinks;
};

// Entries [first_entry, end_entry) attend to keys [first_key, end_key) of the row's table. Results go to rows of `part_out` from
// `part` on, or are the output if it is -1.
struct Item {
  int32_t first_entry, end_entry, row, first_key, end_key, part;
};

// A step's attention. Entries are query rows of q, ordered so that every item's are adjacent.
struct Work {
  const int32_t* tokens;      // [entries] row of q and out
  const int32_t* positions;   // [entries] of the query
  const int32_t* first_keys;  // [entries] first position that it sees
  const Item* items;
  const int32_t* part_starts; // [entries + 1] of each entry's parts in `merge_parts`
  const int32_t* merge_parts; // rows of `part_out`
  const int32_t* tables;      // [rows, table_stride] block ids
  float* part_out;            // [part rows, Hq, Dv]
  float* part_lse;            // [part rows, Hq]
  int32_t num_items, num_entries, num_parts, num_threads, table_stride;
};

// out [tokens, Hq, Dv] from q [tokens, Hq, D] with strides in elements. Called by all threads of a team, like `linear_rounded`.
template <class T>
void attend(const Layer& layer, const Work& work, const KvCache& cache, const T* q, int64_t q_token, int64_t q_head, T* out);

}  // namespace radixkv
