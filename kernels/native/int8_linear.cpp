// A linear layer whose weights are int8 with a scale per output and 64 inputs: int8_linear.py tells it.
//
//   one task      = 32 outputs, for all rows of x
//   for 64 inputs:  their 64 x 32 weights become words in a panel, still whole numbers, which every format here holds exactly
//     for 12 rows:  sums [12, 32] = x x panel;  total += sums * scales
//
// Weights are read once per call, at one byte each; that bounds calls of few rows. Every sum is cut alike whatever the rows.

#include <algorithm>
#include <vector>

#include "operations.h"

namespace radixkv {
namespace {

constexpr int kOutputs = 32;  // of a panel
constexpr int kInputs = 64;   // of a group
constexpr int kVectors = kOutputs / kLanes;
constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 1;  // with kVectors: up to 24 accumulators
constexpr int kAheadBytes = 4096;

// The 64 x 32 weights of a group in the order in which `unpack` reads them. `q` [32][k] from its first input on.
template <class C>
void pack(const int8_t* q, int64_t k, uint8_t* to) {
  for (int input = 0; input < kInputs; ++input)
    for (int output = 0; output < kOutputs; ++output) {
      const int8_t value = q[output * k + input];
      if constexpr (C::kPerWord == 2) {
        // 64 bytes hold two inputs of each output, ordered so that interleaving the halves of every 16 bytes yields words;
        // sign and magnitude apart, since a table looks the magnitude up.
        const int byte = output % 16 / 4 * 16 + output / 16 * 8 + output % 4 * 2 + input % 2;
        to[input / 2 * 64 + byte] = uint8_t(value < 0 ? -value | 0x80 : value);
      } else {
        to[input * kOutputs + output] = uint8_t(value);
      }
    }
}

#if defined(__AVX512BF16__)
// Bytes of the bfloat16 of 0 to 127, by magnitude.
struct Table {
  alignas(64) uint8_t low[128], high[128];
  Table() {
    for (int i = 0; i < 128; ++i) {
      low[i] = uint8_t(to_half(float(i)));
      high[i] = uint8_t(to_half(float(i)) >> 8);
    }
  }
};

void unpack(const uint8_t* from, float* panel, ByPair) {
  static const Table table;
  const __m512i low[2] = {_mm512_load_si512(table.low), _mm512_load_si512(table.low + 64)};
  const __m512i high[2] = {_mm512_load_si512(table.high), _mm512_load_si512(table.high + 64)};
  const __m512i sign = _mm512_set1_epi8(-128);
  for (int word = 0; word < kInputs / 2; ++word, from += 64, panel += kOutputs) {
    __builtin_prefetch(from + kAheadBytes, 0, 2);  // into the second-level cache: more lines may be under way
    const __m512i bytes = _mm512_loadu_si512(from);
    const __m512i lows = _mm512_permutex2var_epi8(low[0], bytes, low[1]);
    const __m512i highs =
        _mm512_or_si512(_mm512_permutex2var_epi8(high[0], bytes, high[1]), _mm512_and_si512(bytes, sign));
    _mm512_storeu_si512(panel, _mm512_unpacklo_epi8(lows, highs));
    _mm512_storeu_si512(panel + kLanes, _mm512_unpackhi_epi8(lows, highs));
  }
}
#endif

void unpack(const uint8_t* from, float* panel, ByFloat) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  for (int i = 0; i < kInputs * kOutputs; i += kLanes)
    store(panel + i, __builtin_convertvector(load<Bytes>(from + i), Floats));
}

template <class C, int R>
void add_group(const typename C::Word* x, int x_stride, const float* panel, const float* scales, float* totals, bool adds) {
  Floats sums[R][kVectors]{};
  multiply_add<C, R, kVectors>(x, x_stride, panel, kOutputs, kInputs / C::kPerWord, sums);
  for (int v = 0; v < kVectors; ++v) {
    const Floats scale = load<Floats>(scales + v * kLanes);
    for (int r = 0; r < R; ++r) {
      float* total = totals + r * kOutputs + v * kLanes;
      store(total, multiply_add(sums[r][v], scale, adds ? load<Floats>(total) : Floats{}));
    }
  }
}

template <class C, int R = kTileRows>
void add_group_of(int num_rows, const typename C::Word* x, int x_stride, const float* panel, const float* scales, float* totals,
                  bool adds) {
  if constexpr (R > 1)
    if (num_rows < R) return add_group_of<C, R - 1>(num_rows, x, x_stride, panel, scales, totals, adds);
  add_group<C, R>(x, x_stride, panel, scales, totals, adds);
}

// One row's 32 sums, or those of them that there are.
template <class Out>
void write(const float* totals, int count, Out* to, bool adds) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats values = load<Floats>(totals + i);
    put(to + i, adds ? load_floats(to + i) + values : values);
  }
  for (; i < count; ++i) put(to + i, adds ? as_float(to[i]) + totals[i] : totals[i]);
}

}  // namespace

template <class T, class Out>
void linear_int8(const T* x, int64_t num_rows, const Int8Weight& weight, Out* out, bool adds, int num_threads) {
  using C = Compute<T>;
  using Word = typename C::Word;
  if (num_rows == 0) return;
  const int64_t k = weight.num_inputs, n = weight.num_outputs;
  const int num_groups = int(k / kInputs), num_panels = int((n + kOutputs - 1) / kOutputs);
  const int x_stride = int(k) / C::kPerWord;
  std::vector<Word> widened;
  const Word* words = reinterpret_cast<const Word*>(x);
  if constexpr (C::kPerWord * sizeof(T) != sizeof(Word)) {
    widened.resize(num_rows * k);
    for (int64_t i = 0; i < num_rows * k; ++i) widened[i] = as_float(x[i]);
    words = widened.data();
  }
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    static thread_local std::vector<float> totals;
    if (totals.size() < size_t(num_rows) * kOutputs) totals.resize(num_rows * kOutputs);
    float panel[kInputs / C::kPerWord * kOutputs];
#pragma omp for schedule(static)
    for (int p = 0; p < num_panels; ++p) {
      for (int group = 0; group < num_groups; ++group) {
        const int64_t number = int64_t(p) * num_groups + group;
        unpack(weight.packed + number * kInputs * kOutputs, panel, C());
        for (int64_t row = 0; row < num_rows; row += kTileRows)
          add_group_of<C>(int(std::min<int64_t>(kTileRows, num_rows - row)),
                          words + row * x_stride + group * (kInputs / C::kPerWord), x_stride, panel,
                          weight.scales + number * kOutputs, totals.data() + row * kOutputs, group > 0);
      }
      const int first = p * kOutputs, count = int(std::min<int64_t>(kOutputs, n - first));
      for (int64_t row = 0; row < num_rows; ++row) {
        float* total = totals.data() + row * kOutputs;
        if (weight.bias)
          for (int i = 0; i < count; ++i) total[i] += weight.bias[first + i];
        write(total, count, out + row * n + first, adds);
      }
    }
  }
}

template void linear_int8(const float*, int64_t, const Int8Weight&, float*, bool, int);
template void linear_int8(const Bfloat16*, int64_t, const Int8Weight&, float*, bool, int);

extern "C" {

// `q` [n, k] with n a multiple of 32 and k of 64, into `packed` [n * k]; for activations of this type.
void radixkv_pack_int8_float32(const int8_t* q, int64_t n, int64_t k, uint8_t* packed) {
  for (int64_t output = 0; output < n; output += kOutputs)
    for (int64_t input = 0; input < k; input += kInputs, packed += kInputs * kOutputs)
      pack<Compute<float>>(q + output * k + input, k, packed);
}

void radixkv_pack_int8_bfloat16(const int8_t* q, int64_t n, int64_t k, uint8_t* packed) {
  for (int64_t output = 0; output < n; output += kOutputs)
    for (int64_t input = 0; input < k; input += kInputs, packed += kInputs * kOutputs)
      pack<Compute<Bfloat16>>(q + output * k + input, k, packed);
}

// out [num_rows, num_outputs] of x [num_rows, num_inputs].
void radixkv_linear_int8_float32(const float* x, int64_t num_rows, const Int8Weight* weight, float* out, int32_t num_threads) {
  linear_int8(x, num_rows, *weight, out, false, num_threads);
}

void radixkv_linear_int8_bfloat16(const Bfloat16* x, int64_t num_rows, const Int8Weight* weight, Bfloat16* out,
                                  int32_t num_threads) {
  linear_int8(x, num_rows, *weight, out, false, num_threads);
}

}  // extern "C"
}  // namespace radixkv
