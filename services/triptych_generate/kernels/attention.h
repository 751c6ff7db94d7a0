// Attention over keys and values in blocks.
//
// A query row's scores with all keys come first, block after block in order of position, then its
// softmax, then the sum of values. Each score and each summed value is one chain of fused
// multiply-adds in a lane of its own, so neither other rows, nor threads, nor how a prefill was cut
// change a bit. A hidden key's weight is an exact zero.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "tasks.h"
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
  const float* query;  // [rows, dim], scaled
  float* weights;      // [rows, width]: scores, then softmax weights
  int64_t width;       // keys of all blocks that the tile meets
  float* sums;         // [rows, value_dim]
};

// Scores with keys of a block, into the group's columns from `at` on. Meanwhile the same keys of
// the block at `next` are fetched.
template <int Rows, int Width, typename T>
void score(const Group& group, const T* keys, const T* next, int64_t dim, int64_t block,
           int64_t column, int64_t at) {
  Floats local[Rows][Width] = {};
  for (int64_t d = 0; d < dim; ++d) {
    Floats key[Width];
    for (int v = 0; v < Width; ++v) {
      key[v] = load(keys + d * block + column + v * kLanes);
      __builtin_prefetch(next + d * block + column + v * kLanes);
    }
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row)
      for (int v = 0; v < Width; ++v) local[row][v] += group.query[row * dim + d] * key[v];
  }
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Width; ++v)
      store(group.weights + row * group.width + at + column + v * kLanes, local[row][v]);
}

// Adds a block's values from `begin` to `end`, weighed by the group's columns from `at` on.
// Meanwhile the same values of the block at `next` are fetched.
template <int Rows, int Width, typename T>
void add_values(const Group& group, const T* values, const T* next, int64_t begin, int64_t end,
                int64_t value_dim, int64_t column, int64_t at) {
  Floats local[Rows][Width];
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Width; ++v)
      local[row][v] = load(group.sums + row * value_dim + column + v * kLanes);
  for (int64_t key = begin; key < end; ++key) {
    Floats value[Width];
    for (int v = 0; v < Width; ++v) {
      value[v] = load(values + key * value_dim + column + v * kLanes);
      __builtin_prefetch(next + key * value_dim + column + v * kLanes);
    }
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row)
      for (int v = 0; v < Width; ++v)
        local[row][v] += group.weights[row * group.width + at + key] * value[v];
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
void score_all(const Group& group, const T* keys, const T* next, int64_t begin, int64_t end,
               int64_t dim, int64_t block, int64_t at) {
  for (int64_t column = begin / kLanes * kLanes; column < end; column += kWide * kLanes) {
    const int64_t width = (end - column + kLanes - 1) / kLanes;
#define CALL(ROWS, WIDTH) score<ROWS, WIDTH, T>(group, keys, next, dim, block, column, at)
    WIDTHS(CALL, Rows)
#undef CALL
  }
}

template <int Rows, typename T>
void add_all(const Group& group, const T* values, const T* next, int64_t begin, int64_t end,
             int64_t value_dim, int64_t at) {
  for (int64_t column = 0; column < value_dim; column += kWide * kLanes) {
    const int64_t width = (value_dim - column) / kLanes;
#define CALL(ROWS, WIDTH) \
  add_values<ROWS, WIDTH, T>(group, values, next, begin, end, value_dim, column, at)
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

// Scores of one row to weights before division, in place; returns their sum. The row sees the keys
// from `begin` to `end`; `sink` is a score without a value, minus infinity for none.
inline float weigh(float* scores, int64_t width, int64_t begin, int64_t end, float softcap,
                   float sink) {
  if (softcap > 0)
    for (int64_t key = begin; key < end; ++key)
      scores[key] = std::tanh(scores[key] / softcap) * softcap;
  std::fill(scores, scores + begin, -kInfinity);
  std::fill(scores + end, scores + width, -kInfinity);
  Floats tops = broadcast(sink);
  for (int64_t key = 0; key < width; key += kLanes) tops = greater(load(scores + key), tops);
  const float top = max_of(tops);
  Floats total{};
#pragma GCC unroll 4
  for (int64_t key = 0; key < width; key += kLanes) {
    const Floats weight = exp_of(load(scores + key) - top);
    store(scores + key, weight);
    total += weight;
  }
  return exp_of(broadcast(sink - top))[0] + sum_of(total);
}

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

  // `after`: what is read after this tile, to be fetched in time.
  void attend(const Tile& tile, int64_t kv_head, const T* after) const {
    const int64_t last = tile.position + tile.rows - 1;
    const int64_t earliest = first_visible(tile.position), first = earliest / pools.block;
    const int64_t blocks = last / pools.block - first + 1, width = blocks * pools.block;
    const int64_t share = heads / pools.kv_heads, num_rows = share * tile.rows;
    static thread_local std::vector<float> room;
    const int64_t each = pools.dim + width + pools.value_dim + 1;
    room.resize(std::max<size_t>(
        room.size(), num_rows * each + pools.block * std::max(pools.dim, pools.value_dim)));
    float* query_room = room.data();
    float* weights = query_room + num_rows * pools.dim;
    float* sums = weights + num_rows * width;
    float* totals = sums + num_rows * pools.value_dim;
    float* wide = totals + num_rows;
    std::fill(sums, totals, 0.0f);
    static thread_local std::vector<Group> groups;
    groups.clear();
    for (int64_t row = 0; row < num_rows; row += kHeadRows) {
      const int rows = int(std::min<int64_t>(kHeadRows, num_rows - row));
      groups.push_back({rows, query_room + row * pools.dim, weights + row * width, width,
                        sums + row * pools.value_dim});
      lay_out(tile, kv_head * share, row, rows, query_room + row * pools.dim);
    }
    // Positions in a block that the tile meets.
    const auto begin = [&](int64_t block) {
      return std::max<int64_t>(0, earliest - (first + block) * pools.block);
    };
    const auto end = [&](int64_t block) {
      return std::min(pools.block, last + 1 - (first + block) * pools.block);
    };
    const T* values = pools.value_block(id_of(tile, first), kv_head);
    for (int64_t block = 0; block < blocks; ++block) {
      const T* keys = pools.key_block(id_of(tile, first + block), kv_head);
      const T* next =
          block + 1 < blocks ? pools.key_block(id_of(tile, first + block + 1), kv_head) : values;
      if (is_widened(groups)) {
        const float* floats = widened(keys, pools.dim * pools.block, wide);
        score_groups(groups, floats, floats, block, begin(block), end(block));
      } else {
        score_groups(groups, keys, next, block, begin(block), end(block));
      }
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t position = tile.position + row % tile.rows, start = first * pools.block;
      const int64_t head = kv_head * share + row / tile.rows;
      totals[row] =
          weigh(weights + row * width, width, first_visible(position) - start, position + 1 - start,
                scoring.softcap, sinks == nullptr ? -kInfinity : sinks[head]);
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const T* next =
          block + 1 < blocks ? pools.value_block(id_of(tile, first + block + 1), kv_head) : after;
      if (is_widened(groups)) {
        const float* floats = widened(values, pools.block * pools.value_dim, wide);
        add_groups(groups, floats, floats, block, begin(block), end(block));
      } else {
        add_groups(groups, values, next, block, begin(block), end(block));
      }
      values = next;
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t head = kv_head * share + row / tile.rows;
      T* to = out + ((tile.first_row + row % tile.rows) * heads + head) * pools.value_dim;
      for (int64_t d = 0; d < pools.value_dim; d += kLanes)
        store(to + d, load(sums + row * pools.value_dim + d) / totals[row]);
    }
  }

  // Several groups share the work of making a block's numbers float32.
  static bool is_widened(const std::vector<Group>& groups) {
    return sizeof(T) < sizeof(float) && groups.size() > 1;
  }

  int64_t first_visible(int64_t position) const {
    return scoring.window > 0 ? std::max<int64_t>(0, position - scoring.window + 1) : 0;
  }

  const T* first_keys(const Tile& tile, int64_t kv_head) const {
    return pools.key_block(id_of(tile, first_visible(tile.position) / pools.block), kv_head);
  }

  int64_t id_of(const Tile& tile, int64_t index) const {
    return tables[tile.table * table_len + index];
  }

  // Scaled query rows `first …` of a tile, for heads from `head` on, as [rows, dim].
  void lay_out(const Tile& tile, int64_t head, int64_t first, int rows, float* to) const {
    for (int row = 0; row < rows; ++row) {
      const int64_t at = first + row;
      const T* from = query + (head + at / tile.rows) * head_stride +
                      (tile.first_row + at % tile.rows) * row_stride;
      for (int64_t d = 0; d < pools.dim; d += kLanes)
        store_some(to + row * pools.dim + d, load_some(from + d, pools.dim - d) * scoring.scaling,
                   pools.dim - d);
    }
  }

  template <typename K>
  void score_groups(const std::vector<Group>& groups, const K* keys, const K* next, int64_t block,
                    int64_t begin, int64_t end) const {
    for (const Group& group : groups)
      ROWS_OF(group, score_all, keys, next, begin, end, pools.dim, pools.block, block * pools.block)
  }

  template <typename K>
  void add_groups(const std::vector<Group>& groups, const K* values, const K* next, int64_t block,
                  int64_t begin, int64_t end) const {
    for (const Group& group : groups)
      ROWS_OF(group, add_all, values, next, begin, end, pools.value_dim, block * pools.block)
  }
};

template <typename T>
void write(const Pools<T>& pools, const at::Tensor& key, const at::Tensor& value,
           const int32_t* slots, int64_t num_slots) {
  const T *from_keys = key.const_data_ptr<T>(), *from_values = value.const_data_ptr<T>();
  at::parallel_for(0, num_slots * pools.kv_heads, 8, [&](int64_t begin, int64_t end) {
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
  share_tasks(tasks, [&](auto take) {
    for (int64_t task; (task = take()) >= 0;) {
      const int64_t after = std::min(task + 1, tasks - 1);
      attention.attend(tile[task / pools.kv_heads], task % pools.kv_heads,
                       attention.first_keys(tile[after / pools.kv_heads], after % pools.kv_heads));
    }
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
