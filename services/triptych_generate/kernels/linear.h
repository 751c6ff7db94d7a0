// Linear layers over packed weights.
//
// Every output element is one chain of fused multiply-adds over the inputs in order, in a lane of
// its own. So neither the number of rows nor how they are cut into tiles changes a bit, and no row
// needs padding.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <vector>

#include "tasks.h"
#include "vectors.h"

namespace triptych {

constexpr int kPanel = 2 * kLanes;        // output features that a packed panel holds
constexpr int kTileRows = 12;             // rows whose accumulators fit the registers
constexpr int64_t kTaskTiles = 8;         // tiles that one thread computes at a time
constexpr int64_t kOwnTiles = 4;          // tiles that each thread lays out for itself
constexpr int64_t kBlockBytes = 1 << 20;  // inputs that stay in the second-level cache

// Weights lie in panels of kPanel features; a panel holds one step after the other, each of
// kStepBytes: in float32 one input's weights, in bfloat16 those of two inputs, paired in words.
constexpr int64_t kStepBytes = kPanel * sizeof(float);

template <typename T>
constexpr int64_t kInputs = sizeof(float) / sizeof(T);  // inputs in a step

// The weights of input `index` of a step, from the words that hold all of them.
template <typename T>
Floats weights_of(Words words, int index) {
  if (sizeof(T) == sizeof(float)) return reinterpret_cast<Floats>(words);
  return reinterpret_cast<Floats>(index == 0 ? words << 16 : words & 0xffff0000u);
}

// One tile: inputs [depth, Rows] times a panel. Meanwhile memory is fetched from `next` on, a line
// for each of `Lines` addresses `stride` apart in every step.
template <typename T, int Rows, int Lines>
void multiply(const float* inputs, const char* panel, int64_t steps, const char* next,
              int64_t stride, Floats (*sums)[2]) {
  Floats local[Rows][2] = {};
  for (int64_t step = 0; step < steps; ++step) {
    const Words low = load_words(panel + step * kStepBytes);
    const Words high = load_words(panel + step * kStepBytes + kStepBytes / 2);
    for (int line = 0; line < Lines; ++line, next += stride) __builtin_prefetch(next, 0, 2);
    for (int index = 0; index < kInputs<T>; ++index) {
      const Floats low_weights = weights_of<T>(low, index);
      const Floats high_weights = weights_of<T>(high, index);
      const float* input = inputs + (step * kInputs<T> + index) * Rows;
#pragma GCC unroll 12
      for (int row = 0; row < Rows; ++row) {
        local[row][0] += input[row] * low_weights;
        local[row][1] += input[row] * high_weights;
      }
    }
  }
  for (int row = 0; row < Rows; ++row)
    for (int half = 0; half < 2; ++half) sums[row][half] = local[row][half];
}

template <typename T, int Lines>
void multiply(int rows, const float* inputs, const char* panel, int64_t steps, const char* next,
              int64_t stride, Floats (*sums)[2]) {
  switch (rows) {
#define CASE(N) \
  case N:       \
    return multiply<T, N, Lines>(inputs, panel, steps, next, stride, sums);
    CASE(1)
    CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
  }
}

// The tiles of a panel fetch the next one between them, so that reading memory and computing
// overlap.
template <typename T>
void multiply(int64_t tile, int64_t tiles, int rows, const float* inputs, const char* panel,
              int64_t steps, Floats (*sums)[2]) {
  const char* next = panel + steps * kStepBytes;
  if (tiles == 1) return multiply<T, 2>(rows, inputs, panel, steps, next, kStepBytes / 2, sums);
  const int64_t stride = (kStepBytes + tiles - 1) / tiles;
  multiply<T, 1>(rows, inputs, panel, steps, next + tile * steps * stride, stride, sums);
}

struct Split {  // `total` rows in tiles of nearly the same size
  int64_t total, tiles;
  explicit Split(int64_t rows) : total(rows), tiles((rows + kTileRows - 1) / kTileRows) {}
  int64_t start(int64_t tile) const { return tile * total / tiles; }
  int rows(int64_t tile) const { return int(start(tile + 1) - start(tile)); }
};

// Rows of x [rows, depth] as [padded_depth, rows].
template <typename T>
void lay_out(const T* x, int rows, int64_t depth, int64_t padded_depth, float* to) {
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Floats square[kLanes] = {};
    for (int row = 0; row < rows; ++row) square[row] = load(x + row * depth + k);
    if (rows > 1) transpose(square);
    if (rows == 1) {
      store(to + k, square[0]);
      continue;
    }
    for (int64_t i = 0; i < kLanes; ++i) {  // the next store overwrites what is behind the rows
      const bool has_room = (k + i) * rows + kLanes <= padded_depth * rows;
      store_some(to + (k + i) * rows, square[i], has_room ? kLanes : rows);
    }
  }
  for (; k < padded_depth; ++k)
    for (int row = 0; row < rows; ++row)
      to[k * rows + row] = k < depth ? float(x[row * depth + k]) : 0;
}

inline Floats silu(Floats x) {
  return x / (1.0f + exp_of(-choose(x > -87.0f, x, broadcast(-87.0f))));
}

template <typename T>
struct Linear {
  const char* weight;
  const T* bias;      // [features] or null
  const T* residual;  // [rows, out_features], added to the result, or null
  bool gated;         // a panel is kLanes gates and kLanes values: silu(gate) * value comes out
  int64_t depth, features;

  int64_t steps() const { return (depth + kInputs<T> - 1) / kInputs<T>; }
  int64_t padded_depth() const { return steps() * kInputs<T>; }
  int64_t out_features() const { return gated ? features / 2 : features; }

  void finish(Floats* sums, int64_t panel, int64_t row, T* out) const {
    const int64_t column = panel * kPanel;
    if (bias != nullptr)
      for (int half = 0; half < 2; ++half)
        sums[half] += load_some(bias + column + half * kLanes, features - column - half * kLanes);
    if (gated) return put(silu(sums[0]) * sums[1], row, panel * kLanes, out);
    for (int half = 0; half < 2; ++half) put(sums[half], row, column + half * kLanes, out);
  }

  void put(Floats values, int64_t row, int64_t column, T* out) const {
    const int64_t count = out_features() - column, at = row * out_features() + column;
    if (count <= 0) return;
    if (residual != nullptr) values += load_some(residual + at, count);
    store_some(out + at, values, count);
  }

  // Rows `first …` of `x`, few enough that their inputs stay in the second-level cache. Few tiles
  // are laid out by every thread for itself: fetching them from another core takes longer.
  void run(const T* x, int64_t first, int64_t rows, T* out) const {
    const Split split(rows);
    const bool is_shared = split.tiles > kOwnTiles;
    float* shared = nullptr;
    if (is_shared) {
      shared = room(rows);
      at::parallel_for(0, split.tiles, 1, [&](int64_t begin, int64_t end) {
        lay_out_tiles(x, first, split, begin, end, shared);
      });
    }
    const int64_t parts = (split.tiles + kTaskTiles - 1) / kTaskTiles;
    share_tasks((features + kPanel - 1) / kPanel * parts, [&](auto take) {
      float* inputs = is_shared ? shared : room(rows);
      if (!is_shared) lay_out_tiles(x, first, split, 0, split.tiles, inputs);
      for (int64_t task; (task = take()) >= 0;) {
        const int64_t panel = task / parts, part = task % parts;
        for (int64_t tile = part * split.tiles / parts; tile < (part + 1) * split.tiles / parts;
             ++tile)
          run_tile(split, tile, panel, first, inputs, out);
      }
    });
  }

  void run_tile(const Split& split, int64_t tile, int64_t panel, int64_t first, const float* inputs,
                T* out) const {
    Floats sums[kTileRows][2];
    const int64_t start = split.start(tile);
    multiply<T>(tile, split.tiles, split.rows(tile), inputs + start * padded_depth(),
                weight + panel * steps() * kStepBytes, steps(), sums);
    for (int row = 0; row < split.rows(tile); ++row)
      finish(sums[row], panel, first + start + row, out);
  }

  // This thread's memory for the inputs of `rows`.
  float* room(int64_t rows) const {
    static thread_local std::vector<float> floats;
    floats.resize(std::max<size_t>(floats.size(), rows * padded_depth()));
    return floats.data();
  }

  void lay_out_tiles(const T* x, int64_t first, const Split& split, int64_t begin, int64_t end,
                     float* inputs) const {
    for (int64_t tile = begin; tile < end; ++tile)
      lay_out(x + (first + split.start(tile)) * depth, split.rows(tile), depth, padded_depth(),
              inputs + split.start(tile) * padded_depth());
  }
};

template <typename T>
const T* data_or_null(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr<T>() : nullptr;
}

template <typename T>
at::Tensor linear_of(const at::Tensor& x, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias,
                     const std::optional<at::Tensor>& residual, int64_t features, bool gated) {
  const int64_t depth = x.size(-1), rows = x.numel() / depth;
  const Linear<T> layer{static_cast<const char*>(weight.const_data_ptr()),
                        data_or_null<T>(bias),
                        data_or_null<T>(residual),
                        gated,
                        depth,
                        features};
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = layer.out_features();
  at::Tensor out = at::empty(shape, x.options());
  const int64_t block =
      std::max<int64_t>(1, kBlockBytes / (layer.padded_depth() * sizeof(float)) / kTileRows) *
      kTileRows;
  for (int64_t first = 0; first < rows; first += block)
    layer.run(x.const_data_ptr<T>(), first, std::min(block, rows - first),
              out.mutable_data_ptr<T>());
  return out;
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& residual,
                  int64_t features, bool gated) {
  const at::Tensor x = input.contiguous();
  return x.scalar_type() == at::kFloat
             ? linear_of<float>(x, weight, bias, residual, features, gated)
             : linear_of<c10::BFloat16>(x, weight, bias, residual, features, gated);
}

template <typename T>
void pack(const T* from, T* to, int64_t features, int64_t depth) {
  const int64_t steps = (depth + kInputs<T> - 1) / kInputs<T>;
  at::parallel_for(0, (features + kPanel - 1) / kPanel, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t step = 0; step < steps; ++step)
        for (int64_t lane = 0; lane < kPanel; ++lane)
          for (int64_t input = 0; input < kInputs<T>; ++input) {
            const int64_t feature = panel * kPanel + lane, k = step * kInputs<T> + input;
            to[((panel * steps + step) * kPanel + lane) * kInputs<T> + input] =
                feature < features && k < depth ? from[feature * depth + k] : T(0);
          }
  });
}

at::Tensor pack_weight(const at::Tensor& given) {
  const at::Tensor weight = given.contiguous();
  const int64_t features = weight.size(0), depth = weight.size(1),
                inputs = 4 / weight.element_size();
  at::Tensor packed =
      at::empty({(features + kPanel - 1) / kPanel, (depth + inputs - 1) / inputs, kPanel * inputs},
                weight.options());
  if (weight.scalar_type() == at::kFloat)
    pack(weight.const_data_ptr<float>(), packed.mutable_data_ptr<float>(), features, depth);
  else
    pack(weight.const_data_ptr<c10::BFloat16>(), packed.mutable_data_ptr<c10::BFloat16>(), features,
         depth);
  return packed;
}

}  // namespace triptych
