// Sixteen numbers at a time. A lane's arithmetic never depends on the other lanes.
#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace triptych {

constexpr int kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

typedef float Floats __attribute__((vector_size(64)));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint32_t LooseWords __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const LooseFloats*>(from); }

inline Floats load(const c10::BFloat16* from) {
  const Words bits = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16;
  return reinterpret_cast<Floats>(bits);
}

inline Words load_words(const char* from) { return *reinterpret_cast<const LooseWords*>(from); }

inline void store(float* to, Floats values) { *reinterpret_cast<LooseFloats*>(to) = values; }

inline void store(c10::BFloat16* to, Floats values) {
  const Words bits = reinterpret_cast<Words>(values);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Words result = (values == values) ? rounded : quiet;
  *reinterpret_cast<Halves*>(to) = __builtin_convertvector(result, Halves);
}

template <typename T>
Floats load_some(const T* from, int64_t count) {
  if (count >= kLanes) return load(from);
  T room[kLanes] = {};
  std::copy(from, from + std::max<int64_t>(0, count), room);
  return load(room);
}

template <typename T>
void store_some(T* to, Floats values, int64_t count) {
  if (count >= kLanes) return store(to, values);
  T room[kLanes];
  store(room, values);
  std::copy(room, room + count, to);
}

inline Floats broadcast(float value) { return value - Floats{}; }

inline Floats choose(Ints condition, Floats yes, Floats no) { return condition ? yes : no; }

inline Floats greater(Floats a, Floats b) { return a > b ? a : b; }

// Lanes moved down by `Step`; the topmost come first.
template <int Step, size_t... Lane>
inline Floats moved(Floats v, std::index_sequence<Lane...>) {
  constexpr Ints order = {int((Lane + Step) % kLanes)...};
  return __builtin_shuffle(v, order);
}

constexpr auto kAllLanes = std::make_index_sequence<kLanes>();

inline float sum_of(Floats v) {
  v += moved<8>(v, kAllLanes);
  v += moved<4>(v, kAllLanes);
  v += moved<2>(v, kAllLanes);
  return v[0] + v[1];
}

inline float max_of(Floats v) {
  v = greater(v, moved<8>(v, kAllLanes));
  v = greater(v, moved<4>(v, kAllLanes));
  v = greater(v, moved<2>(v, kAllLanes));
  return std::max(v[0], v[1]);
}

// e^x, 0 below the smallest normal result; x at most 88. Cody-Waite reduction, then the Taylor
// polynomial of degree 7 on [-ln(2)/2, ln(2)/2].
inline Floats exp_of(Floats x) {
  const Floats steps = x * 1.44269504088896341f;
  const Floats shifted = steps + 12582912.0f;  // 1.5 * 2^23 leaves the integer in the low bits
  const Floats whole = shifted - 12582912.0f;
  const Floats r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  Floats sum = broadcast(1.0f / 5040);
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const Ints power = (reinterpret_cast<Ints>(shifted) << 23) + 0x3f800000;
  return x < -87.0f ? Floats{} : sum * reinterpret_cast<Floats>(power);  // NaN stays NaN
}

// One step of a transposition: lanes of rows `Step` apart change places.
template <int Step, size_t... Lane>
inline void exchange(Floats (&rows)[kLanes], std::index_sequence<Lane...>) {
  constexpr Ints upper = {(Lane & Step ? int(kLanes + Lane) - Step : int(Lane))...};
  constexpr Ints lower = {(Lane & Step ? int(kLanes + Lane) : int(Lane) + Step)...};
#pragma GCC unroll 16
  for (int row = 0; row < kLanes; ++row) {
    if (row & Step) continue;
    const Floats first = rows[row], second = rows[row + Step];
    rows[row] = __builtin_shuffle(first, second, upper);
    rows[row + Step] = __builtin_shuffle(first, second, lower);
  }
}

// Rows to columns.
inline void transpose(Floats (&rows)[kLanes]) {
  exchange<1>(rows, kAllLanes);
  exchange<2>(rows, kAllLanes);
  exchange<4>(rows, kAllLanes);
  exchange<8>(rows, kAllLanes);
}

}  // namespace triptych
