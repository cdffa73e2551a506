#include "trireme/nn/loss_terms.h"

#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::nn {
namespace {

LossTerm without_numbers(LossTerm term) {
  term.sum = term.count = 0;
  term.pending = at::Tensor();
  return term;
}

/// A line a term: what ranks must agree on. The weight to the bit.
std::string to_text(std::span<const LossTerm> terms) {
  std::string text;
  for (const LossTerm& term : terms) {
    text += fmt::format("{}\t{:a}\t{}\t{}\t{}\n", term.name, term.weight, static_cast<int>(term.mean),
                        term.sum_over_tp ? 1 : 0, term.sum_over_cp ? 1 : 0);
  }
  return text;
}

std::vector<LossTerm> from_text(const std::string& text) {
  std::vector<LossTerm> terms;
  for (const std::string& line : split(text, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> fields = split(line, '\t');
    TRIREME_CHECK(fields.size() == 5, "a term of a loss came as \"{}\"", line);
    terms.push_back({.name = fields[0],
                     .weight = std::strtod(fields[1].c_str(), nullptr),
                     .mean = static_cast<LossMean>(std::atoi(fields[2].c_str())),
                     .sum_over_tp = fields[3] == "1",
                     .sum_over_cp = fields[4] == "1"});
  }
  return terms;
}

/// Every rank's text, by rank.
std::vector<std::string> gather_texts(const std::string& mine, comm::Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths(ranks);
  group
      .all_gather(comm::ConstBuffer{&length, 1, comm::DType::kI64},
                  comm::Buffer{lengths.data(), lengths.size(), comm::DType::kI64})
      .wait();
  const auto longest = static_cast<std::size_t>(std::max<std::int64_t>(1, *std::ranges::max_element(lengths)));
  std::string padded = mine, all(longest * ranks, '\0');
  padded.resize(longest);
  group
      .all_gather(comm::ConstBuffer{padded.data(), padded.size(), comm::DType::kU8},
                  comm::Buffer{all.data(), all.size(), comm::DType::kU8})
      .wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(lengths[rank])));
  }
  return texts;
}

const LossTerm* find(std::span<const LossTerm> terms, std::string_view name) {
  for (const LossTerm& term : terms) {
    if (term.name == name) return &term;
  }
  return nullptr;
}

}  // namespace

void settle(std::vector<LossTerm>& losses) {
  std::vector<at::Tensor> pending;  // all in one copy: layers with experts have some each
  for (const LossTerm& term : losses) {
    if (term.pending.defined()) pending.push_back(term.pending);
  }
  if (pending.empty()) return;
  const at::Tensor here = at::stack(pending).cpu();
  const double* next = here.const_data_ptr<double>();
  for (LossTerm& term : losses) {
    if (!term.pending.defined()) continue;
    term.sum = *next++;
    term.count = *next++;
    term.pending = at::Tensor();
  }
}

bool comes_before(std::string_view a, std::string_view b) {
  if (a == kMainLoss || b == kMainLoss) return a == kMainLoss && b != kMainLoss;
  return a < b;
}

bool same_kind(const LossTerm& a, const LossTerm& b) {
  return a.name == b.name && a.weight == b.weight && a.mean == b.mean && a.sum_over_tp == b.sum_over_tp &&
         a.sum_over_cp == b.sum_over_cp;
}

void add_term(std::vector<LossTerm>& sums, const LossTerm& term) {
  const auto at = std::ranges::lower_bound(sums, std::string_view(term.name), comes_before, &LossTerm::name);
  if (at == sums.end() || at->name != term.name) {
    sums.insert(at, term);
    return;
  }
  TRIREME_CHECK(same_kind(*at, term), "two layers give the loss term {} with different weights or means: {} and {}",
                term.name, at->weight, term.weight);
  at->sum += term.sum;
  at->count += term.count;
}

double sum_of(std::span<const LossTerm> terms, std::string_view name) {
  const LossTerm* term = find(terms, name);
  return term == nullptr ? 0 : term->sum;
}

double mean_of(const LossTerm& term, const LossCounts& counts) {
  switch (term.mean) {
    case LossMean::kTargets:
      return term.sum / counts.targets;
    case LossMean::kSamples:
      return term.sum / counts.samples;
    case LossMean::kCount:
      break;
  }
  return term.count > 0 ? term.sum / term.count : 0;
}

double total_of(std::span<const LossTerm> terms, const LossCounts& counts) {
  double total = 0;
  for (const LossTerm& term : terms) {
    if (term.weight != 0) total += term.weight * mean_of(term, counts);  // a metric may be Inf and harm nobody
  }
  return total;
}

bool LossReducer::knows(const LossTerm& term) const {
  const LossTerm* known = find(agreed_, term.name);
  return known != nullptr && same_kind(*known, term);
}

void LossReducer::agree(std::span<const std::vector<LossTerm>> steps) {
  std::vector<LossTerm> mine;
  for (const std::vector<LossTerm>& terms : steps) {
    for (const LossTerm& term : terms) add_term(mine, without_numbers(term));
  }
  agreed_.clear();  // a weight may have changed
  for (const std::string& text : gather_texts(to_text(mine), group_)) {
    for (const LossTerm& term : from_text(text))
      add_term(agreed_, term);  // the same on all ranks, also where it throws
  }
}

void LossReducer::start(std::span<const std::vector<LossTerm>> steps, std::span<const double> numbers) {
  if (group_.size() == 1) return;
  const bool news = std::ranges::any_of(steps, [&](const auto& terms) {
    return !std::ranges::all_of(terms, [&](const LossTerm& term) { return knows(term); });
  });
  sent_.assign(numbers.begin(), numbers.end());
  sent_.push_back(news ? 1 : 0);
  for (const std::vector<LossTerm>& terms : steps) {
    for (const LossTerm& known : agreed_) {
      const LossTerm* here = find(terms, known.name);
      sent_.insert(sent_.end(), {here ? here->sum : 0.0, here ? here->count : 0.0});
    }
  }
  work_ = group_.all_reduce(comm::Buffer{sent_.data(), sent_.size(), comm::DType::kF64}, comm::Reduce::kSum);
}

void LossReducer::finish(std::span<std::vector<LossTerm>> steps, std::span<double> numbers) {
  if (group_.size() == 1) return;
  for (work_.wait(); sent_[numbers.size()] > 0; work_.wait()) {
    agree(steps);
    start(steps, numbers);
  }
  std::copy_n(sent_.begin(), numbers.size(), numbers.begin());
  const double* next = sent_.data() + numbers.size() + 1;
  for (std::vector<LossTerm>& terms : steps) {
    terms = agreed_;
    for (LossTerm& term : terms) {
      term.sum = *next++;
      term.count = *next++;
    }
  }
}

}  // namespace trireme::nn
