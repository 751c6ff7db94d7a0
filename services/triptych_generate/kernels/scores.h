// Log-softmax, true ranks and best entries of vocabulary rows, in three passes over each row.
//
// Rows do not meet, so neither other rows nor threads change a bit. Ties go to the lower id.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "vectors.h"

namespace triptych {

constexpr int64_t kSumLength = 1024;  // terms that are added in float32 before float64 takes over

// Entries outside the row compare as the least.
template <typename T>
Floats load_entries(const T* row, int64_t at, int64_t vocab) {
  if (at + kLanes <= vocab) return load(row + at);
  T room[kLanes];
  std::fill(room, room + kLanes, T(-kInfinity));
  std::copy(row + at, row + vocab, room);
  return load(room);
}

// The greatest entry of a row and its lowest id. NaN anywhere is the greatest; its id means nothing.
template <typename T>
std::pair<float, int64_t> top_of(const T* row, int64_t vocab) {
  Floats tops = broadcast(-kInfinity);
  Ints is_nan{};
  for (int64_t at = 0; at < vocab; at += kLanes) {
    const Floats entries = load_entries(row, at, vocab);
    tops = greater(entries, tops);
    is_nan |= entries != entries;
  }
  for (int lane = 0; lane < kLanes; ++lane)
    if (is_nan[lane]) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const float top = max_of(tops);
  return {top, std::find(row, row + vocab, T(top)) - row};
}

// log(sum(exp(row - top)))
inline float log_total(const float* row, int64_t vocab, float top) {
  double total = 0;
  for (int64_t start = 0; start < vocab; start += kSumLength) {
    Floats part{};
    for (int64_t at = start; at < std::min(start + kSumLength, vocab); at += kLanes)
      part += exp_of(load_entries(row, at, vocab) - top);
    total += sum_of(part);
  }
  return float(std::log(total));
}

// The best entries of a row so far, best first.
struct Best {
  int64_t wanted, held = 0;
  float* values;
  int64_t* ids;

  // What an entry must exceed to get in.
  float bar() const { return held < wanted ? -kInfinity : values[wanted - 1]; }

  void offer(float value, int64_t id) {
    int64_t place = held < wanted ? held++ : wanted - 1;
    for (; place > 0 && values[place - 1] < value; --place) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
    }
    values[place] = value;
    ids[place] = id;
  }
};

inline void find_best(const float* row, int64_t vocab, Best& best) {
  for (int64_t at = 0; at < vocab; at += kLanes) {
    const Floats entries = load_entries(row, at, vocab);
    if (best.held == best.wanted && !(max_of(entries) > best.bar())) continue;
    for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, vocab - at); ++lane)
      if (best.held < best.wanted || entries[lane] > best.bar())
        best.offer(entries[lane], at + lane);
  }
}

struct Place {                      // of one entry among all of a row
  int64_t greater = 0, before = 0;  // strictly greater ones; those and equal ones of lower id
};

inline Place place_of(const float* row, int64_t vocab, int64_t id) {
  const float value = row[id];
  Ints above{}, level{};
  for (int64_t at = 0; at < vocab; at += kLanes) {
    const Floats entries = load_entries(row, at, vocab);
    above -= entries > value;
    if (at < id) level -= entries == value;
  }
  Place place;
  for (int lane = 0; lane < kLanes; ++lane) {
    place.greater += above[lane];
    place.before += above[lane] + level[lane];
  }
  // The last vector above also held entries from `id` on, and what stands for those after the row.
  for (int64_t at = id; at % kLanes != 0; ++at)
    place.before -= (at < vocab ? row[at] : -kInfinity) == value;
  return place;
}

template <typename T>
auto top_entries_of(const at::Tensor& logits) {
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  at::Tensor values = at::empty({rows}, logits.options().dtype(at::kFloat));
  at::Tensor ids = at::empty({rows}, logits.options().dtype(at::kLong));
  const T* from = logits.const_data_ptr<T>();
  float* value = values.mutable_data_ptr<float>();
  int64_t* id = ids.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::tie(value[row], id[row]) = top_of(from + row * vocab, vocab);
  });
  return std::make_tuple(values, ids);
}

// The greatest entry of each row of `logits` [rows, vocab] and its id, [rows] each.
inline auto top_entries(const at::Tensor& logits) {
  return logits.scalar_type() == at::kFloat ? top_entries_of<float>(logits)
                                            : top_entries_of<c10::BFloat16>(logits);
}

// For each row of `logits` [rows, vocab]: the row's own id of `own` and the `count` best entries.
// Gives ids [rows, 1 + count], log-softmax of them, their ranks, how many of the best come before
// the own entry, and [rows, 2]: the top logit, and the log of the sum of exponents below it.
inline auto score_rows(const at::Tensor& logits, const at::Tensor& own, int64_t count) {
  const int64_t rows = logits.size(0), vocab = logits.size(1), width = 1 + count;
  const auto longs = logits.options().dtype(at::kLong);
  at::Tensor ids = at::empty({rows, width}, longs), ranks = at::empty({rows, width}, longs);
  at::Tensor values = at::empty({rows, width}, logits.options()), places = at::empty({rows}, longs);
  at::Tensor norms = at::empty({rows, 2}, logits.options());
  const float* from = logits.const_data_ptr<float>();
  const int64_t* own_ids = own.const_data_ptr<int64_t>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const float* row = from + index * vocab;
      float* value = values.mutable_data_ptr<float>() + index * width;
      int64_t* id = ids.mutable_data_ptr<int64_t>() + index * width;
      int64_t* rank = ranks.mutable_data_ptr<int64_t>() + index * width;
      float* norm = norms.mutable_data_ptr<float>() + index * 2;
      const Place place = place_of(row, vocab, own_ids[index]);
      id[0] = own_ids[index];
      value[0] = row[id[0]];
      rank[0] = 1 + place.greater;
      places.mutable_data_ptr<int64_t>()[index] = place.before;
      if (count > 0) {
        Best best{count, 0, value + 1, id + 1};
        find_best(row, vocab, best);
        for (int64_t at = 1; at < width; ++at)
          rank[at] = at > 1 && value[at] == value[at - 1] ? rank[at - 1] : at;
      }
      norm[0] = count > 0 ? value[1] : top_of(row, vocab).first;
      norm[1] = log_total(row, vocab, norm[0]);
      for (int64_t at = 0; at < width; ++at) value[at] = (value[at] - norm[0]) - norm[1];
    }
  });
  return std::make_tuple(ids, values, ranks, places, norms);
}

}  // namespace triptych
