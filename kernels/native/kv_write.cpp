// KV write on a CPU: kv_write.py tells it.

#include <cstdint>
#include <cstring>
#include <initializer_list>

extern "C" {

// New K or V [num_tokens, Hkv, row_bytes] with byte strides over tokens and heads, and its cache [slots, Hkv, row_bytes].
struct KvRows {
  const char* rows;
  int64_t token_stride, head_stride, row_bytes;
  char* cache;
};

// Copies the rows of each token to its slot, for K and for V; slots below 0 are skipped. Answers -1, or a slot that is not below
// `num_slots`, and then has written nothing.
int64_t radixkv_write_kv(const KvRows* keys, const KvRows* values, const int64_t* slots, int64_t num_tokens, int64_t num_kv_heads,
                         int64_t num_slots) {
  for (int64_t token = 0; token < num_tokens; ++token)
    if (slots[token] >= num_slots) return slots[token];
  for (const KvRows* rows : {keys, values})
    for (int64_t token = 0; token < num_tokens; ++token) {
      if (slots[token] < 0) continue;
      char* to = rows->cache + slots[token] * num_kv_heads * rows->row_bytes;
      const char* from = rows->rows + token * rows->token_stride;
      for (int64_t head = 0; head < num_kv_heads; ++head)
        std::memcpy(to + head * rows->row_bytes, from + head * rows->head_stride, rows->row_bytes);
    }
  return -1;
}

}  // extern "C"
