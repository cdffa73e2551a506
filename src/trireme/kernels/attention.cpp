#include "trireme/kernels/attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "trireme/base/instruction_set.h"
#include "trireme/kernels/attention_arguments.h"
#include "trireme/kernels/attention_cuda.h"
#include "trireme/kernels/cpu/attention_problem.h"
#include "trireme/kernels/sparse/block_layout.h"

namespace trireme::kernels {
namespace {

using namespace cpu;

const AttentionBody& body_for(AttentionType type) {
#if defined(__x86_64__)
  const InstructionSet set = instruction_set();
  if (set >= InstructionSet::kV4Bf16 && type == AttentionType::kBfloat16) return kAttentionBfloat16Dot;
  const AttentionBodies& bodies = set >= InstructionSet::kV4   ? kAttentionV4
                                  : set == InstructionSet::kV3 ? kAttentionV3
                                                               : kAttentionPlain;
#else
  const AttentionBodies& bodies = kAttentionPlain;
#endif
  return bodies.by_type[static_cast<std::size_t>(type)];
}

template <typename Pointer>
AttentionRows<Pointer> rows_of(const at::Tensor& t) {
  return {static_cast<Pointer>(t.data_ptr()), t.stride(0), t.stride(1), t.stride(2)};
}

/// What a problem points to besides tensors.
struct Prepared {
  AttentionProblem problem;
  VisibleKeys visible;
  std::vector<std::uint32_t> streams;

  Prepared(const AttentionArguments& a, const Attention& options) {
    require_attention(a, options);
    AttentionProblem& p = problem;
    p.batch = a.q.size(0), p.queries = a.q.size(1), p.heads = a.q.size(2), p.head_dim = a.q.size(3);
    p.keys = a.k.size(1), p.key_heads = a.k.size(2);
    p.scale = options.scale;
    p.query_position = options.query_position, p.key_position = options.key_position;
    p.q = rows_of<const void*>(a.q), p.k = rows_of<const void*>(a.k), p.v = rows_of<const void*>(a.v);
    p.lse = a.lse.data_ptr();
    p.lse_batch = a.lse.stride(0), p.lse_head = a.lse.stride(1);
    if (a.dout == nullptr) {
      p.out = rows_of<void*>(a.out);
    } else {
      p.out_read = rows_of<const void*>(a.out), p.dout = rows_of<const void*>(*a.dout);
      p.dq = rows_of<void*>(*a.dq), p.dk = rows_of<void*>(*a.dk), p.dv = rows_of<void*>(*a.dv);
    }
    see(options);
    draw(options);
    if (options.blocks != nullptr) {
      p.tile_begin = options.blocks->tile_begin(options.first_layout_head);
      p.tiles = options.blocks->tiles();
    }
  }

 private:
  void see(const Attention& options) {
    const AttentionMask mask{problem.queries, problem.keys,           options.causal,
                             options.window,  options.query_position, options.key_position};
    const bool documents = options.query_documents != nullptr && options.query_documents->defined();
    if (documents) {
      for (std::int64_t b = 0; b < problem.batch; ++b) {
        const at::Tensor &q = *options.query_documents, &k = *options.key_documents;
        append_visible(visible, mask, q.const_data_ptr<std::int32_t>() + b * q.stride(0),
                       k.const_data_ptr<std::int32_t>() + b * k.stride(0));
      }
    } else {
      append_visible(visible, mask, nullptr, nullptr);
    }
    problem.visible_begin = visible.begin.data(), problem.visible_end = visible.end.data();
    problem.visible_batch = documents ? problem.queries : 0;
  }

  void draw(const Attention& options) {
    if (options.dropout == nullptr || options.dropout->p == 0) return;
    const AttentionDropout& dropout = *options.dropout;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      const auto sample =
          static_cast<std::uint64_t>(dropout.samples->const_data_ptr<std::int64_t>()[b * dropout.samples->stride(0)]);
      for (std::int64_t h = 0; h < problem.heads; ++h) {
        const PhiloxCounter words = dropout.stream.block(Random::Purpose::kAttention, sample,
                                                         static_cast<std::uint32_t>(dropout.first_head + h));
        streams.insert(streams.end(), words.begin(), words.end());
      }
    }
    problem.dropout_rng.streams = reinterpret_cast<const std::uint32_t(*)[4]>(streams.data());
    problem.dropout_rng.threshold = dropout_threshold(dropout.p);
    problem.dropout_rng.dropout_scale = 1 / (1 - dropout.p);
  }
};

/// Memory of one thread that calls come back to: it grows to the largest call's need and stays.
class Kept {
 public:
  void* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      // Huge pages where the system has some left: tiles jump about in it, further than a core remembers small pages.
      constexpr std::size_t kPage = std::size_t{2} << 20;
      const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
      void* const memory = std::aligned_alloc(kPage, whole);
      if (memory == nullptr) throw std::bad_alloc();
      memory_.reset(memory);
      madvise(memory, whole, MADV_HUGEPAGE);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

/// One for the work of a thread, one for sums that several threads leave for the caller.
Kept& kept_scratch() {
  static thread_local Kept kept;
  return kept;
}
Kept& kept_sums() {
  static thread_local Kept kept;
  return kept;
}

/// Runs task(0) ... task(count - 1), each on whichever thread is free: they differ in length under a causal mask.
/// Where there are plenty, a thread picks one ahead: task(i, next), next -1 where none is known.
template <typename Task>
void run_tasks(std::int64_t count, const Task& task) {
  std::atomic<std::int64_t> next{0};
  const std::int64_t threads = std::min<std::int64_t>(count, at::get_num_threads());
  const bool plenty = count >= 8 * threads;
  at::parallel_for(0, threads, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t i = next++; i < count;) {
      const std::int64_t ahead = plenty ? next++ : -1;
      task(i, ahead < count ? ahead : -1);
      i = plenty ? ahead : next++;
    }
  });
}

/// A head of keys cut into `parts` spans of its units, the last units first: under a causal mask they take longest.
struct Cut {
  std::int64_t units, parts, key_heads;

  AttentionSpan span(std::int64_t task) const {
    const std::int64_t part = parts - 1 - task % parts, pair = task / parts;
    return {pair / key_heads, pair % key_heads, units * part / parts, units * (part + 1) / parts, nullptr};
  }
};

Cut cut(const AttentionProblem& problem, std::int64_t tasks_wanted, std::int64_t least_units) {
  const std::int64_t units = problem.group() * at::divup(problem.queries, kAttentionQueryBlock);
  const std::int64_t pairs = std::max<std::int64_t>(1, problem.batch * problem.key_heads);
  const std::int64_t parts = std::min(at::divup(tasks_wanted, pairs), units / least_units);
  return {units, std::max<std::int64_t>(1, parts), problem.key_heads};
}

/// Units of a span of the backward pass, at least: work enough to pay for packing the keys again and for sums of its
/// own. Of block-sparse attention a unit has fewer tiles, and a span more units.
std::int64_t least_units_of_backward(const AttentionProblem& problem) {
  constexpr std::int64_t kLeast = 8;
  if (problem.tile_begin == nullptr) return kLeast;
  const std::int64_t units = problem.heads * at::divup(problem.queries, kAttentionQueryBlock);
  // Under a causal mask half of all tiles, which of one head's few keys may be less than one.
  const std::int64_t dense = std::max<std::int64_t>(1, units * at::divup(problem.keys, kAttentionKeyBlock) / 2);
  return at::divup(kLeast * dense, std::max<std::int64_t>(1, std::min(dense, problem.tile_begin[units])));
}

}  // namespace

std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(std::min(std::round(p * 0x1p32), 0x1p32 - 1));
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Attention& options) {
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  AttentionResult result{at::empty(q.sizes(), q.options()),
                         at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(type))};
  if (q.is_cuda()) {
    require_attention({q, k, v, result.out, result.lse}, options);
    cuda_attention_forward(result, q, k, v, options);
    return result;
  }
  attention_forward(result.out, result.lse, q, k, v, options);
  return result;
}

void attention_forward(at::Tensor& out, at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const Attention& options) {
  if (q.is_cuda()) {
    require_attention({q, k, v, out, lse}, options);
    AttentionResult result{out, lse};
    cuda_attention_forward(result, q, k, v, options);
    if (!result.out.is_same(out)) out.copy_(result.out);
    if (!result.lse.is_same(lse)) lse.copy_(result.lse);
    return;
  }
  const Prepared prepared({q, k, v, out, lse}, options);
  const AttentionProblem& problem = prepared.problem;
  const AttentionBody& body = body_for(attention_type(q));
  // A row's bits do not depend on which span it is in, so here the number of threads may decide. Each span packs the
  // keys again, which costs about an eighth of a unit.
  const std::int64_t threads = at::get_num_threads(), pairs = problem.batch * problem.key_heads;
  const Cut spans = cut(problem, pairs % threads == 0 ? pairs : 4 * threads, 2);
  const std::size_t bytes = body.forward_scratch(problem);
  const std::int64_t tasks = problem.queries == 0 ? 0 : pairs * spans.parts;
  run_tasks(tasks, [&](std::int64_t task, std::int64_t ahead) {
    const AttentionSpan next = spans.span(std::max<std::int64_t>(ahead, 0));
    AttentionSpan span = spans.span(task);
    if (ahead >= 0) span.next = &next;
    body.forward(problem, span, kept_scratch().at_least(bytes));
  });
}

void attention_backward(at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const Attention& options) {
  if (q.is_cuda()) {
    require_attention({q, k, v, out, lse, &dout, &dq, &dk, &dv}, options);
    return cuda_attention_backward({dq, dk, dv}, dout, q, k, v, out, lse, options);
  }
  const Prepared prepared({q, k, v, out, lse, &dout, &dq, &dk, &dv}, options);
  const AttentionProblem& problem = prepared.problem;
  const AttentionBody& body = body_for(attention_type(q));
  // The order of additions follows the cut, which therefore follows shapes and lists of blocks alone: parts only where
  // heads are few.
  const Cut spans = cut(problem, 16, least_units_of_backward(problem));
  const std::int64_t pairs = problem.batch * problem.key_heads;
  const std::size_t bytes = body.backward_scratch(problem), sums_bytes = body.sums_bytes(problem);
  if (spans.parts == 1) {
    run_tasks(pairs, [&](std::int64_t task, std::int64_t ahead) {
      char* const scratch = static_cast<char*>(kept_scratch().at_least(bytes + sums_bytes));
      const AttentionSpan next = spans.span(std::max<std::int64_t>(ahead, 0));
      AttentionSpan span = spans.span(task);
      if (ahead >= 0) span.next = &next;
      body.backward(problem, span, scratch + bytes, scratch);
      body.write_sums(problem, span.batch, span.key_head, scratch + bytes, 1);
    });
    return;
  }
  char* const sums =
      static_cast<char*>(kept_sums().at_least(sums_bytes * static_cast<std::size_t>(pairs * spans.parts)));
  const auto sums_at = [&](std::int64_t index) { return sums + static_cast<std::size_t>(index) * sums_bytes; };
  run_tasks(pairs * spans.parts, [&](std::int64_t task, std::int64_t) {
    body.backward(problem, spans.span(task), sums_at(task), kept_scratch().at_least(bytes));
  });
  run_tasks(pairs, [&](std::int64_t pair, std::int64_t) {
    body.write_sums(problem, pair / problem.key_heads, pair % problem.key_heads, sums_at(pair * spans.parts),
                    spans.parts);
  });
}

void attention_merge(at::Tensor& out, at::Tensor& lse, const at::Tensor& other_out, const at::Tensor& other_lse) {
  require_mergeable(out, lse, other_out, other_lse);
  const std::int64_t batch = out.size(0), queries = out.size(1), heads = out.size(2);
  if (out.is_cuda()) return cuda_attention_merge(out, lse, other_out, other_lse);
  const AttentionBody& body = body_for(attention_type(out));
  const auto to = rows_of<char*>(out);
  const auto from = rows_of<const char*>(other_out);
  const std::int64_t element = static_cast<std::int64_t>(out.element_size());
  const auto merge = [&]<typename Real>(Real* mine, const Real* theirs) {
    at::parallel_for(0, batch * queries, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t b = i / queries, row = i % queries;
          Real& a = mine[b * lse.stride(0) + h * lse.stride(1) + row * lse.stride(2)];
          const Real other = theirs[b * other_lse.stride(0) + h * other_lse.stride(1) + row * other_lse.stride(2)];
          const double most = std::max<double>(a, other), least = std::min<double>(a, other);
          if (std::isinf(most) && most < 0) continue;  // neither saw a key
          const double joined = most + std::log1p(std::exp(least - most));
          body.merge({.out = to.data + element * (b * to.batch + row * to.row + h * to.head),
                      .other = from.data + element * (b * from.batch + row * from.row + h * from.head),
                      .size = out.size(3),
                      .out_weight = std::exp(a - joined),
                      .other_weight = std::exp(other - joined)});
          a = static_cast<Real>(joined);
        }
      }
    });
  };
  if (lse.scalar_type() == at::kDouble) {
    merge(lse.mutable_data_ptr<double>(), other_lse.const_data_ptr<double>());
  } else {
    merge(lse.mutable_data_ptr<float>(), other_lse.const_data_ptr<float>());
  }
}

}  // namespace trireme::kernels
