// A decoder of the Llama family, from a step's tokens to its logits; see native_decoder.py.
//
//   first        hidden = embeddings of the tokens
//   per layer    x = norm(hidden);  q, k, v = x Wqkv + b;  heads of q and k normed, if the model does that, and rotated
//                k and v are written to their slots;  hidden += attention(q) Wo
//                x = norm(hidden);  hidden += (silu(x Wgate) * (x Wup)) Wdown
//   at the end   logits = norm(hidden) Whead, of the requested tokens
//
// `hidden`, sums and data between two matrices are fp32; inputs of a matrix are rounded to 16 bits as in rounded_linear.cpp; queries
// and caches have the type T, and quantised caches hold codes of rotated rows (rotation.py). One team of threads runs all kernels,
// with a barrier between two.

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "operations.h"
#include "quantise.h"

namespace radixkv {

extern "C" {

struct DecoderLayer {
  RoundedWeight qkv, attention_out, gate_up, down;
  const float *attention_norm, *mlp_norm;  // [hidden_size]
  const float *q_norm, *k_norm;            // [D], or null
};

struct Decoder {
  const DecoderLayer* layers;
  RoundedWeight head;
  const void* embeddings;  // [vocabulary, hidden_size] of type T
  const float* last_norm;  // [hidden_size]
  int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim;
  float norm_epsilon;
};

struct DecoderStep {
  const int64_t *token_ids, *positions;  // [num_tokens]
  const int64_t* const* slots;    // per layer [num_tokens]; below 0: not written
  const int64_t* kept;        // [num_kept] tokens whose logits are requested
  const float *cosines, *sines;  // [positions, D]
  const Layer* const* attention;  // per layer
  const Work* const* works;       // per layer
  const KvCache* caches;      // per layer, of numbers of type T or of codes
  float* logits;              // [num_kept, vocabulary]
  double* seconds;            // [3] of matrices, attention, the rest: times are added; or null
  const std::atomic<int32_t>* is_unwanted;  // not 0: the step is given up after the layer that runs; or null
  // Between the kernels of a layer, a row per token. `rounded` holds inputs of the next matrix, and has a row per kept token as well;
  // q and attended [num_heads * D] are of type T; the others fp32.
  RoundedGroup* rounded;
  void *q, *attended;
  float *hidden, *qkv, *gate_up;
  int64_t num_tokens, num_kept;
  int32_t num_threads;
};

}  // extern "C"

namespace {

enum Part { kMatrices, kAttention, kRest };

template <class T>
void put_row(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) put(to + i, load<Floats>(from + i));
  for (; i < count; ++i) put(to + i, from[i]);
}

void norm_row(const float* from, const float* weight, int64_t count, float epsilon, float* to) {
  Floats squares{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) squares += load<Floats>(from + i) * load<Floats>(from + i);
  float total = sum(squares);
  for (; i < count; ++i) total += from[i] * from[i];
  const float factor = 1.0f / std::sqrt(total / count + epsilon);
  for (i = 0; i + kLanes <= count; i += kLanes) store(to + i, load<Floats>(from + i) * factor * load<Floats>(weight + i));
  for (; i < count; ++i) to[i] = from[i] * factor * weight[i];
}

// Rotates the pairs (i, i + size / 2) by the token's angles.
void rotate(float* head, int size, const float* cosines, const float* sines) {
  const int half = size / 2;
  for (int i = 0; i < half; ++i) {
    const float first = head[i], second = head[i + half];
    head[i] = first * cosines[i] - second * sines[i];
    head[i + half] = second * cosines[i + half] + first * sines[i + half];
  }
}

// silu(gates) * values, rounded.
void gate_row(const float* gates, const float* values, int64_t count, RoundedGroup* to) {
  for (int64_t first = 0; first < count; first += kRoundedInputs, ++to) {
    float gated[kRoundedInputs];
    for (int i = 0; i < kRoundedInputs; i += kLanes) {
      const Floats gate = load<Floats>(gates + first + i);
      const Floats decay = exp2((gate > 0.0f ? -gate : gate) * kLog2E);
      const Floats sigmoid = (gate > 0.0f ? splat(1.0f) : decay) / (decay + 1.0f);
      store(gated + i, gate * sigmoid * load<Floats>(values + first + i));
    }
    round_row(gated, kRoundedInputs, to);
  }
}

// A head times the Hadamard matrix, in the memory of `row`: whole vectors, zeros past the head.
template <class T>
float* rotated(const T* head, int64_t size, std::vector<float>& row) {
  row.assign(padded(size), 0.0f);
  for (int64_t i = 0; i < size; ++i) row[i] = as_float(head[i]);
  rotate_row(row.data(), size);
  return row.data();
}

template <class T>
class Step {
 public:
  Step(const Decoder& decoder, const DecoderStep& step)
      : decoder_(decoder), step_(step), num_tokens_(step.num_tokens), rounded_(step.rounded), q_(static_cast<T*>(step.q)),
        attended_(static_cast<T*>(step.attended)) {}

  // Whether the step was completed: without, there are no logits.
  bool run() {
#pragma omp parallel num_threads(step_.num_threads) if (step_.num_threads > 1)
    run_in_team();
    return !is_given_up_;
  }

 private:
  void run_in_team() {
    timed(kRest, [&] { each_token([&](int64_t token) { embed(token); }); });
    for (int number = 0; number < decoder_.num_layers; ++number) {
      if (step_.is_unwanted) {
#pragma omp single
        is_given_up_ = step_.is_unwanted->load(std::memory_order_relaxed) != 0;
        if (is_given_up_) return;
      }
      const DecoderLayer& layer = decoder_.layers[number];
      const KvCache& cache = step_.caches[number];
      const int64_t q_size = int64_t(decoder_.num_heads) * decoder_.head_dim;
      timed(kRest, [&] { norm(layer.attention_norm); });
      linear(layer.qkv, step_.qkv, false);
      timed(kRest, [&] { take_heads(layer, cache, step_.slots[number]); });
      timed(kAttention, [&] {
        attend(*step_.attention[number], *step_.works[number], cache, q_, q_size, decoder_.head_dim, attended_);
      });
      timed(kRest, [&] {
        each_token([&](int64_t token) { round_attended(cache, token, rounded_ + token * groups_of(q_size)); });
      });
      linear(layer.attention_out, step_.hidden, true);
      timed(kRest, [&] { norm(layer.mlp_norm); });
      linear(layer.gate_up, step_.gate_up, false);
      timed(kRest, [&] { gate(); });
      linear(layer.down, step_.hidden, true);
    }
    timed(kRest, [&] {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < step_.num_kept; ++i) norm(step_.kept[i], decoder_.last_norm, i);
    });
    timed(kMatrices, [&] { linear_rounded(rounded_, step_.num_kept, decoder_.head, step_.logits, false); });
  }

  static int64_t groups_of(int64_t size) { return size / kRoundedInputs; }

  // The first thread's time, including its wait for the others.
  template <class Do>
  void timed(Part part, Do run) const {
    const bool counts = step_.seconds && omp_get_thread_num() == 0;
    const double start = counts ? omp_get_wtime() : 0.0;
    run();
    if (counts) step_.seconds[part] += omp_get_wtime() - start;
  }

  void linear(const RoundedWeight& weight, float* out, bool adds) const {
    timed(kMatrices, [&] { linear_rounded(rounded_, num_tokens_, weight, out, adds); });
  }

  template <class Visit>
  void each_token(Visit visit) const {
#pragma omp for schedule(static)
    for (int64_t token = 0; token < num_tokens_; ++token) visit(token);
  }

  void embed(int64_t token) const {
    const int64_t size = decoder_.hidden_size;
    const T* from = static_cast<const T*>(decoder_.embeddings) + step_.token_ids[token] * size;
    float* to = step_.hidden + token * size;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(to + i, load_floats(from + i));
    for (; i < size; ++i) to[i] = as_float(from[i]);
  }

  void norm(const float* weight) const {
    each_token([&](int64_t token) { norm(token, weight, token); });
  }

  // A token's norm to row `to` of the next matrix's inputs.
  void norm(int64_t token, const float* weight, int64_t to) const {
    static thread_local std::vector<float> normed;
    const int64_t size = decoder_.hidden_size;
    normed.resize(size);
    norm_row(step_.hidden + token * size, weight, size, decoder_.norm_epsilon, normed.data());
    round_row(normed.data(), size, rounded_ + to * groups_of(size));
  }

  // Products with Wqkv become q, and K and V in their slots.
  void take_heads(const DecoderLayer& layer, const KvCache& cache, const int64_t* slots) const {
    const int64_t dim = decoder_.head_dim, num_heads = decoder_.num_heads, num_kv_heads = decoder_.num_kv_heads;
    each_token([&](int64_t token) {
      float* from = step_.qkv + token * (num_heads + 2 * num_kv_heads) * dim;
      const int64_t angles = step_.positions[token] * dim;
      const float *cosines = step_.cosines + angles, *sines = step_.sines + angles;
      for (int64_t head = 0; head < num_heads + num_kv_heads; ++head) {
        const float* weight = head < num_heads ? layer.q_norm : layer.k_norm;
        if (weight) norm_row(from + head * dim, weight, dim, decoder_.norm_epsilon, from + head * dim);
        rotate(from + head * dim, int(dim), cosines, sines);
      }
      cache.format == kPlain ? put_numbers(cache, slots[token], token, from) : put_codes(cache, slots[token], token, from);
    });
  }

  void put_numbers(const KvCache& cache, int64_t slot, int64_t token, const float* heads) const {
    const int64_t dim = decoder_.head_dim, num_heads = decoder_.num_heads, num_kv_heads = decoder_.num_kv_heads;
    put_row(heads, num_heads * dim, q_ + token * num_heads * dim);
    if (slot < 0) return;
    static thread_local std::vector<T> key, value;
    key.resize(dim);
    value.resize(dim);
    for (int64_t head = num_heads; head < num_heads + num_kv_heads; ++head) {
      put_row(heads + head * dim, dim, key.data());
      put_row(heads + (head + num_kv_heads) * dim, dim, value.data());
      CacheView<T>(cache).put(slot, head - num_heads, key.data(), value.data());
    }
  }

  void put_codes(const KvCache& cache, int64_t slot, int64_t token, const float* heads) const {
    const int64_t dim = decoder_.head_dim, num_heads = decoder_.num_heads, num_kv_heads = decoder_.num_kv_heads;
    static thread_local std::vector<float> key, value;
    for (int64_t head = 0; head < num_heads; ++head)
      put_row(rotated(heads + head * dim, dim, key), dim, q_ + (token * num_heads + head) * dim);
    if (slot < 0) return;
    for (int64_t head = num_heads; head < num_heads + num_kv_heads; ++head)
      put_quantised(cache, slot, head - num_heads, rotated(heads + head * dim, dim, key),
                    rotated(heads + (head + num_kv_heads) * dim, dim, value));
  }

  // A token's attention, rounded; with rotated values it is rotated back.
  void round_attended(const KvCache& cache, int64_t token, RoundedGroup* to) const {
    const int64_t dim = decoder_.head_dim, size = decoder_.num_heads * dim;
    const T* found = attended_ + token * size;
    if (cache.format == kPlain) return round_row(found, size, to);
    static thread_local std::vector<float> head, whole;
    whole.resize(size);
    for (int64_t first = 0; first < size; first += dim) std::copy_n(rotated(found + first, dim, head), dim, whole.data() + first);
    round_row(whole.data(), size, to);
  }

  void gate() const {
    const int64_t size = decoder_.intermediate_size;
    each_token([&](int64_t token) {
      const float* gates = step_.gate_up + token * 2 * size;
      gate_row(gates, gates + size, size, rounded_ + token * groups_of(size));
    });
  }

  const Decoder& decoder_;
  const DecoderStep& step_;
  const int64_t num_tokens_;
  RoundedGroup* const rounded_;
  T *const q_, *const attended_;
  bool is_given_up_ = false;  // written by one thread of the team, between barriers
};

}  // namespace

extern "C" {

bool radixkv_decode_float32(const Decoder* decoder, const DecoderStep* step) { return Step<float>(*decoder, *step).run(); }

bool radixkv_decode_bfloat16(const Decoder* decoder, const DecoderStep* step) { return Step<Bfloat16>(*decoder, *step).run(); }

}  // extern "C"
}  // namespace radixkv
