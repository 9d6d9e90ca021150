// Vectors of floats of the machine's width, with what the kernels need beyond arithmetic. GCC's and Clang's vector types
// compile to AVX-512, AVX2, NEON or plain SSE, whatever the compiler was told the machine has.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace radixkv {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef uint16_t Pairs __attribute__((vector_size(kLanes * 4)));

template <class V>
inline V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
inline void store(void* to, V value) {
  std::memcpy(to, &value, sizeof(V));
}

inline Floats splat(float value) { return value - Floats{}; }

// a * b + c, rounded once where the machine can: said here, since the compiler may decide otherwise from one loop to the next.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

template <int by, size_t... lane>
inline Floats rotate(Floats v, std::index_sequence<lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(v, v, ((lane + by) % kLanes)...);
#else
  return __builtin_shuffle(v, Words{((lane + by) % kLanes)...});
#endif
}

// What `combine`, associative, makes of all lanes.
template <int by = kLanes / 2, class Combine>
inline float fold(Floats v, Combine combine) {
  if constexpr (by == 0)
    return v[0];
  else
    return fold<by / 2>(combine(v, rotate<by>(v, std::make_index_sequence<kLanes>())), combine);
}

inline float sum(Floats v) {
  return fold(v, [](Floats a, Floats b) { return a + b; });
}

inline float highest(Floats v) {
  return fold(v, [](Floats a, Floats b) { return max(a, b); });
}

inline Ints lane_numbers() {
  Ints lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  return lanes;
}

// e^x for x <= 0, to 2 units in the last place; exactly 0 below -87, where it is next to no number; NaN of NaN.
inline Floats exp_of_negative(Floats x) {
  const Floats clamped = max(x, splat(-87.0f));
  const Floats shifted = clamped * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: the fraction rounds away
  const Floats n = shifted - 12582912.0f;
  const Floats r = clamped - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
  Floats y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const Ints exponent = __builtin_convertvector(n, Ints) << 23;
  Ints bits;
  std::memcpy(&bits, &y, sizeof bits);
  bits += exponent;
  std::memcpy(&y, &bits, sizeof y);
  return x < splat(-87.0f) ? Floats{} : x == x ? y : x;
}

inline float to_float(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline Floats to_floats(Halves halves) {
  const Words bits = __builtin_convertvector(halves, Words) << 16;
  Floats value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// bfloat16 by rounding to nearest even; NaN stays NaN.
inline Halves to_halves(Floats value) {
#if defined(__AVX512BF16__)
  return (Halves)_mm512_cvtneps_pbh((__m512)value);
#endif
  Words bits;
  std::memcpy(&bits, &value, sizeof bits);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector(value == value ? rounded : quiet, Halves);
}

inline uint16_t to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return value == value ? uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) : uint16_t((bits >> 16) | 0x40u);
}

// (a0 b0 a1 b1 ...) from the lane `first` on.
template <int first, size_t... lane>
inline Words interleave_from(Words a, Words b, std::index_sequence<lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (lane % 2 * kLanes + first + lane / 2)...);
#else
  return __builtin_shuffle(a, b, Words{(lane % 2 * kLanes + first + lane / 2)...});
#endif
}

// Rows of kLanes words become columns, in log2(kLanes) rounds of interleaving the first half of the rows with the second.
inline void transpose(Words rows[kLanes]) {
  constexpr auto lanes = std::make_index_sequence<kLanes>();
  Words next[kLanes];
  for (int round = kLanes; round > 1; round /= 2) {
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave_from<0>(rows[i], rows[i + kLanes / 2], lanes);
      next[2 * i + 1] = interleave_from<kLanes / 2>(rows[i], rows[i + kLanes / 2], lanes);
    }
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// Of kLanes rows, the words from `offset` elements on become columns.
template <class T>
inline void load_transposed(const T* const* rows, int offset, Words columns[kLanes]) {
#if defined(__AVX512F__)
  // Four words of sixteen rows at a time, put in place as they are loaded: half of the shuffles are saved.
  for (int part = 0; part < 4; ++part) {
    const auto words = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset) + part); };
    __m512i four[4];
    for (int i = 0; i < 4; ++i) {
      four[i] = _mm512_castsi128_si512(words(i));
      four[i] = _mm512_inserti32x4(four[i], words(i + 4), 1);
      four[i] = _mm512_inserti32x4(four[i], words(i + 8), 2);
      four[i] = _mm512_inserti32x4(four[i], words(i + 12), 3);
    }
    const __m512i low[2] = {_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpacklo_epi32(four[2], four[3])};
    const __m512i high[2] = {_mm512_unpackhi_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[2], four[3])};
    columns[4 * part] = (Words)_mm512_unpacklo_epi64(low[0], low[1]);
    columns[4 * part + 1] = (Words)_mm512_unpackhi_epi64(low[0], low[1]);
    columns[4 * part + 2] = (Words)_mm512_unpacklo_epi64(high[0], high[1]);
    columns[4 * part + 3] = (Words)_mm512_unpackhi_epi64(high[0], high[1]);
  }
#else
  for (int lane = 0; lane < kLanes; ++lane) columns[lane] = load<Words>(rows[lane] + offset);
  transpose(columns);
#endif
}

// (a0 b0 a1 b1 ...) of two rows of twice kLanes 16-bit numbers, from the lane `first` on.
template <int first, size_t... lane>
inline Words interleave_from(Pairs a, Pairs b, std::index_sequence<lane...>) {
#if defined(__clang__)
  return (Words)__builtin_shufflevector(a, b, (lane % 2 * 2 * kLanes + first + lane / 2)...);
#else
  return (Words)__builtin_shuffle(a, b, Pairs{uint16_t(lane % 2 * 2 * kLanes + first + lane / 2)...});
#endif
}

// The first and the second half of that.
inline Words interleave_low(Pairs a, Pairs b) { return interleave_from<0>(a, b, std::make_index_sequence<2 * kLanes>()); }
inline Words interleave_high(Pairs a, Pairs b) { return interleave_from<kLanes>(a, b, std::make_index_sequence<2 * kLanes>()); }

// (a0 b0 a1 b1 ...) of two rows of kLanes 16-bit numbers each.
inline Words interleave(Halves a, Halves b) {
  return __builtin_convertvector(a, Words) | (__builtin_convertvector(b, Words) << 16);
}

}  // namespace radixkv
