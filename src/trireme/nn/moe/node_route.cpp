#include "trireme/nn/moe/node_route.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/nn/moe/dispatch.h"

namespace trireme::nn::moe {
namespace {

constexpr int kMostNodeRanks = 62;  // bits of a mask

at::Tensor index_tensor(std::span<const std::int64_t> numbers) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::ranges::copy(numbers, out.mutable_data_ptr<std::int64_t>());
  return out;
}

std::vector<std::int64_t> host_numbers(const at::Tensor& numbers) {
  const at::Tensor here = numbers.cpu();
  return {here.const_data_ptr<std::int64_t>(), here.const_data_ptr<std::int64_t>() + here.numel()};
}

at::Tensor rows_at(const at::Tensor& from, std::span<const std::int64_t> rows) {
  return from.index_select(0, index_tensor(rows).to(from.device()));
}

}  // namespace

NodeRoute::NodeRoute(RowExchange& exchange, int node_ranks, const DispatchPass& pass, const Sent& sent,
                     std::span<const std::int64_t> received)
    : exchange_(exchange), node_ranks_(node_ranks) {
  TRIREME_CHECK(node_ranks > 0 && node_ranks <= kMostNodeRanks && exchange.ranks() % node_ranks == 0,
                "{} ranks in nodes of {}", exchange.ranks(), node_ranks);
  plan_first_hop(pass, sent);
  plan_second_hop(pass, received);
}

void NodeRoute::plan_first_hop(const DispatchPass& pass, const Sent& sent) {
  const int ranks = exchange_.ranks(), nodes = ranks / node_ranks_, place = exchange_.rank() % node_ranks_;
  first_send_.assign(static_cast<std::size_t>(ranks), 0);
  for (int node = 0; node < nodes; ++node) {
    struct Wanted {
      std::int64_t token = 0, mask = 0;
    };
    std::map<std::int64_t, Wanted> wanted;  // by number
    for (int local = 0; local < node_ranks_; ++local) {
      const auto to = static_cast<std::size_t>(node * node_ranks_ + local);
      for (std::int64_t i = pass.send_first[to]; i < pass.send_first[to] + pass.send[to]; ++i) {
        Wanted& one = wanted[sent.numbers[static_cast<std::size_t>(i)]];
        one.token = sent.tokens[static_cast<std::size_t>(i)];
        one.mask |= std::int64_t{1} << local;
      }
    }
    for (const auto& [number, one] : wanted) {
      first_token_.push_back(one.token);
      mask_.push_back(one.mask);
    }
    first_send_[static_cast<std::size_t>(node * node_ranks_ + place)] = static_cast<std::int64_t>(wanted.size());
  }
  // How many come, from those with this rank's place in their nodes.
  std::vector<std::int64_t> one(static_cast<std::size_t>(ranks), 0), counts;
  for (int node = 0; node < nodes; ++node) {
    const auto peer = static_cast<std::size_t>(node * node_ranks_ + place);
    one[peer] = 1;
    counts.push_back(first_send_[peer]);
  }
  const std::vector<std::int64_t> come = host_numbers(exchange_.exchange(index_tensor(counts), one, one));
  first_receive_.assign(static_cast<std::size_t>(ranks), 0);
  for (int node = 0; node < nodes; ++node)
    first_receive_[static_cast<std::size_t>(node * node_ranks_ + place)] = come[static_cast<std::size_t>(node)];
}

void NodeRoute::plan_second_hop(const DispatchPass& pass, std::span<const std::int64_t> received) {
  const int ranks = exchange_.ranks(), nodes = ranks / node_ranks_, first = node_of(exchange_.rank()) * node_ranks_;
  const std::vector<std::int64_t> masks =
      host_numbers(exchange_.exchange(index_tensor(mask_), first_send_, first_receive_));
  second_send_.assign(static_cast<std::size_t>(ranks), 0);
  second_receive_.assign(static_cast<std::size_t>(ranks), 0);
  for (int local = 0; local < node_ranks_; ++local) {
    for (std::size_t row = 0; row < masks.size(); ++row) {
      if ((masks[row] >> local & 1) == 0) continue;
      second_row_.push_back(static_cast<std::int64_t>(row));
      ++second_send_[static_cast<std::size_t>(first + local)];
    }
  }
  // What comes from a rank of this node: of each node's rank in its place, the tokens that have experts here, by
  // number.
  std::vector<std::int64_t> begin(static_cast<std::size_t>(ranks) + 1, 0);
  std::partial_sum(pass.receive.begin(), pass.receive.end(), begin.begin() + 1);
  row_.resize(received.size());
  std::int64_t at = 0;
  for (int local = 0; local < node_ranks_; ++local) {
    for (int node = 0; node < nodes; ++node) {
      const auto source = static_cast<std::size_t>(node * node_ranks_ + local);
      const auto rows =
          received.subspan(static_cast<std::size_t>(begin[source]), static_cast<std::size_t>(pass.receive[source]));
      std::vector<std::int64_t> tokens(rows.begin(), rows.end());
      std::ranges::sort(tokens);
      tokens.erase(std::ranges::unique(tokens).begin(), tokens.end());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        row_[static_cast<std::size_t>(begin[source]) + i] =
            at + (std::ranges::lower_bound(tokens, rows[i]) - tokens.begin());
      }
      at += static_cast<std::int64_t>(tokens.size());
      second_receive_[static_cast<std::size_t>(first + local)] += static_cast<std::int64_t>(tokens.size());
    }
  }
}

at::Tensor NodeRoute::move(const at::Tensor& tokens) const {
  const at::Tensor relayed = exchange_.exchange(rows_at(tokens, first_token_), first_send_, first_receive_);
  const at::Tensor here = exchange_.exchange(rows_at(relayed, second_row_), second_send_, second_receive_);
  return rows_at(here, row_);
}

}  // namespace trireme::nn::moe
