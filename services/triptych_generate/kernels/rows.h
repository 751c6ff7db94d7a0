// Functions of single rows: root mean square norm and rotary embedding.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "vectors.h"

namespace triptych {

// x / rms(x) * weight over the last dimension of x [rows, heads, dim].
template <typename T>
void rms_norm_of(const at::Tensor& x, const T* weight, float eps, T* out) {
  const int64_t heads = x.size(1), dim = x.size(2);
  const T* from = x.const_data_ptr<T>();
  at::parallel_for(
      0, x.size(0) * heads, std::max<int64_t>(1, 32768 / dim), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const T* row = from + task / heads * x.stride(0) + task % heads * x.stride(1);
          Floats squares{};
          for (int64_t d = 0; d < dim; d += kLanes) {
            const Floats value = load_some(row + d, dim - d);
            squares += value * value;
          }
          const float factor = 1.0f / std::sqrt(sum_of(squares) / float(dim) + eps);
          for (int64_t d = 0; d < dim; d += kLanes)
            store_some(out + task * dim + d,
                       load_some(row + d, dim - d) * factor * load_some(weight + d, dim - d),
                       dim - d);
        }
      });
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  const at::Tensor view = x.dim() == 3 ? x : x.view({-1, 1, x.size(-1)});
  if (x.scalar_type() == at::kFloat)
    rms_norm_of(view, weight.const_data_ptr<float>(), float(eps), out.mutable_data_ptr<float>());
  else
    rms_norm_of(view, weight.const_data_ptr<c10::BFloat16>(), float(eps),
                out.mutable_data_ptr<c10::BFloat16>());
  return out;
}

// Rotates x [rows, heads, dim] in place by cos and sin [rows, dim], halves against each other.
template <typename T>
void rotate_of(const at::Tensor& x, const T* cos, const T* sin) {
  const int64_t heads = x.size(1), dim = x.size(2), half = dim / 2;
  T* data = x.mutable_data_ptr<T>();
  at::parallel_for(
      0, x.size(0), std::max<int64_t>(1, 16384 / (heads * dim)), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          for (int64_t head = 0; head < heads; ++head) {
            T* low = data + row * x.stride(0) + head * x.stride(1);
            T* high = low + half;
            const T *c = cos + row * dim, *s = sin + row * dim;
            for (int64_t d = 0; d < half; d += kLanes) {
              const int64_t count = half - d;
              const Floats first = load_some(low + d, count), second = load_some(high + d, count);
              store_some(low + d,
                         first * load_some(c + d, count) - second * load_some(s + d, count), count);
              store_some(
                  high + d,
                  second * load_some(c + half + d, count) + first * load_some(s + half + d, count),
                  count);
            }
          }
      });
}

void rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  if (x.scalar_type() == at::kFloat)
    rotate_of(x, cos.const_data_ptr<float>(), sin.const_data_ptr<float>());
  else
    rotate_of(x, cos.const_data_ptr<c10::BFloat16>(), sin.const_data_ptr<c10::BFloat16>());
}

}  // namespace triptych
