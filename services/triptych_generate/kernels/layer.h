// The two halves of a decoder layer of the llama shape, before and after its attention.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>

#include <optional>
#include <tuple>

#include "linear.h"
#include "rows.h"

namespace triptych {

struct PackedLinear {
  at::Tensor weight;
  std::optional<at::Tensor> bias;
  int64_t features;

  at::Tensor operator()(const at::Tensor& x, const std::optional<at::Tensor>& residual = {},
                        bool gated = false) const {
    return linear(x, weight, bias, residual, features, gated);
  }
};

struct Norm {
  at::Tensor weight;
  double eps;

  at::Tensor operator()(const at::Tensor& x) const { return rms_norm(x, weight, eps); }
};

struct Layer {
  int64_t heads, kv_heads, head_dim;
  Norm input_norm, mlp_norm;
  std::optional<Norm> query_norm, key_norm;
  PackedLinear qkv, output, gate_up, down;

  // Query, key and value, [heads, rows, dim] each, from hidden states [1, rows, hidden].
  std::tuple<at::Tensor, at::Tensor, at::Tensor> before(const at::Tensor& hidden,
                                                        const at::Tensor& cos,
                                                        const at::Tensor& sin) const {
    const at::Tensor all = qkv(input_norm(hidden)).view({hidden.size(1), -1, head_dim});
    at::Tensor query = all.narrow(1, 0, heads), key = all.narrow(1, heads, kv_heads);
    const at::Tensor value = all.narrow(1, heads + kv_heads, kv_heads);
    if (query_norm) query = (*query_norm)(query);
    if (key_norm) key = (*key_norm)(key);
    rotate(query, cos, sin);
    rotate(key, cos, sin);
    return {query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)};
  }

  // Hidden states from those before and attention's [rows, heads, dim]; of `kept` rows, or all.
  at::Tensor after(const at::Tensor& attended, const at::Tensor& hidden,
                   const std::optional<at::Tensor>& kept) const {
    const at::Tensor rows = kept ? at::index_select(attended, 0, *kept) : attended;
    const at::Tensor before = kept ? at::index_select(hidden, 1, *kept) : hidden;
    const at::Tensor middle = output(rows.reshape({1, rows.size(0), -1}), before);
    return down(gate_up(mlp_norm(middle), {}, true), middle);
  }
};

}  // namespace triptych
