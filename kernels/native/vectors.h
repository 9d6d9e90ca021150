// Vectors of floats of the machine's width, with functions beyond arithmetic. GCC's and Clang's vector types compile to AVX-512,
// AVX2, NEON or plain SSE, for the target given to the compiler.

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
typedef int8_t SignedBytes __attribute__((vector_size(kLanes)));

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

// a * b + c, rounded once if the machine can: explicit, since the compiler may choose differently from one loop to the next.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// To the nearest integers, ties to even; for magnitudes below 2^22.
inline Ints round_to_ints(Floats x) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32((__m256)x);
#else
  return __builtin_convertvector((x + 12582912.0f) - 12582912.0f, Ints);  // 1.5 * 2^23: the fraction rounds away
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

// All lanes combined by the associative `combine`.
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

// 2^x for x up to 126, to 2 units in the last place; nearly 0 below -126; NaN for NaN.
inline Floats exp2(Floats x) {
  x = max(splat(-126.0f), x);  // in this order NaN stays
#if defined(__AVX512F__)
  const Floats n = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Floats n = (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: the fraction rounds away
#endif
  const Floats f = x - n;
  Floats y = multiply_add(splat(1.3264727e-3f), f, splat(9.6715127e-3f));
  y = multiply_add(y, f, splat(5.5507337e-2f));
  y = multiply_add(y, f, splat(2.4022242e-1f));
  y = multiply_add(y, f, splat(6.9314698e-1f));
  y = multiply_add(y, f, splat(1.0f));
#if defined(__AVX512F__)
  return (Floats)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
  Ints bits;
  std::memcpy(&bits, &y, sizeof bits);
  bits += __builtin_convertvector(n, Ints) << 23;
  Floats scaled;
  std::memcpy(&scaled, &bits, sizeof scaled);
  return x == x ? scaled : x;
#endif
}

constexpr float kLog2E = 1.44269504088896341f;

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

}  // namespace radixkv
