// Attention over keys and values in blocks, with a running softmax.
//
// A query row meets the blocks of its sequence in order of position. Each score and each summed
// value is one chain of fused multiply-adds in a lane of its own, so neither other rows, nor
// threads, nor how a prefill was cut change a bit. A hidden key's weight is an exact zero.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "vectors.h"

namespace triptych {

constexpr int kHeadRows = 6;  // query rows whose accumulators for 64 keys fit the registers
constexpr int kWide = 4;      // vectors of a group of keys or of value features

struct Scoring {
  float scaling, softcap;  // softcap 0: none
  int64_t window;          // 0: none
};

template <typename T>
struct Pools {  // keys [blocks, kv_heads, dim, block], values [blocks, kv_heads, block, value_dim]
  T *keys, *values;
  int64_t kv_heads, dim, value_dim, block;
  T* key_block(int64_t id, int64_t head) const {
    return keys + (id * kv_heads + head) * dim * block;
  }
  T* value_block(int64_t id, int64_t head) const {
    return values + (id * kv_heads + head) * block * value_dim;
  }
};

struct Tile {  // consecutive positions of one sequence
  int32_t first_row, rows, table, position;
};

// The query rows of one tile that share a key head, in groups of at most kHeadRows.
struct Group {
  int rows;
  const float* query;  // [dim, rows], scaled
  float* weights;      // [rows, block]: scores, then softmax weights of the block at hand
  float* sums;         // [rows, value_dim]
};

template <int Rows, int Width, typename T>
void score(const Group& group, const T* keys, int64_t dim, int64_t block, int64_t column) {
  Floats local[Rows][Width] = {};
  for (int64_t d = 0; d < dim; ++d) {
    Floats key[Width];
    for (int v = 0; v < Width; ++v) key[v] = load(keys + d * block + column + v * kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row)
      for (int v = 0; v < Width; ++v) local[row][v] += group.query[d * Rows + row] * key[v];
  }
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Width; ++v)
      store(group.weights + row * block + column + v * kLanes, local[row][v]);
}

template <int Rows, int Width, typename T>
void add_values(const Group& group, const T* values, const float* factors, int64_t begin,
                int64_t end, int64_t value_dim, int64_t block, int64_t column) {
  Floats local[Rows][Width];
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Width; ++v)
      local[row][v] = load(group.sums + row * value_dim + column + v * kLanes) * factors[row];
  for (int64_t key = begin; key < end; ++key) {
    Floats value[Width];
    for (int v = 0; v < Width; ++v) value[v] = load(values + key * value_dim + column + v * kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row)
      for (int v = 0; v < Width; ++v) local[row][v] += group.weights[row * block + key] * value[v];
  }
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Width; ++v)
      store(group.sums + row * value_dim + column + v * kLanes, local[row][v]);
}

#define WIDTHS(CALL, ROWS) \
  switch (width) {         \
    case 1:                \
      CALL(ROWS, 1);       \
      break;               \
    case 2:                \
      CALL(ROWS, 2);       \
      break;               \
    case 3:                \
      CALL(ROWS, 3);       \
      break;               \
    default:               \
      CALL(ROWS, 4);       \
  }

template <int Rows, typename T>
void score_all(const Group& group, const T* keys, int64_t dim, int64_t block) {
  for (int64_t column = 0; column < block; column += kWide * kLanes) {
    const int64_t width = (block - column) / kLanes;
#define CALL(ROWS, WIDTH) score<ROWS, WIDTH, T>(group, keys, dim, block, column)
    WIDTHS(CALL, Rows)
#undef CALL
  }
}

template <int Rows, typename T>
void add_all(const Group& group, const T* values, const float* factors, int64_t begin, int64_t end,
             int64_t value_dim, int64_t block) {
  for (int64_t column = 0; column < value_dim; column += kWide * kLanes) {
    const int64_t width = (value_dim - column) / kLanes;
#define CALL(ROWS, WIDTH) \
  add_values<ROWS, WIDTH, T>(group, values, factors, begin, end, value_dim, block, column)
    WIDTHS(CALL, Rows)
#undef CALL
  }
}

#define ROWS_OF(GROUP, FUNCTION, ...)     \
  switch ((GROUP).rows) {                 \
    case 1:                               \
      FUNCTION<1, K>(GROUP, __VA_ARGS__); \
      break;                              \
    case 2:                               \
      FUNCTION<2, K>(GROUP, __VA_ARGS__); \
      break;                              \
    case 3:                               \
      FUNCTION<3, K>(GROUP, __VA_ARGS__); \
      break;                              \
    case 4:                               \
      FUNCTION<4, K>(GROUP, __VA_ARGS__); \
      break;                              \
    case 5:                               \
      FUNCTION<5, K>(GROUP, __VA_ARGS__); \
      break;                              \
    default:                              \
      FUNCTION<6, K>(GROUP, __VA_ARGS__); \
  }

struct Running {  // a row's softmax over the blocks so far
  float top, total;
};

// Soft-caps a row's scores and hides those outside `begin` to `end`, in place.
inline void hide(float* scores, int64_t block, int32_t begin, int32_t end, float softcap) {
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int64_t key = 0; key < block; key += kLanes) {
    Floats value = load(scores + key);
    if (softcap > 0)
      for (int i = 0; i < kLanes; ++i) value[i] = std::tanh(value[i] / softcap) * softcap;
    const Ints at = lane + int32_t(key);
    store(scores + key, choose((at >= begin) & (at < end), value, broadcast(-kInfinity)));
  }
}

// Scores of one row to weights, in place; returns the factor for what was summed before.
inline float weigh(float* scores, int64_t block, int64_t first_key, int64_t position,
                   const Scoring& scoring, Running& running) {
  const int64_t earliest = scoring.window > 0 ? position - scoring.window + 1 : 0;
  const int64_t begin = std::clamp<int64_t>(earliest - first_key, 0, block);
  const int64_t end = std::clamp<int64_t>(position + 1 - first_key, 0, block);
  if (begin > 0 || end < block || scoring.softcap > 0)
    hide(scores, block, int32_t(begin), int32_t(end), scoring.softcap);
  Floats tops = broadcast(running.top);
  for (int64_t key = 0; key < block; key += kLanes) tops = greater(load(scores + key), tops);
  const float top = max_of(tops);
  if (top == -kInfinity) {
    std::fill(scores, scores + block, 0.0f);
    return 1;
  }
  Floats total{};
#pragma GCC unroll 4
  for (int64_t key = 0; key < block; key += kLanes) {
    const Floats weight = exp_of(load(scores + key) - top);
    store(scores + key, weight);
    total += weight;
  }
  const float factor = running.top == top ? 1 : exp_of(broadcast(running.top - top))[0];
  running = {top, running.total * factor + sum_of(total)};
  return factor;
}

struct Span {  // a block's keys from `begin` to `end` that some row of a tile sees
  int64_t first_key, begin, end;
};

template <typename T>
const float* widened(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load(from + i));
  return to;
}

template <typename T>
struct Attention {
  Pools<T> pools;
  Scoring scoring;
  const T* query;  // [heads, rows, dim] by strides
  int64_t head_stride, row_stride, heads;
  const int32_t* tables;
  int64_t table_len;
  const float* sinks;  // [heads] or null
  T* out;              // [rows, heads, value_dim]

  template <typename K>
  void meet(const Tile& tile, const Span& span, const std::vector<Group>& groups,
            std::vector<Running>& running, const K* keys, const K* values) const {
    for (size_t g = 0; g < groups.size(); ++g) {
      float factors[kHeadRows];
      ROWS_OF(groups[g], score_all, keys, pools.dim, pools.block)
      for (int row = 0; row < groups[g].rows; ++row) {
        const int64_t at = g * kHeadRows + row;
        factors[row] = weigh(groups[g].weights + row * pools.block, pools.block, span.first_key,
                             tile.position + at % tile.rows, scoring, running[at]);
      }
      ROWS_OF(groups[g], add_all, values, factors, span.begin, span.end, pools.value_dim,
              pools.block)
    }
  }

  void attend(const Tile& tile, int64_t kv_head) const {
    const int64_t share = heads / pools.kv_heads, dim = pools.dim, value_dim = pools.value_dim;
    const int64_t block = pools.block, num_rows = share * tile.rows;
    static thread_local std::vector<float> room;
    room.assign(num_rows * (dim + block + value_dim) + block * (dim + value_dim), 0);
    float* packed = room.data();
    float* weights = packed + num_rows * dim;
    float* sums = weights + num_rows * block;
    float* wide = sums + num_rows * value_dim;
    std::vector<Running> running(num_rows);
    std::vector<Group> groups;
    for (int64_t first = 0; first < num_rows; first += kHeadRows) {
      const int rows = int(std::min<int64_t>(kHeadRows, num_rows - first));
      float* to = packed + first * dim;
      for (int row = 0; row < rows; ++row) {
        const int64_t head = kv_head * share + (first + row) / tile.rows;
        const T* from =
            query + head * head_stride + (tile.first_row + (first + row) % tile.rows) * row_stride;
        for (int64_t d = 0; d < dim; ++d) to[d * rows + row] = float(from[d]) * scoring.scaling;
        running[first + row] = sinks == nullptr ? Running{-kInfinity, 0} : Running{sinks[head], 1};
      }
      groups.push_back({rows, to, weights + first * block, sums + first * value_dim});
    }
    const int64_t last = tile.position + tile.rows - 1;
    const int64_t earliest =
        scoring.window > 0 ? std::max<int64_t>(0, tile.position - scoring.window + 1) : 0;
    for (int64_t index = earliest / block; index <= last / block; ++index) {
      const int64_t id = tables[tile.table * table_len + index], first_key = index * block;
      const Span span{first_key, std::max<int64_t>(0, earliest - first_key),
                      std::min(block, last + 1 - first_key)};
      const T *keys = pools.key_block(id, kv_head), *values = pools.value_block(id, kv_head);
      if (sizeof(T) == 4 || groups.size() == 1)
        meet(tile, span, groups, running, keys, values);
      else
        meet(tile, span, groups, running, widened(keys, dim * block, wide),
             widened(values, block * value_dim, wide + dim * block));
    }
    for (int64_t at = 0; at < num_rows; ++at) {
      const int64_t head = kv_head * share + at / tile.rows, row = tile.first_row + at % tile.rows;
      for (int64_t d = 0; d < value_dim; d += kLanes)
        store(out + (row * heads + head) * value_dim + d,
              load(sums + at * value_dim + d) / running[at].total);
    }
  }
};

template <typename T>
void write(const Pools<T>& pools, const at::Tensor& key, const at::Tensor& value,
           const int32_t* slots, int64_t num_slots) {
  const T *from_keys = key.const_data_ptr<T>(), *from_values = value.const_data_ptr<T>();
  at::parallel_for(0, num_slots * pools.kv_heads, 64, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pools.kv_heads, head = task % pools.kv_heads;
      const int64_t id = slots[row] / pools.block, offset = slots[row] % pools.block;
      const T* k = from_keys + head * key.stride(0) + row * key.stride(1);
      const T* v = from_values + head * value.stride(0) + row * value.stride(1);
      T* keys = pools.key_block(id, head) + offset;
      for (int64_t d = 0; d < pools.dim; ++d) keys[d * pools.block] = k[d];
      std::copy(v, v + pools.value_dim, pools.value_block(id, head) + offset * pools.value_dim);
    }
  });
}

template <typename T>
at::Tensor attend_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots,
                     const at::Tensor& tables, const at::Tensor& tiles, const Scoring& scoring,
                     const std::optional<at::Tensor>& sinks) {
  const int64_t heads = query.size(0), rows = query.size(1);
  const Pools<T> pools{keys.mutable_data_ptr<T>(),
                       values.mutable_data_ptr<T>(),
                       keys.size(1),
                       keys.size(2),
                       values.size(3),
                       keys.size(3)};
  write(pools, key, value, slots.const_data_ptr<int32_t>(), slots.size(0));
  at::Tensor out = at::empty({rows, heads, pools.value_dim}, query.options());
  const int64_t num_slots = slots.size(0);  // rows behind them are padding
  T* data = out.mutable_data_ptr<T>();
  std::fill(data + num_slots * heads * pools.value_dim, data + rows * heads * pools.value_dim,
            T(0));
  const Attention<T> attention{pools,
                               scoring,
                               query.const_data_ptr<T>(),
                               query.stride(0),
                               query.stride(1),
                               heads,
                               tables.const_data_ptr<int32_t>(),
                               tables.size(1),
                               sinks ? sinks->const_data_ptr<float>() : nullptr,
                               data};
  const Tile* tile = reinterpret_cast<const Tile*>(tiles.const_data_ptr<int32_t>());
  const int64_t tasks = tiles.size(0) * pools.kv_heads;
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(tasks, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    for (int64_t task; (task = next++) < tasks;)
      attention.attend(tile[task / pools.kv_heads], task % pools.kv_heads);
  });
  return out;
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots,
                  const at::Tensor& tables, const at::Tensor& tiles, double scaling, int64_t window,
                  double softcap, const std::optional<at::Tensor>& sinks) {
  const Scoring scoring{float(scaling), float(softcap), window};
  return query.scalar_type() == at::kFloat
             ? attend_of<float>(query, key, value, keys, values, slots, tables, tiles, scoring,
                                sinks)
             : attend_of<c10::BFloat16>(query, key, value, keys, values, slots, tables, tiles,
                                        scoring, sinks);
}

}  // namespace triptych
