// The next token of each row of logits; see native_draw.py. One thread computes a row, and sums it alike in any batch.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "vectors.h"

namespace radixkv {

extern "C" {

// One draw. `temperature` 0: the most likely entry. `top_k` 0, `top_p` 1, `min_p` 0: no bound. `uniform` in [0, 1).
struct Draw {
  double top_p, uniform;
  int64_t row, top_k;
  float temperature, min_p;
};

}  // extern "C"

namespace {

constexpr int64_t kChunk = 256;
constexpr float kLeastExponent = -126.0f;  // entries less likely than 2^-126 times the most likely one have no mass

int64_t find_highest(const float* logits, int64_t count) {
  Floats most = splat(-INFINITY);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) most = max(load<Floats>(logits + i), most);
  float largest = highest(most);
  for (; i < count; ++i) largest = std::max(largest, logits[i]);
  const int64_t found = std::find(logits, logits + count, largest) - logits;
  return found < count ? found : 0;  // all are NaN
}

// exp((logits - largest) / temperature), padded to whole chunks with zeros.
void take_masses(const float* logits, int64_t count, float largest, float temperature, std::vector<float>& masses) {
  masses.resize((count + kChunk - 1) / kChunk * kChunk);
  float last[kChunk];
  for (int64_t first = 0; first < count; first += kChunk) {
    const float* from = logits + first;
    if (count - first < kChunk) {
      std::fill(std::copy_n(from, count - first, last), last + kChunk, -INFINITY);
      from = last;
    }
    for (int64_t i = 0; i < kChunk; i += kLanes) {
      const Floats exponent = (load<Floats>(from + i) - largest) / temperature * kLog2E;
      store(masses.data() + first + i, exponent > kLeastExponent ? exp2(exponent) : 0.0f);
    }
  }
}

double sum_chunk(const float* masses) {
  Floats total{};
  for (int64_t i = 0; i < kChunk; i += kLanes) total += load<Floats>(masses + i);
  return sum(total);
}

double sum_all(const std::vector<float>& masses) {
  double total = 0.0;
  for (size_t first = 0; first < masses.size(); first += kChunk) total += sum_chunk(masses.data() + first);
  return total;
}

// The least mass kept by top_k and then top_p, of `total` in all.
float rank_bound(const std::vector<float>& masses, const Draw& draw, double total) {
  static thread_local std::vector<float> candidates;
  const int64_t num_entries = int64_t(masses.size());
  const bool has_k = draw.top_k > 0 && draw.top_k < num_entries;
  // Masses below this add up to less than the mass outside top_p, so they are not needed to reach it.
  const float least = has_k ? 0.0f : float((1.0 - draw.top_p) * total / double(num_entries));
  candidates.clear();
  for (const float mass : masses)
    if (mass > 0.0f && mass >= least) candidates.push_back(mass);
  if (candidates.empty()) return 0.0f;
  const int64_t num_candidates = int64_t(candidates.size());
  const auto begin = candidates.begin();
  int64_t num_sorted = 0;
  const auto sort_up_to = [&](int64_t count) {  // the largest `count`, descending
    if (count < num_candidates) std::nth_element(begin + num_sorted, begin + (count - 1), candidates.end(), std::greater<>());
    std::sort(begin + num_sorted, begin + count, std::greater<>());
    num_sorted = count;
  };
  int64_t num_kept = num_candidates;
  if (has_k) {
    num_kept = std::min(draw.top_k, num_candidates);
    sort_up_to(num_kept);
    if (draw.top_p >= 1.0) return candidates[num_kept - 1];
    total = 0.0;
    for (int64_t i = 0; i < num_kept; ++i) total += candidates[i];
  }
  const double wanted = draw.top_p * total;
  double reached = 0.0;
  for (int64_t i = 0; i < num_kept; ++i) {
    if (i == num_sorted) sort_up_to(std::min(num_kept, std::max<int64_t>(128, 8 * num_sorted)));
    reached += candidates[i];
    if (reached >= wanted) return candidates[i];
  }
  return candidates[num_kept - 1];
}

// The first entry at which the sum of masses of at least `bound` exceeds `uniform` of their total, and which has mass; -1: none.
int64_t find_drawn(std::vector<float>& masses, float bound, double uniform, std::vector<double>& ends) {
  ends.clear();
  double total = 0.0;
  for (size_t first = 0; first < masses.size(); first += kChunk) {
    float* chunk = masses.data() + first;
    if (bound > 0.0f)
      for (int64_t i = 0; i < kChunk; i += kLanes) {
        const Floats mass = load<Floats>(chunk + i);
        store(chunk + i, mass >= bound ? mass : 0.0f);
      }
    ends.push_back(total += sum_chunk(chunk));
  }
  const double wanted = std::min(uniform * total, std::nextafter(total, 0.0));
  const size_t number = std::upper_bound(ends.begin(), ends.end(), wanted) - ends.begin();
  if (number == ends.size()) return -1;
  double reached = number ? ends[number - 1] : 0.0;
  const float* chunk = masses.data() + number * kChunk;
  int64_t last = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    if (chunk[i] > 0.0f) last = i;
    reached += chunk[i];
    if (reached > wanted) break;
  }
  return int64_t(number) * kChunk + last;
}

int64_t draw_one(const float* logits, int64_t count, const Draw& draw) {
  const int64_t best = find_highest(logits, count);
  if (draw.temperature == 0.0f) return best;
  static thread_local std::vector<float> masses;
  static thread_local std::vector<double> ends;
  take_masses(logits, count, logits[best], draw.temperature, masses);
  float bound = draw.min_p;
  if (draw.top_k > 0 || draw.top_p < 1.0) bound = std::max(bound, rank_bound(masses, draw, sum_all(masses)));
  const int64_t drawn = find_drawn(masses, bound, draw.uniform, ends);
  return drawn < 0 ? best : drawn;
}

}  // namespace

extern "C" {

// `token_ids` [num_draws] from rows of `logits` [*, num_entries].
void radixkv_draw(const float* logits, int64_t num_entries, const Draw* draws, int64_t num_draws, int64_t* token_ids,
                  int32_t num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1 && num_draws > 1)
  for (int64_t i = 0; i < num_draws; ++i)
    token_ids[i] = draw_one(logits + draws[i].row * num_entries, num_entries, draws[i]);
}

}  // extern "C"
}  // namespace radixkv
