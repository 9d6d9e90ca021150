// A layer's cache in the transposed layout; see kv_cache.py.
//
//   K [blocks, Hkv, D / w, block_size, w]    V [blocks, Hkv, block_size / w, Dv, w]      w = numbers in a word of 32 bits
//   in eight or four bits: codes, w = 1      K [.., D or D / 2, block_size]   V [.., block_size, Dv or Dv / 2]
//   with scales, bfloat16                    [blocks, Hkv, scales of a row, block_size] of K and of V

#pragma once

#include <cstdint>
#include <cstring>

namespace radixkv {

enum Format : int32_t { kPlain, kFp8, kInt8, kInt4 };

extern "C" {

// `element_size`: bytes of a number, 1 for one or two codes. `num_k_scales`, `num_v_scales` of a row: 0, 1, or two per group.
struct KvCache {
  void *k, *v;
  uint16_t *k_scales, *v_scales;
  int64_t num_kv_heads, head_dim, v_head_dim, block_size, num_blocks, num_k_scales, num_v_scales;
  int32_t element_size, format;
};

}  // extern "C"

using CacheWord = uint32_t;

// The numbers or codes of a cache, of type T.
template <class T>
class CacheView {
 public:
  static constexpr int kPerWord = sizeof(T) == 1 ? 1 : int(sizeof(CacheWord) / sizeof(T));

  explicit CacheView(const KvCache& cache)
      : k_(static_cast<T*>(cache.k)), v_(static_cast<T*>(cache.v)), k_rows_(cache.head_dim / (cache.format == kInt4 ? 2 : 1)),
        v_columns_(cache.v_head_dim / (cache.format == kInt4 ? 2 : 1)), num_kv_heads_(cache.num_kv_heads),
        block_size_(cache.block_size) {}

  // The part of a block for one head.
  T* keys(int64_t block, int64_t head) const { return k_ + (block * num_kv_heads_ + head) * k_rows_ * block_size_; }
  T* values(int64_t block, int64_t head) const { return v_ + (block * num_kv_heads_ + head) * v_columns_ * block_size_; }

  // Numbers of a key, of a value.
  int64_t k_rows() const { return k_rows_; }
  int64_t v_columns() const { return v_columns_; }

  // Stores a token's key and value of one head.
  void put(int64_t slot, int64_t head, const T* key, const T* value) const {
    const int64_t block = slot / block_size_, offset = slot % block_size_;
    T* k = keys(block, head) + offset * kPerWord;
    for (int64_t i = 0; i < k_rows_; i += kPerWord, k += block_size_ * kPerWord) std::memcpy(k, key + i, kPerWord * sizeof(T));
    T* v = values(block, head) + offset / kPerWord * v_columns_ * kPerWord + offset % kPerWord;
    for (int64_t i = 0; i < v_columns_; ++i, v += kPerWord) *v = value[i];
  }

  // Copies the first `num_tokens` slots of a block to another.
  void copy(int64_t source, int64_t destination, int64_t num_tokens) const {
    const int64_t whole = num_tokens / kPerWord * v_columns_ * kPerWord;
    for (int64_t head = 0; head < num_kv_heads_; ++head) {
      const T* k_from = keys(source, head);
      T* k_to = keys(destination, head);
      for (int64_t at = 0; at < k_rows_ * block_size_; at += block_size_ * kPerWord)
        std::memcpy(k_to + at, k_from + at, num_tokens * kPerWord * sizeof(T));
      const T* v_from = values(source, head);
      T* v_to = values(destination, head);
      std::memcpy(v_to, v_from, whole * sizeof(T));
      for (int64_t rest = 0; rest < num_tokens % kPerWord; ++rest)
        for (int64_t i = 0; i < v_columns_; ++i) v_to[whole + i * kPerWord + rest] = v_from[whole + i * kPerWord + rest];
    }
  }

 private:
  T *k_, *v_;
  int64_t k_rows_, v_columns_, num_kv_heads_, block_size_;
};

// Row `number` of the scales of a block's keys, or values, of one head: [block_size].
inline uint16_t* k_scales(const KvCache& cache, int64_t block, int64_t head, int64_t number) {
  return cache.k_scales + ((block * cache.num_kv_heads + head) * cache.num_k_scales + number) * cache.block_size;
}
inline uint16_t* v_scales(const KvCache& cache, int64_t block, int64_t head, int64_t number) {
  return cache.v_scales + ((block * cache.num_kv_heads + head) * cache.num_v_scales + number) * cache.block_size;
}

}  // namespace radixkv
