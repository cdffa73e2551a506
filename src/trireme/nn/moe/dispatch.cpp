#include "trireme/nn/moe/dispatch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::nn::moe {
namespace {

std::int64_t sum_of_counts(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::span<const std::int64_t> row_numbers_of(const at::Tensor& of) {
  return {of.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(of.numel())};
}

/// Where the passes of the rank that has these experts begin and end, in rows ordered by (expert, source, place).
std::vector<std::int64_t> pass_edges(std::span<const std::int64_t> of_experts, std::int64_t limit) {
  std::vector<std::int64_t> edges{0};
  std::int64_t at = 0;
  for (const std::int64_t rows : of_experts) {
    if (at > edges.back() && at + rows - edges.back() > limit) edges.push_back(at);  // the expert begins a pass
    at += rows;
    while (at - edges.back() > limit) edges.push_back(edges.back() + limit);  // it is larger than one
  }
  if (at > edges.back() || edges.size() == 1) edges.push_back(at);
  return edges;
}

/// Of rows [begin, end) of a rank's, in the order (expert, source, place), which is home order for each source: how
/// many come from each source for each of its experts, and how many came before. `of_rank` are [ranks, local experts].
struct PassPart {
  std::vector<std::int64_t> counts;  // [ranks, local experts]
  std::vector<std::int64_t> before;  // [ranks]
};
PassPart rows_between(std::int64_t begin, std::int64_t end, std::span<const std::int64_t> of_rank, int ranks) {
  const std::size_t experts = of_rank.size() / static_cast<std::size_t>(ranks);
  PassPart part{std::vector<std::int64_t>(of_rank.size(), 0),
                std::vector<std::int64_t>(static_cast<std::size_t>(ranks))};
  std::int64_t at = 0;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    for (std::size_t source = 0; source < static_cast<std::size_t>(ranks); ++source) {
      const std::int64_t rows = of_rank[source * experts + expert];
      const std::int64_t from = std::clamp(begin, at, at + rows), to = std::clamp(end, at, at + rows);
      part.counts[source * experts + expert] = to - from;
      part.before[source] += from - at;
      at += rows;
    }
  }
  return part;
}

}  // namespace

std::vector<std::int64_t> LocalExchange::gather_counts(std::span<const std::int64_t> mine) {
  return {mine.begin(), mine.end()};
}

at::Tensor LocalExchange::exchange(const at::Tensor& rows, std::span<const std::int64_t> send,
                                   std::span<const std::int64_t> receive) {
  TRIREME_CHECK(send[0] == receive[0] && rows.size(0) == send[0], "{} rows for {} places", send[0], receive[0]);
  return rows;
}

std::vector<std::int64_t> AllToAllExchange::gather_counts(std::span<const std::int64_t> mine) {
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group_.size()));
  group_
      .all_gather(comm::ConstBuffer{mine.data(), mine.size(), comm::DType::kI64},
                  comm::Buffer{all.data(), all.size(), comm::DType::kI64})
      .wait();
  return all;
}

PendingRows AllToAllExchange::begin(const at::Tensor& rows, std::span<const std::int64_t> send,
                                    std::span<const std::int64_t> receive) {
  TRIREME_CHECK(rows.dim() <= 2, "rows of {} dimensions", rows.dim());
  const std::int64_t row = rows.dim() > 1 ? rows.size(1) : 1;  // known on a rank without rows too
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape[0] = sum_of_counts(receive);
  PendingRows pending{.leaving = rows.contiguous(), .arriving = at::empty(shape, rows.options())};
  const auto elements = [row](std::span<const std::int64_t> counts) {
    std::vector<std::size_t> out_counts;
    for (const std::int64_t count : counts) out_counts.push_back(static_cast<std::size_t>(count * row));
    return out_counts;
  };
  pending.work = group_.all_to_all_v(device::to_const_buffer(pending.leaving), device::to_buffer(pending.arriving),
                                     elements(send), elements(receive));
  return pending;
}

DispatchPlan plan_dispatch(std::span<const std::int64_t> counts, int ranks, int rank, std::int64_t limit) {
  const auto all = static_cast<std::int64_t>(counts.size()) / ranks, each = all / ranks;
  TRIREME_CHECK(each * ranks == all, "{} experts on {} ranks", all, ranks);
  TRIREME_CHECK(limit > 0, "a pass of {} rows", limit);
  // What each rank gets, [ranks, local experts], and where its passes end.
  std::vector<std::vector<std::int64_t>> of_rank(static_cast<std::size_t>(ranks)), edges;
  std::size_t passes = 1;
  for (int to = 0; to < ranks; ++to) {
    std::vector<std::int64_t> of_experts(static_cast<std::size_t>(each), 0);
    for (int from = 0; from < ranks; ++from) {
      for (std::int64_t expert = 0; expert < each; ++expert) {
        const std::int64_t rows = counts[static_cast<std::size_t>(from * all + to * each + expert)];
        of_rank[static_cast<std::size_t>(to)].push_back(rows);
        of_experts[static_cast<std::size_t>(expert)] += rows;
      }
    }
    edges.push_back(pass_edges(of_experts, limit));
    passes = std::max(passes, edges.back().size() - 1);
  }
  DispatchPlan plan(passes);
  for (int to = 0; to < ranks; ++to) {
    const auto& mine = of_rank[static_cast<std::size_t>(to)];
    std::int64_t home = 0;  // this rank's rows for ranks before `to`
    for (std::int64_t expert = 0; expert < to * each; ++expert) {
      home += counts[static_cast<std::size_t>(rank * all + expert)];
    }
    for (std::size_t p = 0; p < passes; ++p) {
      const auto& edge = edges[static_cast<std::size_t>(to)];
      const std::int64_t begin = edge[std::min(p, edge.size() - 1)], end = edge[std::min(p + 1, edge.size() - 1)];
      const PassPart part = rows_between(begin, end, mine, ranks);
      const auto from_me =
          std::span(part.counts).subspan(static_cast<std::size_t>(rank * each), static_cast<std::size_t>(each));
      plan[p].send_first.push_back(home + part.before[static_cast<std::size_t>(rank)]);
      plan[p].send.push_back(sum_of_counts(from_me));
      if (to != rank) continue;
      plan[p].counts = part.counts;
      plan[p].offsets.assign(static_cast<std::size_t>(each) + 1, 0);
      for (std::size_t i = 0; i < part.counts.size(); ++i) {
        plan[p].offsets[i % static_cast<std::size_t>(each) + 1] += part.counts[i];
      }
      std::partial_sum(plan[p].offsets.begin(), plan[p].offsets.end(), plan[p].offsets.begin());
      for (int from = 0; from < ranks; ++from) {
        plan[p].receive.push_back(sum_of_counts(
            std::span(part.counts).subspan(static_cast<std::size_t>(from * each), static_cast<std::size_t>(each))));
      }
    }
  }
  return plan;
}

std::int64_t arena_rows(std::span<const std::int64_t> counts, int ranks, double arena) {
  const double even = static_cast<double>(sum_of_counts(counts)) / ranks;
  // No rank gets more than all rows, which are so many even shares as there are ranks.
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(std::min<double>(arena, ranks) * even)));
}

Dispatch::Dispatch(RowExchange& exchange, const DispatchPass& pass, Tokens home, std::int64_t node_ranks)
    : exchange_(exchange), pass_(pass), home_(std::move(home)) {
  pending_numbers_ = exchange_.begin(send_rows(home_.number), pass_.send, pass_.receive);
  if (exchange_.ranks() == 1) {
    numbers_ = pending_numbers_.wait();  // sorted at home
    return;
  }
  if (node_ranks == 0 || node_ranks >= exchange_.ranks()) return;
  pending_numbers_.arriving = pending_numbers_.wait();
  const at::Tensor tokens = home_.token.cpu(), numbers = home_.number.cpu(), here = pending_numbers_.arriving.cpu();
  route_.emplace(exchange_, static_cast<int>(node_ranks), pass_,
                 NodeRoute::Sent{.tokens = row_numbers_of(tokens), .numbers = row_numbers_of(numbers)},
                 row_numbers_of(here));
}

void Dispatch::settle() const {
  if (numbers_.defined()) return;
  const at::Tensor received = pending_numbers_.wait();
  // Keys (expert, token): tokens of one source come in order, so a stable merge by expert and number is a sort.
  const at::Tensor here = received.cpu();  // the same tensor where it is there
  const auto* number = here.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> expert_of;
  const std::size_t experts = pass_.offsets.size() - 1;
  for (std::size_t i = 0; i < pass_.counts.size(); ++i) {
    expert_of.insert(expert_of.end(), static_cast<std::size_t>(pass_.counts[i]),
                     static_cast<std::int64_t>(i % experts));
  }
  order_ = at::empty({received.size(0)}, at::kLong);
  auto* order = order_.mutable_data_ptr<std::int64_t>();
  std::iota(order, order + received.size(0), 0);
  std::stable_sort(order, order + received.size(0), [&](std::int64_t a, std::int64_t b) {
    const std::int64_t left = expert_of[static_cast<std::size_t>(a)], right = expert_of[static_cast<std::size_t>(b)];
    return left != right ? left < right : number[a] < number[b];
  });
  order_ = order_.to(received.device());
  numbers_ = received.index_select(0, order_);
}

at::Tensor Dispatch::send_rows(const at::Tensor& home) const {
  std::vector<at::Tensor> parts;
  for (std::size_t r = 0; r < pass_.send.size(); ++r)
    parts.push_back(home.narrow(0, pass_.send_first[r], pass_.send[r]));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

PendingRows Dispatch::begin_to_experts(const at::Tensor& home) const {
  return exchange_.begin(send_rows(home), pass_.send, pass_.receive);
}

PendingRows Dispatch::begin_tokens(const at::Tensor& tokens) const {
  if (route_) return {.leaving = at::Tensor(), .arriving = route_->move(tokens)};
  return exchange_.begin(tokens.index_select(0, send_rows(home_.token)), pass_.send, pass_.receive);
}

PendingRows Dispatch::begin_home(const at::Tensor& rows) const {
  settle();
  at::Tensor leaving = rows;
  if (order_.defined()) {
    leaving = at::empty_like(rows);
    leaving.index_copy_(0, order_, rows);
  }
  return exchange_.begin(leaving, pass_.receive, pass_.send);
}

at::Tensor Dispatch::arrived(PendingRows& pending) const {
  settle();
  at::Tensor received = pending.wait();
  return order_.defined() ? received.index_select(0, order_) : received;
}

void Dispatch::arrived_home(PendingRows& pending, at::Tensor& home) const {
  const at::Tensor back = pending.wait();
  std::int64_t at = 0;
  for (std::size_t r = 0; r < pass_.send.size(); ++r) {
    if (pass_.send[r] > 0) home.narrow(0, pass_.send_first[r], pass_.send[r]).copy_(back.narrow(0, at, pass_.send[r]));
    at += pass_.send[r];
  }
}

at::Tensor Dispatch::to_experts(const at::Tensor& home) const {
  PendingRows pending = begin_to_experts(home);
  return arrived(pending);
}

at::Tensor Dispatch::tokens_to_experts(const at::Tensor& tokens) const {
  PendingRows pending = begin_tokens(tokens);
  return arrived(pending);
}

void Dispatch::to_home(const at::Tensor& rows, at::Tensor& home) const {
  PendingRows pending = begin_home(rows);
  arrived_home(pending, home);
}

}  // namespace trireme::nn::moe
