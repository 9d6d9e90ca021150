// Rows of K and V, rotated and quantised on their way into a cache; see rotation.py and kv_format.py for the formulas. Quantised rows
// equal those of kv_format.py bitwise; for fp8, if the errors of two scales differ by more than the rounding of their sums.
//
// A row is stored as whole vectors, zeros past its end: `padded(size)` numbers.

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "codes.h"

namespace radixkv {

constexpr int64_t padded(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

inline Floats magnitude(Floats x) { return (Floats)((Words)x & 0x7fffffffu); }

template <int by, size_t... lane>
inline Floats exchange(Floats v, std::index_sequence<lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(v, v, (lane ^ by)...);
#else
  return __builtin_shuffle(v, Words{(lane ^ by)...});
#endif
}

// Sums and differences of lanes `by` apart, for each power of two below `block`.
template <int by = kLanes / 2>
inline Floats turn_lanes(Floats v, int block) {
  if constexpr (by == 0) {
    return v;
  } else {
    if (by < block) {
      const Floats other = exchange<by>(v, std::make_index_sequence<kLanes>());
      v = (lane_numbers() & by) != 0 ? other - v : v + other;
    }
    return turn_lanes<by / 2>(v, block);
  }
}

// A row times the orthonormal Hadamard matrix, by sums and differences.
inline void rotate_row(float* row, int64_t size) {
  const int64_t block = size & -size;
  const float factor = float(1.0 / std::sqrt(double(block)));
  for (int64_t i = 0; i < size; i += kLanes) store(row + i, turn_lanes(load<Floats>(row + i) * factor, int(block)));
  for (int64_t half = kLanes; half < block; half *= 2)
    for (int64_t first = 0; first < size; first += 2 * half)
      for (int64_t i = first; i < first + half; i += kLanes) {
        const Floats low = load<Floats>(row + i), high = load<Floats>(row + i + half);
        store(row + i, low + high);
        store(row + i + half, low - high);
      }
}

constexpr float kLargest = 0x1p126f, kSmallestScale = 0x1p-100f;

// To the nearest integers, ties to even; for magnitudes below 2^22.
template <class F>
inline F nearest(F x) { return (x + 12582912.0f) - 12582912.0f; }  // 1.5 * 2^23: the fraction rounds away

// NaN and infinities become 0.
inline void make_finite(float* row, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats x = load<Floats>(row + i);
    const Floats finite = x - x == 0.0f ? x : Floats{};
    store(row + i, max(splat(-kLargest), finite > kLargest ? splat(kLargest) : finite));
  }
}

inline float largest_of(const float* row, int64_t size) {
  Floats top{};
  for (int64_t i = 0; i < size; i += kLanes) top = max(top, magnitude(load<Floats>(row + i)));
  return highest(top);
}

inline uint16_t scale_of(float value) { return to_half(std::max(value, kSmallestScale)); }

inline void put_bytes(uint8_t* to, int64_t count, Ints values) {
  const Bytes bytes = narrowed(values);
  std::memcpy(to, &bytes, std::min<int64_t>(count, kLanes));
}

inline Floats divided(const float* from, float scale, float bound) {
  const Floats x = load<Floats>(from) / scale;
  const Floats low = x < -bound ? splat(-bound) : x;
  return low > bound ? splat(bound) : low;
}

inline void quantise_int8(const float* row, int64_t size, uint8_t* codes, uint16_t* scales) {
  *scales = scale_of(largest_of(row, size) / 127.0f);
  const float scale = to_float(*scales);
  for (int64_t i = 0; i < size; i += kLanes)
    put_bytes(codes + i, size - i, __builtin_convertvector(nearest(divided(row + i, scale, 127.0f)), Ints));
}

struct E4m3 {
  Ints codes;
  Floats values;
};

// For magnitudes up to 448.
inline E4m3 to_e4m3(Floats x) {
  const Words bits = (Words)magnitude(x), sign = (Words)x & 0x80000000u;
  const Words rounded = (bits + 0x7ffffu + ((bits >> 20) & 1u)) & 0xfff00000u;
  const Floats steps = nearest(magnitude(x) * 0x1p9f);  // for magnitudes below 2^-6, which are multiples of 2^-9
  const Ints is_small = magnitude(x) < 0x1p-6f;
  const Words codes = is_small ? (Words)__builtin_convertvector(steps, Ints) : (rounded >> 20) - (120u << 3);
  const Words values = is_small ? (Words)(steps * 0x1p-9f) : rounded;
  return {(Ints)(codes | (sign >> 24)), (Floats)(values | sign)};
}

inline void quantise_fp8(const float* row, int64_t size, uint8_t* codes, uint16_t* scales) {
  constexpr int kPlaces = 8;
  const float largest = largest_of(row, size);
  float least = 0.0f;
  for (int place = 0; place < kPlaces; ++place) {
    const uint16_t scale = scale_of(largest * float(std::exp2(place / double(kPlaces)) / 448.0));
    const float factor = to_float(scale);
    Floats squares{};
    for (int64_t i = 0; i < size; i += kLanes) {
      const Floats error = (to_e4m3(divided(row + i, factor, 448.0f)).values * factor - load<Floats>(row + i)) / (largest + kSmallestScale);
      squares += error * error;
    }
    const float error = sum(squares);
    if (place == 0 || error < least) {
      least = error;
      *scales = scale;
    }
  }
  const float scale = to_float(*scales);
  for (int64_t i = 0; i < size; i += kLanes) put_bytes(codes + i, size - i, to_e4m3(divided(row + i, scale, 448.0f)).codes);
}

// The greatest bfloat16 that is not above `value`.
inline uint16_t floor_to_half(float value) {
  value += 0.0f;  // -0 becomes 0
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits >> 31 ? bits + 0xffffu : bits) >> 16);
}

// Codes of each group of channels, with a step and a lowest value; byte d then has the codes of d and d + size / 2.
inline void quantise_int4(const float* row, int64_t size, uint8_t* codes, uint16_t* scales) {
  static thread_local std::vector<uint8_t> unpacked;
  const int64_t half = size / 2, group = std::gcd(half, int64_t(16));
  unpacked.resize(size);
  for (int64_t first = 0; first < size; first += group, scales += 2) {
    const float* from = row + first;
    const auto [low, high] = std::minmax_element(from, from + group);
    scales[1] = floor_to_half(*low);
    const float lowest = to_float(scales[1]);
    scales[0] = scale_of((*high - lowest) / 15.0f);
    const float step = to_float(scales[0]);
    for (int64_t i = 0; i < group; ++i)
      unpacked[first + i] = uint8_t(std::min(std::max(nearest((from[i] - lowest) / step), 0.0f), 15.0f));
  }
  for (int64_t i = 0; i < half; ++i) codes[i] = uint8_t(unpacked[i] | unpacked[half + i] << 4);
}

// One thread's memory for the codes of a row.
struct CodedRow {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;

  // Non-finite values of `row` are replaced.
  void take(Format format, float* row, int64_t size, int64_t num_scales) {
    codes.resize(size);
    scales.resize(num_scales);
    make_finite(row, size);
    switch (format) {
      case kFp8: return quantise_fp8(row, size, codes.data(), scales.data());
      case kInt8: return quantise_int8(row, size, codes.data(), scales.data());
      default: return quantise_int4(row, size, codes.data(), scales.data());
    }
  }
};

// Stores a token's rotated key and value of one head in their slot of a quantised cache. Replaces non-finite values in both.
inline void put_quantised(const KvCache& cache, int64_t slot, int64_t head, float* key, float* value) {
  static thread_local CodedRow k, v;
  const Format format = Format(cache.format);
  k.take(format, key, cache.head_dim, cache.num_k_scales);
  v.take(format, value, cache.v_head_dim, cache.num_v_scales);
  CacheView<uint8_t>(cache).put(slot, head, k.codes.data(), v.codes.data());
  const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
  for (int64_t i = 0; i < cache.num_k_scales; ++i) k_scales(cache, block, head, i)[offset] = k.scales[i];
  for (int64_t i = 0; i < cache.num_v_scales; ++i) v_scales(cache, block, head, i)[offset] = v.scales[i];
}

}  // namespace radixkv
