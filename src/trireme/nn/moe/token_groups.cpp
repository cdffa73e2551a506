#include "trireme/nn/moe/token_groups.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/moe/expert_copies.h"

namespace trireme::nn::moe {
namespace {

bool shares(const comm::Group* group) { return group != nullptr && group->size() > 1; }

/// Global numbers of the samples; where nobody said (inference), as they come.
std::vector<std::int64_t> sample_numbers(const Context& context, std::int64_t samples) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(samples));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (!context.samples.defined()) {
    TRIREME_CHECK(!context.training, "a router in training needs the global number of each of the {} samples", samples);
    return numbers;
  }
  const at::Tensor here = context.samples.cpu().contiguous();
  TRIREME_CHECK(here.numel() == samples, "{} numbers for {} samples", here.numel(), samples);
  std::copy_n(here.const_data_ptr<std::int64_t>(), samples, numbers.begin());
  return numbers;
}

void check_whole_groups(std::span<const std::int64_t> samples, std::int64_t each) {
  const auto size = static_cast<std::size_t>(each);
  bool whole = samples.size() % size == 0;
  for (std::size_t i = 0; whole && i < samples.size(); ++i) {
    whole =
        samples[i] == samples[i - i % size] + static_cast<std::int64_t>(i % size) && samples[i - i % size] % each == 0;
  }
  if (whole) return;
  throw ConfigError(
      fmt::format("experts.balance_group is {}, but a micro-batch has samples {} to {} of the data, no whole groups",
                  each, samples.front(), samples.back()),
      fmt::format("make train.micro_batch_size and the samples of each data-parallel rank multiples of {}, or set "
                  "experts.balance_group = 1",
                  each));
}

}  // namespace

std::int64_t TokenGroups::samples_of(std::int64_t group) const {
  return std::min(group_samples, samples - group * group_samples);
}

TokenGroups token_groups(const at::Tensor& x, std::int64_t group_samples, const Context& context, Stream stream,
                         const ParallelContext& parallel) {
  const Sequence& sequence = sequence_of(context, stream);
  const std::int64_t here = x.size(1), of_row = parallel.splits_sequence() ? here * parallel.tensor_ranks() : here;
  const bool shared = sequence.columns.defined();
  TokenGroups groups{.samples = x.size(0), .length = shared ? sequence.row_length : of_row};
  groups.group_samples = context.kv_batch != nullptr ? std::max<std::int64_t>(1, groups.samples) : group_samples;
  const std::vector<std::int64_t> samples = sample_numbers(context, groups.samples);
  if (context.training && !context.filler && !samples.empty()) check_whole_groups(samples, groups.group_samples);
  for (const std::int64_t sample : samples) {
    for (std::int64_t column = 0; column < groups.length; ++column) groups.numbers.push_back((sample << 32) + column);
  }
  std::vector<std::int64_t> columns(static_cast<std::size_t>(of_row));
  std::iota(columns.begin(), columns.end(), 0);
  if (shared) {
    const at::Tensor given = sequence.columns.contiguous();
    TRIREME_CHECK(given.numel() == of_row, "{} columns for {} tokens", given.numel(), of_row);
    std::copy_n(given.const_data_ptr<std::int64_t>(), of_row, columns.begin());
  }
  const std::int64_t first = parallel.splits_sequence() ? parallel.tensor_rank() * here : 0;
  for (std::int64_t sample = 0; sample < groups.samples; ++sample) {
    for (std::int64_t i = 0; i < here; ++i) {
      groups.mine.push_back(sample * groups.length + columns[static_cast<std::size_t>(first + i)]);
    }
  }
  return groups;
}

at::Tensor gather_tokens(const at::Tensor& part, std::int64_t length, const ParallelContext& parallel) {
  at::Tensor whole = part;
  if (parallel.splits_sequence()) whole = all_gather_tokens(whole, *parallel.tensor);
  if (shares(parallel.heads)) whole = all_gather_tokens(whole, *parallel.heads);
  if (!shares(parallel.ring)) return whole.contiguous();
  const at::Tensor by_rank = all_gather_tokens(whole, *parallel.ring);
  at::Tensor by_column = at::empty_like(by_rank);
  std::int64_t at = 0;
  for (int rank = 0; rank < parallel.ring->size(); ++rank) {
    for (const TokenRange& stretch : parallel.tokens.of_outer(rank, length)) {
      by_column.narrow(1, stretch.first, stretch.count).copy_(by_rank.narrow(1, at, stretch.count));
      at += stretch.count;
    }
  }
  return by_column;
}

namespace {

/// A kept choice of a token that this rank dispatches.
struct HomeRow {
  std::int64_t token, number, slot;
  std::int32_t expert;
  double gate;
  std::size_t choice;
};

/// By token, a token's by falling gate and then by expert: the order in which combine adds them up.
std::vector<HomeRow> rows_by_token(const TokenGroups& groups, std::span<const Routing> routings,
                                   const HomeOptions& options) {
  std::vector<std::size_t> choices_before{0};  // of each group
  for (const Routing& routing : routings) choices_before.push_back(choices_before.back() + routing.choices.size());
  std::vector<HomeRow> all;
  all.reserve(choices_before.back());
  for (auto token = static_cast<std::size_t>(options.taken.first);
       token < static_cast<std::size_t>(options.taken.first + options.taken.count); ++token) {
    const std::int64_t whole = groups.mine[token], group = whole / (groups.group_samples * groups.length);
    const Routing& routing = routings[static_cast<std::size_t>(group)];
    const std::int64_t inside = whole - groups.first_token(group);
    std::size_t choice = choices_before[static_cast<std::size_t>(group)] +
                         static_cast<std::size_t>(routing.first[static_cast<std::size_t>(inside)]);
    const auto first = static_cast<std::ptrdiff_t>(all.size());
    for (const Choice& one : routing.of_token(inside)) {
      if (one.kept) {
        const std::int64_t number = groups.numbers[static_cast<std::size_t>(whole)];
        const std::int64_t slot = options.copies != nullptr ? options.copies->slot_of(one.expert, number) : one.expert;
        all.push_back({static_cast<std::int64_t>(token), number, slot, one.expert, one.gate, choice});
      }
      ++choice;
    }
    std::sort(all.begin() + first, all.end(), [](const HomeRow& a, const HomeRow& b) {
      return a.gate != b.gate ? a.gate > b.gate : a.expert < b.expert;
    });
  }
  return all;
}

/// Where each of `all` stands in the order (slot, number of the token, token): one pass for the slots, and a sort only
/// within those whose tokens do not rise already, as they do unless a rank has parts of sequences out of order.
std::vector<std::size_t> order_by_slot(const std::vector<HomeRow>& all, std::span<const std::int64_t> counts) {
  std::vector<std::size_t> next{0}, order(all.size());
  for (const std::int64_t count : counts) next.push_back(next.back() + static_cast<std::size_t>(count));
  const std::vector<std::size_t> begins = next;
  for (std::size_t i = 0; i < all.size(); ++i) order[next[static_cast<std::size_t>(all[i].slot)]++] = i;
  const auto before = [&](std::size_t a, std::size_t b) {
    return all[a].number != all[b].number ? all[a].number < all[b].number : all[a].token < all[b].token;
  };
  for (std::size_t slot = 0; slot + 1 < begins.size(); ++slot) {
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begins[slot]),
               last = order.begin() + static_cast<std::ptrdiff_t>(begins[slot + 1]);
    if (!std::is_sorted(first, last, before)) std::sort(first, last, before);
  }
  return order;
}

}  // namespace

HomeRows home_rows(const TokenGroups& groups, std::span<const Routing> routings, const HomeOptions& options) {
  const std::vector<HomeRow> all = rows_by_token(groups, routings, options);
  const std::int64_t slots = options.copies != nullptr ? options.copies->slots() : options.experts;
  const auto count = static_cast<std::int64_t>(all.size());
  HomeRows home{.counts = std::vector<std::int64_t>(static_cast<std::size_t>(slots), 0),
                .token = at::empty({count}, at::kLong),
                .token_number = at::empty({count}, at::kLong),
                .gates = {},
                .choice = std::vector<std::size_t>(all.size()),
                .first = std::vector<std::int64_t>(groups.mine.size() + 1, 0),
                .rows = std::vector<std::int64_t>(all.size())};
  for (const HomeRow& row : all) {
    ++home.counts[static_cast<std::size_t>(row.slot)];
    ++home.first[static_cast<std::size_t>(row.token) + 1];
  }
  std::partial_sum(home.first.begin(), home.first.end(), home.first.begin());
  const std::vector<std::size_t> order = order_by_slot(all, home.counts);
  at::Tensor gates = at::empty({count}, at::kDouble);
  auto* token = home.token.mutable_data_ptr<std::int64_t>();
  auto* number = home.token_number.mutable_data_ptr<std::int64_t>();
  auto* gate = gates.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < order.size(); ++i) {
    const HomeRow& row = all[order[i]];
    token[i] = row.token, number[i] = row.number, gate[i] = row.gate;
    home.choice[i] = row.choice;
    home.rows[order[i]] = static_cast<std::int64_t>(i);  // `all` is by token already
  }
  home.gates = gates.to(options.gate_type);
  return home;
}

void HomeRows::move_to(at::Device device) {
  for (at::Tensor* tensor : {&token, &token_number, &gates}) *tensor = tensor->to(device);
}

}  // namespace trireme::nn::moe
