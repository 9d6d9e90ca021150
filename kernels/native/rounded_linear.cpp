// A linear layer with weights of 8 or 4 bits and activations of 16-bit integers with a scale per 64 inputs; see rounded_linear.py.
//
//   one task   = 32 outputs, for all rows of x, a few rows at a time
//     for 64 inputs (32 for 4 bits):  sums = the exact integer sum of their products
//                                     totals += sums * (scale of the weights * scale of the row)
//
// Weights are read once per call, in order of memory; that is the bound of calls with few rows. Every total is summed alike whatever
// the rows.
// With AVX512_VNNI a weight is a byte, q + 128 or 0 to 15, and an activation two: 256 * high + low. So two instructions do 64
// products, starting with -128 * (sum of the activations), or -8 times it; with AMX besides, ten rows and more are multiplied in tiles,
// to the same sums. Elsewhere words of two 16-bit numbers are multiplied.
// For 4 bits, the low half of a byte has a weight of the first 64 bytes in the order for 8 bits, the high half one of the next 64.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "operations.h"
#include "tiles.h"

namespace radixkv {
namespace {

constexpr int kOutputs = 32;  // of a panel
constexpr int kInputs = kRoundedInputs;  // of a group
constexpr int kHalf = kInputs / 2;  // of a group for 4 bits
constexpr int kNibbles = 64;  // bytes, of two weights each, read at once
constexpr int kVectors = kOutputs / kLanes;
constexpr int64_t kCachedBytes = 512 << 10;  // of rows that are read once per panel, and stay in a cache meanwhile
constexpr int kFewRows = 16;
constexpr float kMost = 127 * 256;  // the largest activation: its bytes are -127 to 127 and -128 to 127

// float16 to float, including subnormals, excluding infinities.
inline Floats from_float16(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps((__m256i)load<Halves>(from));
#endif
  const Words bits = __builtin_convertvector(load<Halves>(from), Words);
  return (Floats)((bits & 0x7fffu) << 13 | (bits & 0x8000u) << 16) * 0x1p112f;
}

#if defined(__AVX512VNNI__)
constexpr int kPerWord = 4;  // adjacent inputs of an output
constexpr int kRows = 8, kByteRows = 4;  // multiplied together
constexpr bool kAsks = true;  // for memory ahead
constexpr int kAheadBytes = 6144;

void put_digits(Ints value, int first, RoundedGroup& to) {
  const Ints high = (value + 128) >> 8, low = value - (high << 8);
  auto* bytes = reinterpret_cast<int8_t*>(to.digits);
  store(bytes + first, __builtin_convertvector(high, SignedBytes));
  store(bytes + kInputs + first, __builtin_convertvector(low, SignedBytes));
}

inline __m512i splat_word(const void* from) { return _mm512_set1_epi32(load<int32_t>(from)); }

// Products of R rows with all groups of one panel; with `asks`, memory ahead is prefetched, for the first rows only.
template <int R, bool asks>
void multiply_tile(const RoundedGroup* x, int num_groups, const uint8_t* weights, const float* scales, Floats (*totals)[kVectors]) {
  static_assert(kVectors == 2);
  for (int group = 0; group < num_groups; ++group, scales += kOutputs) {
    __m512i highs[R][2], lows[R][2];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < 2; ++v) {
        highs[r][v] = _mm512_setzero_si512();
        lows[r][v] = _mm512_set1_epi32(-128 * (x[r * num_groups + group].sums[0] + x[r * num_groups + group].sums[1]));
      }
    for (int word = 0; word < kInputs / kPerWord; ++word, weights += 128) {
      if constexpr (asks) {
        __builtin_prefetch(weights + kAheadBytes, 0, 2);  // into the second-level cache: it allows more lines in flight
        __builtin_prefetch(weights + kAheadBytes + 64, 0, 2);
      }
      const __m512i bytes[2] = {_mm512_loadu_si512(weights), _mm512_loadu_si512(weights + 64)};
      for (int r = 0; r < R; ++r) {
        const auto* digits = reinterpret_cast<const int8_t*>(x[r * num_groups + group].digits) + word * kPerWord;
        const __m512i high = splat_word(digits), low = splat_word(digits + kInputs);
        for (int v = 0; v < 2; ++v) {
          highs[r][v] = _mm512_dpbusd_epi32(highs[r][v], bytes[v], high);
          lows[r][v] = _mm512_dpbusd_epi32(lows[r][v], bytes[v], low);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      const RoundedGroup& rounded = x[r * num_groups + group];
      for (int v = 0; v < 2; ++v) {
        const Ints sums = ((Ints)highs[r][v] << 8) + (Ints)lows[r][v];
        const Floats scale = load<Floats>(scales + v * kLanes) * rounded.scale;
        totals[r][v] = multiply_add(__builtin_convertvector(sums, Floats), scale, totals[r][v]);
      }
    }
  }
}

// Sums of R rows' products with the 32 x 32 weights of 4 bits from `weights` on, which are unpacked once for all rows, plus `factor`
// times the sum of the activations.
template <int R, bool asks>
inline void multiply_nibbles(const RoundedGroup* x, int num_groups, int half, const uint8_t* weights, int factor,
                             Floats (&sums)[R][kVectors]) {
  constexpr int kWords = kHalf / kPerWord;
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i bytes[kWords][2];
  for (int word = 0; word < kWords; ++word) {
    if constexpr (asks) __builtin_prefetch(weights + word * kNibbles + kAheadBytes, 0, 2);
    const __m512i both = _mm512_loadu_si512(weights + word * kNibbles);
    bytes[word][0] = _mm512_and_si512(both, mask);
    bytes[word][1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
  }
  for (int r = 0; r < R; ++r) {
    const auto* digits = reinterpret_cast<const int8_t*>(x[r * num_groups].digits) + half * kHalf;
    __m512i highs[2]{}, lows[2];
    for (__m512i& low : lows) low = _mm512_set1_epi32(factor * x[r * num_groups].sums[half]);
    for (int word = 0; word < kWords; ++word) {
      const __m512i high = splat_word(digits + word * kPerWord), low = splat_word(digits + kInputs + word * kPerWord);
      for (int v = 0; v < 2; ++v) {
        highs[v] = _mm512_dpbusd_epi32(highs[v], bytes[word][v], high);
        lows[v] = _mm512_dpbusd_epi32(lows[v], bytes[word][v], low);
      }
    }
    for (int v = 0; v < 2; ++v) sums[r][v] = (Floats)_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(highs[v], 8), lows[v]));
  }
}
#ifdef RADIXKV_TILES
constexpr int kLeastTileRows = 10;  // below that many, tiles are slower

using TileSums = int32_t[4][kTileRows][kLanes];

// As multiply_tile, of up to 16 rows, for bytes. The tiles multiply a group while the sums of the last one are scaled.
RADIXKV_WITH_TILES void multiply_in_tiles(const RoundedGroup* x, int num_groups, int num_rows, const uint8_t* weights,
                                          const float* scales, Floats (*totals)[kVectors]) {
  alignas(64) TileSums found[2];
  const auto multiply = [&](int group) RADIXKV_WITH_TILES {
    const auto* digits = reinterpret_cast<const int8_t*>(x[group].digits);
    multiply_digits(digits, digits + kInputs, num_groups * sizeof(RoundedGroup), weights + group * kInputs * kOutputs, found[group % 2]);
  };
  multiply(0);
  for (int group = 0; group < num_groups; ++group, scales += kOutputs) {
    if (group + 1 < num_groups) multiply(group + 1);
    const TileSums& sums = found[group % 2];
    const Floats scale[2] = {load<Floats>(scales), load<Floats>(scales + kLanes)};
    for (int r = 0; r < num_rows; ++r) {
      const RoundedGroup& rounded = x[r * num_groups + group];
      const int start = -128 * (rounded.sums[0] + rounded.sums[1]);
      for (int v = 0; v < 2; ++v) {
        const Ints total = (load<Ints>(sums[v][r]) << 8) + (load<Ints>(sums[2 + v][r]) + start);
        totals[r][v] = multiply_add(__builtin_convertvector(total, Floats), scale[v] * rounded.scale, totals[r][v]);
      }
    }
  }
}

// As multiply_in_tiles, for weights of 4 bits, which are unpacked once for all rows.
template <bool has_minimums>
RADIXKV_WITH_TILES void multiply_in_tiles(const RoundedGroup* x, int num_groups, int num_rows, const uint8_t* weights,
                                          const uint16_t* scales, const uint16_t* minimums, Floats (*totals)[kVectors]) {
  constexpr int kWords = kHalf / kPerWord, kFactor = has_minimums ? 0 : -8;
  alignas(64) TileSums found[2][2];
  alignas(64) uint8_t bytes[2][kWords][2][kNibbles];
  const __m512i mask = _mm512_set1_epi8(15);
  const auto multiply = [&](int group) RADIXKV_WITH_TILES {
    for (int half = 0; half < 2; ++half, weights += kWords * kNibbles) {
      for (int word = 0; word < kWords; ++word) {
        const __m512i both = _mm512_loadu_si512(weights + word * kNibbles);
        _mm512_store_si512(bytes[half][word][0], _mm512_and_si512(both, mask));
        _mm512_store_si512(bytes[half][word][1], _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
      }
      const auto* digits = reinterpret_cast<const int8_t*>(x[group].digits) + half * kHalf;
      multiply_digits(digits, digits + kInputs, num_groups * sizeof(RoundedGroup), bytes[half][0][0], found[group % 2][half]);
    }
  };
  multiply(0);
  for (int group = 0; group < num_groups; ++group) {
    if (group + 1 < num_groups) multiply(group + 1);
    Floats scale[2][2], least[2][2];
    for (int half = 0; half < 2; ++half)
      for (int v = 0; v < 2; ++v, scales += kLanes) {
        scale[half][v] = from_float16(scales);
        if constexpr (has_minimums) least[half][v] = from_float16(minimums + (2 * half + v) * kLanes);
      }
    if constexpr (has_minimums) minimums += 2 * kOutputs;
    for (int r = 0; r < num_rows; ++r) {
      const RoundedGroup& rounded = x[r * num_groups + group];
      for (int v = 0; v < 2; ++v) {
        Floats total;
        for (int half = 0; half < 2; ++half) {
          const TileSums& sums = found[group % 2][half];
          const Ints whole = (load<Ints>(sums[v][r]) << 8) + (load<Ints>(sums[2 + v][r]) + kFactor * rounded.sums[half]);
          const Floats value = __builtin_convertvector(whole, Floats);
          total = half ? multiply_add(value, scale[half][v], total) : value * scale[half][v];
          if constexpr (has_minimums) total = multiply_add(least[half][v], splat(float(rounded.sums[half])), total);
        }
        totals[r][v] = multiply_add(total, splat(rounded.scale), totals[r][v]);
      }
    }
  }
}
#endif
#else
constexpr int kPerWord = 2;
constexpr int kRows = kLanes == 16 ? 8 : 4, kByteRows = kRows;  // multiplied with weights that are widened once
constexpr bool kAsks = false;
constexpr int kTogether = kLanes == 16 ? 8 : kLanes == 8 ? 2 : 1;  // of these, rows whose sums stay in registers

void put_digits(Ints value, int first, RoundedGroup& to) {
  for (int lane = 0; lane < kLanes; ++lane) to.digits[first + lane] = int16_t(value[lane]);
}

// Sum of the products of the two numbers in each word.
inline Ints multiply_pairs(Ints a, Ints b) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

typedef int16_t Numbers __attribute__((vector_size(sizeof(Ints))));

// Bytes as 16-bit numbers. GCC's own conversion of vectors takes them one by one.
inline Numbers widened_numbers(const uint8_t* from) {
#if defined(__AVX512BW__)
  return (Numbers)_mm512_cvtepu8_epi16(load<__m256i>(from));
#elif defined(__AVX2__)
  return (Numbers)_mm256_cvtepu8_epi16(load<__m128i>(from));
#else
  typedef uint8_t Bytes __attribute__((vector_size(sizeof(Halves))));
  return __builtin_convertvector(load<Bytes>(from), Numbers);
#endif
}

// sums[R][kVectors] += products of R rows' digits from `first` on with weights: `weights(w, i, v)` has word w + i, i = 0 or 1, of
// outputs [v * kLanes, ...).
template <int R, class Weights>
inline void multiply_words(const RoundedGroup* x, int num_groups, int first, int num_words, Weights weights, Ints (*sums)[kVectors]) {
  constexpr int kNow = std::min(R, kTogether);
  Ints found[kNow][kVectors]{};
  for (int word = 0; word < num_words; word += 2) {
    Ints digits[kNow][2];
    for (int r = 0; r < kNow; ++r)
      for (int i = 0; i < 2; ++i) digits[r][i] = load<int32_t>(x[r * num_groups].digits + first + (word + i) * kPerWord) - Ints{};
    for (int v = 0; v < kVectors; ++v) {
      const Ints one = (Ints)weights(word, 0, v), other = (Ints)weights(word, 1, v);
      for (int r = 0; r < kNow; ++r) found[r][v] += multiply_pairs(one, digits[r][0]) + multiply_pairs(other, digits[r][1]);
    }
  }
  for (int r = 0; r < kNow; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] += found[r][v];
  if constexpr (R > kNow) multiply_words<R - kNow>(x + kNow * num_groups, num_groups, first, num_words, weights, sums + kNow);
}

// As multiply_words; for more rows than are multiplied together the weights are widened once.
template <int R, int kWords, class Weights>
inline void multiply_all(const RoundedGroup* x, int num_groups, int first, Weights weights, Ints (*sums)[kVectors]) {
  if constexpr (R <= kTogether) return multiply_words<R>(x, num_groups, first, kWords, weights, sums);
  Numbers wide[kWords][kVectors];
  for (int word = 0; word < kWords; word += 2)
    for (int v = 0; v < kVectors; ++v)
      for (int i = 0; i < 2; ++i) wide[word + i][v] = weights(word, i, v);
  multiply_words<R>(x, num_groups, first, kWords, [&](int word, int i, int v) { return wide[word + i][v]; }, sums);
}

template <int R, bool asks>
void multiply_tile(const RoundedGroup* x, int num_groups, const uint8_t* weights, const float* scales, Floats (*totals)[kVectors]) {
  constexpr int kWords = kInputs / kPerWord, kWordBytes = kOutputs * kPerWord;
  for (int group = 0; group < num_groups; ++group, ++x, weights += kInputs * kOutputs, scales += kOutputs) {
    Ints sums[R][kVectors]{};
    const auto words = [&](int word, int i, int v) {
      return widened_numbers(weights + (word + i) * kWordBytes + v * sizeof(Halves)) - int16_t(128);
    };
    multiply_all<R, kWords>(x, num_groups, 0, words, sums);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) {
        const Floats scale = load<Floats>(scales + v * kLanes) * x[r * num_groups].scale;
        totals[r][v] = multiply_add(__builtin_convertvector(sums[r][v], Floats), scale, totals[r][v]);
      }
  }
}

template <int R, bool asks>
inline void multiply_nibbles(const RoundedGroup* x, int num_groups, int half, const uint8_t* weights, int factor,
                             Floats (&sums)[R][kVectors]) {
  Ints found[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (Ints& vector : found[r]) vector = factor * x[r * num_groups].sums[half] - Ints{};
  const auto words = [&](int word, int i, int v) {
    const Numbers both = widened_numbers(weights + word / 2 * kNibbles + v * sizeof(Halves));
    return i ? both >> 4 : both & int16_t(15);
  };
  multiply_all<R, kHalf / kPerWord>(x, num_groups, half * kHalf, words, found);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = __builtin_convertvector(found[r][v], Floats);
}
#endif

// As multiply_tile, for weights of 4 bits.
template <int R, bool asks, bool has_minimums>
void multiply_tile(const RoundedGroup* x, int num_groups, const uint8_t* weights, const uint16_t* scales, const uint16_t* minimums,
                   Floats (*totals)[kVectors]) {
  constexpr int kFactor = has_minimums ? 0 : -8;
  for (int group = 0; group < num_groups; ++group, ++x) {
    Floats found[R][kVectors];
    for (int half = 0; half < 2; ++half, weights += kHalf * kOutputs / 2, scales += kOutputs) {
      Floats sums[R][kVectors];
      multiply_nibbles<R, asks>(x, num_groups, half, weights, kFactor, sums);
      for (int v = 0; v < kVectors; ++v) {
        const Floats scale = from_float16(scales + v * kLanes);
        for (int r = 0; r < R; ++r) found[r][v] = half ? multiply_add(sums[r][v], scale, found[r][v]) : sums[r][v] * scale;
        if constexpr (!has_minimums) continue;
        const Floats least = from_float16(minimums + v * kLanes);
        for (int r = 0; r < R; ++r) found[r][v] = multiply_add(least, splat(float(x[r * num_groups].sums[half])), found[r][v]);
      }
      if constexpr (has_minimums) minimums += kOutputs;
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) totals[r][v] = multiply_add(found[r][v], splat(x[r * num_groups].scale), totals[r][v]);
  }
}

// The bytes of `num_inputs` inputs and 32 outputs in the order of multiplication. `q` [32][k] from its first input on.
void pack(const uint8_t* q, int64_t k, int num_inputs, uint8_t* to) {
  for (int word = 0; word < num_inputs; word += kPerWord)
    for (int output = 0; output < kOutputs; ++output, to += kPerWord) std::memcpy(to, q + output * k + word, kPerWord);
}

// Writes the first `count` of one row's 32 sums.
template <class Out>
void write(const float* totals, int count, Out* to, bool adds) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats values = load<Floats>(totals + i);
    put(to + i, adds ? load_floats(to + i) + values : values);
  }
  for (; i < count; ++i) put(to + i, adds ? as_float(to[i]) + totals[i] : totals[i]);
}

// The weights of 32 outputs.
struct WeightPanel {
  const RoundedWeight& weight;
  int num_groups, first, count;  // outputs [first, first + count)
  int64_t first_scale;
  const uint8_t* packed;
  const uint16_t* minimums;

  WeightPanel(const RoundedWeight& weight, int panel)
      : weight(weight), num_groups(int(weight.num_inputs / kInputs)), first(panel * kOutputs),
        count(int(std::min<int64_t>(kOutputs, weight.num_outputs - first))) {
    const int64_t group = int64_t(panel) * num_groups;
    packed = weight.packed + group * kInputs * kOutputs * weight.bits / 8;
    first_scale = group * kOutputs * (weight.bits == 8 ? 1 : 2);
    minimums = weight.minimums ? weight.minimums + first_scale : nullptr;
  }

  const float* scales() const { return static_cast<const float*>(weight.scales) + first_scale; }
  const uint16_t* float16_scales() const { return static_cast<const uint16_t*>(weight.scales) + first_scale; }

  // Writes the rows' totals to rows of `out` that are `stride` apart.
  template <class Out>
  void write_rows(const Floats (*totals)[kVectors], int num_rows, Out* out, int64_t stride, bool adds) const {
    for (int r = 0; r < num_rows; ++r) {
      float row[kOutputs];
      for (int v = 0; v < kVectors; ++v) store(row + v * kLanes, totals[r][v]);
      if (weight.bias)
        for (int i = 0; i < count; ++i) row[i] += weight.bias[first + i];
      write(row, count, out + r * stride + first, adds);
    }
  }
};

// Products of the next rows, at most kRows, with one panel, to rows of `out` that are `stride` apart. Returns the number of rows.
template <bool asks, class Out, int R = kRows>
int multiply_rows(const RoundedGroup* x, int64_t num_rows, const WeightPanel& panel, Out* out, int64_t stride, bool adds) {
  if constexpr (R > 1)
    if (num_rows < R) return multiply_rows<asks, Out, R - 1>(x, num_rows, panel, out, stride, adds);
  const int num_groups = panel.num_groups;
  Floats totals[R][kVectors]{};
  if (panel.weight.bits == 8) {
    constexpr int kFirst = std::min(R, kByteRows);
    multiply_tile<kFirst, asks>(x, num_groups, panel.packed, panel.scales(), totals);
    if constexpr (R > kFirst) multiply_tile<R - kFirst, false>(x + kFirst * num_groups, num_groups, panel.packed, panel.scales(), totals + kFirst);
  } else if (panel.minimums) {
    multiply_tile<R, asks, true>(x, num_groups, panel.packed, panel.float16_scales(), panel.minimums, totals);
  } else {
    multiply_tile<R, asks, false>(x, num_groups, panel.packed, panel.float16_scales(), nullptr, totals);
  }
  panel.write_rows(totals, R, out, stride, adds);
  return R;
}

#ifdef RADIXKV_TILES
// As multiply_rows, of `num_rows` rows, at most 16; the first `num_done` have been written before.
template <class Out>
void multiply_rows_in_tiles(const RoundedGroup* x, int num_rows, int num_done, const WeightPanel& panel, Out* out, int64_t stride, bool adds) {
  const int num_groups = panel.num_groups;
  Floats totals[kTileRows][kVectors]{};
  if (panel.weight.bits == 8)
    multiply_in_tiles(x, num_groups, num_rows, panel.packed, panel.scales(), totals);
  else if (panel.minimums)
    multiply_in_tiles<true>(x, num_groups, num_rows, panel.packed, panel.float16_scales(), panel.minimums, totals);
  else
    multiply_in_tiles<false>(x, num_groups, num_rows, panel.packed, panel.float16_scales(), nullptr, totals);
  panel.write_rows(totals + num_done, num_rows - num_done, out + num_done * stride, stride, adds);
}
#endif

// Rounds the panel's 64 inputs of up to 32 rows of `w` [num_rows, k] to integers + 128 [32, 64] and scales [32].
void round_panel(const float* w, int64_t num_rows, int64_t k, uint8_t* q, float* scales) {
  for (int output = 0; output < kOutputs; ++output, w += k, q += kInputs) {
    float most = 0.0f, none = 0.0f;
    for (int i = 0; output < num_rows && i < kInputs; ++i) {
      most = std::max(most, std::abs(w[i]));
      none += w[i] - w[i];  // not 0 if one is infinite or NaN
    }
    const float scale = scales[output] = std::max(most / 127.0f, FLT_MIN) + none;
    for (int i = 0; i < kInputs; ++i) q[i] = output < num_rows && none == 0.0f ? uint8_t(int(std::nearbyint(w[i] / scale)) + 128) : 128;
  }
}

inline int num_panels_of(const RoundedWeight& weight) { return int((weight.num_outputs + kOutputs - 1) / kOutputs); }

// Products of the rows with all panels of the weight and its `next`: those of each thread of a team, which does not wait for the others.
template <class Out>
void multiply_panels(const RoundedGroup* x, int64_t num_rows, const RoundedWeight& weight, int num_panels, Out* out, int64_t stride,
                     bool adds) {
  const int64_t num_groups = weight.num_inputs / kInputs;
#ifdef RADIXKV_TILES
  const int tile_rows = int(std::min<int64_t>(num_rows, kTileRows));
  const bool in_tiles = num_rows >= kLeastTileRows && may_use_tiles();
  int shaped_bits = 0;
#endif
#pragma omp for schedule(static) nowait
  for (int panel = 0; panel < num_panels; ++panel) {
    const RoundedWeight* part = &weight;
    int own = panel;
    Out* to = out;
    for (; own >= num_panels_of(*part); part = part->next) {
      own -= num_panels_of(*part);
      to += part->num_outputs;
    }
    const WeightPanel weights(*part, own);
    int64_t row = 0;
#ifdef RADIXKV_TILES
    if (in_tiles) {
      if (part->bits != shaped_bits) shape_tiles(tile_rows, (part->bits == 8 ? kInputs : kHalf) / kPerWord);
      shaped_bits = part->bits;
      for (; row < num_rows; row += tile_rows) {
        const int64_t first = std::min(row, num_rows - tile_rows);  // the last rows are multiplied with some before them
        multiply_rows_in_tiles(x + first * num_groups, tile_rows, int(row - first), weights, to + first * stride, stride, adds);
      }
      continue;
    }
#endif
    if (num_rows) row = multiply_rows<kAsks>(x, num_rows, weights, to, stride, adds);
    while (row < num_rows)
      row += multiply_rows<false>(x + row * num_groups, num_rows - row, weights, to + row * stride, stride, adds);
  }
#ifdef RADIXKV_TILES
  if (shaped_bits) release_tiles();
#endif
}

}  // namespace

template <class T>
void round_row(const T* from, int64_t count, RoundedGroup* to) {
  for (const T* end = from + count; from < end; from += kInputs, ++to) {
    Floats most{}, none{};
    for (int i = 0; i < kInputs; i += kLanes) {
      const Floats values = load_floats(from + i);
      most = max(most, values < 0.0f ? -values : values);
      none += values - values;  // not 0 if one is infinite or NaN
    }
    const float largest = highest(most);
    to->sums[0] = to->sums[1] = 0;
    to->scale = largest / kMost + sum(none);
    if (!(largest > 0.0f) || to->scale != to->scale) {
      std::memset(to->digits, 0, sizeof to->digits);
      continue;
    }
    const float factor = kMost / largest;
    for (int half = 0; half < 2; ++half) {
      Ints total{};
      for (int i = half * kHalf; i < (half + 1) * kHalf; i += kLanes) {
        const Ints value = round_to_ints(load_floats(from + i) * factor);
        put_digits(value, i, *to);
        total += value;
      }
      for (int lane = 0; lane < kLanes; ++lane) to->sums[half] += total[lane];
    }
  }
}

template <class Out>
void linear_rounded(const RoundedGroup* x, int64_t num_rows, const RoundedWeight& weight, Out* out, bool adds) {
  int num_panels = 0;
  int64_t stride = 0;
  for (const RoundedWeight* part = &weight; part; part = part->next) {
    num_panels += num_panels_of(*part);
    stride += part->num_outputs;
  }
  const int64_t num_groups = weight.num_inputs / kInputs;
  const int64_t most_rows = std::max<int64_t>(kCachedBytes / int64_t(num_groups * sizeof(RoundedGroup)) / kFewRows, 1) * kFewRows;
  for (int64_t row = 0; row < num_rows; row += most_rows)
    multiply_panels(x + row * num_groups, std::min(most_rows, num_rows - row), weight, num_panels, out + row * stride, stride, adds);
#pragma omp barrier
}

template void round_row(const float*, int64_t, RoundedGroup*);
template void round_row(const Bfloat16*, int64_t, RoundedGroup*);
template void linear_rounded(const RoundedGroup*, int64_t, const RoundedWeight&, float*, bool);

namespace {

template <class T>
void round_and_multiply(const T* x, int64_t num_rows, const RoundedWeight& weight, RoundedGroup* rounded, T* out, int num_threads) {
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < num_rows; ++row)
      round_row(x + row * weight.num_inputs, weight.num_inputs, rounded + row * (weight.num_inputs / kInputs));
    linear_rounded(rounded, num_rows, weight, out, false);
  }
}

}  // namespace

extern "C" {

// `w` [n, k] with k a multiple of 64, rounded into `packed` [n rounded up to 32, k] and `scales` [that / 32, k / 64, 32].
void radixkv_round_int8(const float* w, int64_t n, int64_t k, uint8_t* packed, float* scales) {
  uint8_t q[kOutputs * kInputs];
  for (int64_t output = 0; output < n; output += kOutputs)
    for (int64_t input = 0; input < k; input += kInputs, packed += kInputs * kOutputs, scales += kOutputs) {
      round_panel(w + output * k + input, n - output, k, q, scales);
      pack(q, kInputs, kInputs, packed);
    }
}

// `q` [n, k] of 0 to 15, n a multiple of 32 and k of 64, into `packed` [n, k / 2].
void radixkv_pack_int4(const uint8_t* q, int64_t n, int64_t k, uint8_t* packed) {
  uint8_t bytes[kHalf * kOutputs];
  for (int64_t output = 0; output < n; output += kOutputs)
    for (int64_t input = 0; input < k; input += kHalf) {
      pack(q + output * k + input, k, kHalf, bytes);
      for (int i = 0; i < kHalf * kOutputs; i += 2 * kNibbles, packed += kNibbles)
        for (int j = 0; j < kNibbles; ++j) packed[j] = uint8_t(bytes[i + j] | bytes[i + kNibbles + j] << 4);
    }
}

// out [num_rows, num_outputs] of x [num_rows, num_inputs]. `rounded`: [num_rows, num_inputs / 64].
void radixkv_linear_float32(const float* x, int64_t num_rows, const RoundedWeight* weight, RoundedGroup* rounded, float* out,
                                 int32_t num_threads) {
  round_and_multiply(x, num_rows, *weight, rounded, out, num_threads);
}

void radixkv_linear_bfloat16(const Bfloat16* x, int64_t num_rows, const RoundedWeight* weight, RoundedGroup* rounded,
                                  Bfloat16* out, int32_t num_threads) {
  round_and_multiply(x, num_rows, *weight, rounded, out, num_threads);
}

}  // extern "C"
}  // namespace radixkv
