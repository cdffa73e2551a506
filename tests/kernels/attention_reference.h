// tests/kernels/attention_reference.h -- attention as the textbook has it: a dense matrix of double, autograd, and
// masks and draws decided element by element.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/kernels/attention.h"

namespace trireme::kernels::dense_attention {

struct Case {
  std::string name;
  std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, key_heads = 1, size = 8;
  bool causal = false;
  std::int64_t window = 0, query_position = 0, key_position = 0;
  int documents = 0;  ///< how many, cut at uneven places
  double dropout = 0;
  bool fused = false;  ///< q, k, v and their gradients are views of one tensor
  double scale = 0;    ///< 0: 1 / sqrt(size)
};

inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// The inputs of a case and the options that go with them; the options point into this.
struct Inputs {
  at::Tensor q, k, v, dout;
  at::Tensor query_documents, key_documents, samples;
  std::optional<AttentionDropout> dropout;
  Attention options;

  Inputs(const Case& c, at::ScalarType type) {
    at::Generator generator = at::detail::createCPUGenerator(7);  // the default one starts anew with every process
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator, at::kDouble).to(type); };
    if (c.fused) {
      const at::Tensor all = random({c.batch, c.queries, c.heads + 2 * c.key_heads, c.size});
      q = all.slice(2, 0, c.heads);
      k = all.slice(2, c.heads, c.heads + c.key_heads);
      v = all.slice(2, c.heads + c.key_heads);
    } else {
      q = random({c.batch, c.queries, c.heads, c.size});
      k = random({c.batch, c.keys, c.key_heads, c.size});
      v = random({c.batch, c.keys, c.key_heads, c.size});
    }
    dout = random({c.batch, c.queries, c.heads, c.size});
    options.scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.size));
    options.causal = c.causal, options.window = c.window;
    options.query_position = c.query_position, options.key_position = c.key_position;
    if (c.documents > 0) {
      query_documents = documents(c.batch, c.queries, c.documents);
      key_documents = documents(c.batch, c.keys, c.documents);
    }
    if (c.dropout > 0) {
      samples = at::arange(c.batch, at::kLong).mul(1000003).add(17);
      dropout = AttentionDropout{.stream = Random(5, "dropout/test"), .p = c.dropout, .first_head = 3};
    }
    point();
  }
  Inputs(const Inputs& other) { *this = other; }
  Inputs& operator=(const Inputs& other) {
    q = other.q, k = other.k, v = other.v, dout = other.dout;
    query_documents = other.query_documents, key_documents = other.key_documents, samples = other.samples;
    dropout = other.dropout, options = other.options;
    point();
    return *this;
  }

  void point() {
    options.query_documents = query_documents.defined() ? &query_documents : nullptr;
    options.key_documents = key_documents.defined() ? &key_documents : nullptr;
    if (dropout) dropout->samples = &samples;
    options.dropout = dropout ? &*dropout : nullptr;
  }

  /// Row b's documents end at other places than row b - 1's; numbers are neither sorted nor dense.
  static at::Tensor documents(std::int64_t batch, std::int64_t length, int count) {
    at::Tensor all = at::empty({batch, length}, at::kInt);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t number = (i * count + b * length / 3) / length;
        all.data_ptr<int>()[b * length + i] = static_cast<int>((number * 7 + 3) % 101);
      }
    }
    return all;
  }
};

/// The documented draw: 1 / (1 - p) where (sample, head, query, key) stays, 0 where it falls.
inline double draw(const AttentionDropout& d, std::int64_t sample, std::int64_t head, std::int64_t query,
                   std::int64_t key) {
  const PhiloxCounter s =
      d.stream.block(Random::Purpose::kAttention, static_cast<std::uint64_t>(sample), static_cast<std::uint32_t>(head));
  const auto block = static_cast<std::uint32_t>(key / 64 * 16 + key % 16);
  const PhiloxCounter words = philox({static_cast<std::uint32_t>(query), block, s[2], s[3]}, {s[0], s[1]});
  const std::uint32_t bits = words[static_cast<std::size_t>(key % 64 / 16)];
  return static_cast<double>(bits) < std::round(d.p * 0x1p32) ? 0 : 1 / (1 - d.p);
}

/// 1 where the query sees the key: [batch, queries, keys].
inline at::Tensor seen(const Inputs& in) {
  const std::int64_t batch = in.q.size(0), queries = in.q.size(1), keys = in.k.size(1);
  at::Tensor mask = at::zeros({batch, queries, keys}, at::kBool);
  bool* at = mask.data_ptr<bool>();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t j = 0; j < keys; ++j, ++at) {
        const std::int64_t ahead = in.options.key_position + j - in.options.query_position - i;
        *at = true;
        if (in.options.causal && ahead > 0) *at = false;
        if (in.options.window > 0 && std::abs(ahead) >= in.options.window) *at = false;
        if (in.query_documents.defined() &&
            in.query_documents.data_ptr<int>()[b * queries + i] != in.key_documents.data_ptr<int>()[b * keys + j]) {
          *at = false;
        }
      }
    }
  }
  return mask;
}

struct Results {
  at::Tensor out, lse, dq, dk, dv;
};

inline Results reference(const Inputs& in) {
  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().clone().requires_grad_(true); };
  at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const std::int64_t group = in.q.size(2) / in.k.size(2);
  const at::Tensor every_k = k.repeat_interleave(group, 2), every_v = v.repeat_interleave(group, 2);
  const at::Tensor mask = seen(in).unsqueeze(1);
  // Rows that see no key get even probabilities, which are then taken away again: no not-a-number for autograd.
  const at::Tensor sees = mask.any(-1, true).to(at::kDouble);
  const at::Tensor scores =
      at::einsum("bqhd,bkhd->bhqk", {q, every_k}).mul(in.options.scale).masked_fill(mask.logical_not(), -1e30);
  at::Tensor p = at::softmax(scores, -1).mul(sees);
  const at::Tensor lse = at::logsumexp(scores, {-1}).masked_fill(sees.squeeze(-1).eq(0), -INFINITY);
  if (in.dropout) {
    at::Tensor dropout_rng = at::empty_like(p.detach());
    double* at = dropout_rng.data_ptr<double>();
    for (std::int64_t b = 0; b < in.q.size(0); ++b) {
      for (std::int64_t h = 0; h < in.q.size(2); ++h) {
        for (std::int64_t i = 0; i < in.q.size(1); ++i) {
          for (std::int64_t j = 0; j < in.k.size(1); ++j) {
            *at++ = draw(*in.dropout, in.samples.data_ptr<std::int64_t>()[b], in.dropout->first_head + h,
                         in.options.query_position + i, in.options.key_position + j);
          }
        }
      }
    }
    p = p.mul(dropout_rng);
  }
  at::Tensor out = at::einsum("bhqk,bkhd->bqhd", {p, every_v});
  out.backward(in.dout.to(at::kDouble));
  return {out.detach(), lse.detach(), q.grad(), k.grad(), v.grad()};
}

inline at::Tensor empty_lse(const Inputs& in) {
  return at::full({in.q.size(0), in.q.size(2), in.q.size(1)}, 1e9,
                  in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

inline Results forward(const Inputs& in) {
  Results r{.out = at::full(in.q.sizes(), 1e4, in.q.scalar_type()), .lse = empty_lse(in)};
  attention_forward(r.out, r.lse, in.q, in.k, in.v, in.options);
  return r;
}

inline void backward(const Inputs& in, Results& r, bool fused = false) {
  const auto type = in.q.scalar_type();
  if (fused) {
    const at::Tensor all =
        at::full({in.q.size(0), in.q.size(1), in.q.size(2) + 2 * in.k.size(2), in.q.size(3)}, 1e4, type);
    r.dq = all.slice(2, 0, in.q.size(2));
    r.dk = all.slice(2, in.q.size(2), in.q.size(2) + in.k.size(2));
    r.dv = all.slice(2, in.q.size(2) + in.k.size(2));
  } else {
    r.dq = at::full(in.q.sizes(), 1e4, type);
    r.dk = at::full(in.k.sizes(), 1e4, type);
    r.dv = at::full(in.v.sizes(), 1e4, type);
  }
  attention_backward(r.dq, r.dk, r.dv, in.dout, in.q, in.k, in.v, r.out, r.lse, in.options);
}

}  // namespace trireme::kernels::dense_attention
