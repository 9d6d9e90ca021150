// Paged attention on a CPU, over blocks in place and over the tree; see native_attention.py.
//
//   one task      = an item: a run of keys, and the query rows that attend to it; of one kv head (entries x query heads of the kv head),
//                   or of all kv heads within a panel if rows are few: memory is then read sequentially
//   for 64 keys:    a panel: addresses in the blocks of K's vectors, keys across, and of V's rows, columns across
//     for 6 rows:   scores [6, 64] = Q x K panel;  running maximum, exp, sum;  out [6, Dv] += P x V panel
//   afterwards    = parts of rows with several items are merged by log-sum-exp (base 2)
//
// Panels start and end at absolute positions, and so do items, except at the end of a shared run: a row's rounding depends on the
// rows that share its blocks, and on nothing else in the batch.
// Keys past a sequence's end enter neither score nor sum, whatever their values.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "operations.h"
#include "panel.h"

namespace radixkv {
namespace {

constexpr int kRows = 6;    // of a register tile
constexpr int kWide = kLanes == 16 ? 4 : 2;  // vectors across a register tile: 24 or 12 accumulators
constexpr int kItemsEach = 4;  // items per thread from which an item's heads are not split among threads
constexpr float kSlack = 8.0f;  // weights are at most 2^8
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

inline bool exceeds(Floats values, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)values, _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
  return highest(values) > bound;
#endif
}

// The first `count` numbers of a vector, then zeros.
inline Floats load_first(const float* from, int count) {
  Floats value{};
  std::memcpy(&value, from, count * sizeof(float));
  return value;
}

// scores[R][kWidth vectors] = q[R][num_words] x the panel's vectors from `first` on. With `asks`, those of `next` are prefetched
// meanwhile: the processor cannot predict the address of the next block. Prefetched into the second-level cache, since the first has
// few lines in flight: blocks are read at the speed of one run of memory, and at half of it if prefetched into the first.
template <class C, int R, int kWidth, bool asks>
inline void score_tile(const typename C::Word* q, int num_words, const Panel& panel, const Panel& next, int first, float* scores) {
  Floats sums[R][kWidth]{};
  for (int d = 0; d < num_words; ++d) {
    Floats keys[kWidth];
    for (int v = 0; v < kWidth; ++v) keys[v] = load<Floats>(panel.columns[first + v] + size_t(d) * panel.stride);
    if constexpr (asks)
      for (int v = 0; v < kWidth; ++v) __builtin_prefetch(next.columns[first + v] + size_t(d) * next.stride, 0, 2);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kWidth; ++v) sums[r][v] = C::multiply_add(sums[r][v], q[r * num_words + d], keys[v]);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kWidth; ++v) store(scores + r * kKeys + (first + v) * kLanes, sums[r][v]);
}

// out[R][kWidth vectors] += weights[R][words of keys] x the panel's values, from `column` on; without `whole`, one vector, of which
// `num_left` columns exist.
template <class C, int R, int kWidth, bool asks, bool whole = true>
inline void add_values_tile(const typename C::Word* weights, const Panel& panel, const Panel& next, int column, float* out,
                            int out_stride, int num_left = kLanes) {
  Floats sums[R][kWidth];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kWidth; ++v) sums[r][v] = load<Floats>(out + r * out_stride + column + v * kLanes);
  const int num_words = round_up(panel.count, C::kPerWord) / C::kPerWord;
  for (int w = 0; w < num_words; ++w) {
    Floats values[kWidth];
    const float* row = panel.rows[w] + column;
    for (int v = 0; v < kWidth; ++v) values[v] = whole ? load<Floats>(row + v * kLanes) : load_first(row, num_left);
    if constexpr (asks)
      for (int v = 0; v < kWidth; ++v) __builtin_prefetch(next.rows[w] + column + v * kLanes, 0, 2);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kWidth; ++v)
        sums[r][v] = C::multiply_add(sums[r][v], weights[r * (kKeys / C::kPerWord) + w], values[v]);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kWidth; ++v) store(out + r * out_stride + column + v * kLanes, sums[r][v]);
}

template <class C, int R, bool asks>
void score_rows(const typename C::Word* q, int num_words, const Panel& panel, const Panel& next, float* scores) {
  const int num_vectors = round_up(panel.count, kLanes) / kLanes;
  int v = 0;
  for (; v + kWide <= num_vectors; v += kWide) score_tile<C, R, kWide, asks>(q, num_words, panel, next, v, scores);
  for (; v < num_vectors; ++v) score_tile<C, R, 1, asks>(q, num_words, panel, next, v, scores);
}

template <class C, int R, bool asks>
void add_values_rows(const typename C::Word* weights, const Panel& panel, const Panel& next, int num_columns, float* out,
                     int out_stride) {
  int column = 0;
  for (; column + kWide * kLanes <= num_columns; column += kWide * kLanes)
    add_values_tile<C, R, kWide, asks>(weights, panel, next, column, out, out_stride);
  for (; column + kLanes <= num_columns; column += kLanes)
    add_values_tile<C, R, 1, asks>(weights, panel, next, column, out, out_stride);
  if (column < num_columns)
    add_values_tile<C, R, 1, asks, false>(weights, panel, next, column, out, out_stride, num_columns - column);
}

// Calls `run` with the number of rows, 1 to kRows, and whether it prefetches, as constants.
template <class Run>
void with_rows(int num_rows, bool asks, Run run) {
  const auto with = [&](auto rows) { asks ? run(rows, std::true_type()) : run(rows, std::false_type()); };
  switch (num_rows) {
    case 1: return with(std::integral_constant<int, 1>());
    case 2: return with(std::integral_constant<int, 2>());
    case 3: return with(std::integral_constant<int, 3>());
    case 4: return with(std::integral_constant<int, 4>());
    case 5: return with(std::integral_constant<int, 5>());
    default: return with(std::integral_constant<int, kRows>());
  }
}

// One thread's memory.
template <class T, class Word>
struct Scratch {
  std::vector<Word> queries, weights;
  std::vector<float> scores, out, highest, sums;
  typename Panels<T>::Memory panels;

  void fit(size_t num_rows, int head_words, int out_stride) {
    const auto grow = [](auto& buffer, size_t size) {
      if (buffer.size() < size) buffer.resize(size);
    };
    grow(queries, num_rows * head_words);
    grow(weights, size_t(kRows) * kKeys);
    grow(scores, size_t(kRows) * kKeys);
    grow(out, num_rows * out_stride);
    grow(highest, num_rows);
    grow(sums, num_rows * kLanes);
  }
};

template <class T>
class Attention {
  using C = ComputeInPlace<T>;
  using Word = typename C::Word;
  using Memory = Scratch<T, Word>;
  static constexpr int kPerWord = C::kPerWord;
  static constexpr bool kWidens = sizeof(Word) > kPerWord * sizeof(T);

 public:
  Attention(const Layer& layer, const Work& work, const KvCache& cache, const T* q, int64_t q_token, int64_t q_head, T* out)
      : layer_(layer), work_(work), panels_(cache), q_(q), q_token_(q_token), q_head_(q_head), out_(out),
        num_kv_heads_(int(cache.num_kv_heads)), group_(layer.num_heads / num_kv_heads_), head_dim_(int(cache.head_dim)),
        head_words_(head_dim_ / kPerWord), v_head_dim_(int(cache.v_head_dim)), out_stride_(round_up(v_head_dim_, kLanes)) {}

  // Called by all threads of a team.
  void run() const {
    const int num_tasks = work_.num_items * num_kv_heads_;
    const int num_threads = omp_get_num_threads();
    static thread_local Memory scratch;
#pragma omp for schedule(dynamic, 1)
    for (int task = 0; task < num_tasks; ++task) {
      const Item& item = work_.items[task / num_kv_heads_];
      const int kv_head = task % num_kv_heads_;
      const bool takes_all = takes_all_heads(item, num_threads);
      if (kv_head == 0 || !takes_all) attend(item, kv_head, takes_all ? num_kv_heads_ : 1, scratch);
    }
    if (work_.num_parts == 0) return;
#pragma omp for schedule(static)
    for (int entry = 0; entry < work_.num_entries; ++entry)
      merge_parts(entry, work_.part_starts[entry], work_.part_starts[entry + 1]);
  }

 private:
  int rows_of(const Item& item) const { return (item.end_entry - item.first_entry) * group_; }

  // True if all rows of a head are one tile, and there are enough items for the threads.
  bool takes_all_heads(const Item& item, int num_threads) const {
    return rows_of(item) <= kRows && (num_threads == 1 || work_.num_items >= kItemsEach * num_threads);
  }

  // Computes `num_heads` kv heads from `first_head` on. The rows of an item are numbered by entry, then by query head; the rows of the
  // next kv head follow in memory.
  void attend(const Item& item, int first_head, int num_heads, Memory& scratch) const {
    const int num_rows = rows_of(item);
    const size_t all_rows = size_t(num_rows) * num_heads;
    scratch.fit(all_rows, head_words_, out_stride_);
    for (int head = 0; head < num_heads; ++head)
      for (int row = 0; row < num_rows; ++row)
        take_query(query(item.first_entry + row / group_, (first_head + head) * group_ + row % group_),
                   scratch.queries.data() + size_t(head * num_rows + row) * head_words_);
    std::fill_n(scratch.out.data(), all_rows * out_stride_, 0.0f);
    std::fill_n(scratch.highest.data(), all_rows, kNegativeInfinity);
    std::fill_n(scratch.sums.data(), all_rows * kLanes, 0.0f);
    const int first_seen = *std::min_element(work_.first_keys + item.first_entry, work_.first_keys + item.end_entry);
    const int last_seen = *std::max_element(work_.positions + item.first_entry, work_.positions + item.end_entry);
    const int end_key = std::min(item.end_key, last_seen + 1);
    const int32_t* table = work_.tables + size_t(item.row) * work_.table_stride;
    Panel panels[2];
    int key = std::max(item.first_key, first_seen), head = 0;
    if (key < end_key) panels_.find(table, key, end_key, first_head, panels[0]);
    for (bool which = false; key < end_key; which = !which) {
      Panel &panel = panels[which], &next = panels[!which];
      const int panel_head = head;
      if (++head == num_heads) {
        head = 0;
        key = panel.first_key + panel.count;
      }
      if (key < end_key)
        panels_.find(table, key, end_key, first_head + head, next);
      else
        next = panel;
      panels_.prepare(table, first_head + panel_head, panel, first_head + head, next, scratch.panels);
      for (int row = 0; row < num_rows; row += kRows)
        attend_tile(item, row, std::min(kRows, num_rows - row), panel_head * num_rows, panel, next, scratch);
    }
    for (head = 0; head < num_heads; ++head)
      for (int row = 0; row < num_rows; ++row) finish(item, row, first_head + head, head * num_rows, scratch);
  }

  const T* query(int entry, int head) const { return q_ + work_.tokens[entry] * q_token_ + head * q_head_; }

  void take_query(const T* from, Word* to) const {
    if constexpr (kWidens)
      for (int i = 0; i < head_dim_; ++i) reinterpret_cast<float*>(to)[i] = as_float(from[i]);
    else
      std::memcpy(to, from, head_dim_ * sizeof(T));
  }

  // Rows from `first_row` on of a head whose rows start at `base`.
  void attend_tile(const Item& item, int first_row, int num_rows, int base, const Panel& panel, const Panel& next,
                   Memory& scratch) const {
    int lows[kRows], highs[kRows];
    bool sees_any = false;
    for (int r = 0; r < num_rows; ++r) {
      const int entry = item.first_entry + (first_row + r) / group_;
      lows[r] = std::max({item.first_key, work_.first_keys[entry], panel.first_key}) - panel.first_key;
      highs[r] = std::min(panel.first_key + panel.count, work_.positions[entry] + 1) - panel.first_key;
      sees_any |= lows[r] < highs[r];
    }
    if (!sees_any) return;
    const Word* queries = scratch.queries.data() + size_t(base + first_row) * head_words_;
    float* scores = scratch.scores.data();
    float* out = scratch.out.data() + size_t(base + first_row) * out_stride_;
    with_rows(num_rows, first_row == 0 && panels_.is_plain(), [&](auto rows, auto asks) {
      score_rows<C, rows, asks>(queries, head_words_, panel, next, scores);
      for (int r = 0; r < rows; ++r)
        weigh(scores + r * kKeys, lows[r], highs[r], panel, base + first_row + r, scratch,
              scratch.weights.data() + r * kKeys / kPerWord);
      add_values_rows<C, rows, asks>(scratch.weights.data(), panel, next, v_head_dim_, out, out_stride_);
    });
  }

  // Scores of keys [low, high) become weights, others 0: powers of two of the difference to the row's `highest`, which is scaled by
  // log2(e). It is raised to the highest score so far only when that exceeds it by kSlack, so sums are rarely rescaled.
  void weigh(float* scores, int low, int high, const Panel& panel, int row, Memory& scratch, Word* weights) const {
    const int width = round_up(panel.count, kLanes);
    if (panel.k_scales)
      for (int i = 0; i < width; i += kLanes) store(scores + i, load<Floats>(scores + i) * load<Floats>(panel.k_scales + i));
    const float factor = layer_.softcap > 0.0f ? kLog2E : layer_.scale * kLog2E;
    if (layer_.softcap > 0.0f) cap(scores, width);
    const bool hides = low > 0 || high < width;
    for (int i = 0; hides && i < width; i += kLanes) store(scores + i, shown(load<Floats>(scores + i), i, low, high, kNegativeInfinity));
    Floats top = splat(kNegativeInfinity);
    for (int i = 0; i < width; i += kLanes) top = max(top, load<Floats>(scores + i) * factor);
    float* sums = scratch.sums.data() + size_t(row) * kLanes;
    if (const float before = scratch.highest[row]; exceeds(top, before + kSlack)) {
      const float now = highest(top);
      scratch.highest[row] = now;
      if (before > kNegativeInfinity) {
        const float decay = std::exp2(before - now);
        float* out = scratch.out.data() + size_t(row) * out_stride_;
        for (int i = 0; i < out_stride_; i += kLanes) store(out + i, load<Floats>(out + i) * decay);
        store(sums, load<Floats>(sums) * decay);
      }
    }
    const float base = scratch.highest[row];
    const Floats shift = splat(base > kNegativeInfinity ? -base : 0.0f);
    Floats total = load<Floats>(sums);
    for (int i = 0; i < width; i += kLanes) {
      Floats weight = exp2(multiply_add(load<Floats>(scores + i), splat(factor), shift));
      if (hides) weight = shown(weight, i, low, high, 0.0f);
      total += weight;
      if (panel.v_scales) weight *= load<Floats>(panel.v_scales + i);
      if constexpr (kPerWord == 2 && !kWidens)
        store(reinterpret_cast<uint16_t*>(weights) + i, to_halves(weight));
      else
        store(reinterpret_cast<float*>(weights) + i, weight);
    }
    store(sums, total);
  }

  void cap(float* scores, int width) const {
    for (int i = 0; i < width; i += kLanes) {
      Floats score = load<Floats>(scores + i) * layer_.scale;
      for (int lane = 0; lane < kLanes; ++lane) score[lane] = layer_.softcap * std::tanh(score[lane] / layer_.softcap);
      store(scores + i, score);
    }
  }

  // Numbers of hidden keys become `hidden`: scores minus infinity, and weights 0, since exp2 never is. A product with a code is often
  // halfway between two floats, and the least addend rounds it. Those of visible keys are unchanged: a row's rounding must not
  // depend on how much of its first and last panel other rows of the tile see.
  static Floats shown(Floats value, int first, int low, int high, float hidden) {
    const Ints number = lane_numbers() + first;
    return (number >= low) & (number < high) ? value : splat(hidden);
  }

  void finish(const Item& item, int row, int kv_head, int base, Memory& scratch) const {
    const int entry = item.first_entry + row / group_, head = kv_head * group_ + row % group_;
    const float* found = scratch.out.data() + size_t(base + row) * out_stride_;
    const float highest = scratch.highest[base + row];
    float total = highest > kNegativeInfinity ? sum(load<Floats>(scratch.sums.data() + size_t(base + row) * kLanes)) : 0.0f;
    if (item.part < 0) {
      if (layer_.sinks) total += std::exp2(layer_.sinks[head] * kLog2E - highest);
      answer(entry, head, found, 1.0f / total);
      return;
    }
    const size_t to = (size_t(item.part) + row / group_) * layer_.num_heads + head;
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    for (int i = 0; i < v_head_dim_; ++i) work_.part_out[to * v_head_dim_ + i] = found[i] * factor;
    work_.part_lse[to] = highest + std::log2(total);
  }

  void answer(int entry, int head, const float* found, float factor) const {
    T* to = out_ + (size_t(work_.tokens[entry]) * layer_.num_heads + head) * v_head_dim_;
    int i = 0;
    for (; i + kLanes <= v_head_dim_; i += kLanes) put(to + i, load<Floats>(found + i) * factor);
    for (; i < v_head_dim_; ++i) put(to + i, found[i] * factor);
  }

  void merge_parts(int entry, int first, int end) const {
    if (first == end) return;
    static thread_local std::vector<float> merged;
    const int dim = v_head_dim_;
    merged.resize(dim);
    for (int head = 0; head < layer_.num_heads; ++head) {
      float top = layer_.sinks ? layer_.sinks[head] * kLog2E : kNegativeInfinity;
      for (int i = first; i < end; ++i) top = std::max(top, lse_of(i, head));
      float total = layer_.sinks ? std::exp2(layer_.sinks[head] * kLog2E - top) : 0.0f;
      std::fill(merged.begin(), merged.end(), 0.0f);
      for (int i = first; i < end; ++i) {
        const float weight = std::exp2(lse_of(i, head) - top);
        const float* part = work_.part_out + (size_t(work_.merge_parts[i]) * layer_.num_heads + head) * dim;
        total += weight;
        if (weight > 0.0f)
          for (int d = 0; d < dim; ++d) merged[d] += weight * part[d];
      }
      answer(entry, head, merged.data(), 1.0f / total);
    }
  }

  float lse_of(int index, int head) const {
    return work_.part_lse[size_t(work_.merge_parts[index]) * layer_.num_heads + head];
  }

  const Layer& layer_;
  const Work& work_;
  const Panels<T> panels_;
  const T* q_;
  const int64_t q_token_, q_head_;
  T* out_;
  const int num_kv_heads_, group_, head_dim_, head_words_, v_head_dim_, out_stride_;
};

}  // namespace

template <class T>
void attend(const Layer& layer, const Work& work, const KvCache& cache, const T* q, int64_t q_token, int64_t q_head, T* out) {
  Attention<T>(layer, work, cache, q, q_token, q_head, out).run();
}

template void attend(const Layer&, const Work&, const KvCache&, const float*, int64_t, int64_t, float*);
template void attend(const Layer&, const Work&, const KvCache&, const Bfloat16*, int64_t, int64_t, Bfloat16*);

namespace {

template <class T>
void attend_with_team(const Layer& layer, const Work& work, const KvCache& cache, const T* q, int64_t q_token, int64_t q_head,
                      T* out) {
  const int num_threads = int(std::min<int64_t>(work.num_threads, work.num_items * cache.num_kv_heads));
#pragma omp parallel num_threads(std::max(1, num_threads)) if (num_threads > 1)
  attend(layer, work, cache, q, q_token, q_head, out);
}

}  // namespace

extern "C" {

void radixkv_attend_float32(const Layer* layer, const Work* work, const KvCache* cache, const float* q, int64_t q_token,
                            int64_t q_head, float* out) {
  attend_with_team(*layer, *work, *cache, q, q_token, q_head, out);
}

void radixkv_attend_bfloat16(const Layer* layer, const Work* work, const KvCache* cache, const Bfloat16* q, int64_t q_token,
                             int64_t q_head, Bfloat16* out) {
  attend_with_team(*layer, *work, *cache, q, q_token, q_head, out);
}

}  // extern "C"
}  // namespace radixkv
