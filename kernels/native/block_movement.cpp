// KV write, block copy and moves to and from rows of host memory on a CPU; see kv_write.py, block_copy.py and host_blocks.py.

#include "quantise.h"

namespace radixkv {

extern "C" {

// A step's K and V: [num_tokens, Hkv, .], with strides in elements over tokens and heads. Numbers of the cache's type, or rotated
// floats for a quantised cache.
struct KvTokens {
  const void *k, *v;
  int64_t k_token, k_head, v_token, v_head;
};

// Rows [., row_bytes] of host memory, each of a block's bytes in every tensor [num_blocks, width], one after the other.
struct HostRows {
  char* rows;
  int64_t row_bytes;
  char* const* tensors;
  const int64_t* widths;
  int64_t num_tensors;
};

}  // extern "C"

namespace {

template <class T>
void write_tokens(const KvCache& cache, const KvTokens& tokens, const int64_t* slots, int64_t num_tokens) {
  const CacheView<T> view(cache);
  const T *k = static_cast<const T*>(tokens.k), *v = static_cast<const T*>(tokens.v);
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t slot = slots[token];
    if (slot < 0) continue;
    for (int64_t head = 0; head < cache.num_kv_heads; ++head)
      view.put(slot, head, k + token * tokens.k_token + head * tokens.k_head, v + token * tokens.v_token + head * tokens.v_head);
  }
}

void quantise_tokens(const KvCache& cache, const KvTokens& tokens, const int64_t* slots, int64_t num_tokens) {
  const float *k = static_cast<const float*>(tokens.k), *v = static_cast<const float*>(tokens.v);
  std::vector<float> key(padded(cache.head_dim)), value(padded(cache.v_head_dim));
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (slots[token] < 0) continue;
    for (int64_t head = 0; head < cache.num_kv_heads; ++head) {
      std::copy_n(k + token * tokens.k_token + head * tokens.k_head, cache.head_dim, key.begin());
      std::copy_n(v + token * tokens.v_token + head * tokens.v_head, cache.v_head_dim, value.begin());
      put_quantised(cache, slots[token], head, key.data(), value.data());
    }
  }
}

template <class T>
void copy_block(const KvCache& cache, int64_t source, int64_t destination, int64_t num_tokens) {
  CacheView<T>(cache).copy(source, destination, num_tokens);
  for (int64_t head = 0; head < cache.num_kv_heads; ++head) {
    for (int64_t i = 0; i < cache.num_k_scales; ++i)
      std::memcpy(k_scales(cache, destination, head, i), k_scales(cache, source, head, i), num_tokens * sizeof(uint16_t));
    for (int64_t i = 0; i < cache.num_v_scales; ++i)
      std::memcpy(v_scales(cache, destination, head, i), v_scales(cache, source, head, i), num_tokens * sizeof(uint16_t));
  }
}

// Calls `run` with a number of the cache's element type.
template <class Run>
void with_element(const KvCache& cache, Run run) {
  switch (cache.element_size) {
    case 1: return run(uint8_t());
    case 2: return run(uint16_t());
    default: return run(uint32_t());
  }
}

}  // namespace

extern "C" {

// Writes each token to its slot; slots below 0 are skipped. Returns -1, or a slot outside the pool, and then has written nothing.
int64_t radixkv_write_kv(const KvCache* cache, const KvTokens* tokens, const int64_t* slots, int64_t num_tokens) {
  for (int64_t token = 0; token < num_tokens; ++token)
    if (slots[token] >= cache->num_blocks * cache->block_size) return slots[token];
  if (cache->format != kPlain)
    quantise_tokens(*cache, *tokens, slots, num_tokens);
  else
    with_element(*cache, [&](auto element) { write_tokens<decltype(element)>(*cache, *tokens, slots, num_tokens); });
  return -1;
}

// Copies the first slots of blocks to others, in each of the caches. Ids and counts are in range.
void radixkv_copy_blocks(const KvCache* caches, int64_t num_caches, const int64_t* source, const int64_t* destination,
                         const int64_t* num_tokens, int64_t num_copies) {
  for (const KvCache* cache = caches; cache < caches + num_caches; ++cache)
    for (int64_t i = 0; i < num_copies; ++i)
      with_element(*cache, [&](auto element) {
        copy_block<decltype(element)>(*cache, source[i], destination[i], num_tokens[i]);
      });
}

// Copies blocks to rows, or back, pair by pair. Ids are in range.
void radixkv_move_blocks(const HostRows* host, const int64_t* slots, const int64_t* blocks, int64_t count, int64_t to_rows) {
  for (int64_t i = 0; i < count; ++i) {
    char* row = host->rows + slots[i] * host->row_bytes;
    for (int64_t tensor = 0; tensor < host->num_tensors; ++tensor) {
      const int64_t width = host->widths[tensor];
      char* block = host->tensors[tensor] + blocks[i] * width;
      std::memcpy(to_rows ? row : block, to_rows ? block : row, width);
      row += width;
    }
  }
}

}  // extern "C"
}  // namespace radixkv
