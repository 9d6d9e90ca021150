// Paged attention on a CPU, over blocks where they lie and over the tree: native_attention.py tells it.
//
//   one task      = a kv head of one item: a run of keys, and the query rows that attend to it (entries x query heads of the kv head)
//   for 64 keys:    K goes into a panel [words of D][64 keys] and V into one [words of 64 keys][Dv], once for all rows
//     for 6 rows:   scores [6, 64] = Q x K panel;  running maximum, exp, sum;  out [6, Dv] += P x V panel
//   afterwards    = rows with several items merge their parts by log-sum-exp (base e)
//
// Words are those of multiply.h. Where the machine multiplies no bfloat16, it is widened as the panels are made.
// Panels end at absolute positions, and so do items, but for the end of what a row shares: its rounding depends on who shares it.
// Keys past a sequence's end enter neither score nor sum, whatever they hold.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "operations.h"

namespace radixkv {
namespace {

constexpr int kKeys = 64;   // of a panel
constexpr int kRows = 6;    // of a register tile
constexpr int kWide = kLanes == 16 ? 4 : 2;  // vectors across a register tile: 24 or 12 accumulators
constexpr int kLineBytes = 64;
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// c[R][width * kLanes] (+)= a[R][num_words] x b[num_words][b_stride].
template <class C, int R, int kWidth>
inline void multiply_tile(const typename C::Word* a, int a_stride, const float* b, int b_stride, float* c, int c_stride,
                          int num_words, bool adds) {
  Floats sums[R][kWidth];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kWidth; ++v) sums[r][v] = adds ? load<Floats>(c + r * c_stride + v * kLanes) : Floats{};
  multiply_add<C, R, kWidth>(a, a_stride, b, b_stride, num_words, sums);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kWidth; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
}

template <class C, int R>
void multiply_rows(const typename C::Word* a, int a_stride, const float* b, int b_stride, float* c, int c_stride, int num_words,
                   int num_columns, bool adds) {
  int column = 0;
  for (; column + kWide * kLanes <= num_columns; column += kWide * kLanes)
    multiply_tile<C, R, kWide>(a, a_stride, b + column, b_stride, c + column, c_stride, num_words, adds);
  for (; column < num_columns; column += kLanes)
    multiply_tile<C, R, 1>(a, a_stride, b + column, b_stride, c + column, c_stride, num_words, adds);
}

template <class C>
void multiply(int num_rows, const typename C::Word* a, int a_stride, const float* b, int b_stride, float* c, int c_stride,
              int num_words, int num_columns, bool adds) {
  switch (num_rows) {
    case 1: return multiply_rows<C, 1>(a, a_stride, b, b_stride, c, c_stride, num_words, num_columns, adds);
    case 2: return multiply_rows<C, 2>(a, a_stride, b, b_stride, c, c_stride, num_words, num_columns, adds);
    case 3: return multiply_rows<C, 3>(a, a_stride, b, b_stride, c, c_stride, num_words, num_columns, adds);
    case 4: return multiply_rows<C, 4>(a, a_stride, b, b_stride, c, c_stride, num_words, num_columns, adds);
    case 5: return multiply_rows<C, 5>(a, a_stride, b, b_stride, c, c_stride, num_words, num_columns, adds);
    default: return multiply_rows<C, 6>(a, a_stride, b, b_stride, c, c_stride, num_words, num_columns, adds);
  }
}

// `count` numbers as words, padded with zeros to `num_words`.
template <class T, class C>
void make_words(const T* from, int count, typename C::Word* to, int num_words) {
  if constexpr (C::kPerWord * sizeof(T) == sizeof(typename C::Word)) {
    std::memcpy(to, from, count * sizeof(T));
    std::memset(reinterpret_cast<char*>(to) + count * sizeof(T), 0, num_words * sizeof(typename C::Word) - count * sizeof(T));
  } else {
    for (int i = 0; i < num_words; ++i) to[i] = i < count ? as_float(from[i]) : 0.0f;
  }
}

// One thread's memory.
template <class C>
struct Scratch {
  using Word = typename C::Word;
  std::vector<Word> queries, weights;
  std::vector<float> keys, values, scores, out, highest, sums;

  void fit(int num_rows, int head_words, int v_columns) {
    const auto grow = [](auto& buffer, size_t size) {
      if (buffer.size() < size) buffer.resize(size);
    };
    grow(queries, size_t(num_rows) * head_words);
    grow(weights, size_t(kRows) * kKeys);
    grow(keys, size_t(head_words) * kKeys);
    grow(values, size_t(kKeys) * v_columns);
    grow(scores, size_t(kRows) * kKeys);
    grow(out, size_t(num_rows) * v_columns);
    grow(highest, num_rows);
    grow(sums, num_rows);
  }
};

template <class T>
class Attention {
  using C = Compute<T>;
  using Word = typename C::Word;

 public:
  Attention(const Layer& layer, const Work& work, const T* q, int64_t q_token, int64_t q_head, const T* k_cache, const T* v_cache,
            T* out)
      : layer_(layer), work_(work), q_(q), q_token_(q_token), q_head_(q_head), k_cache_(k_cache), v_cache_(v_cache), out_(out),
        group_(layer.num_heads / layer.num_kv_heads),
        head_words_(round_up(layer.head_dim, C::kPerWord) / C::kPerWord),
        v_columns_(round_up(layer.v_head_dim, kLanes)) {}

  void run() const {
    const int num_tasks = work_.num_items * layer_.num_kv_heads;
    const int num_merges = work_.num_merges;
    const int num_threads = std::max(1, std::min(work_.num_threads, num_tasks));
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
    {
      static thread_local Scratch<C> scratch;
#pragma omp for schedule(dynamic, 1)
      for (int task = 0; task < num_tasks; ++task)
        attend(work_.items + 5 * (task / layer_.num_kv_heads), work_.parts[task / layer_.num_kv_heads],
               task % layer_.num_kv_heads, scratch);
#pragma omp for schedule(static)
      for (int merge = 0; merge < num_merges; ++merge) merge_parts(work_.merges + 3 * merge);
    }
  }

 private:
  // The rows of an item are numbered entry by entry, and within one by query head.
  void attend(const int32_t* item, int part, int kv_head, Scratch<C>& scratch) const {
    const int first_entry = item[0], num_rows = (item[1] - item[0]) * group_;
    const int first_key = item[3], last_key = item[4];
    scratch.fit(num_rows, head_words_, v_columns_);
    for (int row = 0; row < num_rows; ++row)
      make_words<T, C>(query(first_entry + row / group_, kv_head * group_ + row % group_), layer_.head_dim,
                       scratch.queries.data() + size_t(row) * head_words_, head_words_);
    std::fill_n(scratch.out.data(), size_t(num_rows) * v_columns_, 0.0f);
    std::fill_n(scratch.highest.data(), num_rows, kNegativeInfinity);
    std::fill_n(scratch.sums.data(), num_rows, 0.0f);
    for (int key = first_key; key < last_key;) {
      const int end = std::min(last_key, (key / kKeys + 1) * kKeys);
      fill_panels(work_.blocks + item[2], first_key, key, end, kv_head, scratch);
      prefetch(work_.blocks + item[2], first_key, end, std::min(last_key, end + kKeys), kv_head);
      for (int row = 0; row < num_rows; row += kRows)
        attend_tile(first_entry, row, std::min(kRows, num_rows - row), key, end, scratch);
      key = end;
    }
    for (int row = 0; row < num_rows; ++row) finish(first_entry, row, part, kv_head, scratch);
  }

  const T* query(int entry, int head) const { return q_ + work_.tokens[entry] * q_token_ + head * q_head_; }

  // Calls `visit(i, row)` for the keys [key, end), `row` being the one of the caches' [slots * Hkv] rows where K and V lie, given
  // the item's blocks, whose first holds `first_key`.
  template <class Visit>
  void visit_rows(const int32_t* blocks, int first_key, int key, int end, int kv_head, Visit visit) const {
    const int block_size = layer_.block_size;
    blocks += key / block_size - first_key / block_size;
    int offset = key % block_size;
    for (int i = 0; key < end; offset = 0, ++blocks) {
      size_t row = (size_t(*blocks) * block_size + offset) * layer_.num_kv_heads + kv_head;
      for (; offset < block_size && key < end; ++offset, ++key, ++i, row += layer_.num_kv_heads) visit(i, row);
    }
  }

  // Asks for the next panel's rows while this one is computed: the processor does not guess where the next block lies.
  void prefetch(const int32_t* blocks, int first_key, int key, int end, int kv_head) const {
    visit_rows(blocks, first_key, key, end, kv_head, [this](int, size_t row) {
      prefetch_line_by_line(k_cache_ + row * layer_.head_dim, layer_.head_dim);
      prefetch_line_by_line(v_cache_ + row * layer_.v_head_dim, layer_.v_head_dim);
    });
  }

  static void prefetch_line_by_line(const T* from, int count) {
    for (int i = 0; i < count; i += kLineBytes / int(sizeof(T))) __builtin_prefetch(from + i);
  }

  void fill_panels(const int32_t* blocks, int first_key, int key, int end, int kv_head, Scratch<C>& scratch) const {
    const T* k_rows[kKeys];
    const T* v_rows[kKeys];
    const int count = end - key;
    visit_rows(blocks, first_key, key, end, kv_head, [&](int i, size_t row) {
      k_rows[i] = k_cache_ + row * layer_.head_dim;
      v_rows[i] = v_cache_ + row * layer_.v_head_dim;
    });
    for (int i = count; i < round_up(count, kLanes); ++i) k_rows[i] = k_rows[count - 1];
    for (int first = 0; first < count; first += kLanes) fill_keys(k_rows + first, scratch.keys.data() + first);
    fill_values(v_rows, count, scratch.values.data());
  }

  // kLanes keys: to[word * kKeys + lane].
  void fill_keys(const T* const* rows, float* to) const {
    Words tile[kLanes];
    int word = 0;
    for (; (word + kLanes) * C::kPerWord <= layer_.head_dim; word += kLanes) {
      if constexpr (C::kPerWord * sizeof(T) == sizeof(Word)) {
        load_transposed(rows, word * C::kPerWord, tile);
      } else {
        for (int lane = 0; lane < kLanes; ++lane) tile[lane] = words_of(rows[lane] + word * C::kPerWord);
        transpose(tile);
      }
      for (int lane = 0; lane < kLanes; ++lane) store(to + (word + lane) * kKeys, tile[lane]);
    }
    for (; word < head_words_; ++word)
      for (int lane = 0; lane < kLanes; ++lane) {
        Word value;
        make_words<T, C>(rows[lane] + word * C::kPerWord, std::min(C::kPerWord, layer_.head_dim - word * C::kPerWord), &value, 1);
        std::memcpy(to + word * kKeys + lane, &value, sizeof value);
      }
  }

  static Words words_of(const T* from) {
    if constexpr (C::kPerWord * sizeof(T) == 4) {
      return load<Words>(from);
    } else {
      const Floats floats = load_floats(from);
      return load<Words>(&floats);
    }
  }

  // to[word * v_columns_ + column]; of a word's keys past the last, zeros.
  void fill_values(const T* const* rows, int count, float* to) const {
    const int dim = layer_.v_head_dim;
    for (int key = 0; key < count; key += C::kPerWord, to += v_columns_) {
      int column = 0;
      if constexpr (C::kPerWord == 2) {
        const bool has_second = key + 1 < count;
        for (; column + 2 * kLanes <= dim; column += 2 * kLanes) {
          const Pairs first = load<Pairs>(rows[key] + column);
          const Pairs second = has_second ? load<Pairs>(rows[key + 1] + column) : Pairs{};
          store(to + column, interleave_low(first, second));
          store(to + column + kLanes, interleave_high(first, second));
        }
        for (; column + kLanes <= dim; column += kLanes)
          store(to + column, interleave(load<Halves>(rows[key] + column),
                                        has_second ? load<Halves>(rows[key + 1] + column) : Halves{}));
        for (; column < dim; ++column) {
          const uint32_t second = has_second ? uint32_t(rows[key + 1][column]) << 16 : 0;
          const uint32_t word = uint32_t(rows[key][column]) | second;
          std::memcpy(to + column, &word, sizeof word);
        }
      } else {
        for (; column + kLanes <= dim; column += kLanes) store(to + column, words_of(rows[key] + column));
        for (; column < dim; ++column) to[column] = as_float(rows[key][column]);
      }
      for (; column < v_columns_; ++column) to[column] = 0.0f;
    }
  }

  void attend_tile(int first_entry, int first_row, int num_rows, int key, int end, Scratch<C>& scratch) const {
    int lows[kRows], highs[kRows];
    bool sees_any = false;
    for (int r = 0; r < num_rows; ++r) {
      const int entry = first_entry + (first_row + r) / group_;
      lows[r] = std::max(key, work_.first_keys[entry]) - key;
      highs[r] = std::min(end, work_.positions[entry] + 1) - key;
      sees_any |= lows[r] < highs[r];
    }
    if (!sees_any) return;
    const int count = end - key, width = round_up(count, kLanes);
    multiply<C>(num_rows, scratch.queries.data() + size_t(first_row) * head_words_, head_words_, scratch.keys.data(), kKeys,
                scratch.scores.data(), kKeys, head_words_, width, false);
    const int num_words = (count + C::kPerWord - 1) / C::kPerWord;
    for (int r = 0; r < num_rows; ++r)
      weigh(scratch.scores.data() + r * kKeys, lows[r], highs[r], width, first_row + r, scratch,
            scratch.weights.data() + r * kKeys);
    multiply<C>(num_rows, scratch.weights.data(), kKeys, scratch.values.data(), v_columns_,
                scratch.out.data() + size_t(first_row) * v_columns_, v_columns_, num_words, v_columns_, true);
  }

  // Scores of keys [low, high) become weights relative to the row's highest score so far, others 0.
  void weigh(float* scores, int low, int high, int width, int row, Scratch<C>& scratch, Word* weights) const {
    const Floats lowest = splat(kNegativeInfinity);
    const bool sees_all = low <= 0 && high >= width;
    Floats top = lowest;
    for (int i = 0; i < width; i += kLanes) {
      Floats score = load<Floats>(scores + i) * layer_.scale;
      if (layer_.softcap > 0.0f)
        for (int lane = 0; lane < kLanes; ++lane) score[lane] = layer_.softcap * std::tanh(score[lane] / layer_.softcap);
      if (!sees_all) {
        const Ints number = lane_numbers() + i;
        score = (number >= low) & (number < high) ? score : lowest;
      }
      store(scores + i, score);
      top = max(top, score);
    }
    float* out = scratch.out.data() + size_t(row) * v_columns_;
    const float before = scratch.highest[row];
    const float now = std::max(before, highest(top));
    if (now > before && before > kNegativeInfinity) {
      const float factor = std::exp(before - now);
      scratch.sums[row] *= factor;
      for (int i = 0; i < v_columns_; i += kLanes) store(out + i, load<Floats>(out + i) * factor);
    }
    scratch.highest[row] = now;
    const float base = now > kNegativeInfinity ? now : 0.0f;
    Floats total{};
    for (int i = 0; i < width; i += kLanes) {
      const Floats weight = exp_of_negative(load<Floats>(scores + i) - base);
      total += weight;
      if constexpr (C::kPerWord == 2)
        store(reinterpret_cast<uint16_t*>(weights) + i, to_halves(weight));
      else
        store(weights + i, weight);
    }
    scratch.sums[row] += sum(total);
  }

  void finish(int first_entry, int row, int part, int kv_head, Scratch<C>& scratch) const {
    const int entry = first_entry + row / group_, head = kv_head * group_ + row % group_;
    const float* found = scratch.out.data() + size_t(row) * v_columns_;
    const float highest = scratch.highest[row];
    float total = scratch.sums[row];
    if (part < 0) {
      if (layer_.sinks) total += std::exp(layer_.sinks[head] - highest);
      answer(entry, head, found, 1.0f / total);
      return;
    }
    const size_t to = (size_t(part) + row / group_) * layer_.num_heads + head;
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    for (int i = 0; i < layer_.v_head_dim; ++i) work_.part_out[to * layer_.v_head_dim + i] = found[i] * factor;
    work_.part_lse[to] = highest + std::log(total);
  }

  void answer(int entry, int head, const float* found, float factor) const {
    T* to = out_ + (size_t(work_.tokens[entry]) * layer_.num_heads + head) * layer_.v_head_dim;
    int i = 0;
    for (; i + kLanes <= layer_.v_head_dim; i += kLanes) put(to + i, load<Floats>(found + i) * factor);
    for (; i < layer_.v_head_dim; ++i) put(to + i, found[i] * factor);
  }

  void merge_parts(const int32_t* merge) const {
    static thread_local std::vector<float> merged;
    const int dim = layer_.v_head_dim;
    merged.resize(dim);
    for (int head = 0; head < layer_.num_heads; ++head) {
      float top = layer_.sinks ? layer_.sinks[head] : kNegativeInfinity;
      for (int i = merge[1]; i < merge[2]; ++i) top = std::max(top, lse_of(i, head));
      float total = layer_.sinks ? std::exp(layer_.sinks[head] - top) : 0.0f;
      std::fill(merged.begin(), merged.end(), 0.0f);
      for (int i = merge[1]; i < merge[2]; ++i) {
        const float weight = std::exp(lse_of(i, head) - top);
        const float* part = work_.part_out + (size_t(work_.merge_parts[i]) * layer_.num_heads + head) * dim;
        total += weight;
        if (weight > 0.0f)
          for (int d = 0; d < dim; ++d) merged[d] += weight * part[d];
      }
      answer(merge[0], head, merged.data(), 1.0f / total);
    }
  }

  float lse_of(int index, int head) const {
    return work_.part_lse[size_t(work_.merge_parts[index]) * layer_.num_heads + head];
  }

  const Layer& layer_;
  const Work& work_;
  const T* q_;
  const int64_t q_token_, q_head_;
  const T* k_cache_;
  const T* v_cache_;
  T* out_;
  const int group_, head_words_, v_columns_;
};

}  // namespace

template <class T>
void attend(const Layer& layer, const Work& work, const T* q, int64_t q_token, int64_t q_head, const T* k_cache,
            const T* v_cache, T* out) {
  Attention<T>(layer, work, q, q_token, q_head, k_cache, v_cache, out).run();
}

template void attend(const Layer&, const Work&, const float*, int64_t, int64_t, const float*, const float*, float*);
template void attend(const Layer&, const Work&, const Bfloat16*, int64_t, int64_t, const Bfloat16*, const Bfloat16*, Bfloat16*);

extern "C" {

void radixkv_attend_float32(const Layer* layer, const Work* work, const float* q, int64_t q_token, int64_t q_head,
                            const float* k_cache, const float* v_cache, float* out) {
  attend(*layer, *work, q, q_token, q_head, k_cache, v_cache, out);
}

void radixkv_attend_bfloat16(const Layer* layer, const Work* work, const Bfloat16* q, int64_t q_token, int64_t q_head,
                             const Bfloat16* k_cache, const Bfloat16* v_cache, Bfloat16* out) {
  attend(*layer, *work, q, q_token, q_head, k_cache, v_cache, out);
}

}  // extern "C"
}  // namespace radixkv
