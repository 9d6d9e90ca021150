// Codes of a quantised cache as numbers; see kv_format.py for the formats.

#pragma once

#include "cache.h"
#include "vectors.h"

namespace radixkv {

typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

// The first `count` of kLanes bytes, then zeros.
inline Bytes load_bytes(const uint8_t* from, int count) {
  if (count >= kLanes) return load<Bytes>(from);
  Bytes bytes{};
  std::memcpy(&bytes, from, count);
  return bytes;
}

// Bytes as integers. GCC's own conversion of vectors takes them one by one.
inline Ints widened(Bytes codes) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepu8_epi32((__m128i)codes);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)codes));
#else
  return __builtin_convertvector(codes, Ints);
#endif
}
inline Ints widened(SignedBytes codes) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi32((__m128i)codes);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)codes));
#else
  return __builtin_convertvector(codes, Ints);
#endif
}

// The low eight bits of each.
inline Bytes narrowed(Ints values) {
#if defined(__AVX512F__)
  return (Bytes)_mm512_cvtepi32_epi8((__m512i)values);
#else
  return __builtin_convertvector(values, Bytes);
#endif
}

// Exact, also as bfloat16. For fp8 every code except NaN, including subnormal numbers.
template <Format format>
inline Floats decode(Bytes codes) {
  if constexpr (format == kInt8) {
    return __builtin_convertvector(widened((SignedBytes)codes), Floats);
  } else {
    const Words wide = (Words)widened(codes);
    const Floats magnitude = (Floats)((wide & 0x7fu) << 20) * 0x1p120f;
    return (Floats)((Words)magnitude | ((wide & 0x80u) << 24));
  }
}

// The low and the high four bits.
inline Floats low_codes(Bytes codes) { return __builtin_convertvector(widened(codes) & 15, Floats); }
inline Floats high_codes(Bytes codes) { return __builtin_convertvector(widened(codes) >> 4, Floats); }

// The first `count` of kLanes bfloat16, then zeros.
inline Floats load_scales(const uint16_t* from, int count) {
  if (count >= kLanes) return to_floats(load<Halves>(from));
  Halves halves{};
  std::memcpy(&halves, from, count * sizeof(uint16_t));
  return to_floats(halves);
}

// Words of two bfloat16 each.
inline Words pair(Floats low, Floats high) {
  return __builtin_convertvector(to_halves(low), Words) | (__builtin_convertvector(to_halves(high), Words) << 16);
}
inline Words pair_exactly(Floats low, Floats high) { return ((Words)low >> 16) | ((Words)high & 0xffff0000u); }

}  // namespace radixkv
