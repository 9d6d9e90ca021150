// Small matrix products in registers, shared by the kernels.

#pragma once

#include <type_traits>

#include "vectors.h"

namespace radixkv {

using Bfloat16 = uint16_t;

// A word is one multiply-add's share of the inner dimension: a float, or two bfloat16 on machines that multiply those
// (AVX512_BF16). Elsewhere bfloat16 is widened before multiplication. Sums are fp32.
struct ByFloat {
  static constexpr int kPerWord = 1;
  using Word = float;
  static Floats multiply_add(Floats sum, Word a, Floats b) { return radixkv::multiply_add(splat(a), b, sum); }
};

// Two bfloat16 in a word, widened when multiplied by two floats.
struct ByWidenedPair {
  static constexpr int kPerWord = 2;
  struct Word {
    float low, high;
  };
  static Floats multiply_add(Floats sum, Word a, Floats b) {
    const Words bits = (Words)b;
    sum = radixkv::multiply_add(splat(a.low), (Floats)(bits << 16), sum);
    return radixkv::multiply_add(splat(a.high), (Floats)(bits & 0xffff0000u), sum);
  }
};

#if defined(__AVX512BF16__)
struct ByPair {
  static constexpr int kPerWord = 2;
  using Word = uint32_t;
  static Floats multiply_add(Floats sum, Word a, Floats b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
  }
};
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, Bfloat16>, ByPair, ByFloat>;
template <class T>
using ComputeInPlace = Compute<T>;  // words as in memory
#else
template <class T>
using Compute = ByFloat;
template <class T>
using ComputeInPlace = std::conditional_t<std::is_same_v<T, Bfloat16>, ByWidenedPair, ByFloat>;
#endif

// sums[R][kWidth] += a[R][num_words] x b[num_words][kWidth vectors], `a` row by row.
template <class C, int R, int kWidth>
inline void multiply_add(const typename C::Word* a, int a_stride, const float* b, int b_stride, int num_words,
                         Floats (&sums)[R][kWidth]) {
  for (int k = 0; k < num_words; ++k) {
    Floats columns[kWidth];
    for (int v = 0; v < kWidth; ++v) columns[v] = load<Floats>(b + k * b_stride + v * kLanes);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kWidth; ++v) sums[r][v] = C::multiply_add(sums[r][v], a[r * a_stride + k], columns[v]);
  }
}

inline float as_float(float value) { return value; }
inline float as_float(Bfloat16 value) { return to_float(value); }
inline Floats load_floats(const float* from) { return load<Floats>(from); }
inline Floats load_floats(const Bfloat16* from) { return to_floats(load<Halves>(from)); }
inline void put(float* to, float value) { *to = value; }
inline void put(Bfloat16* to, float value) { *to = to_half(value); }
inline void put(float* to, Floats values) { store(to, values); }
inline void put(Bfloat16* to, Floats values) { store(to, to_halves(values)); }

}  // namespace radixkv
