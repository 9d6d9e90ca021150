// Panels: the keys and values of up to 64 positions in the form that the products of attention.cpp read.

#pragma once

#include <algorithm>
#include <vector>

#include "codes.h"
#include "multiply.h"

namespace radixkv {

constexpr int kKeys = 64;                  // of a panel
constexpr int kVectors = kKeys / kLanes;   // of keys in a panel
constexpr int kStride = kKeys + kLanes;    // of moved or decoded keys: the last vector may reach past the panel
constexpr int kLineBytes = 64;

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Keys [first_key, first_key + count) of an item. Word d of K's vector v is at columns[v] + d * stride, word w of V, a row, at rows[w].
// Strides in words. Pointers past `count` are valid, with other data. Scores are to be multiplied by `k_scales`, and weights, once
// summed, by `v_scales`: [kKeys], 0 past the last, or null.
struct Panel {
  int first_key, count, stride;
  const float* columns[kVectors];
  const float* rows[kKeys];
  const float *k_scales, *v_scales;
};

// Finds the panels of a layer's cache, for products in T. They are in place if possible; keys are moved together where a vector of
// them would cross a block's end; codes are decoded.
template <class T>
class Panels {
  static constexpr int kPerWord = CacheView<T>::kPerWord;

 public:
  // Memory of one thread.
  struct Memory {
    std::vector<float> keys, values, k_scales, v_scales;
  };

  explicit Panels(const KvCache& cache)
      : cache_(cache), numbers_(cache), codes_(cache), block_size_(int(cache.block_size)), head_words_(int(cache.head_dim) / kPerWord),
        v_head_dim_(int(cache.v_head_dim)), row_words_(round_up(v_head_dim_, kLanes)),
        lies_in_vectors_(cache.format == kPlain && block_size_ % kLanes == 0) {}

  bool is_plain() const { return cache_.format == kPlain; }

  // The panel of the table's sequence that holds `key`. It may start earlier, at the start of a vector or a word.
  void find(const int32_t* table, int key, int end_key, int head, Panel& panel) const {
    panel.first_key = key / kLanes * kLanes;
    panel.count = std::min(end_key, (key / kKeys + 1) * kKeys) - panel.first_key;
    panel.k_scales = panel.v_scales = nullptr;
    if (!is_plain()) return;
    panel.stride = block_size_;
    int vector = 0, word = 0;
    visit(table, panel, [&](int block, int offset, int count) {
      const float* keys = reinterpret_cast<const float*>(numbers_.keys(block, head)) + offset;
      const float* values = reinterpret_cast<const float*>(numbers_.values(block, head)) + size_t(offset / kPerWord) * v_head_dim_;
      for (int i = 0; i < count && vector < kVectors; i += kLanes) panel.columns[vector++] = keys + i;
      for (int i = 0; i < count; i += kPerWord, values += v_head_dim_) panel.rows[word++] = values;
    });
    for (; vector < kVectors; ++vector) panel.columns[vector] = panel.columns[0];
    for (; word < kKeys; ++word) panel.rows[word] = panel.rows[0];
  }

  // Moves or decodes data that cannot be read in place, and prefetches codes of the next panel.
  void prepare(const int32_t* table, int head, Panel& panel, int next_head, const Panel& next, Memory& memory) const {
    if (is_plain()) {
      if (!lies_in_vectors_) move_keys(table, head, panel, memory);
      if (panel.count % kPerWord) keep_low(panel, memory);
      return;
    }
    prefetch(table, next_head, next);
    switch (cache_.format) {
      case kFp8: return decode_panel<kFp8>(table, head, panel, memory);
      case kInt8: return decode_panel<kInt8>(table, head, panel, memory);
      default: return decode_panel<kInt4>(table, head, panel, memory);
    }
  }

 private:
  // Calls `visit(block, offset, count)` for the blocks that hold the panel's keys.
  template <class Visit>
  void visit(const int32_t* table, const Panel& panel, Visit visit) const {
    const int end = panel.first_key + panel.count;
    for (int key = panel.first_key, next; key < end; key = next) {
      next = std::min(end, (key / block_size_ + 1) * block_size_);
      visit(table[key / block_size_], key % block_size_, next - key);
    }
  }

  static void fit(std::vector<float>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }

  void move_keys(const int32_t* table, int head, Panel& panel, Memory& memory) const {
    fit(memory.keys, size_t(head_words_) * kStride);
    float* to = memory.keys.data();
    visit(table, panel, [&](int block, int offset, int count) {
      const float* keys = reinterpret_cast<const float*>(numbers_.keys(block, head)) + offset;
      for (int d = 0; d < head_words_; ++d)
        std::memcpy(to + size_t(d) * kStride, keys + size_t(d) * block_size_, count * sizeof(CacheWord));
      to += count;
    });
    read_moved(panel, memory);
  }

  static void read_moved(Panel& panel, const Memory& memory) {
    panel.stride = kStride;
    for (int v = 0; v < kVectors; ++v) panel.columns[v] = memory.keys.data() + v * kLanes;
  }

  // Keeps the first key's half of the last word's values; the second half is undefined.
  void keep_low(Panel& panel, Memory& memory) const {
    fit(memory.values, row_words_);
    const float*& last = panel.rows[panel.count / kPerWord];
    float* to = memory.values.data();
    std::memcpy(to, last, v_head_dim_ * sizeof(CacheWord));
    for (int i = 0; i < row_words_; i += kLanes) store(to + i, load<Words>(to + i) & 0xffffu);
    last = to;
  }

  void prefetch(const int32_t* table, int head, const Panel& panel) const {
    const auto ask = [](const uint8_t* from, int64_t count) {
      for (int64_t i = 0; i < count; i += kLineBytes) __builtin_prefetch(from + i, 0, 2);
    };
    visit(table, panel, [&](int block, int offset, int count) {
      for (int64_t d = 0; d < codes_.k_rows(); d += std::max(1, kLineBytes / block_size_))
        ask(codes_.keys(block, head) + d * block_size_ + offset, count);
      ask(codes_.values(block, head) + offset * codes_.v_columns(), count * codes_.v_columns());
    });
  }

  template <Format format>
  void decode_panel(const int32_t* table, int head, Panel& panel, Memory& memory) const {
    fit(memory.keys, size_t(head_words_) * kStride);
    fit(memory.values, size_t(kKeys / kPerWord) * row_words_ + kLanes);
    fit(memory.k_scales, kStride);
    fit(memory.v_scales, kStride);
    std::fill_n(memory.k_scales.data(), kStride, 0.0f);
    std::fill_n(memory.v_scales.data(), kStride, 0.0f);
    int at = 0;
    visit(table, panel, [&](int block, int offset, int count) {
      for (int i = 0; i < count; i += kLanes) {
        const int left = std::min(kLanes, count - i);
        if constexpr (format == kInt4) {
          decode_int4_keys(block, head, offset + i, left, memory.keys.data() + at + i);
        } else {
          decode_keys<format>(codes_.keys(block, head) + offset + i, left, memory.keys.data() + at + i);
          store(memory.k_scales.data() + at + i, load_scales(k_scales(cache_, block, head, 0) + offset + i, left));
          store(memory.v_scales.data() + at + i, load_scales(v_scales(cache_, block, head, 0) + offset + i, left));
        }
      }
      for (int i = 0; i < count; i += kPerWord) {
        const bool has_second = kPerWord == 2 && i + 1 < count;
        float* to = memory.values.data() + size_t((at + i) / kPerWord) * row_words_;
        if constexpr (format == kInt4)
          decode_int4_values(block, head, offset + i, has_second, to);
        else
          decode_values<format>(codes_.values(block, head) + size_t(offset + i) * codes_.v_columns(), has_second, to);
      }
      at += count;
    });
    read_moved(panel, memory);
    for (int word = 0; word < kKeys / kPerWord; ++word) panel.rows[word] = memory.values.data() + size_t(word) * row_words_;
    if constexpr (format != kInt4) {
      panel.k_scales = memory.k_scales.data();
      panel.v_scales = memory.v_scales.data();
    }
  }

  // `count` keys, up to a vector of them: to[word * kStride].
  template <Format format>
  void decode_keys(const uint8_t* from, int count, float* to) const {
    for (int word = 0; word < head_words_; ++word, from += kPerWord * block_size_, to += kStride) {
      const Floats low = decode<format>(load_bytes(from, count));
      if constexpr (kPerWord == 2)
        store(to, pair_exactly(low, decode<format>(load_bytes(from + block_size_, count))));
      else
        store(to, low);
    }
  }

  // The values of a word of keys.
  template <Format format>
  void decode_values(const uint8_t* from, bool has_second, float* to) const {
    for (int i = 0; i < v_head_dim_; i += kLanes) {
      const int left = v_head_dim_ - i;
      const Floats low = decode<format>(load_bytes(from + i, left));
      if constexpr (kPerWord == 2)
        store(to + i, pair_exactly(low, has_second ? decode<format>(load_bytes(from + v_head_dim_ + i, left)) : Floats{}));
      else
        store(to + i, low);
    }
  }

  // Byte d holds the codes of dimensions d and d + D / 2; a group of dimensions has a step and a lowest value per key.
  void decode_int4_keys(int block, int head, int offset, int count, float* to) const {
    const int half = int(codes_.k_rows()), group = int(2 * cache_.head_dim / cache_.num_k_scales);
    const uint8_t* from = codes_.keys(block, head) + offset;
    const auto scales = [&](int number) { return load_scales(k_scales(cache_, block, head, number) + offset, count); };
    for (int first = 0; first < half; first += group) {
      const int lower = first / group * 2, upper = (first + half) / group * 2;
      const Floats low_step = scales(lower), lowest = scales(lower + 1), high_step = scales(upper), highest = scales(upper + 1);
      for (int d = first; d < first + group; d += kPerWord) {
        const Bytes codes = load_bytes(from + d * block_size_, count);
        const Floats low = multiply_add(low_codes(codes), low_step, lowest), high = multiply_add(high_codes(codes), high_step, highest);
        float *low_to = to + d / kPerWord * kStride, *high_to = to + (d + half) / kPerWord * kStride;
        if constexpr (kPerWord == 2) {
          const Bytes next = load_bytes(from + (d + 1) * block_size_, count);
          store(low_to, pair(low, multiply_add(low_codes(next), low_step, lowest)));
          store(high_to, pair(high, multiply_add(high_codes(next), high_step, highest)));
        } else {
          store(low_to, low);
          store(high_to, high);
        }
      }
    }
  }

  // The values of a word of keys, the first at `offset`. Groups of columns have a step and a lowest value per key.
  void decode_int4_values(int block, int head, int offset, bool has_second, float* to) const {
    const int half = int(codes_.v_columns()), group = int(2 * cache_.v_head_dim / cache_.num_v_scales);
    const uint8_t* from = codes_.values(block, head) + size_t(offset) * half;
    for (int first = 0; first < v_head_dim_; first += group) {
      const uint16_t* steps = v_scales(cache_, block, head, first / group * 2) + offset;
      const uint16_t* lowest = v_scales(cache_, block, head, first / group * 2 + 1) + offset;
      const uint8_t* bytes = from + first % half;
      for (int i = 0; i < group; i += kLanes) {
        const auto numbers = [&](int key) {
          const Bytes codes = load_bytes(bytes + key * half + i, group - i);
          return multiply_add(first < half ? low_codes(codes) : high_codes(codes), splat(to_float(steps[key])),
                              splat(to_float(lowest[key])));
        };
        if constexpr (kPerWord == 2)
          store(to + first + i, pair(numbers(0), has_second ? numbers(1) : Floats{}));
        else
          store(to + first + i, numbers(0));
      }
    }
  }

  const KvCache& cache_;
  const CacheView<T> numbers_;
  const CacheView<uint8_t> codes_;
  const int block_size_, head_words_, v_head_dim_, row_words_;
  const bool lies_in_vectors_;
};

}  // namespace radixkv
